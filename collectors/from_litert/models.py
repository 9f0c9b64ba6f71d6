"""Two LiteRT models that belong together: read, paired, described, and run with interpreters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.from_litert.file import read_litert
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.graph import LiteRTGraph, graph_of
from quantmedic.collectors.from_litert.record import file_facts, kernels_of_file
from quantmedic.collectors.from_litert.session import Sessions, is_open, takes_batches
from quantmedic.collectors.from_litert.view import LiteRTView
from quantmedic.collectors.from_translation.translated_models import TranslatedFiles, shared_pairs
from quantmedic.collectors.measure.models import Description, Kernel, Producer, Runner
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair

Array = NDArray[np.generic]


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
        graph = self.quantized
        halves = (name for name, place in graph.places.items() if graph.file.tensors[place].kind == "FLOAT16")
        # An application knows what its integers stand for: outputs are compared as their tensors' parameters say.
        return self.describe_files(
            file_facts(self.float_graph.file, graph.file),
            "ai-edge-litert",
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
