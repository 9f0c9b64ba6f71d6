"""What a case says of two LiteRT models besides their statistics."""

from collections.abc import Iterator

import numpy as np

from quantmedic.collectors.from_litert.file import LiteModel, LiteOperator, LiteTensor
from quantmedic.collectors.from_litert.graph import LiteRTGraph
from quantmedic.collectors.measure.models import Kernel

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


def file_facts(floats: LiteModel, quantized: LiteModel) -> dict[str, object]:
    """Fields of ``ModelFacts`` that two LiteRT files tell besides their graphs."""
    return {
        "format": format_of(quantized),
        "toolchain_marks": tuple(marks_of_files(floats, quantized)),
        "float_ends": tuple(float_ends_of(floats, quantized)),
    }


def kernels_of_file(graph: LiteRTGraph) -> dict[str, Kernel]:
    """How each tensor is computed, by its names in the translation: LiteRT's kernels follow the types of tensors.

    They compute with integers where they read and write integers, and, quantizing what they read at run time, where
    they read float activations and integer weights.
    """
    names: dict[int, list[str]] = {}
    for name, place in graph.places.items():
        names.setdefault(place, []).append(name)
    return {
        name: _kernel(op, graph.file)
        for op in graph.file.operators
        if op.kind not in _QUANTIZERS
        for place in op.outputs
        for name in names.get(place, ())
    }


def _kernel(op: LiteOperator, model: LiteModel) -> Kernel:
    read = [model.tensors[place] for place in op.inputs if place >= 0]
    written = [model.tensors[place] for place in op.outputs]
    integer = any(_is_coded(tensor) for tensor in written) or _is_hybrid(op, read)
    return Kernel.INTEGER if integer else Kernel.FLOAT


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
    computed = {
        model.tensors[place].kind for op in model.operators for place in op.outputs if _holds_codes(place, model)
    }
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


def _holds_codes(place: int, model: LiteModel) -> bool:
    return place >= 0 and _is_coded(model.tensors[place])


def float_ends_of(floats: LiteModel, quantized: LiteModel) -> Iterator[str]:
    """INPUT, OUTPUT: those that are floats in both files."""
    for end, places in (("INPUT", (floats.inputs, quantized.inputs)), ("OUTPUT", (floats.outputs, quantized.outputs))):
        before, after = (
            [model.tensors[p].kind for p in own] for model, own in zip((floats, quantized), places, strict=True)
        )
        if before == after and "FLOAT32" in after:
            yield end


def marks_of_files(floats: LiteModel, quantized: LiteModel) -> Iterator[str]:
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
    from ai_edge_litert.schema_py_generated import Model  # an optional package

    model = Model.GetRootAs(content, 0)
    for i in range(model.MetadataLength()):
        name = model.Metadata(i).Name()
        if name is not None:
            yield name.decode(errors="replace")
