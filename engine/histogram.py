"""Histogram over the leading bits of a float32: no range is needed, and merging is addition.

A bin is ``bits >> 20``: sign, 8 exponent bits and 3 mantissa bits, hence 4096 bins whose width is at most 1/8 of
their lower edge. Bins 0 and 2048 hold exact zeros (and denormals, which count as zeros here).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 4096
SHIFT = 20
_FIRST_NONFINITE = 0x7F800000 >> SHIFT


def _edges() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    half = np.arange(BINS // 2, dtype=np.uint32) << SHIFT
    with np.errstate(over="ignore", invalid="ignore"):
        near = half.view(np.float32).astype(np.float64)
        far = (half + np.uint32(1 << SHIFT)).view(np.float32).astype(np.float64)
    far[_FIRST_NONFINITE - 1] = np.finfo(np.float32).max
    near[_FIRST_NONFINITE:] = far[_FIRST_NONFINITE:] = np.nan
    far[0] = 0.0
    return np.concatenate([near, -far]), np.concatenate([far, -near])


LOW, HIGH = _edges()
#: Finite bins from the most negative to the most positive value.
ORDER = np.concatenate([np.arange(2048 + _FIRST_NONFINITE - 1, 2047, -1), np.arange(0, _FIRST_NONFINITE)])


@dataclass(frozen=True)
class Bins:
    """The occupied bins of one tensor in ascending order: bounds and counts, clipped to the exact extremes."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    count: NDArray[np.float64]

    @classmethod
    def of(cls, counts: NDArray[np.int64], minimum: float, maximum: float) -> "Bins":
        """Occupied bins of a ``[4096]`` count array whose values lie in ``[minimum, maximum]``."""
        ordered = counts[ORDER]
        used = ORDER[ordered > 0]
        low = np.clip(LOW[used], minimum, maximum)
        high = np.clip(HIGH[used], minimum, maximum)
        count = ordered[ordered > 0].astype(np.float64)
        # A value that is alone in the first or last bin is the extreme itself.
        if count.size and count[-1] == 1:
            low[-1] = high[-1]
        if count.size and count[0] == 1:
            high[0] = low[0]
        return cls(low, high, count)

    @property
    def total(self) -> float:
        """Number of values; a cut bin holds fractions of them."""
        return float(np.round(self.count.sum()))

    def quantile(self, q: float) -> float:
        """Value below which the share ``q`` of all values lies; linear within a bin."""
        target = q * self.total
        cumulative = np.cumsum(self.count)
        i = min(int(np.searchsorted(cumulative, target)), len(self.count) - 1)
        inside = (target - (cumulative[i] - self.count[i])) / self.count[i]
        return float(self.low[i] + np.clip(inside, 0.0, 1.0) * (self.high[i] - self.low[i]))

    def magnitudes(self) -> "Bins":
        """Bins of |x|, ascending; bins of either sign that cover the same magnitudes become one.

        The nearer of the two extremes ends within a bin of the other sign, which is cut there.
        """
        low = np.minimum(np.abs(self.low), np.abs(self.high))
        high = np.maximum(np.abs(self.low), np.abs(self.high))
        cut = min(abs(float(self.low[0])), abs(float(self.high[-1])))
        across = (low < cut) & (cut < high)
        beyond = np.where(across, (high - cut) / np.where(across, high - low, 1.0), 0.0) * self.count
        bottom = np.concatenate([low, np.full(across.sum(), cut)])
        top = np.concatenate([np.where(across, cut, high), high[across]])
        count = np.concatenate([self.count - beyond, beyond[across]])
        order = np.lexsort((top, bottom))
        bottom, top = bottom[order], top[order]
        new = np.flatnonzero(np.append(True, (np.diff(bottom) > 0) | (np.diff(top) > 0)))
        return Bins(bottom[new], top[new], np.add.reduceat(count[order], new))

    def share_above(self, limit: float) -> float:
        """Share of values above ``limit``; linear within a bin."""
        width = self.high - self.low
        part = np.where(width > 0, (self.high - limit) / np.where(width > 0, width, 1.0), self.high > limit)
        return float((self.count * np.clip(part, 0.0, 1.0)).sum() / self.total)

    def power(self) -> float:
        """Mean of x² with the values spread evenly over their bins."""
        squares = (self.low**2 + self.low * self.high + self.high**2) / 3.0
        return float((self.count * squares).sum() / self.total)
