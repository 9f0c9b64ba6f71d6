"""The inputs: representative against validation inputs, and both against the ranges that the model records."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import RelationFacts, Role, TensorDataFacts, TensorFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SampleTable, SetStatistics, TensorStatistics
from quantmedic.engine.formulas.columns import ratio
from quantmedic.engine.formulas.first_input import (
    FULL_SPAN,
    ChannelMoments,
    Lattice,
    are_pixels,
    channel_moments,
    feature_covariance,
    first_input,
    input_std,
    lattice_of,
    lattices_of,
    trace_of,
)
from quantmedic.engine.formulas.images import image_relation
from quantmedic.engine.formulas.noise_sources import MOVING
from quantmedic.engine.formulas.stored_bins import bins_of_view

#: Place of the channel, as stored, that belongs to each place.
Order = tuple[int, ...]
#: Slope and offset, or step and lowest point, of each channel; or one pair for all.
Lines = Sequence[tuple[float, float]]
_BOOTSTRAP = 400
#: Steps by which two grids may differ before one counts as shifted against the other.
_SHIFT_STEPS = 16
#: Share by which slope and offset of a line through quantiles may miss those of a second normalization.
_TWICE = 0.1
#: Factors between inputs that were prepared differently, and by how much a range may miss them.
KNOWN_FACTORS = {
    f"{sign}{text}{times}": value if times else 1.0 / value
    for text, value in (("255", 255.0), ("127.5", 127.5), ("2.55", 2.55), ("100", 100.0), ("10", 10.0), ("2", 2.0))
    for sign, times in (("", " times"), ("1 / ", ""))
} | {"32768 times": 32768.0, "1 / 32768": 1.0 / 32768.0}
_NAMED = 0.02
#: Share of its width by which a range may miss the scaled values before it counts as shifted.
_MOVED = 0.1
#: Steps of a grid that the values of a pixel cannot span, with some room for grids that do not meet.
_PIXELS = 1.1 * FULL_SPAN
#: Factor of a range over values from which on it is said what may have made it so.
_LARGER = 1.5
#: Share of a range that is as good as none, and activations without negative values that show how grids were chosen.
_AT_ZERO, _SIGNS_SHOWN = 0.02, 2
#: Operators whose results have a range by definition, which no calibration sets.
KNOWN_RANGE = ("Softmax", "Sigmoid", "HardSigmoid", "Tanh", "LogSoftmax")
#: Channels the other way round, and every other order than their own.
_REVERSED = (2, 1, 0)
_ORDERS = tuple(permutations(range(3)))[1:]
#: Another order of the channels fits their means and deviations so many times better: in pixels or shares of the range,
#: which no normalization changes; or reversed and as stored, where the features of the float network fit better, too.
#: Own first guesses. Of 8 to 200 healthy images of three networks, 98 % give at most 1.7 in pixels or shares.
_FITS_REORDERED, _FITS_REVERSED, _FEATURES_FIT = 3.0, 2.0, 1.2
#: R² from which a line through quantiles, or a line for each channel, is the relation of two sets; and from which a
#: line is near enough to have a name.
CERTAIN, _NEARLY = 0.98, 0.9
#: Relations by which one of both sets is prepared wrongly.
_DIFFERENT = ("scale", "offset", "not-normalized", "normalized-twice", "partly-normalized")
#: Factor and offset, in deviations, from which a line is not the identity.
_OFF_SCALE, _SHIFTED = 1.5, 0.5
#: Steps of two grids that differ by less than this share are those of one grid.
_SAME_GRID = 1e-3
#: Deviations of a channel may differ by this factor where one set is the other one, shifted.
_ALIKE = 1.5
#: |log| by which the width of a multiple may differ from its deviation, and how far, in deviations or in shares of its
#: mean, its zero may move.
_SHAPE, _SAME_ZERO = math.log(2.0), 0.5
#: Channels hold one value by chance where it is more likely than this that any does: flags that are rarely set.
_CHANCE = 0.02
#: Squared deviations by which a channel has to fit another one better than its own.
_REORDER_GAIN = 1e-6


def relation_facts(case: Case) -> RelationFacts:
    """The first input of both sets, or another one that differs for certain where the first does not."""
    mine, other = case.statistics.get("representative"), case.statistics.get("validation")
    first = case.record.input_tensor
    if mine is None or other is None or first is None:
        return RelationFacts()
    own = _facts_of_first(case, mine, other)
    inputs = [place for place, tensor in enumerate(case.record.tensors) if tensor.is_input and place != first]
    if not inputs:
        return own
    blamed = [fit for place in inputs if (fit := _fit_of_other(case, mine, other, place))]
    if own.kind in _DIFFERENT or not blamed:
        return own.model_copy(update={"input": case.record.tensors[first].float_name})
    return own.model_copy(update=max(blamed, key=lambda fit: (fit["scale_mismatch"], fit["offset_over_std"])))


def _fit_of_other(case: Case, mine: SetStatistics, other: SetStatistics, place: int) -> dict[str, Any]:
    """The line of an input besides the first, if it is certain and not the identity; else nothing.

    Samples are known by their first input alone, so the interval of the slope follows from their number.
    """
    views = mine.tensor(place), other.tensor(place)
    if not all(int(view.count.sum()) for view in views):
        return {}
    of_this = case.with_record(input_tensor=place)
    deviation = input_std(of_this, other)
    fit = _quantile_fit(of_this, mine, other, deviation) if deviation else {}
    width = 2.0 / math.sqrt(max(min(len(mine.samples), len(other.samples)), 1))
    if not _is_certain(fit):
        return {}
    slope, offset = fit["slope"], fit["offset"]
    is_scaled = abs(math.log(slope)) > max(math.log(_OFF_SCALE), width)
    if not is_scaled and fit["offset_over_std"] <= _SHIFTED:
        return {}
    count = max(int(views[1].count.sum()), 1)
    return fit | {
        **_undoing([(1.0 / slope, -offset / slope)]),
        "input": case.record.tensors[place].float_name,
        "input_mean": float((views[1].count * views[1].mean).sum()) / count,
        "input_std": deviation,
        "kind": _quantile_kind(*views, slope, offset) if is_scaled else "offset",
        "slope_low": slope * math.exp(-width),
        "slope_high": slope * math.exp(width),
    }


def _facts_of_first(case: Case, mine: SetStatistics, other: SetStatistics) -> RelationFacts:
    deviation = input_std(case, other)
    pooled = _quantile_fit(case, mine, other, deviation) if deviation else {}
    flips = _flip_facts(case, mine, other, pooled)
    fit = _fit(case, mine, other, pooled, flips.get("order") if flips.get("reordered") else None)
    sizes = len(mine.samples), len(other.samples)
    channels = _channel_facts(first_input(case, mine), first_input(case, other), sizes)
    return RelationFacts(**fit, **flips, **channels, **image_relation(mine, other))


def feature_excursion(mine: SetStatistics | None, other: SetStatistics | None) -> float | None:
    """Mean squared distance of a set's features from the mean of another's, in variances of that one."""
    if mine is None or other is None:
        return None
    spread, trace = trace_of(feature_covariance(mine)), trace_of(feature_covariance(other))
    distance = _feature_distance(mine.feature_sum, mine.feature_count, other)
    return None if distance is None or spread is None else ratio(distance**2 + spread, trace)


def _fit(
    case: Case, mine: SetStatistics, other: SetStatistics, pooled: dict[str, Any], order: Order | None
) -> dict[str, Any]:
    """The line between both sets, once the channels are in order: else it is fitted to the wrong ones.

    Channels that were turned before each place was normalized with its own numbers have one relation as stored: the
    same. Of these the grids of the places lead from one to the other.
    """
    deviation = input_std(case, other)
    if deviation == 0:  # constant inputs, or what a case says of them contradicts itself
        return {}
    stored = _lattice_fit(case, mine, other, deviation)
    if order is not None and stored is not None and stored["kind"] == "same":
        return stored | _lines_of_places(mine, other, order)
    if order is not None:
        mine = _turn_channels(case, mine, order)
        stored = _lattice_fit(case, mine, other, deviation)
    if stored is not None:
        return stored
    if _is_certain(pooled):
        return pooled
    apart = _channel_fit(case, mine, other, deviation)
    return apart or pooled


def _is_certain(fit: dict[str, Any]) -> bool:
    return fit.get("certainty", 0.0) > CERTAIN


def _turn_channels(case: Case, mine: SetStatistics, order: Order) -> SetStatistics:
    """The set with the channels of its first input in another order, as far as fits look at it."""
    assert case.record.input_tensor is not None
    rows, picked = mine.rows(case.record.input_tensor), list(order)
    columns = {name: column.copy() for name, column in mine.columns.items()}
    for column in columns.values():
        column[rows] = column[rows][picked]
    return replace(mine, columns=columns, lattice=[mine.lattice[c] for c in order])


def _lattice_fit(case: Case, mine: SetStatistics, other: SetStatistics, deviation: float) -> dict[str, Any] | None:
    pairs = [(lattice_of(a), lattice_of(b)) for a, b in zip(mine.lattice, other.lattice, strict=True)]
    if not pairs or any(a is None or b is None for a, b in pairs):
        return None
    grids = [(a, b) for a, b in pairs if a is not None and b is not None]
    slopes = [a[0] / b[0] for a, b in grids]
    offsets = [_offset(a, b) for a, b in grids]
    # Where the channels agree in slope, they differ by their offset alone.
    deviations = offsets if max(slopes) < 1.01 * min(slopes) else [math.log(slope) for slope in slopes]
    worst = max(range(len(slopes)), key=lambda c: abs(deviations[c]))
    mismatch = max(slopes[worst], 1 / slopes[worst])
    shifted = [
        abs(o) / deviation if abs(o) > _SHIFT_STEPS * a[0] else 0.0 for o, (a, _) in zip(offsets, grids, strict=True)
    ]
    kind = _lattice_kind(grids, slopes, max(shifted), _are_alike(case, mine, other) or _is_out_of_pixels(grids))
    return {
        "method": "lattice",
        "slope": slopes[worst],
        "slope_low": slopes[worst],
        "slope_high": slopes[worst],
        "scale_mismatch": mismatch,
        "offset": offsets[worst],
        "offset_over_std": max(shifted),
        "kind": kind,
        "reading": _describe_preprocessing(grids),
        "certainty": 1.0,
        **(_undoing(_lines_between([a[:2] for a, _ in grids], [b[:2] for _, b in grids])) if kind != "same" else {}),
    }


def _lines_between(mine: Lines, other: Lines) -> Lines:
    """Slope and offset from each channel's grid, given as (step, lowest point), to that of the other set."""
    columns = zip(mine, other, strict=True)
    return [(step / own, low - own_low * step / own) for (own, own_low), (step, low) in columns]


def _lines_of_places(mine: SetStatistics, other: SetStatistics, order: Order) -> dict[str, Any]:
    """Lines of turned channels to the grids of the places that they come to; none where all have one grid."""
    both = [lattices_of(statistics) for statistics in (mine, other)]
    grids = [(a[0], min(a[1], b[1])) for a, b in zip(*both, strict=True)]
    lines = _lines_between([grids[c] for c in order], grids)
    return {} if np.allclose(lines, (1.0, 0.0), atol=_SAME_GRID) else _undoing(lines)


def _undoing(lines: Lines) -> dict[str, tuple[float, ...]]:
    """Facts of the lines that lead from the representative to the validation inputs."""
    slopes, offsets = zip(*lines, strict=True)
    return {"undoing_slopes": slopes, "undoing_offsets": offsets}


def _offset(mine: Lattice, other: Lattice) -> float:
    """Offset of the lattice ``mine`` against ``other`` after scaling.

    A set that never shows the darkest or brightest pixels spans less of the same grid: where the points coincide, only
    what sticks out at one end counts.
    """
    step, low, span = mine
    at_low = low - step / other[0] * other[1]
    at_high = at_low + step * (span - other[2])
    steps = at_low / step
    if abs(steps - round(steps)) > 0.1:
        return at_low
    if at_low * at_high <= 0:
        return 0.0
    return min(at_low, at_high, key=abs)


def _describe_preprocessing(grids: Sequence[tuple[Lattice, Lattice]]) -> str | None:
    """Both sets' preprocessing in words, where their lattices span all of a pixel's 256 values."""
    if any(span < FULL_SPAN for pair in grids for _, _, span in pair):
        return None
    mine, other = ([pair[i][:2] for pair in grids] for i in (0, 1))
    return f"representative = {_formula(mine)}, validation = {_formula(other)}"


def _formula(grids: list[tuple[float, float]]) -> str:
    """(x / 255 - mean) / std, or shorter, of lattices given as (step, lowest point) per channel."""
    if all(abs(low) < step / 2 for step, low in grids):
        divisors = [1.0 / step for step, _ in grids]
        return "x" if all(abs(d - 1) < 0.005 for d in divisors) else f"x / {_write_numbers(divisors)}"
    if all(abs(low + 1) < step / 2 for step, low in grids):
        return f"x / {_write_numbers([1.0 / step for step, _ in grids])} - 1"
    deviations = [1.0 / (255.0 * step) for step, _ in grids]
    means = [-low * std for (_, low), std in zip(grids, deviations, strict=True)]
    return f"(x / 255 - {_write_numbers(means)}) / {_write_numbers(deviations)}"


def _write_numbers(values: list[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"


def _are_alike(case: Case, mine: SetStatistics, other: SetStatistics) -> bool:
    """The channels vary alike in both sets, which a mere shift does not change."""
    a, b = (channel_moments(first_input(case, statistics))[1] for statistics in (mine, other))
    return bool((np.maximum(a, b) <= _ALIKE * np.minimum(a, b)).all())


def _is_out_of_pixels(grids: Sequence[tuple[Lattice, Lattice]]) -> bool:
    """Some channel spans more of its grid, both sets together, than the values of a pixel do: one of them was moved."""
    spans = [max(a[1] + a[0] * a[2], b[1] + b[0] * b[2]) - min(a[1], b[1]) for a, b in grids]
    return any(span > _PIXELS * a[0] for span, (a, _) in zip(spans, grids, strict=True))


def _lattice_kind(grids: Sequence[tuple[Lattice, Lattice]], slopes: list[float], shift: float, are_alike: bool) -> str:
    """Name of the relation of both lattices; of equal steps it is a shift only where the values show that, too."""
    same_scale = all(abs(slope - 1) < 0.01 for slope in slopes)
    if same_scale:
        return "offset" if shift > 0.1 and are_alike else "same"
    mine, other = zip(*grids, strict=True)
    if are_pixels(mine, 1.0):
        return "not-normalized"
    if are_pixels(mine, 1 / 255) and not are_pixels(other, 1.0):
        return "partly-normalized"
    twice = all(any(abs(a[0] / (b[0] * b[0] * k) - 1) < 0.01 for k in (1.0, 255.0)) for a, b in grids)
    return "normalized-twice" if twice else "scale"


def _quantile_fit(case: Case, mine: SetStatistics, other: SetStatistics, deviation: float) -> dict[str, Any]:
    """Line through 99 quantiles of the two inputs; the sets are not paired, only alike."""
    views = first_input(case, mine), first_input(case, other)
    curves = []
    for view in views:
        bins = bins_of_view(view)
        if bins is None:
            return {}
        curves.append(np.array([bins.quantile(q) for q in np.arange(0.01, 1.0, 0.01)]))
    y, x = curves
    spread = float(((x - x.mean()) ** 2).sum())
    if spread <= 0 or float(y.std()) <= 0:
        return {}
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    offset = float(y.mean() - slope * x.mean())
    residual = float(((y - slope * x - offset) ** 2).sum())
    certainty = 1.0 - residual / float(((y - y.mean()) ** 2).sum())
    low, high = _slope_interval(mine.samples, other.samples)
    if slope <= 0:
        return {}
    line = _line_facts(views, slope, (low, high), offset, abs(offset) / deviation)
    if line["kind"] == "same":
        undoing = {}
    elif certainty > _NEARLY:
        undoing = _undoing([(1.0 / slope, -offset / slope)])
    else:
        undoing, line["kind"] = {}, "unexplained"
    return {**undoing, **line, "method": "quantiles", "certainty": certainty}


def _line_facts(
    views: tuple[TensorStatistics, TensorStatistics],
    slope: float,
    interval: tuple[float, float],
    offset: float,
    shift: float,
) -> dict[str, Any]:
    """What is said of a line from the inputs of one set to those of another; ``shift`` in deviations."""
    low, high = interval
    mismatch = max(slope, 1 / slope)
    kind = "offset" if shift > _SHIFTED else "same"
    if mismatch > _OFF_SCALE and not low <= 1 <= high:
        kind = _quantile_kind(*views, slope, offset)
    return {
        "slope": slope,
        "slope_low": low,
        "slope_high": high,
        "scale_mismatch": mismatch,
        "offset": offset,
        "offset_over_std": shift,
        "kind": kind,
    }


def _channel_fit(case: Case, mine: SetStatistics, other: SetStatistics, deviation: float) -> dict[str, Any]:
    """A line for each channel of colour images, through their extremes; mean and deviation have to lie on it, too.

    Resized photographs have left the grid of their pixels and still reach from black to white. The certainty is 1 less
    the squared distance of means and logarithms of deviations from the lines, in deviations, over all channels.
    """
    a, b = (first_input(case, statistics) for statistics in (mine, other))
    if not case.record.image_input or len(a.mean) != 3 or not a.count.all() or not b.count.all():
        return {}
    (mean, std), (other_mean, scale) = (channel_moments(view) for view in (a, b))
    if not ((std > 0).all() and (scale > 0).all()):
        return {}
    slopes = (a.max - a.min) / (b.max - b.min)
    offsets = a.min - slopes * b.min
    moved, widened = ((mean - offsets) / slopes - other_mean) / scale, np.log(std / (slopes * scale))
    certainty = 1.0 - float((moved**2 + widened**2).mean())
    if not certainty > CERTAIN:
        return {}
    worst = int(np.argmax(np.abs(np.log(slopes))))
    slope, offset = float(slopes[worst]), float(offsets[worst])
    shift = float(np.max(np.abs(offsets)) / deviation)
    spread = np.array(_slope_interval(mine.samples, other.samples)) / (input_std(case, mine) / deviation)
    low, high = (slope * spread).tolist()
    line = _line_facts((a, b), slope, (low, high), offset, shift)
    lines = list(zip((1.0 / slopes).tolist(), (-offsets / slopes).tolist(), strict=True))
    undoing = _undoing(lines) if line["kind"] != "same" else {}
    return {**undoing, **line, "method": "channels", "certainty": certainty}


def _quantile_kind(mine: TensorStatistics, other: TensorStatistics, slope: float, offset: float) -> str:
    """Name of a relation between inputs of different scale: known when one side holds pixels, or twice the same map."""
    low, high = float(mine.min.min()), float(mine.max.max())
    other_low, other_high = float(other.min.min()), float(other.max.max())
    if low >= 0.0 and 1.1 * FULL_SPAN > high > 0.4 * FULL_SPAN and other_high < 0.1 * FULL_SPAN:
        return "not-normalized"
    if low >= 0.0 and 1.1 > high > 0.4 and other_low < 0.0:
        return "partly-normalized"
    # Pixels of 0 … 1 mapped by x / s - m / s span 1 / s from -m / s on; once more, this is slope and offset.
    span = other_high - other_low
    twice = abs(slope / span - 1.0) < _TWICE
    # Without an offset, a mere factor looks the same.
    shifted = abs(other_low) > 2 * _TWICE * span
    return "normalized-twice" if twice and shifted and abs(offset - other_low) < _TWICE * span else "scale"


def _by_content(samples: SampleTable) -> SampleTable:
    """Samples by content hash, so that what is resampled does not depend on the order of the data."""
    return samples[np.argsort(samples["hash"], kind="stable")]


def _slope_interval(mine: SampleTable, other: SampleTable) -> tuple[float, float]:
    """95 % interval of the ratio of the sets' deviations, by a seeded bootstrap over samples."""
    rng = np.random.default_rng(0)

    def deviations(rows: SampleTable) -> NDArray[np.float64]:
        picks = rng.integers(0, len(rows), (_BOOTSTRAP, min(len(rows), 1024)))
        means, squares = rows["mean"].astype(np.float64)[picks], rows["deviation"].astype(np.float64)[picks] ** 2
        found: NDArray[np.float64] = np.sqrt(squares.mean(axis=1) + means.var(axis=1))
        return found

    bottom = deviations(_by_content(other))
    ratios = deviations(_by_content(mine)) / np.where(bottom > 0, bottom, np.nan)
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return 0.0, math.inf
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _flip_facts(case: Case, mine: SetStatistics, other: SetStatistics, pooled: dict[str, Any]) -> dict[str, Any]:
    a, b = (first_input(case, statistics) for statistics in (mine, other))
    if not case.record.image_input or len(a.mean) != 3 or not a.count.all() or not b.count.all():
        return {}
    moments = [channel_moments(view) for view in (a, b)]
    if not (moments[1][1] > 0).all():
        return {}
    straight = _feature_distance(mine.feature_sum, mine.feature_count, other)
    flipped = _feature_distance(mine.flipped_sum, mine.flipped_count, other)
    distance, _ = _order_ratio(moments[0], moments[1], [_REVERSED])
    features = ratio(straight, flipped)
    in_pixels, best = _order_in_pixels(mine, other, moments) or _order_in_range((a, b), moments, pooled)
    by_pixels = (in_pixels or 0.0) > _FITS_REORDERED
    by_features = (distance or 0.0) > _FITS_REVERSED and (None if features is None else features > _FEATURES_FIT)
    return {
        "reordered": by_pixels or by_features,
        "order": best if by_pixels else _REVERSED,
        "flipped_distance_ratio": distance,
        "flipped_pixel_ratio": in_pixels,
        "flipped_fit_ratio": max((found for found in (distance, in_pixels) if found is not None), default=None),
        "flipped_feature_ratio": features,
    }


def _order_in_pixels(
    mine: SetStatistics, other: SetStatistics, moments: list[ChannelMoments]
) -> tuple[float | None, Order] | None:
    """The best order of moments in pixels, (value - lowest point) / step; None where a set is on no lattice."""
    lattices = [lattices_of(statistics) for statistics in (mine, other)]
    if any(len(grids) != 3 for grids in lattices):
        return None
    columns = [np.array(grids).T for grids in lattices]
    a, b = (((mean - low) / step, std / step) for (mean, std), (step, low, _) in zip(moments, columns, strict=True))
    return _order_ratio(a, b, _ORDERS)


def _order_in_range(
    views: tuple[TensorStatistics, ...], moments: list[ChannelMoments], pooled: dict[str, Any]
) -> tuple[float | None, Order]:
    """The best order of moments in shares of each channel's range, which no scaling of a channel changes.

    Channels that are about multiples of each other look alike then. Where the shares leave it open, what tells is
    whether a single line leads to the other set.
    """
    widths = [np.where(view.max > view.min, view.max - view.min, 1.0) for view in views]
    columns = zip(views, moments, widths, strict=True)
    mine, other = (((mean - view.min) / width, std / width) for view, (mean, std), width in columns)
    found, best = _order_ratio(mine, other, _ORDERS)
    if found is None or not 1 / _ALIKE < found < _FITS_REORDERED or not _is_certain(pooled):
        return found, best
    (mean, std), slope = moments[0], pooled["slope"]
    return _order_ratio(((mean - pooled["offset"]) / slope, std / slope), moments[1], _ORDERS)


def _order_ratio(mine: ChannelMoments, other: ChannelMoments, orders: Sequence[Order]) -> tuple[float | None, Order]:
    """Distance of mean and deviation per channel, as they are over that in the best of these orders, and that."""
    (mean, std), (other_mean, scale) = mine, other

    def distance(order: Sequence[int]) -> float:
        picked = list(order)
        return float(np.linalg.norm([(mean[picked] - other_mean) / scale, std[picked] / scale - 1.0]))

    best = min(orders, key=distance)
    return ratio(distance(range(len(scale))), distance(best)), best


def _channel_facts(mine: TensorStatistics, other: TensorStatistics, sizes: tuple[int, int]) -> dict[str, Any]:
    """Channel against channel: which hold one value, which are multiples of what they should be, and their order.

    ``sizes`` are the numbers of samples of both sets.
    """
    if not 1 < len(mine.mean) == len(other.mean) or not mine.count.all() or not other.count.all():
        return {}
    (mean, std), (other_mean, scale) = (channel_moments(view) for view in (mine, other))
    dead = (mine.min == mine.max) & (other.min < other.max)
    dead[dead] = _chance_of_one_value(mine.min, other, sizes)[dead] * len(dead) < _CHANCE
    seen = (std > 0.0) & (scale > 0.0)
    factors = np.divide(std, scale, out=np.ones_like(std), where=seen)
    widths = np.divide(mine.max - mine.min, (other.max - other.min) * factors, out=np.ones_like(std), where=seen)
    apart = np.abs(mean - factors * other_mean) / np.maximum(np.where(seen, std, 1.0), np.abs(mean))
    # A multiple keeps the shape of the distribution, and its zero.
    multiples = seen & (np.abs(np.log(widths)) < _SHAPE) & (apart < _SAME_ZERO)
    usual = float(np.median(factors[seen])) if seen.any() else 1.0
    larger = np.divide(_steady_deviation(mine), scale * usual, out=np.ones_like(std), where=multiples)
    smaller = np.divide(_steady_deviation(other) * usual, std, out=np.ones_like(std), where=multiples)
    mismatch = np.maximum(np.maximum(larger, smaller), 1.0)
    odd = np.flatnonzero(mismatch > mismatch.max() ** 0.5).tolist() if mismatch.max() > 1.0 else []
    return {
        "constant_channels": int(dead.sum()),
        "channel_scale_mismatch": float(mismatch.max()),
        "channel_reading": f"{', '.join(map(str, np.flatnonzero(dead).tolist() if dead.any() else odd)) or 'none'}",
        **(_order_facts((mean, std), (other_mean, scale)) if seen.all() else {}),
    }


def _chance_of_one_value(
    value: NDArray[np.float64], other: TensorStatistics, sizes: tuple[int, int]
) -> NDArray[np.float64]:
    """How likely at most, were both sets drawn alike, that all samples with another value fell into the other set.

    Moments and extremes bound from below how many these are: of a column of zeros and ones they count them.
    """
    shift, reach = np.abs(other.mean - value), np.maximum(np.abs(other.max - value), np.abs(other.min - value))
    power = other.m2 / other.count + shift**2
    share = np.zeros_like(power)
    np.divide(power, reach**2, out=share, where=power > 0.0)
    share = np.maximum(share, np.divide(shift**2, power, out=np.zeros_like(power), where=power > 0.0))
    chance: NDArray[np.float64] = (sizes[1] / max(sum(sizes), 1)) ** (share * sizes[1])
    return chance


def _steady_deviation(tensor: TensorStatistics) -> NDArray[np.float64]:
    """Deviation of each channel without the value that is furthest out, which may be there by chance."""
    furthest = np.maximum(tensor.max - tensor.mean, tensor.mean - tensor.min) ** 2
    left: NDArray[np.float64] = np.sqrt(np.maximum(tensor.m2 - furthest, 0.0) / tensor.count)
    return left


def _order_facts(mine: ChannelMoments, other: ChannelMoments) -> dict[str, float]:
    """How much better channels fit those of the other set in another order, in deviations per channel."""
    (mean, std), (other_mean, scale) = mine, other
    cost = ((mean[:, None] - other_mean) / scale) ** 2 + np.log(std[:, None] / scale) ** 2
    own = np.diag(cost)
    straight = best = float(np.mean(own))
    if (cost.min(axis=1) < own - _REORDER_GAIN).any():
        # Takes 0.2 seconds to import, and is needed only where a channel fits another one better than its own.
        best = float(np.mean(cost[import_module("scipy.optimize").linear_sum_assignment(cost)]))
    return {"channel_distance": straight**0.5, "ordered_channel_distance": best**0.5}


def _feature_distance(total: NDArray[np.float64], count: int, other: SetStatistics) -> float | None:
    if not count or not other.feature_count:
        return None
    return float(np.linalg.norm(total / count - other.feature_sum / other.feature_count))


# --- The recorded ranges of the inputs --------------------------------------------------------------------------------


def input_range_facts(case: Case, tensors: Sequence[TensorFacts], role: Role) -> dict[str, Any]:
    """Fields of ``DatasetFacts`` that set the range of a quantized network input against the values of a data set.

    Of several inputs that one counts whose range fits least.
    """
    found, by_sign = [], _follow_signs(tensors, role)
    for place, source in _first_grids(case, tensors).items():
        facts = _input_range(tensors[place], getattr(tensors[place], role), tensors[source], role, by_sign=by_sign)
        if facts is not None:
            found.append(facts)
    return max(found, key=_misfit, default={})


def _first_grids(case: Case, tensors: Sequence[TensorFacts]) -> dict[int, int]:
    """The first quantized tensors on the ways from the inputs, before any layer with weights.

    Each with the tensor that its range is to cover: parts of a tensor are rounded to the grid of the whole.
    """
    sources = {i: i for i, tensor in enumerate(tensors) if tensor.producer == "Input"}
    for op in case.record.operators:
        read = [i for i in op.inputs if i in sources and tensors[i].quantizer.scale is None]
        if op.is_compute or not read or len(read) < len(op.inputs) or op.op_type in KNOWN_RANGE:
            continue
        whole = sources[read[0]] if op.op_type in MOVING else None
        sources |= {i: i if whole is None else whole for i in op.outputs if i is not None}
    return {i: source for i, source in sources.items() if tensors[i].quantizer.scale is not None}


def _follow_signs(tensors: Sequence[TensorFacts], role: Role) -> bool:
    """Activations that are never negative have grids that begin at zero: none is symmetric but for its values."""
    ends = [
        (tensor.quantizer.low, tensor.quantizer.high)
        for tensor in tensors
        if tensor.producer != "Input"
        and tensor.producer not in KNOWN_RANGE
        and getattr(tensor, role).values.min == 0.0
        and tensor.quantizer.high is not None
    ]
    return len(ends) >= _SIGNS_SHOWN and all(low is not None and low >= -_AT_ZERO * high for low, high in ends)


def _input_range(
    tensor: TensorFacts, data: TensorDataFacts, source: TensorFacts, role: Role, *, by_sign: bool
) -> dict[str, Any] | None:
    """The range against the values of the whole; None where one of them is not known.

    Where grids follow the sign of what they hold, one that reaches as far to either side is no choice of the toolchain.
    """
    quantizer, values = tensor.quantizer, getattr(source, role).values
    if quantizer.dynamic or quantizer.low is None or quantizer.high is None or not quantizer.scale:
        return None
    if values.min is None or values.max is None or values.min == values.max == 0.0:
        return None
    low, high = quantizer.low, quantizer.high
    ranges = [(low, high)]
    if quantizer.symmetric and low < 0:
        ranges = [(min(low, -high), max(-low, high))]
    elif quantizer.bits:
        codes = 2**quantizer.bits
        ranges.append((low, low + (high - low) * (codes // 2 - 1) / (codes - 1)))
    fits = [_fit_range(each, (values.min, values.max), quantizer.scale) for each in ranges]
    factor, moved = next((fit for fit in fits if not fit[1]), fits[0])
    if not 0 < factor < math.inf:  # a range that is none, as a damaged case says
        return None
    beyond = f", offset {moved:.3g}" if moved else ""
    if factor > _LARGER and not moved:
        beyond = "; a single calibration sample that is so much larger gives the same range"
    return {
        "input_range_ratio": factor,
        "input_clipped_share": data.clipping.share,
        "input_unused_side": _unused_side(
            low, high, (values.min, values.max), symmetric=quantizer.symmetric, by_sign=by_sign
        ),
        "input_fit_reading": f"{source.float_name or source.name} is quantized from {low:.4g} to {high:.4g}, and these "
        f"samples span {values.min:.4g} to {values.max:.4g}",
        "input_range_reading": f"{source.float_name or source.name} is quantized from {low:.4g} to {high:.4g}, these "
        f"samples span {values.min:.4g} to {values.max:.4g} (range {_factor_text(factor)}{beyond})",
    }


def _unused_side(
    low: float, high: float, values: tuple[float, float], *, symmetric: bool | None, by_sign: bool
) -> float | None:
    """Share of the range on a side of zero that no value reaches; None of a grid that is symmetric by choice."""
    if symmetric is not False and not by_sign:
        return None
    width = high - low
    below = -low if values[0] > -_AT_ZERO * width else 0.0
    above = high if values[1] < _AT_ZERO * width else 0.0
    return max(below, above, 0.0) / width


def _fit_range(grid: tuple[float, float], values: tuple[float, float], step: float) -> tuple[float, float]:
    """Factor of a range over values, both with 0.0, which every grid holds, and by how much it is moved besides.

    A range that is as wide on either side of 0.0 is held against the largest magnitude.
    """
    low, high = min(values[0], 0.0), max(values[1], 0.0)
    if grid[0] == -grid[1]:
        return grid[1] / max(-low, high), 0.0
    factor = (grid[1] - grid[0]) / (high - low)
    moved = grid[0] - factor * low
    return factor, moved if abs(moved) > max(_MOVED * (grid[1] - grid[0]), 2.0 * step) else 0.0


def _misfit(facts: dict[str, Any]) -> tuple[float, float]:
    return facts["input_clipped_share"] or 0.0, abs(math.log(facts["input_range_ratio"]))


def _factor_text(factor: float) -> str:
    """A factor by its name where preprocessing has one."""
    named = next((text for text, value in KNOWN_FACTORS.items() if abs(factor / value - 1.0) < _NAMED), None)
    return named or (f"{factor:.3g} times" if factor >= 0.1 else f"1 / {1 / factor:.3g}")
