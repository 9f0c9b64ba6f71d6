"""Budgets of language models that were run on texts: perplexity, divergence of the predictions, same first token.

Intervals are those of the case: 95 %, over texts, because the tokens of one text are not independent.
"""

from collections.abc import Callable

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.check_report import GateLine
from quantmedic.engine.formulas.power import SampleSizes, sizes_of_interval
from quantmedic.engine.gate.figures import Figure, digits_for, fixed_point, unjudged_line
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


def _perplexity_line(budget: Budget, facts: CaseFacts) -> GateLine:
    metric = facts.model.metric
    if metric.name != budget.metric:
        return unjudged_line("accuracy", f"{metric.name or 'nothing'} was measured, not {budget.metric}")
    relative = budget.drop_unit == "percent"
    scale = 100 / abs(metric.float_value) if relative and metric.float_value else 1.0
    assert budget.max_drop is not None
    own = OWN_UNIT if budget.unit is None else " of perplexity" if not relative else ""
    unit = "%" if relative else metric.name
    ends = (metric.drop, metric.drop_low, metric.drop_high)
    return _bounded_line(facts, _figure(ends, budget.max_drop, unit, scale), "rise ", own)


def _kl_line(budget: Budget, facts: CaseFacts) -> GateLine:
    language = facts.model.language
    assert budget.max is not None
    return _bounded_line(facts, _figure((language.kl_mean, language.kl_low, language.kl_high), budget.max, "nats"))


def _same_top_line(budget: Budget, facts: CaseFacts) -> GateLine:
    language = facts.model.language
    assert budget.min is not None
    ends = (language.same_top, language.same_top_low, language.same_top_high)
    return _bounded_line(facts, _figure(ends, 100 * budget.min, "%", 100, least=True))


_LINES: dict[str, Callable[[Budget, CaseFacts], GateLine]] = {KL: _kl_line, SAME_TOP: _same_top_line}


def _figure(
    ends: tuple[float | None, ...], limit: float, unit: str, scale: float = 1, *, least: bool = False
) -> Figure | None:
    """A value and its interval times ``scale``; None where nothing was measured."""
    value, low, high = (None if end is None else scale * end for end in ends)
    return None if value is None else Figure(value, low, high, limit, unit, least)


def _bounded_line(facts: CaseFacts, figure: Figure | None, word: str = "", of_limit: str = "") -> GateLine:
    """A figure held against its limit."""
    language = facts.model.language
    if figure is None:
        lost = f"the quantized model predicts what is no number for {language.nonfinite_tokens} tokens"
        return unjudged_line("accuracy", lost if language.nonfinite_tokens else "it was not measured")
    value, low, high, limit, unit, _ = figure
    shown = f" {unit}" if unit in _SHOWN_UNITS else ""
    behind = f"{shown}{of_limit}"
    if low is None or high is None:
        text = f"{word}{fixed_point(value, digits_for(limit, value))}{shown}"
        return unjudged_line("accuracy", f"{text} of one text, too few for an interval; limit {limit:g}{behind}")
    digits = digits_for(limit, low, high)
    text = f"{word}{fixed_point(value, digits)}{shown} ({fixed_point(low, digits)} … {fixed_point(high, digits)})"
    sizes = _texts_to_decide(value, low, high, limit, language.texts or 0)
    advice = _advice(sizes) if figure.status == "undecided" else ""
    message = f"{text} on {language.texts} texts, limit {fixed_point(limit, digits)}{behind}{advice}"
    return figure.line("accuracy", message, confidence=CONFIDENCE, samples=sizes)


def _texts_to_decide(value: float, low: float, high: float, limit: float, texts: int) -> SampleSizes:
    """Texts whose interval would end at the limit, if the figure is as measured: it narrows with their square root."""
    sizes = sizes_of_interval(value, low, high, texts, limit, CONFIDENCE)
    return SampleSizes(now=texts, at_measured=sizes.at_measured)


def _advice(sizes: SampleSizes) -> str:
    if sizes.at_measured is None:
        return f"; {sizes.now} texts do not decide it"
    return f"; {sizes.now} texts are too few, about {sizes.at_measured} would decide a figure of this size"
