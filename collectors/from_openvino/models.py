"""Two OpenVINO models that belong together: their ONNX translations as graphs, their twins, and how to run them.

What concerns graphs, weights, grids and simulation is asked of the translations, with the means of the ONNX front end.
What is measured comes from the CPU plugin, which runs the files themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.given_simulation import OnnxGivenSimulation
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.steps import OnnxSteps
from quantmedic.collectors.from_onnx.types import static_types
from quantmedic.collectors.from_openvino.dropped_bounds import dropped_bounds
from quantmedic.collectors.from_openvino.feed import arrays_of
from quantmedic.collectors.from_openvino.file import read_ir
from quantmedic.collectors.from_openvino.folded_factors import folded_factors
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.kernel_noise import kernel_facts
from quantmedic.collectors.from_openvino.record import describe_files, kernels_of_session
from quantmedic.collectors.from_openvino.session import Session, Sessions, may_saturate
from quantmedic.collectors.from_openvino.translated import TranslatedModels, translated_runner
from quantmedic.collectors.from_openvino.view import OpenVINOView
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.measure.model_pair import ModelPair
from quantmedic.collectors.measure.models import Description, Kernel, Reading, Runner, View
from quantmedic.collectors.measure.outputs import output_difference
from quantmedic.collectors.native.runs import in_background
from quantmedic.collectors.pair.graph import Shape, TensorSpec
from quantmedic.collectors.pair.match import match
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: A translation whose outputs differ by more than this share of their largest value is not the model.
SAME_TRANSLATION = 1e-4


@dataclass
class OpenVINOModels(ModelPair):
    """Two IRs; see ``Models``. ``pairs`` are those that OpenVINO has in both."""

    framework: ClassVar[str] = "openvino"
    measures_step_error: ClassVar[bool] = True

    float_graph: OpenVINOGraph
    quantized: OpenVINOGraph
    first: Batch | None = field(default=None, kw_only=True)
    """Samples that both were run on first."""
    sessions: Sessions = field(default_factory=Sessions, kw_only=True)
    """Compiled models."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes as OpenVINO infers them of the float model."""
        return self.float_graph.stated

    def static_types(self, samples: int) -> tuple[Mapping[str, TensorSpec], Mapping[str, TensorSpec]]:
        """Types of the tensors of both translations by type inference."""
        return static_types(self.float_graph.model, samples), static_types(self.quantized.model, samples)

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> OpenVINOView:
        """Both models, and copies of them that show these pairs."""
        self.first = self.first or first
        graphs = self.float_graph, self.quantized
        return OpenVINOView(self.sessions, graphs, self.match, pairs, first, threads)

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> OnnxSteps:
        """The translation of the float model fed with the deployed tensors of a view.

        Raises:
            ModelError: It computes something else than the file.
        """
        self._require_translation(threads)
        return OnnxSteps(self, view, pairs, threads)

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both models as deployed; operators are not timed one by one."""
        graphs = (self.float_graph, self.quantized)
        calls = [self.sessions.session(g, threads).call(arrays_of(batch, g)) for g in graphs]
        return Profile(in_background(lambda: latency_facts(*calls, threads=threads, batch=batch.samples)))

    def kernel_facts(self, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
        """What the integer kernels of this machine add to the quantization."""
        return kernel_facts(self, first, reading, threads) if self.quantized.is_quantized else {}

    def describe(self) -> Description:
        """What the files tell besides their graphs."""
        return describe_files(self.float_graph, self.quantized)

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How the CPU plugin computes the tensors of the quantized model."""
        # Which kernels the runtime chooses is another question than whether their sums saturate here.
        graph = self.quantized
        session = Session(graph, [], threads) if may_saturate() else self.sessions.session(graph, threads)
        return kernels_of_session(graph, session)

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
            ModelError: They cannot be run, or compute something else than the files.
        """
        self._require_translation(1)
        if self.quantized.untranslated:
            raise _not_translated(self.quantized)
        return TranslatedModels(
            self.float_graph,
            self.quantized,
            self.match,
            self.pairs,
            shapes=self.shapes,
            difference=self._translation_difference(self.quantized, 1),
            executed=self.kernels(1),
        )

    def float_runner(self, threads: int) -> Runner:
        """Runs the float model."""
        return self._runner(self.float_graph, [i for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int) -> Runner:
        """Runs the quantized model."""
        return self._runner(self.quantized, [j for _, j in self.match.outputs], threads)

    def _runner(self, graph: OpenVINOGraph, positions: Sequence[int], threads: int) -> Runner:
        session = self.sessions.session(graph, threads)

        def call(batch: Batch) -> list[Float32]:
            found = session.run(arrays_of(batch, graph))[0]
            return [np.asarray(found[k], np.float32) for k in positions]

        return call

    def _require_translation(self, threads: int) -> None:
        """Refuse a translation that does not compute the float network.

        Raises:
            ModelError: It does not.
        """
        graph = self.float_graph
        if graph.untranslated:
            raise _not_translated(graph)
        difference = self._difference
        if difference > SAME_TRANSLATION:
            raise ModelError(
                f"the simulated float model departs from OpenVINO's by {difference:.2g} of its largest output",
                where=graph.path.name,
                help="what is measured does not depend on that",
            )

    @cached_property
    def _difference(self) -> float:
        return self._translation_difference(self.float_graph, 1)

    def _translation_difference(self, graph: OpenVINOGraph, threads: int) -> float:
        """Largest difference of an output of the translation from OpenVINO's, over its largest magnitude.

        Sigmoid and Softmax at the end blow the last bits of large inputs up: of these, the inputs are compared.
        """
        if self.first is None:
            return 0.0
        names = [_before_saturation(graph, name) for name in graph.outputs]
        places = [graph.places[name] for name in names]
        shown = self.sessions.session(graph, threads, sorted({*places})).run(arrays_of(self.first, graph))[1]
        own = [np.asarray(shown[place], np.float32) for place in places]
        return output_difference(own, translated_runner(graph, graph.model, names, threads)(self.first))


def _before_saturation(graph: OpenVINOGraph, name: str) -> str:
    """An output, or what its Sigmoid or Softmax reads."""
    producer = graph.producers.get(graph.root(name))
    if producer is None or producer.op_type not in ("Sigmoid", "Softmax") or graph.root(name) in graph.quantizers:
        return name
    source = producer.inputs[0]
    return source if source in graph.places and source not in graph.quantizers else name


def _not_translated(graph: OpenVINOGraph) -> ModelError:
    kinds = ", ".join(dict.fromkeys(graph.untranslated))
    return ModelError(
        f"operators of the model cannot be simulated: {kinds}",
        where=graph.path.name,
        help="what is measured does not depend on that",
    )


def open_models(float_path: Path, quantized_path: Path) -> OpenVINOModels:
    """Read both models, translate them and pair their tensors; neither is run.

    Raises:
        ModelError: A file cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    files = read_ir(float_path), read_ir(quantized_path)
    float_graph, quantized = (graph_of(file) for file in files)
    matched = match(float_graph, quantized)
    factors = folded_factors(float_graph, quantized, matched)
    if factors:
        float_graph = graph_of(files[0], factors=factors)
        matched = match(float_graph, quantized)
    dropped = dropped_bounds(float_graph, quantized, matched)
    if dropped:
        quantized = graph_of(files[1], dropped)
    matched = match_files(float_graph, quantized)
    pairs = [
        pair
        for pair in pairs_of(float_graph, quantized, matched)
        if pair.twin in float_graph.places and pair.tap.tensor in quantized.places
    ]
    return OpenVINOModels(float_graph, quantized, matched, pairs)
