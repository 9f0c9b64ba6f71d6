"""The examples of a rule: read, turned into a case, and run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.examples import Example, Outcome, example_case, explained_rules, rule_examples, run_example
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

EXAMPLES = """
- fires:
    weight: {channel_range_ratio: 148}
    model: {harmed: true}
- about: A close miss
  silent: {weight: {channel_range_ratio: 9}}
- fires: {weight: {channel_range_ratio: 12}, model: {harmed: false}}
"""
FIELDS: dict[str, Any] = {
    "id": "U001",
    "name": "some-defect",
    "cause": "some-defect",
    "scope": "layer",
    "severity": "high",
    "confidence": 0.5,
    "when": {"all": [{"fact": "weight.channel_range_ratio", "gt": "$ratio"}, {"fact": "model.harmed", "is": True}]},
    "message": "bad",
    "remedies": ["some-remedy"],
}
RULE = Rule.model_validate(FIELDS)
BASE = RuleBase(
    rules=(RULE,),
    thresholds={"ratio": Threshold(name="ratio", value=10, source="test", description="d")},
    remedies={"some-remedy": Remedy(id="some-remedy", title="t", changes="c", cost="c", unsafe="u")},
)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[Rule, list[Example]]]:
    """Writes examples behind a rule and reads them."""

    def read(text: str, rule: Rule = RULE) -> tuple[Rule, list[Example]]:
        path = tmp_path / "U001.yaml"
        path.write_text(f"id: U001\n---\n{text}")
        placed = rule.model_copy(update={"path": path})
        return placed, rule_examples(placed)

    return read


@pytest.fixture
def run(read: Callable[..., tuple[Rule, list[Example]]]) -> Callable[..., Outcome]:
    """Runs one silent example."""

    def run(facts: str, rule: Rule = RULE) -> Outcome:
        placed, (example,) = read(f"- silent: {facts}", rule)
        return run_example(placed, example, BASE)

    return run


def test_examples_are_read_in_order_with_number_line_and_words(read: Any) -> None:
    found = [(example.kind, example.number, example.line, example.about) for example in read(EXAMPLES)[1]]
    assert found == [("fires", 1, 4, ""), ("silent", 1, 7, "A close miss"), ("fires", 2, 9, "")]
    assert read("")[1] == [] and rule_examples(RULE) == []


def test_the_title_of_a_page_lists_its_rules() -> None:
    assert explained_rules("# some-defect (U001, U002)\n") == ("U001", "U002") and explained_rules("# Words\n") == ()


def test_outcome_names_the_facts_that_decided(read: Any) -> None:
    rule, examples = read(EXAMPLES)
    fires, silent, wrong = (run_example(rule, example, BASE) for example in examples)
    assert [(reason.condition.fact, reason.value, reason.limit) for reason in fires.reasons] == [
        ("weight.channel_range_ratio", 148, 10),
        ("model.harmed", True, True),
    ]
    assert (fires.passed, silent.passed, wrong.passed) == (True, True, False)
    (reason,) = silent.reasons
    assert (reason.condition.fact, reason.value, reason.holds) == ("weight.channel_range_ratio", 9, False)
    (reason,) = wrong.reasons
    assert (reason.condition.fact, reason.value, reason.holds) == ("model.harmed", False, False)


def test_exclusion_that_decided_is_named(run: Any) -> None:
    """Behind a negation, the comparison that holds is what silences the rule."""
    rule = Rule.model_validate(FIELDS | {"when": {"not": {"fact": "op_type", "in": ["Exp", "Pow"]}}})
    outcome = run("{op_type: Pow}", rule)
    assert (outcome.verdict, outcome.passed) == ("passed", True)
    (reason,) = outcome.reasons
    assert (reason.condition.fact, reason.value, reason.holds) == ("op_type", "Pow", True)


def test_where_decides_before_when(run: Any) -> None:
    rule = Rule.model_validate(FIELDS | {"where": {"fact": "op_type", "is": "Conv"}})
    outcome = run("{op_type: Add, weight: {channel_range_ratio: 148}}", rule)
    assert (outcome.verdict, outcome.passed) == ("not-applicable", True)
    assert [reason.condition.fact for reason in outcome.reasons] == ["op_type"]


def test_silence_for_want_of_a_fact_does_not_pass(run: Any) -> None:
    outcome = run("{op_type: Conv}")
    assert (outcome.verdict, outcome.passed) == ("not-judged", False)
    assert outcome.missing == ("weight.channel_range_ratio", "model.harmed")


def test_errors_name_file_and_line(run: Any, read: Any) -> None:
    for text, words in {
        "{weight: {chanel_range_ratio: 3}}": "did you mean 'weight.channel_range_ratio'?",
        "{wieght: {channel_range_ratio: 3}}": "did you mean 'weight'?",
        "{model: {harmd: true}}": "did you mean 'model.harmed'?",
        "{weight: {channel_range_ratio: wide}}": "'weight.channel_range_ratio'",
        "{weight: [1, 2}": "not a YAML file",
        "3": "an example is a mapping of facts",
        "{}\n  fires: {}": "one of `fires` and `silent`",
    }.items():
        with pytest.raises(RuleError) as caught:
            run(text)
        assert words in str(caught.value) and "U001.yaml:3" in str(caught.value), text
    with pytest.raises(RuleError, match="examples are a list"):
        read("fires: {}")


def test_facts_of_a_rule_about_the_model_stand_alone() -> None:
    rule = Rule.model_validate(FIELDS | {"scope": "model", "when": {"fact": "output_sqnr_db", "lt": 3}})
    assert example_case(rule, {"output_sqnr_db": 2}).model.output_sqnr_db == 2
    with pytest.raises(RuleError, match="did you mean 'output_sqnr_db'"):
        example_case(rule, {"output_snr_db": 2})
