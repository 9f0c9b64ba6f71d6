"""The loss budget in report.json: where the noise at the outputs comes from, whatever rules have a name for."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.case.budget_record import Mechanism, SourceKind, TaskMeasure
from quantmedic.engine.case.fact_base import Role
from quantmedic.engine.case.proof import Grade
from quantmedic.engine.json_record import Contract


class BudgetOutput(Contract):
    """What is judged by itself: an output, or what of it comes from one operand."""

    name: str
    sqnr_db: float = Field(description="SQNR of the quantized model on the samples of the budget")
    unsimulated: float = Field(
        description="share of the noise that no quantizer makes; lines of kernels say where it begins"
    )


class LossPart(Contract):
    """A part of what the task loses, in the unit of its metric, with its 95 % interval; positive means worse."""

    lost: float
    low: float
    high: float
    judged: bool = Field(description="False: the samples are too few to tell it from none, or from all of the loss")


class TaskShare(Contract):
    """What of the task's loss a line takes. Nobody's share stands for what sources lose together only."""

    share: LossPart
    alone: LossPart | None = Field(default=None, description="lost where everything else is in float")
    last: LossPart | None = Field(default=None, description="regained where only this is put in float")


class TaskLoss(Contract):
    """What the quantized model loses of its task on these samples.

    The shares of all lines, ``interaction``, ``rest`` and ``unassigned`` sum up to ``whole``.
    """

    measure: TaskMeasure = Field(description="the metric, or how often the class is that of the float model")
    whole: LossPart
    interaction: LossPart = Field(description="lost by sources together only, and by none of them by itself")
    rest: LossPart = Field(description="lost by sources too small for a line")
    unassigned: LossPart = Field(description="lost by no quantizer: kernels, or what was not found")


class BudgetLine(Contract):
    """A part of the noise and where it comes from. Shares are of the noise of the quantized model."""

    source: SourceKind = Field(description="what makes the noise")
    places: tuple[str, ...] = Field(description="layers or tensors by name, the loudest first")
    layers: tuple[str, ...] = Field(default=(), description="layers of these places, as the layer table names them")
    op_type: str | None = Field(description="operator type, where all places share one")
    words: str = Field(description="what and where, to be read")
    share: float = Field(description="share of the noise of the noisiest output; negative: it makes up for others")
    shares: tuple[float, ...] = Field(description="the same for every output, in their order")
    alone: float | None = Field(default=None, description="noise where everything else is in float, as a share")
    last: float | None = Field(default=None, description="what goes where only this is put in float, as a share")
    mechanism: Mechanism | None = Field(default=None, description="how it makes noise, where experiments show it")
    healed_by: str | None = Field(default=None, description="the first kind of change that takes most of it away")
    healed: float | None = Field(default=None, description="the share that this takes away")
    task: TaskShare | None = Field(default=None, description="what it takes of what the task loses")
    causes: tuple[str, ...] = Field(default=(), description="causes that name it, in their order")


class BudgetFamily(Contract):
    """All sources of one family, changed together: those that hide each other heal only so."""

    source: SourceKind = Field(description="weight, or activation with the inputs")
    places: int
    share: float = Field(description="share of the noise of the noisiest output")
    last: float = Field(description="what goes where all of them are put in float, as a share")
    healed_by: str | None = Field(description="the first kind of change that takes most of it away")
    healed: float | None = Field(description="the share that this takes away")


class LossBudgetReport(Contract):
    """The noise at the outputs, divided among what makes it, by experiment."""

    dataset: Role
    samples: int
    runs: int = Field(description="passes of the simulated network over these samples")
    outputs: tuple[BudgetOutput, ...] = Field(description="the noisiest first is what ``share`` of a line is about")
    by_source: dict[SourceKind, float] = Field(description="share of the noise of the noisiest output by kind")
    task: TaskLoss | None = Field(default=None, description="None: there is no metric, and there are no classes")
    lines: tuple[BudgetLine, ...] = Field(description="the loudest first")
    families: tuple[BudgetFamily, ...] = Field(
        default=(), description="weights, and values, each as a whole where it matters"
    )
    rest: float = Field(description="what is left for quantizers too small for a line")
    complete: bool = Field(description="False: the runs ended before all that matters was taken apart")

    @property
    def unsimulated(self) -> float:
        """Share of the noisiest output's noise that no quantizer makes."""
        return self.outputs[0].unsimulated

    @property
    def unplaced(self) -> tuple[float, ...]:
        """What of that has no line, by output."""
        placed = [line.shares for line in self.lines if line.source == "kernel"]
        return tuple(
            max(output.unsimulated - sum(shares[k] for shares in placed), 0.0) for k, output in enumerate(self.outputs)
        )


class PathStep(Contract):
    """A part of the network, or a change of it, and the noise of the noisiest output that goes with it."""

    level: Literal["all", "kind", "place", "change"] = Field(
        description="all: every quantizer; kind: all quantizers of one kind; place: one of them, or neighbours that "
        "were not taken apart; change: what is set otherwise"
    )
    words: str = Field(description="what it is, to be read")
    share: float = Field(description="share of the noise that goes where this is put in float, or changed")
    basis: Grade = Field(description="simulated, or by the deployed model or a prescription that was executed")
    source: SourceKind | None = Field(default=None, description="what makes the noise")
    places: tuple[str, ...] = Field(default=(), description="layers or tensors by name; empty: everywhere")
    mechanism: Mechanism | None = Field(default=None, description="how it makes noise, where experiments show it")
    lost: float | None = Field(
        default=None, description="share of what the task loses that it takes; None: not measured, or not told from 0"
    )
    change: str | None = Field(default=None, description="kind of the change")


class LossOrigin(Contract):
    """The noise of quantizers by what would have to change, in shares that add up to 1, from simulated runs."""

    file: float = Field(description="goes where all is quantized anew with the settings in force, on these data")
    settings: float = Field(description="goes with settings that lose less, too: searched ranges, scales per channel")
    bits: float = Field(description="stays in the bits in force, whatever is set")


class LossPath(Contract):
    """The deepest true statement about the loss: from all of it to the smallest part that still makes most of it."""

    steps: tuple[PathStep, ...] = Field(description="each a part of the one before it, with more than dominant_share")
    largest: PathStep | None = Field(
        default=None,
        description="the largest part of the last step, which makes no more than that; None: not known",
    )
    remedy: PathStep | None = Field(
        default=None,
        description="the prescription, where it was executed and takes most of the noise away; else what takes most "
        "of it away in simulated runs and was not tried in vain",
    )
