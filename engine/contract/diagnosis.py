"""The whole answer, as written to report.json."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from quantmedic.engine.case.facts import DatasetFacts, MetricFacts, ModelFacts, OutputFacts
from quantmedic.engine.case.records import ImportRecord
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.contract.advised_remedies import Prescription, Proof, RemedyPair
from quantmedic.engine.contract.budget_report import LossBudgetReport, LossOrigin, LossPath
from quantmedic.engine.contract.causes import CauseReport, RuleNote
from quantmedic.engine.contract.check_report import CheckReport
from quantmedic.engine.contract.harm_report import Undecided
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.contract.previous_report import Previous
from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.rulebase import Threshold
from quantmedic.engine.rules.toolchain import Chosen

SCHEMA_VERSION = "1.0"
#: Causes that the short form of a diagnosis names.
REPR_CAUSES = 3
Verdict = Literal["healthy", "undecided", "degraded", "not-comparable", "failed"]
DropClass = Literal["large", "moderate", "small", "none"]


class EvidenceStrength(Contract):
    """How sure the drop itself is."""

    statement: Literal["proven", "unproven", "not-measured"]
    samples: int | None = None
    drop: float | None = None
    low: float | None = None
    high: float | None = None


AdvicePlace = Literal["first", "open", "folded"]


class Diagnosis(Contract):
    """The answer: this is ``report.json``."""

    schema_version: str = SCHEMA_VERSION
    quantmedic_version: str
    verdict: Verdict
    gate: str | None = Field(default=None, description="verdict of quantmedic check; None where none was asked for")
    check: CheckReport | None = Field(default=None, description="every gate that this verdict rests on")
    undecided: Undecided | None = Field(
        default=None, description="why it is not known whether a loss matters; None with any other verdict"
    )
    drop_class: DropClass | None
    evidence_strength: EvidenceStrength
    causes: tuple[CauseReport, ...]
    passed: tuple[RuleNote, ...]
    not_judged: tuple[RuleNote, ...]
    not_applicable: tuple[RuleNote, ...]
    ignored: tuple[RuleNote, ...]
    advice: tuple[str, ...] = Field(description="general manual pages, in the order in which to read them")
    advice_place: AdvicePlace | None = Field(
        default=None,
        description="where they stand: first, where every cause that accounts for the loss was tried without effect; "
        "open, where no cause accounts for it; folded below causes that do. None without pages",
    )
    layers: tuple[LayerRow, ...]
    model: ModelFacts
    metrics: MetricFacts
    outputs: tuple[OutputFacts, ...]
    datasets: tuple[DatasetFacts, ...]
    histograms: tuple[Histogram, ...] = ()
    loss_budget: LossBudgetReport | None = Field(
        default=None, description="where the noise at the outputs comes from; None where it was not measured"
    )
    loss_origin: LossOrigin | None = Field(
        default=None, description="that noise by what would have to change; None where that was not simulated"
    )
    loss_path: LossPath | None = Field(
        default=None, description="the deepest part that makes most of that noise, and what heals it; None as above"
    )
    pair: RemedyPair | None = Field(
        default=None, description="two remedies that are needed together; None where one suffices, or nothing shows it"
    )
    proof: Proof | None = Field(default=None, description="what was tried on the model itself, if that was asked for")
    toolchain: Chosen | None = Field(default=None, description="toolchain that the prescription is written for")
    prescription: Prescription | None = Field(
        default=None, description="what to change, as one configuration; None where nothing needs to change"
    )
    settings_in_force: SettingsInForce | None = Field(
        default=None, description="settings that the quantized model shows; None where there is no quantized model"
    )
    previous: Previous | None = Field(
        default=None, description="what changed since the previous case, if one was given"
    )
    thresholds: tuple[Threshold, ...]
    warnings: tuple[str, ...]
    imports: tuple[ImportRecord, ...] = Field(default=(), description="files of the toolchain that were read")
    run: Mapping[str, Any] = Field(description="versions, options, file names and hashes that gave these facts")

    def __repr__(self) -> str:
        """Verdict, model and causes; all of it is what a report shows."""
        names = ", ".join(f"{cause.cause} ({cause.severity})" for cause in self.causes[:REPR_CAUSES])
        more = f" and {len(self.causes) - REPR_CAUSES} more" if len(self.causes) > REPR_CAUSES else ""
        return f"<Diagnosis of {self.model.name or 'a model'}: {self.verdict}; causes: {names or 'none'}{more}>"

    __str__ = __repr__
