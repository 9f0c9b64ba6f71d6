"""Near misses: rules that one comparison with a number kept from firing on a layer, while the value is close to it.

Every rule is judged on all layers at once, in Kleene's logic as in ``evaluate``: a node is known to be true, to be
false, or neither. Of each node it is known besides which single comparison, were it the other way round, would turn it.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import CaseFacts, Facts, LayerFacts, Scope, fact_paths
from quantmedic.engine.rules.conditions import Any_, Condition, Node, Not, number_of
from quantmedic.engine.rules.evaluate import COMPARE, holds, limit_of
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase

#: A value is close to its threshold up to this share of it.
NEAR_SHARE = 0.2
#: A level in dB is a logarithm already: it is close up to this distance.
NEAR_DB = 1.5
#: What a rule would have needed where the condition stands under a negation.
_OPPOSITE = {"gt": "le", "le": "gt", "ge": "lt", "lt": "ge"}
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class NearMiss:
    """A rule that one comparison kept from firing, with a value close to the threshold.

    It would have fired if ``value comparison threshold`` held.
    """

    rule: str
    name: str
    fact: str
    value: object
    comparison: str
    threshold: float


@dataclass(frozen=True)
class _Turn:
    """One comparison, and on which subjects it alone would turn a node to true; ``opposed`` if it has to be false."""

    condition: Condition
    subjects: Mask
    opposed: bool = False


@dataclass(frozen=True)
class _Verdicts:
    """A node on all subjects: where it is true, where false, and what alone would make it so where it is not."""

    true: Mask
    false: Mask
    rises: tuple[_Turn, ...] = ()
    falls: tuple[_Turn, ...] = ()

    def negate(self) -> "_Verdicts":
        """The verdicts on the opposite."""
        return _Verdicts(self.false, self.true, self.falls, self.rises)


@dataclass
class _Table:
    """Facts of all subjects of one scope, a column per path, read when they are first asked for."""

    scope: Scope
    views: Sequence[Facts]
    facts: CaseFacts
    base: RuleBase
    columns: dict[str, list[object]] = field(default_factory=dict)

    def column(self, path: str) -> list[object]:
        """The fact at a path, of every subject."""
        if path not in self.columns:
            parent, _, name = path.rpartition(".")
            read = operator.attrgetter(name)
            self.columns[path] = [read(view) for view in (self.column(parent) if parent else self.views)]
        return self.columns[path]

    def numbers(self, path: str) -> NDArray[np.float64]:
        """The same as numbers, NaN for what is missing."""
        return np.array([np.nan if value is None else value for value in self.column(path)], np.float64)

    def constant(self, verdict: bool | None) -> _Verdicts:
        """One verdict on all subjects."""
        shape = len(self.views)
        return _Verdicts(np.full(shape, verdict is True), np.full(shape, verdict is False))


def near_misses(facts: CaseFacts, base: RuleBase, layers: Sequence[LayerFacts]) -> list[tuple[NearMiss, ...]]:
    """Near misses of each of the layers, the closest first.

    Rules of scope ``layer`` are asked of the layer, those of scope ``tensor`` of its output.
    """
    found: list[list[tuple[float, NearMiss]]] = [[] for _ in layers]
    scopes: dict[Scope, Sequence[Facts]] = {"layer": layers, "tensor": [layer.output for layer in layers]}
    for scope, views in scopes.items():
        table = _Table(scope, views, facts, base)
        for rule in base.rules:
            if rule.scope == scope:
                _ask(rule, table, found)
    return [tuple(miss for _, miss in sorted(misses, key=lambda pair: pair[0])) for misses in found]


def _ask(rule: Rule, table: _Table, found: list[list[tuple[float, NearMiss]]]) -> None:
    """Add the near misses of one rule; of several comparisons that would make it fire, the closest."""
    parts = [part for part in (rule.where, rule.when) if part is not None]
    closest: dict[int, tuple[float, NearMiss]] = {}
    for turn in _join(parts, table, decisive=False).rises:
        condition = turn.condition
        limit = number_of(limit_of(condition, table.base))
        comparison = _OPPOSITE[condition.op] if turn.opposed else condition.op
        places = np.flatnonzero(turn.subjects)
        away = distances(table.numbers(condition.fact)[places], limit, _unit(condition.fact, table.scope))
        for place, distance in zip(places[away <= 1].tolist(), away[away <= 1].tolist(), strict=True):
            if place in closest and closest[place][0] <= distance:
                continue
            value = table.column(condition.fact)[place]
            miss = NearMiss(rule.id, rule.name, condition.fact, value, comparison, limit)
            closest[place] = (distance, miss)
    for place, pair in closest.items():
        found[place].append(pair)


def distances(values: NDArray[np.float64], limit: float, unit: str | None) -> NDArray[np.float64]:
    """How far values lie from a threshold, in units of what still counts as close; infinite where nothing does."""
    reach = NEAR_DB if unit == "dB" else NEAR_SHARE * abs(limit)
    if not 0 < reach < np.inf:
        return np.full(len(values), np.inf)
    away = np.abs(values - limit) / reach
    return np.where(np.isnan(away), np.inf, away)


def _verdicts_of(node: Node, table: _Table) -> _Verdicts:
    if isinstance(node, Condition):
        return _compare_all(node, table)
    if isinstance(node, Not):
        return _verdicts_of(node.not_, table).negate()
    decisive = isinstance(node, Any_)
    return _join(node.parts, table, decisive=decisive)


def _join(nodes: Sequence[Node], table: _Table, *, decisive: bool) -> _Verdicts:
    """All of the nodes, or with ``decisive`` any of them."""
    # Any is the negation of all of the negations.
    if decisive:
        return _every([_verdicts_of(node, table).negate() for node in nodes], table).negate()
    parts = []
    # What is the same for all layers costs nothing, and often settles it.
    for node in sorted(nodes, key=lambda node: not _is_of_model(node)):
        parts.append(_verdicts_of(node, table))
        if parts[-1].false.all() and not parts[-1].rises:
            return table.constant(False)
    return _every(parts, table)


def _is_of_model(node: Node) -> bool:
    return isinstance(node, Condition) and node.fact.startswith("model.")


def _every(parts: Sequence[_Verdicts], table: _Table) -> _Verdicts:
    """All parts are true: what alone would make it true must find every other part true."""
    open_parts = np.sum([~part.true for part in parts], axis=0)
    false = np.any([part.false for part in parts], axis=0)
    rises = [
        _Turn(turn.condition, subjects, turn.opposed)
        for part in parts
        for turn in part.rises
        if (subjects := turn.subjects & (open_parts == 1) & ~part.true).any()
    ]
    falls = [
        _Turn(turn.condition, subjects, turn.opposed)
        for part in parts
        for turn in part.falls
        if (subjects := turn.subjects & ~false).any()
    ]
    return _Verdicts(open_parts == 0, false, tuple(rises), tuple(falls))


def _compare_all(condition: Condition, table: _Table) -> _Verdicts:
    if _is_of_model(condition):
        value = operator.attrgetter(condition.fact)(table.facts)
        return table.constant(holds(condition, value, table.base))
    if condition.op in _OPPOSITE and _is_measure(condition.fact, table.scope):
        values = table.numbers(condition.fact)
        known = np.array([value is not None for value in table.column(condition.fact)], bool)
        holding = np.asarray(COMPARE[condition.op](values, limit_of(condition, table.base)), np.bool_)
        true, false = known & holding, known & ~holding
        return _Verdicts(true, false, (_Turn(condition, false),), (_Turn(condition, true, opposed=True),))
    found = [holds(condition, value, table.base) for value in table.column(condition.fact)]
    return _Verdicts(np.array([v is True for v in found], bool), np.array([v is False for v in found], bool))


def _is_measure(path: str, scope: Scope) -> bool:
    """A real number: of a count or a number of bits, no other is nearly the same."""
    return float in get_args(fact_paths(scope)[path].annotation)


def _unit(path: str, scope: Scope) -> str | None:
    return declared_unit(fact_paths(scope)[path])
