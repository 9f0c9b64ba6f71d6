"""The ONNX translations of two LiteRT files, on which remedies are tried."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.from_litert.feed import decode, outputs_of
from quantmedic.collectors.from_litert.graph import LiteRTGraph
from quantmedic.collectors.from_litert.record import describe_files, kernels_of_file
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.from_onnx.translated import TranslatedPair
from quantmedic.collectors.measure.models import Description, Kernel, Runner
from quantmedic.collectors.pair.feed import feed_of

Float32 = NDArray[np.float32]


@dataclass
class TranslatedModels(TranslatedPair[LiteRTGraph]):
    """Both translations; see ``TranslatedPair``."""

    framework: ClassVar[str] = "litert"
    reference: ClassVar[str] = "the interpreter"

    file_inputs: list[InputSpec] = field(kw_only=True)
    """Inputs of the files."""

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply: those of the files."""
        return self.file_inputs

    def runner_of(self, graph: LiteRTGraph, model: onnx.ModelProto, names: Sequence[str], threads: int) -> Runner:
        """Runs a translation; see ``translated_runner``."""
        return translated_runner(graph, model, names, threads)

    def describe(self) -> Description:
        """What a case says of the files."""
        return describe_files(self.float_graph, self.quantized)

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How LiteRT computes the tensors of the quantized file."""
        return kernels_of_file(self.quantized)


def translated_runner(graph: LiteRTGraph, model: onnx.ModelProto, names: Sequence[str], threads: int) -> Runner:
    """Runs a translation, or a changed copy of it; outputs that are codes become real values.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    session = make_session(model, graph.path, threads)
    places = outputs_of(graph)

    def call(batch: Batch) -> list[Float32]:
        found = run(session, names, feed_of(batch, graph), graph.path)
        return [decode(graph, places[name], array) for name, array in zip(names, found, strict=True)]

    return call
