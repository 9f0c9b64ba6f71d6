"""What all charts share: sizes, colours, the axis of layers with its names, marks and scales.

Charts are laid out here and in the modules beside; the templates draw them. In all charts of errors worse is up.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from quantmedic.reports.text import NAME_LIMIT, number, visible

PALETTE = {
    "paper": "#ffffff",
    "ink": "#1c2430",
    "muted": "#5b6675",
    "grid": "#e4e8ed",
    "series": "#1f5fa8",
    "local": "#9db7d5",
    "flag": "#c0271d",
    "good": "#1b6e3a",
}
#: The same where a file is shown in the dark.
DARK_PALETTE = {
    "paper": "#171c23",
    "ink": "#e4e9ef",
    "muted": "#9ba7b5",
    "grid": "#262e37",
    "series": "#7db4f2",
    "local": "#5a7fa8",
    "flag": "#ff7b70",
    "good": "#6fd08c",
}
#: The same as a page has them, for both themes.
INLINE_PALETTE = {key: f"var(--chart-{key})" for key in PALETTE} | {"good": "var(--good)"}

WIDTH, LEFT, RIGHT, TOP, HEIGHT = 600.0, 66.0, 14.0, 46.0, 190.0
LABEL_STEP, LABEL_LIMIT, LABEL_LETTER, ALL_LABELS = 11.0, 26, 5.6, 40
#: Room between the axis and the names below it.
LABEL_GAP = 24.0
#: Room between the ends of the axis of layers and the first and last layer.
MARGIN = 8.0
POINTS_SHOWN = 150
#: A chart of levels spans at least this much, so that differences that do not matter look small.
MIN_SPAN_DB = 6.0
#: Share of its span that an axis shows beyond its values.
PAD = 0.06

Look = Literal["same", "flagged", "worse", "better"]
Scale = Callable[[float], float]
#: A value on an axis, and its text.
Mark = tuple[float, str]


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: Annotated[float, "position"]
    text: Annotated[str, "what is written"]


@dataclass(frozen=True)
class AxisName:
    """The name of a layer below the axis."""

    x: Annotated[float, "position of the layer"]
    at: Annotated[float, "position of the text, moved where names would overlap"]
    text: Annotated[str, "name and topological index"]
    look: Annotated[Look, "flagged names are red; worse and better ones have the colours of changes"]

    @property
    def flagged(self) -> bool:
        """Written in red."""
        return self.look == "flagged"


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What every chart has."""

    #: The template that draws it.
    template = ""

    stem: Annotated[str, "file name without suffix"]
    title: Annotated[str, "what is drawn"]
    note: Annotated[str, "why there is no graph; empty where there is one"] = ""
    width: Annotated[float, "width of the drawing"] = WIDTH
    height: Annotated[float, "height of the drawing"]
    left: Annotated[float, "left end of the plot"] = LEFT
    right: Annotated[float, "right end of the plot"] = WIDTH - RIGHT
    bottom: Annotated[float, "bottom of the plot"]
    summary: Annotated[str, "what the graph shows, in one line, for those who cannot see it"]
    words: Annotated[str, "how to read it, as sentences; may be empty"] = ""
    slim: Annotated["Drawing | None", "the same for narrow screens; None where it suits them"] = None


@dataclass(frozen=True, kw_only=True)
class Plot(Drawing):
    """A chart with one plot."""

    top: Annotated[float, "top of the plot"] = TOP
    ticks: Annotated[tuple[Tick, ...], "marks of the vertical axis"]


def layer_axis(first: int, last: int, left: float, right: float) -> Callable[[int], float]:
    """Map from the index of a layer to its horizontal position; a single layer stands in the middle."""
    if last <= first:
        return lambda index: round((left + right) / 2, 1)
    spacing = layer_spacing(first, last, left, right)
    return lambda index: round(left + MARGIN + (index - first) * spacing, 1)


def layer_spacing(first: int, last: int, left: float, right: float) -> float:
    """Room between two neighbours on the axis of layers."""
    return (right - left - 2 * MARGIN) / max(last - first, 1)


def bar_width(count: int, left: float, right: float, widest: float) -> float:
    """Width of one of so many bars on the axis of layers."""
    return round(min(max(0.7 * layer_spacing(0, count - 1, left, right), 0.8), widest), 2)


def layer_label(name: str, index: int) -> str:
    """The name of a layer as it stands below the axis."""
    return f"{visible(name, LABEL_LIMIT)} · {index}"


def layer_tip(name: str, index: int, figures: str) -> str:
    """What is shown of a layer under the pointer."""
    return f"{index} {visible(name, NAME_LIMIT)}: {figures}"


def axis_names(labels: Sequence[tuple[float, str, Look]], left: float, right: float) -> tuple[AxisName, ...]:
    """Names below the axis, in ascending order of their positions, moved so that none overlaps another."""
    places = spread([x for x, _, _ in labels], LABEL_STEP, *label_room(left, right))
    return tuple(AxisName(x, round(at, 1), text, look) for (x, text, look), at in zip(labels, places, strict=True))


def label_room(left: float, right: float) -> tuple[float, float]:
    """The ends between which names stand."""
    return left + 6, right - 2


def labels_that_fit(left: float, right: float) -> int:
    """How many names have room below the axis."""
    low, high = label_room(left, right)
    return int((high - low) / LABEL_STEP)


def height_with_names(bottom: float, texts: Iterable[str], letter: float = LABEL_LETTER) -> float:
    """Height of a drawing with names below its axis; ``letter`` is the room for a letter."""
    return round(bottom + LABEL_GAP + letter * max(map(len, texts), default=0), 1)


def place_ticks(marks: Iterable[Mark], scale: Scale) -> tuple[Tick, ...]:
    """Marks of an axis at their positions."""
    return tuple(Tick(scale(value), text) for value, text in marks)


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


def upwards(top_value: float, bottom_value: float, top: float = TOP, height: float = HEIGHT) -> Scale:
    """Linear map that puts ``top_value`` at the top of the plot; values beyond the ends are drawn at the ends."""

    def place(value: float) -> float:
        share = (value - bottom_value) / (top_value - bottom_value)
        return round(top + height * (1 - min(max(share, 0.0), 1.0)), 1)

    return place


def level_range(values: Sequence[float], deepest: float) -> tuple[float, float]:
    """The worst and the best level in dB that are drawn apart.

    Args:
        values: Levels, of which those that are not finite are drawn at an end.
        deepest: Levels above this one are drawn at the foot.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    worst = min(finite)
    best = max(min(max(finite), deepest), worst + MIN_SPAN_DB)
    pad = PAD * (best - worst)
    return worst - pad, best + pad
