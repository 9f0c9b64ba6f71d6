"""What was proven: remedies carried out on copies of the model, measured on samples that they were not fitted on."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from quantmedic.engine.case.fact_base import Key, Phrase, Prose, Words
from quantmedic.engine.case.facts import Role
from quantmedic.engine.json_record import Record

#: Kind of a trial: calibrated again with the representative inputs, repaired; the cause stands in its key.
REPAIRED_DATA = "repaired-data"
#: Kind of a trial: the smallest set of layers in float that explains the loss.
FLOAT_SET = "float-set"
#: Kind of a trial: the printed prescription was carried out with its toolchain.
PRESCRIPTION = "prescription"
#: How a gain is known: the printed prescription was run with its toolchain, the same change was made to a copy of the
#: quantized model, or the change was simulated. Only the first two prove anything.
Grade = Literal["executed", "edited", "simulated"]


class MetricTrial(Record):
    """The task metric of the judged samples; a gain is positive where the model became better."""

    name: Words[str]
    float_model: float
    before: float
    after: float
    gain: float
    low: float = Field(description="lower end of the gain's 95 % interval")
    high: float
    left: float = Field(description="what is still lost against the float model; positive is worse")
    left_low: float = Field(description="lower end of its 95 % interval")
    left_high: float

    @property
    def lost(self) -> float:
        """What these samples lost before, against the float model; positive is worse."""
        return self.left + self.gain


class TrialRecord(Record):
    """One remedy on a copy of the quantized model.

    ``key`` is that of the repair in the simulation (`engine.diagnosis.suspects.Repair`). ``after`` holds the keys of
    the repairs that the copy had already: the gain is what this one adds to them.
    """

    key: Key[str]
    kind: Words[str] = Field(description="what was changed: a kind of engine/rules/remedy_kinds.py")
    detail: Prose[str | None] = Field(
        default=None, description="what was done to the data, or to which layers, in words"
    )
    nodes: tuple[str, ...] = Field(default=(), description="nodes of the float model left in float, for no cause")
    after: Key[tuple[str, ...]] = ()
    failed: Prose[str | None] = Field(default=None, description="why there is no result")
    samples: int = 0
    sqnr_before: float | None = Field(default=None, description="output SQNR in dB before, on the judged samples")
    sqnr_after: float | None = None
    gain_db: float | None = Field(default=None, description="rise of the output's SQNR in dB")
    low_db: float | None = Field(default=None, description="lower end of the gain's 95 % interval")
    high_db: float | None = None
    share: float | None = Field(default=None, description="share of the output's noise power that is gone")
    share_low: float | None = None
    share_high: float | None = None
    agreement_before: float | None = Field(default=None, description="share of samples with the float model's class")
    agreement_after: float | None = None
    metric: MetricTrial | None = None
    left_integer: tuple[str, ...] = Field(
        default=(), description="layers that ran in integers before and do not now, without being meant to"
    )
    unedited: Prose[tuple[str, ...]] = Field(default=(), description="what of the change could not be carried out")
    seconds: float | None = Field(default=None, description="what it took, where the user limited the time")
    bound: bool = Field(default=False, description="what the remedy would repair was taken away: a most, never a proof")
    typical: bool = Field(
        default=False,
        description="the gain is that of the median sample, because few samples hold most of the noise power, so that "
        "its sum says nothing for sure",
    )

    @property
    def proven(self) -> bool:
        """The whole interval of the gain lies above zero, and the task metric did not get worse; never of a bound."""
        return not self.bound and self.low_db is not None and self.low_db > 0 and not self.is_worse

    @property
    def is_worse(self) -> bool:
        """The task metric became worse for certain."""
        return self.metric is not None and self.metric.high < 0

    @property
    def grade(self) -> Grade:
        """How the gain is known."""
        return "executed" if self.kind == PRESCRIPTION else "edited"


class ExecutionRecord(Record):
    """A printed prescription that was run with its toolchain, and the model that came out, measured."""

    toolchain: Words[str] = Field(description="as in the snippets of remedies")
    version: Words[str | None] = Field(default=None, description="version of the toolchain that ran")
    choices: Key[tuple[str, ...]] = Field(description="what it prescribes (engine.diagnosis.candidates.Choice.id)")
    titles: Phrase[tuple[str, ...]] = Field(description="the remedies in words")
    code: Prose[str] = Field(description="the text that ran, as it is printed")
    reads: Prose[str] = Field(description="what the toolchain calibrated on, in words")
    is_of_data: bool = Field(
        default=False,
        description="it asks for data prepared in another way, and ran with those at hand: that it had no effect says "
        "nothing",
    )
    trial: TrialRecord
    own: TrialRecord | None = Field(
        default=None,
        description="what it recovers beyond quantizing again with nothing changed; None: that was not run, or is this",
    )

    @property
    def credit(self) -> TrialRecord:
        """What the remedies are to be credited with: not what quantizing again recovers alone."""
        if self.own is None or (self.own.gain_db or 0.0) >= (self.trial.gain_db or 0.0):
            return self.trial
        return self.own


#: ``first``: only what leads was tried, for nothing else was asked.
Stopped = Literal["explained", "tried-all", "budget", "interrupted", "first"]


class Proven(BaseModel):
    """What case and report say alike of the trials on one case, and how the samples were split."""

    dataset: Role
    fitted: int = Field(description="samples on which remedies were fitted")
    judged: int = Field(description="other samples, on which gains were measured")
    cross_fitted: bool = Field(description="few samples: both halves were fitted on and judged on in turn")
    budget_seconds: float | None = Field(description="the user's limit; null: as many runs as on every machine")
    spent_seconds: float | None = Field(description="what all trials took, where the user limited the time")
    stopped: Stopped = Field(description="why no more was tried")
    executions: tuple[ExecutionRecord, ...] = Field(
        default=(), description="printed prescriptions that were run with their toolchain, in order"
    )
    best: int | None = Field(default=None, description="place of the execution that is prescribed; None: none healed")
    baseline: int | None = Field(
        default=None, description="place of the execution that changed nothing: the settings in force, the present data"
    )
    unexecuted: Prose[str | None] = Field(default=None, description="why no prescription, or no further one, was run")


class ProofRecord(Proven, Record):
    """All trials on one case, in the order in which they ran."""

    seed: int
    trials: tuple[TrialRecord, ...] = ()
    chain: Key[tuple[str, ...]] = Field(
        default=(), description="keys of proven repairs, each on top of those before it"
    )

    @property
    def unwritten(self) -> str:
        """Why no repaired model is written, in agreement with what the report calls proven."""
        runs = (*self.trials, *(execution.trial for execution in self.executions))
        if any(run.proven and not run.bound for run in runs):
            return "what was proven cannot be written as a model here, the prescription says what to do"
        return "no remedy was proven"

    def trial(self, key: str, after: Sequence[str] = ()) -> TrialRecord | None:
        """The trial of a repair on a copy that held others already."""
        return next((t for t in self.trials if t.key == key and t.after == tuple(after)), None)

    def last_addition(self, key: str) -> TrialRecord | None:
        """The last trial of a repair on top of others."""
        return next((t for t in reversed(self.trials) if t.key == key and t.after and t.failed is None), None)

    def links(self) -> list[TrialRecord]:
        """The trials of the chain, in order."""
        found = [self.trial(key, self.chain[:place]) for place, key in enumerate(self.chain)]
        return [trial for trial in found if trial is not None]
