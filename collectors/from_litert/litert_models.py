"""Two LiteRT models that belong together: read, paired, described, and run with interpreters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.flatbuffer import LiteOperator
from quantmedic.collectors.from_litert.litert_file import LiteModel, LiteTensor, read_litert
from quantmedic.collectors.from_litert.litert_graph import LiteRTGraph, graph_of
from quantmedic.collectors.from_litert.litert_session import Sessions, is_open, takes_batches
from quantmedic.collectors.from_litert.litert_view import LiteRTView
from quantmedic.collectors.from_onnx.onnx_record import describe_files
from quantmedic.collectors.from_translation.translated_models import TranslatedFiles, shared_pairs
from quantmedic.collectors.measure.host import installed_version
from quantmedic.collectors.measure.models import Description, Kernel, Producer, Runner
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair

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
Array = NDArray[np.generic]


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
    integer = any(_is_coded(model.tensors[place]) for place in op.outputs) or _is_hybrid(op, model)
    return Kernel.INTEGER if integer else Kernel.FLOAT


def _is_hybrid(op: LiteOperator, model: LiteModel) -> bool:
    read = [model.tensors[place] for place in op.inputs if place >= 0]
    return op.kind in _HYBRID and read[0].kind == "FLOAT32" and any(_is_coded(t) and t.data is not None for t in read)


def _is_coded(tensor: LiteTensor) -> bool:
    """A tensor of codes; integers without a grid are places and sizes."""
    return tensor.kind in ("INT2", "INT4", "INT8", "UINT8", "INT16") and tensor.quantizer is not None


def format_of(model: LiteModel) -> str:
    """How a model is quantized, in the words of LiteRT's tools.

    int8, int16x8 (or both) where activations are codes; dynamic where kernels quantize what they read at run time,
    with the type of the weights; weight-only where weights are dequantized before they are used; float16; or none.
    """
    written = [model.tensors[place] for op in model.operators for place in op.outputs if place >= 0]
    computed = {tensor.kind for tensor in written if _is_coded(tensor)}
    names = {"INT8": "int8", "UINT8": "uint8", "INT16": "int16x8"}
    if found := [name for kind, name in names.items() if kind in computed]:
        return " and ".join(found)
    if any(_is_hybrid(op, model) for op in model.operators):
        return "dynamic"
    stored = {tensor.kind for tensor in model.tensors if tensor.data is not None and np.size(tensor.data) > 1}
    if any(_is_coded(tensor) and tensor.data is not None for tensor in model.tensors):
        return "weight-only"
    return "float16" if "FLOAT16" in stored else "none"


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


@dataclass
class LiteRTModels(TranslatedFiles[LiteRTGraph]):
    """Two files; see ``Models``. ``pairs`` are those that interpreters of both files show."""

    framework: ClassVar[str] = "litert"
    keeps_bound: ClassVar[bool] = True
    reference: ClassVar[str] = "the interpreter"

    batched: bool = field(default=False, kw_only=True)
    """Both take several samples at once; else one."""
    sessions: Sessions = field(default_factory=Sessions, kw_only=True)
    """The interpreters of both files."""

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes as the float file states them."""
        graph, found = self.float_graph, {}
        for name, place in graph.places.items():
            shape = graph.file.tensors[place].shape
            found[name] = (None, *shape[1:]) if self.batched and shape and shape[0] in (None, 1) else shape
        return found

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply: one sample at a time, unless both files take several."""
        graph, first = self.float_graph, None if self.batched else 1
        found = []
        for name, place in zip(graph.inputs, graph.file.inputs, strict=True):
            tensor = graph.file.tensors[place]
            shape = (first if len(tensor.shape) == 0 or tensor.shape[0] in (None, 1) else tensor.shape[0],)
            found.append(InputSpec(name, (*shape, *tensor.shape[1:]), tensor.dtype))
        return found

    def probe(self) -> None:
        """Find out whether both compute several samples at once, where their inputs say so.

        Raises:
            ModelError: An interpreter refuses its file, or crashes on it.
        """
        require_survival([self.float_graph.path, self.quantized.path])
        for graph in (self.float_graph, self.quantized):
            self.batched = self.batched and takes_batches(self.sessions.session(graph, 1), graph.file)
            self.sessions.release()

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> LiteRTView:
        """Both files in interpreters that keep their tensors."""
        self.first = self.first or first
        graphs = self.float_graph, self.quantized
        return LiteRTView(self.sessions, graphs, self.match, pairs, first, threads, plain)

    def producer_of(self, pair: Pair) -> Producer:
        """What writes a measured tensor, as the files number and name it."""
        graph, twin = self.quantized, self.float_graph
        place = graph.places[pair.tap.tensor]
        kinds = (op.kind for op in graph.file.operators if place in op.outputs)
        return Producer(next(kinds, "INPUT"), place, twin.file.tensors[twin.places[pair.twin]].name)

    def describe(self) -> Description:
        """What the files tell besides their graphs."""
        floats, graph = self.float_graph.file, self.quantized
        halves = (name for name, place in graph.places.items() if graph.file.tensors[place].kind == "FLOAT16")
        # An application knows what its integers stand for: outputs are compared as their tensors' parameters say.
        return describe_files(
            self,
            self.framework,
            {
                "format": format_of(graph.file),
                "toolchain_marks": tuple(marks_of_files(floats, graph.file)),
                "float_ends": tuple(float_ends_of(floats, graph.file)),
            },
            {"ai_edge_litert": installed_version("ai-edge-litert")},
            half=frozenset(halves),
            codes_are_outputs=False,
        )

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How LiteRT computes the tensors of the quantized file, by their types."""
        return kernels_of_file(self.quantized)

    def runner_of(self, graph: LiteRTGraph, positions: Sequence[int], threads: int) -> Runner:
        """Runs a LiteRT file with interpreters as an application has them."""
        return self.sessions.runner(graph, positions, threads)

    def repeated_run(self, graph: LiteRTGraph, batch: Batch, threads: int) -> Callable[[], None]:
        """A function that runs a file on this batch over and over."""
        return self.sessions.session(graph, threads).call(graph.feed(batch))


def open_models(float_path: Path, quantized_path: Path) -> LiteRTModels:
    """Read both files, translate them and pair their tensors; neither is run.

    Raises:
        ModelError: A file cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    float_graph, quantized = (graph_of(read_litert(path)) for path in (float_path, quantized_path))
    matched = match_files(float_graph, quantized)
    pairs = shared_pairs(float_graph, quantized, matched)
    batched = all(is_open(graph.file) for graph in (float_graph, quantized))
    return LiteRTModels(float_graph, quantized, matched, pairs, batched=batched)
