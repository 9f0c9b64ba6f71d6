"""Two torch modules that belong together: opened, matched, observed and described."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.from_torch.capture import Capture
from quantmedic.collectors.from_torch.module import (
    as_deployed,
    fake_quantizers_of,
    fixed_batch_of,
    require_module,
    to_array,
    without_quantizers,
)
from quantmedic.collectors.from_torch.recorder import Recorder
from quantmedic.collectors.from_torch.simulated import TorchSimulated
from quantmedic.collectors.from_torch.torch_graph import TorchGraph
from quantmedic.collectors.from_torch.torch_inputs import TorchData, TorchInputs
from quantmedic.collectors.from_torch.torch_pair import TorchPair, arrays_of, call_module
from quantmedic.collectors.from_torch.trace import trace_graph
from quantmedic.collectors.from_torch.twins import settle_twins
from quantmedic.collectors.measure.front_end import GivenData
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.measure.memory import GroupedReading, in_groups
from quantmedic.collectors.measure.models import Description, Faithfulness, Kernel, Reading, View
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Operator, Tap
from quantmedic.collectors.pair.likeness import refuse_other_weights
from quantmedic.collectors.pair.match import kind_of, match
from quantmedic.collectors.pair.same_network import refuse_swapped
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.facts import ModelFacts, Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.garbage import give_back_freed_memory

Array = NDArray[np.generic]
#: Of each element: four of the float tensor, four of the quantized one.
_BYTES = 8
#: Batches between two times that freed memory is given back: each time costs up to a fifth of a batch.
_KEEPS_FREED = 4
#: Fake quantizers that are named.
MAX_NAMED = 8
#: Samples of the first batch that the calls are written down with.
TRACED_SAMPLES = 2


class TorchView(View):
    """Shows numbered pairs of tensors; see ``View``. Every tensor of a module can be seen."""

    def __init__(
        self,
        models: TorchPair,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
    ) -> None:
        self._models, self.pairs = models, dict(pairs)
        self._batches = 0
        self.taps: dict[int, Tap] = {number: self._readable(pair) for number, pair in self.pairs.items()}
        self._feature = feature_of(models.float_graph)
        alone = plain if plain is not None else models.quantized_runner(threads)(first)
        self.observed = Faithfulness.of_outputs(alone, self.read_tensors(first).outputs[1])
        if self.observed.simulated:
            models.note_fast_path()

    @staticmethod
    def _readable(pair: Pair) -> Tap:
        """A tensor on a grid that its kernel keeps to itself is seen before it."""
        return pair.tap if pair.tap.tensor else Tap(pair.root, pair.tap.quantizer, decoded=True)

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both modules; where memory is short, once for each group of tensors, when these are asked for.

        Raises:
            ModelError: One of them fails on this batch.
        """
        self._batches += 1
        if self._batches % _KEEPS_FREED == 0:
            give_back_freed_memory()
        groups = self._groups(batch)
        grouped = GroupedReading(lambda k: self._read_group(batch, groups[k]), groups, self.pairs)
        return grouped.reading(list(self.pairs))

    def _read_group(self, batch: Batch, numbers: Sequence[int]) -> Reading:
        """Some pairs, with the outputs and the features."""
        models = self._models
        twins = [self.pairs[number].twin for number in numbers] + ([self._feature] if self._feature else [])
        floats = self._capture(models.float_graph, [*twins, *models.float_graph.outputs], "float model")
        outputs = models.run_float(batch, floats)
        seen = self._capture(models.quantized, [self.taps[number].tensor for number in numbers], "quantized model")
        deployed = models.run_quantized(batch, seen)
        matched = models.match.outputs
        fed = {name: np.asarray(array) for name, array in batch.inputs.items()}
        codes = {**fed, **seen.found}
        return Reading(
            {**fed, **floats.found},
            {number: codes[self.taps[number].tensor] for number in numbers},
            (arrays_of(outputs, [i for i, _ in matched]), arrays_of(deployed, [j for _, j in matched])),
        )

    def _groups(self, batch: Batch) -> list[list[int]]:
        """Pairs that are observed together: all of them, or as many as the memory holds, at least one."""
        shapes = self._models.shapes
        sides = {number: [side or batch.samples for side in shapes[p.twin]] for number, p in self.pairs.items()}
        return in_groups({number: _BYTES * math.prod(own) for number, own in sides.items()}, self._models.memory)

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float module alone."""
        capture = self._capture(self._models.float_graph, names, "float model")
        self._models.run_float(batch, capture)
        return [capture.found[name] for name in names]

    @staticmethod
    def _capture(graph: TorchGraph, names: Iterable[str], what: str) -> Capture:
        return Capture(graph, [name for name in dict.fromkeys(names) if name in graph.written], what)


def _is_training(part: torch.nn.Module) -> bool:
    return isinstance(part, torch.nn.modules.batchnorm._BatchNorm | torch.nn.modules.dropout._DropoutNd)


def marks_of_module(module: torch.nn.Module, calls: Iterable[str]) -> Iterator[str]:
    """Packages whose classes a quantized module and its weights are made of, and namespaces of operators it calls."""
    kinds = [type(part) for part in module.modules()] + [type(own) for own in module.parameters()]
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    yield from (f"class of {name}" for name in sorted(packages - {"torch", "builtins", "__main__"}))
    if any(kind.__module__.startswith("torch.ao") for kind in kinds):
        yield "class of torch.ao"
    namespaces = {name.partition("::")[0] for name in calls if "::" in name}
    yield from (f"calls of {name}" for name in sorted(namespaces))


def _stored_bytes(module: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, packed ones as they are stored."""
    tensors = {id(own): own for own in (*module.parameters(), *module.buffers())}.values()
    return sum(part.numel() * part.element_size() for own in tensors for part in _plain_tensors(own))


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor of another class consists of."""
    names = tensor.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(tensor) else None
    if names is None:
        yield tensor
        return
    for name in names:
        yield from _plain_tensors(getattr(tensor, name))


def _sha256(module: torch.nn.Module) -> str:
    """Hash of all parameters and buffers by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted((*module.named_parameters(), *module.named_buffers())):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(to_array(tensor)).data)
    return digest.hexdigest()


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
        modules = (self.float_module, self.quantized_module)
        # Fake-quantized modules hold their weights in float, and integer kernels keep theirs to themselves.
        is_stored_so = any(is_traceable_wrapper_subclass(own) for own in self.quantized_module.parameters())
        sizes = [_stored_bytes(module) if is_stored_so else None for module in modules]
        training = [name for name, part in self.float_module.named_modules() if part.training and _is_training(part)]
        names = [type(module).__name__ for module in modules]
        hashes = [_sha256(module) for module in modules]
        facts = ModelFacts(
            name=names[1],
            framework="torch",
            format=self.quantized.format,
            toolchain=None,
            toolchain_marks=tuple(marks_of_module(self.quantized_module, self.quantized.calls)),
            bytes_float=sizes[0],
            bytes_quantized=sizes[1],
            size_ratio=sizes[1] / sizes[0] if sizes[0] and sizes[1] else None,
            training_nodes=len(training),
            first_training_node=next(iter(training), None),
            fake_quantizers=self.fakes.total,
            idle_fake_quantizers=len(self.fakes.idle),
            idle_fake_quantizer_names=self.fakes.idle[:MAX_NAMED],
        )
        return Description(
            facts,
            half=frozenset(self.quantized.half),
            names=(names[0], names[1]),
            hashes=(hashes[0], hashes[1]),
            versions={"torch": torch.__version__},
            # Integer kernels keep their attributes to themselves.
            attributes_of_twins=True,
        )

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How each tensor is computed; empty for fake-quantized modules, of which nobody knows what a device runs."""
        graph = self.quantized
        names = graph.producers if graph.integer else ()
        return {name: Kernel.INTEGER if name in graph.integer else Kernel.FLOAT for name in names}

    def editable(self) -> "TorchModels":
        """These models: remedies are carried out while the module runs."""
        return self

    def simulate(self, case: Case, threads: int) -> TorchSimulated:
        """The float module with simulated quantizers."""
        return TorchSimulated(self, case)


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
    return trace_graph(module, recorder.calls, tensors, result, what)


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


def open_torch(
    float_module: object, quantized_module: object, given: GivenData
) -> tuple[TorchModels, dict[Role, Dataset]]:
    """Open data and modules.

    Args:
        float_module: The float ``torch.nn.Module``.
        quantized_module: Its quantized counterpart.
        given: Data sets: functions that yield batches, iterables of batches, tensors, or files, by role.

    Raises:
        DataError: The data cannot be read or do not tell the inputs.
        ModelError: A module fails on the first batch, or the two do not belong together.
    """
    modules = require_module(float_module, "float model"), require_module(quantized_module, "quantized model")
    # Loaders draw from torch's random numbers, whose state is the user's.
    fakes = fake_quantizers_of(modules[1])
    with as_deployed(*modules):
        data = TorchData(modules[0], {role: given.sources[role] for role in sorted(given.sources, reverse=True)})
        inputs = data.inputs().in_batches_of(_samples_at_once(*modules))
        datasets = {role: given.open(role, inputs.specs, data.source(role, inputs)) for role in given.sources}
        judged = datasets.get("validation") or next(iter(datasets.values()))
        first = next(judged.batches(TRACED_SAMPLES))
        models = open_torch_models(*modules, inputs, first.inputs, given.mapping)
        models.fakes = fakes
        return models, datasets


def _samples_at_once(float_module: torch.nn.Module, quantized_module: torch.nn.Module) -> int | None:
    """Samples that both modules take at once; None: any number.

    Raises:
        ModelError: They were exported for different numbers.
    """
    sizes = [fixed_batch_of(module) for module in (float_module, quantized_module)]
    fixed = {size for size in sizes if size is not None}
    if len(fixed) > 1:
        raise ModelError(
            "the two modules were exported for batches of different sizes",
            where=f"float {sizes[0]}, quantized {sizes[1]}",
            help="export both for one size, or with torch.export.Dim.AUTO for the first axis",
        )
    return fixed.pop() if fixed else None
