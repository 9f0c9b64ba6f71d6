"""Rules that can never fire, say the same twice, or lack a page or examples."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.lint import Remark, lint
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

PAGE = "# some-defect (U001)\n"
THRESHOLDS = {"ten": 10.0, "never": float("inf")}
HARMED = {"fact": "model.harmed", "is": True}
RATIO, SHARE, BITS, OP = "weight.channel_range_ratio", "output.data.clipping.share", "weight.quantizer.bits", "op_type"
GRANULARITY = "weight.quantizer.granularity"


def remedy(name: str) -> Remedy:
    return Remedy(id=name, title="t", changes="c", cost="c", unsafe="u")


def rule(when: Any, **changes: Any) -> Rule:
    fields = {
        "id": "U001",
        "name": "some-defect",
        "cause": "some-defect",
        "scope": "layer",
        "severity": "low",
        "confidence": 0.5,
        "when": when,
        "message": f"{{{RATIO}}}",
        "remedies": ["some-remedy"],
    }
    return Rule.model_validate(fields | changes)


def base(*rules: Rule) -> RuleBase:
    thresholds = {
        name: Threshold(name=name, value=value, source="test", description="d") for name, value in THRESHOLDS.items()
    }
    return RuleBase(rules=rules, thresholds=thresholds, remedies={"some-remedy": remedy("some-remedy")})


def remarks(when: Any, page: str | None = PAGE, **changes: Any) -> list[Remark]:
    own = rule(when, **changes)
    return lint(base(own), {own.id: page} if page is not None else {}, base())


def every(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"all": list(conditions)}


def either(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"any": list(conditions)}


def test_sound_rule_gets_no_remark() -> None:
    assert remarks(every({"fact": RATIO, "gt": "$ten"}, HARMED), severity="high") == []


CONTRADICTIONS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"fact": RATIO, "gt": 20}, {"fact": RATIO, "lt": "$ten"}], f"{RATIO} < $ten (10) contradicts {RATIO} > 20"),
    ([{"fact": RATIO, "gt": 5}, {"fact": RATIO, "le": 5}], "contradicts"),
    ([{"fact": RATIO, "gt": 5}, {"fact": RATIO, "ge": 5}, {"fact": RATIO, "le": 5}], "contradicts"),
    ([{"fact": RATIO, "lt": 5}, {"fact": RATIO, "le": 5}, {"fact": RATIO, "ge": 5}], "contradicts"),
    ([{"fact": RATIO, "gt": 5}, {"fact": RATIO, "is": 5}], "contradicts"),
    ([{"fact": BITS, "gt": 3}, {"fact": BITS, "lt": 4}], "contradicts"),
    ([{"fact": BITS, "in": [4, 8]}, {"fact": BITS, "gt": 8}], "contradicts"),
    ([{"fact": GRANULARITY, "is": "per_tensor"}, {"fact": GRANULARITY, "is": "per_channel"}], "contradicts"),
    ([{"fact": OP, "in": ["Conv", "Gemm"]}, {"fact": OP, "is": "Add"}], "contradicts"),
    ([{"fact": OP, "is": "Conv"}, {"not": {"fact": OP, "in": ["Conv", "Gemm"]}}], "not op_type in"),
    ([{"fact": RATIO, "known": False}, {"fact": RATIO, "gt": 3}], f"{RATIO} > 3 contradicts {RATIO} known: false"),
    ([{"fact": RATIO, "known": True}, {"not": {"fact": RATIO, "known": True}}], "contradicts"),
    ([{"fact": SHARE, "gt": 1}], f"{SHARE} > 1 is never true"),
    ([{"fact": SHARE, "lt": 0}], "is never true"),
    ([{"fact": "is_last", "is": True}, {"fact": "is_last", "is_not": True}], "contradicts"),
    ([{"fact": GRANULARITY, "in": []}], "is never true"),
    ([{"fact": GRANULARITY, "is_not": name} for name in ("per_tensor", "per_channel", "per_block")], "contradicts"),
]


def test_rule_that_can_never_fire_is_refused(subtests: pytest.Subtests) -> None:
    for conditions, words in CONTRADICTIONS:
        with subtests.test(conditions=conditions):
            (found,) = remarks(every(*conditions))
            assert (found.level, found.rule) == ("error", "U001")
            assert words in found.message
            assert "can never fire" in found.message


def test_where_that_excludes_what_when_asks() -> None:
    where = {"fact": GRANULARITY, "is": "per_channel"}
    (found,) = remarks({"fact": GRANULARITY, "is": "per_tensor"}, where=where)
    assert "can never fire" in found.message
    (found,) = remarks(HARMED, where=every({"fact": RATIO, "gt": 2}, {"fact": RATIO, "lt": 1}))
    assert "its where excludes every subject" in found.message


def test_dead_alternatives() -> None:
    dead = every({"fact": RATIO, "gt": 2}, {"fact": RATIO, "lt": 1})
    (found,) = remarks(either(dead, {"fact": SHARE, "gt": 2}))
    assert found.level == "error"
    assert f"{RATIO} < 1 contradicts {RATIO} > 2; {SHARE} > 2 is never true" in found.message
    (found,) = remarks(either(dead, {"fact": SHARE, "gt": 0.5}))
    assert found.level == "warning"
    assert found.message == f"one alternative can never be true: {RATIO} < 1 contradicts {RATIO} > 2"


def test_alternatives_that_exclude_each_other_are_no_contradiction() -> None:
    sides = [every({"fact": RATIO, "known": known}, {"fact": SHARE, "gt": 0.5}) for known in (True, False)]
    assert remarks(every(either(*sides), either({"fact": RATIO, "known": False}, {"fact": RATIO, "gt": 3}))) == []


REDUNDANT: list[tuple[Any, str]] = [
    (every({"fact": RATIO, "gt": 3}, {"fact": RATIO, "gt": "$ten"}), f"{RATIO} > 3 adds nothing: {RATIO} > $ten"),
    (every({"fact": OP, "is": "Conv"}, {"fact": OP, "is_not": "Add"}), "op_type ≠ Add adds nothing"),
    (every({"fact": RATIO, "gt": 3}, {"fact": RATIO, "gt": 3}), f"{RATIO} > 3 adds nothing: {RATIO} > 3"),
    (every({"fact": SHARE, "ge": 0}, {"fact": RATIO, "gt": 3}), f"{SHARE} ≥ 0 is always true"),
    (either({"fact": RATIO, "gt": 3}, {"fact": RATIO, "gt": 9}), "another is true wherever it is: " + RATIO),
    (
        either({"fact": RATIO, "gt": 3}, every({"fact": RATIO, "gt": 3}, {"fact": SHARE, "gt": 0.5})),
        f"another is true wherever it is: {RATIO} > 3, {SHARE} > 0.5",
    ),
    (every({"fact": RATIO, "gt": "$never"}), f"{RATIO} > $never (inf) is off"),
]


def test_conditions_that_add_nothing(subtests: pytest.Subtests) -> None:
    for when, words in REDUNDANT:
        with subtests.test(when=when):
            (found,) = remarks(when)
            assert found.level == "warning"
            assert words in found.message


def test_what_looks_redundant_and_is_not() -> None:
    """``known`` makes the rule silent, where the comparison alone would leave it not judged.

    A broken scale of NaN is found by the negation of a comparison: it is neither above nor below.
    """
    assert remarks(every({"fact": RATIO, "known": True}, {"fact": RATIO, "gt": 3})) == []
    scale = "output.quantizer.scale"
    assert remarks(either({"fact": scale, "lt": 1e-7}, {"not": {"fact": scale, "ge": 0}})) == []


def test_severe_rule_about_layers_asks_for_harm() -> None:
    ask = {"fact": RATIO, "gt": 3}
    (found,) = remarks(ask, severity="medium")
    assert "without asking for harm" in found.message
    (found,) = remarks(either(ask, every({"fact": SHARE, "gt": 0.1}, HARMED)), severity="high")
    assert "without asking for harm" in found.message, "one alternative is enough to fire"
    assert remarks(every(ask, HARMED), severity="high") == []
    assert remarks(ask, severity="low") == []
    model = {"scope": "model", "message": "{output_sqnr_db}", "severity": "high"}
    assert remarks({"fact": "output_sqnr_db", "lt": 3}, **model) == []


def test_words_and_ids() -> None:
    ask = {"fact": RATIO, "gt": 3}
    assert "names no fact" in remarks(ask, message="something is wrong")[0].message
    assert "is that of a fix" in remarks(ask, name="use-other-range")[0].message
    assert "belong to the built-in rules about weights" in remarks(ask, PAGE.replace("U", "W"), id="W901")[0].message


def test_name_of_a_builtin_rule_is_taken() -> None:
    other, own = rule(HARMED, id="W001"), rule(HARMED)
    (found,) = lint(base(other, own), {"U001": PAGE}, base(other))
    assert (found.level, found.rule) == ("error", "U001")
    assert "W001 is called 'some-defect' already" in found.message


def test_a_page_is_wanted() -> None:
    ask = {"fact": RATIO, "gt": 3}
    assert [r.message for r in remarks(ask, page=None)] == ["it has no page"]
    (found,) = remarks(ask, PAGE.replace("# some-defect (U001)", "# Something"))
    assert (found.level, found.message) == ("warning", "its page does not begin with its name")


def test_unused_thresholds_and_remedies_of_the_folder() -> None:
    own, more = base(rule({"fact": RATIO, "gt": 3})), {"other-remedy": remedy("other-remedy")}
    more["some-remedy"] = remedy("some-remedy").model_copy(update={"title": "another title"})
    asking = {"fact": "opset", "lt": "$twelve"}
    more["last-remedy"] = Remedy.model_validate(
        {"id": "last-remedy", "title": "t", "changes": "c", "cost": "c", "unsafe": "u", "in_force": asking}
    )
    threshold = own.thresholds["ten"].model_copy(update={"name": "eleven"})
    thresholds = {**own.thresholds, "eleven": threshold, "twelve": threshold.model_copy(update={"name": "twelve"})}
    folder = own.model_copy(update={"remedies": own.remedies | more, "thresholds": thresholds})
    found = lint(folder, {"U001": PAGE}, base())
    assert {r.message for r in found} == {
        "nothing uses the threshold eleven",
        "no rule prescribes the remedy other-remedy",
        "no rule prescribes the remedy last-remedy",
        "the remedy some-remedy replaces the built-in one",
    }
    assert all(r.level == "warning" for r in found)


def test_thresholds_in_force_decide() -> None:
    own = base(rule(every({"fact": RATIO, "gt": "$ten"}, {"fact": RATIO, "lt": 20})))
    assert lint(own, {"U001": PAGE}, base()) == []
    (found,) = lint(own.with_thresholds({"ten": 30}, "test"), {"U001": PAGE}, base())
    assert found.level == "error"


@pytest.mark.thorough
def test_too_many_combinations_are_not_judged() -> None:
    facts = [f"output.data.values.{name}" for name in ("min", "max", "mean", "std", "p1", "p50", "p99")]
    ranges = [either(*({"fact": fact, "is": number} for number in range(4))) for fact in facts]
    (found,) = remarks(every(*ranges))
    assert (found.level, "was not checked" in found.message) == ("warning", True)


def test_errors_name_file_and_lines(tmp_path: Path) -> None:
    (tmp_path / "remedies.yaml").write_text("some-remedy: {title: t, changes: c, cost: c, unsafe: u}")
    path = tmp_path / "U001.yaml"
    path.write_text(
        "id: U001\nname: some-defect\ncause: some-defect\nscope: layer\nseverity: low\nconfidence: 0.5\n"
        "when:\n  all:\n    - {fact: weight.max, gt: 3}\n    - any:\n        - fact: weight.max\n          lt: 2\n"
        "        - not: {fact: weight.max, ge: 1}\n"
        "where: {fact: op_type, is: Conv}\nmessage: '{weight.max}'\nremedies: [some-remedy]\n"
        "---\n- silent: {op_type: Add}\n"
    )
    refused, example = lint(load_rules([tmp_path]), {"U001": PAGE})
    places = [place.removeprefix(str(path)) for place in refused.where]
    assert places == [":9: - {fact: weight.max, gt: 3}", ":11: - fact: weight.max"]
    assert (example.level, example.message) == ("error", "it has no example on which it fires")


# The reasoning, against every combination of values

FACTS: dict[str, tuple[Any, ...]] = {
    "weight.quantizer.bits": (None, 0, 1, 2, 3, 4),
    "weight.max": (None, float("nan"), -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
    "weight.quantizer.granularity": (None, "per_tensor", "per_channel", "per_block"),
    "is_last": (None, True, False),
}
ORDER = ("gt", "ge", "lt", "le", "is", "is_not")
QUANTIZER = "weight.quantizer."


def compared(fact: str, operators: tuple[str, ...], values: list[Any]) -> Any:
    pairs = st.tuples(st.sampled_from(operators), st.sampled_from(values))
    return pairs.map(lambda pair: {"fact": fact, pair[0]: pair[1]})


CONDITIONS = st.one_of(
    compared("weight.max", ORDER, [0, 1, 2]),
    compared(f"{QUANTIZER}bits", ORDER, [1, 2, 3]),
    compared(f"{QUANTIZER}bits", ("in",), [[1], [2, 3], [1, 3]]),
    compared(f"{QUANTIZER}granularity", ("is", "is_not"), ["per_tensor", "per_channel", "per_block"]),
    compared("is_last", ("is", "is_not"), [True, False]),
    st.sampled_from(sorted(FACTS)).flatmap(lambda fact: compared(fact, ("known",), [True, False])),
)
NODES = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"all": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"any": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=7,
)


def layers() -> list[dict[str, Any]]:
    rows = []
    for bits, top, granularity, last in itertools.product(*FACTS.values()):
        quantizer = {"bits": bits, "granularity": granularity}
        rows.append({"weight": {"quantizer": quantizer, "max": top}, "is_last": last})
    return rows


ALL_LAYERS = CaseFacts.model_validate({"layers": layers()})


def fires(own: Rule) -> bool:
    (result,) = evaluate(base(own), ALL_LAYERS)
    return bool(result.findings)


@examples(150)
@given(when=NODES, where=st.none() | NODES)
def test_can_fire_agrees_with_trying_all_values(when: Any, where: Any) -> None:
    own = rule(when, where=where, message="{weight.max}")
    refused = [r for r in lint(base(own), {"U001": PAGE}, base()) if r.level == "error"]
    assert bool(refused) is not fires(own)
