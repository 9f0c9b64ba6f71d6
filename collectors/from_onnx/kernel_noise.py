"""What the kernels that onnxruntime fuses add to the quantization of a model, and what keeps it from doing so."""

from functools import partial

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.graph import PairedOnnxGraphs
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.measure.models import Reading
from quantmedic.collectors.measure.outputs import added_noise_ratio
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: Kernels that only round differently add less noise than quantization itself: more is looked into.
_WORTH_A_LOOK = 1.0
#: Settings of onnxruntime, the fastest first, and what a session is made with to try them; and what is left to do.
_WAYS_OUT = {
    'session.x64quantprecision = "1"': {"exact": True},
    'session.disable_quant_qdq = "1"': {"in_float": True},
}
_LAST_WAY_OUT = "graph_optimization_level = ORT_DISABLE_ALL"


def kernel_facts(models: PairedOnnxGraphs, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
    """Fields of ``ModelFacts`` on the kernels of this machine and of this release, measured on one batch.

    Args:
        models: Both models.
        first: The batch.
        reading: What both models made of it as deployed.
        threads: Processor threads.

    Returns:
        The runtime, and how noisy its kernels are: mean d² between an execution and the graph as it is written / mean
        d² between the latter and the float model, as deployed and, where that is much, with sums that cannot saturate;
        and the first setting that takes most of it away. Figures are left out where quantization makes no noise.
    """
    graph, feed = models.quantized, feed_of(first, models.quantized)

    def outputs(plain: bool = False, in_float: bool = False, exact: bool = False) -> list[Array]:
        session = make_session(graph.model, graph.path, threads, plain=plain, in_float=in_float, exact=exact)
        found = dict(zip(graph.outputs, run(session, graph.outputs, feed, graph.path), strict=True))
        return [found[graph.outputs[j]] for _, j in models.match.outputs]

    ratio = partial(added_noise_ratio, reading.outputs[0], outputs(plain=True))
    facts: dict[str, object] = {"runtime": f"onnxruntime {ort.__version__}"}
    deployed = ratio(reading.outputs[1])
    if deployed is None:
        return facts
    facts["integer_kernel_noise"] = deployed
    if deployed <= _WORTH_A_LOOK:
        return facts
    for setting, how in _WAYS_OUT.items():
        try:
            left = ratio(outputs(**how))
        except ModelError:  # a setting that this model cannot be run with helps nobody
            continue
        if "exact" in how:
            facts["exact_kernel_noise"] = left
        if left is not None and left <= _WORTH_A_LOOK:
            return facts | {"kernels_avoided_by": setting}
    return facts | {"kernels_avoided_by": _LAST_WAY_OUT}  # the execution that the others are held against
