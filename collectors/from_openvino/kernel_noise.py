"""What the integer kernels of OpenVINO's CPU plugin add to the quantization of a model."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.feed import arrays_of
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.session import Session
from quantmedic.collectors.from_openvino.translated import translated_runner
from quantmedic.collectors.measure.models import Reading
from quantmedic.collectors.measure.outputs import added_noise_ratio
from quantmedic.collectors.pair.match import Match
from quantmedic.engine.errors import ModelError

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
    try:
        plain = translated_runner(graph, graph.model, ends, threads, plain=True)(first)
    except ModelError:
        return facts  # The file itself runs: that its translation does not is said where it is needed.
    deployed = added_noise_ratio(reading.outputs[0], plain, reading.outputs[1])
    if deployed is None:
        return facts
    found = Session(graph, [], threads, exact=True).run(arrays_of(first, graph))[0]
    exact = [np.array(found[j]) for _, j in models.match.outputs]
    return facts | {
        "integer_kernel_noise": deployed,
        "exact_kernel_noise": added_noise_ratio(reading.outputs[0], plain, exact),
    }
