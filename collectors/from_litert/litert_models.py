"""Two LiteRT models that belong together: read, paired, described, and run and observed with interpreters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.rows import OnDemand
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.flatbuffer import LiteOperator, LiteTensor
from quantmedic.collectors.from_litert.litert_file import LiteModel, read_litert
from quantmedic.collectors.from_litert.litert_graph import LiteRTGraph, graph_of
from quantmedic.collectors.from_litert.litert_session import Session, Sessions, is_open, takes_batches
from quantmedic.collectors.from_onnx.onnx_record import describe_files
from quantmedic.collectors.from_translation.translated_models import TranslatedFiles, shared_pairs
from quantmedic.collectors.measure.host import installed_version
from quantmedic.collectors.measure.models import Description, Faithfulness, Kernel, Producer, Reading, Runner, View
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Shape, Tap
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair

#: Operators that take float activations and integer weights: they quantize what they read at run time.
_HYBRID = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", "TRANSPOSE_CONV", "LSTM", "RNN", "SVDF"}
    | {f"{way}_SEQUENCE_{kind}" for way in ("UNIDIRECTIONAL", "BIDIRECTIONAL") for kind in ("LSTM", "RNN")}
)
_QUANTIZERS = ("QUANTIZE", "DEQUANTIZE")
Array = NDArray[np.generic]


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
    yield from (f"metadata {name}" for name in quantized.metadata)


class LiteRTView(View):
    """Shows numbered pairs of tensors; see ``View``.

    Intermediate tensors are read from interpreters that keep all of them. The default delegate then hands every
    operator's result over, where it would otherwise fuse some: the outputs are held against those of interpreters as
    deployed, and where they differ, what is measured is called a simulation.
    """

    def __init__(
        self,
        models: "LiteRTModels",
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
    ) -> None:
        """Observe the pairs."""
        self._sessions, self._match, self.pairs = models.sessions, models.match, dict(pairs)
        self._float, self._quantized = models.float_graph, models.quantized
        alone = plain if plain is not None else models.quantized_runner(threads)(first)
        self._sessions.release()
        self._feature = feature_of(self._float)
        self._float_places = self._floats(pairs.values())
        self._floats_session = self._observing(self._float, first, self._float_places.values(), threads)
        places = {number: self._quantized.places[pair.tap.tensor] for number, pair in pairs.items()}
        self._session = self._observing(self._quantized, first, places.values(), threads)
        self.taps: dict[int, Tap] = {number: pair.tap for number, pair in pairs.items()}
        self.observed = Faithfulness.of_outputs(alone, self.read_tensors(first).outputs[1])

    def _floats(self, pairs: Iterable[Pair]) -> dict[str, int]:
        """Places of the float tensors that are read, by their names: the network's outputs, too."""
        graph = self._float
        names = [*(pair.twin for pair in pairs), *([self._feature] if self._feature else [])]
        return {name: graph.places[name] for name in names} | graph.ends

    def _observing(self, graph: LiteRTGraph, first: Batch, places: Iterable[int], threads: int) -> Session:
        """Interpreters that show these tensors: with the default delegate, or, where it keeps one to itself, without.

        Raises:
            ModelError: The model fails.
        """
        session = self._sessions.session(graph, threads, observed=True)
        wanted = set(places)
        if session.readable(graph.feed(first), sorted(wanted)) == wanted:
            return session
        return self._sessions.session(graph, threads, observed=True, delegated=False)

    def renumber(self, numbers: Sequence[int]) -> None:
        """Keep only these pairs and count them from 0."""
        super().renumber(numbers)
        self._float_places = self._floats(self.pairs.values())

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both files.

        Raises:
            ModelError: One of them fails on this batch.
        """
        graph, quantized, matched = self._float, self._quantized, self._match.outputs
        ends, theirs = ([*each.ends.values()] for each in (graph, quantized))
        ends, theirs = [ends[i] for i, _ in matched], [theirs[j] for _, j in matched]
        named = self._float_places
        floats = self._floats_session.show(graph.feed(batch), [*named.values()])
        places = {number: quantized.places[tap.tensor] for number, tap in self.taps.items()}
        codes = self._session.show(quantized.feed(batch), [*places.values(), *theirs])
        return Reading(
            OnDemand(lambda name: floats[named[name]], named),
            OnDemand(lambda number: codes[places[number]], places),
            (
                [graph.decode(place, floats[place]) for place in ends],
                [quantized.decode(place, codes[place]) for place in theirs],
            ),
        )

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float model alone."""
        places = [self._float_places[name] for name in names]
        found = self._floats_session.run(self._float.feed(batch), places)
        return [found[place] for place in places]


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
        return LiteRTView(self, pairs, first, threads, plain)

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
        """How each tensor is computed, by its names in the translation: LiteRT's kernels follow the types of tensors.

        They compute with integers where they read and write integers, and, quantizing what they read at run time, where
        they read float activations and integer weights.
        """
        graph = self.quantized
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
