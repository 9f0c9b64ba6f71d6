"""Constants of an ONNX graph: read from the file, dequantized, and carried through operators that only move them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from quantmedic.collectors.pair.axes import reshaped_axis, transposed_axis
from quantmedic.collectors.pair.quantizer import Quantizer

Array = NDArray[Any]
Attributes = dict[str, Any]
_T = onnx.TensorProto
_FLOATS = frozenset({_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BFLOAT16})
#: Types that codes are stored in; INT2 and UINT2 are known to newer versions of onnx only.
_CODES = frozenset(
    getattr(_T, name)
    for name in ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")
    if hasattr(_T, name)
)


@dataclass(frozen=True)
class Constant:
    """An initializer, or what is computed from initializers alone.

    Attributes:
        name: Name of the initializer that it comes from.
        values: Real values, dequantized where it is stored as codes; None where they are not known.
        quantizer: How it was quantized.
        codes: Integers of a type that codes are stored in.
        integers: What an int64 constant holds: a shape, axes, indexes.
    """

    name: str
    values: NDArray[np.float32] | None
    quantizer: Quantizer | None = None
    codes: NDArray[np.generic] | None = None
    integers: NDArray[np.int64] | None = None

    @property
    def bits(self) -> tuple[int, bool]:
        """Bits of the stored codes, and whether they are signed; uint8 where nothing is stored."""
        return (8, False) if self.codes is None else type_bits(str(self.codes.dtype))


def type_bits(kind: str) -> tuple[int, bool]:
    """Bits and sign of an integer type by its name, as in ``uint4``."""
    digits = "".join(ch for ch in kind if ch.isdigit())
    return (int(digits) if digits else 8), not kind.lower().startswith("uint")


def read_constant(tensor: onnx.TensorProto) -> Constant:
    """The constant of an initializer.

    Raises:
        ValueError: Its type is unknown, or its bytes do not fit its shape.
    """
    _T.DataType.Name(tensor.data_type)
    if tensor.data_type not in _FLOATS | _CODES | {_T.INT64}:
        return Constant(tensor.name, None)
    return _constant_of(tensor.name, numpy_helper.to_array(tensor), tensor.data_type)


def _constant_of(name: str, array: Array, kind: int) -> Constant:
    if kind in _FLOATS:
        return Constant(name, array.astype(np.float32))
    if kind in _CODES:
        return Constant(name, None, codes=array)
    return Constant(name, None, integers=array if kind == _T.INT64 else None)


def read_constant_node(node: onnx.NodeProto) -> Constant:
    """The constant that a Constant node holds."""
    (attribute,) = node.attribute
    if attribute.type == onnx.AttributeProto.TENSOR:
        return replace(read_constant(attribute.t), name=node.output[0])
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type in (onnx.AttributeProto.FLOAT, onnx.AttributeProto.FLOATS):
        return Constant(node.output[0], np.asarray(value, np.float32))
    if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
        return Constant(node.output[0], None, integers=np.asarray(value, np.int64))
    return Constant(node.output[0], None)


def fold(node: onnx.NodeProto, inputs: Sequence[Constant | None]) -> Constant:
    """What an operator makes of constants; without values where it does more than move or cast them."""
    source, unknown = inputs[0], Constant(node.output[0], None)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if source is None:
        return unknown
    if node.op_type == "Cast":
        return _cast(source, attributes["to"])
    if node.op_type not in _LAYOUTS:
        return unknown
    if len(inputs) > 1:
        if inputs[1] is None or inputs[1].integers is None:
            return unknown
        attributes |= {"shape": inputs[1].integers.tolist(), "axes": inputs[1].integers.tolist()}
    return _moved(source, node.op_type, attributes)


def _cast(source: Constant, kind: int) -> Constant:
    stored = next((a for a in (source.values, source.codes, source.integers) if a is not None), None)
    if stored is None or kind not in _FLOATS | _CODES | {_T.INT64}:
        return Constant(source.name, None)
    cast = _constant_of(source.name, stored.astype(onnx.helper.tensor_dtype_to_np_dtype(kind)), kind)
    if cast.values is None or source.values is None:
        return cast
    return replace(source, values=cast.values)


def _moved(source: Constant, kind: str, attributes: Attributes) -> Constant:
    def move(array: Array | None) -> Array | None:
        return None if array is None else _LAYOUTS[kind](array, attributes)

    moved = replace(source, values=move(source.values), codes=move(source.codes), integers=move(source.integers))
    before, after = (c.values if c.values is not None else c.codes for c in (source, moved))
    if source.quantizer is None or before is None or after is None:
        return moved
    quantizer = _moved_quantizer(source.quantizer, kind, attributes, before.shape, after.shape)
    return replace(moved, quantizer=quantizer)


def _moved_quantizer(
    quantizer: Quantizer, kind: str, attributes: Attributes, before: tuple[int, ...], after: tuple[int, ...]
) -> Quantizer | None:
    """The quantizer with its axis where it is now; None where its channels or blocks are torn apart."""
    if quantizer.axis is None or kind == "Identity":
        return quantizer
    axis: int | None = quantizer.axis % len(before)
    if kind == "Transpose":
        axis = transposed_axis(quantizer.axis % len(before), _order(attributes, len(before)))
        if quantizer.block_size:
            scale, zero = (_transpose(a, attributes) for a in (quantizer.scale, quantizer.zero_point))
            return replace(quantizer, scale=scale, zero_point=zero, axis=axis)
    else:
        axis = reshaped_axis(quantizer.axis % len(before), before, after)
    return None if axis is None or quantizer.block_size else replace(quantizer, axis=axis)


def _order(attributes: Attributes, rank: int) -> list[int]:
    return list(attributes.get("perm") or reversed(range(rank)))


def _transpose(array: Array, attributes: Attributes) -> Array:
    return array.transpose(_order(attributes, array.ndim))


def _reshape(array: Array, attributes: Attributes) -> Array:
    copied = not attributes.get("allowzero")
    shape = [array.shape[i] if size == 0 and copied else size for i, size in enumerate(attributes["shape"])]
    return array.reshape(shape)


def _flatten(array: Array, attributes: Attributes) -> Array:
    axis = attributes.get("axis", 1)
    axis = axis + array.ndim if axis < 0 else axis
    return array.reshape(int(np.prod(array.shape[:axis])), int(np.prod(array.shape[axis:])))


def _squeeze(array: Array, attributes: Attributes) -> Array:
    axes = attributes.get("axes")
    return np.squeeze(array, tuple(axes) if axes else None)


def _unsqueeze(array: Array, attributes: Attributes) -> Array:
    return np.expand_dims(array, tuple(attributes["axes"]))


#: Operators that give a constant another shape and leave its numbers as they are.
_LAYOUTS: dict[str, Callable[[Array, Attributes], Array]] = {
    "Identity": lambda array, attributes: array,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
