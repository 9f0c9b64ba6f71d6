"""Constants of an IR: numbers, or codes behind the Convert, Subtract and Multiply that make weights of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper

from quantmedic.collectors.from_translation.onnx_writer import open_first_side
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.quantizer import Quantizer

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
Places = NDArray[np.int64]
#: Types of an IR in ONNX's; halves are handed on as float32.
TYPES = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT,
    "bf16": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "boolean": TensorProto.BOOL,
    "string": TensorProto.STRING,
    **{
        f"{'u' if sign else 'i'}{bits}": TensorProto.DataType.Value(f"{sign}INT{bits}")
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
#: Types of constants that numpy has, or that are read as float32.
REAL = frozenset({"f32", "f16", "bf16", "f64"})
#: Operators that make weights of constants, or move them.
FOLDED = frozenset({"Convert", "Subtract", "Multiply", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})


@dataclass(frozen=True)
class Grid:
    """Steps and zero points of codes.

    Attributes:
        scale: ``[steps]``.
        zero: ``[steps]``, in codes.
        places: Which step each code has, in the shape of the codes.
    """

    scale: Float32
    zero: NDArray[np.int64]
    places: Places


@dataclass(frozen=True)
class Held:
    """A constant.

    Attributes:
        name: Name of the constant that it comes from.
        data: Numbers, or codes, those of fewer than 8 bits one to a byte.
        bits: Bits of a code; None for numbers.
        signed: Codes are signed.
        is_real: Codes were converted to numbers already.
        grid: Of codes; None for numbers.
        zero: What was subtracted of codes that have no grid yet.
    """

    name: str
    data: Array
    bits: int | None = None
    signed: bool = True
    is_real: bool = False
    grid: Grid | None = None
    zero: Array | None = None

    @property
    def values(self) -> Array:
        """What it stands for; real values in float32."""
        if self.grid is not None:
            scale, zero = self.grid.scale[self.grid.places], self.grid.zero[self.grid.places]
            return np.asarray((self.data.astype(np.float32) - zero) * scale, np.float32)
        if self.zero is not None:
            return np.asarray(self.data.astype(np.float32) - self.zero.astype(np.float32), np.float32)
        if self.data.dtype.kind == "f" or self.is_real:
            return self.data.astype(np.float32)
        return self.data

    def with_zero(self, zero: Array) -> "Held | None":
        """Codes of which a whole number is subtracted; None where it is none, or these are no codes."""
        whole = np.rint(zero.astype(np.float64))
        if self.bits is None or self.grid is not None or self.zero is not None or not np.array_equal(whole, zero):
            return None
        return replace(self, zero=whole.astype(np.int64))

    def with_scale(self, scale: Array) -> "Held | None":
        """Codes that are multiplied by their step; None where these are no codes, or the shapes do not fit."""
        if self.bits is None or self.grid is not None or not self.is_real:
            return None
        shape = self.data.shape
        zero = np.zeros(1, np.int64) if self.zero is None else self.zero
        try:
            common = np.broadcast_shapes(scale.shape, zero.shape)
            if np.broadcast_shapes(common, shape) != shape:
                return None
            places = np.broadcast_to(np.arange(np.prod(common, dtype=int)).reshape(common), shape)
        except ValueError:
            return None
        steps = np.broadcast_to(scale.astype(np.float32), common).ravel()
        zeros = np.broadcast_to(zero.astype(np.int64), common).ravel()
        return replace(self, zero=None, grid=Grid(steps, zeros, places))

    def reshape(self, shape: Sequence[int]) -> "Held":
        """The same numbers in another shape."""
        grid = self.grid and replace(self.grid, places=self.grid.places.reshape(shape))
        zero = None if self.zero is None else np.broadcast_to(self.zero, self.data.shape).reshape(shape)
        return replace(self, data=self.data.reshape(shape), grid=grid, zero=zero)

    def transpose(self, order: Sequence[int]) -> "Held":
        """The same numbers with other axes."""
        grid = self.grid and replace(self.grid, places=self.grid.places.transpose(order))
        zero = None if self.zero is None else np.broadcast_to(self.zero, self.data.shape).transpose(order)
        return replace(self, data=self.data.transpose(order), grid=grid, zero=zero)

    @property
    def quantizer(self) -> Quantizer | None:
        """Its grid per tensor, per channel or per block; None where it has none, or one of another form."""
        if self.grid is None or self.bits is None or self.data.size == 0:
            return None
        grid, places = self.grid, self.grid.places
        varying = [axis for axis in range(places.ndim) if (places != places.take([0], axis)).any()]
        if not varying:
            first = places.flat[0]
            return Quantizer(grid.scale[first], np.asarray(grid.zero[first]), self.bits, self.signed)
        if len(varying) == 1:
            (axis,) = varying
            row = np.moveaxis(places, axis, 0).reshape(places.shape[axis], -1)[:, 0]
            if np.array_equal(row, np.arange(row.size)) or len(set(row.tolist())) == row.size:
                return Quantizer(grid.scale[row], grid.zero[row], self.bits, self.signed, axis)
        return self._blocks(varying)

    def _blocks(self, varying: Sequence[int]) -> Quantizer | None:
        """A grid whose steps hold for blocks of equal length along one axis."""
        assert self.grid is not None and self.bits is not None
        places = self.grid.places
        for axis in reversed(varying):
            moved = np.moveaxis(places, axis, -1)
            changes = np.flatnonzero((np.diff(moved, axis=-1) != 0).reshape(-1, moved.shape[-1] - 1).any(0)) + 1
            length = int(changes[0]) if changes.size else places.shape[axis]
            if length == 1 or places.shape[axis] % length or (changes % length).any():
                continue
            every = places.take(np.arange(0, places.shape[axis], length), axis)
            return Quantizer(self.grid.scale[every], self.grid.zero[every], self.bits, self.signed, axis, length)
        return None


def fold(op: "openvino.Node", given: Sequence[Held]) -> Held | None:
    """What an operator makes of constants; None where it is none of those that make weights."""
    kind, first, data = op.get_type_name(), given[0], given[0].data
    if kind == "Convert":
        return _convert(op, first)
    if kind == "Subtract":
        return first.with_zero(given[1].values)
    if kind == "Multiply":
        return first.with_scale(given[1].values) or given[1].with_scale(first.values)
    shape = shape_of(op.output(0))
    if kind in ("Reshape", "Squeeze", "Unsqueeze") and shape is not None and None not in shape:
        return first.reshape([side or 0 for side in shape])
    if kind == "Transpose":
        order = given[1].values.ravel().tolist() or list(reversed(range(data.ndim)))
        return first.transpose([int(axis) for axis in order])
    return None


def _convert(op: "openvino.Node", held: Held) -> Held | None:
    """Codes that are read as numbers; numbers of another type."""
    kind = op.get_output_element_type(0).get_type_name()
    if kind in REAL - {"f64"}:
        if held.bits is not None or held.grid is not None or held.data.dtype.kind != "f":
            return Held(held.name, held.data, held.bits, held.signed, is_real=True, grid=held.grid, zero=held.zero)
        return replace(held, data=held.data.astype(np.float32))
    if kind in TYPES and kind not in ("f64", "string") and held.grid is None and held.zero is None:
        return Held(held.name, held.data.astype(helper.tensor_dtype_to_np_dtype(TYPES[kind])))
    return None


def value_info(name: str, output: "openvino.Output", batch: str | None = None) -> ValueInfoProto:
    """Type and shape; sides that depend on the data are left open, the first of an input under a name."""
    shape = shape_of(output)
    kind = TYPES.get(output.get_element_type().get_type_name(), TensorProto.UNDEFINED)
    return helper.make_tensor_value_info(name, kind, None if shape is None else open_first_side(shape, batch))


def shape_of(output: "openvino.Output") -> Shape | None:
    """Shape of a tensor; None where its rank depends on the data, and for sides that do."""
    partial = output.get_partial_shape()
    if partial.rank.is_dynamic:
        return None
    return tuple(side.get_length() if side.is_static else None for side in partial)
