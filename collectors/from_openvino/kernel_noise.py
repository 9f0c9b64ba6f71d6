"""What the integer kernels of OpenVINO's CPU plugin add to the quantization of a model."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.feed import arrays_of
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.session import compile_model
from quantmedic.collectors.from_openvino.translated import translated_runner
from quantmedic.collectors.measure.models import Reading
from quantmedic.collectors.measure.outputs import added_noise_ratio
from quantmedic.collectors.pair.match import Match

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]


class _Models(Protocol):
    @property
    def quantized(self) -> OpenVINOGraph: ...

    @property
    def match(self) -> Match: ...


def kernel_facts(models: _Models, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
    """Fields of ``ModelFacts`` on the kernels of this machine, measured on one batch.

    The model as deployed is held against its graph as it is written, which is the translation without optimizations.
    Where its weights are stored as float32, the plugin finds nothing to lower and computes the same graph with sums
    that cannot saturate.

    Args:
        models: Both models.
        first: The batch.
        reading: What both models made of it as deployed.
        threads: Processor threads.

    Returns:
        The runtime, and how noisy its kernels are: mean d² between an execution and the graph as it is written / mean
        d² between the latter and the float model. Figures are left out where there is no translation or no noise.

    Raises:
        ModelError: A model cannot be run.
    """
    graph = models.quantized
    import openvino  # an optional package

    facts: dict[str, object] = {"runtime": f"openvino {openvino.get_version().partition('-')[0]}"}
    if graph.untranslated:
        return facts
    ends = [graph.outputs[j] for _, j in models.match.outputs]
    plain = translated_runner(graph, graph.model, ends, threads, plain=True)(first)
    deployed = added_noise_ratio(reading.outputs[0], plain, reading.outputs[1])
    if deployed is None:
        return facts
    found = compile_model(graph.file.path, _with_float_weights(graph), threads)(arrays_of(first, graph))
    exact = [np.array(found[j]) for _, j in models.match.outputs]
    return facts | {
        "integer_kernel_noise": deployed,
        "exact_kernel_noise": added_noise_ratio(reading.outputs[0], plain, exact),
    }


def _with_float_weights(graph: OpenVINOGraph) -> "openvino.Model":
    """A copy of a model whose weights are real values instead of codes."""
    from openvino import opset13  # an optional package

    copy = graph.file.model.clone()
    operators = copy.get_ordered_ops()
    for number, values in graph.weights.items():
        constant = opset13.constant(values)
        for reader in operators[number].output(0).get_target_inputs():
            reader.replace_source_output(constant.output(0))
    return copy
