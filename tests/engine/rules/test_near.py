"""Near misses, against flipping every comparison by hand."""

import math
from typing import Any

from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, ModelFacts
from quantmedic.engine.rules.conditions import All, Any_, Condition, Not
from quantmedic.engine.rules.evaluate import COMPARE, holds, look_up
from quantmedic.engine.rules.near import NEAR_DB, NEAR_SHARE, near_misses
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase

PATHS = ("weight.std", "weight.absmax_over_std", "weight_error.sqnr_db")
LIMITS = (2.0, 10.0, -3.0, 0.0)
VALUES = st.none() | st.sampled_from([-20.0, -3.5, -3.0, -1.0, 0.0, 0.1, 1.7, 2.0, 2.3, 9.0, 11.0, 40.0, math.inf])


def rule(when: Any, scope: str = "layer", **options: Any) -> Rule:
    fields: dict[str, Any] = {"id": "X001", "name": "some-rule", "cause": "some-cause", "scope": scope}
    fields |= {"severity": "high", "confidence": 0.5, "when": when, "message": "m", "remedies": ["do-it"]}
    return Rule.model_validate({**fields, **options})


def near_of(one: Rule, layer: LayerFacts, model: ModelFacts | None = None) -> list[tuple[Any, ...]]:
    facts = CaseFacts(model=model or ModelFacts(), layers=(layer,), tensors=(layer.output,))
    (found,) = near_misses(facts, RuleBase(rules=(one,), thresholds={}, remedies={}), facts.layers)
    return [(miss.fact, miss.value, miss.comparison, miss.threshold) for miss in found]


def layer_of(values: dict[str, Any]) -> LayerFacts:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        head, _, name = path.partition(".")
        if name:
            nested.setdefault(head, {})[name] = value
        else:
            nested[head] = value
    return LayerFacts.model_validate(nested)


# Against plain enumeration

LEAVES = st.builds(
    lambda path, op, value: {"fact": path, op: value},
    st.sampled_from(PATHS),
    st.sampled_from(["gt", "ge", "lt", "le"]),
    st.sampled_from(LIMITS),
) | st.sampled_from([{"fact": "weight.std", "known": True}, {"fact": "is_compute", "is": True}])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"all": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"any": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=6,
)


def kleene(node: Any, verdicts: dict[int, bool | None]) -> bool | None:
    """Truth of a tree, given that of its leaves by identity."""
    if isinstance(node, Condition):
        return verdicts[id(node)]
    if isinstance(node, Not):
        inner = kleene(node.not_, verdicts)
        return None if inner is None else not inner
    decisive = isinstance(node, Any_)
    parts = [kleene(part, verdicts) for part in (node.any if decisive else node.all)]
    if decisive in parts:
        return decisive
    return None if None in parts else not decisive


def is_close(path: str, value: float, limit: float) -> bool:
    reach = NEAR_DB if path.endswith("_db") else NEAR_SHARE * abs(limit)
    return reach > 0 and abs(value - limit) <= reach


@given(TREES, st.none() | TREES, st.lists(st.tuples(*[VALUES] * 3, st.sampled_from([True, False, None])), max_size=4))
@examples(300)
def test_near_misses_are_what_flipping_one_comparison_would_fire(when: Any, where: Any, rows: list[Any]) -> None:
    one = rule(when, where=where)
    layers = tuple(layer_of(dict(zip([*PATHS, "is_compute"], row, strict=True))) for row in rows)
    base = RuleBase(rules=(one,), thresholds={}, remedies={})
    found = near_misses(CaseFacts(layers=layers), base, layers)
    root = All.model_construct(all=tuple(part for part in (one.where, one.when) if part is not None))
    leaves = list(one.conditions())
    for layer, misses in zip(layers, found, strict=True):
        values = {id(leaf): look_up(leaf.fact, layer, ModelFacts()) for leaf in leaves}
        verdicts = {id(leaf): holds(leaf, values[id(leaf)], base) for leaf in leaves}
        near = {
            (leaf.fact, leaf.value)
            for leaf in leaves
            if leaf.op in ("gt", "ge", "lt", "le")
            and (verdict := verdicts[id(leaf)]) is not None
            and kleene(root, verdicts) is not True
            and kleene(root, verdicts | {id(leaf): not verdict}) is True
            and is_close(leaf.fact, values[id(leaf)], leaf.value)
        }
        assert len(misses) == bool(near)
        for miss in misses:
            assert (miss.fact, miss.threshold) in near
            assert not COMPARE[miss.comparison](miss.value, miss.threshold)


# What is close


def test_closeness_is_relative_except_for_levels() -> None:
    for fact, value, limit, is_near in [
        ("weight.absmax_over_std", 8.0, 10.0, True),
        ("weight.absmax_over_std", 7.9, 10.0, False),
        ("weight_error.sqnr_db", 0.5, 2.0, True),
        ("weight_error.sqnr_db", 0.4, 2.0, False),
        ("weight_error.sqnr_db", -1.0, 0.0, True),
        ("weight.std", 0.0, 0.0, False),  # nothing is a fifth of nothing
        ("weight.channels", 10, 10, False),  # counts are equal or not
        ("weight.std", None, 10.0, False),
    ]:
        found = near_of(rule({"fact": fact, "gt": limit}), layer_of({fact: value}))
        assert found == ([(fact, value, "gt", limit)] if is_near else []), (fact, value)


def test_the_closest_of_two_alternatives_is_named() -> None:
    when = {"any": [{"fact": "weight.std", "gt": 10}, {"fact": "weight.absmax_over_std", "gt": 10}]}
    layer = layer_of({"weight.std": 8.5, "weight.absmax_over_std": 9.5})
    assert near_of(rule(when), layer) == [("weight.absmax_over_std", 9.5, "gt", 10.0)]


def test_facts_of_the_model_are_no_near_misses_but_decide() -> None:
    when = {"all": [{"fact": "model.harmed", "is": True}, {"fact": "weight.std", "gt": 10}]}
    layer = layer_of({"weight.std": 9.5})
    assert near_of(rule(when), layer, ModelFacts(harmed=True)) == [("weight.std", 9.5, "gt", 10.0)]
    assert near_of(rule(when), layer, ModelFacts(harmed=False)) == []
    assert near_of(rule(when), layer, ModelFacts()) == []
    of_model = {"fact": "model.size_ratio", "gt": 10.0}
    assert near_of(rule(of_model), layer, ModelFacts(size_ratio=9.9)) == []


def test_rules_about_a_tensor_are_asked_of_the_output() -> None:
    layer = LayerFacts.model_validate({"output": {"range_slack": 9.0}})
    assert near_of(rule({"fact": "range_slack", "gt": 10}, "tensor"), layer) == [("range_slack", 9.0, "gt", 10.0)]
