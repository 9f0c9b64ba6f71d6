"""Causes of accuracy loss in report.json, and the rules that found none."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.case.facts import Scope
from quantmedic.engine.contract.advised_remedies import Advice, Withheld
from quantmedic.engine.contract.harm_report import Harm
from quantmedic.engine.contract.previous_report import Tried
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.evaluate import Evidence
from quantmedic.engine.rules.rule import SERIOUS, Severity


class LayerName(Contract):
    """One layer by its names in both models."""

    float_name: str | None
    quantized_name: str | None


class Explained(Contract):
    """A finding that vanishes when the absorbing cause is repaired."""

    rule: str
    name: str
    subject: str
    message: str


#: What decided that a cause leads, in the order in which it is asked.
LeadingStep = Literal[
    "doubt", "severity", "proof", "whole-model", "suffices", "worth", "origin", "confidence", "size", "run"
]


class Ahead(Contract):
    """Why the leading cause comes before the next one that is no other name of it."""

    of: str = Field(description="the cause that it comes before")
    by: LeadingStep = Field(
        description="the first step that differs: a doubt about the comparison; how grave it is; carried out, and not "
        "only simulated; of the whole model where most layers are degraded; heals within the bits in force; confidence "
        "times gain; where the error originates; confidence; of changes that recover the same the smaller one; "
        "its printed prescription was run, and heals"
    )
    gain_db: float | None = Field(
        default=None, description="what counts of what its change recovers, or its prescription; None: not tried"
    )
    other_gain_db: float | None = Field(default=None, description="the same of the other cause's change")


class CauseReport(Contract):
    """One judged cause of accuracy loss, with all that is known about it."""

    cause: str = Field(
        description="the fault that its rules have in common, by which comparisons know it; several rules may name one"
    )
    name: str = Field(default="", description="what reports call it: the name of its leading rule, the first of rules")
    rules: tuple[str, ...]
    severity: Severity
    harm: Harm | None = Field(
        default=None, description="what it costs now; None: no repair was tried or simulated, or harm was not measured"
    )
    doubt: str | None = Field(
        default=None,
        description="why what was measured does not tell what quantization costs; such a cause explains no loss, and "
        "the verdict is undecided where none is proven",
    )
    confidence: float = Field(
        description="probability that this is a true cause: as the rule states it, and where the noise was divided by "
        "experiment, moved by what that showed"
    )
    subjects: tuple[str, ...] = Field(description="what the rules fired on, worst first")
    layers: tuple[LayerName, ...]
    feeders: tuple[LayerName, ...] = Field(
        default=(),
        description="layers without weights that feed them, and what they cancel against: with them, the group that a "
        "remedy covers",
    )
    message: str
    evidence: tuple[Evidence, ...]
    predicted_gain_db: float | None = Field(
        default=None,
        description="rise of the output's SQNR by the first remedy that recovers about the most, simulated; without "
        "bounds, of assumed harm by what no quantizer makes, the most that there is",
    )
    predicted_low_db: float | None = None
    predicted_high_db: float | None = None
    predicted_last_gain_db: float | None = Field(
        default=None,
        description="the same where what hides it is repaired already: the fault that makes most of the noise, else "
        "all others",
    )
    measured_gain_db: float | None = Field(
        default=None, description="rise of the output's SQNR by its first remedy, carried out on a copy of the model"
    )
    measured_low_db: float | None = None
    measured_high_db: float | None = None
    measured_gain_metric: float | None = Field(
        default=None, description="what the task metric gains by it; positive is better"
    )
    proven: bool | None = Field(
        default=None, description="whether the whole interval of the measured gain lies above zero; None: not tried"
    )
    share_of_loss: float | None = Field(
        default=None, description="share of the output's noise power that goes: measured, else predicted"
    )
    remedies: tuple[Advice, ...] = Field(description="what to change, in the order of the rules")
    withheld: tuple[Withheld, ...] = Field(
        default=(), description="remedies of the rules that are not advised, and why"
    )
    absorbs: tuple[Explained, ...] = ()
    explained_by: str | None = Field(
        default=None, description="cause whose repair makes it vanish, too: another name for the same fault"
    )
    behind: str | None = Field(
        default=None,
        description="cause whose noise hides it: it shows, and its gains hold, once that one is repaired",
    )
    ahead: Ahead | None = Field(
        default=None, description="of the leading cause: why it leads; None where no other competes"
    )
    tried: tuple[Tried, ...] = Field(
        default=(), description="its remedies that were applied since the previous case without effect"
    )
    manual: str = Field(
        description="page of the manual, relative to the report's folder, without its suffix; .html lies beside "
        "index.html, .md beside report.md"
    )

    @property
    def shown(self) -> str:
        """What reports call it."""
        return self.name or self.cause

    @property
    def is_of_device(self) -> bool:
        """It is seen in what the device computed."""
        seen = ("device.", "output.device.", "device_departs")
        return any(each.fact.startswith(seen) for each in self.evidence)

    @property
    def is_serious(self) -> bool:
        """Severe enough to account for a loss."""
        return self.severity in SERIOUS

    @property
    def was_tried_in_vain(self) -> bool:
        """A remedy was tried since the previous case without effect, or all were carried out and recovered nothing."""
        return bool(self.tried) or (bool(self.remedies) and all(remedy.is_disproven for remedy in self.remedies))


class RuleNote(Contract):
    """A rule that named no cause, and why."""

    rule: str
    name: str
    scope: Scope | None = Field(default=None, description="what the rule ranges over")
    judged: int = Field(default=0, description="subjects judged")
    unknown: int = Field(default=0, description="subjects that could not be judged")
    missing: tuple[str, ...] = Field(default=(), description="facts that were not measured")
    hint: str | None = Field(default=None, description="how to supply them")
