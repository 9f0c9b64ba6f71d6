"""One suspected cause as report.json shows it: its findings together, the worst first."""

from collections.abc import Mapping, Sequence

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, OperandFacts, SourceFacts, TensorFacts
from quantmedic.engine.contract.causes import CauseReport, EvidenceRow, LayerName
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.headline import is_number
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.rules.evaluate import Evidence, Finding
from quantmedic.engine.rules.rule import SEVERITIES
from quantmedic.engine.rules.rulebase import RuleBase

#: Places with less of the noise are in the order of their facts.
MATTERS = 0.02


def cause_report(
    findings: Sequence[Finding], base: RuleBase, facts: CaseFacts, spread: Mapping[str, Targets]
) -> CauseReport:
    """One cause: what makes most of the noise first, and where that is not known, what is furthest beyond its limit.

    ``spread`` says where remedies go that are for every place that they help, by their kind.
    """
    ordered = sorted(findings, key=lambda f: (SEVERITIES.index(f.rule.severity), -_loudness(f), -_excess(f)))
    lead = ordered[0]
    names = {layer.name: layer for layer in facts.layers}
    layers = dict.fromkeys(finding.layer for finding in ordered if finding.layer)
    remedies, withheld = advise(ordered, base, facts, spread)
    feeders = dict.fromkeys(f for name in layers if name in names for f in names[name].group if f not in layers)
    return CauseReport(
        cause=lead.rule.cause,
        name=lead.rule.name,
        rules=tuple(dict.fromkeys(f.rule.id for f in ordered)),
        severity=lead.rule.severity,
        doubt=next((f.rule.doubt for f in ordered if f.rule.doubt), None),
        confidence=max(f.rule.confidence for f in ordered),
        subjects=tuple(dict.fromkeys(f.subject for f in ordered)),
        layers=tuple(_layer_name(name, names) for name in layers),
        feeders=tuple(_layer_name(name, names) for name in feeders),
        message=lead.message,
        evidence=tuple(_evidence_row(e) for finding in ordered for e in _told_once(finding.evidence)),
        remedies=remedies,
        withheld=withheld,
        manual=f"manual/{lead.rule.id}",
    )


def _layer_name(name: str, layers: Mapping[str | None, LayerFacts]) -> LayerName:
    if name not in layers:
        return LayerName(float_name=name, quantized_name=None)
    return LayerName(float_name=layers[name].float_name, quantized_name=layers[name].quantized_name)


def _loudness(finding: Finding) -> float:
    """Share of the noise that the loss budget finds where the finding is; 0 where it found none that matters."""
    share = sum(source.share or 0.0 for source in _sources_of(finding))
    return share if share >= MATTERS else 0.0


def _sources_of(finding: Finding) -> tuple[SourceFacts, ...]:
    """What the finding is about: values, or what is stored in a layer."""
    match finding.view:
        case TensorFacts() as view:
            return (view.source,)
        case OperandFacts() as view:
            return (view.joint_source,)
        case LayerFacts() as view if finding.rule.family == "weights":
            return view.weight_source, view.bias_source
        case LayerFacts() as view if finding.rule.family == "precision":
            return view.weight_source, view.output.source
        case LayerFacts() as view:
            return (view.output.source,)
    return ()


def _excess(finding: Finding) -> float:
    """How far the finding's worst numeric fact lies beyond its threshold, in thresholds: orders subjects."""
    return max(
        (
            abs(e.value - e.threshold) / (abs(e.threshold) or 1.0)
            for e in finding.evidence
            if e.op in ("gt", "ge", "lt", "le") and is_number(e.value) and is_number(e.threshold)
        ),
        default=0.0,
    )


def _told_once(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Measurements; several ways to the same verdict may rest on one and the same."""
    told: list[Evidence] = []
    for own in evidence:
        if _tells(own) and own not in told:
            told.append(own)
    return told


def _tells(evidence: Evidence) -> bool:
    """A measurement, not a selector: neither "is measured" nor the subject's own name."""
    return evidence.op != "known" and evidence.value != evidence.subject


def _evidence_row(evidence: Evidence) -> EvidenceRow:
    return EvidenceRow(
        fact=evidence.fact,
        value=evidence.value,
        comparison=evidence.op,
        threshold=evidence.threshold,
        source=evidence.source,
        subject=evidence.subject,
    )
