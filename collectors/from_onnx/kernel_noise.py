"""What integer kernels of this machine add to the quantization of a model."""

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.graph import PairedOnnxGraphs
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.measure.models import Reading
from quantmedic.collectors.measure.outputs import comparable, compare_outputs
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.case.comparison import noise_ratio


def kernel_noise(models: PairedOnnxGraphs, first: Batch, reading: Reading, threads: int) -> float | None:
    """Mean d² between integer kernels and the plain graph / mean d² between the plain graph and the float model.

    About 0.01 to 1 where kernels round a little differently; far more where they saturate. None without noise.
    """
    graph = models.quantized
    session = make_session(graph.model, graph.path, threads, plain=True)
    plain = dict(zip(graph.outputs, run(session, graph.outputs, feed_of(first, graph), graph.path), strict=True))
    found, against = [], []
    for (_, j), x, y in zip(models.match.outputs, *reading.outputs, strict=True):
        simulated = plain[graph.outputs[j]]
        if comparable(simulated, y) and comparable(x, simulated):
            found.append(compare_outputs(simulated, y, None))
            against.append(compare_outputs(x, simulated, None))
    return noise_ratio(found, against)
