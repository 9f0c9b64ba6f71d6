"""Harm by metric and by noise: what is proven, what is assumed, and what is undecided."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quantmedic.engine.case.facts import CaseFacts, MetricFacts
from quantmedic.engine.case.gains import gain_without_share, share_of_gain
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import DropClass
from quantmedic.engine.contract.harm_report import Harm, Undecided
from quantmedic.engine.diagnosis.remedy_outcomes import RemedyOutcomes
from quantmedic.engine.formulas.power import SampleSizes
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.metrics.paired import share_interval
from quantmedic.engine.rules.conditions import All, Condition
from quantmedic.engine.rules.evaluate import Finding, RuleResult, evaluate
from quantmedic.engine.rules.rule import SEVERITIES
from quantmedic.engine.rules.rulebase import RuleBase

#: Samples beyond which no number is proposed: few sets of labels are larger.
MOST_LABELS = 100_000
_HARMED = "model.harmed"
#: Share of the noise that no simulated repair takes away; a finding that rests on it or shows it tells whose it is.
_UNSIMULATED = "model.unsimulated_share"


def as_if_harmed(facts: CaseFacts) -> CaseFacts:
    """The facts with harm taken for granted where none was found: rules then say what is wrong, not whether it hurts.

    Facts of a network that is harmed, or whose harm was not measured, stay as they are.
    """
    if facts.model.harmed is not False or not facts.model.is_comparable:
        return facts
    return facts.model_copy(update={"model": facts.model.model_copy(update={"harmed": True})})


def with_assumed(results: Sequence[RuleResult], base: RuleBase, facts: CaseFacts) -> list[RuleResult]:
    """The results of all rules, with the findings that only a harmed network would have."""
    world = as_if_harmed(facts)
    if world is facts:
        return list(results)
    return [_join(own, other) for own, other in zip(results, evaluate(base, world), strict=True)]


def _join(own: RuleResult, other: RuleResult) -> RuleResult:
    known = {found.key for found in own.findings}
    # That the network is harmed was not measured: it is no evidence.
    more = (
        replace(found, evidence=tuple(e for e in found.evidence if e.fact != _HARMED))
        for found in other.findings
        if found.key not in known
    )
    return replace(own, findings=(*own.findings, *more))


def without_harmless(
    assumed: Sequence[RuleResult],
    results: Sequence[RuleResult],
    outcomes: Mapping[str, RemedyOutcomes],
    base: RuleBase,
) -> list[RuleResult]:
    """The assumed results without those of causes whose repair recovers nothing: they are as good as not found.

    Nobody can try a repair of what makes the comparison itself doubtful, such as an operator with other settings.

    Args:
        assumed: From `with_assumed`.
        results: Without assumptions.
        outcomes: What repairs recover, by cause.
        base: Holds the thresholds.
    """
    known = {f.key for result in results for f in result.findings}
    kept = {cause for cause, outcome in outcomes.items() if outcome.is_recoverable}
    kept |= {result.rule.cause for result in assumed if _is_inferred(result.findings, base)}
    seen = {result.rule.cause for result in results if result.findings}
    untried = {cause for cause, outcome in outcomes.items() if outcome.gain_db is None} - seen

    def is_kept(finding: Finding) -> bool:
        cause, is_doubt = finding.rule.cause, finding.rule.family == "sanity"
        return cause in kept or finding.key in known or (is_doubt and cause in untried)

    return [replace(r, findings=tuple(filter(is_kept, r.findings))) for r in assumed]


def _inferred_gain_db(cause: CauseReport) -> float:
    """The most that there is, of a cause whose repair no run can show."""
    return 0.0 if cause.predicted_low_db is not None else cause.predicted_gain_db or 0.0


def _is_inferred(findings: Iterable[Finding], base: RuleBase) -> bool:
    """Enough is to be had, although no run can show it."""
    gain = unsimulated_gain_db(findings)
    return gain is not None and gain >= base.threshold("assumed_harm_gain_db")


def stands_out(gain_db: float, base: RuleBase) -> bool:
    """A repair takes away so much of the noise that it would heal the network, if that noise costs anything."""
    return gain_db > 0 and share_of_gain(gain_db) > base.threshold("healed_share")


@dataclass(frozen=True)
class Loss:
    """What is known of the loss.

    Attributes:
        facts: The measured facts.
        size: Size of the drop.
        base: Holds the thresholds.
        sizes: Gives the samples that it takes to tell the drop from a given one; None where no metric was measured.
        whole_db: What a repair of the whole network recovers; see `Simulated.gain_of_whole_db`.
    """

    facts: CaseFacts
    size: DropClass | None
    base: RuleBase
    sizes: Callable[[float], SampleSizes | None]
    whole_db: float | None = None

    @property
    def is_proven(self) -> bool:
        """By the metric, by the answers, or by noise that is harmful in itself."""
        return bool(self.facts.model.harmed) or self.size in ("moderate", "large")

    @property
    def is_excluded(self) -> bool:
        """The outputs are clean, or the metric's interval excludes a loss that matters, or hardly an answer changed."""
        metric = self.facts.model.metric
        if metric.drop_high is not None and (limit := self._limit(metric)) is not None:
            return metric.drop_high <= limit or is_clean(self.facts, self.base)
        return self._hardly_changes() or is_clean(self.facts, self.base)

    def judge(self, cause: CauseReport, findings: Sequence[Finding], outcome: RemedyOutcomes) -> CauseReport:
        """The cause with what it costs. Where no loss is proven, one whose repair was tried or simulated is a remark.

        So is any cause where the outputs are clean, unless what it finds is harm in itself or makes doubtful what was
        measured.
        """
        if self.facts.model.harmed is None and not self.is_proven:
            return cause
        harm, severity = self._harm_of(outcome), cause.severity
        if harm is None and not self.is_proven and all(map(_asks_for_harm, findings)):
            harm = "assumed"
        more: dict[str, float | None] = {}
        if harm in (None, "assumed") and outcome.gain_db is None and _is_inferred(findings, self.base):
            harm, more = "assumed", {"predicted_gain_db": unsimulated_gain_db(findings)}
        if not self.is_proven and harm != "proven":
            stated = min((found.rule.severity for found in findings), key=SEVERITIES.index)
            is_fine = is_clean(self.facts, self.base) and not any(map(_is_harm, findings))
            harmless = harm is not None or is_fine or outcome.explains_nothing
            severity = max("low", stated, key=SEVERITIES.index) if harmless else stated
        return cause.model_copy(update={"harm": harm, "severity": severity, **more})

    def _harm_of(self, outcome: RemedyOutcomes) -> Harm | None:
        """None where no repair was tried or simulated."""
        gain = outcome.gain_db
        if gain is None:
            return None
        trial = outcome.shown
        regains = trial is not None and trial.metric is not None and trial.metric.low > 0
        # Of a loss that does not matter a part is regained.
        if self.is_proven or (regains and not self.is_excluded):
            return "none" if outcome.is_negligible else "proven"
        most = max(gain, outcome.recoverable_db or 0.0)
        return "assumed" if most >= self.base.threshold("assumed_harm_gain_db") else "none"

    def why_undecided(self, causes: Sequence[CauseReport], outcomes: Mapping[str, RemedyOutcomes]) -> Undecided | None:
        """Why it is not known whether a loss matters; None where it is known, or nothing is to be had."""
        if self.is_proven:
            return None
        if (found := next((cause for cause in causes if cause.doubt), None)) is not None:
            metric = self.facts.model.metric
            return Undecided(
                doubt=found.doubt, cause=found.cause, metric=metric.name, samples=metric.samples, most=MOST_LABELS
            )
        assumed: list[tuple[float, str | None]] = [
            (outcomes[c.cause].recoverable_db or _inferred_gain_db(c), c.cause) for c in causes if c.harm == "assumed"
        ]
        gain, cause = max(assumed, default=(0.0, None), key=lambda found: found[0])
        if not stands_out(gain, self.base):
            gain, cause = self.whole_db or 0.0, None
        if not stands_out(gain, self.base) or self.is_excluded:
            return None
        metric = self.facts.model.metric
        limit = self._limit(metric) if metric.drop_high is not None else None
        if limit is None:
            return Undecided(cause=cause, gain_db=gain, metric=None, most=MOST_LABELS)
        sizes = self.sizes(0.0 if metric.drop is not None and metric.drop > limit else limit)
        needed = sizes.at_measured if sizes is not None else None
        return Undecided(
            cause=cause,
            gain_db=gain,
            metric=metric.name,
            limit=limit,
            samples=metric.samples,
            # The interval has both ends now, so that the approximation may not ask for fewer samples than there are.
            needed=max(needed, (metric.samples or 0) + 1) if needed is not None and needed <= MOST_LABELS else None,
            most=MOST_LABELS,
        )

    def _limit(self, metric: MetricFacts) -> float | None:
        """The least drop that matters, in the unit of the metric."""
        share = self.base.threshold("drop_moderate")
        if is_share(metric.name):
            return share
        return share * abs(metric.float_value) if metric.float_value else None

    def _hardly_changes(self) -> bool:
        """So few answers differ that no metric of them can lose what matters."""
        model, outputs = self.facts.model, self.facts.outputs
        samples = next((d.samples for d in reversed(self.facts.datasets) if d.samples), None)
        if model.output_agreement is None or samples is None or not outputs or outputs[0].columns.operands:
            return False
        changed = round((1 - model.output_agreement) * samples)
        return float(share_interval(changed, samples)[1]) <= self.base.threshold("drop_moderate")


def is_clean(facts: CaseFacts, base: RuleBase) -> bool:
    """No output is noisier than those of good 8-bit networks, and none holds what is no number."""
    worst, nonfinite = facts.model.output_worst_sqnr_db, facts.model.nonfinite_output
    return worst is not None and nonfinite in (None, "none") and worst >= base.threshold("clean_output_sqnr_db")


def _asks_for_harm(finding: Finding) -> bool:
    """Its rule holds of harmed networks only, so that of another one it was found under an assumption."""
    when = finding.rule.when
    parts = when.all if isinstance(when, All) else [when]
    return any(isinstance(part, Condition) and part.fact == _HARMED for part in parts)


def _is_harm(finding: Finding) -> bool:
    """What it finds is harm in itself, or makes what was measured doubtful, however clean the outputs are."""
    return bool(finding.rule.harm) or finding.rule.family == "sanity"


def unsimulated_gain_db(findings: Iterable[Finding]) -> float | None:
    """The most that a repair recovers that no simulated run can show: without all noise that no quantizer makes.

    None where no finding is about such noise.
    """
    shares = [e.value for found in findings for e in found.evidence if e.fact == _UNSIMULATED]
    known = [max(share, 0.0) for share in shares if isinstance(share, float)]
    return max((gain_without_share(share) for share in known), default=None)
