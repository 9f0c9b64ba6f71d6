"""Carry out a change on a copy of the quantized model, or while it runs, whatever its framework."""

from importlib import import_module
from typing import Any, Protocol

from quantmedic.collectors.from_onnx.models import Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change


class Edited(Protocol):
    """A quantized model with a change carried out, for ``Models.quantized_runner``; what could not be, in words."""

    @property
    def model(self) -> Any: ...

    @property
    def unedited(self) -> tuple[str, ...]: ...


def edit(models: Models, case: Case, change: Change) -> Edited:
    """The deployed model as a remedy would leave it; see the files of the frameworks.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    found: Edited = import_module(f"quantmedic.trials.{models.framework}_edit").edit(models, case, change)
    return found


def left_integer(models: Models, case: Case, after: Any, change: Change) -> tuple[str, ...]:
    """Layers that integer kernels compute before the change and not after it, against the change."""
    found: tuple[str, ...] = import_module(f"quantmedic.trials.{models.framework}_edit").left_integer(
        models, case, after, change
    )
    return found
