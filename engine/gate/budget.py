"""Budgets of the policy held against what was measured: one line of the gate each."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import CaseFacts, MetricFacts, Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.check_report import GateLine
from quantmedic.engine.contract.harm_report import Undecided
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.power import SampleSizes, sizes_of_counts, sizes_of_interval, sizes_of_share
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.formulas.task_metric import metric_pairs, samples_lost
from quantmedic.engine.gate.figures import Figure, Kind, Status, digits_for, fixed_point, gate_line, unjudged_line
from quantmedic.engine.gate.policy import AGREEMENT, KL, PERPLEXITY, SAME_TOP, SQNR, Budget
from quantmedic.engine.metrics.kinds import is_share, kind_of
from quantmedic.engine.metrics.labels import FAULT_WORDS
from quantmedic.engine.metrics.paired import discordant, is_binary, mcnemar, mean_interval

#: Messages about samples whose loss is unknown: a drop that was measured without them is never a pass.
_NO_NUMBER = "the quantized model's metric is not a number on any of {} samples"
_LEFT_OUT = "left out: {} where the quantized model's metric is not a number"
#: Samples that an interval of values other than 0 and 1 takes: of fewer, a bootstrap knows too little of their spread.
_LEAST_SAMPLES = 10
#: Of the intervals over texts.
CONFIDENCE = 0.95
#: What is said behind a limit whose unit nobody gave: 2 is read as 2 % by most.
OWN_UNIT = ' of perplexity itself, for the budget gives no unit (unit = "percent" is of the float model\'s)'
#: Units that stand behind a figure; that of a metric is its name, which stands in front.
_SHOWN_UNITS = ("%", "nats")
NO_TEXTS = "no language models were run on texts: quantmedic check FLOAT QUANT --tokens FILE"


def judge_budget(budget: Budget, case: Case, facts: CaseFacts, *, name: str, line: int) -> GateLine:
    """The gate's line for one budget.

    A bound on a drop or a share is met where the whole interval of what was measured is within it, and broken where the
    whole interval is beyond; else more samples would be needed.

    Args:
        budget: Figure and bound.
        case: Its samples.
        facts: Facts of the case.
        name: Name of the line.
        line: Line of the policy.

    Raises:
        DataError: The budget names an output that the models do not have.
    """
    if facts.model.language.texts is not None or budget.metric in (KL, SAME_TOP) or _wants_texts(budget, case):
        found = judge_language_budget(budget, facts)
    else:
        _require_output(budget.output, case)
        found = _LEVELS.get(budget.metric, _drop_line)(budget, case, facts)
    return found.model_copy(update={"name": name, "line": line})


def _wants_texts(budget: Budget, case: Case) -> bool:
    """A budget of perplexity for weights that were compared and not run; other networks measure it with labels."""
    return budget.metric == PERPLEXITY and not case.record.datasets


def _require_output(name: str | None, case: Case) -> None:
    known = [output.name for output in case.record.outputs]
    if name is None or not known or name in known:
        return
    raise DataError(
        "model has no such output",
        where=[f"budget   output = {name}", f"outputs  {', '.join(known)}"],
        help="name one of the outputs, or leave output out",
    )


def _drop_text(drop: Figure, sizes: SampleSizes) -> str:
    """A drop in words; a negative one reads as a gain."""
    value, low, high, limit, unit, _ = drop
    digits = digits_for(limit, *((low, high) if low is not None and high is not None else (value,)))
    word, turn = _direction(value, digits)
    figure, bound = f"{word} {fixed_point(turn * value, digits)}{_suffix(unit)}", fixed_point(limit, digits)
    if low is None or high is None:
        few = "one sample" if sizes.now == 1 else f"{sizes.now} samples"
        return f"{figure} of {few}, too few for an interval; limit of the drop {bound}"
    figure += f" ({' … '.join(fixed_point(end, digits) for end in sorted((turn * low, turn * high)))})"
    if drop.status == "undecided":
        missed = "straddles the limit" if word == "drop" else "does not rule out a drop beyond the limit"
        return f"{figure} {missed} {bound}{_advice(sizes, limit, word, digits)}"
    return f"{figure}, limit of the drop {bound}"


def _advice(sizes: SampleSizes, limit: float, word: str, digits: int) -> str:
    decide, find = sizes.at_measured, sizes.at_twice
    now = f"{sizes.now} samples"
    if decide:
        return f"; {now} are too few, about {rounded_up(decide)} would decide a {word} of this size"
    if find is not None and find > sizes.now:
        twice = fixed_point(2 * limit, digits)
        return f"; {now} are too few, {rounded_up(find)} tell no drop from one of {twice} in 9 of 10 runs"
    return f" (now {now})"


def _direction(drop: float, digits: int) -> tuple[str, int]:
    return ("gain", -1) if float(fixed_point(drop, digits)) < 0 else ("drop", 1)


def _drop_line(budget: Budget, case: Case, facts: CaseFacts) -> GateLine:
    """The line of the task metric: its drop with the paired interval, in the unit of the budget."""
    metric = facts.model.metric
    missing, lost = _missing_metric(budget, case, metric), _samples_without_metric(case, metric.dataset)
    if missing is None and metric.dataset is None:
        missing = _NO_NUMBER.format(lost) if lost else "no labels, so the task metric was not measured"
    if missing is not None or metric.dataset is None:
        return unjudged_line("accuracy", missing or "")
    pairs = metric_pairs(case.statistics[metric.dataset])
    drop, sizes, p = _measure_drop(budget, metric, *pairs, int(case.record.run.get("seed", 0)))
    message = "; ".join([_drop_text(drop, sizes), *([_LEFT_OUT.format(lost)] if lost else [])])
    if lost and drop.status == "pass":
        return unjudged_line("accuracy", message)
    return drop.line("accuracy", message, confidence=budget.confidence, samples=sizes, mcnemar_p=p)


def _measure_drop(
    budget: Budget, metric: MetricFacts, floats: Tally, quantized: Tally, seed: int
) -> tuple[Figure, SampleSizes, float | None]:
    """The drop in the unit of the budget, the samples that a decision takes, and McNemar's p of zeros and ones."""
    limit, samples, confidence = budget.limit, len(floats), budget.confidence
    higher, kind, relative = bool(metric.higher_is_better), kind_of(metric.name), budget.drop_unit == "percent"
    asked = {"higher_is_better": higher, "relative": relative}
    found = kind.drop_interval(floats, quantized, **asked, confidence=confidence, seed=seed)
    scale, unit = _unit(budget)
    value, low, high = (scale * end + 0.0 for end in found)  # no negative zero
    drop = Figure(value, low, high, limit, unit)
    numbers = kind.defined_numbers(floats, quantized)
    if numbers and not kind.root and is_binary(*numbers):
        losses, gains = discordant(*numbers if higher else reversed(numbers))
        share = limit / scale * (abs(metric.float_value or 0.0) if relative else 1.0)
        sizes = sizes_of_counts(losses, gains, len(numbers[0]), share, confidence)
        return drop, sizes, mcnemar(losses, gains)
    if samples < _LEAST_SAMPLES:
        return drop._replace(low=None, high=None), SampleSizes(now=samples), None
    return drop, sizes_of_interval(value, low, high, samples, limit, confidence), None


def _missing_metric(budget: Budget, case: Case, metric: MetricFacts) -> str | None:
    """Why the case does not hold the metric of the budget; None where it does."""
    name = metric.name
    if name is None:
        return f"no task metric was measured: {budget.metric} needs labels"
    if name != budget.metric:
        return f"{name} was measured, not {budget.metric}"
    if metric.label_fault not in (None, "none"):
        return f"{name} says nothing here: {FAULT_WORDS[metric.label_fault]}"
    if budget.drop_unit == "percent" and metric.float_value == 0:
        return f"{name} of the float model is 0, and so is every percentage of it"
    if budget.output is None:
        return None
    read = case.record.run.get("metric_output")
    known = [output.name for output in case.record.outputs]
    if ":" in name and len(known) > 1:
        return f"{name} reads all outputs, not {budget.output} alone"
    if read is None:
        read = known[0] if known else None
    return None if read == budget.output else f"{name} was measured of another output: {read}, not {budget.output}"


def _unit(budget: Budget) -> tuple[float, str]:
    """Factor from the metric, or from its ratio, to the unit of the budget, and how that is called."""
    if budget.drop_unit == "points":
        return 100.0, "points"
    if budget.drop_unit == "percent":
        return 100.0, "%"
    return 1.0, "share" if is_share(budget.metric) else budget.metric


def _samples_without_metric(case: Case, role: Role | None) -> int:
    """Samples that only the float model has a metric of, those of a set among them that should have been judged."""
    asked: tuple[Role, ...] = ("validation",) if role == "validation" else ("validation", "representative")
    return sum(int(samples_lost(case.statistics[name]).sum()) for name in asked if name in case.statistics)


def _agreement_line(budget: Budget, case: Case, facts: CaseFacts) -> GateLine:
    """The line of the share of samples where both models predict the same class, with its score interval."""
    first = case.record.outputs[0].name if case.record.outputs else None
    if budget.output is not None and budget.output != first:
        return unjudged_line("agreement", f"classes are read from the output {first}, not from {budget.output}")
    same = _same_class(case)
    if same is None or not len(same):
        missing = "the outputs are not class scores" if case.statistics else "no samples were run"
        return unjudged_line("agreement", missing)
    ends = mean_interval(same.astype(np.float64), confidence=budget.confidence)
    low, high = (100 * end for end in ends)
    found = Figure(100 * float(same.mean()), low, high, 100 * budget.limit, "%", least=True)
    sizes = sizes_of_share(int(same.sum()), len(same), budget.limit, budget.confidence)
    digits = digits_for(found.limit, low, high, least=1)
    figure = f"{fixed_point(found.value, digits)} % ({fixed_point(low, digits)} … {fixed_point(high, digits)})"
    message = f"{figure}, required {fixed_point(found.limit, digits)} %"
    if found.status == "undecided":
        decide = f"; at this share about {rounded_up(sizes.at_measured)} would decide" if sizes.at_measured else ""
        message = (
            f"{figure} straddles the required {fixed_point(found.limit, digits)} %{decide} (now {sizes.now} samples)"
        )
    return found.line("agreement", message, confidence=budget.confidence, samples=sizes)


def _same_class(case: Case) -> NDArray[np.bool_] | None:
    """Of the samples that have a class, whether both models agree on it; as ``model.output_agreement`` counts them."""
    if not case.statistics:
        return None
    samples = case.statistics[main_role(case)].samples
    classified = samples[samples["class_float"] >= 0]
    same: NDArray[np.bool_] = classified["class_float"] == classified["class_quantized"]
    return same


def _sqnr_line(budget: Budget, case: Case, facts: CaseFacts) -> GateLine:
    """The line of the SQNR of one output, of the worst one where none is named: of its worst column and operand too.

    It has no interval: the level is a ratio of sums over these very samples, the same bytes in every run, and a few
    samples with large errors make most of it. How far other samples would move it, only other samples can show.
    """
    outputs = [o for o in facts.outputs if o.worst_sqnr_db is not None and budget.output in (None, o.name)]
    if not outputs:
        of = f" of {budget.output}" if budget.output is not None else ""
        return unjudged_line("sqnr", f"the SQNR{of} was not measured")
    levels = [-math.inf if o.worst_sqnr_db is None or math.isnan(o.worst_sqnr_db) else o.worst_sqnr_db for o in outputs]
    value = min(levels)
    worst = outputs[levels.index(value)]
    digits = digits_for(budget.limit, value, least=1)
    figure = f"{fixed_point(value, digits)} dB" if math.isfinite(value) else "no error" if value > 0 else "-inf dB"
    of = f" of {worst.name}" if budget.output is None and len(facts.outputs) > 1 else ""
    if worst.columns.worst is not None and worst.columns.worst_sqnr_db == value:
        of = f" of {worst.columns.worst}{of}"
    message = f"{figure}{of}, required {fixed_point(budget.limit, digits)} dB{_outputs_without_level(budget, facts)}"
    status: Status = "pass" if value >= budget.limit else "fail"
    return Figure(value, None, None, budget.limit, "dB").line("sqnr", message, status=status)


def _outputs_without_level(budget: Budget, facts: CaseFacts) -> str:
    """Outputs that cannot be the worst one: integers have no SQNR, and some outputs could not be compared."""
    outputs = facts.outputs if budget.output is None else ()
    names = [output.name for output in outputs if output.worst_sqnr_db is None]
    return f"; not measured: {', '.join(map(str, names))}" if names else ""


_LEVELS: dict[str, Callable[[Budget, Case, CaseFacts], GateLine]] = {AGREEMENT: _agreement_line, SQNR: _sqnr_line}


def _suffix(unit: str) -> str:
    return f" {unit}" if unit in ("points", "%") else ""


def undecided_line(found: Undecided, line: int) -> GateLine:
    """A policy may ask that it is known whether noise costs accuracy, where a repair would take it away.

    Args:
        found: What is open.
        line: Line of the policy that asks.
    """
    if found.doubt is not None:
        return gate_line("harm", "undecided", found.doubt, line=line)
    decide = f"; about {rounded_up(found.needed)} would decide" if found.needed is not None else ""
    samples = f" on {found.samples} samples{decide}" if found.metric is not None else ": no task metric was measured"
    message = (
        f"a repair recovers {found.gain_db or 0.0:.1f} dB of noise, and whether it costs accuracy is open{samples}"
    )
    return gate_line("harm", "undecided", message, line=line)


def rounded_up(samples: int) -> int:
    """A number of samples, rounded up to two digits: it is an estimate."""
    step: int = 10 ** max(len(str(samples)) - 2, 0)
    return -(-samples // step) * step


def budget_kind(budget: Budget) -> Kind:
    """The kind of its line: metrics of the task are one."""
    return "agreement" if budget.metric == AGREEMENT else "sqnr" if budget.metric == SQNR else "accuracy"


def budget_names(budgets: Sequence[Budget]) -> list[str]:
    """What budgets are called: unique, for reports and histories."""
    names: list[str] = []
    for budget in budgets:
        kind = budget_kind(budget)
        parts = [kind, budget.metric if kind == "accuracy" else "", budget.output or ""]
        name = " ".join(part for part in parts if part)
        names.append(name if name not in names else f"{name} #{len(names) + 1}")
    return names


# --- Language models that were run on texts ---------------------------------------------------------------------------
# Perplexity, divergence of the predictions, same first token. Intervals are those of the case: 95 %, over texts,
# because the tokens of one text are not independent.


def judge_language_budget(budget: Budget, facts: CaseFacts) -> GateLine:
    """The line of one budget, without its name and its place in the policy."""
    if facts.model.language.texts is None:
        return unjudged_line("accuracy", NO_TEXTS)
    if budget.confidence != CONFIDENCE:
        return unjudged_line("accuracy", f"intervals over texts are of 95 %, not of {100 * budget.confidence:g} %")
    language, metric = facts.model.language, facts.model.metric
    if budget.metric == KL:
        ends = (language.kl_mean, language.kl_low, language.kl_high)
        return _bounded_line(facts, _figure(ends, budget.limit, "nats"))
    if budget.metric == SAME_TOP:
        ends = (language.same_top, language.same_top_low, language.same_top_high)
        return _bounded_line(facts, _figure(ends, 100 * budget.limit, "%", 100, least=True))
    if metric.name != budget.metric:
        return unjudged_line("accuracy", f"{metric.name or 'nothing'} was measured, not {budget.metric}")
    relative = budget.drop_unit == "percent"
    scale = 100 / abs(metric.float_value) if relative and metric.float_value else 1.0
    own = OWN_UNIT if budget.unit is None else " of perplexity" if not relative else ""
    ends = (metric.drop, metric.drop_low, metric.drop_high)
    return _bounded_line(facts, _figure(ends, budget.limit, "%" if relative else metric.name, scale), "rise ", own)


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
    advice = _advice_on_texts(sizes) if figure.status == "undecided" else ""
    message = f"{text} on {language.texts} texts, limit {fixed_point(limit, digits)}{behind}{advice}"
    return figure.line("accuracy", message, confidence=CONFIDENCE, samples=sizes)


def _texts_to_decide(value: float, low: float, high: float, limit: float, texts: int) -> SampleSizes:
    """Texts whose interval would end at the limit, if the figure is as measured: it narrows with their square root."""
    sizes = sizes_of_interval(value, low, high, texts, limit, CONFIDENCE)
    return SampleSizes(now=texts, at_measured=sizes.at_measured)


def _advice_on_texts(sizes: SampleSizes) -> str:
    if sizes.at_measured is None:
        return f"; {sizes.now} texts do not decide it"
    return f"; {sizes.now} texts are too few, about {sizes.at_measured} would decide a figure of this size"
