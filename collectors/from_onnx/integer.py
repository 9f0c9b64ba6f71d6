"""Integer operators, whose quantizers are inputs: QLinear*, *Integer, and what onnxruntime adds to them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, attributes_of
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Operator, consumers_of
from quantmedic.collectors.pair.quantizer import Quantizer, unpack_codes

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
    _IntegerOperator(graph, node).add()


class _IntegerOperator:
    """An integer operator that is added to a graph."""

    def __init__(self, graph: OnnxGraph, node: onnx.NodeProto) -> None:
        self._graph, self._node, self._layout = graph, node, INTEGER_OPS[node.op_type]
        self._attributes = attributes_of(node)

    def add(self) -> None:
        """Add it; see ``add_integer``."""
        graph, node, layout = self._graph, self._node, self._layout
        graph.integer_nodes += 1
        values = layout.values or tuple((i, i + 1, i + 2) for i in range(2, len(node.input) - 1, 3))
        inputs = [self._note_operand(*positions) for positions in values]
        if node.op_type == "MatMulNBits":
            inputs.append(self._packed_weights())
        if layout.bias is not None and self._input(layout.bias):
            inputs.append(self._bias(self._input(layout.bias), inputs))
        graph.append(node, layout.kind, inputs)
        if layout.output and self._input(layout.output[0]):
            graph.write_codes(node.output[0], self._quantizer(*layout.output, None))
        elif node.op_type in _SUMS:
            graph.write_codes(node.output[0], None)

    def _input(self, position: int) -> str:
        return str(self._node.input[position]) if 0 <= position < len(self._node.input) else ""

    def _note_operand(self, position: int, scale: int, zero: int) -> str:
        """The root or constant that an operand is; its grid is noted."""
        graph, name = self._graph, str(self._node.input[position])
        constant = graph.constants.get(name)
        if constant is None:
            quantizer = None if scale == _NOWHERE else self._quantizer(scale, zero, None)
            if quantizer is not None:
                graph.read_codes(name, quantizer)
            return graph.root(name)
        if constant.quantizer is None and constant.codes is not None:
            grid = self._grid_of(constant, constant.codes.ndim - 1, scale, zero)
            values = grid.dequantize(constant.codes) if grid is not None else None
            graph.constants[name] = Constant(constant.name, values, grid, constant.codes)
            graph.codes[name] = grid
        return name

    def _grid_of(self, constant: Constant, last: int, scale: int, zero: int) -> Quantizer | None:
        """The grid of stored codes, whose last axis is this one."""
        is_conv = self._layout.kind == "Conv"
        if scale != _NOWHERE:
            return self._quantizer(scale, zero, 0 if is_conv or self._attributes.integer("transB") else last)
        if self._node.op_type not in _SUMS:
            return None
        # An operator further down applies the scale: until then ranges are in codes.
        stored = self._graph.constants.get(self._input(zero))
        known = None if stored is None else stored.codes
        points = np.zeros((), np.int64) if known is None else np.asarray(known, np.int64)
        along = None if points.size == 1 else 0 if is_conv else last
        points = points.reshape(() if along is None else -1)
        return Quantizer(np.ones(points.shape, np.float32), points, *constant.bits, along)

    def _quantizer(self, scale: int, zero: int, axis: int | None) -> Quantizer | None:
        """The grid that inputs at these positions state."""
        constant = self._graph.constants.get(self._input(scale))
        if constant is None or constant.values is None:
            return None
        values = constant.values
        shape = () if values.size == 1 else values.shape
        points, bits, signed = np.zeros(shape, np.int64), 8, False
        if zero_name := self._input(zero):
            stored = self._graph.constants.get(zero_name)
            if stored is None or stored.codes is None:
                return None
            points = np.broadcast_to(np.asarray(stored.codes, np.int64), values.shape).reshape(shape)
            bits, signed = stored.bits
        return Quantizer(values.reshape(shape), points, bits, signed, axis if values.size > 1 else None)

    def _bias(self, name: str, inputs: list[str]) -> str:
        """The int32 bias of an integer operator lies on the grid s_x · s_w."""
        graph = self._graph
        bias, weight = graph.constants.get(name), graph.constants.get(inputs[1])
        step = next((tap.quantizer for tap in graph.quantizers.get(inputs[0], [])), None)
        if bias is None or bias.codes is None or step is None or weight is None or weight.quantizer is None:
            return name if bias is not None else graph.root(name)
        scale = np.asarray(step.scale * weight.quantizer.scale, np.float32)
        quantizer = Quantizer(scale, np.zeros(scale.shape, np.int64), 32, True, 0 if scale.ndim else None)
        graph.constants[name] = Constant(bias.name, quantizer.dequantize(bias.codes), quantizer, bias.codes)
        return name

    def _packed_weights(self) -> str:
        """Note the weights of MatMulNBits, which are packed by output channel in blocks of its inputs."""
        name, read = str(self._node.input[1]), self._attributes.integer
        bits, block, shape = read("bits", 4), read("block_size"), (read("N"), read("K"))
        packed, scales = (self._graph.constants.get(self._node.input[i]) for i in (1, 2))
        if packed is None or packed.codes is None or scales is None or scales.values is None or not block:
            self._graph.constants[name] = Constant(name, None, Quantizer.at_run_time())
            return name
        blocks = -(-shape[1] // block)
        scale = scales.values.reshape(shape[0], blocks).T
        grid = Quantizer(scale, self._packed_zeros((shape[0], blocks), bits).T, bits, False, 0, block)
        codes = _unpack_rows(packed.codes, bits, shape).T
        self._graph.constants[name] = Constant(name, grid.dequantize(codes), grid, codes)
        self._graph.codes[name] = grid
        return name

    def _packed_zeros(self, shape: tuple[int, int], bits: int) -> NDArray[Any]:
        """Zero points of MatMulNBits by output channel and block: packed like codes, or float, or the middle code."""
        stored = self._graph.constants.get(self._input(3))
        if stored is not None and stored.codes is not None:
            return _unpack_rows(stored.codes, bits, shape).astype(np.int64)
        if stored is not None and stored.values is not None:
            return stored.values.reshape(shape)
        return np.full(shape, 2 ** (bits - 1), np.int64)


def _unpack_rows(packed: NDArray[np.generic], bits: int, shape: tuple[int, int]) -> NDArray[np.generic]:
    """Codes that are packed row by row; what fills the last bytes of a row is left out."""
    codes = unpack_codes(packed.view(np.uint8).ravel(), bits, packed.size * 8 // bits, signed=False)
    return codes.reshape(shape[0], -1)[:, : shape[1]]


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
