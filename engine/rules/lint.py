"""What is wrong with a rule that loads: it can never fire, says the same twice, or lacks a page or examples.

A rule fires where one branch of its disjunctive normal form is true. Every condition narrows what its fact can still
be: an interval, a set of choices, known or not. A branch that leaves nothing for a fact is dead.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import fact_paths
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.conditions import COMPARISONS, Any_, Condition, Node, Not, number_of
from quantmedic.engine.rules.evaluate import limit_of
from quantmedic.engine.rules.examples import Kind, rule_examples
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import FAMILIES, SERIOUS, Rule, message_fields
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.yaml_files import read_part
from quantmedic.engine.yaml_text import compose_yaml

Level = Literal["error", "warning"]
#: Branches of a rule that are looked at; a rule with more is not judged.
BRANCHES = 4096
#: Branches that are compared with each other.
COMPARED = 64
#: Scopes of which a network has many subjects, so that a mere trait is found somewhere in every network.
MANY = ("layer", "tensor", "operand", "output")
_OPPOSITE = {
    "gt": "le",
    "ge": "lt",
    "lt": "ge",
    "le": "gt",
    "is": "is_not",
    "is_not": "is",
    "in": "not_in",
    "not_in": "in",
}
_FIX = re.compile(r"(use|prefer|avoid|enable|disable|add|set|fix)-")


@dataclass(frozen=True)
class Remark:
    """One thing that is wrong with a rule, or with what its folder defines."""

    level: Level
    rule: str | None
    message: str
    where: tuple[str, ...] = ()
    help: str | None = None


@dataclass(frozen=True)
class Domain:
    """What a fact can still be; ``known`` is None before the first condition, ``nan`` if it may be NaN."""

    known: bool | None = None
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    whole: bool = False
    allowed: frozenset[object] | None = None
    excluded: frozenset[object] = frozenset()
    nan: bool = False
    possible: bool = True

    @property
    def empty(self) -> bool:
        """Nothing is left."""
        if not self.possible:
            return True
        if self.known is not True or self.nan:
            return False
        if self.allowed is not None:
            return not any(value not in self.excluded and self._within(value) for value in self.allowed)
        low, high = self.low, self.high
        if low > high or (low == high and (self.low_open or self.high_open or low in self.excluded)):
            return True
        if not self.whole or math.isinf(low) or math.isinf(high):
            return False
        first = math.floor(low) + 1 if self.low_open else math.ceil(low)
        last = math.ceil(high) - 1 if self.high_open else math.floor(high)
        return last - first < len(self.excluded) and all(value in self.excluded for value in range(first, last + 1))

    def _within(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return True
        above = value > self.low or (value == self.low and not self.low_open)
        return above and (value < self.high or (value == self.high and not self.high_open))


@dataclass(frozen=True)
class Claim:
    """A condition as it stands in a branch, negated or not.

    ``place`` counts the conditions of the rule; ``nan`` means that it holds for NaN: nothing is above or below NaN, so
    that only the negation of a comparison is true of it.
    """

    condition: Condition
    place: int
    op: str
    limit: object
    nan: bool

    @property
    def off(self) -> bool:
        """Its threshold is set so that it can never be reached."""
        unreachable = {"gt": math.inf, "ge": math.inf, "lt": -math.inf, "le": -math.inf}.get(self.op)
        return bool(self.condition.threshold) and unreachable is not None and self.limit == unreachable

    @property
    def opposite(self) -> "Claim":
        """True where this one is false."""
        return replace(self, op=_OPPOSITE[self.op], nan=not self.nan)


@dataclass
class Branch:
    """Conditions that have to hold together, and what they leave of every fact."""

    claims: tuple[Claim, ...] = ()
    domains: dict[str, Domain] = field(default_factory=dict)


@dataclass(frozen=True)
class Clash:
    """A condition that cannot hold beside the others, which are none where the fact itself cannot be so."""

    claim: Claim
    others: tuple[Claim, ...]


class _TooMany(Exception):
    """The rule has more branches than are looked at."""


class _Expansion:
    """The live branches of a rule, and why the others are dead."""

    def __init__(self, rule: Rule, base: RuleBase) -> None:
        self.rule = rule
        self.base = base
        self.types = {path: _domain_of(info) for path, info in fact_paths(rule.scope).items()}
        self.places = {id(condition): place for place, condition in enumerate(rule.conditions())}
        self.clashes: list[Clash] = []
        branches = [Branch()]
        if rule.where is not None:
            branches = self._expand(rule.where, True, branches)
        self.asked = bool(branches)
        self.branches = self._expand(rule.when, True, branches)
        if rule.experiment is not None:
            self.branches = [*self.branches, *self._expand(rule.experiment.when, True, branches)]

    def _expand(self, node: Node, holds: bool, branches: list[Branch]) -> list[Branch]:
        if isinstance(node, Not):
            return self._expand(node.not_, not holds, branches)
        if isinstance(node, Condition):
            claim = self._claim(node, holds)
            return [grown for branch in branches if (grown := self._grow(branch, claim)) is not None]
        parts = node.parts
        if isinstance(node, Any_) is holds:
            found = [grown for part in parts for grown in self._expand(part, holds, branches)]
            if len(found) > BRANCHES:
                raise _TooMany
            return found
        for part in parts:
            branches = self._expand(part, holds, branches)
        return branches

    def _claim(self, condition: Condition, holds: bool) -> Claim:
        limit = limit_of(condition, self.base)
        place = self.places[id(condition)]
        if condition.op == "known":
            return Claim(condition, place, "known", bool(limit) is holds, nan=True)
        claim = Claim(condition, place, condition.op, limit, nan=condition.op == "is_not")
        return claim if holds else claim.opposite

    def _grow(self, branch: Branch, claim: Claim) -> Branch | None:
        """The branch with one more condition; None where both cannot hold."""
        fact = claim.condition.fact
        domain = narrow(branch.domains.get(fact, self.types[fact]), claim)
        if not domain.empty:
            return Branch((*branch.claims, claim), {**branch.domains, fact: domain})
        others = tuple(other for other in branch.claims if other.condition.fact == fact)
        alone = [o for o in others if narrow(narrow(self.types[fact], o), claim).empty]
        impossible = narrow(self.types[fact], claim).empty
        self.clashes.append(Clash(claim, () if impossible else tuple(alone[:1]) or others))
        return None

    def remaining_domain(self, claims: Iterable[Claim], fact: str) -> Domain:
        """What some conditions leave of a fact."""
        domain = self.types[fact]
        for claim in claims:
            if claim.condition.fact == fact:
                domain = narrow(domain, claim)
        return domain


def _domain_of(info: FieldInfo) -> Domain:
    """What a fact can be by its type and unit."""
    types = [part for part in get_args(info.annotation) or (info.annotation,) if part is not type(None)]
    if all(part is bool or get_origin(part) is Literal for part in types):
        choices = [value for part in types for value in ((True, False) if part is bool else get_args(part))]
        return Domain(allowed=frozenset(choices))
    if declared_unit(info) == "share":
        return Domain(low=0.0, high=1.0)
    return Domain(whole=types == [int], nan=float in types)


def narrow(domain: Domain, claim: Claim) -> Domain:
    """What is left of a fact where the condition holds."""
    op, limit = claim.op, claim.limit
    wanted = bool(limit) if op == "known" else True
    if domain.known is (not wanted):
        return replace(domain, possible=False)
    domain = replace(domain, known=wanted, nan=domain.nan and claim.nan)
    if claim.off:
        return domain
    if op in ("gt", "ge") and (low := number_of(limit)) >= domain.low:
        return replace(domain, low=low, low_open=op == "gt" or (low == domain.low and domain.low_open))
    if op in ("lt", "le") and (high := number_of(limit)) <= domain.high:
        return replace(domain, high=high, high_open=op == "lt" or (high == domain.high and domain.high_open))
    choices = frozenset(limit) if isinstance(limit, list | tuple) else frozenset([limit])
    if op in ("is", "in"):
        return replace(domain, allowed=choices if domain.allowed is None else domain.allowed & choices)
    if op in ("is_not", "not_in"):
        return replace(domain, excluded=domain.excluded | choices)
    return domain


def implies(domain: Domain, claim: Claim) -> bool:
    """The condition holds for all that is left; a comparison needs a fact that is known."""
    if claim.op == "known":
        return domain.known is claim.limit
    return domain.known is True and not claim.off and narrow(domain, claim.opposite).empty


def lint(base: RuleBase, pages: Mapping[str, str], builtin: RuleBase | None = None) -> list[Remark]:
    """What is wrong with the rules of a rule base, by rule, errors first.

    Args:
        base: The rules in force.
        pages: Manual pages as written, by rule id.
        builtin: Rules that are taken for granted, with what they define; all are looked at without it.
    """
    granted = {rule.id for rule in builtin.rules} if builtin is not None else set()
    remarks: list[Remark] = []
    for rule in base.rules:
        if rule.id not in granted:
            found = [*_logic(rule, base), *_wording(rule, builtin), *_page(rule, pages.get(rule.id)), *_examples(rule)]
            remarks += sorted(found, key=lambda remark: remark.level)
    return [*remarks, *_unused_definitions(base, builtin)] if builtin is not None else remarks


def _logic(rule: Rule, base: RuleBase) -> Iterable[Remark]:
    try:
        expansion = _Expansion(rule, base)
    except _TooMany:
        yield _warn(rule, f"more than {BRANCHES} combinations of conditions: whether it can fire was not checked")
        return
    text = _Text(rule)
    if not expansion.branches:
        part = "its where excludes every subject" if not expansion.asked else "it can never fire"
        reasons = [text.clash(clash) for clash in _distinct(expansion.clashes)[:3]]
        places = dict.fromkeys(p for clash in expansion.clashes[:1] for p in text.places(clash))
        yield Remark("error", rule.id, f"{part}: {'; '.join(reasons)}", tuple(places), "correct or remove one of them")
        return
    yield from _dead_parts(expansion, text)
    yield from _redundant_conditions(expansion, text)
    yield from _harmless(expansion)


def _dead_parts(expansion: _Expansion, text: "_Text") -> Iterable[Remark]:
    """Alternatives that can never be true, in a rule that can fire without them."""
    alive = {claim.place for branch in expansion.branches for claim in branch.claims}
    reported: set[int] = set()
    for clash in _distinct(expansion.clashes):
        dead = {claim.place for claim in (clash.claim, *clash.others)} - alive
        if dead and not dead & reported:
            reported |= dead
            yield _warn(expansion.rule, f"one alternative can never be true: {text.clash(clash)}", text.places(clash))


def _redundant_conditions(expansion: _Expansion, text: "_Text") -> Iterable[Remark]:
    """Conditions that hold anyway, later ones first to be named."""
    branches = expansion.branches
    by_place = {claim.place: claim for branch in branches for claim in branch.claims}
    dropped: set[int] = set()
    for place, claim in sorted(by_place.items(), reverse=True):
        fact = claim.condition.fact
        if claim.op == "known":
            continue
        if claim.off:
            words = f"{text.of(claim)} is off: its threshold cannot be reached"
            yield _warn(expansion.rule, words, text.places_of(claim))
            continue
        if implies(replace(expansion.types[fact], known=True), claim):
            help_ = f"if {fact} only has to be measured, ask {{fact: {fact}, known: true}}"
            yield _warn(expansion.rule, f"{text.of(claim)} is always true", text.places_of(claim), help_)
            dropped.add(place)
            continue
        holding = [branch for branch in branches if any(own.place == place for own in branch.claims)]
        others = [[o for o in b.claims if o.place != place and o.place not in dropped] for b in holding]
        if all(implies(expansion.remaining_domain(rest, fact), claim) for rest in others):
            dropped.add(place)
            same = [other for rest in others for other in rest if other.condition.fact == fact and other.op != "known"]
            words = " and ".join(dict.fromkeys(text.of(other) for other in same))
            yield _warn(expansion.rule, f"{text.of(claim)} adds nothing: {words} asks for more", text.places_of(claim))
    yield from _redundant_alternatives(expansion, text, dropped)


def _redundant_alternatives(expansion: _Expansion, text: "_Text", dropped: set[int]) -> Iterable[Remark]:
    """Alternatives of an ``any`` that are true only where another one is true already."""
    branches = expansion.branches
    if len(branches) > COMPARED:
        return
    kept: list[Branch] = []
    for branch in sorted(branches, key=lambda branch: len(branch.claims)):
        if not any(_covers(other, branch) for other in kept):
            kept.append(branch)
    needed = {claim.place for branch in kept for claim in branch.claims} | dropped
    lost = {o.place: o for branch in branches for o in branch.claims if o.place not in needed}
    if lost:
        words = ", ".join(text.of(claim) for claim in lost.values())
        places = tuple(place for claim in lost.values() for place in text.places_of(claim))
        yield _warn(expansion.rule, f"an alternative adds nothing, another is true wherever it is: {words}", places)


def _covers(wide: Branch, narrow: Branch) -> bool:
    """Every condition of the one branch holds wherever the other does."""
    return all(implies(narrow.domains.get(o.condition.fact, Domain()), o) for o in wide.claims)


def _harmless(expansion: _Expansion) -> Iterable[Remark]:
    rule = expansion.rule
    if rule.scope not in MANY or rule.severity not in SERIOUS or rule.harm:
        return
    harm = [branch.domains.get("model.harmed", Domain()) for branch in expansion.branches]
    if not all(_minds_harm(domain) for domain in harm):
        yield _warn(
            rule,
            f"severity {rule.severity} without asking for harm: it may fire on networks that lost nothing",
            help_="add {fact: model.harmed, is: true} to its conditions, or say under harm what else shows it",
        )


def _minds_harm(domain: Domain) -> bool:
    """It asks for harm, or fires only where harm was not measured."""
    return domain.known is False or (domain.known is True and domain.allowed == frozenset([True]))


def _wording(rule: Rule, builtin: RuleBase | None) -> Iterable[Remark]:
    """The name and the message."""
    if not message_fields(rule.message):
        yield _warn(rule, "the message names no fact", help_="say how much: {data.rounding.sqnr_db:.1f} dB")
    if _FIX.match(rule.name):
        yield _warn(
            rule, f"the name {rule.name!r} is that of a fix", help_="name what is wrong; remedies say what to do"
        )
    if builtin is None:
        return
    taken = [other.id for other in builtin.rules if other.name == rule.name]
    if taken:
        yield Remark(
            "error", rule.id, f"{taken[0]} is called {rule.name!r} already", _path(rule), "choose another name"
        )
    if rule.id[0] in FAMILIES:
        yield _warn(
            rule,
            f"ids with {rule.id[0]} belong to the built-in rules about {FAMILIES[rule.id[0]]}",
            help_="choose a letter that no family has, such as U",
        )


def _page(rule: Rule, page: str | None) -> Iterable[Remark]:
    if page is None:
        beside = str(rule.path.with_suffix(".md")) if rule.path is not None else f"{rule.id}.md"
        yield Remark(
            "error",
            rule.id,
            "it has no page",
            (beside,),
            "write one that says what is wrong and what to do: quantmedic explain --new-rule NAME shows the form",
        )
        return
    first = page.lstrip().partition("\n")[0]
    if not (first.startswith("# ") and rule.id in first):
        yield _warn(rule, "its page does not begin with its name", help_=f"begin with: # {rule.name} ({rule.id})")


def _examples(rule: Rule) -> Iterable[Remark]:
    """One example of each kind is required of a rule that stands in a file."""
    if rule.path is None:
        return
    try:
        kinds = {example.kind for example in rule_examples(rule)}
    except RuleError:
        return  # Said where they are run.
    words: dict[Kind, str] = {"fires": "it fires", "silent": "it stays silent"}
    for kind, does in words.items():
        if kind not in kinds:
            help_ = f"add one behind a line `---` at the end of the rule: - {kind}: {{FACT: VALUE}}"
            yield Remark("error", rule.id, f"it has no example on which {does}", _path(rule), help_)


def _unused_definitions(base: RuleBase, builtin: RuleBase) -> Iterable[Remark]:
    """Thresholds and remedies of the user's own that no rule uses, or that replace a built-in one."""
    asking: tuple[Rule | Remedy, ...] = (*base.rules, *base.remedies.values())
    used = {condition.threshold for asked in asking for condition in asked.conditions()}
    for name in base.thresholds.keys() - builtin.thresholds.keys() - used:
        yield Remark("warning", None, f"nothing uses the threshold {name}")
    prescribed = {remedy for rule in base.rules for remedy in rule.remedies}
    for name in base.remedies.keys() - builtin.remedies.keys() - prescribed:
        yield Remark("warning", None, f"no rule prescribes the remedy {name}")
    for name, remedy in builtin.remedies.items():
        if base.remedies[name] != remedy:
            yield Remark("warning", None, f"the remedy {name} replaces the built-in one")


def _distinct(clashes: Iterable[Clash]) -> list[Clash]:
    return list({(c.claim.place, *(o.place for o in c.others)): c for c in clashes}.values())


def _path(rule: Rule) -> tuple[str, ...]:
    return (str(rule.path),) if rule.path is not None else ()


def _warn(rule: Rule, message: str, where: Iterable[str] = (), help_: str | None = None) -> Remark:
    return Remark("warning", rule.id, message, tuple(where) or _path(rule), help_)


class _Text:
    """Conditions of a rule as text, and the lines on which they stand."""

    def __init__(self, rule: Rule) -> None:
        self._places = _condition_places(rule)

    def of(self, claim: Claim) -> str:
        """The condition as it is written, with the value of its threshold."""
        condition = claim.condition
        if condition.op == "known":
            return f"{condition.fact} known: {str(bool(condition.value)).lower()}"
        value = f"${condition.threshold} ({number_of(claim.limit):g})" if condition.threshold else claim.limit
        negated = "not " if claim.op != condition.op else ""
        return f"{negated}{condition.fact} {COMPARISONS[condition.op]} {value}"

    def clash(self, clash: Clash) -> str:
        """Why a condition cannot hold."""
        if not clash.others:
            return f"{self.of(clash.claim)} is never true"
        return f"{self.of(clash.claim)} contradicts {' and '.join(self.of(other) for other in clash.others)}"

    def places(self, clash: Clash) -> tuple[str, ...]:
        """``file:line: text`` of all conditions of a clash."""
        return tuple(place for claim in (*clash.others, clash.claim) for place in self.places_of(claim))

    def places_of(self, claim: Claim) -> tuple[str, ...]:
        """``file:line: text`` of one condition."""
        return self._places[claim.place : claim.place + 1]


def _condition_places(rule: Rule) -> tuple[str, ...]:
    """``file:line: text`` of the rule's conditions in their order; empty for a rule that is in no file."""
    if rule.path is None:
        return ()
    text = read_part(rule.path, 0)
    document = compose_yaml(text, rule.path)
    assert document is not None  # the rule was read from it
    parts = {key.value: value for key, value in document.value}
    found = [number for key in ("where", "when") if key in parts for number in _fact_lines(parts[key])]
    lines = text.splitlines()
    return tuple(f"{rule.path}:{number}: {lines[number - 1].strip()}" for number in found)


def _fact_lines(node: yaml.Node) -> Iterable[int]:
    """Lines of the conditions below a node of YAML."""
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _fact_lines(part)
    elif isinstance(node, yaml.MappingNode):
        keys = {key.value: value for key, value in node.value}
        if "fact" in keys:
            yield node.start_mark.line + 1
            return
        for value in keys.values():
            yield from _fact_lines(value)
