"""The ONNX translations of two OpenVINO models, on which remedies are tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.given_simulation import OnnxGivenSimulation
from quantmedic.collectors.from_onnx.profile import profile
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.steps import OnnxSteps
from quantmedic.collectors.from_onnx.view import FloatTensors, OnnxView
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.record import describe_files
from quantmedic.collectors.measure.latency import Profile
from quantmedic.collectors.measure.model_pair import ModelPair
from quantmedic.collectors.measure.models import Description, FloatReader, Kernel, Runner, View
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.records import Case

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]


@dataclass
class TranslatedModels(ModelPair):
    """Both translations; see ``Models``. What is said of the models is said of the files."""

    framework: ClassVar[str] = "openvino"
    measures_step_error: ClassVar[bool] = True

    float_graph: OpenVINOGraph
    quantized: OpenVINOGraph
    shapes: Mapping[str, Shape] = field(kw_only=True)
    difference: float = field(kw_only=True)
    """Largest difference of the quantized one's outputs from OpenVINO's, over their largest magnitude."""
    executed: Mapping[str, Kernel] = field(kw_only=True)
    """How the CPU plugin computes the tensors of the quantized file."""

    @property
    def notices(self) -> list[str]:
        """How the translation differs from the file."""
        departs = f"differ from OpenVINO's by {self.difference:.2g} of the largest" if self.difference else ""
        return [
            "remedies were tried on an ONNX translation of the quantized model: its "
            f"outputs before any change {departs or 'are those of OpenVINO'}, on the first batch"
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

    def describe(self) -> Description:
        """What a case says of the files."""
        return describe_files(self.float_graph, self.quantized)

    def kernels(self, threads: int) -> Mapping[str, Kernel]:
        """How the CPU plugin computes the tensors of the quantized file."""
        return self.executed

    def editable(self) -> "TranslatedModels":
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
        return translated_runner(graph, graph.model, [graph.outputs[i] for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int, changed: onnx.ModelProto | None = None) -> Runner:
        """Runs the quantized translation, or a changed copy of it."""
        graph = self.quantized
        names = [graph.outputs[j] for _, j in self.match.outputs]
        return translated_runner(graph, graph.model if changed is None else changed, names, threads)


def translated_runner(
    graph: OpenVINOGraph, model: onnx.ModelProto, names: Sequence[str], threads: int, *, plain: bool = False
) -> Runner:
    """Runs a translation, or a changed copy of it; ``plain`` is without optimizations.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    inner = [name for name in names if name not in graph.outputs]
    session = make_session(model, graph.path, threads, exposed=inner, plain=plain)

    def call(batch: Batch) -> list[Float32]:
        return [np.asarray(array, np.float32) for array in run(session, names, feed_of(batch, graph), graph.path)]

    return call
