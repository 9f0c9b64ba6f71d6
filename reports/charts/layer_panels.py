"""Graphs of a search over layers: geometry here, drawing in ``templates/layer_panels.svg``.

One panel per figure over one axis of layers. As in all graphs of errors, worse is up. What stands out is red in every
panel.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.searches import DebuggerLayer, DebuggerRecord, Mode, SensitivityRecord, SensitivityRun
from quantmedic.reports.charts.frame import (
    LEFT,
    PAD,
    POINTS_SHOWN,
    RIGHT,
    WIDTH,
    AxisName,
    Drawing,
    Look,
    Scale,
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
from quantmedic.reports.text import NAME_LIMIT, count, decibels, number, visible

PANEL_TOP, PANEL_HEIGHT, PANEL_GAP = 72.0, 120.0, 46.0
#: Room for a letter of a name; bold ones are wider.
LETTER = 6.4
WIDEST_BAR = 12.0
#: Layers of ``sensitivity`` that stand out, per mode, and the share of the noise above which one may; an even share
#: will do.
LEADING, LEADING_SHARE = 5, 0.01
#: Noise this far below that of all layers is drawn at the foot: 0.01 % of the power.
DEPTH_DB = 40.0
#: Error of ideal rounding, in steps.
IDEAL = 1 / math.sqrt(12)
MODE_TITLES: dict[Mode, str] = {
    "one": "one layer quantized, all others float",
    "all-but-one": "all quantized but one layer: what hangs below the line is its part",
    "cumulative": "layers quantized one after another, from the input on",
}
#: Where the layers stand on the axis.
Axis = Callable[[int], float]


@dataclass(frozen=True)
class PanelMark:
    """One layer in a panel."""

    x: Annotated[float, "horizontal position"]
    y: Annotated[float, "upper end of a bar, or the point on the line"]
    tip: Annotated[str, "layer and value, shown under the pointer; empty where there are too many"]
    flagged: Annotated[bool, "it stands out, in red"]


@dataclass(frozen=True)
class PanelLevel:
    """A level across a panel."""

    y: Annotated[float, "vertical position"]
    text: Annotated[str, "what it is; empty where another panel says it"]
    is_limit: Annotated[bool, "what is above it is too much"]


@dataclass(frozen=True)
class Panel:
    """One figure of all layers."""

    title: Annotated[str, "what is drawn"]
    unit: Annotated[str, "name of the vertical axis"]
    top: Annotated[float, "top of the plot"]
    bottom: Annotated[float, "bottom of the plot"]
    ticks: Annotated[tuple[Tick, ...], "marks of the vertical axis"]
    base: Annotated[float | None, "where bars begin; None where a line is drawn"]
    line: Annotated[str, "points of the line; empty where bars are drawn"]
    marks: Annotated[tuple[PanelMark, ...], "bars, or points on the line"]
    levels: Annotated[tuple[PanelLevel, ...], "levels to compare with"]


@dataclass(frozen=True, kw_only=True)
class PanelChart(Drawing):
    """The whole drawing."""

    template = "layer_panels.svg"

    samples: Annotated[str, "samples measured"]
    bar: Annotated[float, "width of a bar"]
    panels: Annotated[tuple[Panel, ...], "one per figure"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]
    description: Annotated[str, "what the graph shows, for those who cannot see it"]


def sensitivity_chart(record: SensitivityRecord) -> PanelChart:
    """One panel per mode of a record, whole or interrupted; dashed: the network with all layers quantized."""
    size = len(record.units)
    axis = layer_axis(0, size - 1, LEFT, WIDTH - RIGHT)
    few, least = min(LEADING, math.ceil(size / 4)), min(LEADING_SHARE, 1 / size)
    leading = {mode: {run.unit for run in record.leading(mode, few, least)} for mode in record.modes}
    return _chart(
        "sensitivity",
        record,
        tuple(_mode_panel(record, mode, place, axis, leading[mode]) for place, mode in enumerate(record.modes)),
        [unit.name for unit in record.units],
        set().union(*leading.values()),
        axis,
        figures="output SQNR by layer",
        description=". ".join(_leading_text(record, mode) for mode in record.modes),
    )


def debugger_chart(record: DebuggerRecord) -> PanelChart:
    """Range and error in steps of each layer: only both together tell whether a grid clips too much or too little."""
    size = len(record.layers)
    axis = layer_axis(0, size - 1, LEFT, WIDTH - RIGHT)
    limits = ((record.suspect_steps, "suspected above", True), (IDEAL, "ideal rounding", False))
    place_of = {layer.tensor_name: place for place, layer in enumerate(record.layers)}
    room = labels_that_fit(LEFT, WIDTH - RIGHT)
    worst = {place_of[layer.tensor_name] for layer in record.worst[: min(len(record.suspected), room // 2)]}
    return _chart(
        "debugger",
        record,
        (
            _figure_panel(record, "range: what all codes together span", "value", 0, axis, lambda each: each.range, ()),
            _figure_panel(
                record, "√mse/scale: error in steps", "steps", 1, axis, lambda each: each.rmse_over_scale, limits
            ),
        ),
        [layer.first_name for layer in record.layers],
        worst,
        axis,
        figures="range and error in steps",
        description=f"suspected: {', '.join(visible(each.tensor_name) for each in record.suspected) or 'none'}",
    )


def _chart(
    stem: str,
    record: SensitivityRecord | DebuggerRecord,
    panels: tuple[Panel, ...],
    layers: Sequence[str],
    flagged: set[int],
    axis: Axis,
    *,
    figures: str,
    description: str,
) -> PanelChart:
    left, right, bottom = LEFT, WIDTH - RIGHT, panels[-1].bottom
    names = _layer_names(layers, flagged, axis)
    title = f"{stem.capitalize()} · {visible(record.quantized_model, NAME_LIMIT // 2)}"
    measured = f"{count(len(layers), 'layer')}, {count(record.samples, 'sample')}"
    return PanelChart(
        stem=stem,
        title=title,
        samples=f"n = {record.samples}",
        height=height_with_names(bottom, (each.text for each in names), LETTER),
        bar=bar_width(len(layers), left, right, WIDEST_BAR),
        panels=panels,
        bottom=bottom,
        names=names,
        summary=f"{title}: {figures}, {measured}",
        description=description,
    )


def _ends_of_panel(place: int) -> tuple[float, float]:
    top = PANEL_TOP + place * (PANEL_HEIGHT + PANEL_GAP)
    return top, top + PANEL_HEIGHT


def _mode_panel(record: SensitivityRecord, mode: Mode, place: int, axis: Axis, leading: set[int]) -> Panel:
    top, bottom = _ends_of_panel(place)
    runs = [run for run in record.runs if run.mode == mode]
    full = record.simulated.sqnr_db
    worst, best = level_range([*(run.sqnr_db for run in runs), full], full + DEPTH_DB)
    scale = upwards(worst, best, top, PANEL_HEIGHT)
    line_of_all = scale(full) if math.isfinite(full) else None
    is_line, few = mode == "cumulative", len(runs) <= POINTS_SHOWN
    legend = f"all layers quantized: {decibels(full)}" if place == 0 else ""
    return Panel(
        title=MODE_TITLES[mode],
        unit="SQNR in dB, worse →",
        top=top,
        bottom=bottom,
        ticks=place_ticks(ticks(worst, best, 5), scale),
        base=None if is_line else bottom if mode == "one" or line_of_all is None else line_of_all,
        line=" ".join(f"{axis(run.unit)},{scale(run.sqnr_db)}" for run in runs) if is_line else "",
        marks=tuple(
            PanelMark(
                x=axis(run.unit),
                y=scale(run.sqnr_db),
                tip=_run_tip(record, run) if run.unit in leading or few else "",
                flagged=run.unit in leading,
            )
            for run in runs
            if not is_line or run.unit in leading or few
        ),
        levels=() if line_of_all is None else (PanelLevel(line_of_all, legend, is_limit=True),),
    )


def _leading_text(record: SensitivityRecord, mode: Mode) -> str:
    """The leading layers of a mode in words."""
    found = [_run_tip(record, run) for run in record.leading(mode, LEADING, LEADING_SHARE)]
    return f"{MODE_TITLES[mode]}: {'; '.join(found) or 'nothing measured'}"


def _run_tip(record: SensitivityRecord, run: SensitivityRun) -> str:
    return layer_tip(record.units[run.unit].name, run.unit, decibels(run.sqnr_db))


def _figure_panel(
    record: DebuggerRecord,
    title: str,
    unit: str,
    place: int,
    axis: Axis,
    figure_of: Callable[[DebuggerLayer], float],
    limits: Sequence[tuple[float, str, bool]],
) -> Panel:
    top, bottom = _ends_of_panel(place)
    values = {index: figure_of(layer) for index, layer in enumerate(record.layers)}
    known = {index: value for index, value in values.items() if math.isfinite(value)}
    highest = (max([*known.values(), *(limit for limit, _, _ in limits)], default=0.0) or 1.0) * (1 + PAD)
    scale: Scale = upwards(highest, 0.0, top, PANEL_HEIGHT)
    suspected = {layer.tensor_name for layer in record.suspected}
    return Panel(
        title=title,
        unit=unit,
        top=top,
        bottom=bottom,
        ticks=place_ticks(ticks(0.0, highest, 5), scale),
        base=bottom,
        line="",
        marks=tuple(
            PanelMark(
                x=axis(index),
                y=scale(value),
                tip=_layer_tip(record, index, value) if len(known) <= POINTS_SHOWN else "",
                flagged=record.layers[index].tensor_name in suspected,
            )
            for index, value in known.items()
        ),
        levels=tuple(PanelLevel(scale(limit), f"{text} {number(limit)}", is_limit) for limit, text, is_limit in limits),
    )


def _layer_tip(record: DebuggerRecord, index: int, value: float) -> str:
    return layer_tip(record.layers[index].tensor_name, index, number(value))


def _layer_names(layers: Sequence[str], flagged: Iterable[int], axis: Axis) -> tuple[AxisName, ...]:
    """The names of the layers that stand out, and of the others as many as have room."""
    left, right, flagged = LEFT, WIDTH - RIGHT, set(flagged)
    others = [index for index in range(len(layers)) if index not in flagged]
    room = labels_that_fit(left, right) - len(flagged)
    kept = set(others[:: math.ceil(len(others) / room)]) if others else set()
    labels: list[tuple[float, str, Look]] = [
        (axis(index), layer_label(layers[index], index), "flagged" if index in flagged else "same")
        for index in sorted(flagged | kept)
    ]
    return axis_names(labels, left, right)
