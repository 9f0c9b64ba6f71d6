"""The graph of a comparison: the error of every layer before and after; drawing in ``templates/compare.svg``.

As in all graphs of errors, worse is up: an arrow up is a layer that got worse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.headline import SHIFT_DB
from quantmedic.engine.versus.side_by_side import ComparisonReport, LayerChange
from quantmedic.reports.charts.frame import (
    ALL_LABELS,
    POINTS_SHOWN,
    AxisName,
    Look,
    Plot,
    Scale,
    axis_names,
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
from quantmedic.reports.text import count, decibels, level

WIDTH, LEFT, RIGHT, TOP, HEIGHT = 1120.0, 60.0, 16.0, 46.0, 260.0
#: Room for a letter of a name; bold ones are wider.
LETTER = 6.2
#: Layers named for the largest change, each way.
NAMED = 12
CHANGED: tuple[Look, ...] = ("worse", "better")
#: Half of an arrow head, and the stem from which on there is room for one.
HEAD, STEM = 3.5, 6.0
#: Levels this far above the median are drawn at the foot: a layer almost without error must not flatten the others.
DEPTH_DB = 60.0


@dataclass(frozen=True)
class Stem:
    """One layer's change, from the level before to that after."""

    x: Annotated[float, "horizontal position"]
    start: Annotated[float, "level before"]
    end: Annotated[float, "level after"]
    look: Annotated[Look, "worse, better or same"]
    head: Annotated[str, "points of the arrow head; empty where there is no room for one"]
    tip: Annotated[str, "layer and both levels, shown under the pointer; empty where there are too many"]


@dataclass(frozen=True, kw_only=True)
class CompareChart(Plot):
    """The whole drawing."""

    template = "compare.svg"

    subtitle: Annotated[str, "data set, and how many layers changed"]
    before: Annotated[str, "points of the line before"]
    after: Annotated[str, "points of the line after"]
    stems: Annotated[tuple[Stem, ...], "layers that changed, or all where there are few"]
    names: Annotated[tuple[AxisName, ...], "names below the axis"]
    description: Annotated[str, "the largest changes, for those who cannot see it"]


@dataclass(frozen=True)
class Level:
    """One layer with both its levels."""

    place: int
    layer: LayerChange
    before: float
    after: float

    @property
    def gain(self) -> float:
        """after - before in dB."""
        return 0.0 if self.before == self.after else self.after - self.before

    @property
    def look(self) -> Look:
        """Changes under SHIFT_DB look the same."""
        return "same" if abs(self.gain) < SHIFT_DB else "better" if self.gain > 0 else "worse"


def levels(record: ComparisonReport) -> list[Level]:
    """Accumulated SQNR of the layers, or that of their weights where nothing was run; those known in both cases."""
    kind = "accumulated" if is_run(record) else "weight"
    pairs = ((getattr(x, f"{kind}_before"), getattr(x, f"{kind}_after")) for x in record.layers)
    return [
        Level(place, layer, old, new)
        for place, (layer, (old, new)) in enumerate(zip(record.layers, pairs, strict=True))
        if old is not None and new is not None and not math.isnan(old) and not math.isnan(new)
    ]


def is_run(record: ComparisonReport) -> bool:
    """Layers can be compared by their accumulated error, not by their weights alone."""
    return any(layer.gain_db is not None for layer in record.layers)


def largest(found: Sequence[Level], look: str, most: int | None = None) -> list[Level]:
    """Layers that got worse or better, the largest change first."""
    return sorted((level for level in found if level.look == look), key=lambda level: -abs(level.gain))[:most]


def compare_chart(record: ComparisonReport) -> CompareChart:
    """Lay out the graph of a comparison."""
    found = levels(record)
    left, right, bottom = LEFT, WIDTH - RIGHT, TOP + HEIGHT
    axis = layer_axis(0, len(record.layers) - 1, left, right)
    values = sorted(v for one in found for v in (one.before, one.after) if math.isfinite(v)) or [0.0]
    worst, best = level_range(values, values[len(values) // 2] + DEPTH_DB)
    y = upwards(worst, best, TOP, HEIGHT)

    def x(found_level: Level) -> float:
        return axis(found_level.place)

    few = len(found) <= POINTS_SHOWN
    title = f"{'Accumulated SQNR' if is_run(record) else 'SQNR of the weights'} by layer, before and after"
    names = _names_of_changed(found, x, left, right)
    changed = {look: len(largest(found, look)) for look in CHANGED}
    counts = f"{count(changed['worse'], 'layer')} worse, {changed['better']} better, of {len(found)}"
    return CompareChart(
        stem="compare",
        title=title,
        subtitle=f"{record.dataset} set · {counts}" if is_run(record) else counts,
        note="" if found else "no layer was measured in both cases",
        width=WIDTH,
        height=height_with_names(bottom, (name.text for name in names), LETTER),
        left=left,
        right=right,
        top=TOP,
        bottom=bottom,
        ticks=place_ticks(ticks(worst, best, 6), y),
        before=" ".join(f"{x(level)},{y(level.before)}" for level in found),
        after=" ".join(f"{x(level)},{y(level.after)}" for level in found),
        stems=tuple(_stem(level, x, y, few) for level in found if few or level.look != "same"),
        names=names,
        summary=f"{title}: {counts}",
        description=_changes_text(found),
    )


def _stem(found: Level, x: Callable[[Level], float], y: Scale, few: bool) -> Stem:
    at, start, end = x(found), y(found.before), y(found.after)
    room = abs(end - start) >= STEM and few and found.look != "same"
    back = end + math.copysign(2 * HEAD, start - end)
    head = f"{at},{end} {round(at - HEAD, 1)},{round(back, 1)} {round(at + HEAD, 1)},{round(back, 1)}" if room else ""
    return Stem(at, start, end, found.look, head, _stem_tip(found) if few else "")


def _stem_tip(found: Level) -> str:
    figures = f"{level(found.before)} → {decibels(found.after)} ({level(found.gain, '+')})"
    return layer_tip(found.layer.name, found.layer.index, figures)


def _names_of_changed(
    found: Sequence[Level], x: Callable[[Level], float], left: float, right: float
) -> tuple[AxisName, ...]:
    """The layers with the largest changes, and of the others all where there are few."""
    leading = {entry.place for look in CHANGED for entry in largest(found, look, NAMED)}
    everything = len(found) <= min(ALL_LABELS, labels_that_fit(left, right))
    labels: list[tuple[float, str, Look]] = [
        (x(entry), layer_label(entry.layer.name, entry.layer.index), entry.look if entry.place in leading else "same")
        for entry in found
        if everything or entry.place in leading
    ]
    return axis_names(labels, left, right)


def _changes_text(found: Sequence[Level]) -> str:
    """The largest changes in words."""
    parts = [
        f"{look}: {'; '.join(map(_stem_tip, largest(found, look, NAMED)))}"
        for look in CHANGED
        if largest(found, look, 1)
    ]
    return ". ".join(parts) or "no layer changed"
