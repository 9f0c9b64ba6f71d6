"""One picture for a cause: two data sets over each other, a distribution in its range, or channels; drawn in
``templates/distribution.svg``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

import numpy as np

from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.formulas.spreads import (
    SPREAD_BINS,
    Channels,
    Spread,
    tensor_spreads,
    weight_channels,
    weight_spread,
)
from quantmedic.reports.charts.frame import LEFT, RIGHT, TOP, WIDTH, Plot, Tick, place_ticks, ticks
from quantmedic.reports.text import number, percent, visible

BOTTOM, FOOT = TOP + 130.0, 52.0
#: Bars of a picture of channels: of many, these spread evenly over the order by range.
CHANNELS_SHOWN = 96
#: Facts of channels; elsewhere a distribution says more.
CHANNEL_FACTS = ("channel_range", "worst_channel", "dead", "channels")
#: Shares of less than this are not drawn: the vertical axis is logarithmic.
LEAST_SHARE = 1e-6
NAME_LIMIT = 56


@dataclass(frozen=True)
class Bar:
    """A bar from the axis upwards."""

    x: Annotated[float, "left end"]
    width: Annotated[float, "width"]
    height: Annotated[float, "height"]
    flagged: Annotated[bool, "in red: cut off, or hardly seen by the quantizer"]
    tip: Annotated[str, "shown under the pointer; empty where there are too many"] = ""


@dataclass(frozen=True, kw_only=True)
class Distribution(Plot):
    """A distribution, or a figure of each channel, with what it is held against."""

    template = "distribution.svg"

    height: Annotated[float, "height of the drawing"] = BOTTOM + FOOT
    bottom: Annotated[float, "bottom of the plot"] = BOTTOM

    bars: Annotated[tuple[Bar, ...], "what is measured"]
    outline: Annotated[str, "path of what it is held against; empty where it is held against a range"] = ""
    marks: Annotated[tuple[Tick, ...], "marks of the horizontal axis"] = ()
    limits: Annotated[tuple[Tick, ...], "ends of the quantizer's range"] = ()
    level: Annotated[Tick | None, "one step of the quantizer, as a horizontal line"] = None
    axis: Annotated[str, "what the horizontal axis shows"]
    upward: Annotated[str, "what the vertical axis shows"]


def cause_pictures(diagnosis: Diagnosis, inspection: Inspection) -> dict[str, Distribution]:
    """Pictures by the code of the cause; without one where nothing was measured that could be drawn."""
    found: dict[str, Distribution] = {}
    for cause in diagnosis.causes:
        code = visible(cause.rules[0]) if cause.rules else cause.cause
        picture = _picture_of(cause, code, inspection)
        if picture is not None:
            found[code] = picture
    return found


def _picture_of(cause: CauseReport, code: str, inspection: Inspection) -> Distribution | None:
    subject = next(iter(cause.subjects), "")
    facts = [row.fact for row in cause.evidence if row.subject == subject]
    if subject in ROLES:
        return _two_sets(code, inspection)
    place = _place_of(cause, subject, inspection)
    if place is not None and any(fact.startswith("weight.") for fact in facts):
        return _weights(code, place, facts, inspection)
    tensor = _tensor_of(subject, place, inspection)
    return _activation(code, tensor, inspection) if tensor is not None else None


def _place_of(cause: CauseReport, subject: str, inspection: Inspection) -> int | None:
    """Which layer a subject is, by either of its names."""
    names = {subject, *(name for layer in cause.layers[:1] for name in (layer.float_name, layer.quantized_name))}
    layers = inspection.facts.layers
    return next((place for place, layer in enumerate(layers) if {layer.name, layer.float_name} & names), None)


def _tensor_of(subject: str, place: int | None, inspection: Inspection) -> int | None:
    """Which tensor a subject is, or what the layer writes."""
    record = inspection.case.record
    named = next((i for i, each in enumerate(record.tensors) if subject in (each.name, each.float_name)), None)
    if named is not None or place is None:
        return named
    return next((index for index in record.operators[place].outputs if index is not None), None)


def _two_sets(code: str, inspection: Inspection) -> Distribution | None:
    """The inputs of both data sets over each other, in shares of their values."""
    tensors = inspection.case.record.tensors
    index = next((place for place, tensor in enumerate(tensors) if tensor.is_input), None)
    spreads = {} if index is None else {role: _spread(role, index, inspection) for role in ROLES}
    own, other = spreads.get("representative"), spreads.get("validation")
    if index is None or own is None or other is None:
        return None
    quantizer = tensors[index].quantizer
    title = f"{visible(tensors[index].float_name or tensors[index].name, NAME_LIMIT)}: both data sets"
    return _sets_picture(code, title, (own, other), (quantizer.low, quantizer.high))


def _sets_picture(
    code: str, title: str, spreads: tuple[Spread, Spread], reach: tuple[float | None, float | None]
) -> Distribution:
    """Two sets and the range of the quantizer, all of it: one that is too wide shows as that."""
    known = [end for end in reach if end is not None and math.isfinite(end)]
    ends = (min([*(each.start for each in spreads), *known]), max([*(each.stop for each in spreads), *known]))
    words = "Bars: the representative set. Line: the validation set."
    if len(known) == len(reach):
        words += f" Dashed: the range of the quantizer, {number(known[0])} to {number(known[1])}."
    picture = _shares_picture(code, title, spreads, ends, reach, words)
    cut = any(bar.flagged for bar in picture.bars)
    return replace(picture, words=f"{words} Red: what of the bars is cut off.") if cut else picture


def _activation(code: str, index: int, inspection: Inspection) -> Distribution | None:
    """The distribution of an activation, and the range of its quantizer."""
    roles: tuple[Role, ...] = ("validation", "representative")
    found = ((role, _spread(role, index, inspection)) for role in roles)
    role, spread = next(((role, spread) for role, spread in found if spread is not None), ("validation", None))
    if spread is None:
        return None
    tensor = inspection.case.record.tensors[index]
    return _range_picture(code, f"{visible(tensor.float_name or tensor.name, NAME_LIMIT)} · {role}", spread)


def _weights(code: str, place: int, facts: Sequence[str], inspection: Inspection) -> Distribution | None:
    arrays, weight = inspection.case.weights.get(place), inspection.facts.layers[place].weight
    if arrays is None:
        return None
    title = f"weights of {visible(inspection.facts.layers[place].name or '', NAME_LIMIT)}"
    channels = weight_channels(arrays, weight)
    if channels is not None and any(word in fact for fact in facts for word in CHANNEL_FACTS):
        return _channels_picture(code, title, channels, weight.quantizer.scale)
    spread = weight_spread(arrays, weight.quantizer)
    return _codes_picture(code, title, spread) if spread is not None else None


def _spread(role: Role, index: int, inspection: Inspection) -> Spread | None:
    case = inspection.case
    if role not in case.statistics:
        return None
    return tensor_spreads(case, role, [index], {}).get(index)


def _range_picture(code: str, title: str, spread: Spread) -> Distribution:
    """A distribution in its range: what is cut off is red."""
    reach = [end for end in (spread.low, spread.high) if end is not None and math.isfinite(end)]
    ends = (min([spread.start, *reach]), max([spread.stop, *reach]))
    within = "Dashed: the range of the quantizer" if reach else "The quantizer's range was not measured"
    words = f"{within}; red: values beyond it, which are cut off." if reach else f"{within}."
    return _shares_picture(code, title, (spread, None), ends, (spread.low, spread.high), words)


def _codes_picture(code: str, title: str, spread: Spread) -> Distribution:
    """Float weights, and the values that the quantized model has instead."""
    if spread.quantized is None:
        return _range_picture(code, title, spread)
    stored = replace(spread, floats=spread.quantized)
    words = "Bars: the float weights. Line: the values that the quantized model has instead."
    return _shares_picture(code, title, (spread, stored), (spread.start, spread.stop), (None, None), words)


def _shares_picture(
    code: str,
    title: str,
    spreads: tuple[Spread, Spread | None],
    ends: tuple[float, float],
    reach: tuple[float | None, float | None],
    words: str,
) -> Distribution:
    """Distributions by value, as shares on a logarithmic axis."""
    left, right = LEFT, WIDTH - RIGHT
    low, high = ends

    def x(value: float) -> float:
        return round(left + (min(max(value, low), high) - low) / (high - low or 1.0) * (right - left), 1)

    def y(share: float) -> float:
        decades = -math.log10(LEAST_SHARE)
        return round(BOTTOM - (BOTTOM - TOP) * (math.log10(max(share, LEAST_SHARE)) + decades) / decades, 1)

    limits = [end for end in reach if end is not None and math.isfinite(end)]
    return Distribution(
        stem=f"cause-picture-{code}",
        title=title,
        ticks=tuple(Tick(y(10.0**-e), "100 %" if e == 0 else percent(10.0**-e, max(e - 2, 0))) for e in (0, 2, 4)),
        bars=tuple(_bars(spreads[0], x, y, reach)),
        outline=_outline(spreads[1], x, y) if spreads[1] is not None else "",
        marks=place_ticks(ticks(low, high, 8), x),
        limits=tuple(Tick(x(limit), number(limit)) for limit in limits),
        axis="value of the float tensor",
        upward="share of the values",
        words=words,
        summary=f"{title}; range of the quantizer {number(reach[0])} to {number(reach[1])}",
    )


def _edges(spread: Spread) -> list[float]:
    step = (spread.stop - spread.start) / SPREAD_BINS
    return [spread.start + step * place for place in range(SPREAD_BINS + 1)]


def _bars(
    spread: Spread,
    x: Callable[[float], float],
    y: Callable[[float], float],
    reach: tuple[float | None, float | None],
) -> list[Bar]:
    total, limits = sum(spread.floats) or 1, sorted(end for end in reach if end is not None)
    lowest = spread.start if spread.lowest is None else spread.lowest
    highest = spread.stop if spread.highest is None else spread.highest
    bars = []
    for (left, right), size in zip(pairwise(_edges(spread)), spread.floats, strict=True):
        if size / total < LEAST_SHARE:
            continue
        start, stop = min(max(left, lowest), right), max(min(right, highest), left)
        ends = [start, *(limit for limit in limits if start < limit < stop), stop]
        for near, far in pairwise(ends):
            middle = (near + far) / 2
            outside = bool(limits) and not limits[0] <= middle <= limits[-1]
            width = round(max(x(far) - x(near), 0.8), 1)
            bars.append(Bar(x(near), width, round(BOTTOM - y(size / total), 1), outside))
    return bars


def _outline(spread: Spread, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """Steps along the tops of the bins."""
    total = sum(spread.floats) or 1
    parts = [f"M{x(spread.start)} {BOTTOM}"]
    for (start, stop), size in zip(pairwise(_edges(spread)), spread.floats, strict=True):
        height = y(size / total) if size else BOTTOM
        parts.append(f"L{x(start)} {height}L{x(stop)} {height}")
    return "".join([*parts, f"L{x(spread.stop)} {BOTTOM}"])


def _channels_picture(code: str, title: str, channels: Channels, scale: float | None) -> Distribution | None:
    """The largest weight of each channel, in order; red are those that one step of a shared grid swallows."""
    sizes = np.maximum(np.abs(channels.low), np.abs(channels.high))
    sizes = np.sort(sizes[sizes > 0])[::-1]
    if len(sizes) < 2:
        return None
    shown = sizes[np.unique(np.linspace(0, len(sizes) - 1, CHANNELS_SHOWN).round().astype(int))]
    left, right = LEFT, WIDTH - RIGHT
    low = math.floor(math.log10(min(shown[-1], scale or shown[-1])) - 0.1)
    high = math.ceil(math.log10(shown[0]) + 0.01)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (math.log10(value) - low) / (high - low), 1)

    room = (right - left) / len(shown)
    bars = [
        Bar(
            round(left + room * place, 1), round(0.8 * room, 1), round(BOTTOM - y(size), 1),
            scale is not None and size < scale / 2,
        )
        for place, size in enumerate(shown.tolist())
    ]  # fmt: skip
    every = max(1, math.ceil((high - low) / 4))
    step = f" Dashed: one step of the grid, {number(scale)}; red: channels below half a step become 0." if scale else ""
    return Distribution(
        stem=f"cause-picture-{code}",
        title=f"{title}: {number(channels.total)} channels",
        ticks=tuple(Tick(y(10.0**e), f"1e{e}") for e in range(low, high + 1, every)),
        bars=tuple(bars),
        level=Tick(y(scale), "1 step") if scale else None,
        axis="output channels, the widest first",
        upward="largest magnitude",
        words=f"The widest channel is {number(sizes[0] / sizes[-1])} times the narrowest.{step}",
        summary=f"largest magnitude by channel, {number(sizes[0])} to {number(sizes[-1])}",
    )
