"""What was proven: remedies carried out on copies of the model, measured on samples that they were not fitted on."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.facts import Role
from quantmedic.engine.record import Record


class MetricTrial(Record):
    """The task metric of the judged samples; a gain is positive where the model became better."""

    name: str
    float_model: float
    before: float
    after: float
    gain: float
    low: float = Field(description="lower end of the gain's 95 % interval")
    high: float


class TrialRecord(Record):
    """One remedy on a copy of the quantized model.

    ``key`` is that of the repair in the simulation (`engine.suspects.Repair`), ``after`` those of the repairs that the
    copy held already: the gain is what this one adds to them.
    """

    key: str
    kind: str = Field(description="what was changed: a key of CHANGES")
    after: tuple[str, ...] = ()
    failed: str | None = Field(default=None, description="why there is no result")
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
    seconds: float = 0.0

    @property
    def proven(self) -> bool:
        """The whole interval of the gain lies above zero, and the task metric did not get worse."""
        worse = self.metric is not None and self.metric.high < 0
        return self.low_db is not None and self.low_db > 0 and not worse


Stopped = Literal["explained", "tried-all", "budget", "interrupted"]


class ProofRecord(Record):
    """All trials on one case, in the order in which they ran, and how the samples were split."""

    dataset: Role
    seed: int
    fitted: int = Field(description="samples on which remedies were fitted")
    judged: int = Field(description="samples on which gains were measured")
    cross_fitted: bool = Field(description="few samples: both halves were fitted on and judged on in turn")
    budget_seconds: float
    spent_seconds: float
    stopped: Stopped
    trials: tuple[TrialRecord, ...] = ()
