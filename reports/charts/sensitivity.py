"""The graph of a sensitivity record: geometry here, drawing in ``templates/sensitivity.svg``.

One panel per mode over one axis of layers. As in all graphs of errors, worse is up; the dashed red line is the network
with all layers quantized.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.sensitivity import Mode, SensitivityRecord, SensitivityRun
from quantmedic.reports.charts.geometry import (
    LABEL_LIMIT,
    LABEL_STEP,
    LEFT,
    PALETTE,
    POINTS_SHOWN,
    RIGHT,
    WIDTH,
    AxisName,
    Tick,
    spread,
    ticks,
)
from quantmedic.reports.text import NAME_LIMIT, count, decibels, visible

PANEL_TOP, PANEL_HEIGHT, PANEL_GAP, NAMES_GAP = 72.0, 120.0, 46.0, 24.0
#: Room for a letter of a name; bold ones are wider.
LETTER = 6.4
#: Layers that stand out in red, per mode, and the share of the noise above which one may; an even share will do.
LEADING, LEADING_SHARE = 5, 0.01
#: A panel spans at least this much, so that differences that do not matter look small.
MIN_SPAN_DB = 6.0
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


@dataclass(frozen=True)
class SensitivityChart:
    """The whole drawing."""

    title: Annotated[str, "what was measured"]
    samples: Annotated[str, "samples measured"]
    width: Annotated[float, "width of the drawing"]
    height: Annotated[float, "height of the drawing"]
    left: Annotated[float, "left end of the plots"]
    right: Annotated[float, "right end of the plots"]
    full_text: Annotated[str, "legend of the dashed line"]
    bar: Annotated[float, "width of a bar"]
    panels: Annotated[tuple[Panel, ...], "one per mode"]
    bottom: Annotated[float, "foot of the last panel, above the names"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]
    summary: Annotated[str, "what the graph is, in one line"]
    description: Annotated[str, "what the graph shows, for those who cannot see it"]


def sensitivity_chart(record: SensitivityRecord) -> SensitivityChart:
    """Lay out the graph of a record, whole or interrupted."""
    left, right = LEFT, WIDTH - RIGHT
    size = len(record.units)
    spacing = (right - left - 16) / max(size - 1, 1)

    def x(unit: int) -> float:
        return round(left + 8 + unit * spacing if size > 1 else (left + right) / 2, 1)

    few, least = min(LEADING, math.ceil(size / 4)), min(LEADING_SHARE, 1 / size)
    leading = {mode: {run.unit for run in record.leading(mode, few, least)} for mode in record.modes}
    panels = tuple(
        _panel(record, mode, PANEL_TOP + place * (PANEL_HEIGHT + PANEL_GAP), x, leading[mode])
        for place, mode in enumerate(record.modes)
    )
    bottom = panels[-1].bottom
    names = _names(record, set().union(*leading.values()), x)
    title = f"Sensitivity · {visible(record.quantized_model, NAME_LIMIT // 2)}"
    return SensitivityChart(
        title=title,
        samples=f"n = {record.samples}",
        width=WIDTH,
        height=round(bottom + NAMES_GAP + LETTER * max((len(label.text) for label in names), default=0), 1),
        left=left,
        right=right,
        full_text=f"all layers quantized: {decibels(record.simulated.sqnr_db)}",
        bar=round(min(max(0.7 * spacing, 0.8), 9.0), 2),
        panels=panels,
        bottom=bottom,
        names=names,
        summary=f"{title}: output SQNR by layer, {count(size, 'layer')}, {count(record.samples, 'sample')}",
        description=". ".join(_described(record, mode) for mode in record.modes),
    )


def render_svg(record: SensitivityRecord) -> str:
    """``sensitivity.svg``: a file of its own with its own colours."""
    from quantmedic.reports.templating import html_environment

    template = html_environment().get_template("sensitivity.svg")
    return template.render(chart=sensitivity_chart(record), standalone=True, palette=PALETTE)


def _panel(record: SensitivityRecord, mode: Mode, top: float, x: Callable[[int], float], leading: set[int]) -> Panel:
    runs = [run for run in record.runs if run.mode == mode]
    full = record.simulated.sqnr_db
    worst, best = _ends([run.sqnr_db for run in runs], full)
    bottom = top + PANEL_HEIGHT

    def y(sqnr_db: float) -> float:
        share = (min(max(sqnr_db, worst), best) - worst) / (best - worst)
        return round(top + PANEL_HEIGHT * share, 1)

    line_of_all = y(full) if math.isfinite(full) else None
    is_line = mode == "cumulative"
    shown = [run for run in runs if not is_line or run.unit in leading or len(runs) <= POINTS_SHOWN]
    foot = bottom if mode == "one" or line_of_all is None else line_of_all
    return Panel(
        title=PANEL_TITLES[mode],
        top=top,
        bottom=bottom,
        ticks=tuple(Tick(y(at), text) for at, text in ticks(worst, best, 5)),
        base=None if is_line else foot,
        full=line_of_all,
        line=" ".join(f"{x(run.unit)},{y(run.sqnr_db)}" for run in runs) if is_line else "",
        marks=tuple(
            Mark(
                x=x(run.unit),
                y=y(run.sqnr_db),
                tip=_tip(record, run) if run.unit in leading or len(runs) <= POINTS_SHOWN else "",
                leading=run.unit in leading,
            )
            for run in shown
        ),
    )


def _ends(values: Sequence[float], full: float) -> tuple[float, float]:
    """The worst and the best SQNR that are drawn apart."""
    finite = [value for value in (*values, full) if math.isfinite(value)] or [0.0]
    worst = min(finite)
    deepest = full + DEPTH_DB if math.isfinite(full) else max(finite)
    best = max(min(max(finite), deepest), worst + MIN_SPAN_DB)
    pad = 0.06 * (best - worst)
    return worst - pad, best + pad


def _names(record: SensitivityRecord, leading: set[int], x: Callable[[int], float]) -> tuple[AxisName, ...]:
    """The names of the leading layers, and of the others as many as have room."""
    low, high = LEFT + 6, WIDTH - RIGHT - 2
    others = [unit for unit in range(len(record.units)) if unit not in leading]
    room = int((high - low) / LABEL_STEP) - len(leading)
    kept = set(others[:: math.ceil(len(others) / room)]) if others else set()
    written = sorted(leading | kept)
    places = spread([x(unit) for unit in written], LABEL_STEP, low, high)
    return tuple(
        AxisName(x(unit), round(at, 1), f"{visible(record.units[unit].name, LABEL_LIMIT)} · {unit}", unit in leading)
        for unit, at in zip(written, places, strict=True)
    )


def _described(record: SensitivityRecord, mode: Mode) -> str:
    found = [_tip(record, run) for run in record.leading(mode, LEADING, LEADING_SHARE)]
    return f"{PANEL_TITLES[mode]}: {'; '.join(found) or 'nothing measured'}"


def _tip(record: SensitivityRecord, run: SensitivityRun) -> str:
    return f"{run.unit} {visible(record.units[run.unit].name, NAME_LIMIT)}: {decibels(run.sqnr_db)}"
