"""From findings to a diagnosis: causes grouped, ranked, and freed of what they explain."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from pydantic import Field

from quantmedic.engine.case.facts import (
    FLOAT_ALONE,
    CaseFacts,
    DatasetFacts,
    ErrorFacts,
    LayerFacts,
    MetricFacts,
    ModelFacts,
    OutputFacts,
    ReportedFacts,
    Role,
    Scope,
    TensorFacts,
    WeightFacts,
)
from quantmedic.engine.case.proof import ProofRecord, TrialRecord
from quantmedic.engine.case.records import IMPORTED, ImportRecord, SimulationRecord
from quantmedic.engine.diagnosis.advice import Advice, Recovery, Withheld, advise
from quantmedic.engine.diagnosis.change import Change
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, Prediction, is_faithful, predict
from quantmedic.engine.diagnosis.prescription import Prescription
from quantmedic.engine.diagnosis.previous import Before, Previous, Tried, compare, rank_tried
from quantmedic.engine.diagnosis.proved import Proof, proof_of
from quantmedic.engine.diagnosis.suspects import Repair, Repairs, Suspect, chosen_repairs, last_gain, suspects_of
from quantmedic.engine.formulas.tensor_histogram import Histogram
from quantmedic.engine.garbage import uncollected
from quantmedic.engine.gate.records import CheckReport
from quantmedic.engine.record import Contract
from quantmedic.engine.rules.evaluate import Evidence, Finding, RuleResult, evaluate
from quantmedic.engine.rules.rule import BOUNDS, SEVERITIES, RuleBase, Severity, Threshold
from quantmedic.engine.rules.toolchain import Chosen

SCHEMA_VERSION = "1.0"
Verdict = Literal["healthy", "degraded", "not-comparable", "failed"]
DropClass = Literal["large", "moderate", "small", "none"]
GLOBAL_SCOPES = ("model", "dataset")
#: Decibels that a cause counts for where nothing could be simulated.
PRIOR_DB: Mapping[Severity, float] = {"high": 12.0, "medium": 6.0, "low": 0.5, "info": 0.0}
#: What a cause in the data or the model as a whole counts more: ranges that suit the data follow from them.
GLOBAL_WEIGHT, GLOBAL_WEIGHT_LARGE_DROP = 1.2, 1.5


_NOTHING_REPORTED = ReportedFacts()


class EvidenceRow(Contract):
    """A fact's value against the threshold that it was compared with."""

    fact: str
    value: Any
    comparison: str = Field(description="operator of the rule; 'shown' where the value is context, not compared")
    threshold: Any
    source: str | None = Field(default=None, description="where the threshold comes from")
    subject: str = Field(description="layer, tensor, data set or output that the value was measured on")


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


class CauseReport(Contract):
    """One judged cause of accuracy loss, with all that is known about it."""

    cause: str
    rules: tuple[str, ...]
    severity: Severity
    confidence: float = Field(description="probability that this is a real cause; stated by the rule")
    subjects: tuple[str, ...] = Field(description="what the rules fired on, worst first")
    layers: tuple[LayerName, ...]
    feeders: tuple[LayerName, ...] = Field(
        default=(), description="layers without weights that feed them: with them, the group that a remedy covers"
    )
    message: str
    evidence: tuple[EvidenceRow, ...]
    predicted_gain_db: float | None = Field(
        default=None,
        description="rise of the output's SQNR by the first remedy that recovers about the most; simulated",
    )
    predicted_low_db: float | None = None
    predicted_high_db: float | None = None
    predicted_last_gain_db: float | None = Field(
        default=None, description="the same where the other causes are repaired already: what they hide"
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
    tried: tuple[Tried, ...] = Field(
        default=(), description="its remedies that were applied since the previous case without effect"
    )
    manual: str = Field(description="page of the manual, relative to the report's folder, without its suffix")


class RuleNote(Contract):
    """A rule that named no cause, and why."""

    rule: str
    name: str
    scope: Scope | None = Field(default=None, description="what the rule ranges over")
    judged: int = Field(default=0, description="subjects judged")
    unknown: int = Field(default=0, description="subjects that could not be judged")
    missing: tuple[str, ...] = Field(default=(), description="facts that were not measured")
    hint: str | None = Field(default=None, description="how to supply them")


class ErrorRow(Contract):
    """The errors of one layer's output on one data set."""

    samples: int | None = None
    rounding: ErrorFacts
    accumulated: ErrorFacts
    operator: ErrorFacts
    step: ErrorFacts = ErrorFacts()


class GroupRow(Contract):
    """Weights of one layer of a checkpoint, by groups that share a scale."""

    size: int | None
    worst_channel_sqnr_db: float | None
    worst_group_sqnr_db: float | None
    worst_group: str | None = Field(description="output channel / group")
    dead: int | None
    outliers: int | None = Field(description="groups whose range one weight takes")


class LayerRow(Contract):
    """One line of the layer table."""

    index: int
    name: str
    float_name: str | None
    quantized_name: str | None
    op_type: str
    executed_as: str | None
    bits: int | None
    scale: float | None
    zero_point: int | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    weight_bits: int | None
    weight_granularity: str | None
    weight_sqnr_db: float | None
    degraded: bool | None
    born: bool | None = Field(default=None, description="degraded although none of its inputs is")
    added_nmse: float | None = Field(
        default=None, description="operator nmse, else accumulated nmse less the largest of its inputs"
    )
    amplification: float | None = Field(
        default=None, description="accumulated nmse over the largest of its inputs, on the set judged"
    )
    representative: ErrorRow
    validation: ErrorRow
    groups: GroupRow | None = Field(default=None, description="where checkpoints were compared")
    operations: int | None = None
    time_ms: float | None = None
    time_share: float | None = None
    reported: ReportedFacts | None = Field(default=None, description="what a file of the toolchain reports of it")
    findings: tuple[str, ...] = ()


class EvidenceStrength(Contract):
    """How sure the drop itself is."""

    statement: Literal["proven", "unproven", "not-measured"]
    samples: int | None = None
    drop: float | None = None
    low: float | None = None
    high: float | None = None


class Diagnosis(Contract):
    """The answer: this is ``report.json``."""

    schema_version: str = SCHEMA_VERSION
    quantmedic_version: str
    verdict: Verdict
    gate: str | None = Field(default=None, description="verdict of quantmedic check; None where none was asked for")
    check: CheckReport | None = Field(default=None, description="every gate that this verdict rests on")
    drop_class: DropClass | None
    evidence_strength: EvidenceStrength
    causes: tuple[CauseReport, ...]
    passed: tuple[RuleNote, ...]
    not_judged: tuple[RuleNote, ...]
    not_applicable: tuple[RuleNote, ...]
    ignored: tuple[RuleNote, ...]
    advice: tuple[str, ...] = Field(description="general manual pages, in the order in which to read them")
    layers: tuple[LayerRow, ...]
    model: ModelFacts
    metrics: MetricFacts
    outputs: tuple[OutputFacts, ...]
    datasets: tuple[DatasetFacts, ...]
    histograms: tuple[Histogram, ...] = ()
    proof: Proof | None = Field(default=None, description="what was tried on the model itself, if that was asked for")
    toolchain: Chosen | None = Field(default=None, description="toolchain that the prescription is written for")
    prescription: Prescription | None = Field(
        default=None, description="what to change, as one configuration; None where nothing needs to change"
    )
    previous: Previous | None = Field(
        default=None, description="what changed since the previous case, if one was given"
    )
    thresholds: tuple[Threshold, ...]
    warnings: tuple[str, ...]
    imports: tuple[ImportRecord, ...] = Field(default=(), description="files of the toolchain that were read")
    run: Mapping[str, Any] = Field(description="versions, options, file names and hashes that gave these facts")


@uncollected
def diagnose(
    base: RuleBase,
    facts: CaseFacts,
    repairs: Repairs,
    repair: Callable[[Change, Prediction | None], CaseFacts],
    *,
    simulation: SimulationRecord | None = None,
    proof: ProofRecord | None = None,
    version: str,
    warnings: Iterable[str] = (),
    imports: Iterable[ImportRecord] = (),
    run: Mapping[str, Any] | None = None,
    histogram: Callable[[TensorFacts], Histogram | None] = lambda tensor: None,
    previous: Before | None = None,
) -> Diagnosis:
    """Judge all rules and assemble the report.

    Args:
        base: Rules, thresholds and remedies in force.
        facts: The measured facts.
        repairs: Gives the changes that would repair the findings of one cause.
        repair: Gives the facts that would be measured after a change, whose simulated outcome it gets where known.
        simulation: What simulated runs of these changes gave.
        proof: What these changes gave on copies of the quantized model.
        version: Version of quantmedic, for the report.
        warnings: Notices of the collectors.
        imports: Files of the toolchain that were read.
        run: What produced the facts.
        histogram: Gives the histogram of a tensor, for layers flagged by a rule about a distribution.
        previous: The case before a remedy was applied; what was tried without effect is ranked down.
    """
    results = evaluate(base, facts)
    suspects = suspects_of(results, repairs)
    outcomes = _outcomes(suspects, _trusted(simulation), proof, base)
    size = drop_class(facts.model.metric, base)
    causes = _absorb(_rank(suspects, outcomes, facts, base, size), outcomes, facts, base, size, repair)
    past = compare(previous, facts, base) if previous is not None else None
    causes = rank_tried(causes, past) if past is not None else causes
    return Diagnosis(
        quantmedic_version=version,
        verdict=_verdict(causes, facts, size),
        drop_class=size,
        evidence_strength=evidence_strength(facts.model.metric),
        causes=causes,
        passed=_notes(results, "passed", base),
        not_judged=_notes(results, "not-judged", base),
        not_applicable=_notes(results, "not-applicable", base),
        ignored=tuple(RuleNote(rule=rule.id, name=rule.name, scope=rule.scope) for rule in base.ignored),
        advice=_advice(tuple(cause for cause in causes if not cause.tried), facts.model, size),
        layers=_layer_rows(facts, results),
        model=facts.model,
        metrics=facts.model.metric,
        outputs=facts.outputs,
        datasets=facts.datasets,
        histograms=_histograms(results, facts, histogram),
        proof=proof_of(proof, suspects, causes),
        previous=past,
        thresholds=tuple(base.thresholds.values()),
        warnings=tuple(warnings),
        imports=tuple(imports),
        run=run or {},
    )


def drop_class(metric: MetricFacts, base: RuleBase) -> DropClass | None:
    """Size of the drop in relative points, None where no metric was measured.

    ``none`` when the drop's interval includes zero; else the limits are the thresholds drop_large and drop_moderate.
    """
    if metric.drop is None or metric.drop_low is None:
        return None
    if metric.drop_low <= 0:
        return "none"
    size = metric.drop if metric.name in ("top1", "top5") else (metric.relative_drop or 0.0)
    if size > base.threshold("drop_large"):
        return "large"
    return "moderate" if size > base.threshold("drop_moderate") else "small"


def evidence_strength(metric: MetricFacts) -> EvidenceStrength:
    """``proven`` only where the whole interval of the drop lies above zero."""
    if metric.drop is None:
        return EvidenceStrength(statement="not-measured")
    proven = metric.drop_low is not None and metric.drop_low > 0
    return EvidenceStrength(
        statement="proven" if proven else "unproven",
        samples=metric.samples,
        drop=metric.drop,
        low=metric.drop_low,
        high=metric.drop_high,
    )


class _Outcome(NamedTuple):
    """What is known of a suspect's remedies: simulated and measured by kind, and of the one that stands for it.

    ``alone`` and ``last`` are simulated, on the model as it is and after the other causes' repairs; ``trial`` and
    ``added`` were measured on copies, on the model as it is and on top of proven repairs.
    """

    remedies: Mapping[str, Prediction]
    trials: Mapping[str, TrialRecord]
    repair: Repair | None
    alone: Prediction | None
    last: Prediction | None
    trial: TrialRecord | None
    added: TrialRecord | None

    @property
    def change(self) -> Change | None:
        """What the repair changes."""
        return self.repair.change if self.repair is not None else None

    @property
    def proven(self) -> bool | None:
        """Whether a gain was proven; None where nothing was measured."""
        found = [trial.proven for trial in (self.trial, self.added) if trial is not None]
        return any(found) if found else None

    def is_chosen(self, advice: Advice) -> bool:
        """The advice is of the kind that stands for the suspect."""
        known = advice.simulate in self.remedies or advice.simulate in self.trials
        return self.repair is not None and known and advice.simulate == self.repair.kind

    @property
    def mean_gain_db(self) -> float | None:
        """The mean of what the repair recovers first and last: what it is worth whatever else is repaired."""
        return sum(self._gains) / len(self._gains) if self._gains else None

    @property
    def gain_db(self) -> float | None:
        """What the repair recovers, alone or, where other faults hide it, after theirs."""
        return max(self._gains, default=None)

    @property
    def _gains(self) -> list[float]:
        """Measured, else simulated: first and last."""
        pairs = ((self.trial, self.alone), (self.added, self.last))
        best = [measured if measured is not None else simulated for measured, simulated in pairs]
        return [found.gain_db for found in best if found is not None and found.gain_db is not None]


def _trusted(simulation: SimulationRecord | None) -> SimulationRecord | None:
    """The simulated runs, unless the simulated network is another than the deployed one."""
    return simulation if simulation is not None and is_faithful(simulation) else None


def _outcomes(
    suspects: Iterable[Suspect], simulation: SimulationRecord | None, proof: ProofRecord | None, base: RuleBase
) -> dict[str, _Outcome]:
    suspects = list(suspects)
    every = chosen_repairs(suspects, simulation) if simulation is not None else []
    found = {}
    for suspect in suspects:
        repair = suspect.chosen(simulation, proof)
        known = {r.kind: p for r in suspect.repairs if (p := predict(simulation, r.key)) is not None}
        trials = {r.kind: t for r in suspect.repairs if proof is not None and (t := proof.trial(r.key)) is not None}
        alone = known.get(repair.kind) if repair is not None else None
        last = last_gain(repair, every, simulation, base) if repair is not None and simulation is not None else None
        trial = trials.get(repair.kind) if repair is not None else None
        added = proof.added(repair.key) if repair is not None and proof is not None else None
        found[suspect.cause] = _Outcome(known, trials, repair, alone, last, trial, added)
    return found


def _cause(findings: Sequence[Finding], base: RuleBase, facts: CaseFacts) -> CauseReport:
    ordered = sorted(findings, key=lambda f: (SEVERITIES.index(f.rule.severity), -_excess(f)))
    lead = ordered[0]
    names = {layer.name: layer for layer in facts.layers}
    layers = dict.fromkeys(finding.layer for finding in ordered if finding.layer)
    remedies, withheld = advise(ordered, base, facts)
    feeders = dict.fromkeys(f for name in layers if name in names for f in names[name].feeders if f not in layers)
    return CauseReport(
        cause=lead.rule.cause,
        rules=tuple(dict.fromkeys(f.rule.id for f in ordered)),
        severity=lead.rule.severity,
        confidence=max(f.rule.confidence for f in ordered),
        subjects=tuple(dict.fromkeys(f.subject for f in ordered)),
        layers=tuple(_layer_name(name, names) for name in layers),
        feeders=tuple(_layer_name(name, names) for name in feeders),
        message=lead.message,
        evidence=tuple(_row(e) for finding in ordered for e in finding.evidence if _tells(e)),
        remedies=remedies,
        withheld=withheld,
        manual=f"manual/{lead.rule.id}",
    )


def _layer_name(name: str, layers: Mapping[str | None, LayerFacts]) -> LayerName:
    if name not in layers:
        return LayerName(float_name=name, quantized_name=None)
    return LayerName(float_name=layers[name].float_name, quantized_name=layers[name].quantized_name)


def _excess(finding: Finding) -> float:
    """How far the finding's worst numeric fact lies beyond its threshold, in thresholds: orders subjects."""
    return max(
        (
            abs(e.value - e.threshold) / (abs(e.threshold) or 1.0)
            for e in finding.evidence
            if e.op in ("gt", "ge", "lt", "le") and _is_number(e.value) and _is_number(e.threshold)
        ),
        default=0.0,
    )


def _tells(evidence: Evidence) -> bool:
    """A measurement, not a selector: neither "is measured" nor the subject's own name."""
    return evidence.op != "known" and evidence.value != evidence.subject


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _foretold(cause: CauseReport, outcome: _Outcome, base: RuleBase) -> CauseReport:
    """A cause with what its remedies recover; one whose repair recovers nothing at the output is of low severity."""
    gain = outcome.gain_db
    if gain is None:
        return cause
    remedies, harmful = _weighed(cause, outcome, base)
    idle = gain < base.threshold("negligible_gain_db") and cause.severity in ("high", "medium")
    return cause.model_copy(
        update={
            "severity": "low" if idle else cause.severity,
            **_predicted(outcome),
            **_measured(outcome),
            "remedies": remedies,
            "withheld": (*cause.withheld, *harmful),
        }
    )


def _predicted(outcome: _Outcome) -> dict[str, Any]:
    alone = outcome.alone
    if alone is None:
        return {}
    return {
        "predicted_gain_db": alone.gain_db,
        "predicted_low_db": alone.low_db,
        "predicted_high_db": alone.high_db,
        "predicted_last_gain_db": outcome.last.gain_db if outcome.last is not None else None,
        "share_of_loss": alone.share,
    }


def _measured(outcome: _Outcome) -> dict[str, Any]:
    trial = outcome.trial
    if trial is None or trial.failed is not None:
        return {}
    return {
        "measured_gain_db": trial.gain_db,
        "measured_low_db": trial.low_db,
        "measured_high_db": trial.high_db,
        "measured_gain_metric": trial.metric.gain if trial.metric is not None else None,
        "proven": outcome.proven,
        "share_of_loss": trial.share,
    }


def _weighed(cause: CauseReport, outcome: _Outcome, base: RuleBase) -> tuple[tuple[Advice, ...], tuple[Withheld, ...]]:
    """Remedies with what they recover, the chosen one first; one that makes the output noisier is held back."""
    kept: list[Advice] = []
    held: list[Withheld] = []
    for advice in cause.remedies:
        known, trial = outcome.remedies.get(advice.simulate or ""), outcome.trials.get(advice.simulate or "")
        tried = trial is not None and trial.gain_db is not None
        gain = trial.gain_db if trial is not None and tried else known.gain_db if known is not None else None
        if gain is None or gain >= -base.threshold("negligible_gain_db"):
            predicted = _recovery(known, advice.simulate) if known is not None else None
            measured = trial if advice.simulate not in BOUNDS else None  # The remedy itself was not tried.
            kept.append(advice.model_copy(update={"predicted": predicted, "measured": measured}))
        else:
            because = f"{'tried' if tried else 'simulated'}, it makes the output {-gain:.1f} dB noisier"
            held.append(Withheld(id=advice.id, title=advice.title, because=because, layers=advice.layers))
    return tuple(sorted(kept, key=outcome.is_chosen, reverse=True)), tuple(held)


def _recovery(known: Prediction, simulated: str | None) -> Recovery:
    return Recovery(
        gain_db=known.gain_db,
        low_db=known.low_db,
        high_db=known.high_db,
        share=known.share,
        bound=simulated in BOUNDS,
    )


def _row(evidence: Evidence) -> EvidenceRow:
    return EvidenceRow(
        fact=evidence.fact,
        value=evidence.value,
        comparison=evidence.op,
        threshold=evidence.threshold,
        source=evidence.source,
        subject=evidence.subject,
    )


def _rank(
    suspects: Iterable[Suspect],
    outcomes: Mapping[str, _Outcome],
    facts: CaseFacts,
    base: RuleBase,
    size: DropClass | None,
) -> list[tuple[CauseReport, Suspect]]:
    """The cause first whose repair recovers most of the output error, times the confidence in it; proven ones lead.

    Severe doubts about sanity come first, since they may explain everything else. Data and the model as a whole count
    more than a layer, and the more so the larger the drop. Where nothing could be simulated, severity speaks, they lead
    if most layers are degraded, and among layers those where the error is born.
    """
    born = {layer.name for layer in facts.layers if layer.born}
    share = facts.model.degraded_share
    weight = GLOBAL_WEIGHT_LARGE_DROP if size == "large" else GLOBAL_WEIGHT
    widespread = share is not None and share > base.threshold("degrade_layer_ratio")

    def key(item: tuple[CauseReport, Suspect]) -> tuple[Any, ...]:
        cause, suspect = item
        rules = [f.rule for f in suspect.findings]
        serious = cause.severity in ("high", "medium")
        spread = serious and _is_spread(suspect)
        gain = outcomes[cause.cause].mean_gain_db
        worth = PRIOR_DB[cause.severity] if gain is None else cause.confidence * min(gain, ENOUGH_DB)
        return (
            not (cause.severity == "high" and any(rule.family == "sanity" for rule in rules)),
            not outcomes[cause.cause].proven,
            not serious,
            not (spread and widespread and gain is None),
            -worth * (weight if spread else 1.0),
            not spread,
            not any(f.layer in born for f in suspect.findings),
            -cause.confidence,
            cause.rules,
        )

    causes = [(_foretold(_cause(s.findings, base, facts), outcomes[s.cause], base), s) for s in suspects]
    return sorted(causes, key=key)


def _absorb(
    ranked: list[tuple[CauseReport, Suspect]],
    outcomes: Mapping[str, _Outcome],
    facts: CaseFacts,
    base: RuleBase,
    size: DropClass | None,
    repair: Callable[[Change, Prediction | None], CaseFacts],
) -> tuple[CauseReport, ...]:
    """Move findings under the cause whose repair makes them vanish; what stays is a cause of its own, ranked anew."""
    absorbed: set[tuple[str, str]] = set()
    absorbs: dict[str, tuple[Explained, ...]] = {}
    for place, (cause, suspect) in enumerate(ranked):
        later = [f for _, other in ranked[place + 1 :] for f in other.findings if _identity(f) not in absorbed]
        if not _is_spread(suspect):  # data may spoil a layer, but no layer spoils data
            later = [f for f in later if f.rule.scope != "dataset"]
        own = [f for f in suspect.findings if _identity(f) not in absorbed]
        outcome = outcomes[cause.cause]
        # Ranges may hide what weights do, but do not repair them.
        if outcome.change and not (outcome.change.weights or outcome.change.biases):
            later = [f for f in later if f.rule.family != "weights"]
        if not own or not later or not outcome.change or cause.severity not in ("high", "medium"):
            continue
        standing = _standing(evaluate(base, repair(outcome.change, outcome.alone)))
        explained = [f for f in later if _identity(f) not in standing]
        absorbed |= {_identity(f) for f in explained}
        absorbs[cause.cause] = tuple(
            Explained(rule=f.rule.id, name=f.rule.name, subject=f.subject, message=f.message) for f in explained
        )
    left = [(s, tuple(f for f in s.findings if _identity(f) not in absorbed)) for _, s in ranked]
    kept = _rank([replace(s, findings=own) for s, own in left if own], outcomes, facts, base, size)
    return tuple(cause.model_copy(update={"absorbs": absorbs.get(cause.cause, ())}) for cause, _ in kept)


def _is_spread(suspect: Suspect) -> bool:
    """Only rules about data sets or the whole model speak for the cause."""
    return all(f.rule.scope in GLOBAL_SCOPES for f in suspect.findings)


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.rule.id, finding.subject


def _standing(results: list[RuleResult]) -> set[tuple[str, str]]:
    """What still fires, or cannot be told, on the repaired facts."""
    fired = {(f.rule.id, f.subject) for result in results for f in result.findings}
    return fired | {(u.rule.id, u.subject) for result in results for u in result.unknown}


def _verdict(causes: tuple[CauseReport, ...], facts: CaseFacts, size: DropClass | None) -> Verdict:
    """``degraded`` also where a measured loss is left without a cause: silence about it would be a pass.

    Without a quantized model it is ``failed``, unless neither log nor float model shows anything: then there is nothing
    to compare. Nor is it a pass that a toolchain's own figures look well: they are of its data, prepared its way.
    """
    model = facts.model
    if model.framework == FLOAT_ALONE:
        return "failed" if model.failure.failed or _explained(causes) else "not-comparable"
    if model.float_is_quantized or model.nonfinite_output in ("float", "both"):
        return "not-comparable"
    lost = model.harmed or size in ("moderate", "large")
    if lost or _explained(causes):
        return "degraded"
    return "not-comparable" if model.framework == IMPORTED else "healthy"


def _explained(causes: tuple[CauseReport, ...]) -> bool:
    """A cause is severe enough to account for a loss."""
    return any(cause.severity in ("high", "medium") for cause in causes)


def _notes(results: list[RuleResult], verdict: str, base: RuleBase) -> tuple[RuleNote, ...]:
    return tuple(_note(result, base) for result in results if result.verdict == verdict)


def _note(result: RuleResult, base: RuleBase) -> RuleNote:
    missing = tuple(dict.fromkeys(name for unknown in result.unknown for name in unknown.missing))
    hints = [hint for name in missing if (hint := base.hint(name))]
    return RuleNote(
        rule=result.rule.id,
        name=result.rule.name,
        scope=result.rule.scope,
        judged=result.judged,
        unknown=len(result.unknown),
        missing=missing,
        hint=hints[0] if hints else None,
    )


def _advice(causes: tuple[CauseReport, ...], model: ModelFacts, size: DropClass | None) -> tuple[str, ...]:
    """General pages in the order that the size of the drop suggests; none for a clean bill of health.

    Harm that no metric measured counts as a large drop. A quantization that failed has a page of its own.
    """
    if model.framework == FLOAT_ALONE:
        return () if _explained(causes) else ("failed",)
    tuning = ("threshold-error-method", "calibration-search", "bias-correction")
    layers = ("leave-layers-in-float", "mixed-precision-images", "hessian-scores", "gptq", "qat")
    data = ("preprocessing", "representative-data")
    if _explained(causes) or (size in (None, "none") and not model.harmed):
        return ()
    orders = {"moderate": tuning + data + layers, "small": layers + tuning + data}
    return orders.get(size or "large", data + tuning + layers)


def flagging_rules(results: Iterable[RuleResult]) -> dict[str, list[str]]:
    """Codes of the rules that flagged each layer, by its name."""
    flagged: dict[str, list[str]] = {}
    for result in results:
        for finding in result.findings:
            if finding.layer and finding.rule.id not in flagged.setdefault(finding.layer, []):
                flagged[finding.layer].append(finding.rule.id)
    return flagged


def _layer_rows(facts: CaseFacts, results: list[RuleResult]) -> tuple[LayerRow, ...]:
    flagged = flagging_rules(results)
    rows = []
    for layer in facts.layers:
        output, values = layer.output, layer.output.data.values
        rows.append(
            LayerRow(
                index=layer.index or 0,
                name=layer.name or "?",
                float_name=layer.float_name,
                quantized_name=layer.quantized_name,
                op_type=layer.op_type or "?",
                executed_as=layer.executed_as,
                bits=output.quantizer.bits,
                scale=output.quantizer.scale,
                zero_point=output.quantizer.zero_point,
                min=values.min,
                max=values.max,
                mean=values.mean,
                std=values.std,
                weight_bits=layer.weight.quantizer.bits,
                weight_granularity=layer.weight.quantizer.granularity,
                weight_sqnr_db=layer.weight.rounding.sqnr_db,
                degraded=layer.degraded,
                born=layer.born,
                added_nmse=layer.added_nmse,
                amplification=output.data.amplification,
                representative=_error_row(output, "representative"),
                validation=_error_row(output, "validation"),
                groups=_group_row(layer.weight),
                operations=layer.operations,
                time_ms=layer.time_ms,
                time_share=layer.time_share,
                reported=layer.reported if layer.reported != _NOTHING_REPORTED else None,
                findings=tuple(flagged.get(layer.name or "", ())),
            )
        )
    return tuple(rows)


def _group_row(weight: WeightFacts) -> GroupRow | None:
    if weight.groups is None:
        return None
    return GroupRow(
        size=weight.group_size,
        worst_channel_sqnr_db=weight.rounding.worst_channel_sqnr_db,
        worst_group_sqnr_db=weight.worst_group_sqnr_db,
        worst_group=weight.worst_group,
        dead=weight.dead_groups,
        outliers=weight.outlier_groups,
    )


def _error_row(tensor: TensorFacts, role: Role) -> ErrorRow:
    data = getattr(tensor, role)
    return ErrorRow(
        samples=data.values.samples,
        rounding=data.rounding,
        accumulated=data.accumulated,
        operator=data.operator,
        step=data.step,
    )


def _histograms(
    results: list[RuleResult], facts: CaseFacts, histogram: Callable[[TensorFacts], Histogram | None]
) -> tuple[Histogram, ...]:
    flagged = {f.subject for r in results if r.rule.cause == "activation-outliers" for f in r.findings}
    found = [histogram(tensor) for tensor in facts.tensors if (tensor.producer_name or tensor.float_name) in flagged]
    return tuple(h for h in found if h is not None)
