"""What integer kernels of this machine add to the quantization of a model."""

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.models import Models
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.from_onnx.view import Reading
from quantmedic.collectors.measure.given_outputs import comparable, compared
from quantmedic.collectors.measure.plan import feed_of
from quantmedic.engine.case.comparison import noise_ratio


def kernel_noise(models: Models, first: Batch, reading: Reading, threads: int) -> float | None:
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
            found.append(compared(simulated, y, None))
            against.append(compared(x, simulated, None))
    return noise_ratio(found, against)
