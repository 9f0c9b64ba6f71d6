"""Integer operators, whose quantizers are inputs: QLinear*, *Integer, and what onnxruntime adds to them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, attributes_of
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Operator, consumers_of
from quantmedic.collectors.pair.quantizer import Quantizer

#: Position of a scale or zero point that is missing, or computed at run time.
_NOWHERE = -1


@dataclass(frozen=True)
class Layout:
    """Meaning of the inputs of an integer operator.

    Attributes:
        kind: The operator that it stands for.
        values: Positions of (value, scale, zero point) of each operand; none for the triplets of QLinearConcat.
        output: Positions of the output's scale and zero point; None where it writes no codes on a grid.
        bias: Position of the bias.
    """

    kind: str
    values: tuple[tuple[int, int, int], ...]
    output: tuple[int, int] | None = None
    bias: int | None = None


_TWO = ((0, 1, 2), (3, 4, 5))
_ONE = ((0, 1, 2),)
INTEGER_OPS = {
    "QLinearConv": Layout("Conv", _TWO, (6, 7), 8),
    "QLinearMatMul": Layout("MatMul", _TWO, (6, 7)),
    "QGemm": Layout("Gemm", _TWO, (7, 8), 6),
    "QLinearAdd": Layout("Add", _TWO, (6, 7)),
    "QLinearMul": Layout("Mul", _TWO, (6, 7)),
    "QLinearSigmoid": Layout("Sigmoid", _ONE, (3, 4)),
    "QLinearLeakyRelu": Layout("LeakyRelu", _ONE, (3, 4)),
    "QLinearSoftmax": Layout("Softmax", _ONE, (3, 4)),
    "QLinearAveragePool": Layout("AveragePool", _ONE, (3, 4)),
    "QLinearGlobalAveragePool": Layout("GlobalAveragePool", _ONE, (3, 4)),
    "QLinearReduceMean": Layout("ReduceMean", _ONE, (3, 4)),
    "QLinearWhere": Layout("Where", ((1, 2, 3), (4, 5, 6)), (7, 8)),
    "QLinearConcat": Layout("Concat", (), (0, 1)),
    "MatMulInteger": Layout("MatMul", ((0, _NOWHERE, 2), (1, _NOWHERE, 3))),
    "ConvInteger": Layout("Conv", ((0, _NOWHERE, 2), (1, _NOWHERE, 3))),
    "MatMulIntegerToFloat": Layout("MatMul", ((0, 2, 4), (1, 3, 5)), bias=6),
    "DynamicQuantizeMatMul": Layout("MatMul", ((0, _NOWHERE, _NOWHERE), (1, 2, 3)), bias=4),
    "MatMulNBits": Layout("MatMul", ((0, _NOWHERE, _NOWHERE),)),
}
#: Their results are int32 sums, which operators further down rescale.
_SUMS = frozenset({"MatMulInteger", "ConvInteger"})


def add_integer(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    """Add an integer operator as the float one that it stands for, and note the grids that it states."""
    graph.integer_nodes += 1
    layout = INTEGER_OPS[node.op_type]
    values = layout.values or tuple((i, i + 1, i + 2) for i in range(2, len(node.input) - 1, 3))
    inputs = [_note_operand(graph, node, layout.kind, *positions) for positions in values]
    if node.op_type == "MatMulNBits":
        inputs.append(_packed_weights(graph, node))
    if layout.bias is not None and _input(node, layout.bias):
        inputs.append(_add_bias(graph, node.input[layout.bias], inputs))
    graph.append(node, layout.kind, inputs)
    _settle_output(graph, node, layout.output)


def _input(node: onnx.NodeProto, position: int) -> str:
    return str(node.input[position]) if 0 <= position < len(node.input) else ""


def _note_operand(graph: OnnxGraph, node: onnx.NodeProto, kind: str, position: int, scale: int, zero: int) -> str:
    """The root or constant that an operand is; its grid is noted."""
    name = str(node.input[position])
    if name in graph.constants:
        _dequantize_constant(graph, name, _operand_grid(graph, node, name, kind, scale, zero))
        return name
    if scale != _NOWHERE:
        quantizer = _inline_quantizer(graph, node, scale, zero, None)
        if quantizer is not None:
            graph.read_codes(name, quantizer)
    return graph.root(name)


def _operand_grid(
    graph: OnnxGraph, node: onnx.NodeProto, name: str, kind: str, scale: int, zero: int
) -> Quantizer | None:
    constant = graph.constants[name]
    if constant.codes is None:
        return None
    if scale != _NOWHERE:
        axis = 0 if kind == "Conv" or attributes_of(node).integer("transB") else constant.codes.ndim - 1
        return _inline_quantizer(graph, node, scale, zero, axis)
    if node.op_type not in _SUMS:
        return None
    # An operator further down applies the scale: until then ranges are in codes.
    stored = graph.constants.get(_input(node, zero))
    points = np.zeros((), np.int64) if stored is None or stored.codes is None else np.asarray(stored.codes, np.int64)
    along = None if points.size == 1 else 0 if kind == "Conv" else constant.codes.ndim - 1
    points = points.reshape(() if along is None else -1)
    return Quantizer(np.ones(points.shape, np.float32), points, *constant.bits, along)


def _inline_quantizer(
    graph: OnnxGraph, node: onnx.NodeProto, scale: int, zero: int, axis: int | None
) -> Quantizer | None:
    constant = graph.constants.get(_input(node, scale))
    if constant is None or constant.values is None:
        return None
    shape = () if constant.values.size == 1 else constant.values.shape
    points, bits, signed = np.zeros(shape, np.int64), 8, False
    if zero_name := _input(node, zero):
        stored = graph.constants.get(zero_name)
        if stored is None or stored.codes is None:
            return None
        points = np.broadcast_to(np.asarray(stored.codes, np.int64), constant.values.shape).reshape(shape)
        bits, signed = stored.bits
    return Quantizer(constant.values.reshape(shape), points, bits, signed, axis if constant.values.size > 1 else None)


def _dequantize_constant(graph: OnnxGraph, name: str, quantizer: Quantizer | None) -> None:
    constant = graph.constants[name]
    if constant.quantizer is None and constant.codes is not None:
        values = quantizer.dequantize(constant.codes) if quantizer is not None else None
        graph.constants[name] = Constant(constant.name, values, quantizer, constant.codes)
        graph.codes[name] = quantizer


def _add_bias(graph: OnnxGraph, name: str, inputs: list[str]) -> str:
    """The int32 bias of an integer operator lies on the grid s_x · s_w."""
    bias, weight = graph.constants.get(name), graph.constants.get(inputs[1])
    step = next((tap.quantizer for tap in graph.quantizers.get(inputs[0], [])), None)
    if bias is None or bias.codes is None or step is None or weight is None or weight.quantizer is None:
        return name if bias is not None else graph.root(name)
    scale = np.asarray(step.scale * weight.quantizer.scale, np.float32)
    quantizer = Quantizer(scale, np.zeros(scale.shape, np.int64), 32, True, 0 if scale.ndim else None)
    graph.constants[name] = Constant(bias.name, quantizer.dequantize(bias.codes), quantizer, bias.codes)
    return name


def _packed_weights(graph: OnnxGraph, node: onnx.NodeProto) -> str:
    """Note bits, block size and scales of the weights of MatMulNBits, which stay packed."""
    attributes, name = attributes_of(node), str(node.input[1])
    bits, block = attributes.integer("bits", 4), attributes.integer("block_size") or None
    scales = graph.constants.get(node.input[2])
    scale = np.zeros((), np.float32) if scales is None or scales.values is None else scales.values
    quantizer = Quantizer(scale, np.zeros(scale.shape, np.int64), bits, False, 0, block)
    graph.constants[name] = Constant(name, None, quantizer)
    return name


def _settle_output(graph: OnnxGraph, node: onnx.NodeProto, output: tuple[int, int] | None) -> None:
    """Note the grid of what the operator writes; nothing where it writes floats."""
    if output and _input(node, output[0]):
        graph.write_codes(node.output[0], _inline_quantizer(graph, node, *output, None))
    elif node.op_type in _SUMS:
        graph.write_codes(node.output[0], None)


def join_dynamic(graph: OnnxGraph) -> None:
    """Fold what rescales the int32 result of a dynamically quantized product (Cast, Mul, bias Add) into the product."""
    consumers = consumers_of(graph.operators)
    producers = {name: op for op in graph.operators for name in op.outputs}
    dropped: set[int] = set()
    for op in graph.operators:
        chain = _rescaling(op, graph, consumers) if op.node.op_type in _SUMS else []
        if len(chain) < 2:
            continue
        _apply_weight_scale(graph, op, chain[1], producers)
        for name in (*op.outputs, *(name for link in chain[:-1] for name in link.outputs)):
            graph.forget_codes(name)
        op.outputs = chain[-1].outputs[:1]
        dropped.update(id(link) for link in chain)
    dynamic = [node for node in graph.model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    scales = {name for node in dynamic for name in node.output}
    graph.operators = [op for op in graph.operators if id(op) not in dropped and not set(op.inputs[:1]) & scales]


def _apply_weight_scale(
    graph: OnnxGraph, product: Operator, rescaling: Operator, producers: Mapping[str, Operator]
) -> None:
    """Give the weights of a product the scale that its sums are multiplied by, alone or times the activation's."""
    weight = graph.constants.get(product.inputs[1]) if len(product.inputs) > 1 else None
    if weight is None or weight.codes is None or weight.quantizer is None:
        return
    factors = list(rescaling.inputs)
    for name in rescaling.inputs:
        scales = producers.get(name)
        factors += scales.inputs if scales is not None and scales.op_type == "Mul" else []
    found = [constant.values for name in factors if (constant := graph.constants.get(name)) and name != weight.name]
    if len(found) != 1 or found[0] is None or not (weight.quantizer.scale == 1).all():
        return
    axis = 0 if product.op_type == "Conv" else weight.codes.ndim - 1
    scale = found[0].reshape(() if found[0].size == 1 else -1)
    if scale.size not in (1, weight.codes.shape[axis]):
        return
    points = np.broadcast_to(weight.quantizer.zero_point, scale.shape) if scale.ndim else weight.quantizer.zero_point
    along = axis if scale.ndim else weight.quantizer.axis
    grid = replace(weight.quantizer, scale=np.broadcast_to(scale, points.shape), zero_point=points, axis=along)
    name = product.inputs[1]
    graph.constants[name] = Constant(weight.name, grid.dequantize(weight.codes), grid, weight.codes)
    graph.codes[name] = grid


def _rescaling(product: Operator, graph: OnnxGraph, consumers: dict[str, list[Operator]]) -> list[Operator]:
    """The operators behind a product that turn its int32 sums into real numbers."""
    chain, tensor = [], product.outputs[0]
    for kind in ("Cast", "Mul", "Add"):
        readers = consumers.get(tensor, [])
        if len(readers) != 1 or readers[0].op_type != kind:
            break
        if kind == "Add" and not any(name in graph.constants for name in readers[0].inputs):
            break
        chain.append(readers[0])
        tensor = readers[0].outputs[0]
    return chain
