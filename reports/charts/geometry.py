"""The graphs of a report: geometry here, drawing in ``templates/chart.svg`` and ``templates/histogram.svg``.

Error graphs are turned so that worse is up: whatever lies above the dashed red line is over its threshold.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from quantmedic.engine.case.facts import ROLES, ErrorFacts, Role
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.formulas.tensor_histogram import Histogram
from quantmedic.reports.text import NAME_LIMIT, count, decibels, number, visible

Metric = Literal["mse", "cosine", "sqnr_db"]
METRICS: tuple[Metric, ...] = ("mse", "cosine", "sqnr_db")
LABELS = {"mse": "MSE", "cosine": "cosine similarity", "sqnr_db": "SQNR"}
AXES = {
    "mse": "mean squared error (log scale)",
    "cosine": "cosine similarity (1 = equal)",
    "sqnr_db": "SQNR in dB",
}
LIMITS = {"mse": "quantize_error_mse", "cosine": "quantize_error_cosine", "sqnr_db": "quantize_error_sqnr_db"}
NMSE_LIMIT = "quantize_error_nmse"
PALETTE = {
    "paper": "#ffffff",
    "ink": "#1c2430",
    "muted": "#5b6675",
    "grid": "#e4e8ed",
    "series": "#1f5fa8",
    "local": "#9db7d5",
    "flag": "#c0271d",
}

WIDTH, LEFT, RIGHT, TOP, HEIGHT = 600.0, 66.0, 14.0, 46.0, 190.0
LABEL_STEP, LABEL_LIMIT, LABEL_LETTER, ALL_LABELS = 11.0, 26, 5.6, 40
POINTS_SHOWN = 150
HISTOGRAM_HEIGHT, HISTOGRAM_FOOT, HISTOGRAMS_SHOWN = 170.0, 52.0, 24


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: Annotated[float, "position"]
    text: Annotated[str, "what is written"]


@dataclass(frozen=True)
class Point:
    """One layer in an error graph."""

    x: Annotated[float, "horizontal position"]
    y: Annotated[float, "vertical position"]
    tip: Annotated[str, "layer and value, shown under the pointer"]
    layer: Annotated[str, "name of the layer"]
    flagged: Annotated[bool, "over the threshold of this metric"]


@dataclass(frozen=True)
class AxisName:
    """The name of a layer below the axis."""

    x: Annotated[float, "position of the layer"]
    at: Annotated[float, "position of the text, moved where names would overlap"]
    text: Annotated[str, "topological index and name"]
    flagged: Annotated[bool, "written in red"]


@dataclass(frozen=True)
class ErrorChart:
    """Accumulated and rounding error of all layers, one metric on one data set."""

    stem: Annotated[str, "file name without suffix"]
    title: Annotated[str, "metric and data set"]
    samples: Annotated[str, "samples measured"]
    axis: Annotated[str, "label of the vertical axis"]
    note: Annotated[str, "why there is no graph; empty where there is one"]
    width: Annotated[float, "width of the drawing"]
    height: Annotated[float, "height of the drawing"]
    left: Annotated[float, "left end of the plot"]
    right: Annotated[float, "right end of the plot"]
    top: Annotated[float, "top of the plot"]
    bottom: Annotated[float, "bottom of the plot"]
    ticks: Annotated[tuple[Tick, ...], "marks of the vertical axis"]
    limit: Annotated[float | None, "position of the threshold; None where it is infinite or unknown"]
    limit_text: Annotated[str, "value of the threshold"]
    line: Annotated[str, "points of the accumulated error"]
    local: Annotated[str, "points of the rounding error"]
    points: Annotated[tuple[Point, ...], "layers drawn as dots: the flagged, and all where there are few"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]
    summary: Annotated[str, "what the graph shows, for those who cannot see it"]

    @property
    def template(self) -> str:
        """What draws it."""
        return "chart.svg"


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram."""

    x: Annotated[float, "left end"]
    y: Annotated[float, "top"]
    width: Annotated[float, "width"]
    height: Annotated[float, "height"]
    outside: Annotated[bool, "beyond the range of the quantizer: these values are clipped"]
    tip: Annotated[str, "range and count, shown under the pointer"]


@dataclass(frozen=True)
class HistogramChart:
    """Distribution of a flagged tensor with the range of its quantizer."""

    stem: Annotated[str, "file name without suffix"]
    title: Annotated[str, "layer and data set"]
    note: Annotated[str, "why there is no graph; empty where there is one"]
    width: Annotated[float, "width of the drawing"]
    height: Annotated[float, "height of the drawing"]
    left: Annotated[float, "left end of the plot"]
    right: Annotated[float, "right end of the plot"]
    top: Annotated[float, "top of the plot"]
    bottom: Annotated[float, "bottom of the plot"]
    bars: Annotated[tuple[Bar, ...], "non-empty bins"]
    ticks: Annotated[tuple[Tick, ...], "marks of the horizontal axis"]
    counts: Annotated[tuple[Tick, ...], "marks of the vertical, logarithmic axis"]
    methods: Annotated[str, "predicted SQNR by calibration method, best first; empty where there is no fixed grid"]
    limits: Annotated[tuple[Tick, ...], "ends of the quantizer's range"]
    summary: Annotated[str, "what the graph shows, for those who cannot see it"]

    @property
    def template(self) -> str:
        """What draws it."""
        return "histogram.svg"


class Chart(Protocol):
    """What a template draws."""

    @property
    def template(self) -> str:
        """What draws it."""

    @property
    def stem(self) -> str:
        """File name without suffix."""

    @property
    def note(self) -> str:
        """Why there is no graph; empty where there is one."""


def error_charts(diagnosis: Diagnosis) -> tuple[ErrorChart, ...]:
    """The six error graphs, metric by metric, representative before validation."""
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    rows = sorted(diagnosis.layers, key=lambda row: row.index)
    return tuple(_error_chart(rows, metric, role, limits) for metric in METRICS for role in ROLES)


def histogram_charts(histograms: Sequence[Histogram]) -> tuple[HistogramChart, ...]:
    """The first histograms, numbered: layer names make no file names."""
    return tuple(_histogram_chart(place, histogram) for place, histogram in enumerate(histograms[:HISTOGRAMS_SHOWN], 1))


def flagged_layers(
    rows: Iterable[LayerRow], metric: Metric, role: Role, limits: Mapping[str, float]
) -> tuple[str, ...]:
    """Names of the layers whose accumulated error is over the threshold of one metric on one data set.

    The graph of the MSE also flags what is over the threshold of its normalized form, the NMSE.
    """
    return tuple(row.name for row in rows if is_flagged(row, metric, role, limits))


def is_flagged(row: LayerRow, metric: Metric, role: Role, limits: Mapping[str, float]) -> bool:
    """The accumulated error of a layer is over the threshold of one metric on one data set."""
    return _over(errors_of(row, role), metric, limits)


def svg(chart: Chart, standalone: bool = True) -> str:
    """Draw a graph: with its own colours for a file, or with those of the page that it is part of."""
    from quantmedic.reports.templating import html_environment

    palette = PALETTE if standalone else {key: f"var(--chart-{key})" for key in PALETTE}
    return html_environment().get_template(chart.template).render(chart=chart, standalone=standalone, palette=palette)


def ticks(low: float, high: float, wanted: int = 6) -> list[tuple[float, str]]:
    """Round numbers from ``low`` to ``high``, each with its text."""
    span = high - low
    if not span > 0:
        return [(low, number(low))]
    magnitude = math.floor(math.log10(span / wanted))
    factor = next(f for f in (1.0, 2.0, 2.5, 5.0, 10.0) if span / (f * 10.0**magnitude) <= wanted)
    step = factor * 10.0**magnitude
    decimals = max(0, -magnitude + (factor == 2.5) - (factor == 10))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(n * step, f"{n * step + 0.0:.{decimals}f}") for n in range(first, last + 1)]


def spread(positions: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Move ascending positions as little as needed to keep ``step`` between them within ``[low, high]``."""
    moved: list[float] = []
    for position in positions:
        moved.append(max(position, moved[-1] + step if moved else low))
    ceiling = high
    for place in range(len(moved) - 1, -1, -1):
        moved[place] = min(moved[place], ceiling)
        ceiling = moved[place] - step
    return moved


def _error_chart(rows: Sequence[LayerRow], metric: Metric, role: Role, limits: Mapping[str, float]) -> ErrorChart:
    measured = [row for row in rows if is_plottable(getattr(errors_of(row, role), metric), metric)]
    flagged = set(flagged_layers(measured, metric, role, limits))
    width = max(WIDTH, LEFT + RIGHT + LABEL_STEP * (sum(row.name in flagged for row in measured) + 1))
    left, right, bottom = LEFT, width - RIGHT, TOP + HEIGHT
    limit = drawable(limits.get(LIMITS[metric]), metric)
    scale, marks = _vertical(measured, metric, role, limit)

    def x(row: LayerRow) -> float:
        first, last = rows[0].index, rows[-1].index
        share = (row.index - first) / (last - first) if last > first else 0.5
        return round(left + 8 + share * (right - left - 16), 1)

    across = [x(row) for row in rows]

    def path(error: str) -> str:
        values = zip(across, (getattr(getattr(getattr(row, role), error), metric) for row in rows), strict=True)
        return " ".join(f"{at},{scale(value)}" for at, value in values if is_plottable(value, metric))

    points = [
        Point(
            x=x(row),
            y=scale(getattr(errors_of(row, role), metric)),
            tip=f"{row.index} {visible(row.name, NAME_LIMIT)}: {_value(getattr(errors_of(row, role), metric), metric)}",
            layer=visible(row.name, NAME_LIMIT),
            flagged=row.name in flagged,
        )
        for row in measured
        if row.name in flagged or len(measured) <= POINTS_SHOWN
    ]
    names = _names(measured, flagged, x, left + 6, right - 2)
    title = f"{LABELS[metric]} · {role}"
    samples = sorted({getattr(row, role).samples or 0 for row in measured} - {0})
    return ErrorChart(
        stem=f"{'sqnr' if metric == 'sqnr_db' else metric}-{role}",
        title=title,
        samples=f"n = {' … '.join(str(n) for n in dict.fromkeys((samples[0], samples[-1])))}" if samples else "",
        axis=AXES[metric],
        note="" if measured else f"not measured on the {role} set",
        width=width,
        height=round(bottom + 24 + LABEL_LETTER * max((len(label.text) for label in names), default=0), 1),
        left=left,
        right=right,
        top=TOP,
        bottom=bottom,
        ticks=tuple(Tick(scale(at), text) for at, text in marks),
        limit=None if limit is None else scale(limit),
        limit_text=limit_text(metric, limit, limits),
        line=path("accumulated"),
        local=path("rounding"),
        points=tuple(points),
        names=names,
        summary=f"{title}: {len(flagged)} of {len(measured)} layers over the threshold",
    )


def errors_of(row: LayerRow, role: Role) -> ErrorFacts:
    """Accumulated error of a layer's output on one data set."""
    return getattr(row, role).accumulated


def is_plottable(value: float | None, metric: Metric) -> bool:
    """A number, or the infinity that an exact result has."""
    if value is None or math.isnan(value):
        return False
    return math.isfinite(value) or metric == "sqnr_db"


def _over(errors: ErrorFacts, metric: Metric, limits: Mapping[str, float]) -> bool:
    value, limit = getattr(errors, metric), limits.get(LIMITS[metric])
    if metric == "mse":
        return _above(value, limit) or _above(errors.nmse, limits.get(NMSE_LIMIT))
    return _above(limit, value)


def _above(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


def drawable(limit: float | None, metric: Metric) -> float | None:
    """A threshold that can be drawn as a line, else None."""
    if limit is None or not math.isfinite(limit) or (metric == "mse" and limit <= 0):
        return None
    return limit


def limit_text(metric: Metric, limit: float | None, limits: Mapping[str, float]) -> str:
    """The threshold as the legend of a graph names it."""
    if limit is not None:
        return f"threshold {_value(limit, metric)}"
    relative = limits.get(NMSE_LIMIT, math.inf)
    return f"○ MSE > {number(relative)} × power" if metric == "mse" and math.isfinite(relative) else "no threshold"


def _value(value: float | None, metric: Metric) -> str:
    return decibels(value) if metric == "sqnr_db" else number(value, 5 if metric == "cosine" else 3)


def _vertical(
    rows: Sequence[LayerRow], metric: Metric, role: Role, limit: float | None
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Map from values to positions, worse up, and the marks of the axis."""
    errors = [getattr(getattr(row, role), kind) for row in rows for kind in ("accumulated", "rounding")]
    values = [value for e in errors if (value := getattr(e, metric)) is not None and math.isfinite(value)]
    values += [limit] if limit is not None else []
    if metric == "mse":
        return _log_axis([value for value in values if value > 0])
    low, high = min(values, default=0.0), max(values, default=1.0)
    pad = 0.06 * (high - low) or 0.5
    best = min(high + pad, 1.0) if metric == "cosine" else high + pad
    worst = low - pad
    return upwards(worst, best), ticks(worst, best)


def _log_axis(values: Sequence[float]) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    low = math.floor(math.log10(min(values, default=1e-3)))
    high = max(math.ceil(math.log10(max(values, default=1.0))), low + 1)
    place = upwards(float(high), float(low))
    every = max(1, math.ceil((high - low) / 6))
    marks = [(10.0**exponent, f"1e{exponent}") for exponent in range(low, high + 1, every)]
    return lambda value: place(math.log10(value) if value > 0 else low), marks


def upwards(top: float, bottom: float) -> Callable[[float], float]:
    """Linear map that puts ``top`` at the top of the plot; values beyond the ends are drawn at the ends."""

    def place(value: float) -> float:
        share = (value - bottom) / (top - bottom)
        return round(TOP + HEIGHT * (1 - min(max(share, 0.0), 1.0)), 1)

    return place


def _names(
    rows: Sequence[LayerRow], flagged: set[str], x: Callable[[LayerRow], float], low: float, high: float
) -> tuple[AxisName, ...]:
    """All flagged names, and of the others as many as have room: all up to ALL_LABELS layers."""
    others = [row for row in rows if row.name not in flagged]
    room = int((high - low) / LABEL_STEP) - len(flagged)
    wanted = len(others) if len(rows) <= ALL_LABELS else min(room, ALL_LABELS - len(flagged))
    kept = {row.index for row in others[:: math.ceil(len(others) / wanted)]} if wanted > 0 else set()
    written = [row for row in rows if row.name in flagged or row.index in kept]
    places = spread([x(row) for row in written], LABEL_STEP, low, high)
    return tuple(
        AxisName(x(row), round(at, 1), f"{visible(row.name, LABEL_LIMIT)} · {row.index}", row.name in flagged)
        for row, at in zip(written, places, strict=True)
    )


def _histogram_chart(place: int, histogram: Histogram) -> HistogramChart:
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, TOP + HISTOGRAM_HEIGHT
    drawable = len(histogram.edges) == len(histogram.counts) + 1 and any(histogram.counts)
    ends = [*histogram.edges, *(limit for limit in (histogram.low, histogram.high) if limit is not None)]
    finite = [end for end in ends if math.isfinite(end)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    decades = max(1, math.ceil(math.log10(max(histogram.counts, default=1) or 1)))

    def x(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low or 1.0)
        return round(left + share * (right - left), 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * (math.log10(value) + 0.3) / (decades + 0.3), 1)

    title = f"{visible(histogram.layer, 56)} · {histogram.dataset}"
    return HistogramChart(
        stem=f"histogram-{place}",
        title=title,
        note="" if drawable else "not measured",
        width=WIDTH,
        height=bottom + HISTOGRAM_FOOT,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        bars=_bars(histogram, x, y, bottom) if drawable else (),
        ticks=tuple(Tick(x(at), text) for at, text in ticks(low, high, 8)),
        counts=tuple(Tick(y(10**e), f"1e{e}") for e in range(0, decades + 1, max(1, math.ceil(decades / 5)))),
        methods=_methods(histogram),
        limits=tuple(
            Tick(x(limit), number(limit))
            for limit in (histogram.low, histogram.high)
            if limit is not None and math.isfinite(limit)
        ),
        summary=f"distribution of {title}, quantizer range {number(histogram.low)} to {number(histogram.high)}",
    )


def _methods(histogram: Histogram) -> str:
    rows = (
        f"{row.method} {decibels(row.sqnr_db)} ({number(row.low)} … {number(row.high)})" for row in histogram.methods
    )
    return f"predicted by calibration method: {', '.join(rows)}" if histogram.methods else ""


def _bars(
    histogram: Histogram, x: Callable[[float], float], y: Callable[[float], float], bottom: float
) -> tuple[Bar, ...]:
    bars = []
    for start, end, size in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        if not size:
            continue
        outside = (histogram.low is not None and end <= histogram.low) or (
            histogram.high is not None and start >= histogram.high
        )
        bars.append(
            Bar(
                x=x(start),
                y=y(size),
                width=round(max(x(end) - x(start), 0.8), 1),
                height=round(bottom - y(size), 1),
                outside=outside,
                tip=f"{number(start)} … {number(end)}: {count(size, 'value')}",
            )
        )
    return tuple(bars)
