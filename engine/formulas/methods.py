"""The ranges that calibration methods would choose for a tensor, from its histogram alone.

And the other way round: which one method explains the ranges that a model has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.special_functions import divergence

Floats = NDArray[np.float64]
#: Ranges without which nothing can be said of what all of them have in common.
FEWEST_ENDS = 4
#: Even bins over the magnitudes, and levels to which a candidate is reduced (Migacz 2017, "8-bit inference with
#: TensorRT"; onnxruntime counts 128 bins and quantizes to 128).
KL_BINS, KL_LEVELS = 2048, 128
#: Share of the values below the upper end of a range.
PERCENTILE = 0.9999
#: Count that an empty bin gets.
SMOOTHING = 1e-4
#: Ranges that differ by less are one range: the other sign has one code more.
SAME_END = 0.02


def percentile_ends(bins: Bins) -> tuple[float, float]:
    """Ends of the range that holds the middle 99.98 % of the values, and 0.0."""
    return min(bins.quantile(1 - PERCENTILE), 0.0), max(bins.quantile(PERCENTILE), 0.0)


def kl_ends(bins: Bins) -> tuple[float, float]:
    """Ends of the range that loses the least information."""
    reach = kl_threshold(bins)
    return max(float(bins.lowest[0]), -reach), min(float(bins.highest[0]), reach)


def kl_threshold(bins: Bins) -> float:
    """Magnitude at which clipping loses the least information by Kullback and Leibler's divergence.

    Every candidate keeps the values below it, the clipped ones in its last bin, and is compared with the same spread
    over ``KL_LEVELS`` levels.
    """
    magnitudes = bins.magnitudes()
    top = float(magnitudes.highest[0])
    if top <= 0:
        return 0.0
    edges = np.linspace(0.0, top, KL_BINS + 1)
    many = Bins(magnitudes.low, magnitudes.high, magnitudes.count, magnitudes.start).repeat(KL_BINS + 1)
    above = many.shares_above(edges)
    above[0] = 1.0
    counts = np.maximum(above[:-1] - above[1:], 0.0)
    kept = range(KL_LEVELS, KL_BINS + 1, KL_LEVELS // 8)
    divergences = [_divergence(counts, n) for n in kept]
    return float(edges[kept[int(np.argmin(divergences))]])


def _divergence(counts: Floats, kept: int) -> float:
    inside = counts[:kept]
    reference = inside.copy()
    reference[-1] += counts[kept:].sum()
    level = np.arange(kept) * KL_LEVELS // kept
    occupied = inside > 0
    sums = np.bincount(level, inside, KL_LEVELS)
    sizes = np.bincount(level, occupied, KL_LEVELS)
    spread = np.where(occupied, (sums / np.maximum(sizes, 1))[level], 0.0)
    p, q = _smooth(reference), _smooth(spread)
    return np.inf if p is None or q is None else divergence(p, q)


def _smooth(counts: Floats) -> Floats | None:
    """Shares in which no bin is empty, as onnxruntime smooths them; None where nothing is left."""
    empty = counts <= 0
    taken = SMOOTHING * empty.sum() / max((~empty).sum(), 1)
    filled = np.where(empty, SMOOTHING, counts - taken)
    return None if (filled <= 0).any() else filled / filled.sum()


# --- Which method explains ranges -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RangeEnd:
    """One range and the values that it is for, on the side of the largest magnitude.

    Attributes:
        end: Magnitude where the range ends.
        value: The largest magnitude.
        sign: -1 where that side is the negative one, else 1.
        mean: Mean of the values.
        deviation: Their standard deviation.
        bins: Histogram of the values.
    """

    end: float
    value: float
    sign: int
    mean: float
    deviation: float
    bins: Bins

    def share_beyond(self) -> float:
        """Share of the values beyond the end."""
        return self.bins.share_above(self.end) if self.sign > 0 else 1.0 - self.bins.share_above(-self.end)

    def end_for(self, share: float) -> float:
        """Magnitude beyond which this share of the values lies."""
        return self.sign * self.bins.quantile(1.0 - share if self.sign > 0 else share)


def miss_of_ranges(ends: Sequence[RangeEnd]) -> float | None:
    """By how much the method that explains ranges best, with one setting for all, misses three in four of them.

    Returns:
        The 75 % quantile of |log(end / explained end)|, because other settings may hold for a few; None of fewer
        ranges than can agree by chance.
    """
    if len(ends) < FEWEST_ENDS:
        return None
    logs = np.log([e.end for e in ends])
    found = [explained for explain in _METHODS if (explained := explain(ends)) is not None and (explained > 0).all()]
    return min((float(np.quantile(np.abs(logs - np.log(explained)), 0.75)) for explained in found), default=None)


def _by_factor(ends: Sequence[RangeEnd]) -> Floats | None:
    """Headroom, or a part of the codes: no method cuts off a part of every range, but smaller data do."""
    values = np.array([e.value for e in ends])
    factor = float(np.median([e.end for e in ends] / values))
    return values * factor if factor > 1.0 else None


def _by_one_range(ends: Sequence[RangeEnd]) -> Floats | None:
    found = np.array([e.end for e in ends])
    usual = float(np.median(found))
    is_shared = np.mean(np.abs(found / usual - 1.0) < SAME_END) > 0.5
    return np.full(len(ends), usual) if is_shared else None


def _by_deviations(ends: Sequence[RangeEnd]) -> Floats | None:
    means, deviations = np.array([e.sign * e.mean for e in ends]), np.array([e.deviation for e in ends])
    if (deviations <= 0).any():
        return None
    reach = float(np.median((np.array([e.end for e in ends]) - means) / deviations))
    return means + reach * deviations


def _by_percentile(ends: Sequence[RangeEnd]) -> Floats | None:
    if any(e.end >= e.value for e in ends):
        return None
    share = float(np.median([e.share_beyond() for e in ends]))
    return np.array([e.end_for(share) for e in ends])


_METHODS = (_by_factor, _by_one_range, _by_percentile, _by_deviations)
