"""Constants of an IR carried through what makes weights of codes, and the types that IRs and ONNX have in common."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from quantmedic.collectors.from_openvino.constants import Held
from quantmedic.collectors.from_openvino.grids import FakeGrid
from quantmedic.collectors.from_openvino.site import shape_of

if TYPE_CHECKING:
    import openvino

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


def fold(op: "openvino.Node", given: Sequence[Held]) -> Held | None:
    """What an operator makes of constants; None where it is none of those that make weights."""
    kind, first, data = op.get_type_name(), given[0], given[0].data
    if kind == "Convert":
        return _converted(op, first)
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


def _converted(op: "openvino.Node", held: Held) -> Held | None:
    """Codes that are read as numbers; numbers of another type."""
    kind = op.get_output_element_type(0).get_type_name()
    if kind in REAL - {"f64"}:
        if held.bits is not None or held.grid is not None or held.data.dtype.kind != "f":
            return Held(held.name, held.data, held.bits, held.signed, is_real=True, grid=held.grid, zero=held.zero)
        return replace(held, data=held.data.astype(np.float32))
    if kind in TYPES and kind not in ("f64", "string") and held.grid is None and held.zero is None:
        return Held(held.name, held.data.astype(helper.tensor_dtype_to_np_dtype(TYPES[kind])))
    return None


def round_weights(source: Held, grid: FakeGrid) -> Held:
    """Constant weights as codes on the grid of the FakeQuantize that reads them."""
    own = grid.encoder
    codes = own.encode(np.asarray(source.values, np.float32)).astype(np.int64)
    plain = Held(source.name, codes, own.bits, own.signed, is_real=True)
    shape: list[int] = [1] * codes.ndim
    if grid.decoder.axis is not None:
        shape[grid.decoder.axis] = -1
    zeroed = plain.with_zero(np.asarray(grid.decoder.zero_point, np.float64).reshape(shape))
    found = zeroed and zeroed.with_scale(np.asarray(grid.decoder.scale).reshape(shape))
    if found is None:
        raise ValueError(f"the ranges of {source.name} do not fit its shape")
    return found


def value_info(name: str, output: "openvino.Output", batch: str | None = None) -> ValueInfoProto:
    """Type and shape; sides that depend on the data are left open, the first of an input under a name."""
    shape = shape_of(output)
    sides: list[int | str | None] | None = None if shape is None else list(shape)
    if sides and sides[0] is None:
        sides[0] = batch
    kind = TYPES.get(output.get_element_type().get_type_name(), TensorProto.UNDEFINED)
    return helper.make_tensor_value_info(name, kind, sides)
