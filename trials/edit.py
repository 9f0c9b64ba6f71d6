"""Carry out a change on a copy of the quantized model, or while it runs, whatever its framework."""

from importlib import import_module

from quantmedic.collectors.measure.models import Edited, Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change


def edit(models: Models, case: Case, change: Change) -> Edited:
    """The deployed model as a remedy would leave it; see the files of the frameworks.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    found: Edited = import_module(f"quantmedic.trials.{models.framework}_edit").edit(models, case, change)
    return found
