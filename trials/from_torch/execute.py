"""Prescriptions for torch toolchains carried out: the printed text runs, and the module that it makes is opened.

The text runs in this process, not in one of its own as for files: modules are not pickled, and the float module and
its data are here already. It gets a copy of the float module.
"""

import contextlib
import copy
import io
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import error_text
from quantmedic.collectors.from_torch.calls import tensors_of
from quantmedic.collectors.from_torch.module import as_deployed
from quantmedic.collectors.from_torch.torch_pair import TorchPair, arrays_of, call_module
from quantmedic.collectors.measure.models import Float32, Models, Runner
from quantmedic.engine.errors import ModelError
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.execute import Installed, Made

#: Variable that holds the quantized module at the end of a prescription.
RESULT = "quantized"
#: Lines of a toolchain's complaint that are passed on.
LINES = 5


@dataclass(frozen=True)
class TorchMade(Made):
    """The module that a prescription made of the float one.

    Attributes:
        models: The pair that it was written for.
        module: The module that it made.
    """

    models: TorchPair
    module: torch.nn.Module

    def runner(self, threads: int) -> Runner:
        """Runs the module; its outputs are those of the float module, in the same order."""
        return self._outputs

    def _outputs(self, batch: Batch) -> list[Float32]:
        models, graph = self.models, self.models.float_graph
        with models.lock, torch.no_grad(), as_deployed(self.module):
            tensors = models.inputs.tensors(batch.inputs, self.module)
            result = call_module(self.module, models.inputs, tensors, None, "prescribed model", batch.inputs)
        found = tensors_of(result)
        if len(found) != graph.returned:
            raise ModelError(
                "the prescribed model returns something else than the float model",
                where=f"tensors: {graph.returned} of the float model, {len(found)} of the prescribed one",
            )
        return arrays_of(found, [graph.positions[i] for i, _ in models.match.outputs])

    @property
    def save(self) -> Callable[[Path], None] | None:
        """None: modules are returned, not written."""
        return None


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


def _as_loader(given: _Batches) -> object:
    return given


def _as_generator(given: _Batches) -> object:
    return given.lists


@dataclass(frozen=True)
class TorchExecutor(Installed):
    """Runs prescriptions for one toolchain, on the float module and the calibration data; see ``Executor``.

    Attributes:
        supply: The data in the form in which the text takes them.
    """

    supply: Callable[[_Batches], object]

    @property
    def data(self) -> str:
        """Name that the text has for the calibration data."""
        (name,) = self.supplies - {"model"}
        return name

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> TorchMade:
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
        return TorchMade(models, module)

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
    TorchExecutor("FX", "torch", frozenset({"model", "loader"}), _as_loader),
    TorchExecutor("PT2E", "torchao", frozenset({"model", "loader"}), _as_loader),
    TorchExecutor("torchao", "torchao", frozenset({"model", "loader"}), _as_loader),
    TorchExecutor("Sony MCT", "model-compression-toolkit", frozenset({"model", "gen"}), _as_generator),
)
