"""What a case says of two LiteRT models besides their statistics."""

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from quantmedic.collectors.data.metrics import Metric
from quantmedic.collectors.from_litert.file import LiteModel, LiteOperator, LiteTensor
from quantmedic.collectors.from_litert.models import LiteRTModels
from quantmedic.collectors.from_litert.translation import LiteRTGraph
from quantmedic.collectors.from_onnx.record import Observed, case_record, pair_facts, run_record
from quantmedic.collectors.measure.observer import Options
from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.records import CaseRecord, WeightArrays

#: Operators that take float activations and integer weights: they quantize what they read at run time.
_HYBRID = frozenset(
    {
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "FULLY_CONNECTED",
        "BATCH_MATMUL",
        "TRANSPOSE_CONV",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        "BIDIRECTIONAL_SEQUENCE_RNN",
        "LSTM",
        "RNN",
        "SVDF",
    }
)
_QUANTIZERS = ("QUANTIZE", "DEQUANTIZE")
#: How operators of a case are told to compute: names of which ``is_integer_kernel`` knows what they mean.
_INTEGER, _DYNAMIC, _FLOAT = "QLinear", "DynamicQuantizeMatMul", "float"


def litert_record(
    models: LiteRTModels, observer: Observed, options: Options, version: str, metric: Metric | None
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """Everything that does not change while data are read, and the arrays of the weights by operator.

    Data sets and notices are left empty.
    """
    return file_record(models, observer, version, metric, executed=executed_types(models.quantized), how=options.run)


def file_record(
    models: LiteRTModels,
    observer: Observed,
    version: str,
    metric: Metric | None,
    *,
    executed: Mapping[str, str],
    how: Mapping[str, Any],
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """The same of two files; see ``onnx_record.file_record``."""
    graph = models.quantized
    half = {name for name, place in graph.places.items() if graph.file.tensors[place].kind == "FLOAT16"}
    record, arrays = case_record(models, observer, version, metric, executed=executed, half=frozenset(half))
    sizes = [len(each.file.content) for each in (models.float_graph, graph)]
    facts = ModelFacts(
        **pair_facts(models, observer, record.operators) | {"format": format_of(graph.file)},
        name=graph.path.name,
        framework="litert",
        toolchain=None,
        toolchain_marks=tuple(toolchain_marks(models.float_graph.file, graph.file)),
        bytes_float=sizes[0],
        bytes_quantized=sizes[1],
        size_ratio=sizes[1] / sizes[0],
        training_nodes=0,
    )
    files = [[each.path] for each in (models.float_graph, graph)]
    run = record.run | run_record(models, {**how, "ai_edge_litert": _installed()}, files)
    # An application knows what its integers stand for: outputs are compared as what their tensors' parameters say.
    outputs = tuple(output.model_copy(update={"is_codes": False}) for output in record.outputs)
    return record.model_copy(update={"model": facts, "run": run, "outputs": outputs}), arrays


def _installed() -> str | None:
    try:
        return version("ai-edge-litert")
    except PackageNotFoundError:
        return None


def executed_types(graph: LiteRTGraph) -> dict[str, str]:
    """How each tensor is computed, by its names in the translation: LiteRT's kernels follow the types of tensors.

    They compute with integers where they read and write integers, and, quantizing what they read at run time, where
    they read float activations and integer weights.
    """
    names: dict[int, list[str]] = {}
    for name, place in graph.places.items():
        names.setdefault(place, []).append(name)
    return {
        name: _executed(op, graph.file)
        for op in graph.file.operators
        if op.kind not in _QUANTIZERS
        for place in op.outputs
        for name in names.get(place, ())
    }


def _executed(op: LiteOperator, model: LiteModel) -> str:
    read = [model.tensors[place] for place in op.inputs if place >= 0]
    written = [model.tensors[place] for place in op.outputs]
    if any(_is_coded(tensor) for tensor in written):
        return _INTEGER
    return _DYNAMIC if _is_hybrid(op, read) else _FLOAT


def _is_hybrid(op: LiteOperator, read: list[LiteTensor]) -> bool:
    return op.kind in _HYBRID and read[0].kind == "FLOAT32" and any(_is_coded(t) and t.data is not None for t in read)


def _is_coded(tensor: LiteTensor) -> bool:
    """A tensor of codes; integers without a grid are places and sizes."""
    return tensor.kind in ("INT2", "INT4", "INT8", "UINT8", "INT16") and tensor.quantizer is not None


def format_of(model: LiteModel) -> str:
    """How a model is quantized, in the words of LiteRT's tools.

    int8, int16x8 (or both) where activations are codes; dynamic where kernels quantize what they read at run time,
    with the type of the weights; weight-only where weights are dequantized before they are used; float16; or none.
    """
    computed = {model.tensors[place].kind for op in model.operators for place in op.outputs if _written(place, model)}
    names = {"INT8": "int8", "UINT8": "uint8", "INT16": "int16x8"}
    if found := [name for kind, name in names.items() if kind in computed]:
        return " and ".join(found)
    hybrid = [op for op in model.operators if _is_hybrid(op, [model.tensors[p] for p in op.inputs if p >= 0])]
    if hybrid:
        return "dynamic"
    stored = {tensor.kind for tensor in model.tensors if tensor.data is not None and np.size(tensor.data) > 1}
    if any(_is_coded(tensor) and tensor.data is not None for tensor in model.tensors):
        return "weight-only"
    return "float16" if "FLOAT16" in stored else "none"


def _written(place: int, model: LiteModel) -> bool:
    return place >= 0 and _is_coded(model.tensors[place])


def toolchain_marks(floats: LiteModel, quantized: LiteModel) -> Iterator[str]:
    """What tells the tool that quantized a model.

    ai-edge-quantizer changes the float file: its tensors stay where they were, and new ones are added at the end. The
    TensorFlow converter converts the network anew.
    """
    names, theirs = ([tensor.name for tensor in model.tensors] for model in (floats, quantized))
    if len(names) > 1 and theirs[: len(names)] == names:
        yield "tensors of the float file in its order"
    if quantized.description:
        yield f"description {quantized.description}"
    yield from (f"metadata {name}" for name in _metadata(quantized.content))


def _metadata(content: bytes) -> Iterator[str]:
    """Names of the metadata of a checked file."""
    from ai_edge_litert.schema_py_generated import Model

    model = Model.GetRootAs(content, 0)
    for i in range(model.MetadataLength()):
        name = model.Metadata(i).Name()
        if name is not None:
            yield name.decode(errors="replace")
