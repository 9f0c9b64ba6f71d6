"""Budgets of language models that were run on texts: perplexity, divergence of the predictions, same first token.

Intervals are those of the case: 95 %, over texts, because the tokens of one text are not independent.
"""

from collections.abc import Callable

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.check import GateLine
from quantmedic.engine.formulas.power import SampleSizes
from quantmedic.engine.gate.figures import Status, digits_for, fixed_point, unjudged_line
from quantmedic.engine.gate.policy import KL, SAME_TOP, Budget

#: Of the intervals over texts.
CONFIDENCE = 0.95
NO_TEXTS = "no language models were run on texts: quantmedic weights FLOAT QUANT --tokens FILE"


def judge_language_budget(budget: Budget, facts: CaseFacts) -> GateLine:
    """The line of one budget, without its name and its place in the policy."""
    if facts.model.language.texts is None:
        return unjudged_line("accuracy", NO_TEXTS)
    if budget.confidence != CONFIDENCE:
        return unjudged_line("accuracy", f"intervals over texts are of 95 %, not of {100 * budget.confidence:g} %")
    return _LINES.get(budget.metric, _perplexity_line)(budget, facts)


def _perplexity_line(budget: Budget, facts: CaseFacts) -> GateLine:
    metric = facts.model.metric
    if metric.name != budget.metric:
        return unjudged_line("accuracy", f"{metric.name or 'nothing'} was measured, not {budget.metric}")
    relative = budget.drop_unit == "percent"
    scale = 100 / abs(metric.float_value) if relative and metric.float_value else 1.0
    ends = (metric.drop, metric.drop_low, metric.drop_high)
    value, low, high = (None if end is None else scale * end for end in ends)
    assert budget.max_drop is not None
    return _bounded_line(budget, facts, value, low, high, budget.max_drop, " %" if relative else "", "rise ")


def _kl_line(budget: Budget, facts: CaseFacts) -> GateLine:
    language = facts.model.language
    assert budget.max is not None
    return _bounded_line(budget, facts, language.kl_mean, language.kl_low, language.kl_high, budget.max, " nats", "")


def _same_top_line(budget: Budget, facts: CaseFacts) -> GateLine:
    language = facts.model.language
    ends = (language.same_top, language.same_top_low, language.same_top_high)
    assert budget.min is not None
    # A level that is too low is a lack that is too large.
    value, low, high = (None if end is None else 100 * end for end in ends)
    line = _bounded_line(budget, facts, value, low, high, 100 * budget.min, " %", "")
    return line.model_copy(update={"status": _level_status(low, high, 100 * budget.min)})


_LINES: dict[str, Callable[[Budget, CaseFacts], GateLine]] = {KL: _kl_line, SAME_TOP: _same_top_line}


def _bounded_line(
    budget: Budget,
    facts: CaseFacts,
    value: float | None,
    low: float | None,
    high: float | None,
    limit: float,
    unit: str,
    word: str,
) -> GateLine:
    """A figure that must not be larger than its limit."""
    language = facts.model.language
    if value is None:
        lost = f"the quantized model predicts what is no number for {language.nonfinite_tokens} tokens"
        return unjudged_line("accuracy", lost if language.nonfinite_tokens else "it was not measured")
    if low is None or high is None:
        figure = f"{word}{fixed_point(value, digits_for(limit, value))}{unit}"
        return unjudged_line("accuracy", f"{figure} of one text, too few for an interval; limit {limit:g}{unit}")
    digits = digits_for(limit, low, high)
    figure = f"{word}{fixed_point(value, digits)}{unit} ({fixed_point(low, digits)} … {fixed_point(high, digits)})"
    return GateLine(
        kind="accuracy",
        name="",
        status=_drop_status(low, high, limit),
        message=f"{figure} on {language.texts} texts, limit {fixed_point(limit, digits)}",
        value=value,
        low=low,
        high=high,
        limit=limit,
        unit=unit.strip() or budget.metric,
        confidence=CONFIDENCE,
        samples=SampleSizes(now=language.texts or 0),
    )


def _drop_status(low: float, high: float, limit: float) -> Status:
    return "pass" if high <= limit else "fail" if low > limit else "undecided"


def _level_status(low: float | None, high: float | None, least: float) -> Status:
    if low is None or high is None:
        return "undecided"
    return "pass" if low >= least else "fail" if high < least else "undecided"
