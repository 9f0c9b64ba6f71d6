"""Printed prescriptions carried out with their own toolchain, where it runs here."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Protocol

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.front_ends import front_end_named
from quantmedic.collectors.measure.host import installed_version
from quantmedic.collectors.measure.models import Edited, Models
from quantmedic.collectors.pair.graph import Graph
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.output_files import scratch_folder
from quantmedic.trials.child import run_script


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


class Made:
    """What models that a toolchain made anew of the float one have in common; see ``measure.models.Edited``."""

    unedited: tuple[str, ...] = ()

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """Not known: the toolchain decides which layers it quantizes."""
        return ()


@dataclass(frozen=True)
class Installed:
    """A toolchain that is a Python package; see ``Executor``.

    Attributes:
        toolchain: Its name in ``rules/toolchains.yaml``.
        package: What has to be installed.
        supplies: Names that a prescription leaves open and that it gets here.
    """

    toolchain: str
    package: str
    supplies: frozenset[str]

    def version(self) -> str | None:
        """Version of the package; None without it."""
        return installed_version(self.package)

    def missing(self) -> str | None:
        """Why it cannot run here; None where the package is installed."""
        return None if self.version() is not None else f"the package {self.package} is not installed"


@dataclass(frozen=True)
class ScriptExecutor(Installed, ABC):
    """Runs prescriptions as scripts in an empty folder, beside the float model and the stored batches.

    Attributes:
        prelude: Python code that defines the names that a prescription leaves open.
        made: Name of the file that a prescription writes.
    """

    prelude: str
    made: ClassVar[str]

    @abstractmethod
    def lay_out(self, models: Models, calibration: Iterable[Batch], folder: Path) -> None:
        """Write the float model and the batches into a folder."""

    @abstractmethod
    def open_made(self, models: Models, path: Path) -> Edited:
        """Read what the script wrote, which is deleted afterwards.

        Raises:
            ModelError: It is no model of this format, or lacks outputs of the float model.
        """

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Edited:
        """Run the text; see ``Executor``."""
        with scratch_folder() as folder:
            self.lay_out(models, calibration, folder)
            run_script(folder, code, self.prelude, deadline)
            if not (folder / self.made).is_file():
                raise ModelError(f"the script ended without writing {self.made}", where="prescription.py")
            return self.open_made(models, folder / self.made)


def require_as_many_outputs(made: Graph, float_graph: Graph) -> None:
    """Refuse a model that a toolchain made with other outputs than the float model.

    Raises:
        ModelError: It has.
    """
    if len(made.outputs) != len(float_graph.outputs):
        raise ModelError(
            f"the model that came out has {len(made.outputs)} outputs, the float model {len(float_graph.outputs)}"
        )


def find_executor(models: Models, toolchain: str) -> Executor | None:
    """The executor of a toolchain for models of this framework; None: there is none."""
    found: Sequence[Executor] = getattr(import_module(front_end_named(models.framework).editor), "EXECUTORS", ())
    return next((each for each in found if each.toolchain == toolchain), None)
