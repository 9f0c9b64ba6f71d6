"""The bar charts of the debugger's table: geometry here, drawing in ``templates/debugger.svg``.

One panel for the range of each layer's grid and one for its error in steps, over one axis of layers. Suspected layers
are red in both, for only the two together tell whether a grid clips too much or too little.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.formulas.debugger import DebuggerLayer, DebuggerRecord
from quantmedic.reports.charts.frame import (
    LEFT,
    PAD,
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
    place_ticks,
    ticks,
    upwards,
)
from quantmedic.reports.text import NAME_LIMIT, count, number, visible

PANEL_TOP, PANEL_HEIGHT, PANEL_GAP = 60.0, 120.0, 40.0
#: Error of ideal rounding, in steps.
IDEAL = 1 / math.sqrt(12)
#: Room for a letter of a name; bold ones are wider.
LETTER = 6.4


@dataclass(frozen=True)
class Bar:
    """One layer in a panel."""

    x: Annotated[float, "horizontal position"]
    y: Annotated[float, "upper end"]
    tip: Annotated[str, "layer and value, shown under the pointer; empty where there are too many"]
    suspected: Annotated[bool, "drawn in red"]


@dataclass(frozen=True)
class Line:
    """A level across a panel."""

    y: Annotated[float, "vertical position"]
    text: Annotated[str, "what it is"]
    is_limit: Annotated[bool, "layers above it are suspected"]


@dataclass(frozen=True)
class Panel:
    """One figure of all layers."""

    title: Annotated[str, "what is drawn"]
    unit: Annotated[str, "name of the vertical axis"]
    top: Annotated[float, "top of the plot"]
    bottom: Annotated[float, "bottom of the plot"]
    ticks: Annotated[tuple[Tick, ...], "marks of the vertical axis"]
    bars: Annotated[tuple[Bar, ...], "layers whose figure is known"]
    lines: Annotated[tuple[Line, ...], "levels to compare with"]


@dataclass(frozen=True, kw_only=True)
class DebuggerChart(Drawing):
    """The whole drawing."""

    template = "debugger.svg"

    samples: Annotated[str, "samples measured"]
    bar: Annotated[float, "width of a bar"]
    panels: Annotated[tuple[Panel, ...], "ranges, then errors"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]
    description: Annotated[str, "what the graph shows, for those who cannot see it"]


def debugger_chart(record: DebuggerRecord) -> DebuggerChart:
    """Lay out both bar charts of a table."""
    left, right, size = LEFT, WIDTH - RIGHT, len(record.layers)
    x = layer_axis(0, size - 1, left, right)
    steps = PANEL_TOP + PANEL_HEIGHT + PANEL_GAP
    limits = ((record.suspect_steps, "suspected above", True), (IDEAL, "ideal rounding", False))
    panels = (
        _panel(record, "range: what all codes together span", "value", PANEL_TOP, x, lambda layer: layer.range, ()),
        _panel(record, "√mse/scale: error in steps", "steps", steps, x, lambda layer: layer.rmse_over_scale, limits),
    )
    names = _names(record, x)
    title = f"Debugger · {visible(record.quantized_model, NAME_LIMIT // 2)}"
    return DebuggerChart(
        stem="debugger",
        title=title,
        samples=f"n = {record.samples}",
        width=WIDTH,
        height=height_with_names(panels[-1].bottom, (each.text for each in names), LETTER),
        left=left,
        right=right,
        bar=bar_width(size, left, right, 12.0),
        panels=panels,
        bottom=panels[-1].bottom,
        names=names,
        summary=f"{title}: range and error in steps of {count(size, 'layer')}, {count(record.samples, 'sample')}",
        description=f"suspected: {', '.join(visible(each.tensor_name) for each in record.suspected) or 'none'}",
    )


def _panel(
    record: DebuggerRecord,
    title: str,
    unit: str,
    top: float,
    x: Callable[[int], float],
    value_of: Callable[[DebuggerLayer], float],
    limits: Sequence[tuple[float, str, bool]],
) -> Panel:
    values = {place: value_of(layer) for place, layer in enumerate(record.layers)}
    known = {place: value for place, value in values.items() if math.isfinite(value)}
    highest = max([*known.values(), *(limit for limit, _, _ in limits)], default=0.0) or 1.0
    y = upwards(highest * (1 + PAD), 0.0, top, PANEL_HEIGHT)
    suspected = {layer.tensor_name for layer in record.suspected}
    with_tips = len(known) <= POINTS_SHOWN
    return Panel(
        title=title,
        unit=unit,
        top=top,
        bottom=top + PANEL_HEIGHT,
        ticks=place_ticks(ticks(0.0, highest * (1 + PAD), 5), y),
        bars=tuple(
            Bar(
                x=x(place),
                y=y(value),
                tip=layer_tip(record.layers[place].tensor_name, place, number(value)) if with_tips else "",
                suspected=record.layers[place].tensor_name in suspected,
            )
            for place, value in known.items()
        ),
        lines=tuple(Line(y(limit), f"{text} {number(limit)}", is_limit) for limit, text, is_limit in limits),
    )


def _names(record: DebuggerRecord, x: Callable[[int], float]) -> tuple[AxisName, ...]:
    """The names of the worst suspected layers, and of the others as many as have room."""
    left, right = LEFT, WIDTH - RIGHT
    room = labels_that_fit(left, right)
    place_of = {layer.tensor_name: place for place, layer in enumerate(record.layers)}
    worst = {place_of[layer.tensor_name] for layer in record.worst[: min(len(record.suspected), room // 2)]}
    others = [place for place in range(len(record.layers)) if place not in worst]
    kept = set(others[:: math.ceil(len(others) / (room - len(worst)))]) if others else set()
    labels: list[tuple[float, str, Look]] = [
        (x(place), layer_label(record.layers[place].first_name, place), "flagged" if place in worst else "same")
        for place in sorted(worst | kept)
    ]
    return axis_names(labels, left, right)
