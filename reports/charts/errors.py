"""The charts of errors: one metric of all layers on one data set; drawn in ``templates/chart.svg``.

Worse is up: whatever lies above the dashed red line is over its threshold.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from quantmedic.engine.case.facts import ROLES, ErrorFacts, Role
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.reports.charts.frame import (
    ALL_LABELS,
    HEIGHT,
    LABEL_STEP,
    LEFT,
    PAD,
    POINTS_SHOWN,
    RIGHT,
    TOP,
    WIDTH,
    AxisName,
    Look,
    Mark,
    Plot,
    Scale,
    axis_names,
    height_with_names,
    labels_that_fit,
    layer_axis,
    layer_label,
    layer_tip,
    place_ticks,
    ticks,
    upwards,
)
from quantmedic.reports.text import NAME_LIMIT, decibels, number, visible

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


@dataclass(frozen=True)
class Point:
    """One layer in an error graph."""

    x: Annotated[float, "horizontal position"]
    y: Annotated[float, "vertical position"]
    tip: Annotated[str, "layer and value, shown under the pointer"]
    layer: Annotated[str, "name of the layer"]
    flagged: Annotated[bool, "over the threshold of this metric"]


@dataclass(frozen=True, kw_only=True)
class ErrorChart(Plot):
    """Accumulated and rounding error of all layers, one metric on one data set."""

    template = "chart.svg"

    samples: Annotated[str, "samples measured"]
    axis: Annotated[str, "label of the vertical axis"]
    limit: Annotated[float | None, "position of the threshold; None where it is infinite or unknown"]
    limit_text: Annotated[str, "value of the threshold"]
    line: Annotated[str, "points of the accumulated error"]
    local: Annotated[str, "points of the rounding error; empty where it is not drawn"] = ""
    points: Annotated[tuple[Point, ...], "layers drawn as dots: the flagged, and all where there are few"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]


def error_charts(diagnosis: Diagnosis) -> tuple[ErrorChart, ...]:
    """The six error graphs, metric by metric, representative before validation."""
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    rows = sorted(diagnosis.layers, key=lambda row: row.index)
    return tuple(_error_chart(rows, metric, role, limits) for metric in METRICS for role in ROLES)


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


def _error_chart(rows: Sequence[LayerRow], metric: Metric, role: Role, limits: Mapping[str, float]) -> ErrorChart:
    measured = [row for row in rows if is_plottable(getattr(errors_of(row, role), metric), metric)]
    flagged = set(flagged_layers(measured, metric, role, limits))
    width = max(WIDTH, LEFT + RIGHT + LABEL_STEP * (sum(row.name in flagged for row in measured) + 1))
    left, right, bottom = LEFT, width - RIGHT, TOP + HEIGHT
    limit = drawable(limits.get(LIMITS[metric]), metric)
    scale, marks = _error_axis(measured, metric, role, limit)

    axis = layer_axis(rows[0].index if rows else 0, rows[-1].index if rows else 0, left, right)

    def x(row: LayerRow) -> float:
        return axis(row.index)

    across = [x(row) for row in rows]

    def path(error: str) -> str:
        values = zip(across, (getattr(getattr(getattr(row, role), error), metric) for row in rows), strict=True)
        return " ".join(f"{at},{scale(value)}" for at, value in values if is_plottable(value, metric))

    points = [
        Point(
            x=x(row),
            y=scale(getattr(errors_of(row, role), metric)),
            tip=layer_tip(row.name, row.index, _error_text(getattr(errors_of(row, role), metric), metric)),
            layer=visible(row.name, NAME_LIMIT),
            flagged=row.name in flagged,
        )
        for row in measured
        if row.name in flagged or len(measured) <= POINTS_SHOWN
    ]
    names = _layer_names(measured, flagged, x, left, right)
    title = f"{LABELS[metric]} · {role}"
    samples = sorted({getattr(row, role).samples or 0 for row in measured} - {0})
    return ErrorChart(
        stem=f"{'sqnr' if metric == 'sqnr_db' else metric}-{role}",
        title=title,
        samples=f"n = {' … '.join(str(n) for n in dict.fromkeys((samples[0], samples[-1])))}" if samples else "",
        axis=AXES[metric],
        note="" if measured else f"not measured on the {role} set",
        width=width,
        height=height_with_names(bottom, (label.text for label in names)),
        right=right,
        bottom=bottom,
        ticks=place_ticks(marks, scale),
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
    errors: ErrorFacts = getattr(row, role).accumulated
    return errors


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
        return f"threshold {_error_text(limit, metric)}"
    relative = limits.get(NMSE_LIMIT, math.inf)
    return f"○ MSE > {number(relative)} × power" if metric == "mse" and math.isfinite(relative) else "no threshold"


def _error_text(value: float | None, metric: Metric) -> str:
    return decibels(value) if metric == "sqnr_db" else number(value, 5 if metric == "cosine" else 3)


def _error_axis(rows: Sequence[LayerRow], metric: Metric, role: Role, limit: float | None) -> tuple[Scale, list[Mark]]:
    """Map from values to positions, worse up, and the marks of the axis."""
    errors = [getattr(getattr(row, role), kind) for row in rows for kind in ("accumulated", "rounding")]
    values = [value for e in errors if (value := getattr(e, metric)) is not None and math.isfinite(value)]
    values += [limit] if limit is not None else []
    if metric == "mse":
        return log_axis([value for value in values if value > 0])
    low, high = min(values, default=0.0), max(values, default=1.0)
    pad = PAD * (high - low) or 0.5
    best = min(high + pad, 1.0) if metric == "cosine" else high + pad
    worst = low - pad
    return upwards(worst, best), ticks(worst, best)


def log_axis(values: Sequence[float], *, below: bool = False) -> tuple[Scale, list[Mark]]:
    """Map from values to positions on a logarithmic axis, worse up, and its marks; ``below``: small values are bad."""
    low = math.floor(math.log10(min(values, default=1e-3)))
    high = max(math.ceil(math.log10(max(values, default=1.0))), low + 1)
    place = upwards(float(low), float(high)) if below else upwards(float(high), float(low))
    every = max(1, math.ceil((high - low) / 6))
    marks = [(10.0**exponent, f"1e{exponent}") for exponent in range(low, high + 1, every)]
    return lambda value: place(math.log10(value) if value > 0 else low), marks


def _layer_names(
    rows: Sequence[LayerRow], flagged: set[str], x: Callable[[LayerRow], float], left: float, right: float
) -> tuple[AxisName, ...]:
    """All flagged names, and of the others as many as have room: all up to ALL_LABELS layers."""
    others = [row for row in rows if row.name not in flagged]
    room = labels_that_fit(left, right) - len(flagged)
    wanted = len(others) if len(rows) <= ALL_LABELS else min(room, ALL_LABELS - len(flagged))
    kept = {row.index for row in others[:: math.ceil(len(others) / wanted)]} if wanted > 0 else set()
    labels: list[tuple[float, str, Look]] = [
        (x(row), layer_label(row.name, row.index), "flagged" if row.name in flagged else "same")
        for row in rows
        if row.name in flagged or row.index in kept
    ]
    return axis_names(labels, left, right)
