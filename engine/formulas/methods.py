"""The ranges that calibration methods would choose for a tensor, from its histogram alone.

And the other way round: which one method explains the ranges that a model has.
"""

from collections.abc import Callable, Sequence
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
    low, high = bins.quantile(1 - PERCENTILE), bins.quantile(PERCENTILE)
    return min(bins.outer_edge(low), 0.0), max(bins.outer_edge(high), 0.0)


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
class Side:
    """The values of one tensor on one side of zero.

    Attributes:
        value: The largest magnitude there.
        sign: -1 for the negative side, else 1.
        mean: Mean of all values.
        deviation: Their standard deviation.
        bins: Histogram of all values.
    """

    value: float
    sign: int
    mean: float
    deviation: float
    bins: Bins

    def share_beyond(self, end: float) -> float:
        """Share of the values beyond this magnitude."""
        return self.bins.share_above(end) if self.sign > 0 else 1.0 - self.bins.share_above(-end)

    def end_for(self, share: float) -> float:
        """Magnitude beyond which this share of the values lies."""
        return self.sign * self.bins.quantile(1.0 - share if self.sign > 0 else share)


@dataclass(frozen=True)
class RangeEnd:
    """Magnitude where a range ends, and the values that it is for, on the side of the largest magnitude."""

    end: float
    side: Side


@dataclass(frozen=True)
class RangeMethod:
    """How ranges were found: the name of a method, and its setting, one for all tensors.

    ``miss``: the 75 % quantile of |log(end / explained end)|, because other settings may hold for a few.
    """

    name: str
    setting: float
    miss: float = 0.0

    def end(self, side: Side) -> float:
        """Magnitude where the method ends the range of these values."""
        end = _METHODS[self.name][1](side, self.setting)
        return abs(side.bins.outer_edge(side.sign * end)) if self.name == "percentile" else end


def find_method(ends: Sequence[RangeEnd]) -> RangeMethod | None:
    """The method that explains ranges best, with one setting for all; None of fewer than can agree by chance."""
    if len(ends) < FEWEST_ENDS:
        return None
    logs = np.log([e.end for e in ends])
    found = []
    for name, (setting_of, end_of) in _METHODS.items():
        setting = setting_of(ends)
        if setting is None:
            continue
        explained = np.array([end_of(e.side, setting) for e in ends])
        if (explained > 0).all():
            found.append(RangeMethod(name, setting, float(np.quantile(np.abs(logs - np.log(explained)), 0.75))))
    return min(found, key=lambda method: method.miss, default=None)


def _factor(ends: Sequence[RangeEnd]) -> float | None:
    """Headroom, or a part of the codes: no method cuts off a part of every range, but smaller data do."""
    factor = float(np.median([e.end / e.side.value for e in ends]))
    return factor if factor > 1.0 else None


def _usual_end(ends: Sequence[RangeEnd]) -> float | None:
    found = np.array([e.end for e in ends])
    usual = float(np.median(found))
    return usual if np.mean(np.abs(found / usual - 1.0) < SAME_END) > 0.5 else None


def _share_cut_off(ends: Sequence[RangeEnd]) -> float | None:
    if any(e.end >= e.side.value for e in ends):
        return None
    return float(np.median([e.side.share_beyond(e.end) for e in ends]))


def _deviations(ends: Sequence[RangeEnd]) -> float | None:
    sides = [e.side for e in ends]
    if any(side.deviation <= 0 for side in sides):
        return None
    return float(np.median([(e.end - e.side.sign * e.side.mean) / e.side.deviation for e in ends]))


#: For each method, what finds its setting in ranges, and what finds the end of a range by that setting.
_METHODS: dict[str, tuple[Callable[[Sequence[RangeEnd]], float | None], Callable[[Side, float], float]]] = {
    "factor": (_factor, lambda side, factor: factor * side.value),
    "one range": (_usual_end, lambda _, end: end),
    "percentile": (_share_cut_off, Side.end_for),
    "deviations": (_deviations, lambda side, reach: side.sign * side.mean + reach * side.deviation),
}
