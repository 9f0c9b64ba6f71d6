"""Two LiteRT models that belong together: their ONNX translations as graphs, their twins, and how to run them.

What concerns graphs, weights, grids and simulation is asked of the translations, with the means of the ONNX front end.
What is measured comes from LiteRT interpreters of the files themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.from_litert.feed import feed_of
from quantmedic.collectors.from_litert.file import read_litert
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.graph import LiteRTGraph, graph_of
from quantmedic.collectors.from_litert.interpreters import Interpreters
from quantmedic.collectors.from_litert.record import describe_files, kernels_of_file
from quantmedic.collectors.from_litert.session import dtype_of, is_open, takes_batches
from quantmedic.collectors.from_litert.translated import TranslatedModels, translated_runner
from quantmedic.collectors.from_litert.view import LiteRTView
from quantmedic.collectors.from_onnx.given_simulation import OnnxGivenSimulation
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.steps import OnnxSteps
from quantmedic.collectors.from_onnx.types import static_types
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.measure.model_pair import ModelPair
from quantmedic.collectors.measure.models import Description, Kernel, Producer, Runner, View
from quantmedic.collectors.measure.outputs import output_difference
from quantmedic.collectors.native.runs import in_background
from quantmedic.collectors.pair.graph import Shape, TensorSpec
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: A translation whose outputs differ by more than this share of their largest value is not the model.
SAME_TRANSLATION = 1e-4


@dataclass
class LiteRTModels(ModelPair):
    """Two files; see ``Models``. ``pairs`` are those that interpreters of both files show."""

    framework: ClassVar[str] = "litert"
    measures_step_error: ClassVar[bool] = True
    keeps_bound: ClassVar[bool] = True

    float_graph: LiteRTGraph
    quantized: LiteRTGraph
    batched: bool = field(default=False, kw_only=True)
    """Both take several samples at once; else one."""
    first: Batch | None = field(default=None, kw_only=True)
    """Samples that both were run on first."""

    @cached_property
    def interpreters(self) -> Interpreters:
        """The interpreters of both files."""
        return Interpreters(self.float_graph, self.quantized, self.match)

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
            found.append(InputSpec(name, (*shape, *tensor.shape[1:]), dtype_of(tensor)))
        return found

    def probe(self) -> None:
        """Find out whether both compute several samples at once, where their inputs say so.

        Raises:
            ModelError: An interpreter refuses its file, or crashes on it.
        """
        require_survival([self.float_graph.path, self.quantized.path])
        for graph in (self.float_graph, self.quantized):
            self.batched = self.batched and takes_batches(self.interpreters.session(graph, 1), graph.file)
            self.interpreters.release()

    def static_types(self, samples: int) -> tuple[Mapping[str, TensorSpec], Mapping[str, TensorSpec]]:
        """Types of the tensors of both translations by type inference."""
        return static_types(self.float_graph.model, samples), static_types(self.quantized.model, samples)

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> LiteRTView:
        """Both files in interpreters that keep their tensors."""
        self.first = self.first or first
        return LiteRTView(self.interpreters, pairs, first, threads, plain)

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> OnnxSteps:
        """The translation of the float model fed with the deployed tensors of a view.

        Raises:
            ModelError: It computes something else than the file.
        """
        try:
            self._require_translation(threads)
        except ModelError as error:
            raise ModelError(
                "float operators of this model cannot be run by themselves",
                where=str(error).splitlines()[0],
                help="without --step-error rounding and accumulated errors are measured",
            ) from error
        return OnnxSteps(self, view, pairs, threads)

    def producer_of(self, pair: Pair) -> Producer:
        """What writes a measured tensor, as the files number and name it."""
        graph, twin = self.quantized, self.float_graph
        place = graph.places[pair.tap.tensor]
        kinds = (op.kind for op in graph.file.operators if place in op.outputs)
        return Producer(next(kinds, "INPUT"), place, twin.file.tensors[twin.places[pair.twin]].name)

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both files by interpreters as deployed; operators are not timed one by one."""
        graphs = (self.float_graph, self.quantized)
        calls = [self.interpreters.session(graph, threads).call(feed_of(batch, graph)) for graph in graphs]
        return Profile(in_background(lambda: latency_facts(*calls, threads=threads, batch=batch.samples)))

    def describe(self) -> Description:
        """What the files tell besides their graphs."""
        return describe_files(self.float_graph, self.quantized)

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How LiteRT computes the tensors of the quantized file, by their types."""
        return kernels_of_file(self.quantized)

    def simulate(self, case: Case, threads: int) -> OnnxSimulated:
        """The translation of the float network with simulated quantizers.

        Raises:
            ModelError: It computes something else than the file.
        """
        self._require_translation(threads)
        return OnnxSimulated(self, case, threads)

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> OnnxGivenSimulation:
        """The translation of the float network with simulated quantizers, where these tensors are given.

        Raises:
            ModelError: It computes something else than the file.
        """
        self._require_translation(threads)
        return OnnxGivenSimulation(self, case, tensors, threads)

    def editable(self) -> TranslatedModels:
        """The translations of both files.

        Raises:
            ModelError: They compute something else than the files.
        """
        self._require_translation(1)
        return TranslatedModels(
            self.float_graph,
            self.quantized,
            self.match,
            self.pairs,
            shapes=self.shapes,
            file_inputs=self.input_specs,
            difference=self._translation_difference(self.quantized, 1),
        )

    def float_runner(self, threads: int) -> Runner:
        """Runs the float file."""
        return self.interpreters.float_runner(threads)

    def quantized_runner(self, threads: int) -> Runner:
        """Runs the quantized file."""
        return self.interpreters.quantized_runner(threads)

    def _require_translation(self, threads: int) -> None:
        """Refuse a translation that does not compute the float network.

        Raises:
            ModelError: It does not.
        """
        graph = self.float_graph
        if graph.untranslated:
            raise ModelError(
                "operators of the float model cannot be simulated: " + ", ".join(graph.untranslated),
                where=graph.path.name,
                help="what is measured does not depend on that",
            )
        difference = self._translation_difference(graph, threads)
        if difference > SAME_TRANSLATION:
            raise ModelError(
                f"the simulated float model departs from the interpreter's by {difference:.2g} of its largest output",
                where=graph.path.name,
                help="what is measured does not depend on that",
            )

    def _translation_difference(self, graph: LiteRTGraph, threads: int) -> float:
        """Largest difference of an output of the translation from the interpreter's, over its largest magnitude."""
        if self.first is None:
            return 0.0
        own = self.interpreters.runner(graph, range(len(graph.outputs)), threads)(self.first)
        return output_difference(own, translated_runner(graph, graph.model, graph.outputs, threads)(self.first))


def open_models(float_path: Path, quantized_path: Path) -> LiteRTModels:
    """Read both files, translate them and pair their tensors; neither is run.

    Raises:
        ModelError: A file cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    float_graph, quantized = (graph_of(read_litert(path)) for path in (float_path, quantized_path))
    matched = match_files(float_graph, quantized)
    pairs = [
        pair
        for pair in pairs_of(float_graph, quantized, matched)
        if pair.twin in float_graph.places and pair.tap.tensor in quantized.places
    ]
    batched = all(is_open(graph.file) for graph in (float_graph, quantized))
    return LiteRTModels(float_graph, quantized, matched, pairs, batched=batched)
