"""The examples on a manual page: read, turned into a case, and run."""

from typing import Any

import pytest

from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.examples import (
    Outcome,
    example_case,
    example_values,
    explained_rules,
    page_examples,
    run_example,
)
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

PAGE = """# some-defect (U001)

```yaml fires
weight: {channel_range_ratio: 148}
model: {harmed: true}
```

```yaml
not: an example
```

```yaml silent
weight: {channel_range_ratio: 9}
```

```yaml fires
weight: {channel_range_ratio: 12}
model: {harmed: false}
```
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


def run(text: str, rule: Rule = RULE, kind: str = "silent") -> Outcome:
    (example,) = page_examples(f"```yaml {kind}\n{text}\n```\n")
    return run_example(rule, example, BASE, "U001.md")


def test_examples_are_found_in_order_with_number_and_line() -> None:
    found = [(example.kind, example.number, example.line) for example in page_examples(PAGE)]
    assert found == [("fires", 1, 3), ("silent", 1, 12), ("fires", 2, 16)]


def test_a_shared_page_lists_its_rules_and_keeps_their_examples_apart() -> None:
    page = "# some-defect (U001, U002)\n\n```yaml fires U001\na: 1\n```\n\n```yaml fires U002\na: 2\n```\n"
    assert explained_rules(page) == ("U001", "U002") and explained_rules("# Words\n") == ()
    assert [example.text for example in page_examples(page, "U002")] == ["a: 2\n"]
    assert [example.number for example in page_examples(page)] == [1, 2]


def test_outcome_names_the_facts_that_decided() -> None:
    fires, silent, wrong = (run_example(RULE, example, BASE) for example in page_examples(PAGE))
    assert [(reason.condition.fact, reason.value, reason.limit) for reason in fires.reasons] == [
        ("weight.channel_range_ratio", 148, 10),
        ("model.harmed", True, True),
    ]
    assert (fires.passed, silent.passed, wrong.passed) == (True, True, False)
    (reason,) = silent.reasons
    assert (reason.condition.fact, reason.value, reason.holds) == ("weight.channel_range_ratio", 9, False)
    (reason,) = wrong.reasons
    assert (reason.condition.fact, reason.value, reason.holds) == ("model.harmed", False, False)


def test_exclusion_that_decided_is_named() -> None:
    """Behind a negation, the comparison that holds is what silences the rule."""
    rule = Rule.model_validate(FIELDS | {"when": {"not": {"fact": "op_type", "in": ["Exp", "Pow"]}}})
    outcome = run("op_type: Pow", rule)
    assert (outcome.verdict, outcome.passed) == ("passed", True)
    (reason,) = outcome.reasons
    assert (reason.condition.fact, reason.value, reason.holds) == ("op_type", "Pow", True)


def test_where_decides_before_when() -> None:
    rule = Rule.model_validate(FIELDS | {"where": {"fact": "op_type", "is": "Conv"}})
    outcome = run("op_type: Add\nweight: {channel_range_ratio: 148}", rule)
    assert (outcome.verdict, outcome.passed) == ("not-applicable", True)
    assert [reason.condition.fact for reason in outcome.reasons] == ["op_type"]


def test_silence_for_want_of_a_fact_does_not_pass() -> None:
    outcome = run("op_type: Conv")
    assert (outcome.verdict, outcome.passed) == ("not-judged", False)
    assert outcome.missing == ("weight.channel_range_ratio", "model.harmed")


def test_errors_name_page_and_line() -> None:
    for text, words in {
        "weight: {chanel_range_ratio: 3}": "did you mean 'weight.channel_range_ratio'?",
        "wieght: {channel_range_ratio: 3}": "did you mean 'weight'?",
        "model: {harmd: true}": "did you mean 'model.harmed'?",
        "weight: {channel_range_ratio: wide}": "'weight.channel_range_ratio'",
        "weight: [1, 2": "an example is not valid YAML",
        "- 3": "an example is a mapping of facts",
    }.items():
        with pytest.raises(RuleError) as caught:
            run(text)
        assert words in str(caught.value) and "U001.md:" in str(caught.value), text


def test_facts_of_a_rule_about_the_model_stand_alone() -> None:
    rule = Rule.model_validate(FIELDS | {"scope": "model", "when": {"fact": "output_sqnr_db", "lt": 3}})
    (example,) = page_examples("```yaml fires\noutput_sqnr_db: 2\n```\n")
    assert example_case(rule, example_values(example)).model.output_sqnr_db == 2
    with pytest.raises(RuleError, match="did you mean 'output_sqnr_db'"):
        example_case(rule, {"output_snr_db": 2})
