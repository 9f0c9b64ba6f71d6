"""Carry out a change on the quantized torch module while it runs; the module itself stays as it is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from quantmedic.collectors.from_torch.changes import Changed, Redo, Replace, constant, on_grid
from quantmedic.collectors.from_torch.graph import Place, TorchGraph
from quantmedic.collectors.from_torch.models import TorchModels
from quantmedic.collectors.measure.models import Fitting, Runner
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import bias_of, weight_of
from quantmedic.collectors.pair.weight_forms import forms_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.simulate import AnyGrid
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.trials.from_torch import execute

#: Nothing is learned on samples.
LEARNS = False
#: Toolchains whose prescriptions run here.
EXECUTORS = execute.EXECUTORS


@dataclass(frozen=True)
class Edited:
    """A quantized module that computes, while it runs, what it would after the change; see ``measure.models.Edited``.

    Attributes:
        models: The models that were edited.
        interception: Makes the interception of one run; called for every batch.
        unedited: What of the change could not be carried out, in words.
    """

    models: TorchModels
    interception: Callable[[], Changed]
    unedited: tuple[str, ...] = ()

    def runner(self, threads: int) -> Runner:
        """Runs the module under the interception."""
        return self.models.quantized_runner(threads, self.interception)

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """None: what is edited has no integer kernels."""
        return ()

    @property
    def save(self) -> Callable[[Path], None] | None:
        """None: the module itself stays as it is."""
        return None


def edit(models: TorchModels, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The deployed module as a remedy would leave it.

    Fake quantizers, and pairs that convert to codes and back, round to the new grid or hand their input on; layers get
    weights and biases made from the float module's.

    Raises:
        ModelError: The module computes with integer kernels, something would have to be learned on samples, or nothing
            of the change can be carried out.
    """
    graph = models.quantized
    if change.learned:
        raise ModelError(
            f"{' and '.join(sorted(change.learned))} of torch modules are not learned on samples here",
            where=str(graph.path),
            help="apply the remedy with the tool that quantized the module",
        )
    if graph.integer:
        raise ModelError(
            "integer kernels of torch cannot be edited",
            where=str(graph.path),
            help="give the fake-quantized module, or the one of convert_to_reference_fx, which computes the same",
        )
    editor = _Editor(models, graph)
    for i, grid in change.grids.items():
        editor.give_grid(case.record.tensors[i].name, grid)
    editor.open_kernels(case, change)
    for k in {**change.weights, **dict.fromkeys(change.biases)}:
        editor.give_weights(k, change)
    if change and not editor.arguments and not editor.results:
        raise ModelError(
            "the change cannot be carried out on the quantized module",
            where=[str(graph.path), *editor.unedited[:5]],
            help="apply the remedy with the tool that quantized the module",
        )
    return Edited(models, editor.new_interception, tuple(editor.unedited))


class _Editor:
    def __init__(self, models: TorchModels, graph: TorchGraph) -> None:
        self._models, self._graph = models, graph
        self.arguments: dict[Place, Replace] = {}
        self.results: dict[int, Redo] = {}
        self.unedited: list[str] = []
        self._values: dict[str, dict[str, torch.Tensor]] = {}

    def new_interception(self) -> Changed:
        """A new interception: one for each run."""
        return Changed(self._graph, self.arguments, self.results, "changed quantized model")

    def give_grid(self, root: str, grid: AnyGrid | None) -> None:
        """Let every quantizer of a tensor round to this grid, or not at all."""
        calls = list(self._quantizing(root))
        if not calls and any(self._rounds_inside(op) for op in self._graph.consumers.get(root, [])):
            return  # the kernels are opened
        if not calls:
            self.unedited.append(f"{root}: its quantizer is part of an operator")
            return
        replace: Replace = on_grid(grid) if grid is not None else (lambda x: x)
        for call, source in calls:
            self.results[call] = _instead(replace, source)

    def open_kernels(self, case: Case, change: Change) -> None:
        """Take kernels apart that round their input by themselves: into rounding, and a product of float weights."""
        index = {tensor.name: i for i, tensor in enumerate(case.record.tensors)}
        for op in self._graph.operators:
            weight, i = weight_of(op, self._graph), index.get(op.inputs[0]) if op.inputs else None
            if not self._rounds_inside(op) or weight is None or weight.values is None or i is None:
                continue
            if i not in change.grids and op.index not in change.weights:
                continue
            read = self._graph.read[op.index]
            grid = change.grids.get(i, grid_of(case.record.tensors[i].quantizer))
            if grid is not None:
                self.arguments |= dict.fromkeys(read.get(op.inputs[0], []), on_grid(grid))
            self.arguments |= dict.fromkeys(read.get(weight.name, []), constant(weight.values))

    def _rounds_inside(self, op: Operator) -> bool:
        """The operator reads a coded copy of its input that no call makes."""
        name = op.node.inputs[0] if op.node.inputs else ""
        return name in self._graph.codes and name not in self._graph.written

    def _quantizing(self, root: str) -> Iterator[tuple[int, dict[str, torch.Tensor] | None]]:
        """Calls whose result is the rounded tensor; of those that only see codes also where its values are kept."""
        graph = self._graph
        for name, (call, kind) in graph.quantizing.items():
            if graph.root(name) == root and kind != "encode":
                yield call, self._values_before(graph.roots[name]) if kind == "decode" else None

    def _values_before(self, codes: str) -> dict[str, torch.Tensor]:
        """Where the values before a conversion to codes are kept while the module runs."""
        if codes in self._values:
            return self._values[codes]
        kept = self._values[codes] = {}

        def keep(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
            kept["values"] = x
            return result

        self.results[self._graph.quantizing[codes][0]] = keep
        return kept

    def give_weights(self, k: int, change: Change) -> None:
        """Let an operator compute with other weights, a float bias, or both."""
        models, graph = self._models, self._graph
        op = graph.operators[k]
        forms = forms_of(op, graph, models.match.operators.get(k), models.float_graph)
        weight, bias = weight_of(op, graph), bias_of(op, graph)
        if forms is None or weight is None:
            if k in change.weights:
                self.unedited.append(f"the weights of {op.name}: their float values are not known")
            return
        if any(tap.quantizer is not None and tap.quantizer.dynamic for tap in graph.quantizers.get(op.inputs[0], [])):
            self.unedited.append(f"{op.name}: its kernel quantizes the activation along with the weights")
            return
        read = graph.read[k]
        if k in change.weights:
            values = constant(forms.own(change.weights[k]))
            self.arguments |= dict.fromkeys(read.get(weight.name, []), values)
        if k in change.biases and bias is not None and forms.stored_bias is not None:
            places = read.get(bias.name, [])
            self.arguments |= dict.fromkeys(places, constant(forms.bias(True)))
            if not places:
                self.unedited.append(f"the bias of {op.name}: it is part of a normalization")


def _instead(replace: Replace, kept: dict[str, torch.Tensor] | None) -> Redo:
    def redo(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return replace(x if kept is None else kept["values"])

    return redo
