"""Which cause leads, which others are only another name of it, and what each costs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, OperandFacts, SourceFacts, TensorFacts
from quantmedic.engine.case.gains import gain_without_share, share_of_gain
from quantmedic.engine.contract.advised_remedies import Prescription, Step
from quantmedic.engine.contract.causes import Ahead, CauseReport, Explained, LayerName, LeadingStep
from quantmedic.engine.contract.previous_report import Previous, Tried
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.harm import Loss, unsimulated_gain_db
from quantmedic.engine.diagnosis.headline import is_number
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, Prediction, is_grave
from quantmedic.engine.diagnosis.remedy_outcomes import RemedyOutcomes, gains_of
from quantmedic.engine.diagnosis.repair_runs import ANEW, PREFERENCE_DB, SUFFICIENT_DB
from quantmedic.engine.diagnosis.suspects import Repair, Suspect, places_of
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.rules.evaluate import Evidence, Finding, evaluate
from quantmedic.engine.rules.remedy_kinds import AT_MOST, MORE_BITS
from quantmedic.engine.rules.rule import SERIOUS, SEVERITIES, Severity, family_of
from quantmedic.engine.rules.rulebase import RuleBase

#: What orders causes before prescriptions are run, the first that differs; at last the size of their changes.
STEPS: tuple[LeadingStep, ...] = get_args(LeadingStep)[:-1]
#: Repairs recover the same where their gains differ by less: the difference of two rounded figures in a report.
SAME_DB = 1.0
#: Kinds of changes after which values or weights are no longer rounded in the bits in force, or that are only a most.
TAKES_AWAY = (*MORE_BITS, *AT_MOST, "fused")
#: A defect of the data as sure as this is seen in the samples: it stands, although one repair of the data mends others.
EVIDENT = 0.85
#: Places with less of the noise are in the order of their facts.
MATTERS = 0.02
#: A larger share of the noise is taken back by other sources: what one makes is not what it explains.
CANCELS = 1.5
#: Share of a cause's subjects that a remedy has to be tried on before its failure counts against the cause.
TRIED_SHARE = 0.5


class Contender(NamedTuple):
    """A suspect with what is known of it.

    Attributes:
        suspect: Its findings and repairs.
        cause: What the report says of it.
        outcome: What its repairs recover.
        carried: Share of the noise that the layers and tensors make which it names; None where that is not known.
        mended: The largest such share of the causes that have its repair.
        key: What orders it: a value for each of `STEPS` but the last, and its rules, so that no two are the same.
    """

    suspect: Suspect
    cause: CauseReport
    outcome: RemedyOutcomes
    carried: float | None
    mended: float | None = None
    key: tuple[bool | float | tuple[str, ...], ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What its rules found."""
        return self.suspect.findings

    @property
    def is_of_data(self) -> bool:
        """A rule found it that judges a data set."""
        return any(found.rule.scope == "dataset" for found in self.findings)

    @property
    def is_doubt(self) -> bool:
        """It makes the comparison doubtful, which may explain everything else."""
        return self.cause.severity == "high" and _is_of_comparison(self.cause)

    @property
    def gain_db(self) -> float | None:
        """What its repair recovers whatever else is repaired, up to what counts as all.

        What takes quantizers away earns no more than the noise of the places that the causes name which it repairs, if
        that is known: a product may make the noise of what it multiplies.
        """
        gain = self.outcome.mean_gain_db
        if gain is None:
            return None
        notable = self.outcome.base.threshold("notable_share")
        is_known = self.contains_others and self.mended is not None and self.mended > notable
        return min(gain, ENOUGH_DB, gain_without_share(self.mended or 0.0) if is_known else ENOUGH_DB)

    @property
    def size(self) -> tuple[bool, bool, float]:
        """How much its repair changes: nothing but data, then nothing but ranges, then few places."""
        return not self.is_of_data, self.contains_others, self._places

    @property
    def _places(self) -> float:
        """Places that its repair changes; of a repair that makes the whole network anew, those where it is needed."""
        repair = self.outcome.repair
        if self.suspect.is_global:
            return math.inf
        if repair is None or repair.kind == ANEW:
            return len({found.layer or found.subject for found in self.findings})
        # A bias is made anew with the weights of its layer.
        return len({(kind == "tensor", place) for kind, place in places_of(repair.change)})

    @property
    def contains_others(self) -> bool:
        """Its repair takes quantizers away, or makes up for any noise: it heals where others would, too.

        None of its repairs does not, and recovers about as much.
        """
        repair = self.outcome.repair
        if repair is None or not is_universal(repair):
            return False
        least_db = self.outcome.counted_db - PREFERENCE_DB
        own = (self.outcome.gain_of(each.kind) for each in self.suspect.repairs if not is_universal(each))
        return not any(gain is not None and gain >= least_db for gain in own)

    @property
    def stands_alone(self) -> bool:
        """Its repair stays within the bits in force and recovers what is worth a name."""
        return self.gain_db is not None and not self.contains_others and is_grave(self.gain_db, self.outcome.base)

    def heals_by_itself(self, enough_db: float) -> bool:
        """Its repair stays within the bits in force, and recovers so much."""
        return self.gain_db is not None and self.gain_db >= enough_db and not self.contains_others

    @property
    def order(self) -> tuple[bool, int, bool]:
        """What decides before any gain: doubts, how grave it is, and whether a repair of this fault alone proved it."""
        proven = self.outcome.proven and not self.contains_others
        return not self.is_doubt, SEVERITIES.index(self.cause.severity), not proven


@dataclass(frozen=True)
class Competition:
    """What decides between causes.

    Attributes:
        base: Rules and thresholds in force.
        facts: The measured facts, with harm taken for granted where none was found.
        outcomes: What repairs recover, by cause.
        carried: Share of the noise that the layers and tensors make which a cause names, where it was measured.
        loss: What is known of the loss.
    """

    base: RuleBase
    facts: CaseFacts
    outcomes: Mapping[str, RemedyOutcomes]
    carried: Mapping[str, float]
    loss: Loss

    def decide(
        self, suspects: Sequence[Suspect], repair: Callable[[Change, Prediction | None], CaseFacts]
    ) -> tuple[CauseReport, ...]:
        """The causes in their order, with what each costs and the findings that it explains.

        A cause whose repair makes others vanish absorbs them. An absorbed cause is listed as a remark where it may as
        well be the name of the loss.

        Args:
            suspects: The suspected causes.
            repair: Gives the facts that would be measured after a change.
        """
        ranked = self.rank(suspects)
        absorbs = self._absorb(ranked, repair)
        absorbed = {found.key for own in absorbs.values() for found in own}
        # What more bits take away is no less there for that.
        universal = {own.cause.cause for own in ranked if own.contains_others}
        taken = {found.rule.cause for name, own in absorbs.items() if name in universal for found in own}
        causes = []
        for each in ranked:
            left = tuple(found for found in each.findings if found.key not in absorbed)
            if left:
                cause = each.cause if left == each.findings else self._narrow(each, left)
                causes.append(cause.model_copy(update={"absorbs": _list_explained(absorbs, cause.cause)}))
            elif not self._is_assumed and (each.cause.cause in taken or self._may_be_the_name(each, ranked)):
                causes.append(_as_remark(each.cause, absorbs))
        findings = {suspect.cause: suspect.findings for suspect in suspects}
        judged = [self.loss.judge(cause, findings[cause.cause], self.outcomes[cause.cause]) for cause in causes]
        judged.sort(key=_severest)
        if self._device_loses_more:
            # Graver than anything here, and the layer before the whole.
            graver = [own.model_copy(update={"severity": "high"}) for own in judged if own.is_of_device]
            graver.sort(key=lambda own: not own.layers)
            judged = [*graver, *(own for own in judged if not own.is_of_device)]
        return _with_ahead(judged, {own.cause.cause: own for own in ranked})

    @property
    def _is_assumed(self) -> bool:
        """Harm is only assumed: one cause is reported, not every other name of it."""
        return self.facts is not self.loss.facts

    def rank(self, suspects: Sequence[Suspect]) -> list[Contender]:
        """The leading cause first; the first of these that differs decides.

        1. Doubts about the comparison, which may explain everything else.
        2. Severity, by what the cause's own change recovers (`_severity`): one that recovers nothing cannot lead.
        3. Proven before simulated or inferred, by a repair of this fault alone.
        4. Where most layers are degraded (degrade_layer_ratio), a cause of the whole model that was not tried.
        5. What suffices within the bits in force, before what takes quantizers away or is not known to heal.
        6. Confidence times the decibels that are recovered; where nothing was tried, what is claimed (`_claim_db`).
        7. Where the error originates, of causes of which nothing was tried: data whose fault is seen, or its layers.
        8. Confidence.

        Of causes whose changes recover the same (`SAME_DB`) the one with the smaller change leads (`Contender.size`).
        """
        born = {layer.name for layer in self.facts.layers if layer.born}
        contenders = self._without_mere_bits(_with_mended([*map(self._contender, suspects)]))
        best_db = max((own.gain_db for own in contenders if own.gain_db is not None), default=0.0)
        # Where one suffices, what recovers about as much does, too.
        enough_db = min(SUFFICIENT_DB, best_db - PREFERENCE_DB) if best_db >= SUFFICIENT_DB else SUFFICIENT_DB
        is_widespread = (self.facts.model.degraded_share or 0.0) > self.base.threshold("degrade_layer_ratio")

        def key(own: Contender) -> tuple[bool | float | tuple[str, ...], ...]:
            is_general = is_widespread and own.suspect.is_global and own.gain_db is None
            confidence, gain = own.cause.confidence, own.gain_db
            worth = self._claim_db(own) if gain is None else confidence * gain
            is_seen = own.is_of_data and confidence >= EVIDENT
            originates = is_seen or any(found.layer in born for found in own.findings)
            suffices = own.heals_by_itself(enough_db)
            return *own.order, not is_general, not suffices, -worth, not originates, -confidence, own.cause.rules

        left = sorted((own._replace(key=key(own)) for own in contenders), key=lambda own: own.key)
        ranked = []
        while left:
            alike = (own for own in left if own is left[0] or _recovers_the_same(own, left[0]))
            smallest = min(alike, key=lambda own: own.size)
            left.remove(smallest)
            ranked.append(smallest)
        return ranked

    def _claim_db(self, own: Contender) -> float:
        """What an untried cause claims: no more than what its severity means."""
        shares = {"high": self.base.threshold("grave_share"), "medium": self.base.threshold("carried_share")}
        claimed = gain_without_share(shares.get(own.cause.severity, 0.0))
        most = unsimulated_gain_db(own.findings)
        return min(claimed if most is None else most, own.outcome.most_db, ENOUGH_DB)

    def _narrow(self, own: Contender, findings: tuple[Finding, ...]) -> CauseReport:
        """The cause as the findings have it that no other explains."""
        return self._contender(replace(own.suspect, findings=findings)).cause

    def _absorb(
        self, ranked: Sequence[Contender], repair: Callable[[Change, Prediction | None], CaseFacts]
    ) -> dict[str, list[Finding]]:
        """Findings that vanish under the repair of a cause that ranks before, or share it, by that cause."""
        absorbs: dict[str, list[Finding]] = {}
        for place, own in enumerate(ranked):
            absorbed = {f.key for found in absorbs.values() for f in found}
            # What recovers nothing explains nothing.
            is_weak = own.cause.severity not in SERIOUS or own.outcome.is_negligible
            if is_weak or all(f.key in absorbed for f in own.findings):
                continue
            rest = ranked[place + 1 :]
            gone = {f.key for other in rest if _is_same_fault(own, other) for f in other.findings}
            # More bits take every fault of a place away: none that has a repair of its own is explained by them.
            others = [other for other in rest if not (own.contains_others and other.stands_alone)]
            later = [f for other in others for f in other.findings if f.key not in absorbed]
            if own.outcome.change:
                gone |= self._find_repaired(own, own.outcome.change, later, repair)
            absorbs[own.cause.cause] = [f for f in later if f.key in gone]
        return absorbs

    def _find_repaired(
        self,
        own: Contender,
        change: Change,
        later: Iterable[Finding],
        repair: Callable[[Change, Prediction | None], CaseFacts],
    ) -> set[tuple[str, str]]:
        """Findings of later causes that vanish on the repaired facts; what cannot be judged on them stays."""
        found = {f.key for f in later if _may_explain(own.suspect, change, f)}
        if not found:
            return found
        after = evaluate(self.base, repair(change, own.outcome.alone))
        found -= {f.key for result in after for f in result.findings}
        return found - {u.key for result in after for u in result.unknown}

    def _may_be_the_name(self, absorbed: Contender, ranked: Sequence[Contender]) -> bool:
        """An absorbed cause may as well be the name of the loss.

        Its change is that of another cause, or recovers about as much as the best; or it says where most of the noise
        is.
        """
        if any(own is not absorbed and _is_same_fault(own, absorbed) for own in ranked):
            return True
        best_db = max(own.outcome.counted_db for own in ranked)
        least_db = max(best_db - PREFERENCE_DB, self.base.threshold("negligible_gain_db"))
        return absorbed.outcome.counted_db >= least_db or (absorbed.carried or 0.0) > self.base.threshold("grave_share")

    def _contender(self, suspect: Suspect) -> Contender:
        outcome, carried = self.outcomes[suspect.cause], self.carried.get(suspect.cause)
        cause = outcome.report(cause_report(suspect.findings, self.base, self.facts, suspect.spread))
        most = unsimulated_gain_db(suspect.findings)
        severity = self._severity(cause.severity, outcome, carried or 0.0, most)
        if self._is_hurt and outcome.proven is None and _is_of_comparison(cause):
            # Not a number stays none on any grid: what a simulation does not recover says nothing of it.
            severity = min(severity, cause.severity, key=SEVERITIES.index)
        return Contender(suspect, cause.model_copy(update={"severity": severity}), outcome, carried)

    @property
    def _device_loses_more(self) -> bool:
        """On the device the task loses more than the quantized model does here: that is what users have."""
        loss, drop = self.facts.model.device.metric_loss, self.facts.model.metric.drop
        return loss is not None and loss > max(drop or 0.0, self.base.threshold("drop_moderate"))

    @property
    def _is_hurt(self) -> bool:
        """The network is measurably worse, so that a large share of its noise is a large share of a loss."""
        return bool(self.facts.model.harmed) or self.loss.is_proven

    def _severity(self, stated: Severity, outcome: RemedyOutcomes, carried: float, most: float | None) -> Severity:
        """Severity by what the repair recovers at the output, measured or else simulated; else as the rule states it.

        Args:
            stated: Severity of the gravest rule. A remark, of low or no severity, stays one unless a repair in the bits
                in force recovers most of a loss.
            outcome: What the repair recovers.
            carried: Share of the noise that what the cause names makes by the loss budget. What makes most of a loss is
                grave, and what makes a notable part is no trifle, also where no remedy of its rules heals it alone.
            most: The most that a repair recovers that could not be simulated; None where that is not known. What other
                noise hides may count once that is gone, and is not grave before.
        """
        base = self.base
        if outcome.explains_nothing:
            return "low"
        if outcome.gain_db is None:
            known = stated in SERIOUS and most is not None and self._is_hurt
            return stated if not known else "high" if is_grave(most or 0.0, base) else "medium"
        if stated not in SERIOUS:
            return "high" if self._is_hurt and is_grave(outcome.recoverable_db or 0.0, base) else stated
        if outcome.is_negligible:
            if not self._is_hurt or carried <= base.threshold("carried_share"):
                return "low"
            return stated if carried > base.threshold("grave_share") else "medium"
        if not is_grave(outcome.gain_db, base) or outcome.proven is False:
            return "medium"
        return "high" if self._is_hurt else stated

    def _without_mere_bits(self, contenders: Sequence[Contender]) -> list[Contender]:
        """More bits for the whole network are a remark where a smaller change recovers a good part: that is wrong."""
        mere = {own.cause.cause for own in contenders if own.suspect.is_global and own.contains_others}
        others = [share_of_gain(own.gain_db or 0.0) for own in contenders if own.cause.cause not in mere]
        if not mere or max(others, default=0.0) <= self.base.threshold("quarter_share"):
            return [*contenders]
        low = {"severity": "low"}
        return [
            own._replace(cause=own.cause.model_copy(update=low)) if own.cause.cause in mere else own
            for own in contenders
        ]


def _with_mended(contenders: Sequence[Contender]) -> list[Contender]:
    """The contenders with the largest share that a cause with the same repair carries; not where sources cancel."""
    if any((own.carried or 0.0) > CANCELS for own in contenders):
        return [*contenders]
    most: dict[str, float] = {}
    for own in contenders:
        if own.outcome.repair is not None and own.carried is not None:
            key = own.outcome.repair.key
            most[key] = max(own.carried, most.get(key, 0.0))
    return [own._replace(mended=most.get(own.outcome.repair.key if own.outcome.repair else "")) for own in contenders]


def _is_of_comparison(cause: CauseReport) -> bool:
    """A rule found it that judges whether the comparison is sound."""
    return any(family_of(rule) == "sanity" for rule in cause.rules)


def is_universal(repair: Repair) -> bool:
    """It takes quantizers away, or makes up for any noise: it heals where others would, too."""
    return repair.kind in TAKES_AWAY or bool(repair.change.learned)


def _is_same_fault(own: Contender, other: Contender) -> bool:
    """One change repairs both, or nothing can be tried at one place, and no witness speaks for the other.

    So both are names of one fault, as far as experiments can tell.
    """
    first, second = own.outcome.repair, other.outcome.repair
    if other.suspect.is_global and other.cause.confidence >= EVIDENT:
        return False
    if first is not None and second is not None and first.key == second.key:
        return True
    untried = all(unsimulated_gain_db(each.findings) is not None for each in (own, other))
    return untried and {found.layer for found in other.findings} <= {found.layer for found in own.findings}


def _may_explain(suspect: Suspect, change: Change, finding: Finding) -> bool:
    """A repair of a suspect may make such a finding of another one vanish."""
    family = finding.rule.family
    # Data may spoil a layer, but no layer spoils data; and no grid repairs what operators compute otherwise.
    if family == "runtime" or (finding.rule.scope == "dataset" and not suspect.is_global):
        return False
    # Ranges may hide what weights do, but do not repair them.
    return family != "weights" or bool(change.weights or change.biases)


def _list_explained(absorbs: Mapping[str, Iterable[Finding]], cause: str) -> tuple[Explained, ...]:
    return tuple(
        Explained(rule=f.rule.id, name=f.rule.name, subject=f.subject, message=f.message)
        for f in absorbs.get(cause, ())
    )


def _as_remark(cause: CauseReport, absorbs: Mapping[str, Iterable[Finding]]) -> CauseReport:
    """An absorbed cause with the one whose repair takes the gravest rule of it away."""
    lead = cause.rules[0]
    explainer = next((name for name, found in absorbs.items() if any(each.rule.id == lead for each in found)), None)
    return cause.model_copy(update={"severity": "low", "explained_by": explainer})


def _severest(cause: CauseReport) -> tuple[int, bool, bool]:
    inferred = cause.measured_gain_db is None and cause.predicted_low_db is None and not _is_of_comparison(cause)
    return SEVERITIES.index(cause.severity), cause.harm != "assumed", cause.harm == "assumed" and inferred


def _with_ahead(causes: Sequence[CauseReport], ranked: Mapping[str, Contender]) -> tuple[CauseReport, ...]:
    """The causes, the first with why it comes before the next that is no other name of it."""
    other = next((cause for cause in causes[1:] if cause.explained_by != causes[0].cause), None)
    if other is None:
        return tuple(causes)
    first, second = ranked[causes[0].cause], ranked[other.cause]
    ahead = Ahead(of=other.cause, by=_step_between(first, second), gain_db=first.gain_db, other_gain_db=second.gain_db)
    if first.key > second.key and _severest(causes[0]) != _severest(other):
        ahead = ahead.model_copy(update={"by": "severity"})
    return causes[0].model_copy(update={"ahead": ahead}), *causes[1:]


def _step_between(first: Contender, second: Contender) -> LeadingStep:
    """What decided; one that leads although its key comes later has the smaller change."""
    if first.key > second.key:
        return "size"
    differ = (step for step, own, other in zip(STEPS, first.key, second.key, strict=True) if own != other)
    return next(differ, "confidence")


def _recovers_the_same(own: Contender, lead: Contender) -> bool:
    """As grave as the leading one and as well known, with a change that recovers as much and is no mere taking away."""
    if own.order != lead.order or own.contains_others or own.gain_db is None or lead.gain_db is None:
        return False
    return abs(own.gain_db - lead.gain_db) <= SAME_DB


def rank_tried(causes: Iterable[CauseReport], previous: Previous) -> tuple[CauseReport, ...]:
    """Causes whose remedy was tried without effect go behind the others, and that remedy behind their others."""
    marked = []
    for cause in causes:
        failed = tuple(
            t for t in previous.tried if t.helped is False and t.cause == cause.cause and _bears_on(t, cause)
        )
        ids = {tried.remedy for tried in failed}
        remedies = tuple(sorted(cause.remedies, key=lambda remedy: remedy.id in ids))
        marked.append(cause.model_copy(update={"remedies": remedies, "tried": failed}) if failed else cause)
    return tuple(sorted(marked, key=lambda cause: bool(cause.tried)))


def _bears_on(tried: Tried, cause: CauseReport) -> bool:
    """It was tried on enough of what the cause is found on now."""
    if tried.everywhere:
        return True
    done = set(tried.subjects)
    layers = {layer.float_name or layer.quantized_name for layer in cause.layers}
    shares = [len(done & names) / len(names) for names in (set(cause.subjects), layers) if names]
    return max(shares, default=0.0) >= TRIED_SHARE


def rank_executed(
    causes: tuple[CauseReport, ...], given: Prescription | None, base: RuleBase
) -> tuple[CauseReport, ...]:
    """A cause that no edited copy shows as well is proven by the executed prescription that is for it alone.

    A copy is what an edit can make of the quantized model; what the toolchain makes is what the user gets. Where that
    takes most of the noise away, no other cause as severe comes before it. What quantizing again with nothing changed
    recovers is no merit of another remedy; and more bits, which heal whatever is wrong, make no lead of a remark.
    """
    if given is None or given.executed is None or given.grade != "executed":
        return causes
    repaired = {name for step in given.steps for name in step.causes}
    universal = {name for step in given.steps if _is_of_more_bits(step, base) for name in step.causes}
    remarks = {cause.cause for cause in causes if cause.explained_by is not None} & universal
    trial = given.executed.credit
    gain = trial.gain_db or 0.0
    grave = is_grave(gain, base)
    measured = {**gains_of(trial), "proven": trial.proven}

    def with_gain(cause: CauseReport) -> CauseReport:
        rises = grave and cause.harm != "assumed" and cause.cause not in remarks
        return cause.model_copy(update={**measured, "severity": "high" if rises else cause.severity})

    found = [
        with_gain(cause)
        if {cause.cause} == repaired and (cause.measured_gain_db is None or gain > cause.measured_gain_db)
        else cause
        for cause in causes
    ]
    leading = repaired - remarks if grave and trial.proven else set[str]()

    device_leads = any(cause.is_of_device and cause.severity == "high" for cause in causes[:1])

    def place(cause: CauseReport) -> tuple[int, bool, bool]:
        # What makes the comparison itself doubtful, such as values that are no number, stays in front: no run shows it.
        is_doubt = (cause.severity == "high" or cause.harm == "assumed") and _is_of_comparison(cause)
        # What the user's device loses is not mended by a prescription for this model here.
        stays = is_doubt or (device_leads and cause.is_of_device and cause.severity == "high")
        return SEVERITIES.index(cause.severity), not stays, cause.cause not in leading

    found.sort(key=place)
    if found and found[0].cause != causes[0].cause:
        ahead = Ahead(of=causes[0].cause, by="run", gain_db=gain, other_gain_db=causes[0].predicted_gain_db)
        found[0] = found[0].model_copy(update={"ahead": ahead})
    return tuple(found)


def _is_of_more_bits(step: Step, base: RuleBase) -> bool:
    remedy = base.remedies.get(step.remedy)
    return remedy is not None and remedy.simulate in TAKES_AWAY


def cause_report(
    findings: Sequence[Finding], base: RuleBase, facts: CaseFacts, spread: Mapping[str, Targets]
) -> CauseReport:
    """One cause: what makes most of the noise first, and where that is not known, the surer rule.

    Of one rule what is furthest beyond its limit comes first.

    ``spread`` says where remedies go that are for every place that they help, by their kind.
    """
    ordered = sorted(
        findings,
        key=lambda f: (SEVERITIES.index(f.rule.severity), -_loudness(f), -f.rule.confidence, -_excess(f)),
    )
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
