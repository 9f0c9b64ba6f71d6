"""Two LiteRT models that belong together: their ONNX translations as graphs, their twins, and how to run them.

What concerns graphs, weights, grids and simulation is that of ONNX, asked of the translation (``litert_onnx``). What is
measured comes from LiteRT interpreters of the files themselves.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.from_litert.file import LiteTensor
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.from_litert.session import Session, dtype_of, takes_batches
from quantmedic.collectors.from_litert.translation import LiteRTGraph
from quantmedic.collectors.from_onnx.models import Models, Pair, Runner
from quantmedic.collectors.from_onnx.session import make_session, output_difference, run
from quantmedic.collectors.from_onnx.steps import FloatSteps
from quantmedic.collectors.measure.plan import feed_of
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: A translation whose outputs differ by more than this share of their largest value is not the model.
SAME_TRANSLATION = 1e-4


@dataclass
class LiteRTModels(Models):
    """Two files; see ``Models``. ``pairs`` are those that interpreters of both files show."""

    framework: ClassVar[str] = "litert"
    isolates: ClassVar[bool] = False

    float_graph: LiteRTGraph
    quantized: LiteRTGraph
    batched: bool = field(default=False, kw_only=True)
    """Both take several samples at once; else one."""
    first: Batch | None = field(default=None, kw_only=True)
    """Samples that both were run on first."""
    sessions: dict[tuple[Path, int, bool, bool], Session] = field(default_factory=dict, kw_only=True)
    lock: Any = field(default_factory=threading.Lock, kw_only=True)

    @cached_property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes as the float file states them."""
        graph, found = self.float_graph, {}
        for name, place in graph.places.items():
            shape = graph.file.tensors[place].shape
            found[name] = (None, *shape[1:]) if self.batched and shape and shape[0] in (None, 1) else shape
        return found

    @property
    def input_specs(self) -> list[InputSpec]:
        graph, first = self.float_graph, None if self.batched else 1
        found = []
        for name, place in zip(graph.inputs, graph.file.inputs, strict=True):
            tensor = graph.file.tensors[place]
            shape = (first if len(tensor.shape) == 0 or tensor.shape[0] in (None, 1) else tensor.shape[0],)
            found.append(InputSpec(name, (*shape, *tensor.shape[1:]), dtype_of(tensor)))
        return found

    def probe(self) -> None:
        """Find out whether both compute several samples at once, where their inputs say so.

        Raises:
            ModelError: An interpreter refuses its file, or crashes on it.
        """
        require_survival([self.float_graph.path, self.quantized.path])
        for graph in (self.float_graph, self.quantized):
            self.batched = self.batched and takes_batches(self.session(graph, 1), graph.file)

    def session(self, graph: LiteRTGraph, threads: int, *, observed: bool = False, delegated: bool = True) -> Session:
        """The interpreters of a file, made once.

        Raises:
            ModelError: The interpreter refuses the file.
        """
        key = (graph.path, threads, observed, delegated)
        with self.lock:
            if key not in self.sessions:
                self.sessions[key] = Session(graph.file, threads, observed=observed, delegated=delegated)
            return self.sessions[key]

    def view(self, *about: Any) -> Any:
        from quantmedic.collectors.from_litert.view import LiteRTView

        return LiteRTView(self, *about)

    def steps(self, view: Any, pairs: Sequence[Pair], threads: int) -> FloatSteps:
        """The translation of the float model fed with the deployed tensors of a view.

        Raises:
            ModelError: It computes something else than the file.
        """
        try:
            self._require_translation(threads)
        except ModelError as error:
            raise ModelError(
                "float operators of this model cannot be run by themselves",
                where=str(error).splitlines()[0],
                help="without --step-error rounding and accumulated errors are measured",
            ) from error
        return super().steps(view, pairs, threads)

    def written(self, pair: Pair) -> tuple[str, int, str]:
        graph = self.quantized
        place = graph.places[pair.tap.tensor]
        kinds = (op.kind for op in graph.file.operators if place in op.outputs)
        twin = self.float_graph
        return next(kinds, "INPUT"), place, twin.file.tensors[twin.places[pair.twin]].name

    def kernel_noise(self, *about: Any) -> None:
        return None

    def profile(self, batch: Batch, threads: int) -> Any:
        """Latency of both files by interpreters as deployed; operators are not timed one by one.

        Raises:
            ModelError: A model cannot be loaded or fails on the batch.
        """
        from quantmedic.collectors.measure.latency import Profile, latency_facts

        graphs = (self.float_graph, self.quantized)
        calls = [self.session(graph, threads).call(fed(graph, batch)) for graph in graphs]
        return Profile(latency_facts(*calls, threads=threads, batch=batch.samples))

    def record(self, *about: Any) -> Any:
        from quantmedic.collectors.from_litert.record import litert_record

        return litert_record(self, *about)

    def file_record(self, *about: Any, **given: Any) -> Any:
        from quantmedic.collectors.from_litert.record import file_record

        return file_record(self, *about, **given)

    def executed(self, threads: int) -> Mapping[str, str]:
        from quantmedic.collectors.from_litert.record import executed_types

        return executed_types(self.quantized)

    def simulated(self, case: Any, threads: int) -> Any:
        """The translation of the float network with quantizers that can be changed.

        Raises:
            ModelError: It computes something else than the file.
        """
        self._require_translation(threads)
        return super().simulated(case, threads)

    def editable(self) -> Models:
        """The translations of both files.

        Raises:
            ModelError: They compute something else than the files.
        """
        self._require_translation(1)
        difference = self._translation_difference(self.quantized, 1)
        return TranslatedModels(
            self.float_graph, self.quantized, self.match, self.pairs, source=self, difference=difference
        )

    def _require_translation(self, threads: int) -> None:
        """The float network can be computed by its translation.

        Raises:
            ModelError: It cannot.
        """
        graph = self.float_graph
        if graph.untranslated:
            raise ModelError(
                "operators of the float model cannot be simulated: " + ", ".join(graph.untranslated),
                where=graph.path.name,
                help="what is measured does not depend on that",
            )
        difference = self._translation_difference(graph, threads)
        if difference > SAME_TRANSLATION:
            raise ModelError(
                f"the simulated float model departs from the interpreter's by {difference:.2g} of its largest output",
                where=graph.path.name,
                help="what is measured does not depend on that",
            )

    def _translation_difference(self, graph: LiteRTGraph, threads: int) -> float:
        """Largest difference of an output of the translation from the interpreter's, over its largest magnitude."""
        if self.first is None:
            return 0.0
        own = self._runs(graph, range(len(graph.outputs)), threads)(self.first)
        return output_difference(own, translated_runner(graph, graph.model, graph.outputs, threads)(self.first))

    def float_runner(self, threads: int) -> Runner:
        return self._runs(self.float_graph, [i for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int, changed: Any = None) -> Runner:
        return self._runs(self.quantized, [j for _, j in self.match.outputs], threads)

    def _runs(self, graph: LiteRTGraph, positions: Sequence[int], threads: int) -> Runner:
        session, ends = self.session(graph, threads), list(ends_of(graph).values())
        places = [ends[i] for i in positions]

        def call(batch: Batch) -> list[Float32]:
            found = session.run(fed(graph, batch), places)
            return [decoded(graph, place, found[place]) for place in places]

        return call


@dataclass
class TranslatedModels(Models):
    """The ONNX translations of two LiteRT files: what remedies are carried out on."""

    framework: ClassVar[str] = "litert"

    float_graph: LiteRTGraph
    quantized: LiteRTGraph
    source: LiteRTModels = field(kw_only=True)
    difference: float = field(kw_only=True)
    """Largest difference of the quantized one's outputs from the interpreter's, over their largest magnitude."""

    @property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:  # type: ignore[override]
        return self.source.shapes

    @property
    def input_specs(self) -> list[InputSpec]:
        return self.source.input_specs

    @property
    def notices(self) -> list[str]:
        departs = f"differ from the interpreter's by {self.difference:.2g} of the largest" if self.difference else ""
        return [
            "remedies were tried on an ONNX translation of the quantized model, for LiteRT files are not edited: its "
            f"outputs before any change {departs or 'are those of the interpreter'}, on the first batch"
        ]

    def kernel_noise(self, *about: Any) -> None:
        return None

    def record(self, *about: Any) -> Any:
        return self.source.record(*about)

    def float_runner(self, threads: int) -> Runner:
        graph = self.float_graph
        return translated_runner(graph, graph.model, [graph.outputs[i] for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int, changed: Any = None) -> Runner:
        graph = self.quantized
        names = [graph.outputs[j] for _, j in self.match.outputs]
        return translated_runner(graph, graph.model if changed is None else changed, names, threads)


def translated_runner(graph: LiteRTGraph, model: Any, names: Sequence[str], threads: int) -> Runner:
    """Runs a translation, or a changed copy of it; outputs that are codes become real values."""
    session = make_session(model, graph.path, threads)
    places = ends_of(graph)

    def call(batch: Batch) -> list[Float32]:
        found = run(session, names, feed_of(batch, graph), graph.path)
        return [decoded(graph, places[name], array) for name, array in zip(names, found, strict=True)]

    return call


def ends_of(graph: LiteRTGraph) -> dict[str, int]:
    """Places of the outputs in the interpreter, by their names in the translation, in order."""
    return dict(zip(graph.outputs, dict.fromkeys(graph.file.outputs), strict=True))


def fed(graph: LiteRTGraph, batch: Batch) -> dict[int, Array]:
    """What the inputs of a file take of a batch, by their places: codes where they hold codes."""
    arrays = feed_of(batch, graph)
    inputs = zip(graph.inputs, graph.file.inputs, strict=True)
    return {place: _encoded(graph.file.tensors[place], arrays[name]) for name, place in inputs}


def _encoded(tensor: LiteTensor, array: Array) -> Array:
    """Codes of real values, as the application makes them by the parameters of the tensor."""
    kind = dtype_of(tensor)
    if array.dtype.kind != "f" or kind.kind == "f" or tensor.quantizer is None:
        return array
    return tensor.quantizer.encode(np.asarray(array, np.float32)).astype(kind)


def decoded(graph: LiteRTGraph, place: int, array: Array) -> Float32:
    """Real values of an output, as the application makes them of codes by the parameters that its tensor has."""
    quantizer = graph.file.tensors[place].quantizer
    if array.dtype.kind in "iu" and quantizer is not None:
        return quantizer.dequantize(array)
    return np.asarray(array, np.float32)
