"""An ONNX graph without its quantizers: operators, constants, and where each tensor's integer codes can be read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.inliner import inline_local_functions

from quantmedic.engine.errors import ModelError

#: Operators with weights or a matrix product.
COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "Attention"})
#: Operators that toolchains fold into a neighbour, so that they may be missing on one side.
FOLDABLE = frozenset({"Relu", "Clip", "BatchNormalization", "Identity", "Dropout", "Cast", "Add", "Mul", "Sub", "Div"})
_ALIASES = frozenset({"Identity", "Dropout"})
#: Operators that move codes without changing them: their result keeps the quantizer of their first input.
_MOVES = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Gather", "Split", "Expand", "Tile"}
)
_SUBGRAPH = frozenset({"If", "Loop", "Scan"})
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"

#: Integer operators: (canonical type, positions of (value, scale, zero point) inputs, of the output's scale and zero
#: point, of the bias). A value position of -1 stands for the variadic triplets of QLinearConcat.
_INTEGER_OPS: dict[str, tuple[str, tuple[tuple[int, int, int], ...], tuple[int, int] | None, int | None]] = {
    "QLinearConv": ("Conv", ((0, 1, 2), (3, 4, 5)), (6, 7), 8),
    "QLinearMatMul": ("MatMul", ((0, 1, 2), (3, 4, 5)), (6, 7), None),
    "QGemm": ("Gemm", ((0, 1, 2), (3, 4, 5)), (7, 8), 6),
    "QLinearAdd": ("Add", ((0, 1, 2), (3, 4, 5)), (6, 7), None),
    "QLinearMul": ("Mul", ((0, 1, 2), (3, 4, 5)), (6, 7), None),
    "QLinearSigmoid": ("Sigmoid", ((0, 1, 2),), (3, 4), None),
    "QLinearLeakyRelu": ("LeakyRelu", ((0, 1, 2),), (3, 4), None),
    "QLinearSoftmax": ("Softmax", ((0, 1, 2),), (3, 4), None),
    "QLinearAveragePool": ("AveragePool", ((0, 1, 2),), (3, 4), None),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", ((0, 1, 2),), (3, 4), None),
    "QLinearReduceMean": ("ReduceMean", ((0, 1, 2),), (3, 4), None),
    "QLinearWhere": ("Where", ((1, 2, 3), (4, 5, 6)), (7, 8), None),
    "QLinearConcat": ("Concat", ((-1, -1, -1),), (0, 1), None),
    "MatMulInteger": ("MatMul", ((0, -2, 2), (1, -2, 3)), None, None),
    "ConvInteger": ("Conv", ((0, -2, 2), (1, -2, 3)), None, None),
    "MatMulIntegerToFloat": ("MatMul", ((0, 2, 4), (1, 3, 5)), None, 6),
    "DynamicQuantizeMatMul": ("MatMul", ((0, -2, -2), (1, 2, 3)), None, 4),
    "MatMulNBits": ("MatMul", ((0, -2, -2),), None, None),
}
_INTEGER_BITS = {
    onnx.TensorProto.INT8: (8, True),
    onnx.TensorProto.UINT8: (8, False),
    onnx.TensorProto.INT16: (16, True),
    onnx.TensorProto.UINT16: (16, False),
    onnx.TensorProto.INT32: (32, True),
    onnx.TensorProto.INT4: (4, True),
    onnx.TensorProto.UINT4: (4, False),
}
for _name, _bits in (("INT2", (2, True)), ("UINT2", (2, False))):
    if hasattr(onnx.TensorProto, _name):
        _INTEGER_BITS[getattr(onnx.TensorProto, _name)] = _bits


@dataclass(frozen=True)
class Quantizer:
    """real = scale · (code - zero_point); arrays are scalars, or ``[channels]`` along ``axis``, or blocks."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    bits: int
    signed: bool
    axis: int | None = None
    block_size: int | None = None
    dynamic: bool = False

    @property
    def qmin(self) -> int:
        """Lowest code."""
        return -(2 ** (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Highest code."""
        return 2 ** (self.bits - 1) - 1 if self.signed else 2**self.bits - 1

    def dequantize(self, codes: NDArray[np.generic]) -> NDArray[np.float32]:
        """Real values of an array of codes."""
        scale, zero = self._aligned(codes.ndim, codes.shape)
        return ((codes.astype(np.float32) - zero) * scale).astype(np.float32)

    def dequantize_rows(self, codes: NDArray[np.generic]) -> NDArray[np.float32]:
        """Real values of codes arranged as ``[outer, channels, inner]``."""
        scale, zero = (np.asarray(v, np.float32).reshape(1, -1, 1) for v in (self.scale, self.zero_point))
        values = np.subtract(codes, zero, dtype=np.float32)
        values *= scale
        return values

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Codes of real values, rounded half to even and saturated; whole numbers in float32."""
        scale, zero = self._aligned(values.ndim, values.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.clip(np.rint(values / scale) + zero, self.qmin, self.qmax).astype(np.float32)

    def quantize(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values after a round trip through the codes."""
        return self.dequantize(self.encode(values))

    def _aligned(self, rank: int, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        scale, zero = self.scale, np.broadcast_to(self.zero_point.astype(np.float32), self.scale.shape)
        if scale.ndim == 0 or scale.size == 1:
            return scale.reshape(()), zero.reshape(())
        if self.block_size:
            axis = self.axis or 0
            repeat = [np.repeat(a, self.block_size, axis)[_prefix(shape, axis)] for a in (scale, zero)]
            return repeat[0], repeat[1]
        target = [1] * rank
        target[self.axis or 0] = scale.size
        return scale.reshape(target), zero.reshape(target)


def _prefix(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    return (*([slice(None)] * axis), slice(0, shape[axis]))


@dataclass(frozen=True)
class Constant:
    """An initializer: float values (dequantized where it is stored as codes) and how it was quantized."""

    name: str
    values: NDArray[np.float32] | None
    quantizer: Quantizer | None = None
    codes: NDArray[np.generic] | None = None


@dataclass
class Operator:
    """One operator after quantizers were folded into their tensors; names are roots or constants."""

    index: int
    name: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, onnx.AttributeProto]
    node: onnx.NodeProto


@dataclass
class Tap:
    """Where a tensor can be read: its codes and their quantizer, or, without one, its float values."""

    tensor: str
    quantizer: Quantizer | None


@dataclass
class Graph:
    """A model as operators over *roots*: each root stands for a tensor and all its quantized copies."""

    path: Path
    model: onnx.ModelProto
    operators: list[Operator] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    quantizers: dict[str, list[Tap]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    integer_nodes: int = 0
    qdq_nodes: int = 0
    dynamic_nodes: int = 0

    def root(self, tensor: str) -> str:
        """The tensor that a name stands for."""
        while tensor in self.roots:
            tensor = self.roots[tensor]
        return tensor

    @property
    def output_roots(self) -> list[str]:
        """Roots of the network's outputs, in order."""
        return [self.root(name) for name in self.outputs]

    @property
    def producers(self) -> dict[str, Operator]:
        """Operator that writes each root."""
        return {name: op for op in self.operators for name in op.outputs}

    @property
    def consumers(self) -> dict[str, list[Operator]]:
        """Operators that read each root, in topological order."""
        found: dict[str, list[Operator]] = {}
        for op in self.operators:
            for name in dict.fromkeys(op.inputs):
                found.setdefault(name, []).append(op)
        return found

    @property
    def is_quantized(self) -> bool:
        """The graph holds any quantizer or integer operator."""
        return bool(self.integer_nodes or self.qdq_nodes or self.dynamic_nodes)

    @property
    def format(self) -> str:
        """QDQ, QOperator, dynamic or none."""
        if self.dynamic_nodes:
            return "dynamic"
        if self.integer_nodes:
            return "QOperator"
        return "QDQ" if self.qdq_nodes else "none"

    @property
    def opset(self) -> int:
        """Opset of the default domain."""
        return max((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def load_model(path: Path) -> onnx.ModelProto:
    """Read a model with its external data, which must lie inside the model's folder.

    Raises:
        ModelError: Missing, not ONNX, truncated, or external data that is missing or outside the folder.
    """
    if not path.is_file():
        raise ModelError("no such model file", where=str(path))
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise ModelError(
            "not a readable ONNX model", where=f"{path}: {error}", help="is the file complete, and is it ONNX?"
        ) from error
    if not model.HasField("graph") or not model.graph.node or not model.opset_import:
        raise ModelError("not an ONNX model: it holds no graph", where=str(path))
    _load_external_data(model, path)
    if model.functions:
        model = inline_local_functions(model)
    return model


def _load_external_data(model: onnx.ModelProto, path: Path) -> None:
    folder = path.resolve().parent
    for tensor in _external_tensors(model):
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        target = (folder / location).resolve()
        if not location or not target.is_relative_to(folder):
            raise ModelError(
                "external data outside the model's folder is not read",
                where=f"{path}: tensor {tensor.name}, location {location!r}",
                help="save the model again with its data beside it",
            )
        if not target.is_file():
            raise ModelError(
                "external data of the model is missing",
                where=f"{path}: tensor {tensor.name} needs {location}",
                help="copy the data file into the model's folder",
            )
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except Exception as error:
        raise ModelError("external data of the model cannot be read", where=f"{path}: {error}") from error


def _external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    yield attribute.t
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    yield from tensors(attribute.g)

    for tensor in tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def external_files(model_path: Path) -> list[Path]:
    """Files beside the model that hold its external data."""
    model = onnx.load_model(str(model_path), load_external_data=False)
    names = {e.value for t in _external_tensors(model) for e in t.external_data if e.key == "location"}
    return sorted(model_path.resolve().parent / name for name in names)


def parse(path: Path, model: onnx.ModelProto) -> Graph:
    """Fold quantizers, identities and constants away and keep the operators."""
    graph = Graph(path, model)
    for tensor in model.graph.initializer:
        graph.constants[tensor.name] = _constant(tensor)
    graph.inputs = [value.name for value in model.graph.input if value.name not in graph.constants]
    graph.outputs = [value.name for value in model.graph.output]
    for node in _topological(model.graph.node, [*graph.inputs, *graph.constants], path):
        _add_node(graph, node)
    _join_dynamic(graph)
    for index, op in enumerate(graph.operators):
        op.index = index
    return graph


def _topological(nodes: Iterable[onnx.NodeProto], known: Iterable[str], path: Path) -> list[onnx.NodeProto]:
    ready, waiting, ordered = {"", *known}, list(nodes), []
    while waiting:
        later = []
        for node in waiting:
            if all(name in ready for name in node.input):
                ordered.append(node)
                ready.update(node.output)
            else:
                later.append(node)
        if len(later) == len(waiting):
            missing = next(name for name in later[0].input if name not in ready)
            raise ModelError("the graph reads a tensor that nothing writes", where=f"{path}: {missing}")
        waiting = later
    return ordered


def _add_node(graph: Graph, node: onnx.NodeProto) -> None:
    kind = node.op_type
    if kind == "Constant":
        graph.constants[node.output[0]] = _constant_node(node)
    elif kind == _QUANTIZE:
        _add_quantize(graph, node)
    elif kind == _DEQUANTIZE:
        _add_dequantize(graph, node)
    elif kind == "DynamicQuantizeLinear":
        graph.dynamic_nodes += 1
        root = graph.root(node.input[0])
        graph.roots[node.output[0]] = root
        dynamic = Quantizer(np.float32(np.nan), np.int64(0), 8, False, dynamic=True)  # type: ignore[arg-type]
        graph.quantizers.setdefault(root, []).append(Tap("", dynamic))
    elif kind in _INTEGER_OPS:
        _add_integer(graph, node)
    elif kind in _ALIASES and node.input[0] not in graph.constants:
        graph.roots[node.output[0]] = node.input[0]
    elif node.input and all(graph.root(name) in graph.constants for name in node.input if name):
        for name in node.output:
            graph.constants[name] = Constant(name, None)
    else:
        if kind in _SUBGRAPH:
            graph.notices.append(f"subgraphs of {kind} {node.name or node.output[0]} are not measured")
        _append(graph, node, kind, [graph.root(name) for name in node.input if name])


def _append(graph: Graph, node: onnx.NodeProto, kind: str, inputs: list[str]) -> None:
    attributes = {a.name: a for a in node.attribute}
    name = node.name or node.output[0]
    if kind in _MOVES:
        for tap in graph.quantizers.get(inputs[0], []):
            if tap.tensor == node.input[0] and tap.quantizer and tap.quantizer.axis is None:
                graph.quantizers.update({output: [Tap(output, tap.quantizer)] for output in node.output})
    graph.operators.append(Operator(0, name, kind, inputs, [o for o in node.output if o], attributes, node))


def _add_quantize(graph: Graph, node: onnx.NodeProto) -> None:
    graph.qdq_nodes += 1
    quantizer = _quantizer(graph, node, node.output[0])
    source, target = graph.root(node.input[0]), node.output[0]
    if source in graph.constants:
        constant = graph.constants[source]
        values = None if constant.values is None or quantizer is None else quantizer.quantize(constant.values)
        graph.constants[target] = Constant(source, values, quantizer)
        return
    graph.roots[target] = source
    if quantizer is not None:
        graph.quantizers.setdefault(source, []).append(Tap(target, quantizer))


def _add_dequantize(graph: Graph, node: onnx.NodeProto) -> None:
    graph.qdq_nodes += 1
    source, target = graph.root(node.input[0]), node.output[0]
    if node.input[0] in graph.constants:
        constant = graph.constants[node.input[0]]
        if constant.quantizer is not None:
            graph.constants[target] = constant
            return
        quantizer = _quantizer(graph, node, node.input[0])
        codes = constant.codes
        values = None if codes is None or quantizer is None else quantizer.dequantize(codes)
        graph.constants[target] = Constant(constant.name, values, quantizer, codes)
        return
    graph.roots[target] = source
    if source in graph.inputs and source not in graph.quantizers:
        quantizer = _quantizer(graph, node, source)
        if quantizer is not None:
            graph.quantizers[source] = [Tap(source, quantizer)]


def _quantizer(graph: Graph, node: onnx.NodeProto, coded: str) -> Quantizer | None:
    """Quantizer of a Q or DQ node; None where its scale is computed at run time."""
    scale = graph.constants.get(node.input[1])
    if scale is None or scale.values is None:
        return None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    zero_name = node.input[2] if len(node.input) > 2 else ""
    bits, signed = 8, False
    zero = np.zeros(scale.values.shape, np.int64)
    if zero_name:
        zero = np.asarray(_codes(graph, zero_name), np.int64).reshape(scale.values.shape)
        bits, signed = _element_bits(graph, zero_name)
    elif attributes.get("output_dtype"):
        bits, signed = _INTEGER_BITS.get(attributes["output_dtype"], (8, False))
    elif coded in graph.constants:
        bits, signed = _element_bits(graph, coded)
    per_channel = scale.values.size > 1
    block = attributes.get("block_size") or None
    axis = attributes.get("axis", 1) if per_channel else None
    shape = () if scale.values.size == 1 else scale.values.shape
    return Quantizer(scale.values.reshape(shape), zero.reshape(shape), bits, signed, axis, block)


def _codes(graph: Graph, name: str) -> NDArray[np.generic]:
    constant = graph.constants[name]
    codes = constant.codes if constant.codes is not None else constant.values
    assert codes is not None
    return codes


def _element_bits(graph: Graph, name: str) -> tuple[int, bool]:
    codes = graph.constants[name].codes
    if codes is None:
        return 8, False
    kind = str(codes.dtype)
    digits = "".join(ch for ch in kind if ch.isdigit())
    return (int(digits) if digits else 8), not kind.startswith("uint")


def _add_integer(graph: Graph, node: onnx.NodeProto) -> None:
    graph.integer_nodes += 1
    kind, values, output, bias = _INTEGER_OPS[node.op_type]
    if kind == "Concat":
        values = tuple((i, i + 1, i + 2) for i in range(2, len(node.input) - 1, 3))
    inputs = []
    for position, scale, zero in values:
        name = graph.root(node.input[position])
        if node.input[position] in graph.constants:
            name = node.input[position]
            if scale >= 0:
                _dequantize_constant(graph, name, node, scale, zero, kind)
            elif node.op_type in ("MatMulInteger", "ConvInteger"):
                _dequantize_constant(graph, name, node, None, zero, kind)
        inputs.append(name)
    if node.op_type == "MatMulNBits":
        inputs.append(_packed_weights(graph, node))
    if bias is not None and len(node.input) > bias and node.input[bias]:
        name = node.input[bias]
        constant = graph.constants.get(name)
        if constant is not None and constant.codes is not None:
            graph.constants[name] = _integer_bias(graph, constant, inputs)
        inputs.append(name)
    _append(graph, node, kind, inputs)
    if output and len(node.input) > output[0] and node.input[output[0]]:
        quantizer = _inline_quantizer(graph, node, output[0], output[1], None)
        if quantizer is not None:
            graph.quantizers.setdefault(node.output[0], []).append(Tap(node.output[0], quantizer))


def _inline_quantizer(graph: Graph, node: onnx.NodeProto, scale: int, zero: int, axis: int | None) -> Quantizer | None:
    constant = graph.constants.get(node.input[scale])
    if constant is None or constant.values is None:
        return None
    zero_name = node.input[zero] if len(node.input) > zero else ""
    bits, signed = _element_bits(graph, zero_name) if zero_name else (8, False)
    points = np.asarray(_codes(graph, zero_name), np.int64) if zero_name else np.int64(0)
    shape = () if constant.values.size == 1 else constant.values.shape
    points = np.broadcast_to(points, constant.values.shape).reshape(shape) if zero_name else np.zeros(shape, np.int64)
    return Quantizer(constant.values.reshape(shape), points, bits, signed, axis if constant.values.size > 1 else None)


def _dequantize_constant(
    graph: Graph, name: str, node: onnx.NodeProto, scale: int | None, zero: int, kind: str
) -> None:
    constant = graph.constants[name]
    if constant.quantizer is not None or constant.codes is None:
        return
    if scale is None:  # The scale is applied further down; ranges are then in codes.
        bits, signed = _element_bits(graph, name)
        quantizer: Quantizer | None = Quantizer(np.ones((), np.float32), np.zeros((), np.int64), bits, signed)
    else:
        axis = 0 if kind == "Conv" else constant.codes.ndim - 1
        quantizer = _inline_quantizer(graph, node, scale, zero, axis)
    values = quantizer.dequantize(constant.codes) if quantizer is not None else None
    graph.constants[name] = Constant(name, values, quantizer, constant.codes)


def _integer_bias(graph: Graph, bias: Constant, inputs: list[str]) -> Constant:
    """The int32 bias of an integer operator lies on the grid s_x · s_w."""
    taps, weight = graph.quantizers.get(inputs[0], []), graph.constants.get(inputs[1])
    if not taps or taps[0].quantizer is None or weight is None or weight.quantizer is None or bias.codes is None:
        return bias
    scale = np.asarray(taps[0].quantizer.scale * weight.quantizer.scale, np.float32)
    axis = 0 if scale.ndim else None
    quantizer = Quantizer(scale, np.zeros(scale.shape, np.int64), 32, True, axis)
    return Constant(bias.name, quantizer.dequantize(bias.codes), quantizer, bias.codes)


def _packed_weights(graph: Graph, node: onnx.NodeProto) -> str:
    """Weights of MatMulNBits stay packed; only their bits and block size are told."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    name = node.input[1]
    bits, block = int(attributes.get("bits", 4)), int(attributes.get("block_size", 0)) or None
    scales = graph.constants[node.input[2]].values
    scale = np.zeros((), np.float32) if scales is None else scales
    quantizer = Quantizer(scale, np.zeros(scale.shape, np.int64), bits, False, 0, block)
    graph.constants[name] = Constant(name, None, quantizer)
    return name


def _join_dynamic(graph: Graph) -> None:
    """Fold what rescales the int32 result of a dynamically quantized product (Cast, Mul, bias Add) into the product."""
    consumers = graph.consumers
    dropped: set[int] = set()
    for op in graph.operators:
        if op.node.op_type not in ("MatMulInteger", "ConvInteger"):
            continue
        chain, tensor = [], op.outputs[0]
        for kind in ("Cast", "Mul", "Add"):
            readers = consumers.get(tensor, [])
            if len(readers) != 1 or readers[0].op_type != kind:
                break
            if kind == "Add" and not any(name in graph.constants for name in readers[0].inputs):
                break
            chain.append(readers[0])
            tensor = readers[0].outputs[0]
        if len(chain) >= 2:
            op.outputs = [tensor]
            dropped.update(id(c) for c in chain)
    dynamic = [node for node in graph.model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    scales = {name for node in dynamic for name in node.output}
    kept = [op for op in graph.operators if id(op) not in dropped and not (op.inputs and set(op.inputs[:1]) & scales)]
    graph.operators = kept


def _constant(tensor: onnx.TensorProto) -> Constant:
    array = numpy_helper.to_array(tensor)
    if tensor.data_type in _INTEGER_BITS:
        return Constant(tensor.name, None, None, array)
    if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16):
        return Constant(tensor.name, array.astype(np.float32))
    return Constant(tensor.name, None)


def _constant_node(node: onnx.NodeProto) -> Constant:
    value = next(iter(node.attribute))
    if value.type == onnx.AttributeProto.TENSOR:
        constant = _constant(value.t)
        return Constant(node.output[0], constant.values, None, constant.codes)
    if value.type in (onnx.AttributeProto.FLOAT, onnx.AttributeProto.FLOATS):
        return Constant(node.output[0], np.asarray(onnx.helper.get_attribute_value(value), np.float32))
    return Constant(node.output[0], None)
