"""Distributions and channels as a reader looks at them, of many tensors at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import QuantizerFacts, Role, TensorFacts, WeightFacts
from quantmedic.engine.case.histogram import BINS, HIGH, LOW, ORDER, BinTable
from quantmedic.engine.case.records import Case, WeightArrays
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.formulas.error_facts import AUDIBLE
from quantmedic.engine.formulas.stored_bins import bin_tables, main_role, seen_tensors, tensor_bins
from quantmedic.engine.json_record import Contract

#: Even bins of a distribution.
SPREAD_BINS = 64
#: Channels that are looked at one by one.
CHANNELS = 256
#: Deployed values lie on their grid up to the rounding of their own float32: this part of a step.
_OFF_GRID = 1e-3
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Two distributions over the same even bins, and the range of the quantizer.

    ``floats`` and ``quantized`` are counts; the latter None where the quantized values were not counted. They may stand
    for different numbers of values, so that shares are compared. A quantized value stands for the step around it, half
    a step to either side, so that the bins may reach beyond the float values: these end at ``lowest`` and ``highest``,
    None where that is not known.
    """

    start: float
    stop: float
    floats: tuple[int, ...]
    quantized: tuple[int, ...] | None
    low: float | None
    high: float | None
    clipped_share: float | None
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True)
class Channels:
    """Extremes and SQNR per channel, the worst first; lists of one length, of ``total`` channels at most ``CHANNELS``.

    Of activations, channels too quiet to be judged come last, and the SQNR is that of the accumulated error.
    ``quantized_low`` and ``quantized_high`` are None where those extremes were not measured. ``heights`` holds a
    histogram per channel, over even bins from ``start`` to ``stop``: 255 for the channel's fullest bin, 0 for empty
    ones; None where values were not counted by channel.
    """

    index: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sqnr_db: tuple[float | None, ...]
    quantized_low: tuple[float, ...] | None = None
    quantized_high: tuple[float, ...] | None = None
    total: int = 0
    heights: tuple[tuple[int, ...], ...] | None = None
    start: float = 0.0
    stop: float = 0.0


class Histogram(Contract):
    """Distribution of a flagged tensor, at most 64 bins, with the range of its quantizer."""

    layer: str
    dataset: Role
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    low: float | None
    high: float | None


def tensor_spreads(
    case: Case, role: Role, indices: Sequence[int], clipped: Mapping[int, float | None]
) -> dict[int, Spread]:
    """Distributions of activations on one data set, of those of which more than one value was seen.

    Args:
        case: The case.
        role: The data set.
        indices: Places of the tensors in the case's table.
        clipped: Share of the elements outside the quantizer's range, by tensor.
    """
    statistics = case.statistics[role]
    counted = statistics.quantized_histograms
    seen = set(seen_tensors(statistics))
    found = {}
    for part, floats in bin_tables(case, role, [index for index in indices if index in seen]):
        quantizers = [case.record.tensors[index].quantizer for index in part]
        start, stop = floats.lowest, floats.highest
        places = [place for place, index in enumerate(part) if index in counted and counted[index].any()]
        stored = None
        if places:
            bins = _stored_bins([counted[part[place]] for place in places])
            stored = _within(
                _on_steps(bins, [quantizers[place].scale for place in places]),
                [quantizers[place] for place in places],
            )
            start, stop = start.copy(), stop.copy()
            start[places] = np.minimum(start[places], stored.lowest)
            stop[places] = np.maximum(stop[places], stored.highest)
        float_counts = even_counts(floats, start, stop)
        stored_counts = even_counts(stored, start[places], stop[places]) if stored is not None else None
        rows = {place: row for row, place in enumerate(places)}
        for place, index in enumerate(part):
            if not stop[place] > start[place]:
                continue
            own = stored_counts[rows[place]] if stored_counts is not None and place in rows else None
            found[index] = Spread(
                start=float(start[place]),
                stop=float(stop[place]),
                floats=tuple(float_counts[place].tolist()),
                quantized=tuple(own.tolist()) if own is not None else None,
                low=quantizers[place].low,
                high=quantizers[place].high,
                clipped_share=clipped.get(index),
                lowest=float(floats.lowest[place]),
                highest=float(floats.highest[place]),
            )
    return found


def even_counts(bins: BinTable, start: Floats, stop: Floats) -> NDArray[np.int64]:
    """Values of each tensor in even bins from its ``start`` to its ``stop``; shape ``[tensors, SPREAD_BINS]``.

    Values are spread evenly within the stored bins; those that are alone in theirs stay where they are.
    """
    tensors = len(bins.start) - 1
    owner, base = bins.owner, np.arange(tensors) * SPREAD_BINS
    width = np.where(stop > start, stop - start, 1.0)
    low, high = (
        np.clip((ends - start[owner]) / width[owner] * SPREAD_BINS, 0.0, SPREAD_BINS) for ends in (bins.low, bins.high)
    )
    places = np.minimum(low.astype(np.int64), SPREAD_BINS - 1) + base[owner]
    points = np.bincount(places, np.where(bins.narrow, bins.count, 0.0), tensors * SPREAD_BINS)
    # The rest has a cumulative distribution in straight pieces, one tensor after another.
    counts = np.where(bins.narrow, 0.0, bins.count)
    ends = np.stack([low, high], axis=1) + base[owner, None]
    summed = np.cumsum(counts)
    before = np.stack([summed - counts, summed], axis=1)
    edges = np.arange(tensors * SPREAD_BINS + 1)
    pieces = np.interp(edges, np.maximum.accumulate(ends.ravel()), before.ravel())
    below = np.append(0.0, np.cumsum(points)) + pieces
    counts_of_bins: NDArray[np.int64] = np.diff(np.round(below)).astype(np.int64)
    return counts_of_bins.reshape(tensors, SPREAD_BINS)


def _stored_bins(counts: Sequence[NDArray[np.int64]]) -> BinTable:
    """Bins of count arrays whose extremes are not known; none of the arrays is empty."""
    table = np.stack(counts)
    table[:, 0] += table[:, BINS // 2]
    table[:, BINS // 2] = 0
    ordered = table[:, ORDER]
    owner, place = np.nonzero(ordered)
    start = np.searchsorted(owner, np.arange(len(counts) + 1))
    return BinTable(LOW[ORDER][place], HIGH[ORDER][place], ordered[owner, place].astype(np.float64), start)


def _on_steps(bins: BinTable, scales: Sequence[float | None]) -> BinTable:
    """Bins of values on a grid through 0: each from half a step below its first grid point to half a step above its
    last. Bins without a grid point stay as they are.
    """
    step = np.array([scale or np.nan for scale in scales])[bins.owner]
    with np.errstate(all="ignore"):
        # The end farther from 0 belongs to the next bin.
        inner, outer = np.minimum(np.abs(bins.low), np.abs(bins.high)), np.maximum(np.abs(bins.low), np.abs(bins.high))
        first = np.ceil(inner / step - _OFF_GRID)
        last = np.where(outer > 0, np.ceil(outer / step - _OFF_GRID) - 1, 0)
    on_grid = last >= first
    near = np.where(on_grid, np.where(outer > 0, first - 0.5, -0.5) * step, inner)
    far = np.where(on_grid, (last + 0.5) * step, outer)
    negative = bins.low < 0
    return BinTable(np.where(negative, -far, near), np.where(negative, -near, far), bins.count, bins.start)


def _within(bins: BinTable, quantizers: Sequence[QuantizerFacts]) -> BinTable:
    """Bins of deployed values, none of which lies beyond the range of its quantizer and half a step around it."""
    ends = np.array(
        [(-np.inf, np.inf) if None in (q.low, q.high) else _reach(q) for q in quantizers], np.float64
    ).reshape(-1, 2)[bins.owner]
    # Where a bin has no part inside, the record does not fit the values: they are shown where they are.
    inside = (bins.low < ends[:, 1]) & (bins.high > ends[:, 0])
    low, high = np.maximum(bins.low, ends[:, 0]), np.minimum(bins.high, ends[:, 1])
    return BinTable(np.where(inside, low, bins.low), np.where(inside, high, bins.high), bins.count, bins.start)


def _reach(quantizer: QuantizerFacts) -> tuple[float, float]:
    around = (quantizer.scale or 0.0) / 2
    return (quantizer.low or 0.0) - around, (quantizer.high or 0.0) + around


def tensor_channels(statistics: SetStatistics, indices: Sequence[int]) -> dict[int, Channels]:
    """Channels of activations that have several, of those of which something finite was seen."""
    columns, offsets = statistics.columns, statistics.offsets
    counts = np.diff(offsets)
    wanted = [index for index in indices if counts[index] > 1]
    rows = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in wanted] or [np.zeros(0, np.int64)])
    owner = np.repeat(np.arange(len(wanted)), counts[wanted])
    seen = columns["count"][rows] > 0
    rows, owner = rows[seen], owner[seen]
    if not len(rows):
        return {}
    power, square = columns["accumulated.power"][rows], columns["accumulated.square"][rows]
    measured = columns["accumulated.count"][rows] > 0
    with np.errstate(all="ignore"):
        level = np.where(measured & (power > 0), sqnr_db(power, square), np.nan)
    loudest = np.zeros(len(wanted))
    np.maximum.at(loudest, owner, power)
    quiet = power <= AUDIBLE * loudest[owner]
    order = np.lexsort((level, np.isnan(level), quiet, owner))
    starts = np.searchsorted(owner, np.arange(len(wanted) + 1))
    found = {}
    for place, index in enumerate(wanted):
        own = order[starts[place] : min(starts[place + 1], starts[place] + CHANNELS)]
        if not len(own):
            continue
        found[index] = Channels(
            index=tuple((rows[own] - offsets[index]).tolist()),
            low=tuple(columns["min"][rows[own]].tolist()),
            high=tuple(columns["max"][rows[own]].tolist()),
            sqnr_db=_none_for_nan(level[own]),
            total=int(counts[index]),
        )
    return found


def weight_spread(arrays: WeightArrays, quantizer: QuantizerFacts) -> Spread | None:
    """Distribution of the weights of one operator; None where all are equal."""
    if not arrays.stop > arrays.start:
        return None
    return Spread(
        start=arrays.start,
        stop=arrays.stop,
        floats=tuple(arrays.floats.tolist()),
        quantized=tuple(arrays.stored.tolist()),
        low=quantizer.low,
        high=quantizer.high,
        clipped_share=None,
    )


def weight_channels(arrays: WeightArrays, weight: WeightFacts) -> Channels | None:
    """Output channels of the weights of one operator."""
    if not len(arrays.index):
        return None
    order = np.argsort(arrays.sqnr_db, kind="stable")[:CHANNELS]  # NaN comes last
    return Channels(
        index=tuple(arrays.index[order].tolist()),
        low=tuple(arrays.low[order].tolist()),
        high=tuple(arrays.high[order].tolist()),
        sqnr_db=_none_for_nan(arrays.sqnr_db[order]),
        quantized_low=tuple(arrays.stored_low[order].tolist()),
        quantized_high=tuple(arrays.stored_high[order].tolist()),
        total=max(weight.channels or 0, len(arrays.index)),
        heights=tuple(map(tuple, arrays.heights[order].tolist())) if arrays.heights is not None else None,
        start=arrays.start,
        stop=arrays.stop,
    )


def _none_for_nan(levels: Floats) -> tuple[float | None, ...]:
    return tuple(None if level != level else level for level in levels.tolist())


def display_histogram(case: Case, tensor: TensorFacts) -> Histogram | None:
    """At most 64 even bins of a tensor's values, for the report; counts are spread evenly within stored bins."""
    index = next((i for i, t in enumerate(case.record.tensors) if t.name == tensor.name), None)
    role = main_role(case)
    bins = tensor_bins(case, role, index) if index is not None else None
    if bins is None or bins.high[-1] <= bins.low[0]:
        return None
    edges = np.linspace(bins.low[0], bins.high[-1], SPREAD_BINS + 1)
    below = bins.total * (1.0 - bins.repeat(len(edges)).shares_above(edges))
    below[0] = 0.0
    counts = np.diff(np.round(below)).astype(int)
    return Histogram(
        layer=tensor.producer_name or tensor.float_name or "?",
        dataset=role,
        edges=tuple(float(e) for e in edges),
        counts=tuple(int(c) for c in np.maximum(counts, 0)),
        low=tensor.quantizer.low,
        high=tensor.quantizer.high,
    )
