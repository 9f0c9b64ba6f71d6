"""What the task loses as text: how much, with its interval, and what of it each piece of the loss budget takes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quantmedic.engine.case.budget_record import TaskMeasure
from quantmedic.engine.contract.budget_report import LossBudgetReport, LossPart, TaskShare
from quantmedic.reports.text import capital, count, metric_change, metric_label, points

AGREEMENT = "agreement with the float model"
TOO_FEW = "not judged"
INTERACTION = "lost only in combination: no source alone loses this"


@dataclass(frozen=True)
class LossWords:
    """Words for a loss in the unit of its metric."""

    measure: TaskMeasure
    whole: LossPart
    metric: str | None
    samples: int

    @property
    def label(self) -> str:
        """What is lost."""
        return AGREEMENT if self.measure == "agreement" else metric_label(self.metric).rpartition(":")[2]

    @property
    def lead(self) -> str:
        """What the quantized model loses, and whether that is told from none."""
        whole, samples = self.whole, count(self.samples, "sample")
        if whole.judged:
            return (
                f"On these {samples}, quantizing costs {self.figure(whole.lost)} of {self.label} ({self.ends(whole)})."
            )
        return (
            f"The cost in {self.label} is not divided: {samples} are too few to distinguish a loss from none "
            f"({self.ends(whole)})."
        )

    def notes(self, parts: Iterable[LossPart]) -> Iterator[str]:
        """What limits the division of the loss into parts."""
        if not all(part.judged for part in parts):
            yield (
                f"{capital(TOO_FEW)}: parts of the loss whose interval contains zero and is wider than the whole loss; "
                f"{count(self.samples, 'sample')} are too few for them."
            )

    def part(self, part: LossPart) -> str:
        """A part with its interval, or that it is not judged."""
        if not part.judged:
            return f"{TOO_FEW} ({self.ends(part)})"
        return f"{self.figure(part.lost)} ({self.ends(part)})"

    def views(self, share: TaskShare) -> str:
        """What is lost by this alone, and regained by it last."""
        if share.alone is None or share.last is None:
            return ""
        return f"alone {self._bare(share.alone.lost)}, last {self._bare(share.last.lost)}"

    def short(self, share: TaskShare | None) -> str:
        """One figure for a line of which the loss is told from none: a share, for few samples divide the loss."""
        if share is None or not share.share.judged or share.share.low <= 0:
            return ""
        return f"{100 * share.share.lost / self.whole.lost:.0f} % of the loss of {self.label}"

    def figure(self, lost: float) -> str:
        """A loss with its unit."""
        return points(lost) if self.measure == "agreement" else metric_change(lost, self.metric)

    def ends(self, part: LossPart) -> str:
        """Both ends of the interval."""
        return f"{self._bare(part.low)} … {self._bare(part.high)}"

    def _bare(self, lost: float) -> str:
        return self.figure(lost).removesuffix(" points")


def loss_words(budget: LossBudgetReport, metric: str | None) -> LossWords | None:
    """None where nothing of the task was measured."""
    task = budget.task
    return LossWords(task.measure, task.whole, metric, budget.samples) if task is not None else None
