"""Two torch modules that belong together: their calls as graphs, their twins, and how to run and observe them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.from_onnx.models import Models, Runner, pairs_of, refuse_swapped
from quantmedic.collectors.from_torch.calls import Interception, tensors_of
from quantmedic.collectors.from_torch.capture import ONE_KIND
from quantmedic.collectors.from_torch.inputs import TorchInputs
from quantmedic.collectors.from_torch.module import as_deployed, run_error, to_array, without_quantizers
from quantmedic.collectors.from_torch.trace import Recorder, TorchGraph, graph_of
from quantmedic.collectors.from_torch.twins import Collapsed, settle_twins
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.likeness import refuse_other_weights
from quantmedic.collectors.pair.match import kind_of, match
from quantmedic.engine.errors import DataError, ModelError, QuantmedicError

Array = NDArray[np.generic]
#: Samples of the first batch that the calls are written down with.
TRACED_SAMPLES = 2
#: Modules that a notice names.
_NAMES_TOLD = 8


@dataclass
class TorchModels(Models):
    """Two modules; see ``Models``. One batch runs at a time, for modules keep state while they run."""

    framework: ClassVar[str] = "torch"
    isolates: ClassVar[bool] = False
    steps_alone: ClassVar[bool] = False

    float_module: torch.nn.Module = field(kw_only=True)
    quantized_module: torch.nn.Module = field(kw_only=True)
    inputs: TorchInputs = field(kw_only=True)
    collapsed: dict[int, Collapsed] = field(default_factory=dict, kw_only=True)
    """Layers that a residual branch was folded into, by the index of the quantized operator."""
    memory: int | None = field(default=None, kw_only=True)
    """Bytes that the observed tensors of one batch may take; None for as many as there are."""
    lock: Any = field(default_factory=threading.RLock, kw_only=True)

    @property
    def input_specs(self) -> list[InputSpec]:
        return list(self.inputs.specs)

    @property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:  # type: ignore[override]
        graph: Any = self.float_graph
        return graph.shapes

    def bound(self, memory: int) -> None:
        self.memory = memory

    @contextmanager
    def as_deployed(self) -> Iterator[None]:
        """Context in which both modules run as deployed; they are as before afterwards."""
        with as_deployed(self.float_module, self.quantized_module):
            yield

    def view(self, *about: Any) -> Any:
        from quantmedic.collectors.from_torch.view import TorchView

        return TorchView(self, *about)

    def kernel_noise(self, *about: Any) -> None:
        return None

    def profile(self, batch: Batch, threads: int) -> Any:
        """Latency of both modules with the threads that torch has; operators are not timed one by one."""
        from quantmedic.collectors.measure.latency import Profile, latency_facts

        calls = []
        for module in (self.float_module, self.quantized_module):
            tensors = self.inputs.tensors(batch.inputs, module)
            calls.append(lambda module=module, tensors=tensors: self._timed(module, tensors))
        return Profile(latency_facts(*calls, threads=torch.get_num_threads(), batch=batch.samples))

    def _timed(self, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """One run, until its result is there."""
        with torch.no_grad():
            self.inputs.call(module, tensors)
        if next((tensor.is_cuda for tensor in tensors.values()), False):
            torch.cuda.synchronize()

    def record(self, *about: Any) -> Any:
        from quantmedic.collectors.from_torch.record import torch_record

        return torch_record(self, *about)

    def simulated(self, case: Any, threads: int) -> Any:
        from quantmedic.collectors.from_torch.simulated import TorchSimulated

        return TorchSimulated(self, case)

    def float_runner(self, threads: int) -> Runner:
        positions = [i for i, _ in self.match.outputs]
        return lambda batch: self.matched(self.run_float(batch, None), positions)

    def quantized_runner(self, threads: int, changed: Any = None) -> Runner:
        positions = [j for _, j in self.match.outputs]
        make: Callable[[], Interception | None] = changed if changed is not None else lambda: None
        return lambda batch: self.matched(self.run_quantized(batch, make()), positions)

    def run_float(self, batch: Batch, mode: Interception | None) -> list[torch.Tensor]:
        """Outputs of the float module, in the order of its graph's, under an interception.

        Raises:
            ModelError: It fails on this batch, or returns something else than on the first one.
        """
        return self._run(self.float_module, self.float_graph, batch, mode, "float model")

    def run_quantized(self, batch: Batch, mode: Interception | None) -> list[torch.Tensor]:
        """The same of the quantized module."""
        return self._run(self.quantized_module, self.quantized, batch, mode, "quantized model")

    def _run(
        self, module: torch.nn.Module, graph: Any, batch: Batch, mode: Interception | None, what: str
    ) -> list[torch.Tensor]:
        with self.lock, torch.no_grad():
            tensors = self.inputs.tensors(batch.inputs, module)
            found = tensors_of(_called(module, self.inputs, tensors, mode, what, batch.inputs))
        if len(found) != graph.returned:
            raise ModelError(
                f"the {what} returns something else from batch to batch",
                where=f"tensors: {graph.returned} on the first batch, now {len(found)}",
                help=ONE_KIND,
            )
        return [found[position] for position in graph.positions]

    def note_fast_path(self) -> None:
        """Tell which modules torch computes in one kernel when nobody looks, so that quantizers within do nothing."""
        if not torch.backends.mha.get_fastpath_enabled():
            return
        parts = self.quantized_module.named_modules()
        names = [name for name, part in parts if isinstance(part, torch.nn.TransformerEncoderLayer)]
        notice = (
            f"torch computes {', '.join(names[:_NAMES_TOLD])} in one kernel, which leaves quantizers within out: call "
            "torch.backends.mha.set_fastpath_enabled(False) to let them count"
        )
        if names and notice not in self.quantized.notices:
            self.quantized.notices.append(notice)

    @staticmethod
    def matched(outputs: Sequence[torch.Tensor], positions: Sequence[int]) -> list[Any]:
        """Outputs at these positions, as float32 arrays."""
        found = [outputs[i] for i in positions]
        return [np.asarray(to_array(t.dequantize() if t.is_quantized else t), np.float32) for t in found]


def open_torch_models(
    float_module: torch.nn.Module,
    quantized_module: torch.nn.Module,
    inputs: TorchInputs,
    first: Mapping[str, Array],
    mapping: Mapping[str, str] | None = None,
) -> TorchModels:
    """Run both modules once, write down what they compute, and pair their tensors.

    Args:
        float_module: The float module.
        quantized_module: Its quantized counterpart.
        inputs: Their inputs.
        first: A batch.
        mapping: Layers of the float module with their counterparts in the quantized one, by name, where names and
            structure leave them open.

    Raises:
        ModelError: A module fails, hides its operators, or the two do not belong together.
    """
    modules = [float_module, quantized_module]
    batch = Batch({name: array[:TRACED_SAMPLES] for name, array in first.items()})
    with as_deployed(*modules):
        graphs = [
            _graph(module, inputs, batch, what)
            for module, what in zip(modules, ("float model", "quantized model"), strict=True)
        ]
        float_graph, quantized = graphs
        quantized.notices += without_quantizers(modules[1], quantized.is_quantized)
        refuse_swapped(float_graph, quantized)
        given = _given(mapping or {}, float_graph, quantized)
        matched = match(float_graph, quantized, given, _renamed(float_graph, quantized))
        if not matched.operators:
            raise ModelError(
                "no layer of the two models matches",
                where=[f"{graph.path}: {len(graph.operators)} operators" for graph in graphs],
                help="is the quantized model made from this float model? mapping={float layer: quantized layer} "
                "tells what belongs together",
            )
        models = TorchModels(
            float_graph,
            quantized,
            matched,
            [],
            float_module=modules[0],
            quantized_module=modules[1],
            inputs=inputs,
        )
        settle_twins(models, batch)
    refuse_other_weights(float_graph, quantized, matched.operators)
    models.pairs = pairs_of(float_graph, quantized, matched)
    return models


def _graph(module: torch.nn.Module, inputs: TorchInputs, batch: Batch, what: str) -> TorchGraph:
    tensors = inputs.tensors(batch.inputs, module)
    recorder = Recorder(module)
    result = _called(module, inputs, tensors, recorder, what, batch.inputs)
    return graph_of(module, recorder.calls, tensors, result, what)


def _called(
    module: torch.nn.Module,
    inputs: TorchInputs,
    tensors: Mapping[str, torch.Tensor],
    mode: Interception | None,
    what: str,
    fed: Mapping[str, Array],
) -> Any:
    try:
        if mode is None:
            return inputs.call(module, tensors)
        with mode:
            return inputs.call(module, tensors)
    except QuantmedicError:
        raise
    except Exception as error:
        raise run_error(error, what, fed) from error


def _renamed(float_graph: TorchGraph, quantized: TorchGraph) -> dict[str, str]:
    """Float layers by quantized layers whose names differ in how modules are joined, and in what was folded in.

    Sony MCT writes ``layer1_0_conv1_bn1`` for ``layer1.0.conv1`` with the normalization behind it.
    """
    known: dict[str, list[Operator]] = {}
    for op in float_graph.operators:
        known.setdefault(_joined(op.name), []).append(op)
    found = {}
    for op in quantized.operators:
        name = _joined(op.name)
        while name and name not in known:
            name = name.rpartition("_")[0]
        twins = [twin for twin in known.get(name, []) if kind_of(twin) == kind_of(op)]
        if len(twins) == 1:
            found[op.name] = twins[0].name
    return found


def _joined(name: str) -> str:
    return name.replace(".", "_")


def _given(mapping: Mapping[str, str], float_graph: TorchGraph, quantized: TorchGraph) -> dict[str, str]:
    """Float operator by quantized operator, both by name.

    Raises:
        ModelError: A name is none of a layer.
    """
    from quantmedic.collectors.data.messages import did_you_mean

    if not isinstance(mapping, Mapping):
        raise DataError(
            "mapping is no mapping",
            where=type(mapping).__name__,
            help="write mapping={float layer: quantized layer}, both by name",
        )
    for names, graph in ((mapping.keys(), float_graph), (mapping.values(), quantized)):
        known = [op.name for op in graph.operators]
        for name in names:
            if name not in known:
                raise ModelError(
                    f"the mapping names no layer of the {graph.path}",
                    where=f"{name}{did_you_mean(name, known)}",
                    help=f"its layers are: {', '.join(known[:12])}{' …' if len(known) > 12 else ''}",
                )
    given = {theirs: mine for mine, theirs in mapping.items()}
    twice = [name for name in given if sum(name == own for own in mapping.values()) > 1]
    if twice:
        raise DataError(
            "the mapping names layers of the quantized model twice", where=twice, help="give each layer one counterpart"
        )
    return given
