"""Two ONNX models that belong together: both graphs, their twins, and how to run and observe them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.given_simulation import given_simulation
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_record import describe_files, kernels_of_model
from quantmedic.collectors.from_onnx.onnx_session import ObservedModel, make_session, run, shapes_on
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.profile import profile
from quantmedic.collectors.from_onnx.providers import CPU, Provider, describe_assignment, providers_of, sessions_on
from quantmedic.collectors.from_onnx.quantized_types import quantized_nodes
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.steps import OnnxSteps
from quantmedic.collectors.from_onnx.traits import half_tensors, required_opset, toolchain_marks, training_nodes
from quantmedic.collectors.from_onnx.types import static_shapes, static_types
from quantmedic.collectors.measure.latency import Profile
from quantmedic.collectors.measure.memory import GroupedReading, in_groups, sizes_of
from quantmedic.collectors.measure.models import (
    Description,
    Faithfulness,
    FloatReader,
    GivenSimulation,
    Kernel,
    Models,
    Network,
    Reading,
    Runner,
    View,
)
from quantmedic.collectors.measure.outputs import added_noise_ratio
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Shape, Tap, TensorSpec
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Kernels that only round differently add less noise than quantization itself: more is looked into.
_WORTH_A_LOOK = 1.0
#: Settings of onnxruntime, the fastest first, and what a session is made with to try them; and what is left to do.
_WAYS_OUT = {
    'session.x64quantprecision = "1"': {"exact": True},
    'session.disable_quant_qdq = "1"': {"in_float": True},
}
_LAST_WAY_OUT = "graph_optimization_level = ORT_DISABLE_ALL"


def graph_runner(
    graph: OnnxGraph,
    names: Sequence[str],
    threads: int,
    *,
    changed: onnx.ModelProto | None = None,
    plain: bool = False,
) -> Runner:
    """Runs the model of a graph, or a changed copy of it, for these tensors as real values.

    Args:
        graph: The graph.
        names: Outputs, or tensors within.
        threads: Processor threads.
        changed: What runs in place of its model.
        plain: Without optimizations.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    inner = [name for name in names if name not in graph.outputs]
    model = graph.model if changed is None else changed
    session = make_session(model, graph.path, threads, exposed=inner, plain=plain)

    def call(batch: Batch) -> list[Float32]:
        found = run(session, names, feed_of(batch, graph), graph.path)
        return [graph.decode_output(name, array) for name, array in zip(names, found, strict=True)]

    return call


class FloatTensors:
    """The float model with some of its tensors exposed.

    Attributes:
        session: Runs it.
    """

    def __init__(self, graph: OnnxGraph, names: Sequence[str], threads: int, others: Sequence[str] = ()) -> None:
        """Open the session; ``others`` are not fused away either (``size_readers``)."""
        self._graph = graph
        self.session = make_session(graph.model, graph.path, threads, exposed=names, read=others)
        self._wanted = [*dict.fromkeys(n for n in (*names, *graph.outputs) if n not in graph.inputs)]

    def read_tensors(self, batch: Batch) -> dict[str, Array]:
        """These tensors, inputs and outputs by name.

        Raises:
            ModelError: The model fails on this batch.
        """
        feed = feed_of(batch, self._graph)
        found = run(self.session, self._wanted, feed, self._graph.path)
        return {**feed, **dict(zip(self._wanted, found, strict=True))}


class _Group:
    """Sessions of both models that show some of the pairs of a view; see `OnnxView`."""

    def __init__(
        self,
        models: PairedOnnxGraphs,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
        others: Iterable[Pair] = (),
    ) -> None:
        """Open the sessions; ``others`` are all pairs where these are not all of them."""
        self._models = models
        taps, beside = [pair.tap for pair in pairs.values()], list(others)
        feed = feed_of(first, models.quantized)
        seen = ObservedModel(models.quantized, taps, feed, threads, plain, [pair.tap for pair in beside])
        self.observed = seen.observed
        self.model, self._session = seen.model, seen.session
        numbers = list(pairs)
        self.taps: dict[int, Tap] = {numbers[k]: seen.read[k] for k in seen.taps}
        feature, graph = feature_of(models.float_graph), models.float_graph
        twins = [pair.twin for pair in pairs.values()] + ([feature] if feature else [])
        self.floats = FloatTensors(graph, twins, threads, [pair.twin for pair in beside])

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models."""
        float_graph, quantized = self._models.float_graph, self._models.quantized
        floats = self.floats.read_tensors(batch)
        feed = feed_of(batch, quantized)
        names = [tap.tensor for tap in self.taps.values()]
        wanted = [*dict.fromkeys(name for name in (*names, *quantized.outputs) if name not in feed)]
        seen = feed | dict(zip(wanted, run(self._session, wanted, feed, quantized.path), strict=True))
        codes = {number: seen[tap.tensor] for number, tap in self.taps.items()}
        matched = self._models.match.outputs
        outputs = (
            [floats[float_graph.outputs[i]] for i, _ in matched],
            [seen[quantized.outputs[j]] for _, j in matched],
        )
        return Reading(floats, codes, outputs)


class OnnxView(View):
    """Sessions of both models that show numbered pairs of tensors; see ``View``.

    Where memory is short, each pair of sessions shows a group of them, and both models run once for each group.

    Attributes:
        model: The quantized model that is observed, before anything was exposed.
    """

    def __init__(
        self,
        models: PairedOnnxGraphs,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """Open the sessions; ``groups`` hold the numbers of the pairs that are shown together, else all are."""
        self._models, self.pairs = models, dict(pairs)
        self._numbers = [list(numbers) for numbers in groups] if len(groups) > 1 else [list(pairs)]
        others = pairs.values() if len(groups) > 1 else ()
        self._groups: list[_Group] = []
        for numbers in self._numbers:
            own = {number: pairs[number] for number in numbers}
            self._groups.append(_Group(models, own, first, threads, plain, others))
            plain = self._groups[0].observed.plain
        self.observed = reduce(Faithfulness.join, (group.observed for group in self._groups))
        self.model = self._groups[0].model
        self._floats = self._groups[0].floats
        self.taps = {number: tap for group in self._groups for number, tap in group.taps.items()}

    def renumber(self, numbers: Sequence[int]) -> None:
        """Keep only these pairs and count them from 0."""
        super().renumber(numbers)
        new = {old: number for number, old in enumerate(numbers)}
        self._numbers = [[new[old] for old in own if old in new] for own in self._numbers]
        for group in self._groups:
            group.taps = {new[old]: tap for old, tap in group.taps.items() if old in new}

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models; a group of tensors at a time when these are asked for, where memory is short.

        Raises:
            ModelError: One of them fails on this batch.
        """
        grouped = GroupedReading(lambda k: self._groups[k].read_tensors(batch), self._numbers, self.pairs)
        return grouped.reading(list(self.taps))

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float model alone."""
        graph = self._models.float_graph
        # A session that is asked for nothing gives everything.
        return run(self._floats.session, names, feed_of(batch, graph), graph.path) if names else []


@dataclass
class OnnxModels(Models):
    """Two graphs whose ONNX models run, are cut and are simulated; see ``Models``."""

    keeps_bound: ClassVar[bool] = True
    observes_groups: ClassVar[bool] = True

    float_graph: OnnxGraph
    quantized: OnnxGraph
    providers: list[Provider] = field(default_factory=lambda: [CPU], kw_only=True)
    """Who computes, the first that can."""

    @property
    def framework(self) -> str:
        """Name of the front end."""
        return "onnx"

    def float_reader(self, names: Sequence[str], threads: int) -> FloatReader:
        """Reads these tensors of the float model."""
        return FloatTensors(self.float_graph, names, threads).read_tensors

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> OnnxSteps:
        """The float model cut where the quantized one is seen."""
        return OnnxSteps(self, view, pairs, threads)

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both models on a batch, and the time of each operator of the quantized one."""
        return profile(self, batch, threads)

    def simulate(self, case: Case, threads: int) -> OnnxSimulated:
        """The float graph with simulated quantizers."""
        return OnnxSimulated(self, case, threads)

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> GivenSimulation:
        """The float graph with simulated quantizers, where these tensors are given."""
        return given_simulation(self, case, tensors, threads)

    def float_runner(self, threads: int) -> Runner:
        """Runs the float model."""
        return graph_runner(self.float_graph, [self.float_graph.outputs[i] for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int, changed: onnx.ModelProto | None = None) -> Runner:
        """Runs the quantized model, or a changed copy of it."""
        names = [self.quantized.outputs[j] for _, j in self.match.outputs]
        return graph_runner(self.quantized, names, threads, changed=changed)

    def run_on(self, device: str) -> None:
        """Have onnxruntime compute on a device, and note which of its providers got which nodes.

        Raises:
            ModelError: onnxruntime has no provider for it, or refuses a model.
        """
        self.providers = providers_of(device)
        if self.providers == [CPU]:
            return
        with self.as_deployed():
            for graph in (self.float_graph, self.quantized):
                session = make_session(graph.model, graph.path, 1)
                graph.notices.append(describe_assignment(graph.path.name, session))

    def as_deployed(self) -> AbstractContextManager[None]:
        """Context in which sessions are made on the chosen device."""
        return sessions_on(self.providers)

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes in the float model that hold for every batch, by shape inference."""
        return static_shapes(self.float_graph.model)

    def static_types(self, samples: int) -> tuple[Mapping[str, TensorSpec], Mapping[str, TensorSpec]]:
        """Types of the tensors of both models by type inference."""
        return static_types(self.float_graph.model, samples), static_types(self.quantized.model, samples)

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> OnnxView:
        """Both models with these pairs exposed as outputs, a group at a time where memory is short."""
        groups: list[list[int]] = []
        if self.memory is not None:
            sizes = sizes_of(pairs, self.shapes_on(first, threads), first.samples)
            groups = in_groups(sizes, self.memory) if sizes is not None else []
        return OnnxView(self, pairs, first, threads, plain, groups)

    def shapes_on(self, batch: Batch, threads: int) -> Mapping[str, Shape]:
        """Shapes of the float tensors of all pairs: as the model states them, else as one run finds them."""
        twins = {pair.twin for pair in self.pairs}
        open_ones = [name for name in twins if name not in self.shapes or None in self.shapes[name][1:]]
        if not open_ones:
            return self.shapes
        feed = feed_of(batch, self.float_graph)
        fed = {name: array.shape for name, array in feed.items()}
        return {**self.shapes, **fed, **shapes_on(self.float_graph, open_ones, feed, threads)}

    def kernel_facts(self, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
        """What the kernels of this machine and of this release add to the quantization, measured on one batch.

        Returns:
            The runtime, and how noisy its kernels are: mean d² between an execution and the graph as it is written /
            mean d² between the latter and the float model, as deployed and, where that is much, with sums that cannot
            saturate; and the first setting that takes most of it away. Figures are left out where quantization makes no
            noise.
        """
        graph = self.quantized
        if not graph.is_quantized:
            return {}
        feed = feed_of(first, graph)

        def outputs(plain: bool = False, in_float: bool = False, exact: bool = False) -> list[Array]:
            session = make_session(graph.model, graph.path, threads, plain=plain, in_float=in_float, exact=exact)
            found = dict(zip(graph.outputs, run(session, graph.outputs, feed, graph.path), strict=True))
            return [found[graph.outputs[j]] for _, j in self.match.outputs]

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

    def describe(self) -> Description:
        """What the files tell besides their graphs."""
        graph = self.quantized
        training = training_nodes(self.float_graph)
        opset = required_opset(graph.model)
        quantized = quantized_nodes(self.float_graph.model, graph.model, graph.format)
        facts = {
            "format": graph.format,
            "toolchain": " ".join(filter(None, (graph.model.producer_name, graph.model.producer_version))) or None,
            "toolchain_marks": toolchain_marks(graph.model),
            "float_nodes": quantized.in_float if quantized is not None else None,
            "quantized_types": quantized.types if quantized is not None else None,
            "opset": graph.opset,
            "required_opset": opset,
            "opset_deficit": max((opset or 0) - graph.opset, 0),
            "training_nodes": len(training),
            "first_training_node": next(iter(training), None),
        }
        versions = {"onnxruntime": ort.__version__}
        return describe_files(self, self.framework, facts, versions, half=half_tensors(graph))

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How onnxruntime computes each tensor of the quantized model, by its optimized graph."""
        return kernels_of_model(self.quantized, threads)

    def editable(self) -> "OnnxModels":
        """These models: remedies are carried out on copies of the quantized file."""
        return self


def open_models(float_path: Path, quantized_path: Path) -> OnnxModels:
    """Read both models and pair their tensors.

    Raises:
        ModelError: A model cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    float_graph = parse(float_path, load_model(float_path))
    quantized = parse(quantized_path, load_model(quantized_path))
    matched = match_files(float_graph, quantized)
    return OnnxModels(float_graph, quantized, matched, pairs_of(float_graph, quantized, matched))


def open_network(path: Path) -> Network:
    """Read one model.

    Raises:
        ModelError: It cannot be read.
    """
    graph = parse(path, load_model(path))

    def start(outputs: Sequence[str], threads: int) -> Callable[[Batch], list[Array]]:
        session = make_session(graph.model, path, threads)
        return lambda batch: run(session, outputs, feed_of(batch, graph), path)

    return Network(graph, start)
