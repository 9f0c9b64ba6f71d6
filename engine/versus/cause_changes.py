"""What became of the causes between two cases: healed, new, better, worse, as they were."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import SCOPES, CaseFacts, Facts, fact_paths
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.headline import Headline, headline_of, is_number
from quantmedic.engine.diagnosis.previous import differs
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.evaluate import RuleResult, decide, look_up, subject_name, subjects
from quantmedic.engine.rules.rule import SERIOUS, SEVERITIES, Severity
from quantmedic.engine.rules.rulebase import RuleBase

#: ``explained``: still found, and another cause explains it now or did; ``not-judged``: one of the two could not judge
#: it; ``gone``: the other model has no such subject; ``mixed``: on some subjects better, on others worse.
Status = Literal["new", "worse", "mixed", "healed", "better", "unchanged", "explained", "not-judged", "gone"]
ORDER: tuple[Status, ...] = get_args(Status)


class SubjectChange(Contract):
    """One layer, tensor or data set that a cause was found on, in either case."""

    subject: str = Field(description="its name in the second case, else in the first")
    before_name: str | None = Field(default=None, description="its name in the first case, where that is another")
    status: Status
    before: int | float | None = Field(default=None, description="value of the cause's headline fact before")
    after: int | float | None = Field(default=None, description="the same after")


class FactChange(Contract):
    """One fact in both cases."""

    fact: str
    unit: str | None = None
    before: object
    after: object


class CauseChange(Contract):
    """One cause that was found in either case."""

    cause: str
    name: str = Field(default="", description="what reports call it: the name of the first of its rules")
    status: Status
    rules: tuple[str, ...] = Field(description="rules that found it, in either case")
    severity_before: Severity | None = Field(description="None where the first diagnosis does not list it")
    severity_after: Severity | None = Field(description="None where the second does not")
    fact: str | None = Field(description="headline fact: the first of its evidence that is compared with a number")
    unit: str | None = Field(default=None, description="unit of that fact")
    comparison: str | None = Field(default=None, description="operator that it is compared with")
    threshold: int | float | None = Field(default=None, description="threshold in force")
    before: int | float | None = Field(
        default=None, description="worst value of that fact on the subjects below, before"
    )
    after: int | float | None = Field(default=None, description="the same after")
    found_before: int = Field(description="subjects that it was found on before")
    found_after: int = Field(description="the same after")
    subjects: tuple[SubjectChange, ...] = Field(description="these subjects, what got worse first")
    explained_by: str | None = Field(
        default=None, description="cause that explains it in the case whose diagnosis does not list it"
    )
    missing: tuple[str, ...] = Field(default=(), description="facts that one of the two lacks to judge it")
    turned: tuple[FactChange, ...] = Field(
        default=(), description="of a cause that is healed or new the facts by which its first rule does not hold"
    )
    manual: str = Field(description="page of the manual, without its suffix")

    @property
    def severity(self) -> Severity:
        """The more severe of both."""
        return min((s for s in (self.severity_before, self.severity_after) if s is not None), key=SEVERITIES.index)

    @property
    def is_serious(self) -> bool:
        """Of high or medium severity in either case."""
        return self.severity in SERIOUS


@dataclass(frozen=True)
class Findings:
    """One case as all rules judged it, with the subjects by name."""

    diagnosis: Diagnosis
    facts: CaseFacts
    fired: Mapping[str, set[str]]
    unknown: Mapping[str, Mapping[str, tuple[str, ...]]]
    listed: Mapping[str, CauseReport]

    @classmethod
    def of(cls, diagnosis: Diagnosis, facts: CaseFacts, results: Iterable[RuleResult]) -> "Findings":
        """What fired and what could not be judged, by cause and subject.

        Args:
            diagnosis: The diagnosis.
            facts: Its facts.
            results: Results of all rules on them, absorbed findings included.
        """
        fired: dict[str, set[str]] = {}
        unknown: dict[str, dict[str, tuple[str, ...]]] = {}
        for result in results:
            fired.setdefault(result.rule.cause, set()).update(finding.subject for finding in result.findings)
            lacking = {each.subject: each.missing for each in result.unknown}
            unknown.setdefault(result.rule.cause, {}).update(lacking)
        # A remark that is another name of a cause is no fault of its own.
        listed = {cause.cause: cause for cause in diagnosis.causes if cause.explained_by is None}
        return cls(diagnosis, facts, fired, unknown, listed)

    def views(self, scopes: Sequence[str]) -> dict[str, Facts]:
        """Subjects of these scopes by name, the first of each."""
        found: dict[str, Facts] = {}
        for scope in reversed(scopes):
            own: dict[str, Facts] = {}
            for view in subjects(scope, self.facts):
                own.setdefault(subject_name(view), view)
            found |= own
        return found

    def subjects(self, cause: str) -> tuple[str, ...]:
        """What the diagnosis lists a cause with."""
        return self.listed[cause].subjects if cause in self.listed else ()

    def value(self, headline: Headline | None, view: Facts | None) -> float | None:
        """The fact that a cause is known by, on one subject."""
        if headline is None or view is None:
            return None
        try:
            value = look_up(headline.fact, view, self.facts.model)
        except AttributeError:  # another scope of the same cause
            return None
        return value if is_number(value) else None

    def why_not_listed(self, cause: str, subject: str, is_there: bool, otherwise: Status) -> Status:
        """Why a subject is not listed with a cause that the other case lists it with."""
        if subject in self.fired.get(cause, ()):
            return "explained"
        if subject in self.unknown.get(cause, {}):
            return "not-judged"
        return otherwise if is_there else "gone"

    def missing(self, cause: str) -> tuple[str, ...]:
        """Facts that it lacks to judge a cause."""
        return tuple(dict.fromkeys(fact for facts in self.unknown.get(cause, {}).values() for fact in facts))

    def explaining(self, rules: Iterable[str]) -> str | None:
        """Cause that these rules' findings were explained by."""
        wanted = set(rules)
        return next((c.cause for c in self.diagnosis.causes if any(e.rule in wanted for e in c.absorbs)), None)


@dataclass(frozen=True)
class Compared:
    """Two cases judged by the same rules.

    Attributes:
        before: The first case.
        after: The second.
        base: The rules that judged both.
        renamed: Gives the name in the second case of a subject of the first.
    """

    before: Findings
    after: Findings
    base: RuleBase
    renamed: Callable[[str], str]

    def changes(self) -> tuple[CauseChange, ...]:
        """Every cause that either diagnosis lists, what broke first."""
        changes = [self._change(name) for name in dict.fromkeys((*self.after.listed, *self.before.listed))]
        return tuple(sorted(changes, key=lambda c: (ORDER.index(c.status), SEVERITIES.index(c.severity))))

    def _change(self, name: str) -> CauseChange:
        old, new = self.before.listed.get(name), self.after.listed.get(name)
        lead = new or old
        assert lead is not None
        rules = tuple(dict.fromkeys(rule for cause in (new, old) if cause is not None for rule in cause.rules))
        headline = _common_headline(old, new)
        scopes = tuple(dict.fromkeys(rule.scope for rule in self.base.rules if rule.id in rules))
        rows = self._subject_changes(name, headline, scopes)
        values = [[v for row in rows if (v := getattr(row, side)) is not None] for side in ("before", "after")]
        status = _overall_status([row.status for row in rows], old is not None, new is not None)
        silent = self.before if old is None else self.after if new is None else None
        return CauseChange(
            cause=name,
            name=lead.shown,
            status=status,
            rules=rules,
            severity_before=old.severity if old is not None else None,
            severity_after=new.severity if new is not None else None,
            fact=headline.fact if headline is not None else None,
            unit=headline.unit if headline is not None else None,
            comparison=headline.comparison if headline is not None else None,
            threshold=headline.threshold if headline is not None else None,
            before=headline.worst(values[0]) if headline is not None else None,
            after=headline.worst(values[1]) if headline is not None else None,
            found_before=len(self.before.subjects(name)),
            found_after=len(self.after.subjects(name)),
            subjects=rows,
            explained_by=silent.explaining(rules) if silent is not None and status == "explained" else None,
            missing=silent.missing(name) if silent is not None and status == "not-judged" else (),
            turned=self._find_turned(lead, rows) if status in ("healed", "new") else (),
            manual=lead.manual,
        )

    def _find_turned(self, lead: CauseReport, rows: Sequence[SubjectChange]) -> tuple[FactChange, ...]:
        """Facts that decide that a rule does not hold on the first subject in the case that does not list its cause."""
        rule = next((each for each in self.base.rules if each.id in lead.rules), None)
        if rule is None or not rows:
            return ()
        old_name, new_name = rows[0].before_name or rows[0].subject, rows[0].subject
        models = (self.before.facts.model, self.after.facts.model)
        old, new = self.before.views([rule.scope]).get(old_name), self.after.views([rule.scope]).get(new_name)
        if old is None or new is None:
            return ()
        view, model = (new, models[1]) if lead.cause not in self.after.listed else (old, models[0])
        verdicts = (decide(node, view, model, self.base) for node in (rule.where, rule.when) if node is not None)
        used = next((used for verdict, used in verdicts if verdict is False), [])
        pairs = {c.fact: (look_up(c.fact, old, models[0]), look_up(c.fact, new, models[1])) for c in used}
        return tuple(
            FactChange(fact=fact, unit=_unit_of(fact, rule.scope), before=then, after=now)
            for fact, (then, now) in pairs.items()
            if differs(then, now)
        )

    def _subject_changes(
        self, name: str, headline: Headline | None, scopes: tuple[str, ...]
    ) -> tuple[SubjectChange, ...]:
        """Every subject that the cause is listed with in either case, what got worse first."""
        old_names = {self.renamed(subject): subject for subject in self.before.subjects(name)}
        new_names = dict.fromkeys(self.after.subjects(name))
        old_views, new_views = self.before.views(scopes), self.after.views(scopes)
        # A subject that only the second case lists may have had another name.
        earlier = {self.renamed(subject): subject for subject in old_views}
        rows = []
        for subject in dict.fromkeys((*new_names, *old_names)):
            then = old_names.get(subject, earlier.get(subject, subject))
            values = (
                self.before.value(headline, old_views.get(then)),
                self.after.value(headline, new_views.get(subject)),
            )
            if subject in old_names and subject in new_names:
                status: Status = headline.trend(*values) if headline is not None else "unchanged"
            elif subject in new_names:
                status = self.before.why_not_listed(name, then, then in old_views, "new")
            else:
                status = self.after.why_not_listed(name, subject, subject in new_views, "healed")
            rows.append(
                SubjectChange(
                    subject=subject,
                    before_name=then if then != subject else None,
                    status=status,
                    before=values[0],
                    after=values[1],
                )
            )
        return tuple(sorted(rows, key=lambda row: ORDER.index(row.status)))


def _unit_of(fact: str, scope: str) -> str | None:
    field = fact_paths(scope).get(fact) if scope in SCOPES else None
    return declared_unit(field) if field is not None else None


def _common_headline(old: CauseReport | None, new: CauseReport | None) -> Headline | None:
    """The first numeric evidence, of that which both causes have if there is any."""
    rows = [_headlines(cause) if cause is not None else [] for cause in (new, old)]
    both = {row.fact for row in rows[0]} & {row.fact for row in rows[1]}
    return next((row for row in (*rows[0], *rows[1]) if not both or row.fact in both), None)


def _headlines(cause: CauseReport) -> list[Headline]:
    rows = (headline_of(row.fact, row.comparison, row.value, row.threshold) for row in cause.evidence)
    return [row for row in rows if row is not None]


def _overall_status(statuses: Iterable[Status], was: bool, is_: bool) -> Status:
    """The status of a cause from those of its subjects."""
    found = set(statuses)
    if was and is_:
        bad, good = found & {"new", "worse"}, found & {"healed", "better"}
        return "mixed" if bad and good else "worse" if bad else "better" if good else "unchanged"
    order: tuple[Status, ...] = ("explained", "not-judged", "healed", "new", "gone")
    return next((status for status in order if status in found), "healed" if was else "new")
