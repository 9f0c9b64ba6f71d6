"""How a model fared over its recorded checks, as text: figures from the first run to the last, and the runs."""

from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.check import HistoryRun, Trend
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.gate.history import Series, Shift, series_of
from quantmedic.reports.charts.trend import (
    MARKED,
    TrendChart,
    better_text,
    figure_value,
    interval,
    series_to_draw,
    trend_charts,
)
from quantmedic.reports.text import NAME_LIMIT, NOT_MEASURED, count, name, visible

#: Graphs and runs that a report shows; the page of a trend shows more.
CHARTS, CHARTS_ALONE, RUNS, RUNS_ALONE = 4, 24, 10, 200
ACCEPTED = ("ACCEPT", "healthy")


@dataclass(frozen=True)
class FigureLine:
    """One figure over the runs."""

    name: Annotated[str, "name of the figure"]
    unit: Annotated[str, "unit, and which way is better"]
    first: Annotated[str, "in the first run that holds it"]
    lowest: Annotated[str, "lowest value"]
    highest: Annotated[str, "highest value"]
    last: Annotated[str, "in the last run, with its interval; not measured where that lacks it"]
    limit: Annotated[str, "what the policy allowed in the last run; empty where it set none"]
    beyond: Annotated[bool, "the last value is beyond its limit"]
    shift: Annotated[str, "change since the run before, and whether it is more than noise; empty where there is none"]
    look: Annotated[str, "good, bad or empty: the change"]


@dataclass(frozen=True)
class RunLine:
    """One run."""

    number: Annotated[int, "number of the run"]
    time: Annotated[str, "when it was recorded, UTC"]
    label: Annotated[str, "what the user calls it; empty where it has no label"]
    verdict: Annotated[str, "its verdict"]
    look: Annotated[str, "good, bad or empty: the verdict"]
    file: Annotated[str, "beginning of the hash of the quantized model; empty where it is not known"]


@dataclass(frozen=True)
class HistoryBox:
    """All that a report shows of earlier checks."""

    title: Annotated[str, "name of the model"]
    summary: Annotated[str, "how many runs, when, and the last verdict"]
    look: Annotated[str, "healthy, degraded or not-comparable: how the last verdict is shown"]
    verdict: Annotated[str, "the last verdict"]
    lines: Annotated[tuple[FigureLine, ...], "figures, those with a limit first"]
    charts: Annotated[tuple[TrendChart, ...], "graphs of the figures that matter most"]
    runs: Annotated[tuple[RunLine, ...], "runs, the latest first"]
    more_runs: Annotated[int, "earlier runs that are not shown"]


def history_box(trend: Trend | None, charts: int = CHARTS, runs: int = RUNS) -> HistoryBox | None:
    """The history as text; None where no run was recorded.

    Args:
        trend: The runs.
        charts: At most so many graphs.
        runs: At most so many runs in the table; figures and graphs are of all.
    """
    if trend is None or not trend.runs:
        return None
    found = series_of(trend)
    last = trend.runs[-1]
    return HistoryBox(
        title=name(trend.model),
        summary=summary_of(trend),
        look={"good": "healthy", "bad": "degraded"}.get(verdict_look(last.verdict), "not-comparable"),
        verdict=verdict_text(last.verdict),
        lines=tuple(figure_line(series, trend) for series in found),
        charts=trend_charts(trend, series_to_draw(found, charts)),
        runs=tuple(run_line(run) for run in reversed(trend.runs[-runs:])),
        more_runs=max(0, len(trend.runs) - runs),
    )


def trend_box(trend: Trend) -> HistoryBox:
    """The history as a document of its own shows it.

    Raises:
        QuantmedicError: There is no run.
    """
    box = history_box(trend, CHARTS_ALONE, RUNS_ALONE)
    if box is None:
        raise QuantmedicError("there is no run to show", help="quantmedic check --record FILE adds one")
    return box


def summary_of(trend: Trend) -> str:
    """How many runs there are and how they ended."""
    first, last = trend.runs[0], trend.runs[-1]
    days = [visible(run.time[:10]) for run in (first, last)]
    when = f"on {days[0]}" if days[0] == days[1] else f"from {days[0]} to {days[1]}"
    label = f" ({visible(last.label, NAME_LIMIT)})" if last.label else ""
    accepted = sum(run.verdict in ACCEPTED for run in trend.runs)
    return f"{count(len(trend.runs), 'run')} {when}, {accepted} accepted; the last is run {last.number}{label}"


def figure_line(series: Series, trend: Trend) -> FigureLine:
    """One figure as a row of the table."""
    last, unit = series.figures[-1], series.unit
    is_current = series.runs[-1][0] == len(trend.runs) - 1
    shift = series.shift if is_current else None
    return FigureLine(
        name=visible(series.name, NAME_LIMIT),
        unit=better_text(series),
        first=figure_value(series.figures[0].value, unit),
        lowest=figure_value(series.lowest, unit),
        highest=figure_value(series.highest, unit),
        last=f"{figure_value(last.value, unit)}{interval(last)}" if is_current else NOT_MEASURED,
        limit=figure_value(last.limit, unit) if is_current and last.limit is not None else "",
        beyond=is_current and last.is_beyond_limit,
        shift=shift_text(shift, unit),
        look=shift_look(shift, series),
    )


def shift_text(shift: Shift | None, unit: str | None) -> str:
    """A change, the run that it is counted from, and whether it is more than noise."""
    if shift is None:
        return ""
    change = "unchanged" if shift.by == 0 else figure_value(shift.by, unit, "+")
    proven = {True: ", beyond the noise", False: ", within the noise" if shift.by else "", None: ""}
    return f"{change} since run {shift.run}{proven[shift.is_proven]}"


def shift_look(shift: Shift | None, series: Series) -> str:
    """How a change is shown; one that may be noise is neither good nor bad."""
    if shift is None or shift.by == 0 or series.better is None or not (shift.is_proven or series.is_count):
        return ""
    return "good" if (shift.by > 0) == (series.better == "higher") else "bad"


def run_line(run: HistoryRun) -> RunLine:
    """One run as a row of the table."""
    return RunLine(
        number=run.number,
        time=visible(run.time[:16].replace("T", " ")),
        label=visible(run.label or "", NAME_LIMIT),
        verdict=verdict_text(run.verdict),
        look=verdict_look(run.verdict),
        file=visible((run.quantized_sha256 or "")[:12]),
    )


def verdict_text(verdict: str) -> str:
    """A verdict as words."""
    return visible(verdict, NAME_LIMIT).replace("_", " ").replace("-", " ")


def verdict_look(verdict: str) -> str:
    """How a verdict is shown: good, bad or empty."""
    return "good" if verdict in ACCEPTED else "bad" if MARKED.get(verdict) == "×" else ""
