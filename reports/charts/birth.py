"""The chart of births: what each layer adds against the accumulated error; drawn in ``templates/birth.svg``.

Worse is up, as in all graphs of errors. A bar that reaches the line is a layer that made its noise itself; a line high
above the bars is noise that was carried in; a line that jumps above a short bar is noise that the layer amplified.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.decibels import sqnr_of_nmse
from quantmedic.reports.charts.errors import (
    AXES,
    LIMITS,
    ErrorChart,
    Point,
    drawable,
    errors_of,
    is_plottable,
    limit_text,
)
from quantmedic.reports.charts.frame import (
    HEIGHT,
    LEFT,
    PAD,
    RIGHT,
    TOP,
    Look,
    Mark,
    Scale,
    axis_names,
    height_with_names,
    layer_axis,
    layer_label,
    layer_spacing,
    layer_tip,
    place_ticks,
    ticks,
    upwards,
)
from quantmedic.reports.text import NAME_LIMIT, count, decibels, first_few, visible

BIRTH_WIDTH, BIRTH_TITLE, BORN_NAMES = 920.0, "Where the error is born", 8
#: Noise this far below the worst is drawn at the foot.
DEPTH_DB = 80.0
#: Shares that decide where the noise of a layer comes from.
OWN_SHARE, AMPLIFIED = 0.5, 2.0
Origin = Literal["born", "added", "amplified", "carried"]
ORIGINS: tuple[Origin, ...] = ("born", "added", "amplified", "carried")
#: What one layer of a kind does, and what several do.
KINDS: Mapping[Origin, tuple[str, str]] = {
    "born": ("begins it", "begin it"),
    "added": ("adds most of its own", "add most of their own"),
    "amplified": ("makes it louder", "make it louder"),
    "carried": ("hands it on", "hand it on"),
}
ORIGIN_TEXT = (
    "Born (◆): over a threshold though none of its inputs is. Added: at least half of the layer's noise is its own. "
    "Amplified: less than that, but at least twice the noise of its noisiest input. Carried: everything else."
)
DIFFERENCE_TEXT = (
    "The operators' own error {} (--step-error does it for one more run); without it a bar is the accumulated "
    "noise less that of the noisiest input, so that what a layer amplifies counts as added."
)


@dataclass(frozen=True)
class NoiseBar:
    """What one layer adds, or the layer that adds most of those that share a place."""

    x: Annotated[float, "left end"]
    y: Annotated[float, "top"]
    height: Annotated[float, "height"]
    own: Annotated[bool, "at least half of the layer's noise is its own: a strong bar"]
    tip: Annotated[str, "layer, its word and both levels, shown under the pointer"]


@dataclass(frozen=True, kw_only=True)
class BirthChart(ErrorChart):
    """What each layer adds against the accumulated error: where the error is born, amplified and carried.

    Points are layers where it is born, names those of them that add most.
    """

    template = "birth.svg"

    bar: Annotated[float, "width of a bar"]
    bars: Annotated[tuple[NoiseBar, ...], "noise that layers add"]


def origin(row: LayerRow, role: Role) -> Origin | None:
    """Where the noise of a layer's output comes from; None where that was not measured or there is no noise.

    Args:
        row: The layer.
        role: The data set that ``added_nmse`` was measured on: the one that is judged.
    """
    noise = errors_of(row, role).nmse
    if row.born:
        return "born"
    if not noise or math.isnan(noise) or row.added_nmse is None:
        return None
    if row.added_nmse >= OWN_SHARE * noise:
        return "added"
    return "amplified" if (row.amplification or 0) >= AMPLIFIED else "carried"


def birth_text(rows: Iterable[LayerRow], role: Role) -> str:
    """What the words and bars of the chart of births mean, and how the layers' own noise was found."""
    known = [row for row in rows if row.added_nmse is not None]
    measured = sum(getattr(row, role).step.nmse is not None for row in known)
    if known and measured == len(known):
        return f"{ORIGIN_TEXT} A bar is the operator's own error, measured on deployed inputs."
    share = f"was measured of {measured} of {len(known)} layers" if measured else "was not measured"
    return f"{ORIGIN_TEXT} {DIFFERENCE_TEXT.format(share)}"


def degraded_text(rows: Iterable[LayerRow]) -> str:
    """How many layers are over a threshold, and where that begins: what is behind mostly hands the noise on."""
    over = [row for row in rows if row.degraded]
    born = [visible(row.float_name or row.name, NAME_LIMIT) for row in over if row.born]
    return f"{len(over)} degraded{f', which begins at {first_few(born, 1)}' if born else ''}"


def _kind_text(layers: int, word: Origin) -> str:
    """So many layers, and what they do to the noise, with the word that the table of layers has for it."""
    one, more = KINDS[word]
    return f"{count(layers, 'layer')} {one if layers == 1 else more} ({word})"


def birth_summary(rows: Sequence[LayerRow], role: Role) -> str:
    """How many layers are of which kind; where no layer is the first over a threshold, why."""
    found = Counter(origin(row, role) for row in rows)
    text = ", ".join(_kind_text(found[word], word) for word in ORIGINS if found[word])
    degraded = [row for row in rows if row.degraded]
    if not degraded or found["born"] or not text:
        return text or "where the error comes from was not measured"
    unseen = any(row.born is None for row in degraded)
    why = "not every input was seen" if unseen else "it comes in with the network's input"
    return f"{text}; the error is born in no layer: {why}"


def birth_chart(diagnosis: Diagnosis, role: Role) -> BirthChart:
    """What each layer adds against the accumulated error, in dB.

    Args:
        diagnosis: What to draw.
        role: The data set that is judged.
    """
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    rows = sorted(diagnosis.layers, key=lambda row: row.index)
    measured = [row for row in rows if is_plottable(errors_of(row, role).sqnr_db, "sqnr_db")]
    left, right, bottom = LEFT, BIRTH_WIDTH - RIGHT, TOP + HEIGHT
    limit = drawable(limits.get(LIMITS["sqnr_db"]), "sqnr_db")
    scale, marks = _noise_axis(measured, role, limit)
    first, last = (rows[0].index, max(rows[-1].index, rows[0].index + 1)) if rows else (0, 1)
    axis = layer_axis(first, last, left, right)

    def x(row: LayerRow) -> float:
        return axis(row.index)

    def level(row: LayerRow) -> float:
        return scale(errors_of(row, role).sqnr_db or 0.0)

    born = [row for row in measured if row.born]
    loudest = {row.index for row in sorted(born, key=lambda row: -(row.added_nmse or 0))[:BORN_NAMES]}
    labels: list[tuple[float, str, Look]] = [
        (x(row), layer_label(row.name, row.index), "flagged") for row in born if row.index in loudest
    ]
    names = axis_names(labels, left, right)
    title = f"{BIRTH_TITLE} · {role}"
    found = birth_summary(rows, role)
    return BirthChart(
        stem="error-birth",
        title=title,
        samples=found,
        axis=AXES["sqnr_db"],
        note=_missing_note(measured, role),
        words=birth_text(rows, role),
        width=BIRTH_WIDTH,
        height=height_with_names(bottom, (label.text for label in names)),
        right=right,
        bottom=bottom,
        ticks=place_ticks(marks, scale),
        limit=None if limit is None else scale(limit),
        limit_text=limit_text("sqnr_db", limit, limits),
        bar=round(min(max(0.66 * layer_spacing(first, last, left, right), 1.0), 12.0), 1),
        bars=_noise_bars(measured, role, x, scale, bottom),
        line=" ".join(f"{x(row)},{level(row)}" for row in measured),
        points=tuple(
            Point(x(row), level(row), _birth_tip(row, role), visible(row.name, NAME_LIMIT), flagged=True)
            for row in born
        ),
        names=names,
        summary=f"{title}: {found}",
    )


def _missing_note(measured: Iterable[LayerRow], role: Role) -> str:
    """Why nothing can be drawn; empty where something can."""
    known = [row.added_nmse is not None for row in measured]
    return "" if any(known) else "not measured: what each layer adds" if known else f"not measured on the {role} set"


def _noise_axis(rows: Sequence[LayerRow], role: Role, limit: float | None) -> tuple[Scale, list[Mark]]:
    levels = [level for row in rows for level in (errors_of(row, role).sqnr_db, sqnr_of_nmse(row.added_nmse))]
    values = [level for level in levels if level is not None and math.isfinite(level)]
    values += [limit] if limit is not None else []
    worst, best = min(values, default=0.0), max(values, default=1.0)
    best = min(best, worst + DEPTH_DB)
    pad = PAD * (best - worst) or 0.5
    return upwards(worst - pad, best + pad), ticks(worst - pad, best + pad)


def _noise_bars(
    rows: Iterable[LayerRow],
    role: Role,
    x: Callable[[LayerRow], float],
    scale: Scale,
    bottom: float,
) -> tuple[NoiseBar, ...]:
    """One bar per position of the drawing: where several layers share one, that of the layer that adds most."""
    loudest: dict[int, LayerRow] = {}
    for row in rows:
        here = loudest.get(round(x(row)))
        if row.added_nmse and (here is None or row.added_nmse > (here.added_nmse or 0)):
            loudest[round(x(row))] = row
    bars = []
    for row in loudest.values():
        top = scale(sqnr_of_nmse(row.added_nmse) or 0.0)
        own = origin(row, role) in ("born", "added")
        bars.append(NoiseBar(x(row), top, round(bottom - top, 1), own, _birth_tip(row, role)))
    return tuple(bars)


def _birth_tip(row: LayerRow, role: Role) -> str:
    levels = f"adds {decibels(sqnr_of_nmse(row.added_nmse))}, accumulated {decibels(errors_of(row, role).sqnr_db)}"
    return layer_tip(row.name, row.index, f"{origin(row, role) or 'origin not measured'}, {levels}")
