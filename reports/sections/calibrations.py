"""A search for the best calibration as text: what was judged, the table of settings, what to paste, what it took."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.calibrations import CalibrationsRecord, Estimate, JudgedSetting, Standing, Stopped
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.reports.text import (
    NOT_MEASURED,
    count,
    decibels,
    level,
    metric_change,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    visible,
)

_MARKS: dict[Standing, str] = {
    "best": "*",
    "as-good": "=",
    "behind": "-",
    "dropped": "x",
    "same": "~",
    "failed": "!",
}
_MEANINGS: dict[Standing, str] = {
    "best": "the winner",
    "as-good": "not proven worse than the winner: the interval of behind reaches zero",
    "behind": "proven worse than the winner: the interval of behind lies above zero",
    "dropped": "dropped out: proven worse than the leader of that time, and judged no longer; behind shows that proof, "
    "a {strict} interval against the winner, or against the setting named there",
    "same": "makes the very model of the setting named",
    "failed": "failed, for the reason below",
}
_STOPS: dict[Stopped, str] = {
    "one": "all others are proven worse",
    "close": "no other can be better by more than {negligible}",
    "tied": "the differences of those that are left are so small that all samples would not prove them",
    "spent": "all were used",
    "none": "no setting could be judged",
}


@dataclass(frozen=True)
class SettingLine:
    """One setting as text."""

    rank: Annotated[str, "place"]
    mark: Annotated[str, "how it stands; the legend explains it"]
    choices: Annotated[tuple[str, ...], "what is chosen, in the order of the headings"]
    metric: Annotated[str, "task metric with its interval; empty without labels"]
    sqnr: Annotated[str, "median SQNR at the output; with its interval where that judges"]
    agreement: Annotated[str, "share of samples with the float model's class"]
    behind: Annotated[str, "how far it is behind the winner with its interval, or what made it drop out"]
    samples: Annotated[str, "samples that it was judged on"]


@dataclass(frozen=True)
class Block:
    """Text to paste."""

    title: Annotated[str, "for whom"]
    code: Annotated[str, "the text"]
    notes: Annotated[tuple[str, ...], "what its user has to know"]


@dataclass(frozen=True)
class CalibrationsContext:
    """What the Markdown template may name."""

    title: Annotated[str, "name of the float model"]
    facts: Annotated[tuple[str, ...], "sentences on toolchain and data"]
    kinds: Annotated[tuple[str, ...], "headings of the choices"]
    labelled: Annotated[str, "name of the task metric; empty without labels"]
    agrees: Annotated[bool, "the network tells classes"]
    legend: Annotated[tuple[tuple[str, str], ...], "marks in the table and what they mean, in its order"]
    reading: Annotated[tuple[str, ...], "sentences on the columns and the order of the table"]
    rows: Annotated[tuple[SettingLine, ...], "the settings, the best first"]
    units: Annotated[tuple[str, str], "of the metric, and of how far a setting is behind"]
    failures: Annotated[tuple[str, ...], "settings that failed, and why"]
    conclusion: Annotated[tuple[str, ...], "what won, how surely, and what its printed text gave"]
    blocks: Annotated[tuple[Block, ...], "what to paste"]
    cost: Annotated[str, "what the search took"]
    unjudged: Annotated[tuple[str, ...], "toolchains that were not judged, and why"]


def calibrations_context(record: CalibrationsRecord) -> CalibrationsContext:
    """The record as text."""
    kinds = tuple(record.settings[0].choices)
    return CalibrationsContext(
        title=name(record.float_model),
        facts=tuple(_facts(record)),
        kinds=kinds,
        labelled=metric_label(record.labelled_by) if record.labelled_by is not None else "",
        agrees=any(row.agreement is not None for row in record.settings),
        legend=tuple(_legend(record)),
        reading=tuple(_reading(record)),
        rows=tuple(_line(record, place, row, kinds) for place, row in enumerate(record.settings)),
        units=_units(record),
        failures=tuple(
            f"{place + 1} failed: {visible(row.failed, 300)}"
            for place, row in enumerate(record.settings)
            if row.failed is not None
        ),
        conclusion=tuple(_conclusion(record)),
        blocks=tuple(_blocks(record)),
        cost=_cost(record),
        unjudged=tuple(f"{name(each.title)}: {visible(each.reason)}" for each in record.unjudged),
    )


def _facts(record: CalibrationsRecord) -> Iterator[str]:
    version = f" {record.toolchain_version}" if record.toolchain_version else ""
    yield f"{count(len(record.settings), 'setting')} of {record.toolchain}{version}"
    yield f"calibrated on {count(record.representative_samples, 'sample')} of {name(record.representative)}"
    judged = f"judged on up to {count(record.validation_samples, 'sample')} of {name(record.validation)}"
    if record.labelled_by is None:
        yield f"{judged}, by the SQNR at the output in dB, median over samples: there are no labels"
    else:
        yield f"{judged}, by {metric_label(record.labelled_by)}"


def _units(record: CalibrationsRecord) -> tuple[str, str]:
    if record.labelled_by is None:
        return "", "dB"
    return (" %", "points") if is_share(record.labelled_by) else ("", metric_label(record.labelled_by))


def _legend(record: CalibrationsRecord) -> Iterator[tuple[str, str]]:
    """The marks that occur."""
    present = {row.standing for row in record.settings}
    strict = next((percent(row.dropped.confidence, 1) for row in record.settings if row.dropped is not None), "")
    yield from ((mark, _MEANINGS[each].format(strict=strict)) for each, mark in _MARKS.items() if each in present)


def _reading(record: CalibrationsRecord) -> Iterator[str]:
    yield "in the order of the marks; among those of one mark, what was judged on more samples first, then the nearest"
    yield (
        f"brackets are 95 % intervals; n: the samples that a setting was judged on, of {record.validation_samples}, "
        "the same ones in the same order for all"
    )
    yield "behind: the winner against the setting, paired on the n samples of its row; not the difference of two values"
    there = {row.samples: row.winner_there for row in record.settings if row.winner_there is not None}
    best = record.best
    fewer = [f"{_value_text(record, there[n])} on the first {n}" for n in sorted(there) if best and n < best.samples]
    if fewer:
        yield f"the winner reached {', '.join(fewer)}"


def _value_text(record: CalibrationsRecord, value: float) -> str:
    """A metric as in its column, or dB."""
    if record.labelled_by is None:
        return decibels(value) or ""
    unit = _units(record)[0]
    return f"{100 * value:.1f}{unit}" if is_share(record.labelled_by) else number(value, 4)


def _line(record: CalibrationsRecord, place: int, row: JudgedSetting, kinds: tuple[str, ...]) -> SettingLine:
    judged = row.standing not in ("same", "failed")
    return SettingLine(
        rank=str(place + 1),
        mark=_MARKS[row.standing],
        choices=tuple(visible(row.choices[kind], 40) for kind in kinds),
        metric=_metric_text(record, row.metric) if judged else "",
        sqnr=_sqnr_text(record, row.sqnr_db),
        agreement=percent(row.agreement, 1) if row.agreement is not None else "",
        behind=_behind_text(record, row),
        samples=str(row.samples) if judged else "",
    )


def _behind_text(record: CalibrationsRecord, row: JudgedSetting) -> str:
    if row.standing == "same":
        return f"the model of {(row.same_as or 0) + 1}"
    if row.standing == "failed":
        return "failed"
    if row.dropped is None:
        return _change_text(record, row.behind)
    text, leader = _change_text(record, row.dropped.behind), row.dropped.leader
    return text if record.settings[leader].standing == "best" else f"{text} to {leader + 1}"


def _change_text(record: CalibrationsRecord, found: Estimate | None) -> str:
    return _level_text(found) if record.labelled_by is None else _metric_text(record, found)


def _metric_text(record: CalibrationsRecord, found: Estimate | None) -> str:
    """A metric, or a difference of two; of a share in percent."""
    if found is None:
        return ""
    ends = (found.value, found.low, found.high)
    share = is_share(record.labelled_by)
    value, low, high = (f"{100 * x + 0.0:.1f}" if share else number(x, 4) for x in ends)
    return f"{value} [{low}, {high}]"


def _sqnr_text(record: CalibrationsRecord, found: Estimate | None) -> str:
    """With its interval where it judges."""
    if found is None or record.labelled_by is None:
        return _level_text(found)
    return level(found.value)


def _level_text(found: Estimate | None) -> str:
    return "" if found is None else f"{level(found.value)} [{level(found.low)}, {level(found.high)}]"


def _conclusion(record: CalibrationsRecord) -> Iterator[str]:
    best = record.best
    if best is None:
        return
    yield f"take: {_choices_text(best)}"
    equal = sum(row.standing == "as-good" for row in record.settings)
    if equal:
        yield f"{count(equal, 'setting')} marked = cannot be told from it on these samples"
    yield _ending_text(record)
    yield _printed_text(record)
    yield from (f"warning: {visible(each, 400)}" for each in record.warnings)


def _ending_text(record: CalibrationsRecord) -> str:
    change = decibels(record.negligible) if record.labelled_by is None else None
    negligible = change or metric_change(record.negligible, record.labelled_by)
    reason = _STOPS[record.stopped].format(negligible=negligible)
    text = f"the race ended after {record.raced_samples} of {record.validation_samples} samples: {reason}"
    if record.stopped != "tied":
        return text
    final = [str(n) for n, row in enumerate(record.settings, 1) if row.samples == record.validation_samples]
    return f"{text}; the best of them then ({', '.join(final)}) were judged on all, and the best of these is the winner"


def _printed_text(record: CalibrationsRecord) -> str:
    run = record.printed
    if run is None or run.failed is not None:
        return f"warning: the text below failed when it was run as printed: {visible((run and run.failed) or '', 200)}"
    which = {True: "the very model that won", False: "another model than the one that won", None: "a model"}
    figures = [f"SQNR {_level_text(run.sqnr_db)} dB"]
    if run.metric is not None:
        plain = metric_value(run.float_metric, record.labelled_by)
        label = metric_label(record.labelled_by)
        figures.insert(0, f"{label} {_metric_text(record, run.metric)}{_units(record)[0]} (float model {plain})")
    if run.agreement is not None:
        figures.append(f"the float model's class for {percent(run.agreement, 1)}")
    warning = "warning: " if run.same_model is False else ""
    return (
        f"{warning}proven: the text below, run as printed, gives {which[run.same_model]}; on all "
        f"{count(run.samples, 'sample')}: {', '.join(figures)}"
    )


def _choices_text(row: JudgedSetting) -> str:
    return ", ".join(f"{kind} {visible(choice, 40)}" for kind, choice in row.choices.items())


def _blocks(record: CalibrationsRecord) -> Iterator[Block]:
    if record.configuration is not None:
        given = tuple(f"{user_name}: {what}" for user_name, what in record.given.items())
        yield Block(f"for {record.toolchain}", record.configuration.code, (*given, *record.notes))
    for other in record.others:
        lacking = tuple(f"it has no option for: {each}" for each in other.lacking)
        yield Block(
            f"the same for {other.title}, {other.form} (from its documentation, not run here)",
            other.configuration.code,
            (*lacking, *other.notes),
        )


def _cost(record: CalibrationsRecord) -> str:
    cost = record.cost
    if cost is None:
        return NOT_MEASURED
    runs = cost.calibration_runs + cost.judging_runs
    share = percent(runs / cost.exhaustive_runs, 0)
    parts = f"{cost.calibration_runs} to calibrate, {cost.judging_runs} to judge"
    return (
        f"{runs} runs of a network ({parts}) in {number(cost.seconds)} s: {share} of the {cost.exhaustive_runs} that "
        "every setting by itself on all samples takes"
    )
