"""Budgets of language models that were run on texts: perplexity, divergence of the predictions, same first token.

Intervals are those of the case: 95 %, over texts, because the tokens of one text are not independent.
"""

from collections.abc import Callable
from typing import NamedTuple

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.check_report import GateLine
from quantmedic.engine.formulas.power import SampleSizes, sizes_of_interval
from quantmedic.engine.gate.figures import Status, digits_for, fixed_point, unjudged_line
from quantmedic.engine.gate.policy import KL, SAME_TOP, Budget

#: Of the intervals over texts.
CONFIDENCE = 0.95
#: What is said behind a limit whose unit nobody gave: 2 is read as 2 % by most.
OWN_UNIT = ' of perplexity itself, for the budget gives no unit (unit = "percent" is of the float model\'s)'
#: Units that stand behind a figure; that of a metric is its name, which stands in front.
_SHOWN_UNITS = ("%", "nats")
NO_TEXTS = "no language models were run on texts: quantmedic check FLOAT QUANT --tokens FILE"


def judge_language_budget(budget: Budget, facts: CaseFacts) -> GateLine:
    """The line of one budget, without its name and its place in the policy."""
    if facts.model.language.texts is None:
        return unjudged_line("accuracy", NO_TEXTS)
    if budget.confidence != CONFIDENCE:
        return unjudged_line("accuracy", f"intervals over texts are of 95 %, not of {100 * budget.confidence:g} %")
    return _LINES.get(budget.metric, _perplexity_line)(budget, facts)


class _Figure(NamedTuple):
    """What was measured, with its interval and its unit; None where it was not."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    word: str = ""
    of_limit: str = ""


def _perplexity_line(budget: Budget, facts: CaseFacts) -> GateLine:
    metric = facts.model.metric
    if metric.name != budget.metric:
        return unjudged_line("accuracy", f"{metric.name or 'nothing'} was measured, not {budget.metric}")
    relative = budget.drop_unit == "percent"
    scale = 100 / abs(metric.float_value) if relative and metric.float_value else 1.0
    ends = _scale(scale, metric.drop, metric.drop_low, metric.drop_high)
    assert budget.max_drop is not None
    own = OWN_UNIT if budget.unit is None else " of perplexity" if not relative else ""
    figure = _Figure(*ends, "%" if relative else metric.name, "rise ", own)
    return _bounded_line(facts, figure, budget.max_drop, _is_most)


def _kl_line(budget: Budget, facts: CaseFacts) -> GateLine:
    language = facts.model.language
    assert budget.max is not None
    figure = _Figure(language.kl_mean, language.kl_low, language.kl_high, "nats")
    return _bounded_line(facts, figure, budget.max, _is_most)


def _same_top_line(budget: Budget, facts: CaseFacts) -> GateLine:
    language = facts.model.language
    ends = _scale(100, language.same_top, language.same_top_low, language.same_top_high)
    assert budget.min is not None
    return _bounded_line(facts, _Figure(*ends, "%"), 100 * budget.min, _is_least)


_LINES: dict[str, Callable[[Budget, CaseFacts], GateLine]] = {KL: _kl_line, SAME_TOP: _same_top_line}


def _scale(scale: float, *ends: float | None) -> tuple[float | None, float | None, float | None]:
    value, low, high = (None if end is None else scale * end for end in ends)
    return value, low, high


def _bounded_line(
    facts: CaseFacts, figure: _Figure, limit: float, judge: Callable[[float, float, float], Status]
) -> GateLine:
    """A figure held against its limit, which ``judge`` reads as the most or the least that passes."""
    language, (value, low, high, unit, word, of_limit) = facts.model.language, figure
    shown = f" {unit}" if unit in _SHOWN_UNITS else ""
    behind = f"{shown}{of_limit}"
    if value is None:
        lost = f"the quantized model predicts what is no number for {language.nonfinite_tokens} tokens"
        return unjudged_line("accuracy", lost if language.nonfinite_tokens else "it was not measured")
    if low is None or high is None:
        text = f"{word}{fixed_point(value, digits_for(limit, value))}{shown}"
        return unjudged_line("accuracy", f"{text} of one text, too few for an interval; limit {limit:g}{behind}")
    digits = digits_for(limit, low, high)
    text = f"{word}{fixed_point(value, digits)}{shown} ({fixed_point(low, digits)} … {fixed_point(high, digits)})"
    status = judge(low, high, limit)
    sizes = _texts_to_decide(value, low, high, limit, language.texts or 0)
    advice = _advice(sizes) if status == "undecided" else ""
    return GateLine(
        kind="accuracy",
        name="",
        status=status,
        message=f"{text} on {language.texts} texts, limit {fixed_point(limit, digits)}{behind}{advice}",
        value=value,
        low=low,
        high=high,
        limit=limit,
        unit=unit,
        confidence=CONFIDENCE,
        samples=sizes,
    )


def _texts_to_decide(value: float, low: float, high: float, limit: float, texts: int) -> SampleSizes:
    """Texts whose interval would end at the limit, if the figure is as measured: it narrows with their square root."""
    sizes = sizes_of_interval(value, low, high, texts, limit, CONFIDENCE)
    return SampleSizes(now=texts, at_measured=sizes.at_measured)


def _advice(sizes: SampleSizes) -> str:
    if sizes.at_measured is None:
        return f"; {sizes.now} texts do not decide it"
    return f"; {sizes.now} texts are too few, about {sizes.at_measured} would decide a figure of this size"


def _is_most(low: float, high: float, limit: float) -> Status:
    return "pass" if high <= limit else "fail" if low > limit else "undecided"


def _is_least(low: float, high: float, limit: float) -> Status:
    return "pass" if low >= limit else "fail" if high < limit else "undecided"
