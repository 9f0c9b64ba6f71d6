"""What trials consist of: tasks that depend on nothing but their own text, wherever they are carried out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import QuantmedicError, failure_in_words
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.bench import Measured, OutOfTimeError
from quantmedic.trials.layer_search import SimulateElsewhere
from quantmedic.trials.split import Pool


@dataclass(frozen=True)
class EditTask:
    """A change on a copy of the quantized model, measured on the judged samples of one fold.

    Attributes:
        fold: Number of the fold; what is learned is learned on its fitted samples.
        change: Fitted to these as well.
    """

    fold: int
    change: Change


@dataclass(frozen=True)
class TextTask:
    """A prescription run as it is printed, and the model that comes out, measured.

    Attributes:
        toolchain: Whose text it is.
        code: The text.
        fold: It reads the fitted samples of this fold, and its judged ones measure the model; None: it reads the
            representative set, and all judged samples measure it.
        pool: These samples measure it instead; None: those of the folds.
    """

    toolchain: str
    code: str
    fold: int | None
    pool: Pool | None = None


Task = EditTask | TextTask


@dataclass(frozen=True)
class Outcome:
    """What came of a task.

    Attributes:
        found: The changed model on the samples of each bench that it was measured on.
        left_integer: See ``Edited.left_integer``.
        unedited: See ``Edited.unedited``.
        failed: Why there is nothing of all this.
        seconds: What it took.
    """

    found: tuple[Measured, ...] = ()
    left_integer: tuple[str, ...] = ()
    unedited: tuple[str, ...] = ()
    failed: str | None = None
    seconds: float = 0.0


class ElsewhereError(QuantmedicError):
    """Another machine can carry out no task at all, or must not."""


class Elsewhere(Protocol):
    """Other machines that have the same models and samples."""

    def results(self, tasks: Sequence[Task], ahead: Iterator[Task], seconds: float | None) -> list[Outcome]:
        """What comes of some tasks, in their order; up to the first that fails.

        Args:
            tasks: What is needed now.
            ahead: What is likely to be needed next: machines that would be idle begin with it.
            seconds: Time for it; None: no clock ends it.

        Raises:
            OutOfTimeError: They took longer.
            ElsewhereError: A machine cannot work.
        """

    def simulation(self, least_db: float) -> SimulateElsewhere:
        """Simulates batches of the search for layers in float that reaches this output SQNR.

        Raises:
            ElsewhereError: A machine cannot work.
        """


#: Opens the other machines: a case, the samples that are kept in memory, and whether the task metric is measured.
OpenElsewhere = Callable[[Case, Pool, bool], Elsewhere]


def attempt(work: Callable[[], Outcome]) -> Outcome:
    """What comes of a task: one that fails, for whatever reason, must not cost what was measured before.

    Raises:
        OutOfTimeError: The deadline has passed.
    """
    try:
        return work()
    except OutOfTimeError:
        raise
    except Exception as error:
        return Outcome(failed=failure_in_words(error))


def until_one_fails(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """What comes of the tasks of one trial, up to the first that fails; none behind it is asked for."""
    found = list[Outcome]()
    for outcome in outcomes:
        found.append(outcome)
        if outcome.failed is not None:
            break
    return found
