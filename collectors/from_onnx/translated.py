"""Two models of another format in their ONNX translations, on which remedies are tried."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.given_simulation import OnnxGivenSimulation
from quantmedic.collectors.from_onnx.graph import OnnxGraph
from quantmedic.collectors.from_onnx.profile import profile
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.steps import OnnxSteps
from quantmedic.collectors.from_onnx.view import FloatTensors, OnnxView
from quantmedic.collectors.measure.latency import Profile
from quantmedic.collectors.measure.model_pair import ModelPair
from quantmedic.collectors.measure.models import FloatReader, Runner, View
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.records import Case

Array = NDArray[np.generic]
GraphT = TypeVar("GraphT", bound=OnnxGraph)


@dataclass
class TranslatedPair(ModelPair, Generic[GraphT]):
    """Both translations; see ``Models``. What is said of the models is said of the files.

    A format derives from it: it adds what the files tell (``describe``, ``kernels``) and how a translation is run.
    """

    measures_step_error: ClassVar[bool] = True
    reference: ClassVar[str]
    """What runs the files, as notices call it."""

    float_graph: GraphT
    quantized: GraphT
    shapes: Mapping[str, Shape] = field(kw_only=True)
    difference: float = field(kw_only=True)
    """Largest difference of the quantized one's outputs from those of the file, over their largest magnitude."""

    @abstractmethod
    def runner_of(self, graph: GraphT, model: onnx.ModelProto, names: Sequence[str], threads: int) -> Runner:
        """Runs the translation of a graph, or a changed copy of it; gives these outputs as real values.

        Raises:
            ModelError: onnxruntime refuses the model.
        """

    @property
    def notices(self) -> list[str]:
        """How the translation differs from the file."""
        told = f"are those of {self.reference}"
        if self.difference:
            told = f"differ from {self.reference}'s by {self.difference:.2g} of the largest"
        return [
            "remedies were tried on an ONNX translation of the quantized model: its "
            f"outputs before any change {told}, on the first batch"
        ]

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> OnnxView:
        """Both translations with these pairs exposed."""
        return OnnxView(self, pairs, first, threads, plain)

    def float_reader(self, names: Sequence[str], threads: int) -> FloatReader:
        """Reads these tensors of the float translation."""
        return FloatTensors(self.float_graph, names, threads).read

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> OnnxSteps:
        """The float translation cut where the quantized one is seen."""
        return OnnxSteps(self, view, pairs, threads)

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both translations."""
        return profile(self, batch, threads)

    def editable(self) -> Self:
        """These models."""
        return self

    def simulate(self, case: Case, threads: int) -> OnnxSimulated:
        """The float translation with simulated quantizers."""
        return OnnxSimulated(self, case, threads)

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> OnnxGivenSimulation:
        """The float translation with simulated quantizers, where these tensors are given."""
        return OnnxGivenSimulation(self, case, tensors, threads)

    def float_runner(self, threads: int) -> Runner:
        """Runs the float translation."""
        graph = self.float_graph
        return self.runner_of(graph, graph.model, [graph.outputs[i] for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int, changed: onnx.ModelProto | None = None) -> Runner:
        """Runs the quantized translation, or a changed copy of it."""
        graph = self.quantized
        names = [graph.outputs[j] for _, j in self.match.outputs]
        return self.runner_of(graph, graph.model if changed is None else changed, names, threads)
