"""Evaluation: facts and rules give findings. Pure; a missing fact is never a pass (Kleene logic)."""

import operator
import re
import string
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pydantic import Field

from quantmedic.engine.case.facts import (
    FLOAT_ALONE,
    CaseFacts,
    DatasetFacts,
    Facts,
    LayerFacts,
    OperandFacts,
    OutputFacts,
    TensorFacts,
)
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.conditions import SHOWN, Any_, Condition, Node, Not
from quantmedic.engine.rules.remedies import WEIGHT_FILES
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase

#: Rules that load compare only what can be compared.
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "is": operator.eq,
    "is_not": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "in": lambda value, choices: value in choices,
}

#: What a message says in brackets.
_BRACKETS = re.compile(r" \([^()]*\)")

#: The verdict on a subject: None where a fact is missing.
Test = Callable[[Facts], bool | None]


class Evidence(Contract):
    """One comparison that contributed to a verdict: the fact's value against its threshold."""

    fact: str
    value: object
    comparison: str = Field(description="operator of the rule; 'shown' where the value is context, not compared")
    threshold: object
    source: str | None = Field(default=None, description="where the threshold comes from")
    subject: str = Field(description="layer, tensor, data set or output that the value was measured on")


@dataclass(frozen=True)
class Finding:
    """A rule that fired on one subject; ``view`` is the subject itself."""

    rule: Rule
    subject: str
    layer: str | None
    message: str
    evidence: tuple[Evidence, ...]
    view: Facts = field(default_factory=Facts, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others of a case: rule and subject."""
        return self.rule.id, self.subject


@dataclass(frozen=True)
class Unknown:
    """A rule that could not be judged on one subject, and the facts it lacked."""

    rule: Rule
    subject: str
    missing: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """As that of a finding."""
        return self.rule.id, self.subject


@dataclass(frozen=True)
class RuleResult:
    """All that one rule said about one case."""

    rule: Rule
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    judged: int
    without_data: bool = False

    @property
    def verdict(self) -> str:
        """``fired``, ``passed``, ``not-judged`` or ``not-applicable`` (no subject of its kind).

        Where no data were given, a rule passes only if all of its subjects were judged.
        """
        if self.findings:
            return "fired"
        if self.judged and not (self.unknown and self.without_data):
            return "passed"
        return "not-judged" if self.unknown else "not-applicable"


def evaluate(base: RuleBase, facts: CaseFacts) -> list[RuleResult]:
    """Judge every rule on every subject of its scope, in the order of the rules."""
    base = base.with_hints_for(facts.model.framework)
    results = [_judge(rule, base, facts) for rule in base.rules]
    if facts.model.framework == FLOAT_ALONE:
        results = [_without_unknown(result) for result in results]
    return results


def _without_unknown(result: RuleResult) -> RuleResult:
    """Without the missing facts of rules on quantized models, which cannot be supplied where there is no such model."""
    return result if result.rule.family == "failure" else replace(result, unknown=())


def subjects(scope: str, facts: CaseFacts) -> Sequence[Facts]:
    """The views of a case that a rule of this scope ranges over."""
    if scope == "model":
        return (facts.model,)
    views: Sequence[Facts] = getattr(facts, f"{scope}s")
    return views


def subject_name(view: Facts) -> str:
    """How a subject is called in messages: layer, tensor, data set or output name."""
    match view:
        case LayerFacts():
            return view.name or "?"
        case TensorFacts():
            return view.producer_name or view.float_name or view.name or "?"
        case OperandFacts():
            return f"{view.layer}[{view.index}]"
        case DatasetFacts():
            return view.role or "?"
        case OutputFacts():
            return view.name or "?"
    return "model"


def look_up(path: str, view: Facts, model: Facts) -> object:
    """Value of a dotted fact path on a subject; ``model.…`` reads the whole model's facts."""
    parts = path.split(".")
    if parts[0] == "model" and view is not model:
        return reduce(getattr, parts[1:], model)
    return reduce(getattr, parts, view)


def _judge(rule: Rule, base: RuleBase, facts: CaseFacts) -> RuleResult:
    findings, unknown, judged, is_beyond = [], [], 0, False
    asked_of = _test(rule.where, rule.scope, base, facts) if rule.where is not None else None
    fires_on = _test(rule.when, rule.scope, base, facts)
    for view in subjects(rule.scope, facts):
        asked = True if asked_of is None else asked_of(view)
        if asked is False:
            continue
        verdict = fires_on(view) if asked else None
        node = rule.when if asked or rule.where is None else rule.where
        # Most subjects are sound, and of those nothing more needs to be known.
        if verdict is False:
            is_beyond = is_beyond or (not judged and _is_beyond(rule, view, base, facts, verdict))
            judged += 1
            continue
        name = subject_name(view)

        def value_at(path: str, view: Facts = view) -> object:
            return look_up(path, view, facts.model)

        _, used = conditions_deciding(node, value_at, base)
        if verdict is None:
            if _is_beyond(rule, view, base, facts, verdict):
                is_beyond = True
                continue
            missing = tuple(dict.fromkeys(c.fact for c in used if value_at(c.fact) is None))
            unknown.append(Unknown(rule, name, missing))
            continue
        judged += 1
        values = [(path, value_at(path)) for path in rule.shows]
        shown = [
            Evidence(fact=path, value=value, comparison=SHOWN, threshold=None, subject=name)
            for path, value in values
            if value is not None
        ]
        evidence = (*shown, *(_evidence_of(condition, value_at, base, name) for condition in used))
        text = render_message(rule.message, value_at)
        findings.append(Finding(rule, name, _layer_of(view), text, evidence, view))
    if is_beyond and not findings:
        judged = 0  # what it passed on says nothing of what it cannot be asked of
    return RuleResult(rule, tuple(findings), tuple(unknown), judged, facts.without_data)


def _test(node: Node, scope: str, base: RuleBase, facts: CaseFacts) -> Test:
    """The verdict of a node as a function of the subject; see ``conditions_deciding``."""
    if isinstance(node, Condition):
        if node.fact.startswith("model.") and scope != "model":
            of_model = holds(node, operator.attrgetter(node.fact)(facts), base)
            return lambda view: of_model
        if node.op == "known" and node.value and facts.without_data and base.needs_data(node.fact):
            return _known_or_undecided(operator.attrgetter(node.fact))
        return _comparison_test(node, operator.attrgetter(node.fact), base)
    if isinstance(node, Not):
        inner = _test(node.not_, scope, base, facts)
        return lambda view: None if (verdict := inner(view)) is None else not verdict
    decisive = isinstance(node, Any_)
    parts = [_test(part, scope, base, facts) for part in node.parts]

    def join(view: Facts) -> bool | None:
        verdict: bool | None = not decisive
        for part in parts:
            found = part(view)
            if found is decisive:
                return decisive
            if found is None:
                verdict = None
        return verdict

    return join


def _known_or_undecided(value_at: Callable[[Facts], object]) -> Test:
    """``known`` for a fact that is measured on data, where none were given: it is undecided, not false."""
    return lambda view: None if value_at(view) is None else True


def _comparison_test(condition: Condition, value_at: Callable[[Facts], object], base: RuleBase) -> Test:
    if condition.op == "known":
        wanted = bool(condition.value)
        return lambda view: (value_at(view) is not None) is wanted
    compare, limit, missing = COMPARE[condition.op], limit_of(condition, base), condition.if_unknown
    return lambda view: missing if (value := value_at(view)) is None else bool(compare(value, limit))


def conditions_deciding(
    node: Node, value_at: Callable[[str], object], base: RuleBase, *, behind_not: bool = False
) -> tuple[bool | None, list[Condition]]:
    """Verdict of a node, and the conditions that decided it (or, if undecided, that are missing).

    What an exclusion rests on is no evidence for a rule: it is left out unless ``behind_not``. What it lacks is named.
    """
    if isinstance(node, Condition):
        return holds(node, value_at(node.fact), base), [] if node.if_unknown and not behind_not else [node]
    if isinstance(node, Not):
        verdict, used = conditions_deciding(node.not_, value_at, base, behind_not=behind_not)
        return (None, used) if verdict is None else (not verdict, used if behind_not else [])
    decisive = isinstance(node, Any_)
    parts = [conditions_deciding(part, value_at, base, behind_not=behind_not) for part in node.parts]
    verdicts = [verdict for verdict, _ in parts]
    joined = decisive if decisive in verdicts else None if None in verdicts else not decisive
    return joined, [condition for verdict, used in parts if verdict is joined for condition in used]


def _is_beyond(rule: Rule, view: Facts, base: RuleBase, facts: CaseFacts, verdict: bool | None) -> bool:
    """Of checkpoints: the rule cannot fire on the subject for want of facts that no hint says how to give.

    What it passed on may be otherwise with other texts; where it is undecided, what is known stays.
    """
    if facts.model.framework not in WEIGHT_FILES:
        return False

    def value_at(path: str) -> object:
        return look_up(path, view, facts.model)

    def is_open(path: str) -> bool:
        return base.hint(path) is not None and (verdict is not None or value_at(path) is None)

    nodes = [rule.when] if rule.where is None else [rule.where, rule.when]
    verdicts = [_possible_verdicts(node, value_at, is_open, base) for node in nodes]
    return any(None in own and True not in own for own in verdicts)


def _possible_verdicts(
    node: Node, value_at: Callable[[str], object], is_open: Callable[[str], bool], base: RuleBase
) -> Set[bool | None]:
    """Verdicts of a node whatever the open facts are; what is missing of the others stays missing."""
    if isinstance(node, Condition):
        return {True, False} if is_open(node.fact) else {holds(node, value_at(node.fact), base)}
    parts = [_possible_verdicts(part, value_at, is_open, base) for part in node.parts]
    if isinstance(node, Not):
        return {None if verdict is None else not verdict for verdict in parts[0]}
    decisive = isinstance(node, Any_)
    if any(part == {decisive} for part in parts):
        return {decisive}
    found: set[bool | None] = {verdict for part in parts for verdict in part if verdict is decisive}
    if all((not decisive) in part for part in parts):
        found.add(not decisive)
    if any(None in part for part in parts):
        found.add(None)
    return found


def holds(condition: Condition, value: object, base: RuleBase) -> bool | None:
    """Verdict of one comparison on a value; None where the value is missing."""
    if condition.op == "known":
        return (value is not None) is bool(condition.value)
    if value is None:
        return condition.if_unknown
    return bool(COMPARE[condition.op](value, limit_of(condition, base)))


def limit_of(condition: Condition, base: RuleBase) -> object:
    """What a condition compares its fact with, thresholds as they are in force."""
    return base.threshold(condition.threshold) if condition.threshold else condition.value


def _evidence_of(condition: Condition, value_at: Callable[[str], object], base: RuleBase, subject: str) -> Evidence:
    source = base.thresholds[condition.threshold].source if condition.threshold else None
    return Evidence(
        fact=condition.fact,
        value=value_at(condition.fact),
        comparison=condition.op,
        threshold=limit_of(condition, base),
        source=source,
        subject=subject,
    )


def _layer_of(view: Facts) -> str | None:
    match view:
        case LayerFacts():
            return view.name
        case TensorFacts():
            return view.producer_name
        case OperandFacts():
            return view.layer
        case OutputFacts():
            return view.tensor.producer_name
    return None


def decide(node: Node, view: Facts, model: Facts, base: RuleBase) -> tuple[bool | None, list[Condition]]:
    """Verdict of a condition node on one subject, and the conditions that decided it or are missing for it."""
    return conditions_deciding(node, lambda path: look_up(path, view, model), base)


def render_message(message: str, value_at: Callable[[str], object]) -> str:
    """Fill the ``{fact.path:format}`` fields of a message; a fact without a value reads "not measured".

    Of several facts, ``{fact.path|fact.path}``, the first that has a value is written; of a list its entries. A space
    stands before ``%``, as in all other texts. What is said in brackets or behind a semicolon is left out where a fact
    of it has no value.
    """

    def is_told(text: str) -> bool:
        names = (name for _, name, _, _ in string.Formatter().parse(text) if name)
        return all(any(value_at(path) is not None for path in name.split("|")) for name in names)

    parts = []
    told = _BRACKETS.sub(lambda found: found[0] if is_told(found[0]) else "", message)
    first, *others = told.split("; ")
    for text, name, spec, _ in string.Formatter().parse("; ".join([first, *filter(is_told, others)])):
        parts.append(text)
        if not name:
            continue
        value = next((value for path in name.split("|") if (value := value_at(path)) is not None), None)
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        written = "not measured" if value is None else format(shown, spec or "")
        parts.append(f"{written[:-1]} %" if (spec or "").endswith("%") and value is not None else written)
    return "".join(parts)
