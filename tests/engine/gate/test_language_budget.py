"""Budgets of language models: what the interval over texts says of the limit."""

from typing import Any

import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quantmedic.engine.case.facts import CaseFacts, MetricFacts, ModelFacts
from quantmedic.engine.case.language_facts import LanguageFacts
from quantmedic.engine.gate.budget import NO_TEXTS, judge_language_budget
from quantmedic.engine.gate.policy import Budget

many = examples(200)
PERPLEXITY = MetricFacts(
    name="perplexity", float_value=8.0, quantized_value=8.4, drop=0.4, drop_low=0.2, drop_high=0.6,
    higher_is_better=False,
)  # fmt: skip


def facts(metric: MetricFacts = PERPLEXITY, **language: Any) -> CaseFacts:
    known = {"texts": 12, "kl_mean": 0.02, "kl_low": 0.01, "kl_high": 0.03, "same_top": 0.9}
    known |= {"same_top_low": 0.88, "same_top_high": 0.92} | language
    return CaseFacts(model=ModelFacts(metric=metric, language=LanguageFacts(**known)))


def test_the_whole_interval_decides() -> None:
    for budget, status in [
        (Budget(metric="perplexity", max_drop=0.7), "pass"),
        (Budget(metric="perplexity", max_drop=0.1), "fail"),
        (Budget(metric="perplexity", max_drop=0.3), "undecided"),
        (Budget(metric="perplexity", max_drop=8, unit="percent"), "pass"),
        (Budget(metric="perplexity", max_drop=2, unit="percent"), "fail"),
        (Budget(metric="kl", max=0.03), "pass"),
        (Budget(metric="kl", max=0.005), "fail"),
        (Budget(metric="kl", max=0.02), "undecided"),
        (Budget(metric="same_top", min=0.88), "pass"),
        (Budget(metric="same_top", min=0.93), "fail"),
        (Budget(metric="same_top", min=0.9), "undecided"),
    ]:
        line = judge_language_budget(budget, facts())
        assert line.status == status and "on 12 texts, limit" in line.message, budget


def test_the_limit_has_its_unit_beside_it() -> None:
    for given_unit, said in [
        ({"max_drop": 0.3}, 'limit 0.30 of perplexity itself, for the budget gives no unit (unit = "percent"'),
        ({"max_drop": 0.3, "unit": "absolute"}, "limit 0.30 of perplexity;"),
        ({"max_drop": 5, "unit": "percent"}, "limit 5.00 %;"),
    ]:
        assert said in judge_language_budget(Budget(metric="perplexity", **given_unit), facts()).message


def test_undecided_says_how_many_texts_would_decide(subtests: pytest.Subtests) -> None:
    """Intervals narrow with the square root of the texts: those of so many end at the limit."""
    for budget in (
        Budget(metric="perplexity", max_drop=0.3),
        Budget(metric="perplexity", max_drop=6, unit="percent"),
        Budget(metric="kl", max=0.022),
        Budget(metric="same_top", min=0.895),
    ):
        with subtests.test(budget=budget):
            line = judge_language_budget(budget, facts())
            assert line.status == "undecided" and line.samples is not None and line.samples.at_measured is not None
            assert f"12 texts are too few, about {line.samples.at_measured} would decide" in line.message
            assert line.value is not None and line.low is not None and line.high is not None and line.limit is not None
            narrow = (12 / line.samples.at_measured) ** 0.5
            near = line.low if line.limit < line.value else line.high
            assert abs(near - line.value) * narrow == pytest.approx(abs(line.limit - line.value), rel=0.02)
            assert line.samples.at_measured > 12


def test_a_figure_on_the_limit_is_not_decided_by_more_texts() -> None:
    line = judge_language_budget(Budget(metric="kl", max=0.02), facts())
    assert "12 texts do not decide it" in line.message


@many
@given(st.tuples(*(st.floats(0, 5) for _ in range(3))).map(sorted), st.floats(0, 5))
def test_a_pass_never_lies_beyond_the_limit(ends: list[float], limit: float) -> None:
    low, middle, high = ends
    line = judge_language_budget(Budget(metric="kl", max=limit), facts(kl_mean=middle, kl_low=low, kl_high=high))
    assert {"pass": high <= limit, "fail": low > limit, "undecided": low <= limit < high}[line.status]


def test_what_was_not_measured_is_no_pass() -> None:
    for language, said in [
        ({"texts": None}, NO_TEXTS),
        ({"kl_mean": None, "nonfinite_tokens": 3}, "no number for 3 tokens"),
        ({"kl_low": None, "kl_high": None}, "too few for an interval"),
    ]:
        line = judge_language_budget(Budget(metric="kl", max=1), facts(**language))
        assert line.status == "not-judged" and said in line.message
    assert "not top1" in judge_language_budget(Budget(metric="top1", max_drop=1), facts()).message
    assert "95 %" in judge_language_budget(Budget(metric="kl", max=1, confidence=0.99), facts()).message


def test_a_bound_of_another_kind_is_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"min": 0.1}, {"max_drop": 1}, {"max": 1, "min": 1}, {"max": -1}, {"max": 1, "unit": "percent"}
    ]  # fmt: skip
    for given_bound in wrong:
        with pytest.raises(ValidationError):
            Budget(metric="kl", **given_bound)
