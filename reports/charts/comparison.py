"""The graph of a comparison: the error of every layer before and after; drawing in ``templates/compare.svg``.

As in all graphs of errors, worse is up: an arrow up is a layer that got worse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.headline import SHIFT_DB
from quantmedic.engine.versus.side_by_side import ComparisonReport, LayerChange
from quantmedic.reports.charts.geometry import (
    ALL_LABELS,
    LABEL_LIMIT,
    LABEL_STEP,
    PALETTE,
    POINTS_SHOWN,
    Tick,
    spread,
    ticks,
)
from quantmedic.reports.text import NAME_LIMIT, count, decibels, level, visible

WIDTH, LEFT, RIGHT, TOP, HEIGHT, FOOT = 1120.0, 60.0, 16.0, 46.0, 260.0, 24.0
#: Room for a letter of a name; bold ones are wider.
LETTER = 6.2
#: Layers named for the largest change, each way.
NAMED = 12
#: Half of an arrow head, and the stem from which on there is room for one.
HEAD, STEM = 3.5, 6.0
#: A graph spans at least this much, so that differences that do not matter look small.
MIN_SPAN_DB = 6.0
#: Levels this far above the median are drawn at the foot: a layer almost without error must not flatten the others.
DEPTH_DB = 60.0
COLOURS = PALETTE | {"good": "#1b6e3a"}
#: The same as the page has them, for both themes.
INLINE = {key: f"var(--chart-{key})" for key in PALETTE} | {"good": "var(--good)"}


@dataclass(frozen=True)
class Stem:
    """One layer's change, from the level before to that after."""

    x: Annotated[float, "horizontal position"]
    start: Annotated[float, "level before"]
    end: Annotated[float, "level after"]
    look: Annotated[str, "worse, better or same"]
    head: Annotated[str, "points of the arrow head; empty where there is no room for one"]
    tip: Annotated[str, "layer and both levels, shown under the pointer; empty where there are too many"]


@dataclass(frozen=True)
class StemName:
    """The name of a layer below the axis."""

    x: Annotated[float, "position of the layer"]
    at: Annotated[float, "position of the text, moved where names would overlap"]
    text: Annotated[str, "name and index, and the change where it is one of the largest"]
    look: Annotated[str, "worse, better or same"]


@dataclass(frozen=True)
class CompareChart:
    """The whole drawing."""

    title: Annotated[str, "what was measured"]
    subtitle: Annotated[str, "data set, and how many layers changed"]
    note: Annotated[str, "why there is no graph; empty where there is one"]
    width: Annotated[float, "width of the drawing"]
    height: Annotated[float, "height of the drawing"]
    left: Annotated[float, "left end of the plot"]
    right: Annotated[float, "right end of the plot"]
    top: Annotated[float, "top of the plot"]
    bottom: Annotated[float, "bottom of the plot"]
    ticks: Annotated[tuple[Tick, ...], "marks of the vertical axis"]
    before: Annotated[str, "points of the line before"]
    after: Annotated[str, "points of the line after"]
    stems: Annotated[tuple[Stem, ...], "layers that changed, or all where there are few"]
    names: Annotated[tuple[StemName, ...], "names below the axis"]
    summary: Annotated[str, "what the graph is, in one line"]
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
    def look(self) -> str:
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
    spacing = (right - left - 16) / max(len(record.layers) - 1, 1)
    worst, best = _ends([value for found_level in found for value in (found_level.before, found_level.after)])

    def x(found_level: Level) -> float:
        return round(left + 8 + found_level.place * spacing if len(record.layers) > 1 else (left + right) / 2, 1)

    def y(value: float) -> float:
        return round(TOP + HEIGHT * (min(max(value, worst), best) - worst) / (best - worst), 1)

    few = len(found) <= POINTS_SHOWN
    title = f"{'Accumulated SQNR' if is_run(record) else 'SQNR of the weights'} by layer, before and after"
    names = _names(found, x, left + 6, right - 2)
    changed = {look: len(largest(found, look)) for look in ("worse", "better")}
    told = f"{count(changed['worse'], 'layer')} worse, {changed['better']} better, of {len(found)}"
    return CompareChart(
        title=title,
        subtitle=f"{record.dataset} set · {told}" if is_run(record) else told,
        note="" if found else "no layer was measured in both cases",
        width=WIDTH,
        height=round(bottom + FOOT + LETTER * max((len(name.text) for name in names), default=0), 1),
        left=left,
        right=right,
        top=TOP,
        bottom=bottom,
        ticks=tuple(Tick(y(at), text) for at, text in ticks(worst, best, 6)),
        before=" ".join(f"{x(level)},{y(level.before)}" for level in found),
        after=" ".join(f"{x(level)},{y(level.after)}" for level in found),
        stems=tuple(_stem(level, x, y, few) for level in found if few or level.look != "same"),
        names=names,
        summary=f"{title}: {told}",
        description=_described(found),
    )


def render_chart(record: ComparisonReport, *, standalone: bool = True) -> str:
    """``compare.svg``: with its own colours for a file, or with those of the page that it is part of."""
    from quantmedic.reports.templating import html_environment

    template = html_environment().get_template("compare.svg")
    palette = COLOURS if standalone else INLINE
    return template.render(chart=compare_chart(record), standalone=standalone, palette=palette)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The worst and the best SQNR that are drawn apart."""
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0]
    worst = finite[0]
    best = max(min(finite[-1], finite[len(finite) // 2] + DEPTH_DB), worst + MIN_SPAN_DB)
    pad = 0.06 * (best - worst)
    return worst - pad, best + pad


def _stem(found: Level, x: Callable[[Level], float], y: Callable[[float], float], few: bool) -> Stem:
    at, start, end = x(found), y(found.before), y(found.after)
    room = abs(end - start) >= STEM and few and found.look != "same"
    back = end + math.copysign(2 * HEAD, start - end)
    head = f"{at},{end} {round(at - HEAD, 1)},{round(back, 1)} {round(at + HEAD, 1)},{round(back, 1)}" if room else ""
    return Stem(at, start, end, found.look, head, _tip(found) if few else "")


def _tip(found: Level) -> str:
    levels_text = f"{level(found.before)} → {decibels(found.after)}"
    return f"{found.layer.index} {visible(found.layer.name, NAME_LIMIT)}: {levels_text} ({level(found.gain, '+')})"


def _names(found: Sequence[Level], x: Callable[[Level], float], low: float, high: float) -> tuple[StemName, ...]:
    """The layers with the largest changes, and of the others all where there are few."""
    leading = {entry.place for look in ("worse", "better") for entry in largest(found, look, NAMED)}
    room = int((high - low) / LABEL_STEP)
    everything = len(found) <= min(ALL_LABELS, room)
    written = [entry for entry in found if everything or entry.place in leading]
    places = spread([x(entry) for entry in written], LABEL_STEP, low, high)
    return tuple(
        StemName(x(entry), round(at, 1), _label(entry), entry.look if entry.place in leading else "same")
        for entry, at in zip(written, places, strict=True)
    )


def _label(found: Level) -> str:
    return f"{visible(found.layer.name, LABEL_LIMIT)} · {found.layer.index}"


def _described(found: Sequence[Level]) -> str:
    parts = [
        f"{look}: {'; '.join(map(_tip, largest(found, look, NAMED)))}"
        for look in ("worse", "better")
        if largest(found, look, 1)
    ]
    return ". ".join(parts) or "no layer changed"
