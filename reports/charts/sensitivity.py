"""The graph of a sensitivity record: geometry here, drawing in ``templates/sensitivity.svg``.

One panel per mode over one axis of layers. As in all graphs of errors, worse is up; the dashed red line is the network
with all layers quantized.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.sensitivity import Mode, SensitivityRecord, SensitivityRun
from quantmedic.reports.charts.frame import (
    LEFT,
    POINTS_SHOWN,
    RIGHT,
    WIDTH,
    AxisName,
    Drawing,
    Look,
    Tick,
    axis_names,
    bar_width,
    height_with_names,
    labels_that_fit,
    layer_axis,
    layer_label,
    layer_tip,
    level_range,
    place_ticks,
    ticks,
    upwards,
)
from quantmedic.reports.text import NAME_LIMIT, count, decibels, visible

PANEL_TOP, PANEL_HEIGHT, PANEL_GAP = 72.0, 120.0, 46.0
#: Room for a letter of a name; bold ones are wider.
LETTER = 6.4
#: Layers that stand out in red, per mode, and the share of the noise above which one may; an even share will do.
LEADING, LEADING_SHARE = 5, 0.01
#: Noise this far below that of all layers is drawn at the foot: 0.01 % of the power.
DEPTH_DB = 40.0
PANEL_TITLES: dict[Mode, str] = {
    "one": "one layer quantized, all others float",
    "all-but-one": "all quantized but one layer: what hangs below the line is its part",
    "cumulative": "layers quantized one after another, from the input on",
}


@dataclass(frozen=True)
class Mark:
    """One run in a panel."""

    x: Annotated[float, "horizontal position"]
    y: Annotated[float, "vertical position"]
    tip: Annotated[str, "layer and value, shown under the pointer; empty where there are too many"]
    leading: Annotated[bool, "one of the largest shares of its panel, in red"]


@dataclass(frozen=True)
class Panel:
    """The runs of one mode."""

    title: Annotated[str, "what was quantized"]
    top: Annotated[float, "top of the plot"]
    bottom: Annotated[float, "bottom of the plot"]
    ticks: Annotated[tuple[Tick, ...], "marks of the vertical axis"]
    base: Annotated[float | None, "where bars begin; None where a line is drawn"]
    full: Annotated[float | None, "position of the network with all layers quantized; None where it has no noise"]
    line: Annotated[str, "points of the line; empty where bars are drawn"]
    marks: Annotated[tuple[Mark, ...], "bars, or points on the line"]


@dataclass(frozen=True, kw_only=True)
class SensitivityChart(Drawing):
    """The whole drawing."""

    template = "sensitivity.svg"

    samples: Annotated[str, "samples measured"]
    full_text: Annotated[str, "legend of the dashed line"]
    bar: Annotated[float, "width of a bar"]
    panels: Annotated[tuple[Panel, ...], "one per mode"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]
    description: Annotated[str, "what the graph shows, for those who cannot see it"]


def sensitivity_chart(record: SensitivityRecord) -> SensitivityChart:
    """Lay out the graph of a record, whole or interrupted."""
    left, right = LEFT, WIDTH - RIGHT
    size = len(record.units)
    x = layer_axis(0, size - 1, left, right)
    few, least = min(LEADING, math.ceil(size / 4)), min(LEADING_SHARE, 1 / size)
    leading = {mode: {run.unit for run in record.leading(mode, few, least)} for mode in record.modes}
    panels = tuple(
        _panel(record, mode, PANEL_TOP + place * (PANEL_HEIGHT + PANEL_GAP), x, leading[mode])
        for place, mode in enumerate(record.modes)
    )
    bottom = panels[-1].bottom
    names = _layer_names(record, set().union(*leading.values()), x)
    title = f"Sensitivity · {visible(record.quantized_model, NAME_LIMIT // 2)}"
    return SensitivityChart(
        stem="sensitivity",
        title=title,
        samples=f"n = {record.samples}",
        width=WIDTH,
        height=height_with_names(bottom, (label.text for label in names), LETTER),
        left=left,
        right=right,
        full_text=f"all layers quantized: {decibels(record.simulated.sqnr_db)}",
        bar=bar_width(size, left, right, 9.0),
        panels=panels,
        bottom=bottom,
        names=names,
        summary=f"{title}: output SQNR by layer, {count(size, 'layer')}, {count(record.samples, 'sample')}",
        description=". ".join(_leading_text(record, mode) for mode in record.modes),
    )


def _panel(record: SensitivityRecord, mode: Mode, top: float, x: Callable[[int], float], leading: set[int]) -> Panel:
    runs = [run for run in record.runs if run.mode == mode]
    full = record.simulated.sqnr_db
    deepest = full + DEPTH_DB if math.isfinite(full) else math.inf
    worst, best = level_range([*(run.sqnr_db for run in runs), full], deepest)
    bottom = top + PANEL_HEIGHT
    y = upwards(worst, best, top, PANEL_HEIGHT)
    line_of_all = y(full) if math.isfinite(full) else None
    is_line = mode == "cumulative"
    shown = [run for run in runs if not is_line or run.unit in leading or len(runs) <= POINTS_SHOWN]
    foot = bottom if mode == "one" or line_of_all is None else line_of_all
    return Panel(
        title=PANEL_TITLES[mode],
        top=top,
        bottom=bottom,
        ticks=place_ticks(ticks(worst, best, 5), y),
        base=None if is_line else foot,
        full=line_of_all,
        line=" ".join(f"{x(run.unit)},{y(run.sqnr_db)}" for run in runs) if is_line else "",
        marks=tuple(
            Mark(
                x=x(run.unit),
                y=y(run.sqnr_db),
                tip=_run_tip(record, run) if run.unit in leading or len(runs) <= POINTS_SHOWN else "",
                leading=run.unit in leading,
            )
            for run in shown
        ),
    )


def _layer_names(record: SensitivityRecord, leading: set[int], x: Callable[[int], float]) -> tuple[AxisName, ...]:
    """The names of the leading layers, and of the others as many as have room."""
    left, right = LEFT, WIDTH - RIGHT
    others = [unit for unit in range(len(record.units)) if unit not in leading]
    room = labels_that_fit(left, right) - len(leading)
    kept = set(others[:: math.ceil(len(others) / room)]) if others else set()
    labels: list[tuple[float, str, Look]] = [
        (x(unit), layer_label(record.units[unit].name, unit), "flagged" if unit in leading else "same")
        for unit in sorted(leading | kept)
    ]
    return axis_names(labels, left, right)


def _leading_text(record: SensitivityRecord, mode: Mode) -> str:
    """The leading layers of a mode in words."""
    found = [_run_tip(record, run) for run in record.leading(mode, LEADING, LEADING_SHARE)]
    return f"{PANEL_TITLES[mode]}: {'; '.join(found) or 'nothing measured'}"


def _run_tip(record: SensitivityRecord, run: SensitivityRun) -> str:
    return layer_tip(record.units[run.unit].name, run.unit, decibels(run.sqnr_db))
