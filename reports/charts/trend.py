"""The graph of one figure over the runs; drawing in ``templates/trend.svg``."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated

from quantmedic.engine.contract.check import Figure, HistoryRun, Trend
from quantmedic.engine.gate.history import Series
from quantmedic.reports.charts.frame import (
    LABEL_STEP,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Mark,
    Plot,
    height_with_names,
    place_ticks,
    ticks,
    upwards,
)
from quantmedic.reports.text import NAME_LIMIT, count, level, number, visible

HEIGHT = 130.0
#: Room below the axis for the marks of verdicts.
MARKS_GAP = 2.0
RUN_NAME = 16
#: Runs described in words for those who cannot see the graph.
RUNS_DESCRIBED = 12
#: What a verdict is marked with; accepted runs are not.
MARKED = {
    "REGRESSION": "×",
    "INSUFFICIENT_DATA": "?",
    "ANOMALOUS": "!",
    "degraded": "×",
    "not-comparable": "?",
    "undecided": "?",
}


@dataclass(frozen=True)
class RunPoint:
    """One run in the graph of a figure."""

    x: Annotated[float, "horizontal position"]
    y: Annotated[float, "vertical position; at an edge where the value is infinite"]
    low: Annotated[float | None, "lower end of its interval; None where it has none"]
    high: Annotated[float | None, "upper end of its interval"]
    tip: Annotated[str, "run, value and verdict, shown under the pointer"]
    flagged: Annotated[bool, "beyond its limit"]
    infinite: Annotated[bool, "too large to draw"]


@dataclass(frozen=True)
class RunMark:
    """A run below the axis."""

    x: Annotated[float, "horizontal position"]
    text: Annotated[str, "its label and number, or the mark of its verdict"]
    flagged: Annotated[bool, "a regression"]


@dataclass(frozen=True)
class Stretch:
    """Runs with one limit."""

    start: Annotated[float, "left end"]
    end: Annotated[float, "right end"]
    y: Annotated[float, "vertical position"]


@dataclass(frozen=True, kw_only=True)
class TrendChart(Plot):
    """One figure over the runs."""

    template = "trend.svg"

    subtitle: Annotated[str, "unit, and which way is better"]
    lines: Annotated[tuple[str, ...], "points of the line; parted where a run lacks the figure"]
    points: Annotated[tuple[RunPoint, ...], "the runs that hold the figure"]
    limits: Annotated[tuple[Stretch, ...], "what was allowed, run by run"]
    limit_text: Annotated[str, "the limit of the last run; empty where there is none"]
    marks: Annotated[tuple[RunMark, ...], "runs that were not accepted"]
    names: Annotated[tuple[RunMark, ...], "runs named below the axis"]
    description: Annotated[str, "the last runs, for those who cannot see it"]


def series_to_draw(found: Sequence[Series], most: int) -> list[Series]:
    """Figures that are worth a graph: where there are too many, those with a limit and those that changed."""
    moving = [series for series in found if len(series.figures) > 1]
    if len(moving) > most:
        moving = [one for one in moving if one.figures[-1].limit is not None or one.lowest != one.highest]
    return moving[:most]


def trend_charts(trend: Trend, found: Sequence[Series]) -> tuple[TrendChart, ...]:
    """Graphs of these figures, numbered: names of figures make no file names."""
    return tuple(_chart(trend, series, place) for place, series in enumerate(found, 1))


def figure_value(value: float | None, unit: str | None, sign: str = "") -> str:
    """A value without its unit, in the digits that suit it; ``sign="+"`` shows the sign of changes."""
    if value is None or not math.isfinite(value):
        return number(value)
    if unit == "dB":
        return level(value, sign)
    if unit in ("%", "points", "percent"):
        return f"{round(value, 2) + 0.0:{sign}.2f}"
    text = number(value + 0.0)
    return f"+{text}" if sign and value >= 0 else text


def better_text(series: Series) -> str:
    """The unit of a figure, and which way is better."""
    parts = [visible(series.unit, NAME_LIMIT)] if series.unit else []
    return ", ".join([*parts, *([f"{series.better} is better"] if series.better else [])])


def run_name(run: HistoryRun, limit: int | None = None) -> str:
    """The label of a run, if it has one, and its number."""
    return f"{visible(run.label, limit)} · {run.number}" if run.label else str(run.number)


def extent(series: Series) -> tuple[float, float]:
    """The range to draw: all values, intervals and limits that are finite."""
    values = [end for f in series.figures for end in (f.value, f.low, f.high, f.limit) if end is not None]
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


def stretches(series: Series) -> list[tuple[int, int, float]]:
    """First and last place of runs that follow each other with one limit, and the limit."""
    rows = [(place, figure.limit) for (place, _), figure in zip(series.runs, series.figures, strict=True)]
    found = []
    for (limit, _), group in groupby(enumerate(rows), key=lambda item: (item[1][1], item[1][0] - item[0])):
        places = [place for _, (place, _) in group]
        if limit is not None and math.isfinite(limit):
            found.append((places[0], places[-1], limit))
    return found


def links(series: Series) -> list[tuple[int, int]]:
    """Indices of figures that a line may connect: of runs that follow each other, both finite."""
    return [
        (first, second)
        for first, second in pairwise(range(len(series.figures)))
        if series.runs[second][0] == series.runs[first][0] + 1
        and math.isfinite(series.figures[first].value)
        and math.isfinite(series.figures[second].value)
    ]


def _chart(trend: Trend, series: Series, number_of: int) -> TrendChart:
    left, right, bottom = LEFT, WIDTH - RIGHT, TOP + HEIGHT
    low, high = extent(series)
    spacing = (right - left) / len(trend.runs)

    def x(place: float) -> float:
        return round(left + (place + 0.5) * spacing, 1)

    y = upwards(high, low, TOP, HEIGHT)

    def end(value: float | None) -> float | None:
        return None if value is None else y(value)

    points = tuple(
        RunPoint(
            x=x(place),
            y=y(figure.value),
            low=end(figure.low if figure.high is not None else None),
            high=end(figure.high if figure.low is not None else None),
            tip=_figure_tip(run, figure),
            flagged=figure.is_beyond_limit,
            infinite=not math.isfinite(figure.value),
        )
        for (place, run), figure in zip(series.runs, series.figures, strict=True)
    )
    names = _run_names(trend.runs, x, spacing)
    title = visible(series.name, NAME_LIMIT // 2)
    limit = series.figures[-1].limit
    return TrendChart(
        stem=f"trend-{number_of}",
        title=title,
        subtitle=better_text(series),
        note="",
        width=WIDTH,
        height=height_with_names(bottom + MARKS_GAP, (name.text for name in names)),
        left=left,
        right=right,
        top=TOP,
        bottom=bottom,
        ticks=place_ticks(_series_ticks(series), y),
        lines=_polylines(series, points),
        points=points,
        limits=tuple(Stretch(x(first - 0.5), x(last + 0.5), y(value)) for first, last, value in stretches(series)),
        limit_text="" if limit is None else f"limit {figure_value(limit, series.unit)}",
        marks=tuple(
            RunMark(x(place), MARKED[run.verdict], MARKED[run.verdict] == "×")
            for place, run in enumerate(trend.runs)
            if run.verdict in MARKED
        ),
        names=names,
        summary=f"{title} over {count(len(series.figures), 'run')}",
        description="; ".join(point.tip for point in points[-RUNS_DESCRIBED:]),
    )


def _series_ticks(series: Series) -> list[Mark]:
    found = ticks(*extent(series), 5)
    return [(at, f"{at:.0f}") for at, _ in found if float(at).is_integer()] if series.is_count else found


def _polylines(series: Series, points: Sequence[RunPoint]) -> tuple[str, ...]:
    """One polyline for each stretch of runs without a gap."""
    lines: list[list[int]] = []
    for first, second in links(series):
        if lines and lines[-1][-1] == first:
            lines[-1].append(second)
        else:
            lines.append([first, second])
    return tuple(" ".join(f"{points[at].x},{points[at].y}" for at in line) for line in lines)


def _run_names(runs: Sequence[HistoryRun], x: Callable[[float], float], spacing: float) -> tuple[RunMark, ...]:
    """As many runs as have room, the last one always."""
    step = math.ceil(LABEL_STEP / spacing)
    places = range(len(runs) - 1, -1, -step)
    return tuple(RunMark(x(place), run_name(runs[place], RUN_NAME), False) for place in reversed(places))


def _figure_tip(run: HistoryRun, figure: Figure) -> str:
    unit = f" {visible(figure.unit, NAME_LIMIT)}" if figure.unit else ""
    value = f"{figure_value(figure.value, figure.unit)}{unit}{interval(figure)}"
    named = f"run {run.number}{f' {visible(run.label, NAME_LIMIT)}' if run.label else ''}"
    return f"{named}, {visible(run.time[:10])}: {value}, {visible(run.verdict, NAME_LIMIT)}"


def interval(figure: Figure) -> str:
    """The interval in brackets behind a value; empty where there is none."""
    if figure.low is None or figure.high is None:
        return ""
    return f" ({figure_value(figure.low, figure.unit)} … {figure_value(figure.high, figure.unit)})"
