"""Remedies carried out on torch modules: changes while the module runs, which stays as it is, and prescriptions.

The text of a prescription runs in this process, not in one of its own as for files: modules are not pickled, and the
float module and its data are here already. It gets a copy of the float module.
"""

import contextlib
import copy
import io
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import error_text
from quantmedic.collectors.from_torch.calls import tensors_of
from quantmedic.collectors.from_torch.changes import Changed, Redo, Replace, constant, on_grid
from quantmedic.collectors.from_torch.module import as_deployed
from quantmedic.collectors.from_torch.torch_graph import Place, TorchGraph
from quantmedic.collectors.from_torch.torch_models import TorchModels
from quantmedic.collectors.from_torch.torch_pair import TorchPair, arrays_of, call_module
from quantmedic.collectors.measure.models import Edited, Fitting, Float32, Models
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import OperatorPair, weight_of
from quantmedic.collectors.pair.weight_forms import forms_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.simulate import AnyGrid
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.edit import Remedies
from quantmedic.trials.execute import Executor

#: Variable that holds the quantized module at the end of a prescription.
RESULT = "quantized"
#: Lines of a toolchain's complaint that are passed on.
LINES = 5


def edit(models: TorchModels, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The deployed module, which computes while it runs what it would after the change.

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
    return Edited(lambda threads: models.quantized_runner(threads, editor.new_interception), tuple(editor.unedited))


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
        pair = OperatorPair(op, graph, models.match.operators.get(k), models.float_graph)
        forms, weight, bias = forms_of(pair), pair.weight, pair.bias
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


def run_module(module: torch.nn.Module, models: TorchPair, batch: Batch) -> list[Float32]:
    """What the module that a prescription made returns in place of the float module's outputs, in their order."""
    graph = models.float_graph
    with models.lock, torch.no_grad(), as_deployed(module):
        tensors = models.inputs.tensors(batch.inputs, module)
        result = call_module(module, models.inputs, tensors, None, "prescribed model", batch.inputs)
    found = tensors_of(result)
    if len(found) != graph.returned:
        raise ModelError(
            "the prescribed model returns something else than the float model",
            where=f"tensors: {graph.returned} of the float model, {len(found)} of the prescribed one",
        )
    return arrays_of(found, [graph.positions[i] for i, _ in models.match.outputs])


@dataclass(frozen=True)
class _Batches:
    """The calibration data as a data loader gives them; ends with ``OutOfTimeError`` when the deadline has passed."""

    models: TorchPair
    batches: Iterable[Batch]
    deadline: float | None

    def __iter__(self) -> Iterator[object]:
        for tensors in self.lists():
            # As a pair with labels, of which there are none: so one batch may have several inputs.
            yield (tuple(tensors), None) if len(tensors) > 1 else tensors[0]

    def lists(self) -> Iterator[list[torch.Tensor]]:
        """The inputs of each batch, in their order."""
        for batch in self.batches:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfTimeError
            yield list(self.models.inputs.tensors(batch.inputs, self.models.float_module).values())


@dataclass(frozen=True)
class TorchExecutor(Executor):
    """Runs prescriptions for one toolchain, on the float module and the calibration data.

    Attributes:
        supply: The data in the form in which the text takes them; a data loader where nothing is said.
    """

    supply: Callable[[_Batches], object] = lambda given: given

    @property
    def data(self) -> str:
        """Name that the text has for the calibration data."""
        (name,) = self.supplies - {"model"}
        return name

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Edited:
        """Run the text on a copy of the float module.

        Raises:
            ModelError: The toolchain refuses, or leaves no module behind.
            OutOfTimeError: The deadline has passed.
        """
        assert isinstance(models, TorchPair), "the front end of these models leads here"
        if models.inputs.by_name and len(models.inputs.names) > 1:
            raise ModelError(
                f"the prescription for {self.toolchain} hands inputs over by place, and this module takes them by name",
                where=", ".join(models.inputs.names),
                help="wrap the module in one whose forward takes them by place",
            )
        names: dict[str, object] = {
            "__name__": "prescription",
            "model": copy.deepcopy(models.float_module),
            self.data: self.supply(_Batches(models, calibration, deadline)),
        }
        with models.lock, _quiet():
            self._run(code, names)
        module = names.get(RESULT)
        if not isinstance(module, torch.nn.Module):
            raise ModelError(f"the prescription for {self.toolchain} leaves no module {RESULT!r} behind")
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTimeError
        return Edited(lambda threads: partial(run_module, module, models))

    def _run(self, code: str, names: dict[str, object]) -> None:
        try:
            # The text is that of the rules in force, with names of the user's own model: nothing foreign runs.
            exec(compile(code, "prescription.py", "exec"), names)  # noqa: S102
        except OutOfTimeError:
            raise
        except Exception as error:
            raise _refusal(self.toolchain, error) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context in which toolchains print nothing, may ask for gradients, and draw random numbers of their own."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(redirect(io.StringIO()))
        yield


def _refusal(toolchain: str, error: Exception) -> ModelError:
    """The toolchain's own words, the first lines of them."""
    lines = [line for line in error_text(error).splitlines() if line.strip()][:LINES]
    return ModelError(
        f"{toolchain} refuses the prescription", where=[f"{type(error).__name__}: {' '.join(lines[:1])}", *lines[1:]]
    )


EXECUTORS = (
    TorchExecutor("FX", "torch", frozenset({"model", "loader"})),
    TorchExecutor("PT2E", "torchao", frozenset({"model", "loader"})),
    TorchExecutor("torchao", "torchao", frozenset({"model", "loader"})),
    TorchExecutor("Sony MCT", "model-compression-toolkit", frozenset({"model", "gen"}), lambda given: given.lists),
)
REMEDIES = Remedies(edit, executors=EXECUTORS)
