"""What is known of an ONNX model without running it: training mode, float16, opset."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from quantmedic.collectors.from_onnx.onnx_graph import DEFAULT_DOMAINS, OnnxGraph, opset_of
from quantmedic.collectors.from_onnx.types import static_types

_FLOAT8 = frozenset(
    {
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
    }
)
_WIDE_OR_NARROW = frozenset({TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4, TensorProto.UINT4})


def training_nodes(graph: OnnxGraph) -> list[str]:
    """Names of operators that compute as in training: their result depends on the batch or on chance."""
    known = {t.name: t for t in graph.model.graph.initializer}
    known |= {
        node.output[0]: attribute.t
        for node in graph.model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    return [node.name or node.output[0] for node in graph.model.graph.node if _is_training(node, graph.opset, known)]


def _is_training(node: onnx.NodeProto, opset: int, known: dict[str, TensorProto]) -> bool:
    attributes = {a.name: a for a in node.attribute}
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in ("BatchNormalization", "Dropout"):
        return False
    if opset < 7:
        return not ("is_test" in attributes and attributes["is_test"].i)
    if node.op_type == "BatchNormalization":
        if opset >= 14:
            return "training_mode" in attributes and bool(attributes["training_mode"].i)
        return sum(bool(name) for name in node.output) > 1
    if opset < 12 or len(node.input) < 3 or node.input[2] not in known:
        return False
    ratio = known.get(node.input[1]) if node.input[1] else None
    drops = ratio is None or bool(np.any(numpy_helper.to_array(ratio) > 0))
    return drops and bool(np.any(numpy_helper.to_array(known[node.input[2]])))


def required_opset(model: onnx.ModelProto) -> int | None:
    """Opset that the quantizers of the default domain need; None where there is none of them."""
    tensors = {t.name: t for t in model.graph.initializer}
    needs = [need for node in model.graph.node for need in _needs(node, tensors)]
    return max(needs, default=None)


def older_than_its_quantizers(model: onnx.ModelProto) -> str | None:
    """Advice where the model's opset does not have what its quantizers use, the usual reason for a refusal."""
    needed = required_opset(model)
    opset = opset_of(model)
    if needed is None or needed <= opset:
        return None
    return (
        f"its quantizers need opset {needed}, the model states {opset}: convert the float model with "
        f"onnx.version_converter.convert_version(model, {needed}) and quantize it again (quantmedic explain R004)"
    )


def _needs(node: onnx.NodeProto, tensors: dict[str, TensorProto]) -> Iterator[int]:
    quantizer = node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.domain in DEFAULT_DOMAINS
    if not quantizer or len(node.input) < 2:
        return
    yield 10
    scale = tensors.get(node.input[1])
    if scale is not None and np.prod(scale.dims, dtype=np.int64) > 1:
        yield 13
    if any(a.name == "block_size" and a.i > 0 for a in node.attribute):
        yield 21
    for name in (node.input[0], *node.input[2:3]):
        kind = tensors[name].data_type if name in tensors else TensorProto.UNDEFINED
        if kind in _FLOAT8:
            yield 19
        if kind in _WIDE_OR_NARROW:
            yield 21


def half_tensors(graph: OnnxGraph) -> frozenset[str] | None:
    """Tensors that the model holds as float16; None where type inference fails."""
    main = graph.model.graph
    kinds = [t.data_type for t in main.initializer] + [v.type.tensor_type.elem_type for v in main.input]
    kinds += [a.i for node in main.node for a in node.attribute if node.op_type == "Cast" and a.name == "to"]
    if TensorProto.FLOAT16 not in kinds:
        return frozenset()
    types = static_types(graph.model)
    return frozenset(name for name, spec in types.items() if spec.dtype == np.float16) if types else None


def toolchain_marks(model: onnx.ModelProto) -> tuple[str, ...]:
    """Marks of the tool that quantized a model: keys of metadata, domains and operators of its own, quantizers."""
    nodes = list(model.graph.node)
    marks = [f"metadata {entry.key}" for entry in model.metadata_props]
    marks += [f"domain {node.domain}" for node in nodes if node.domain not in DEFAULT_DOMAINS]
    marks += [
        f"operator {node.op_type}"
        for node in nodes
        if node.domain not in DEFAULT_DOMAINS or not onnx.defs.has(node.op_type)
    ]
    return tuple(dict.fromkeys([*marks, *_quantizer_marks(model)]))


def _quantizer_marks(model: onnx.ModelProto) -> Iterator[str]:
    """How the quantizer of one activation is named, and whether weights have one that runs."""
    constants = {tensor.name for tensor in model.graph.initializer}
    written = {name for node in model.graph.node for name in node.output}
    readers = {node.input[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input}
    quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input]
    for node in quantizers:
        if node.input[0] in written and node.output[0] in readers:
            yield f"quantizer {node.input[0]} > {node.output[0]} > {readers[node.output[0]].output[0]}"
            break
    if any(node.input[0] in constants for node in quantizers):
        yield "weights pass a QuantizeLinear"


def multiplies_codes(model: onnx.ModelProto) -> bool:
    """Whether a matrix product takes coded activations for its second operand.

    Asked for kernels that do not saturate, onnxruntime 1.32 makes weights unsigned, but not codes that several
    operators read: their sums saturate all the same on an x86 processor without VNNI.
    """
    made = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name for tensor in model.graph.initializer}
    readers = (made.get(node.input[1]) for node in model.graph.node if node.op_type == "MatMul")
    codes = {node.input[0] for node in readers if node is not None and node.op_type == "DequantizeLinear"}
    return any(name not in constants and made[name].op_type != "Constant" for name in codes if name in made)


def lacks_zero_points(model: onnx.ModelProto) -> bool:
    """Whether codes have a scale for each channel, and no zero points, which PyTorch writes so.

    Asked for kernels that do not saturate, onnxruntime 1.32 makes weights unsigned with one zero point, and fails.
    """
    several = {tensor.name for tensor in model.graph.initializer if np.prod(tensor.dims) > 1}
    readers = (node for node in model.graph.node if node.op_type == "DequantizeLinear")
    return any(node.input[1] in several and not any(node.input[2:]) for node in readers)
