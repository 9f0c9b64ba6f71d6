"""The gate: a policy applied to a diagnosis, line by line, and the verdict that follows."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache

from quantmedic.engine.case.facts import FLOAT_ALONE, CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.check_report import (
    EXIT_CODES,
    BaselineUse,
    CheckedFinding,
    CheckReport,
    ExemptionStatus,
    ExemptionUse,
    FindingStatus,
    GateLine,
    GateStatus,
    GateWord,
    GoneFinding,
)
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.headline import Headline
from quantmedic.engine.garbage import without_garbage_collection
from quantmedic.engine.gate.baseline import Baseline, KnownFinding, headline
from quantmedic.engine.gate.budget import budget_kind, budget_names, judge_budget, undecided_line
from quantmedic.engine.gate.figures import gate_line
from quantmedic.engine.gate.policy import Exemption, PolicyFile
from quantmedic.engine.rules.evaluate import Finding, RuleResult
from quantmedic.engine.rules.rule import SEVERITIES, Severity, matches
from quantmedic.engine.rules.rulebase import RuleBase

#: An exemption warns from so many days before it expires.
SOON_DAYS = 14
#: Message of the gates that need data, in a static case.
STATIC = "no data was used: --static judges weights, graph and quantization parameters"


@dataclass(frozen=True)
class Circumstances:
    """What a check depends on besides the case and the policy.

    Attributes:
        today: The day that decides which exemptions have expired.
        baseline: Findings that are known; None where there is no baseline.
        baseline_origin: Its file name.
        baseline_missing: There is no such file yet, so ``baseline`` holds nothing.
        location: Text file that annotations point at, relative to where the check runs.
        policy: The policy's file in the same form; None where there is none.
        strict: Exemptions that cover nothing fail.
        warn_only: No verdict fails.
        static: The case was made without data on purpose, with ``--static``.
    """

    today: date
    baseline: Baseline | None = None
    baseline_origin: str = "baseline"
    baseline_missing: bool = False
    location: str = "quantmedic.toml"
    policy: str | None = None
    strict: bool = False
    warn_only: bool = False
    static: bool = False


@dataclass(frozen=True)
class Gate:
    """A policy, and the diagnosis that it is applied to.

    Attributes:
        file: The policy.
        base: The rules in force, its choice and thresholds among them.
        case: What was measured.
        facts: Its facts.
        diagnosis: What became of its findings.
        results: Results of all rules on the facts.
        given: Day, baseline and options.
    """

    file: PolicyFile
    base: RuleBase
    case: Case
    facts: CaseFacts
    diagnosis: Diagnosis
    results: Sequence[RuleResult]
    given: Circumstances

    @without_garbage_collection
    def judge(self) -> CheckReport:
        """Apply the policy.

        Raises:
            DataError: A budget names an output that the network does not have.
        """
        gates, given = tuple(self._gates()), self.given
        verdict, fails = self._verdict(gates)
        return CheckReport(
            verdict=verdict,
            exit_code=EXIT_CODES[verdict] if fails and not given.warn_only else 0,
            warn_only=given.warn_only,
            static=given.static,
            model=self.facts.model.name or "?",
            policy=given.policy,
            location=given.location,
            gates=gates,
            findings=self.findings,
            exemptions=self.exemptions,
            baseline=self.baseline_use,
        )

    def _verdict(self, gates: Sequence[GateLine]) -> tuple[GateWord, bool]:
        """The gravest that the policy lets fail, else the gravest at all; and whether it fails.

        A gate that could not be judged is not a pass, except in a static case, which was to have no data.
        """
        statuses = {gate.status for gate in gates}
        if "not-judged" in statuses and not self.given.static:
            statuses.add("undecided")
        verdicts = self.file.policy.check.verdicts
        gravest: list[tuple[GateStatus, GateWord, bool]] = [
            ("anomalous", "ANOMALOUS", verdicts.anomalous == "fail"),
            ("fail", "REGRESSION", True),
            ("undecided", "INSUFFICIENT_DATA", verdicts.insufficient_data == "fail"),
        ]
        there = [(word, fails) for status, word, fails in gravest if status in statuses]
        failing = [(word, fails) for word, fails in there if fails]
        return next(iter(failing or there), ("ACCEPT", False))

    # --- Gates -------------------------------------------------------------------------------------------------------

    def _gates(self) -> Iterator[GateLine]:
        budgets = self.file.policy.check.budget
        for place, (budget, name) in enumerate(zip(budgets, budget_names(budgets), strict=True)):
            line = self.file.line(f"check.budget.{place}")
            if self.given.static:
                yield GateLine(kind=budget_kind(budget), name=name, status="not-judged", message=STATIC, line=line)
                continue
            yield judge_budget(budget, self.case, self.facts, name=name, line=line)
        yield from self._data()
        if self.facts.model.framework == FLOAT_ALONE:
            message = "no quantized model was made, so nothing can be accepted"
            yield gate_line("comparison", "fail", message)
        elif self.diagnosis.verdict == "not-comparable":
            message = f"the two models cannot be compared, so no figure of them counts: {self._incomparable}"
            yield gate_line("comparison", "fail", message)
        elif self._is_unjudged_loss:
            yield self._loss()
        elif (found := self.diagnosis.undecided) and self.file.policy.check.verdicts.undecided == "fail":
            yield undecided_line(found, self.file.line("check.verdicts.undecided"))
        if (gain := self.facts.model.metric.gain_share) is not None:
            yield self._gain(gain)
        yield self._findings_gate()
        yield from self._coverage()
        yield from self._exemptions_gate()

    def _data(self) -> Iterator[GateLine]:
        """An interrupted run is incomplete; samples that are none of this network's tell nothing of it."""
        datasets = self.case.record.datasets
        unread = [f"{role}, {d.seen} samples" for role, d in datasets.items() if not d.complete]
        if unread:
            message = f"not read to the end: {'; '.join(unread)}; go on with --resume"
            yield gate_line("data", "not-judged", message)
        # What makes figures doubtful does so where a loss is proven, too: budgets may be kept by what is not the model.
        for doubt in dict.fromkeys(cause.doubt for cause in self.diagnosis.causes if cause.doubt is not None):
            yield gate_line("data", "not-judged", doubt)

    @property
    def _incomparable(self) -> str:
        if self.facts.model.is_twice_the_same:
            return "both files are the same model"
        if self.facts.model.float_is_quantized:
            return "the float model is quantized itself"
        return "outputs of the float model hold NaN or infinity"

    @property
    def _is_unjudged_loss(self) -> bool:
        """A loss was measured, and neither policy nor baseline says how large it may be."""
        lost = bool(self.facts.model.harmed) or self.diagnosis.drop_class in ("moderate", "large")
        bounded = self.given.policy is not None or self.given.baseline is not None or self.file.policy.check.budget
        return lost and not self.given.static and not bounded

    def _loss(self) -> GateLine:
        """Without a policy, a model that is measurably worse is not accepted, whether or not a rule says why."""
        metric = self.facts.model.metric
        if self.diagnosis.drop_class in ("moderate", "large"):
            verb = "rises" if metric.higher_is_better is False else "falls"
            message = f"{metric.name} {verb} for certain, and no policy allows it"
        elif dead := [f"{o.columns.dead_places} of {o.name}" for o in self.facts.outputs if o.columns.dead_places]:
            message = f"columns {'; '.join(dead)} hold one value in the quantized model, and no policy allows it"
        else:
            message = "the outputs are harmed, and no policy allows it"
        return gate_line("loss", "fail", message)

    def _gain(self, gain: float) -> GateLine:
        """A quantized model that is better by so much was compared wrongly."""
        limit, metric = self.base.threshold("anomalous_gain"), self.facts.model.metric.name
        is_over = gain > limit
        shown = f"{metric} gains at least {100 * gain:.1f} % of its scale, more than the {100 * limit:g} % that"
        within = f"no gain of {metric} over {100 * limit:g} % of its scale"
        return gate_line(
            "gain",
            "anomalous" if is_over else "pass",
            f"{shown} quantization can do: check how the two are compared" if is_over else within,
            value=100 * gain,
            limit=100 * limit,
            unit="%",
            line=self.file.line("check.verdicts.anomalous"),
        )

    def _findings_gate(self) -> GateLine:
        fail_on = self.file.policy.check.fail_on
        gated = sum(finding.gated for finding in self.findings)
        of = [f"of severity {_from_on(fail_on.severity)}"] if fail_on.severity != "never" else []
        of += [f"of {', '.join(fail_on.rules)}"] if fail_on.rules else []
        is_new = self.given.baseline is not None and not self.given.baseline_missing and not fail_on.known
        which = " or ".join(of) or "counted by the policy"
        line = self.file.line("check.fail_on")
        if not gated and (blind := self._blind()):
            message = f"none {which}; not judged: {', '.join(blind)}"
            return gate_line("findings", "not-judged", message, line=line)
        return gate_line(
            "findings",
            "fail" if gated else "pass",
            f"{gated or 'none'} {which}{', new or worse' if is_new else ''}",
            value=gated,
            limit=0,
            line=line,
        )

    def _blind(self) -> list[str]:
        """Rules that the policy names one by one and that could not be judged, with the facts that they lack."""
        named = set(self.file.policy.check.fail_on.rules)
        lacking = [r for r in self.results if r.verdict == "not-judged" and {r.rule.id, r.rule.name} & named]
        return [
            f"{r.rule.id} needs {', '.join(dict.fromkeys(f for u in r.unknown for f in u.missing))}" for r in lacking
        ]

    def _coverage(self) -> Iterator[GateLine]:
        wanted = self.file.policy.check.coverage
        if wanted is None:
            return
        share, line = self.facts.model.quantized_share, self.file.line("check.coverage")
        if share is None:
            message = "the share of quantized operators is not known"
            yield gate_line("coverage", "not-judged", message, line=line)
            return
        yield gate_line(
            "coverage",
            "pass" if share >= wanted.min else "fail",
            f"{100 * share:.4g} % quantized, required {100 * wanted.min:.4g} %",
            value=100 * share,
            limit=100 * wanted.min,
            unit="%",
            line=line,
        )

    def _exemptions_gate(self) -> Iterator[GateLine]:
        unused = [use for use in self.exemptions if use.status == "unused"]
        if not self.given.strict or not unused:
            return
        rules = ", ".join(f"{use.rule} {' '.join(use.layers)}" for use in unused)
        message = f"{len(unused)} cover nothing: {rules}"
        yield gate_line("exemptions", "fail", message, value=len(unused), line=unused[0].line)

    # --- Findings ----------------------------------------------------------------------------------------------------

    @cached_property
    def _listed(self) -> list[tuple[Finding, CauseReport]]:
        """Findings of the causes that the diagnosis lists, without those that other causes explain."""
        causes = {cause.cause: cause for cause in self.diagnosis.causes}
        return [
            (finding, causes[finding.rule.cause])
            for finding in self._fired
            if finding.rule.cause in causes and finding.key not in self._explainers
        ]

    @cached_property
    def findings(self) -> tuple[CheckedFinding, ...]:
        """Gravest first, and what counts before what does not.

        A cause represents the findings that it explains. Where it does not count itself, because the baseline holds it
        or it is not grave enough, the explained ones that count are listed too. An exemption covers a cause with all
        that it explains.
        """
        found = [self._checked_finding(finding, cause) for finding, cause in self._listed]
        speaking = {f.cause for f in found if f.gated or f.exemption is not None}
        explained = ((finding, self._explainers.get(finding.key)) for finding in self._fired)
        hidden = [
            self._checked_finding(f, cause)
            for f, cause in explained
            if cause is not None and cause.cause not in speaking
        ]
        found += [finding for finding in hidden if finding.gated]
        return tuple(sorted(found, key=lambda f: (not f.gated, SEVERITIES.index(f.severity))))

    @cached_property
    def _fired(self) -> list[Finding]:
        """All findings, in the order of the rules."""
        return [finding for result in self.results for finding in result.findings]

    @cached_property
    def _explainers(self) -> Mapping[tuple[str, str], CauseReport]:
        """The cause that explains a finding, by rule and subject."""
        return {(e.rule, e.subject): cause for cause in self.diagnosis.causes for e in cause.absorbs}

    def _checked_finding(self, finding: Finding, cause: CauseReport) -> CheckedFinding:
        lead = headline(finding)
        severity = self._severity(finding, cause)
        status, before = self._status(finding, lead)
        exemption = self._exemption(finding)
        return CheckedFinding(
            rule=finding.rule.id,
            name=finding.rule.name,
            cause=cause.cause,
            severity=severity,
            subject=finding.subject,
            message=finding.message,
            **(vars(lead) if lead is not None else {}),
            before=before,
            status=status,
            gated=exemption is None and self._counts(finding, severity, status),
            exemption=exemption,
        )

    def _severity(self, finding: Finding, cause: CauseReport) -> Severity:
        """That of the cause for the findings that decide it; of a lesser rule its own, where that is lower."""
        if finding.rule.severity == self._stated.get(cause.cause):
            return cause.severity
        return max(finding.rule.severity, cause.severity, key=SEVERITIES.index)

    @cached_property
    def _stated(self) -> Mapping[str, Severity]:
        """The gravest severity that the rules of a listed cause state."""
        found: dict[str, Severity] = {}
        for finding, cause in self._listed:
            known = found.setdefault(cause.cause, finding.rule.severity)
            found[cause.cause] = min(known, finding.rule.severity, key=SEVERITIES.index)
        return found

    def _counts(self, finding: Finding, severity: Severity, status: FindingStatus) -> bool:
        fail_on = self.file.policy.check.fail_on
        if status == "known" and not fail_on.known:
            return False
        # What makes the figures doubtful is no loss: the data are a gate of their own.
        if finding.rule.doubt is not None:
            return any(matches(finding.rule, selector) for selector in fail_on.rules)
        grave = fail_on.severity != "never" and SEVERITIES.index(severity) <= SEVERITIES.index(fail_on.severity)
        return grave or any(matches(finding.rule, selector) for selector in fail_on.rules)

    # --- Baseline ----------------------------------------------------------------------------------------------------

    @cached_property
    def _known(self) -> Mapping[tuple[str, str], KnownFinding]:
        """Findings of the baseline by rule and present name."""
        if self.given.baseline is None:
            return {}
        return {(f.rule, self._renamed(f.layer)): f for f in self.given.baseline.findings}

    @cached_property
    def _renamed(self) -> Callable[[str], str]:
        assert self.given.baseline is not None
        return self.given.baseline.renamer_for(self.facts.layers)

    def _status(self, finding: Finding, lead: Headline | None) -> tuple[FindingStatus, float | None]:
        """New, worse or known, and the value in the baseline; worse by the fact that the baseline holds."""
        known = self._known.get(finding.key)
        if known is None:
            return "new", None
        if lead is None or lead.fact != known.fact:
            return "known", known.value
        return ("worse" if lead.trend(known.value, lead.value) == "worse" else "known"), known.value

    @property
    def baseline_use(self) -> BaselineUse | None:
        """What became of the baseline; findings that another cause explains are still there."""
        if self.given.baseline is None:
            return None
        gone, not_judged = gone_findings(self.given.baseline, self._renamed, self.results)
        counts = {status: sum(f.status == status for f in self.findings) for status in ("known", "worse", "new")}
        return BaselineUse(
            origin=self.given.baseline_origin,
            missing=self.given.baseline_missing,
            **counts,
            gone=tuple(GoneFinding(rule=f.rule, subject=f.layer) for f in gone),
            not_judged=tuple(GoneFinding(rule=f.rule, subject=f.layer) for f in not_judged),
            renamed=sum(self._renamed(layer.name) != layer.name for layer in self.given.baseline.layers),
        )

    # --- Exemptions --------------------------------------------------------------------------------------------------

    @cached_property
    def exemptions(self) -> tuple[ExemptionUse, ...]:
        """Every exemption of the policy, and what it did."""
        return tuple(self._use(place, exemption) for place, exemption in enumerate(self.file.policy.ignore))

    def _use(self, place: int, exemption: Exemption) -> ExemptionUse:
        covered = sum(covers(exemption, finding) for finding, _ in self._listed)
        days = days_left(exemption, self.given.today)
        return ExemptionUse(
            rule=exemption.rule,
            layers=exemption.layers,
            reason=exemption.reason,
            expires=str(exemption.expires),
            status=self._exemption_status(exemption, covered, days),
            days=days,
            findings=covered,
            line=self.file.line(f"ignore.{place}"),
        )

    def _exemption_status(self, exemption: Exemption, covered: int, days: int | None) -> ExemptionStatus:
        # It is in use even where another cause explains this time what it covers.
        if not covered and not any(covers(exemption, finding) for finding in self._fired):
            return "not-judged" if self._unknown(exemption) else "unused"
        if days is not None and days < 0:
            return "expired"
        return "expires-soon" if days is not None and days <= SOON_DAYS else "active"

    def _unknown(self, exemption: Exemption) -> bool:
        """Its rule could not be judged on its layers, or is not in force."""
        rules = [result for result in self.results if matches(result.rule, exemption.rule)]
        return not rules or any(is_among(u.subject, exemption) for result in rules for u in result.unknown)

    def _exemption(self, finding: Finding) -> int | None:
        """The first exemption in force that covers a finding."""
        for place, exemption in enumerate(self.file.policy.ignore):
            days = days_left(exemption, self.given.today)
            if covers(exemption, finding) and (days is None or days >= 0):
                return place
        return None


def gone_findings(
    baseline: Baseline, renamed: Callable[[str], str], results: Sequence[RuleResult]
) -> tuple[list[KnownFinding], list[KnownFinding]]:
    """Findings of a baseline that are no longer there, and those that could not be judged this time.

    Args:
        baseline: The known findings.
        renamed: Gives the present name of a subject: ``Baseline.renamer_for``.
        results: What all rules say now.
    """
    fired = {finding.key for result in results for finding in result.findings}
    unknown = {u.key for result in results for u in result.unknown}
    in_force = {result.rule.id for result in results}
    gone: list[KnownFinding] = []
    unjudged: list[KnownFinding] = []
    for known in baseline.findings:
        key = known.rule, renamed(known.layer)
        if key not in fired:
            (unjudged if known.rule not in in_force or key in unknown else gone).append(known)
    return gone, unjudged


def _from_on(severity: Severity) -> str:
    return severity if severity == SEVERITIES[0] else f"{severity} or above"


def covers(exemption: Exemption, finding: Finding) -> bool:
    """The exemption is for the rule, and for the layer or the subject."""
    return matches(finding.rule, exemption.rule) and any(
        is_among(name, exemption) for name in (finding.subject, finding.layer) if name is not None
    )


def is_among(name: str, exemption: Exemption) -> bool:
    """One of its patterns matches the name."""
    return any(_pattern(layer).fullmatch(name) for layer in exemption.layers)


@lru_cache
def _pattern(layers: str) -> re.Pattern[str]:
    """``*`` is any text and ``?`` one character; brackets are part of a name."""
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in layers)
    return re.compile("".join(parts), re.DOTALL)


def days_left(exemption: Exemption, today: date) -> int | None:
    """Days that it is still in force, the last one included; None for ever."""
    return None if exemption.expires == "never" else (exemption.expires - today).days
