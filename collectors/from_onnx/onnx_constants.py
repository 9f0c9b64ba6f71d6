"""Constants of an ONNX graph: read from the file, and carried through operators that only move or cast them."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from quantmedic.collectors.from_onnx.onnx_graph import attributes_of
from quantmedic.collectors.pair.channels import reshaped_axis
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Attributes
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.operator_types import LAYOUTS

T = TypeVar("T", bound=np.generic)
_T = onnx.TensorProto
_FLOATS = frozenset({_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BFLOAT16})
#: Types that codes are stored in; INT2 and UINT2 are known to newer versions of onnx only.
_CODES = frozenset(
    getattr(_T, name)
    for name in ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")
    if hasattr(_T, name)
)


#: Small floats that are codes, by the number of their type; some are known to newer versions of onnx only.
SMALL_FLOATS = {
    getattr(_T, name): name.lower()
    for name in ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E8M0", "FLOAT4E2M1")
    if hasattr(_T, name)
}


def read_constant(tensor: onnx.TensorProto) -> Constant:
    """The constant of an initializer.

    Raises:
        ValueError: Its type is unknown, or its bytes do not fit its shape.
    """
    _T.DataType.Name(tensor.data_type)
    if tensor.data_type in SMALL_FLOATS:
        return Constant(tensor.name, numpy_helper.to_array(tensor).astype(np.float32))
    if tensor.data_type not in _FLOATS | _CODES | {_T.INT64}:
        return Constant(tensor.name, None)
    return _constant_of(tensor.name, numpy_helper.to_array(tensor), tensor.data_type)


def _constant_of(name: str, array: NDArray[np.generic], kind: int) -> Constant:
    if kind in _FLOATS:
        return Constant(name, array.astype(np.float32))
    if kind in _CODES:
        return Constant(name, None, codes=array)
    return Constant(name, None, integers=array.astype(np.int64, copy=False) if kind == _T.INT64 else None)


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
    attributes = attributes_of(node)
    if source is None:
        return unknown
    if node.op_type == "Cast":
        return _cast(source, attributes.integer("to"))
    if node.op_type not in LAYOUTS:
        return unknown
    if len(inputs) > 1:
        if inputs[1] is None or inputs[1].integers is None:
            return unknown
        sizes = tuple(inputs[1].integers.tolist())
        attributes.update(shape=sizes, axes=sizes)
    return _move(source, node.op_type, attributes)


def _cast(source: Constant, kind: int) -> Constant:
    stored = next((a for a in (source.values, source.codes, source.integers) if a is not None), None)
    if stored is None or kind not in _FLOATS | _CODES | {_T.INT64}:
        return Constant(source.name, None)
    cast = _constant_of(source.name, stored.astype(onnx.helper.tensor_dtype_to_np_dtype(kind)), kind)
    if cast.values is None or source.values is None:
        return cast
    return replace(source, values=cast.values)


def _move(source: Constant, kind: str, attributes: Attributes) -> Constant:
    def move(array: NDArray[T] | None) -> NDArray[T] | None:
        return None if array is None else _with_layout(array, kind, attributes)

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
    if kind != "Transpose":
        axis = reshaped_axis(quantizer.axis % len(before), before, after)
        return None if axis is None or quantizer.block_size else replace(quantizer, axis=axis)
    return quantizer.transpose(_order(attributes, len(before)))


def _order(attributes: Attributes, rank: int) -> tuple[int, ...]:
    return attributes.integers("perm") or tuple(reversed(range(rank)))


def _with_layout(array: NDArray[T], kind: str, attributes: Attributes) -> NDArray[T]:
    """The numbers of a constant in the shape that an operator of ``LAYOUTS`` gives them."""
    axes = attributes.integers("axes")
    match kind:
        case "Transpose":
            return array.transpose(_order(attributes, array.ndim))
        case "Reshape":
            copied = not attributes.integer("allowzero")
            shape = attributes.integers("shape") or ()
            return array.reshape([array.shape[i] if size == 0 and copied else size for i, size in enumerate(shape)])
        case "Flatten":
            axis = attributes.integer("axis", 1)
            axis = axis + array.ndim if axis < 0 else axis
            return array.reshape(prod(array.shape[:axis]), prod(array.shape[axis:]))
        case "Squeeze":
            return np.squeeze(array, axes or None)
        case "Unsqueeze":
            if axes is None:
                raise ValueError("Unsqueeze without axes")
            return np.expand_dims(array, axes)
    return array
