"""Two torch modules that belong together: opened, matched, observed and described."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.from_torch.graph import TorchGraph
from quantmedic.collectors.from_torch.inputs import TorchInputs
from quantmedic.collectors.from_torch.module import as_deployed, without_quantizers
from quantmedic.collectors.from_torch.record import describe_modules, kernels_of_module
from quantmedic.collectors.from_torch.recorder import Recorder
from quantmedic.collectors.from_torch.simulated import TorchSimulated
from quantmedic.collectors.from_torch.torch_pair import TorchPair, call_module
from quantmedic.collectors.from_torch.trace import graph_of
from quantmedic.collectors.from_torch.twins import settle_twins
from quantmedic.collectors.from_torch.view import TorchView
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.measure.models import Description, Kernel
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.likeness import refuse_other_weights
from quantmedic.collectors.pair.match import kind_of, match
from quantmedic.collectors.pair.same_network import refuse_swapped
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, ModelError

Array = NDArray[np.generic]
#: Samples of the first batch that the calls are written down with.
TRACED_SAMPLES = 2


@dataclass
class TorchModels(TorchPair):
    """Two modules; see ``Models``."""

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> TorchView:
        """Both modules with the results of their calls captured."""
        return TorchView(self, pairs, first, threads, plain)

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both modules with the threads that torch has; operators are not timed one by one."""
        calls = []
        for module in (self.float_module, self.quantized_module):
            tensors = self.inputs.tensors(batch.inputs, module)
            calls.append(lambda module=module, tensors=tensors: self._run_to_end(module, tensors))
        return Profile(latency_facts(*calls, threads=torch.get_num_threads(), batch=batch.samples))

    def _run_to_end(self, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """One run, until its result is there."""
        with torch.no_grad():
            self.inputs.call(module, tensors)
        if next((tensor.is_cuda for tensor in tensors.values()), False):
            torch.cuda.synchronize()

    def describe(self) -> Description:
        """What the modules tell besides their graphs."""
        return describe_modules(self)

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How each tensor is computed; empty for fake-quantized modules, of which nobody knows what a device runs."""
        return kernels_of_module(self.quantized)

    def editable(self) -> "TorchModels":
        """These models: remedies are carried out while the module runs."""
        return self

    def simulate(self, case: Case, threads: int) -> TorchSimulated:
        """The float module with simulated quantizers."""
        return TorchSimulated(self, case)

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> None:
        """Operators of a module cannot be fed by themselves."""


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
    samples = inputs.specs[0].shape[0] or TRACED_SAMPLES
    batch = Batch({name: array[:samples] for name, array in first.items()})
    with as_deployed(float_module, quantized_module):
        float_graph = _trace(float_module, inputs, batch, "float model")
        quantized = _trace(quantized_module, inputs, batch, "quantized model")
        quantized.notices += without_quantizers(quantized_module, quantized.is_quantized)
        refuse_swapped(float_graph, quantized)
        given = _twins_of_mapping(mapping or {}, float_graph, quantized)
        matched = match(float_graph, quantized, given, _twins_by_joined_name(float_graph, quantized))
        if not matched.operators:
            raise ModelError(
                "no layer of the two models matches",
                where=[f"{graph.path}: {len(graph.operators)} operators" for graph in (float_graph, quantized)],
                help="is the quantized model made from this float model? mapping={float layer: quantized layer} "
                "tells what belongs together",
            )
        models = TorchModels(
            float_graph,
            quantized,
            matched,
            [],
            float_module=float_module,
            quantized_module=quantized_module,
            inputs=inputs,
        )
        settle_twins(models, batch)
    refuse_other_weights(float_graph, quantized, matched.operators)
    models.pairs = pairs_of(float_graph, quantized, matched)
    return models


def _trace(module: torch.nn.Module, inputs: TorchInputs, batch: Batch, what: str) -> TorchGraph:
    tensors = inputs.tensors(batch.inputs, module)
    recorder = Recorder(module)
    result = call_module(module, inputs, tensors, recorder, what, batch.inputs)
    return graph_of(module, recorder.calls, tensors, result, what)


def _twins_by_joined_name(float_graph: TorchGraph, quantized: TorchGraph) -> dict[str, str]:
    """Float layers by quantized layers whose names differ in how modules are joined, and in what was folded in.

    Sony MCT writes ``layer1_0_conv1_bn1`` for ``layer1.0.conv1`` with the normalization behind it, and ``_0_1`` for
    ``0.1``: its names do not begin with a digit.
    """
    known: dict[str, list[Operator]] = {}
    for op in float_graph.operators:
        known.setdefault(_joined_name(op.name), []).append(op)
    found = {}
    for op in quantized.operators:
        name = _joined_name(op.name)
        while name and name not in known:
            name = name.rpartition("_")[0]
        twins = [twin for twin in known.get(name, []) if kind_of(twin) == kind_of(op)]
        if len(twins) == 1:
            found[op.name] = twins[0].name
    return found


def _joined_name(name: str) -> str:
    return re.sub(r"^_(?=\d)", "", name.replace(".", "_"))


def _twins_of_mapping(mapping: Mapping[str, str], float_graph: TorchGraph, quantized: TorchGraph) -> dict[str, str]:
    """Float operator by quantized operator, both by name.

    Raises:
        ModelError: A name is none of a layer.
    """
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
