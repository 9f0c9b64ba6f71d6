"""What a case says of two ONNX models besides graphs and statistics: sizes, hashes, toolchain, kernels."""

from collections.abc import Mapping

import onnx

from quantmedic.collectors.data.hashes import sha256_of
from quantmedic.collectors.from_onnx.integer import INTEGER_OPS
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_session import executed_types
from quantmedic.collectors.measure.models import Description, Kernel
from quantmedic.engine.case.facts import ModelFacts

#: Operators of onnxruntime that compute with integers, beside those whose names begin with ``QLinear``.
_INTEGER_KERNELS = frozenset({*INTEGER_OPS, "QAttention"})


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
