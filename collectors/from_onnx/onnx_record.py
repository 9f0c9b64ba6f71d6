"""What a case says of two ONNX models besides graphs and statistics: sizes, hashes, toolchain, kernels."""

from collections.abc import Mapping

import onnx
import onnxruntime as ort

from quantmedic.collectors.data.hashes import sha256_of
from quantmedic.collectors.from_onnx.integer import INTEGER_OPS
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_session import executed_types
from quantmedic.collectors.from_onnx.quantized_types import quantized_nodes
from quantmedic.collectors.from_onnx.traits import half_tensors, required_opset, toolchain_marks, training_nodes
from quantmedic.collectors.measure.models import Description, Kernel
from quantmedic.engine.case.facts import ModelFacts

#: Operators of onnxruntime that compute with integers, beside those whose names begin with ``QLinear``.
_INTEGER_KERNELS = frozenset({*INTEGER_OPS, "QAttention"})


def describe_models(models: PairedOnnxGraphs) -> Description:
    """What two ONNX files tell besides their graphs."""
    graph = models.quantized
    training = training_nodes(models.float_graph)
    opset = required_opset(graph.model)
    quantized = quantized_nodes(models.float_graph.model, graph.model, graph.format)
    facts = {
        "format": graph.format,
        "toolchain": " ".join(filter(None, (graph.model.producer_name, graph.model.producer_version))) or None,
        "toolchain_marks": toolchain_marks(graph.model),
        "float_nodes": quantized.in_float if quantized is not None else None,
        "quantized_types": quantized.types if quantized is not None else None,
        "opset": graph.opset,
        "required_opset": opset,
        "opset_deficit": max((opset or 0) - graph.opset, 0),
        "training_nodes": len(training),
        "first_training_node": next(iter(training), None),
    }
    return describe_files(models, "onnx", facts, {"onnxruntime": ort.__version__}, half=half_tensors(graph))


def describe_files(
    models: PairedOnnxGraphs,
    framework: str,
    facts: Mapping[str, object],
    versions: Mapping[str, str | None],
    *,
    half: frozenset[str] | None = frozenset(),
    codes_are_outputs: bool = True,
) -> Description:
    """Names, sizes and hashes of both files, beside what a format tells of them.

    Args:
        models: Both graphs.
        framework: Name of the front end.
        facts: More fields of ``ModelFacts``.
        versions: Version of what runs the files, by package.
        half: See ``Description``.
        codes_are_outputs: See ``Description``.
    """
    floats, quantized = models.float_graph, models.quantized
    sizes = [sum(file.stat().st_size for file in graph.files) for graph in (floats, quantized)]
    common = ModelFacts(
        name=quantized.path.name,
        framework=framework,
        bytes_float=sizes[0],
        bytes_quantized=sizes[1],
        size_ratio=sizes[1] / sizes[0],
        training_nodes=0,
    )
    return Description(
        common.model_copy(update=facts),
        half,
        names=(floats.path.name, quantized.path.name),
        hashes=(sha256_of(floats.files), sha256_of(quantized.files)),
        versions={**versions, "onnx": onnx.__version__},
        codes_are_outputs=codes_are_outputs,
    )


def kernels_of_model(graph: OnnxGraph, threads: int) -> dict[str, Kernel]:
    """How onnxruntime computes each tensor that its optimized graph writes.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    return {name: _kernel(op_type) for name, op_type in executed_types(graph, threads).items()}


def _kernel(op_type: str) -> Kernel:
    return Kernel.INTEGER if op_type.startswith("QLinear") or op_type in _INTEGER_KERNELS else Kernel.FLOAT
