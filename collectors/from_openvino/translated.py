"""The ONNX translations of two OpenVINO models, on which remedies are tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.from_onnx.translated import TranslatedPair
from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.record import describe_files
from quantmedic.collectors.measure.models import Description, Kernel, Runner
from quantmedic.collectors.pair.feed import feed_of

Float32 = NDArray[np.float32]


@dataclass
class TranslatedModels(TranslatedPair[OpenVINOGraph]):
    """Both translations; see ``TranslatedPair``."""

    framework: ClassVar[str] = "openvino"
    reference: ClassVar[str] = "OpenVINO"

    executed: Mapping[str, Kernel] = field(kw_only=True)
    """How the CPU plugin computes the tensors of the quantized file."""

    def runner_of(self, graph: OpenVINOGraph, model: onnx.ModelProto, names: Sequence[str], threads: int) -> Runner:
        """Runs a translation; see ``translated_runner``."""
        return translated_runner(graph, model, names, threads)

    def describe(self) -> Description:
        """What a case says of the files."""
        return describe_files(self.float_graph, self.quantized)

    def kernels(self, threads: int) -> Mapping[str, Kernel]:
        """How the CPU plugin computes the tensors of the quantized file."""
        return self.executed


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
