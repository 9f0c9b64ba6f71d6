"""The loss budget: which quantizers the noise at the output comes from, found by experiment before any rule speaks."""

from typing import Literal, Self

from pydantic import Field, model_validator

from quantmedic.engine.case.fact_base import Key, Role
from quantmedic.engine.json_record import Record

#: What makes noise: the quantizer of a network input or of an activation, stored weights, stored biases and constants,
#: or an operator that the deployed model computes otherwise than all of these say.
SourceKind = Literal["input", "activation", "weight", "bias", "kernel"]
#: How a quantizer of values makes noise: it cuts off values below, above or on both sides; its steps are coarse because
#: its range is wider than the values, or its grid does not fit their sign; or it has too few steps for them.
Mechanism = Literal["clipped-low", "clipped-high", "clipped", "range-too-wide", "grid", "step"]
#: What of the task is divided: its metric, or how often the class is that of the float model, where labels are missing.
TaskMeasure = Literal["metric", "agreement"]


class SourceRecord(Record):
    """Quantizers of one kind at one place, by index into the tables of the case."""

    kind: SourceKind
    tensors: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if not (self.operators if self.kind in ("weight", "bias") else self.tensors):
            raise ValueError(f"noise of an {self.kind} that is nowhere")
        return self


class ChangesRecord(Record):
    """What of the noise at each output goes with changes of one quantizer, in shares of the whole noise there."""

    clipped_low: tuple[float, ...] | None = Field(default=None, description="if nothing is clipped below")
    clipped_high: tuple[float, ...] | None = Field(default=None, description="if nothing is clipped above")
    heals: Key[dict[str, tuple[float, ...]]] = Field(default_factory=dict, description="by kind of change")

    def all_shares(self) -> list[tuple[float, ...]]:
        """What goes with each of the changes."""
        return [found for found in (self.clipped_low, self.clipped_high, *self.heals.values()) if found is not None]


class TaskShareRecord(Record):
    """What of the task's loss a piece takes: one number per sample, in the unit of the metric; their mean counts."""

    share: tuple[float, ...]
    alone: tuple[float, ...] = Field(description="lost where everything else is in float")
    last: tuple[float, ...] = Field(description="regained where only these sources are put in float")


class TaskLossRecord(Record):
    """What the task loses on the samples of the budget: one number per sample; their mean counts.

    The shares of all pieces and the interaction sum up to what the simulated network loses.
    """

    measure: TaskMeasure
    deployed: tuple[float, ...] = Field(description="lost by the quantized model")
    simulated: tuple[float, ...] = Field(description="lost by the simulated network")
    interaction: tuple[float, ...] = Field(description="lost by pieces together only, and by none of them by itself")


class PieceRecord(ChangesRecord):
    """A part of the noise, and the sources that make it: one, or neighbours that no run took apart.

    Shares are of the noise of the simulated network, one per judged output; the ``shares`` of all pieces sum up to 1.
    A negative one makes up for errors of others.
    """

    sources: tuple[SourceRecord, ...] = Field(min_length=1)
    shares: tuple[float, ...]
    alone: tuple[float, ...] = Field(description="noise where everything else is in float")
    last: tuple[float, ...] = Field(description="what goes where only these sources are put in float")
    hidden: ChangesRecord | None = Field(
        default=None,
        description="of a source whose noise others hide: what goes of the noise that it makes where they are in float",
    )
    task: TaskShareRecord | None = Field(default=None, description="what of the task's loss it takes")


class FamilyRecord(Record):
    """All sources of one family, weights or values, changed together: sources that hide each other heal only so."""

    kind: SourceKind
    sources: int
    last: tuple[float, ...] = Field(description="what goes where all of them are put in float")
    heals: Key[dict[str, tuple[float, ...]]] = Field(default_factory=dict, description="what goes, by kind of change")


class DepartureRecord(Record):
    """A tensor that the deployed model computes otherwise than its quantizers say."""

    tensor: int = Field(description="index into the tensors of the case")
    nmse: float = Field(
        description="the deployed tensor against its operator with the stored weights, fed with deployed values and "
        "rounded on its own grid: energy of the difference, of the signal"
    )
    shares: tuple[float, ...] = Field(description="noise that this makes at every judged output, of the deployed one's")


class OutputPart(Record):
    """What is judged by itself: an output, or the columns of an operand that it is joined of."""

    output: int
    start: int | None = None
    stop: int | None = None


class LossBudget(Record):
    """The noise at every judged output, divided among its sources; the largest piece first."""

    dataset: Role
    samples: int
    runs: int = Field(description="passes of the simulated network over the samples")
    outputs: tuple[OutputPart, ...]
    simulated: tuple[float, ...] = Field(description="noise of the simulated network per output, of its signal")
    deployed: tuple[float, ...] = Field(description="noise of the quantized model per output, of its signal")
    task: TaskLossRecord | None = Field(default=None, description="None: there is no metric, and there are no classes")
    pieces: tuple[PieceRecord, ...]
    families: tuple[FamilyRecord, ...] = ()
    departures: tuple[DepartureRecord, ...] | None = Field(
        default=None, description="where noise begins that no quantizer makes; None: not looked for"
    )
    complete: bool = Field(description="the pieces were taken apart as far as they matter")

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        shares = [self.simulated, self.deployed]
        for piece in self.pieces:
            tried = [piece, piece.hidden] if piece.hidden is not None else [piece]
            shares += [piece.shares, piece.alone, piece.last, *(own for each in tried for own in each.all_shares())]
        shares += [departure.shares for departure in self.departures or ()]
        shares += [found for family in self.families for found in (family.last, *family.heals.values())]
        losses = [(t.share, t.alone, t.last) for t in (piece.task for piece in self.pieces) if t]
        losses += [(t.deployed, t.simulated, t.interaction) for t in [self.task] if t]
        if {len(share) for share in shares} != {len(self.outputs)}:
            raise ValueError("a loss budget with shares of another number of outputs")
        if len({len(loss) for each in losses for loss in each}) > 1:
            raise ValueError("a loss budget with losses of different numbers of samples")
        return self
