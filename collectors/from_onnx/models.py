"""Two ONNX models that belong together: both graphs, their twins, and what can be read in both."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import InputSpec
from quantmedic.collectors.from_onnx.file import load_model
from quantmedic.collectors.from_onnx.graph import OnnxGraph
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.types import static_shapes
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.collectors.pair.graph import Graph, Shape, Tap, TensorSpec
from quantmedic.collectors.pair.likeness import refuse_other_weights
from quantmedic.collectors.pair.match import Match, match
from quantmedic.engine.errors import ModelError

if TYPE_CHECKING:
    from quantmedic.collectors.from_onnx.steps import FloatSteps
    from quantmedic.collectors.from_onnx.view import Reading, View
    from quantmedic.engine.case.records import Case

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: What a network makes of a batch: the outputs that both models have, in the order of their matches.
Runner = Callable[[Batch], list[Float32]]
#: Activations that runtimes fuse into the kernel before them.
_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish"})


@dataclass(frozen=True)
class Pair:
    """One measured tensor: where to read it in either model."""

    root: str
    twin: str
    tap: Tap


@dataclass
class Models:
    """Both graphs, what was found out about them before any data was run, and how to run them.

    A framework of its own overrides what concerns running: collecting, simulating and trying ask nothing else of it.
    """

    float_graph: OnnxGraph
    quantized: OnnxGraph
    match: Match
    pairs: list[Pair]

    framework: ClassVar[str] = "onnx"
    isolates: ClassVar[bool] = True
    """Operators can be measured by themselves, on float inputs."""
    steps_alone: ClassVar[bool] = True
    """Float operators can be run by themselves, on deployed inputs."""

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes in the float model that hold for every batch; None for an axis that depends on the data."""
        return static_shapes(self.float_graph.model)

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply."""
        return [input_spec(spec) for spec in self.float_graph.input_specs]

    def bound(self, memory: int) -> None:
        """Let the observed tensors of one batch take no more than so many bytes.

        Raises:
            ModelError: All of them are observed at once.
        """
        raise ModelError(
            "memory is bounded for torch modules only",
            where=str(self.quantized.path),
            help="--mode fast observes a part of the tensors of ONNX models at a time",
        )

    @property
    def notices(self) -> list[str]:
        """What the user should know of these models where remedies are tried on them."""
        return []

    def probe(self) -> None:
        """Find out by running what the files leave open of how they are fed."""

    def as_deployed(self) -> AbstractContextManager[None]:
        """Context in which both models run as deployed, and are left as they were."""
        return nullcontext()

    def view(
        self, pairs: Mapping[int, "Pair"], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> "View":
        """Both models with these pairs exposed; see ``View``."""
        from quantmedic.collectors.from_onnx.view import View

        return View(self, pairs, first, threads, plain)

    def steps(self, view: "View", pairs: Sequence[Pair], threads: int) -> "FloatSteps":
        """The float model fed with the deployed tensors of a view; ``pairs`` are all that are measured."""
        from quantmedic.collectors.from_onnx.steps import FloatSteps

        return FloatSteps(self, view, pairs, threads)

    def require_steps(self, asked: str) -> None:
        """Refuse what the user ``asked`` for where float operators cannot be run by themselves.

        Raises:
            ModelError: They cannot.
        """
        if not self.steps_alone:
            raise ModelError(
                f"operators of {self.framework} models are not measured on deployed inputs",
                where=str(self.quantized.path),
                help=f"{asked} needs ONNX or LiteRT files; rounding and accumulated errors are measured without it",
            )

    def written(self, pair: Pair) -> tuple[str, int, str]:
        """Type of the operator that writes a tensor of the quantized model, the tensor's place, and its float name."""
        producer = self.quantized.producers.get(pair.root)
        return (producer.op_type if producer is not None else "Input"), self.pairs.index(pair), pair.twin

    def kernel_noise(self, first: Batch, reading: "Reading", threads: int) -> float | None:
        """What integer kernels add; None on processors where they do not saturate."""
        from quantmedic.collectors.from_onnx.kernel_noise import kernel_noise

        if has_vnni() is not False or not self.quantized.is_quantized:
            return None
        return kernel_noise(self, first, reading, threads)

    def profile(self, batch: Batch, threads: int) -> Any:
        """What both models cost in time; see ``Profile``."""
        from quantmedic.collectors.from_onnx.profile import profile

        return profile(self, batch, threads)

    def record(self, *about: Any) -> Any:
        """What a case says of both models besides statistics; see ``model_record``."""
        from quantmedic.collectors.from_onnx.record import model_record

        return model_record(self, *about)

    def file_record(self, *about: Any, **given: Any) -> Any:
        """The same of models that are not run; see ``onnx_record.file_record``."""
        from quantmedic.collectors.from_onnx.record import file_record

        return file_record(self, *about, **given)

    def executed(self, threads: int) -> Mapping[str, str]:
        """Operator type that really computes each tensor of the quantized model; see ``executed_types``.

        Raises:
            ModelError: The runtime refuses the model.
        """
        from quantmedic.collectors.from_onnx.session import executed_types

        return executed_types(self.quantized, threads)

    def editable(self) -> "Models":
        """The models on which remedies are carried out."""
        return self

    def simulated(self, case: "Case", threads: int) -> Any:
        """The float network with quantizers that can be changed; see ``SimulatedNetwork``."""
        from quantmedic.collectors.from_onnx.simulated import SimulatedNetwork

        return SimulatedNetwork(self, case, threads)

    def float_runner(self, threads: int) -> Runner:
        """Runs the float model."""
        names = [self.float_graph.outputs[i] for i, _ in self.match.outputs]
        return self._runner(self.float_graph.model, self.float_graph, names, threads)

    def quantized_runner(self, threads: int, changed: Any = None) -> Runner:
        """Runs the quantized model, or a changed copy of it."""
        names = [self.quantized.outputs[j] for _, j in self.match.outputs]
        return self._runner(self.quantized.model if changed is None else changed, self.quantized, names, threads)

    def _runner(self, model: onnx.ModelProto, graph: Graph, names: Sequence[str], threads: int) -> Runner:
        from quantmedic.collectors.from_onnx.session import make_session, run
        from quantmedic.collectors.measure.plan import feed_of

        session = make_session(model, graph.path, threads)
        return lambda batch: [
            np.asarray(array, np.float32) for array in run(session, names, feed_of(batch, graph), graph.path)
        ]


def open_models(float_path: Path, quantized_path: Path) -> Models:
    """Read both models and pair their tensors.

    Raises:
        ModelError: A model cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    float_graph = parse(float_path, load_model(float_path))
    quantized = parse(quantized_path, load_model(quantized_path))
    matched = match_files(float_graph, quantized)
    return Models(float_graph, quantized, matched, pairs_of(float_graph, quantized, matched))


def match_files(float_graph: Graph, quantized: Graph) -> Match:
    """Twins of two graphs that were read from files.

    Raises:
        ModelError: They are swapped, their inputs or weights differ, or no layer matches.
    """
    refuse_swapped(float_graph, quantized)
    _refuse_strangers(float_graph, quantized)
    matched = match(float_graph, quantized)
    if not matched.operators:
        raise ModelError(
            "no layer of the two models matches",
            where=[
                f"float     {float_graph.path.name}: {len(float_graph.operators)} operators",
                f"quantized {quantized.path.name}: {len(quantized.operators)} operators",
            ],
            help="is the quantized model made from this float model?",
        )
    refuse_other_weights(float_graph, quantized, matched.operators)
    return matched


def input_spec(spec: TensorSpec) -> InputSpec:
    """What a data set has to supply for an input."""
    # A scalar input is one number per sample: a data set holds them as a vector, fed one by one.
    return InputSpec(spec.name, spec.shape or (1,), np.dtype(object) if spec.dtype is None else spec.dtype)


def refuse_swapped(float_graph: Graph, quantized: Graph) -> None:
    """Quantizers stand in the quantized model, not in the float one only."""
    if float_graph.is_quantized and not quantized.is_quantized:
        raise ModelError(
            "the models seem to be swapped: the float model holds quantizers, the quantized one none",
            where=[f"float     {float_graph.path}", f"quantized {quantized.path}"],
            help="give the float model first: quantmedic diagnose FLOAT QUANT",
        )


def _refuse_strangers(float_graph: Graph, quantized: Graph) -> None:
    """Models that are not fed alike are not made from each other."""
    mine, theirs = ([input_spec(spec) for spec in graph.input_specs] for graph in (float_graph, quantized))
    if {spec.name for spec in mine} == {spec.name for spec in theirs}:
        theirs.sort(key=lambda spec: [other.name for other in mine].index(spec.name))
    fits = len(mine) == len(theirs) and all(_shapes_fit(a, b) for a, b in zip(mine, theirs, strict=True))
    if fits:
        return
    raise ModelError(
        "the two models do not belong together: their inputs differ",
        where=[f"float     {_describe(mine)}", f"quantized {_describe(theirs)}"],
        help="is the quantized model made from this float model?",
    )


def _shapes_fit(a: InputSpec, b: InputSpec) -> bool:
    same_rank = len(a.shape) == len(b.shape)
    return same_rank and all(x is None or y is None or x == y for x, y in zip(a.shape, b.shape, strict=True))


def _describe(specs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{s.name} {s.dtype}{['?' if d is None else d for d in s.shape]}" for s in specs)


def pairs_of(float_graph: Graph, quantized: Graph, matched: Match) -> list[Pair]:
    """Every tensor that can be read in both models: by its codes, or, outside of quantizers, by its values."""
    pairs = []
    order = [*quantized.inputs, *(name for op in quantized.operators for name in op.outputs)]
    for root in order:
        twin = matched.tensors.get(root)
        if twin is None or visible(root, quantized) != root:
            continue
        taps = quantized.quantizers.get(root, [])
        read = [t for t in taps if t.tensor and t.quantizer is not None]
        codes = next((t for t in read if t.decoded or (t.quantizer is not None and t.quantizer.bits >= 8)), None)
        if codes is None:
            codes = _decoded(taps, quantized)
        if codes is not None:
            pairs.append(Pair(root, twin, codes))
        elif not any(t.tensor for t in taps):
            dynamic = next((t.quantizer for t in taps), None)
            pairs.append(Pair(root, twin, Tap(root, dynamic)))
    return pairs


def _decoded(taps: Sequence[Tap], graph: Graph) -> Tap | None:
    """Codes of fewer than 8 bits, which no array holds, as the values that they stand for."""
    few = (tap for tap in taps if tap.quantizer is not None and tap.tensor in graph.decoded)
    return next((Tap(graph.decoded[tap.tensor], tap.quantizer, decoded=True) for tap in few), None)


def visible(root: str, graph: Graph) -> str:
    """The tensor that exists at run time: a product's result inside an integer kernel is only seen activated.

    To expose it would take the kernel apart.
    """
    readers = graph.consumers.get(root, [])
    producer = graph.producers.get(root)
    if producer is None or len(readers) != 1 or readers[0].op_type not in _ACTIVATIONS or root in graph.quantizers:
        return root
    fused = any(name in graph.quantizers for name in producer.inputs)
    activated = readers[0].outputs[0]
    return activated if fused and activated in graph.quantizers else root
