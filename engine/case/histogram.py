"""Histogram over the leading bits of a float32: no range is needed, and merging is addition.

A bin is ``bits >> 20``: sign, 8 exponent bits and 3 mantissa bits, hence 4096 bins whose width is at most 1/8 of
their lower edge. Bins 0 and 2048 hold exact zeros (and denormals, which count as zeros here).
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 4096
SHIFT = 20
#: Bins from here on, of each sign, hold what is not finite.
NONFINITE = 0x7F800000 >> SHIFT


def _bin_edges() -> tuple[Floats, Floats]:
    half = np.arange(BINS // 2, dtype=np.uint32) << SHIFT
    with np.errstate(over="ignore", invalid="ignore"):
        near = half.view(np.float32).astype(np.float64)
        far = (half + np.uint32(1 << SHIFT)).view(np.float32).astype(np.float64)
    far[NONFINITE - 1] = np.finfo(np.float32).max
    near[NONFINITE:] = far[NONFINITE:] = np.nan
    far[0] = 0.0
    return np.concatenate([near, -far]), np.concatenate([far, -near])


LOW, HIGH = _bin_edges()
#: Finite bins from the most negative to the most positive value.
ORDER = np.concatenate([np.arange(2048 + NONFINITE - 1, 2047, -1), np.arange(0, NONFINITE)])


def shows_values(histogram: NDArray[np.int64]) -> bool:
    """A count array ``[4096]`` counts finite values."""
    return bool((histogram[:NONFINITE] > 0).any() or (histogram[2048 : 2048 + NONFINITE] > 0).any())


class StoredHistograms(MutableMapping[int, NDArray[np.int64]]):
    """Count arrays ``[4096]`` of many tensors, kept as their occupied bins: reading one gives a new array.

    An array that is set is kept as it is, so that it can be counted into.
    """

    def __init__(self, tensors: NDArray[np.integer], bins: NDArray[np.integer], counts: NDArray[np.integer]) -> None:
        """Take what is stored: the tensor, the bin and the count of each occupied bin, arrays of one length."""
        order = np.argsort(tensors, kind="stable")
        owners, starts = np.unique(tensors[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        self._bins, self._counts = bins[order], counts[order]
        self._stored = {
            owner: slice(start, end) for owner, start, end in zip(owners.tolist(), starts.tolist(), ends, strict=False)
        }
        self._set: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, tensor: int) -> NDArray[np.int64]:
        if tensor in self._set:
            return self._set[tensor]
        rows = self._stored[tensor]
        found = np.zeros(BINS, np.int64)
        found[self._bins[rows]] = self._counts[rows]
        return found

    def __setitem__(self, tensor: int, histogram: NDArray[np.int64]) -> None:
        self._set[tensor] = histogram

    def __delitem__(self, tensor: int) -> None:
        if self._set.pop(tensor, None) is None and tensor not in self._stored:
            raise KeyError(tensor)
        self._stored.pop(tensor, None)

    def __iter__(self) -> Iterator[int]:
        yield from dict.fromkeys((*self._stored, *self._set))

    def __len__(self) -> int:
        return len(self._stored.keys() | self._set.keys())


@dataclass(frozen=True)
class BinTable:
    """The occupied bins of many tensors, one tensor after another: bounds in ascending order, and counts.

    Tensor ``t`` owns ``start[t]:start[t + 1]``, at least one bin. Results hold one entry or row per tensor.
    """

    low: Floats
    high: Floats
    count: Floats
    start: NDArray[np.int64]

    @classmethod
    def of_many(cls, counts: Sequence[NDArray[np.int64]], minimum: Floats, maximum: Floats) -> Self:
        """Bins of ``[4096]`` count arrays, none of them empty, clipped to the exact extremes of each tensor."""
        ordered = np.empty((len(counts), 2 * NONFINITE), np.int64)
        for row, histogram in zip(ordered, counts, strict=True):
            # In the order of ORDER, by slices, which cost a quarter of picking.
            row[:NONFINITE] = histogram[2048 : 2048 + NONFINITE][::-1]
            row[NONFINITE:] = histogram[:NONFINITE]
        occupied = np.flatnonzero(ordered != 0)
        owner, place = np.divmod(occupied, len(ORDER))
        low, high = (np.clip(ends[ORDER[place]], minimum[owner], maximum[owner]) for ends in (LOW, HIGH))
        count = ordered.ravel()[occupied].astype(np.float64)
        start = np.searchsorted(owner, np.arange(len(ordered) + 1))
        # A value that is alone in the first or last bin is the extreme itself.
        first, last = start[:-1][count[start[:-1]] == 1], start[1:][count[start[1:] - 1] == 1] - 1
        low[last] = high[last]
        high[first] = low[first]
        return cls(low, high, count, start)

    def on_points(self, points: Mapping[int, Floats]) -> Self:
        """The same values where some tensors are known to take few distinct ones: each bin's are shared out evenly.

        Args:
            points: Sorted distinct values by the tensor's place in the table.
        """
        low, high, count, owner = [self.low], [self.high], [self.count.copy()], [self.owner]
        for tensor, values in points.items():
            for k in range(int(self.start[tensor]), int(self.start[tensor + 1])):
                inside = self._within(k, values, farthest=k in (self.start[tensor], self.start[tensor + 1] - 1))
                if not len(inside):
                    continue
                low.append(inside)
                high.append(inside)
                count.append(np.full(len(inside), self.count[k] / len(inside)))
                owner.append(np.full(len(inside), tensor))
                count[0][k] = 0.0
        kept = np.concatenate(count) > 0
        bottom, top, counts = (np.concatenate(columns)[kept] for columns in (low, high, count))
        owners = np.concatenate(owner)[kept]
        order = np.lexsort((top, bottom, owners))
        start = np.searchsorted(owners[order], np.arange(len(self.start)))
        return type(self)(bottom[order], top[order], counts[order], start)

    def _within(self, k: int, values: Floats, *, farthest: bool) -> Floats:
        """Which of some sorted values bin ``k`` may hold.

        One on an edge belongs to the bin farther from zero; there is none beyond the first and last (``farthest``).
        """
        low, high = float(self.low[k]), float(self.high[k])
        inside: Floats = values[(values >= low) & (values <= high)]
        if len(inside) > 1 and not farthest:
            inside = inside[inside != (high if high > 0 else low)]
        return inside

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The tensor that each bin belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @cached_property
    def totals(self) -> Floats:
        """Number of values; a cut bin holds fractions of them."""
        return np.round(self.sum_by_tensor(self.count))

    @cached_property
    def narrow(self) -> NDArray[np.bool_]:
        """Bins whose width is within rounding of 0: they hold a single value."""
        return self.high - self.low <= 1e-7 * np.maximum(np.abs(self.low), np.abs(self.high))

    @cached_property
    def density(self) -> Floats:
        """Values per unit of width; 0 in narrow bins."""
        return np.where(self.narrow, 0.0, self.count / np.where(self.narrow, 1.0, self.high - self.low))

    @cached_property
    def alone(self) -> NDArray[np.bool_]:
        """Bins that do not end where the next bin of their tensor begins."""
        alone = np.append(self.high[:-1] != self.low[1:], True)
        alone[self.start[1:] - 1] = True
        return alone

    @property
    def lowest(self) -> Floats:
        """Lower end of the first bin."""
        return self.low[self.start[:-1]]

    @property
    def highest(self) -> Floats:
        """Upper end of the last bin."""
        return self.high[self.start[1:] - 1]

    def sum_by_tensor(self, values: Floats) -> Floats:
        """Sums of one value per bin."""
        return np.add.reduceat(values, self.start[:-1])

    def quantiles(self, shares: Sequence[float] | Floats) -> Floats:
        """Values below which the given shares of all values lie, linear within a bin; shape ``[tensors, shares]``.

        ``shares`` are the same for all tensors, or a row for each.
        """
        cumulative = np.cumsum(self.count)
        before = np.append(0.0, cumulative)[self.start[:-1], None]
        target = np.array(shares) * self.totals[:, None]
        found = np.searchsorted(cumulative, before + target)
        i = np.clip(found, self.start[:-1, None], self.start[1:, None] - 1)
        inside = (target - (cumulative[i] - before - self.count[i])) / self.count[i]
        values: Floats = self.low[i] + np.clip(inside, 0.0, 1.0) * (self.high[i] - self.low[i])
        return values

    def magnitudes(self) -> Self:
        """Bins of |x|, ascending; bins of either sign that cover the same magnitudes become one.

        The nearer of the two extremes ends within a bin of the other sign, which is cut there.
        """
        low = np.minimum(np.abs(self.low), np.abs(self.high))
        high = np.maximum(np.abs(self.low), np.abs(self.high))
        cut = np.minimum(np.abs(self.lowest), np.abs(self.highest))[self.owner]
        across = (low < cut) & (cut < high)
        beyond = np.where(across, (high - cut) / np.where(across, high - low, 1.0), 0.0) * self.count
        bottom = np.concatenate([low, cut[across]])
        top = np.concatenate([np.where(across, cut, high), high[across]])
        count = np.concatenate([self.count - beyond, beyond[across]])
        owner = np.concatenate([self.owner, self.owner[across]])
        order = np.lexsort((top, bottom, owner))
        bottom, top, owner = bottom[order], top[order], owner[order]
        new = np.flatnonzero(np.append(True, (np.diff(bottom) != 0) | (np.diff(top) != 0) | (np.diff(owner) > 0)))
        start = np.searchsorted(owner[new], np.arange(len(self.start)))
        return type(self)(bottom[new], top[new], np.add.reduceat(count[order], new), start)

    def shares_above(self, limits: Floats) -> Floats:
        """Share of values above each tensor's limit; linear within a bin."""
        limit, width = limits[self.owner], self.high - self.low
        part = np.where(width > 0, (self.high - limit) / np.where(width > 0, width, 1.0), self.high > limit)
        return self.sum_by_tensor(self.count * np.clip(part, 0.0, 1.0)) / self.totals

    def powers(self) -> Floats:
        """Mean of x² with the values spread evenly over their bins."""
        squares = (self.low * self.low + self.low * self.high + self.high * self.high) / 3.0
        return self.sum_by_tensor(self.count * squares) / self.totals


class Bins(BinTable):
    """The occupied bins of one tensor."""

    @classmethod
    def of(cls, counts: NDArray[np.int64], minimum: float, maximum: float) -> Self:
        """Occupied bins of a ``[4096]`` count array whose values lie in ``[minimum, maximum]``."""
        return cls.of_many([counts], np.array([minimum]), np.array([maximum]))

    def part(self, low: float, high: float) -> Self | None:
        """The bins between two limits; a bin that holds a limit is cut there. None where there is no value."""
        width = self.high - self.low
        ends = np.clip(self.low, low, high), np.clip(self.high, low, high)
        within = (self.low >= low) & (self.high <= high)
        share = np.where(within, 1.0, (ends[1] - ends[0]) / np.where(width > 0, width, 1.0))
        kept = share > 0
        if not kept.any():
            return None
        return type(self)(ends[0][kept], ends[1][kept], (self.count * share)[kept], np.array([0, kept.sum()]))

    @property
    def total(self) -> float:
        """Number of values; a cut bin holds fractions of them."""
        return float(self.totals[0])

    def quantile(self, q: float) -> float:
        """Value below which the share ``q`` of all values lies; linear within a bin."""
        return float(self.quantiles([q])[0, 0])

    def outer_edge(self, value: float) -> float:
        """Edge, away from zero, of the bin that holds a value: no percentile cuts equal values, which may lie there."""
        if value < 0:
            return float(max(self.low[self.low <= value], default=value))
        return float(min(self.high[self.high >= value], default=value))

    def repeat(self, times: int) -> BinTable:
        """A table of ``times`` equal tensors, for a different question about each."""
        low, high, count = (np.tile(column, times) for column in (self.low, self.high, self.count))
        return BinTable(low, high, count, np.arange(times + 1) * len(self.low))

    def share_above(self, limit: float) -> float:
        """Share of values above ``limit``; linear within a bin."""
        return float(self.shares_above(np.array([limit]))[0])

    def power(self) -> float:
        """Mean of x² with the values spread evenly over their bins."""
        return float(self.powers()[0])
