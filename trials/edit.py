"""Carry out a change on a copy of the quantized model, or while it runs, whatever its framework."""

from importlib import import_module

from quantmedic.collectors.front_ends import front_end_named
from quantmedic.collectors.measure.models import Edited, Fitting, Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change


def edit(models: Models, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The deployed model as a remedy would leave it; see the editors of the front ends.

    ``fitting`` holds the samples for what is learned on them.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    found: Edited = import_module(front_end_named(models.framework).editor).edit(models, case, change, fitting)
    return found


def learns(models: Models) -> bool:
    """Whether the editor of this framework can learn on samples (``Change.learned``)."""
    return bool(import_module(front_end_named(models.framework).editor).LEARNS)
