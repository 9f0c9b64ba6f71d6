"""The order of the causes, and what one of them explains of the others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, OperandFacts, SourceFacts, TensorFacts
from quantmedic.engine.contract.causes import CauseReport, Explained, LayerName
from quantmedic.engine.contract.diagnosis import DropClass
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.harm import recoverable_db, unsimulated_gain_db
from quantmedic.engine.diagnosis.headline import is_number
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, Prediction
from quantmedic.engine.diagnosis.remedy_outcomes import RemedyOutcomes, is_grave, with_recoveries
from quantmedic.engine.diagnosis.suspects import PREFERENCE_DB, Suspect
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.rules.evaluate import Evidence, Finding, evaluate
from quantmedic.engine.rules.rule import GLOBAL_SCOPES, SERIOUS, SEVERITIES, Severity
from quantmedic.engine.rules.rulebase import RuleBase

#: Decibels that a cause counts for where nothing could be simulated.
PRIOR_DB: Mapping[Severity, float] = {"high": 12.0, "medium": 6.0, "low": 0.5, "info": 0.0}
#: What a cause in the data or the model as a whole counts more: ranges that suit the data follow from them.
GLOBAL_WEIGHT, GLOBAL_WEIGHT_LARGE_DROP = 1.2, 1.5
#: One place that makes a larger share of the noise makes nearly all of it: what is left is under 1 dB.
NEARLY_ALL = 0.8
#: A defect of the data as sure as this is seen in the samples or in many ranges: one place does not make it doubtful.
EVIDENT = 0.85
#: Places with less of the noise are in the order of their facts.
MATTERS = 0.02


def rank(
    suspects: Sequence[Suspect],
    outcomes: Mapping[str, RemedyOutcomes],
    facts: CaseFacts,
    base: RuleBase,
    size: DropClass | None,
    carried: Mapping[str, float],
) -> list[tuple[CauseReport, Suspect]]:
    """The most severe cause first; of equal ones the proven, then the one whose repair recovers most of the loss.

    ``carried`` is the share of the noise that the layers and tensors make which a cause names, where it was measured.

    Severity follows what a repair recovers (`_severity`), so that it agrees with the order. Severe doubts about sanity
    come first, since they may explain everything else. What a repair recovers counts times the confidence in the
    cause; data and the model as a whole count more than a layer, and the more so the larger the drop, but come after a
    single place that makes nearly all of the noise and recovers as much by itself: data spoil many places. A defect of
    the data that is `EVIDENT` stays in front. Among layers those lead where the error is born.
    """
    born = {layer.name for layer in facts.layers if layer.born}
    share = facts.model.degraded_share
    hurt = bool(facts.model.harmed) or size in ("moderate", "large")
    weight = GLOBAL_WEIGHT_LARGE_DROP if size == "large" else GLOBAL_WEIGHT
    widespread = share is not None and share > base.threshold("degrade_layer_ratio")
    places = [s for s in suspects if carried.get(s.cause, 0.0) > NEARLY_ALL and _is_one_place(s)]
    at_one_place = max((_gain(outcomes[s.cause]) for s in places), default=0.0)

    def key(item: tuple[CauseReport, Suspect]) -> tuple[bool | float | tuple[str, ...], ...]:
        cause, suspect = item
        rules = [f.rule for f in suspect.findings]
        spread = cause.severity in SERIOUS and _is_spread(suspect)
        gain = outcomes[cause.cause].mean_gain_db
        worth = _prior_db(cause, suspect) if gain is None else cause.confidence * min(gain, ENOUGH_DB)
        of_data = bool(places) and cause.confidence < EVIDENT and all(rule.scope == "dataset" for rule in rules)
        return (
            not (cause.severity == "high" and any(rule.family == "sanity" for rule in rules)),
            SEVERITIES.index(cause.severity),
            not outcomes[cause.cause].proven,
            of_data and gain is not None and at_one_place >= min(gain, ENOUGH_DB) - PREFERENCE_DB,
            not (spread and widespread and gain is None),
            -worth * (weight if spread else 1.0),
            not spread,
            not any(f.layer in born for f in suspect.findings),
            -cause.confidence,
            cause.rules,
        )

    judged = [
        (_report_of(suspect, outcomes[suspect.cause], base, facts, hurt, carried.get(suspect.cause, 0.0)), suspect)
        for suspect in suspects
    ]
    if widespread and any(cause.severity == "high" for cause, _ in judged):
        judged = [(_as_grave(cause, suspect, outcomes[cause.cause]), suspect) for cause, suspect in judged]
    return sorted(judged, key=key)


def absorb(
    ranked: list[tuple[CauseReport, Suspect]],
    outcomes: Mapping[str, RemedyOutcomes],
    facts: CaseFacts,
    base: RuleBase,
    size: DropClass | None,
    carried: Mapping[str, float],
    repair: Callable[[Change, Prediction | None], CaseFacts],
    *,
    assumed: bool,
) -> tuple[CauseReport, ...]:
    """Move findings under the cause whose repair makes them vanish; what stays is a cause of its own, ranked anew.

    If harm is only ``assumed``, one cause is reported, not every other name of it.
    """
    absorbed: set[tuple[str, str]] = set()
    absorbs: dict[str, tuple[Explained, ...]] = {}
    for place, (cause, suspect) in enumerate(ranked):
        later = [f for _, other in ranked[place + 1 :] for f in other.findings if f.key not in absorbed]
        if not _is_spread(suspect):  # data may spoil a layer, but no layer spoils data
            later = [f for f in later if f.rule.scope != "dataset"]
        own = [f for f in suspect.findings if f.key not in absorbed]
        outcome = outcomes[cause.cause]
        # No grid repairs what operators compute otherwise.
        later = [f for f in later if f.rule.family != "runtime"]
        # Ranges may hide what weights do, but do not repair them.
        if outcome.change and not (outcome.change.weights or outcome.change.biases):
            later = [f for f in later if f.rule.family != "weights"]
        if not own or not later or not outcome.change or cause.severity not in SERIOUS:
            continue
        if outcome.gain_db is not None and outcome.gain_db < base.threshold("negligible_gain_db"):
            continue  # What recovers nothing explains nothing.
        # What is still there on the repaired facts, or cannot be judged on them.
        after = evaluate(base, repair(outcome.change, outcome.alone))
        standing = {f.key for result in after for f in result.findings}
        standing |= {u.key for result in after for u in result.unknown}
        explained = [f for f in later if f.key not in standing]
        absorbed |= {f.key for f in explained}
        absorbs[cause.cause] = tuple(
            Explained(rule=f.rule.id, name=f.rule.name, subject=f.subject, message=f.message) for f in explained
        )
    left = [(s, tuple(f for f in s.findings if f.key not in absorbed)) for _, s in ranked]
    kept = rank([replace(s, findings=own) for s, own in left if own], outcomes, facts, base, size, carried)
    causes = [cause.model_copy(update={"absorbs": absorbs.get(cause.cause, ())}) for cause, _ in kept]
    gone = [(cause, s) for (cause, s), (_, own) in zip(ranked, left, strict=True) if not own]
    best = max((_gain(outcomes[c.cause]) for c in causes), default=0.0)
    others = _other_names(gone, outcomes, base, carried, best) if not assumed else []
    others = [cause.model_copy(update={"explained_by": _explainer(cause, absorbs)}) for cause in others]
    return tuple(sorted([*others, *causes], key=lambda cause: SEVERITIES.index(cause.severity)))


def _other_names(
    absorbed: Iterable[tuple[CauseReport, Suspect]],
    outcomes: Mapping[str, RemedyOutcomes],
    base: RuleBase,
    carried: Mapping[str, float],
    best_db: float,
) -> list[CauseReport]:
    """Absorbed causes that may as well be the name of the loss, as remarks.

    They say where most of the noise is, or where a notable part is, with a repair that recovers about as much as the
    best.
    """
    found = []
    for cause, suspect in absorbed:
        share, gain = carried.get(suspect.cause), _gain(outcomes[suspect.cause])
        if _is_spread(suspect) or share is None or share <= base.threshold("carried_share"):
            continue
        heals = gain >= max(best_db - PREFERENCE_DB, base.threshold("negligible_gain_db"))
        if heals or share > base.threshold("grave_share"):
            found.append(cause.model_copy(update={"severity": "low"}))
    return found


def _explainer(cause: CauseReport, absorbs: Mapping[str, Sequence[Explained]]) -> str | None:
    """The cause whose repair takes the gravest rule of this one away."""
    lead = cause.rules[0]
    return next((name for name, found in absorbs.items() if any(each.rule == lead for each in found)), None)


def _gain(outcome: RemedyOutcomes) -> float:
    """What the repair recovers, up to what counts as all; 0 where nothing is known."""
    return min(outcome.gain_db or 0.0, ENOUGH_DB)


def _report_of(
    suspect: Suspect, outcome: RemedyOutcomes, base: RuleBase, facts: CaseFacts, hurt: bool, carried: float
) -> CauseReport:
    cause = with_recoveries(cause_report(suspect.findings, base, facts, suspect.spread), outcome, base)
    if hurt and outcome.proven is None and any(finding.rule.family == "sanity" for finding in suspect.findings):
        return cause  # Not a number stays none on any grid: what a simulation recovers says nothing of it.
    most = unsimulated_gain_db(suspect.findings)
    return cause.model_copy(update={"severity": _severity(cause.severity, outcome, base, hurt, carried, most)})


def _prior_db(cause: CauseReport, suspect: Suspect) -> float:
    """What a cause counts for where nothing could be simulated: no more than the noise that no quantizer makes."""
    most = unsimulated_gain_db(suspect.findings)
    return PRIOR_DB[cause.severity] if most is None else min(PRIOR_DB[cause.severity], most)


def _severity(
    stated: Severity, outcome: RemedyOutcomes, base: RuleBase, hurt: bool, carried: float, most: float | None
) -> Severity:
    """Severity by what the repair recovers at the output, measured or else simulated; as the rule states it otherwise.

    Args:
        stated: Severity of the gravest rule. A remark, of low or no severity, stays one unless a repair in the bits in
            force recovers most of a loss.
        outcome: What the repair recovers.
        base: Holds the thresholds.
        hurt: The network is measurably worse, so that a large share of its noise is a large share of a loss.
        carried: Share of the noise that what the cause names makes by the loss budget. What makes most of a loss is
            grave, and what makes a notable part is no trifle, also where no remedy of its rules heals it alone.
        most: The most that a repair recovers that could not be simulated; None where that is not known. What other
            noise hides may count once that is gone, and is not grave before.
    """
    if outcome.gain_db is None:
        return "medium" if stated == "high" and most is not None and not is_grave(most, base) else stated
    if stated not in SERIOUS:
        return "high" if hurt and is_grave(recoverable_db(outcome, base) or 0.0, base) else stated
    if outcome.gain_db < base.threshold("negligible_gain_db"):
        if not hurt or carried <= base.threshold("carried_share"):
            return "low"
        return stated if carried > base.threshold("grave_share") else "medium"
    if not is_grave(outcome.gain_db, base) or outcome.proven is False:
        return "medium"
    return "high" if hurt else stated


def _as_grave(cause: CauseReport, suspect: Suspect, outcome: RemedyOutcomes) -> CauseReport:
    """Where most layers are degraded, a cause of the whole model is as grave as one of a layer."""
    graver = cause.severity == "medium" and _is_spread(suspect) and outcome.gain_db is None
    return cause.model_copy(update={"severity": "high"}) if graver else cause


def _is_spread(suspect: Suspect) -> bool:
    """Only rules about data sets or the whole model found the cause."""
    return all(f.rule.scope in GLOBAL_SCOPES for f in suspect.findings)


def _is_one_place(suspect: Suspect) -> bool:
    """All findings are about one layer, or about values that one layer makes."""
    return len({f.layer for f in suspect.findings}) == 1 and suspect.findings[0].layer is not None


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
        evidence=tuple(e for finding in ordered for e in _told_once(finding.evidence)),
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
            if e.comparison in ("gt", "ge", "lt", "le") and is_number(e.value) and is_number(e.threshold)
        ),
        default=0.0,
    )


def _told_once(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Measurements; several ways to the same verdict may rest on one and the same."""
    told: list[Evidence] = []
    for own in evidence:
        # A measurement, not a selector: neither "is measured" nor the subject's own name.
        if own.comparison != "known" and own.value != own.subject and own not in told:
            told.append(own)
    return told
