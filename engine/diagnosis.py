"""From findings to a diagnosis: causes grouped, ranked, and freed of what they explain."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from quantmedic.engine.collector import uncollected
from quantmedic.engine.evaluate import Evidence, Finding, RuleResult, evaluate
from quantmedic.engine.facts import (
    CaseFacts,
    DatasetFacts,
    ErrorFacts,
    LayerFacts,
    MetricFacts,
    ModelFacts,
    OutputFacts,
    Role,
    TensorFacts,
)
from quantmedic.engine.rule import SEVERITIES, Remedy, RuleBase, Severity, Threshold

SCHEMA_VERSION = "1.0"
Verdict = Literal["healthy", "degraded", "not-comparable"]
DropClass = Literal["large", "moderate", "small", "none"]
GLOBAL_SCOPES = ("model", "dataset")


class Contract(BaseModel):
    """Base of everything in ``report.json``: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    predicted_gain_db: float | None = None
    measured_gain_db: float | None = None
    measured_gain_metric: float | None = None
    share_of_loss: float | None = None
    remedies: tuple[Remedy, ...]
    absorbs: tuple[Explained, ...] = ()
    manual: str = Field(description="page of the manual, relative to the report's folder, without its suffix")


class RuleNote(Contract):
    """A rule that named no cause, and why."""

    rule: str
    name: str
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
    representative: ErrorRow
    validation: ErrorRow
    findings: tuple[str, ...] = ()


class Histogram(Contract):
    """Distribution of a flagged tensor, at most 64 bins, with the range of its quantizer."""

    layer: str
    dataset: Role
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    low: float | None
    high: float | None


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
    gate: str | None = None
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
    thresholds: tuple[Threshold, ...]
    warnings: tuple[str, ...]
    run: Mapping[str, Any] = Field(description="versions, options, file names and hashes that gave these facts")


@uncollected
def diagnose(
    base: RuleBase,
    facts: CaseFacts,
    repair: Callable[[str], CaseFacts],
    *,
    version: str,
    warnings: Iterable[str] = (),
    run: Mapping[str, Any] | None = None,
    histogram: Callable[[TensorFacts], Histogram | None] = lambda tensor: None,
) -> Diagnosis:
    """Judge all rules and assemble the report.

    Args:
        base: Rules, thresholds and remedies in force.
        facts: The measured facts.
        repair: Gives the facts that would be measured if a repair (``Rule.repair``) were carried out.
        version: Version of quantmedic, for the report.
        warnings: Notices of the collectors.
        run: What produced the facts.
        histogram: Gives the histogram of a tensor, for layers flagged by a rule about a distribution.
    """
    results = evaluate(base, facts)
    causes = _absorb(_rank(_group(results, base, facts), facts, base), facts, base, repair)
    size = drop_class(facts.model.metric, base)
    return Diagnosis(
        quantmedic_version=version,
        verdict=_verdict(causes, facts.model, size),
        drop_class=size,
        evidence_strength=evidence_strength(facts.model.metric),
        causes=causes,
        passed=_notes(results, "passed", base),
        not_judged=_notes(results, "not-judged", base),
        not_applicable=_notes(results, "not-applicable", base),
        ignored=tuple(RuleNote(rule=rule.id, name=rule.name) for rule in base.ignored),
        advice=_advice(causes, facts.model, size),
        layers=_layer_rows(facts, results),
        model=facts.model,
        metrics=facts.model.metric,
        outputs=facts.outputs,
        datasets=facts.datasets,
        histograms=_histograms(results, facts, histogram),
        thresholds=tuple(base.thresholds.values()),
        warnings=tuple(warnings),
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


def _group(results: list[RuleResult], base: RuleBase, facts: CaseFacts) -> list[tuple[CauseReport, list[Finding]]]:
    by_cause: dict[str, list[Finding]] = {}
    for result in results:
        for finding in result.findings:
            by_cause.setdefault(finding.rule.cause, []).append(finding)
    return [(_cause(found, base, facts), found) for found in by_cause.values()]


def _cause(findings: list[Finding], base: RuleBase, facts: CaseFacts) -> CauseReport:
    ordered = sorted(findings, key=lambda f: (SEVERITIES.index(f.rule.severity), -_excess(f)))
    lead = ordered[0]
    names = {layer.name: layer for layer in facts.layers}
    layers = dict.fromkeys(finding.layer for finding in ordered if finding.layer)
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
        predicted_gain_db=_predicted_gain(ordered, facts),
        remedies=tuple(base.remedies[name] for name in dict.fromkeys(r for f in ordered for r in f.rule.remedies)),
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


def _predicted_gain(findings: list[Finding], facts: CaseFacts) -> float | None:
    """Largest gain that re-ranging the flagged tensors predicts, where a finding rests on that prediction."""
    if not any(e.fact.endswith("predicted_best_gain_db") for f in findings for e in f.evidence):
        return None
    gains = [e.value for f in findings for e in f.evidence if e.fact.endswith("predicted_best_gain_db")]
    return max((gain for gain in gains if gain is not None), default=None)


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
    causes: list[tuple[CauseReport, list[Finding]]], facts: CaseFacts, base: RuleBase
) -> list[tuple[CauseReport, list[Finding]]]:
    """Worst first; global causes lead where most layers are degraded, since they may explain all of them.

    Among layers, those where the error is born go before those that received it.
    """
    born = {layer.name for layer in facts.layers if layer.born}
    share = facts.model.degraded_share
    global_first = share is not None and share > base.threshold("degrade_layer_ratio")

    def key(item: tuple[CauseReport, list[Finding]]) -> tuple[Any, ...]:
        cause, findings = item
        spread = all(f.rule.scope in GLOBAL_SCOPES for f in findings) and cause.severity in ("high", "medium")
        return (
            not (global_first and spread),
            SEVERITIES.index(cause.severity),
            not spread,
            not any(f.layer in born for f in findings),
            -(cause.predicted_gain_db or 0.0),
            -cause.confidence,
            cause.rules,
        )

    return sorted(causes, key=key)


def _absorb(
    ranked: list[tuple[CauseReport, list[Finding]]],
    facts: CaseFacts,
    base: RuleBase,
    repair: Callable[[str], CaseFacts],
) -> tuple[CauseReport, ...]:
    """Move findings under the cause whose repair makes them vanish; what stays is a cause of its own, ranked anew."""
    absorbed: set[tuple[str, str]] = set()
    standing: dict[str, set[tuple[str, str]]] = {}
    absorbs: dict[str, tuple[Explained, ...]] = {}
    for place, (cause, findings) in enumerate(ranked):
        own = [f for f in findings if (f.rule.id, f.subject) not in absorbed]
        if not own:
            continue
        explained = []
        names = {f.rule.repair for f in own if f.rule.repair}
        for name in sorted(names):
            if name not in standing:
                standing[name] = _standing(evaluate(base, repair(name)))
            for _, others in ranked[place + 1 :]:
                for other in others:
                    key = (other.rule.id, other.subject)
                    if key not in standing[name] and key not in absorbed:
                        absorbed.add(key)
                        explained.append(other)
        absorbs[cause.cause] = tuple(
            Explained(rule=f.rule.id, name=f.rule.name, subject=f.subject, message=f.message) for f in explained
        )
    left = [[f for f in findings if (f.rule.id, f.subject) not in absorbed] for _, findings in ranked]
    kept = _rank([(_cause(findings, base, facts), findings) for findings in left if findings], facts, base)
    return tuple(cause.model_copy(update={"absorbs": absorbs[cause.cause]}) for cause, _ in kept)


def _standing(results: list[RuleResult]) -> set[tuple[str, str]]:
    """What still fires, or cannot be told, on the repaired facts."""
    fired = {(f.rule.id, f.subject) for result in results for f in result.findings}
    return fired | {(u.rule.id, u.subject) for result in results for u in result.unknown}


def _verdict(causes: tuple[CauseReport, ...], model: ModelFacts, size: DropClass | None) -> Verdict:
    """``degraded`` also where a measured loss is left without a cause: silence about it would be a pass."""
    if model.float_is_quantized or model.nonfinite_output in ("float", "both"):
        return "not-comparable"
    lost = model.harmed or size in ("moderate", "large")
    return "degraded" if lost or _explained(causes) else "healthy"


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
        judged=result.judged,
        unknown=len(result.unknown),
        missing=missing,
        hint=hints[0] if hints else None,
    )


def _advice(causes: tuple[CauseReport, ...], model: ModelFacts, size: DropClass | None) -> tuple[str, ...]:
    """General pages in the order that the size of the drop suggests; none for a clean bill of health.

    Harm that no metric measured counts as a large drop.
    """
    tuning = ("threshold-error-method", "calibration-search", "bias-correction")
    layers = ("leave-layers-in-float", "mixed-precision-images", "hessian-scores", "gptq", "qat")
    data = ("preprocessing", "representative-data")
    if _explained(causes) or (size in (None, "none") and not model.harmed):
        return ()
    orders = {"moderate": tuning + data + layers, "small": layers + tuning + data}
    return orders.get(size or "large", data + tuning + layers)


def _layer_rows(facts: CaseFacts, results: list[RuleResult]) -> tuple[LayerRow, ...]:
    flagged: dict[str, list[str]] = {}
    for result in results:
        for finding in result.findings:
            if finding.layer and finding.rule.id not in flagged.setdefault(finding.layer, []):
                flagged[finding.layer].append(finding.rule.id)
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
                representative=_error_row(output, "representative"),
                validation=_error_row(output, "validation"),
                findings=tuple(flagged.get(layer.name or "", ())),
            )
        )
    return tuple(rows)


def _error_row(tensor: TensorFacts, role: Role) -> ErrorRow:
    data = getattr(tensor, role)
    return ErrorRow(
        samples=data.values.samples, rounding=data.rounding, accumulated=data.accumulated, operator=data.operator
    )


def _histograms(
    results: list[RuleResult], facts: CaseFacts, histogram: Callable[[TensorFacts], Histogram | None]
) -> tuple[Histogram, ...]:
    flagged = {f.subject for r in results if r.rule.cause == "activation-outliers" for f in r.findings}
    found = [histogram(tensor) for tensor in facts.tensors if (tensor.producer_name or tensor.float_name) in flagged]
    return tuple(h for h in found if h is not None)
