"""The answer of ``quantmedic check`` in report.json: the verdict, and every line that it rests on."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.formulas.power import SampleSizes
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.rule import Severity

GateWord = Literal["ACCEPT", "REGRESSION", "INSUFFICIENT_DATA", "ANOMALOUS"]
#: Exit codes by verdict; 2 is for what could not be done.
EXIT_CODES: dict[GateWord, int] = {"ACCEPT": 0, "REGRESSION": 1, "INSUFFICIENT_DATA": 3, "ANOMALOUS": 4}
GateStatus = Literal["pass", "fail", "undecided", "anomalous", "not-judged"]
FindingStatus = Literal["new", "worse", "known"]
ExemptionStatus = Literal["active", "expires-soon", "expired", "unused", "not-judged"]


class GateLine(Contract):
    """One gate: what was measured against what the policy allows."""

    kind: Literal[
        "accuracy",
        "agreement",
        "sqnr",
        "data",
        "comparison",
        "loss",
        "harm",
        "findings",
        "coverage",
        "gain",
        "exemptions",
    ]
    name: str = Field(description="unique within a check, such as 'accuracy top1'")
    status: GateStatus
    message: str = Field(description="figure, interval and limit, or why it was not judged; lower case, no full stop")
    value: float | None = Field(default=None, description="what was measured, in the unit of the limit")
    low: float | None = Field(default=None, description="lower end of its interval")
    high: float | None = Field(default=None, description="upper end of its interval")
    limit: float | None = None
    unit: str | None = Field(default=None, description="unit of value, interval and limit")
    confidence: float | None = Field(default=None, description="coverage of the interval")
    samples: SampleSizes | None = None
    mcnemar_p: float | None = Field(
        default=None, description="exact two-sided p of McNemar's test, shown for comparison and not used"
    )
    line: int = Field(default=1, description="line of the policy that asks for it")


class CheckedFinding(Contract):
    """One finding of the diagnosis as the gate sees it."""

    rule: str
    name: str
    cause: str
    severity: Severity = Field(description="that of the cause; of its lesser rules their own")
    subject: str = Field(description="float layer, tensor, data set, output or 'model'")
    message: str
    fact: str | None = Field(default=None, description="headline fact: the first that is compared with a number")
    unit: str | None = None
    comparison: str | None = None
    value: float | None = None
    threshold: float | None = None
    before: float | None = Field(default=None, description="value in the baseline")
    status: FindingStatus = "new"
    gated: bool = Field(default=False, description="counts against the policy")
    exemption: int | None = Field(default=None, description="place of the exemption that covers it and is in force")


class ExemptionUse(Contract):
    """One exemption of the policy and what it did."""

    rule: str
    layers: tuple[str, ...]
    reason: str
    expires: str = Field(description="ISO date or never")
    status: ExemptionStatus
    days: int | None = Field(default=None, description="days until it expires; negative when it has")
    findings: int = Field(default=0, description="findings that it covers or, when expired, would cover")
    line: int = 1


class GoneFinding(Contract):
    """A finding of the baseline that is no longer there."""

    rule: str
    subject: str


class BaselineUse(Contract):
    """What became of the baseline."""

    origin: str = Field(description="file name")
    missing: bool = Field(default=False, description="the policy names a file that is not there yet: all is new")
    known: int
    worse: int
    new: int
    gone: tuple[GoneFinding, ...] = ()
    not_judged: tuple[GoneFinding, ...] = Field(default=(), description="could not be judged this time, so not gone")
    renamed: int = Field(default=0, description="layers found again under another name")


class CheckReport(Contract):
    """The answer of the gate; ``check`` in ``report.json``."""

    verdict: GateWord
    exit_code: int = Field(description="0, 1, 3 or 4: by verdict, policy and --warn-only")
    warn_only: bool = False
    static: bool = Field(default=False, description="no data was used, so only what needs none was judged")
    model: str = Field(description="file name of the quantized model")
    policy: str | None = Field(default=None, description="policy file, relative to where the check ran; None: defaults")
    location: str = Field(default="quantmedic.toml", description="text file that annotations point at")
    gates: tuple[GateLine, ...]
    findings: tuple[CheckedFinding, ...] = Field(description="of the causes that the diagnosis lists, gravest first")
    exemptions: tuple[ExemptionUse, ...] = ()
    baseline: BaselineUse | None = None

    @property
    def failed(self) -> tuple[GateLine, ...]:
        """Gates that did not pass, whatever the policy makes of it; not judged ones where the verdict rests on them."""
        statuses = ["fail", "undecided", "anomalous", *(["not-judged"] if self.verdict == "INSUFFICIENT_DATA" else [])]
        return tuple(gate for gate in self.gates if gate.status in statuses)
