"""Printed prescriptions carried out with their own toolchain, where it runs here."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Protocol

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.front_ends import front_end_named
from quantmedic.collectors.measure.models import Edited, Models


class Executor(Protocol):
    """Carries out the text of a prescription with one toolchain."""

    @property
    def toolchain(self) -> str:
        """Its name, as in the snippets of remedies."""

    @property
    def supplies(self) -> frozenset[str]:
        """Names that the text leaves open (``given`` of the toolchain) and that it gets here."""

    def version(self) -> str | None:
        """Version of the installed toolchain; None where that is not known."""

    def missing(self) -> str | None:
        """Why it cannot run here, in words; None: it can."""

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Edited:
        """Run the text and open the model that it makes.

        Args:
            models: The pair that the prescription is for; neither model is changed.
            code: The text as it is printed.
            calibration: What the user's own reader or data loader gives, prepared for the network, in batches of one
                size; it can be read more than once.
            deadline: ``time.monotonic()`` at which to give up; None: never.

        Raises:
            ModelError: The toolchain refuses it, in its own words.
            OutOfTimeError: The deadline has passed.
        """


def find_executor(models: Models, toolchain: str) -> Executor | None:
    """The executor of a toolchain for models of this framework; None: there is none."""
    module = front_end_named(models.framework).editor.rpartition(".")[0]
    found: Sequence[Executor] = import_module(f"{module}.execute").EXECUTORS
    return next((each for each in found if each.toolchain == toolchain), None)
