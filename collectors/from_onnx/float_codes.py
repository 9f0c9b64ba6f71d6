"""Quantizers whose codes are small floats, such as FLOAT8E4M3FN: their grid is uneven, and no scale and zero point."""

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.from_onnx.onnx_constants import SMALL_FLOATS
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, attributes_of
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.quantizer import SmallFloats

Values = NDArray[np.float32]


def has_float_codes(model: onnx.ModelProto) -> bool:
    """Whether the model stores small floats, or quantizes to them."""
    if any(tensor.data_type in SMALL_FLOATS for tensor in model.graph.initializer):
        return True
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    return any(
        attribute.t.data_type in SMALL_FLOATS or (attribute.name == "output_dtype" and attribute.i in SMALL_FLOATS)
        for attribute in attributes
    )


def float_code_type(graph: OnnxGraph, node: onnx.NodeProto) -> int | None:
    """Type of the codes of a Q or DQ node where these are small floats; None of others."""
    stated = attributes_of(node).integer("output_dtype") if node.op_type == "QuantizeLinear" else 0
    names = [*node.input[2:3], node.input[0] if node.op_type == "DequantizeLinear" else ""]
    types = [graph.float_codes.get(name) for name in names]
    return next((kind for kind in types if kind is not None), stated if stated in SMALL_FLOATS else None)


def note_float_constant(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    """Note the type of what a Constant node holds, if it is small floats."""
    (attribute,) = node.attribute
    if attribute.t.data_type in SMALL_FLOATS:
        graph.float_codes[node.output[0]] = attribute.t.data_type


def add_float_quantize(graph: OnnxGraph, node: onnx.NodeProto, kind: int) -> None:
    """Note what a QuantizeLinear to small floats makes: of a constant its codes, of an activation no grid."""
    graph.qdq_nodes += 1
    source, target = graph.root(node.input[0]), node.output[0]
    graph.float_codes[target] = kind
    constant = graph.constants.get(source)
    if constant is None:
        graph.roots[target] = source
        return
    scale = _scale_of(graph, node, constant.values)
    codes = None if constant.values is None or scale is None else _round_to(constant.values / scale, kind)
    graph.constants[target] = Constant(source, codes)


def add_float_dequantize(graph: OnnxGraph, node: onnx.NodeProto, kind: int) -> None:
    """Note what a DequantizeLinear of small floats makes: a constant's values, or where an activation is read."""
    graph.qdq_nodes += 1
    source, target = node.input[0], node.output[0]
    constant = graph.constants.get(source)
    if constant is None:
        root = graph.root(source)
        graph.roots[target] = root
        scale = graph.constants.get(node.input[1])
        if scale is not None and scale.values is not None and scale.values.size == 1:
            grid = _small_floats(kind, scale.values.reshape(()))
            graph.quantizers.setdefault(root, [Tap(target, None, decoded=True, small_floats=grid)])
        return
    steps = _scale_of(graph, node, constant.values)
    if constant.values is None or steps is None:
        graph.constants[target] = Constant(constant.name, None)
        return
    values = np.asarray(constant.values * steps, np.float32)
    graph.constants[target] = Constant(constant.name, values, small_floats=_small_floats(kind, steps))


def note_float_codes(graph: OnnxGraph) -> None:
    """Add a notice of such quantizers, if there are any."""
    kinds = sorted({SMALL_FLOATS[kind] for kind in graph.float_codes.values()})
    if kinds:
        graph.notices.append(
            f"codes are {' and '.join(kinds)}: errors are measured, and values beyond the largest code are named, but "
            "other ranges are not tried; the graph runs as it is written, because onnxruntime loses a Relu in front of "
            "such quantizers"
        )


def _scale_of(graph: OnnxGraph, node: onnx.NodeProto, values: Values | None) -> Values | None:
    """The scale of each value, in a shape that broadcasts to them; None where it is not known."""
    stored = graph.constants.get(node.input[1])
    if stored is None or stored.values is None or values is None:
        return None
    scale, attributes = stored.values, attributes_of(node)
    if scale.size == 1:
        return scale.reshape(())
    axis = attributes.integer("axis", 1) % values.ndim
    block = attributes.integer("block_size")
    if block:
        return np.repeat(scale, block, axis)[(*[slice(None)] * axis, slice(values.shape[axis]))]
    return scale.reshape([scale.size if i == axis else 1 for i in range(values.ndim)])


def _small_floats(kind: int, scale: Values) -> SmallFloats:
    return SmallFloats(SMALL_FLOATS[kind], np.asarray(np.abs(scale) * _highest(kind), np.float32))


def _highest(kind: int) -> float:
    return float(ml_dtypes.finfo(onnx.helper.tensor_dtype_to_np_dtype(kind)).max)


def _round_to(values: Values, kind: int) -> Values:
    """The nearest small floats, saturated."""
    dtype, top = onnx.helper.tensor_dtype_to_np_dtype(kind), _highest(kind)
    return np.asarray(np.clip(values, -top, top).astype(dtype), np.float32)
