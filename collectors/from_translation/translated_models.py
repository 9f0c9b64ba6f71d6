"""Models of another runtime, which run twice: by that runtime as they are, and in an ONNX translation.

What concerns graphs, weights, grids, simulation and trials is asked of the translations, with the means of the ONNX
front end. What is measured comes from the files themselves. A format derives a graph and a pair of files from the
classes here, and adds how its own runtime is asked.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.from_onnx.given_simulation import given_simulation
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, graph_runner
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.steps import OnnxSteps
from quantmedic.collectors.from_onnx.types import static_types
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.measure.models import GivenSimulation, Models, Runner, View
from quantmedic.collectors.measure.outputs import output_difference
from quantmedic.collectors.native.runs import in_background
from quantmedic.collectors.pair.graph import Shape, TensorSpec
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: A translation whose outputs differ by more than this share of their largest value is not the model.
SAME_TRANSLATION = 1e-4
PlaceT = TypeVar("PlaceT")


class StoredCodes(NamedTuple):
    """Codes of a constant as the file has them, and their grid."""

    codes: Array
    quantizer: Quantizer


@dataclass(kw_only=True)
class TranslatedGraph(OnnxGraph, Generic[PlaceT]):
    """The graph of a model of another runtime, read from its translation.

    Attributes:
        places: Where that runtime has each tensor that it has.
        untranslated: Operators without a counterpart.
    """

    places: Mapping[str, PlaceT]
    untranslated: tuple[str, ...]

    @property
    def can_run(self) -> bool:
        """Its ONNX model can be run: remedies can be simulated and tried."""
        return not self.untranslated

    @property
    def files(self) -> list[Path]:
        """Its files."""
        return [self.path]

    def give_grids(self, grids: Mapping[str, StoredCodes]) -> None:
        """Let constants whose grids ONNX's quantizers do not express have them, by the tensor of their real values."""
        for name, stored in grids.items():
            self.constants[name] = replace(self.constants[name], quantizer=stored.quantizer, codes=stored.codes)

    def add_notices(self, notices: Iterable[str]) -> None:
        """Say what the user should know of the file, and which operators have no counterpart."""
        self.notices += notices
        if self.untranslated:
            kinds = ", ".join(dict.fromkeys(self.untranslated))
            self.notices.append(f"operators without a counterpart in ONNX are measured, not simulated: {kinds}")


def fields_of(parsed: OnnxGraph) -> dict[str, Any]:
    """What a graph of another runtime has of its translation, by field."""
    return {each.name: getattr(parsed, each.name) for each in fields(OnnxGraph)}


GraphT = TypeVar("GraphT", bound=TranslatedGraph)


def shared_pairs(float_graph: GraphT, quantized: GraphT, matched: Match) -> list[Pair]:
    """Pairs of tensors that the models' own runtime has in both."""
    pairs = pairs_of(float_graph, quantized, matched)
    return [p for p in pairs if p.twin in float_graph.places and p.tap.tensor in quantized.places]


@dataclass
class TranslatedFiles(Models, Generic[GraphT]):
    """Two files of another runtime; see ``Models``. ``pairs`` are those that the runtime has in both."""

    reference: ClassVar[str]
    """What runs the files, as messages call it."""

    float_graph: GraphT
    quantized: GraphT
    first: Batch | None = field(default=None, kw_only=True)
    """Samples that both were run on first."""
    _difference: float | None = field(default=None, init=False)

    @abstractmethod
    def runner_of(self, graph: GraphT, positions: Sequence[int], threads: int) -> Runner:
        """Runs a file of this format; returns its outputs at these positions as real values.

        Raises:
            ModelError: The runtime refuses the file.
        """

    @abstractmethod
    def repeated_run(self, graph: GraphT, batch: Batch, threads: int) -> Callable[[], object]:
        """A function that runs a file on this batch over and over."""

    def static_types(self, samples: int) -> tuple[Mapping[str, TensorSpec], Mapping[str, TensorSpec]]:
        """Types of the tensors of both translations by type inference."""
        return static_types(self.float_graph.model, samples), static_types(self.quantized.model, samples)

    def float_runner(self, threads: int) -> Runner:
        """Runs the float file."""
        return self.runner_of(self.float_graph, [i for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int) -> Runner:
        """Runs the quantized file."""
        return self.runner_of(self.quantized, [j for _, j in self.match.outputs], threads)

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both files as deployed; operators are not timed one by one."""
        calls = [self.repeated_run(graph, batch, threads) for graph in (self.float_graph, self.quantized)]
        return Profile(in_background(lambda: latency_facts(*calls, threads=threads, batch=batch.samples)))

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

    def simulate(self, case: Case, threads: int) -> OnnxSimulated:
        """The translation of the float network with simulated quantizers.

        Raises:
            ModelError: It computes something else than the file.
        """
        self._require_translation(threads)
        return OnnxSimulated(self, case, threads)

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> GivenSimulation:
        """The translation of the float network with simulated quantizers, where these tensors are given.

        Raises:
            ModelError: It computes something else than the file.
        """
        self._require_translation(threads)
        return given_simulation(self, case, tensors, threads)

    def editable(self) -> "TranslatedPair[GraphT]":
        """The translations of both files.

        Raises:
            ModelError: They cannot be run, or compute something else than the files.
        """
        self._require_translation(1)
        _refuse_untranslated(self.quantized)
        return TranslatedPair(
            self.float_graph,
            self.quantized,
            self.match,
            self.pairs,
            files=self,
            difference=self._translation_difference(self.quantized, 1),
        )

    def compared_tensors(self, graph: GraphT, first: Batch, threads: int) -> tuple[Sequence[str], Sequence[Float32]]:
        """Names of the tensors by which a translation is held against its file, and their values as the file runs."""
        return graph.outputs, self.runner_of(graph, range(len(graph.outputs)), threads)(first)

    def _require_translation(self, threads: int) -> None:
        """Refuse a translation that does not compute the float network.

        Raises:
            ModelError: It does not.
        """
        graph = self.float_graph
        _refuse_untranslated(graph)
        if self._difference is None and self.first is not None:
            self._difference = self._translation_difference(graph, threads)
        if self._difference is not None and self._difference > SAME_TRANSLATION:
            raise ModelError(
                f"the simulated float model departs from {self.reference}'s by {self._difference:.2g} of its largest "
                "output",
                where=graph.path.name,
                help="what is measured does not depend on that",
            )

    def _translation_difference(self, graph: GraphT, threads: int) -> float:
        """Largest difference of a tensor of the translation from the file's, over its largest magnitude."""
        if self.first is None:
            return 0.0
        names, own = self.compared_tensors(graph, self.first, threads)
        return output_difference(own, graph_runner(graph, names, threads)(self.first))


def _refuse_untranslated(graph: TranslatedGraph[PlaceT]) -> None:
    """Refuse a translation that cannot be run.

    Raises:
        ModelError: Operators have no counterpart.
    """
    if graph.untranslated:
        kinds = ", ".join(dict.fromkeys(graph.untranslated))
        raise ModelError(
            f"operators of the model cannot be simulated: {kinds}",
            where=graph.path.name,
            help="what is measured does not depend on that",
        )


@dataclass
class TranslatedPair(OnnxModels, Generic[GraphT]):
    """Both translations, on which remedies are tried; see ``Models``. What is said of them is said of the files."""

    float_graph: GraphT
    quantized: GraphT
    files: TranslatedFiles[GraphT] = field(kw_only=True)
    difference: float = field(kw_only=True)
    """Largest difference of the quantized one's outputs from those of the file, over their largest magnitude."""

    @property
    def framework(self) -> str:
        """That of the files."""
        return self.files.framework

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Those of the float file."""
        return self.files.shapes

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply: those of the files."""
        return self.files.input_specs

    @property
    def notices(self) -> list[str]:
        """How the translation differs from the file."""
        told = f"are those of {self.files.reference}"
        if self.difference:
            told = f"differ from {self.files.reference}'s by {self.difference:.2g} of the largest"
        return [
            "remedies were tried on an ONNX translation of the quantized model: its "
            f"outputs before any change {told}, on the first batch"
        ]
