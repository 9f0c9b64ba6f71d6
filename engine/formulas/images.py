"""Facts of image data sets: how neighbouring pixels relate, which shows resizing, a wrong layout and noise."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SPATIAL, SetStatistics
from quantmedic.engine.formulas.columns import ratio
from quantmedic.engine.formulas.first_input import input_std
from quantmedic.engine.formulas.stored_bins import bins_of_view
from quantmedic.engine.special_functions import normal_share

Sums = NDArray[np.float64]
_COLUMN = {name: i for i, name in enumerate(SPATIAL)}
_BOOTSTRAP = 400
#: Differences of neighbours that differ by less, relative to the smaller, are the same.
NEARLY = 0.01


def image_facts(case: Case, statistics: SetStatistics) -> dict[str, Any]:
    """What one data set's images show; only ``image`` where samples are not images, or were not measured as images."""
    total = statistics.spatial.sum(axis=0)
    return {
        "image": case.record.spatial_input,
        "spatial_correlation": _correlation(total),
        "sharpness": _sharpness(total),
        "layout_roughness_ratio": _layout_roughness(total),
        "layout_reread": _is_reread(total),
        **_distances(case, statistics),
    }


def image_relation(mine: SetStatistics, other: SetStatistics) -> dict[str, Any]:
    """What the images of both sets show side by side."""
    a, b = (statistics.spatial.sum(axis=0) for statistics in (mine, other))
    here, there = _correlation(a), _correlation(b)
    sharper = ratio(_sharpness(a), _sharpness(b))
    return {
        "layout_roughness_excess": ratio(_layout_roughness(a), _layout_roughness(b)),
        "correlation_drop": None if here is None or there is None else there - here,
        "smoothness_ratio": ratio(_roughness(b), _roughness(a)),
        "sharpness_ratio": sharper,
        "sharpness_mismatch_low": None if sharper is None else _sharpness_mismatch(mine.spatial, other.spatial),
    }


def _sum(total: Sums, name: str) -> float:
    return float(total[_COLUMN[name]])


def _roughness(total: Sums) -> float | None:
    return ratio(_sum(total, "first"), _sum(total, "power"))


def _layout_roughness(total: Sums) -> float | None:
    """Differences of neighbours as stored over those in another layout.

    They are not held against the variance: what the channels differ by would count as variance in another layout.
    """
    return ratio(_sum(total, "first"), _sum(total, "other_first"))


def _is_reread(total: Sums) -> bool | None:
    """Nearly all images are smoothest where their numbers are read anew, and none has to be normalized otherwise."""
    smoothest = _sum(total, "other_first")
    return _sum(total, "reread_first") <= (1.0 + NEARLY) * smoothest if smoothest > 0 else None


def _correlation(total: Sums) -> float | None:
    roughness = _roughness(total)
    return None if roughness is None else 1.0 - roughness / 2.0


def _sharpness(total: Sums) -> float | None:
    return ratio(_sum(total, "second"), _sum(total, "first"))


def _sharpness_mismatch(mine: Sums, other: Sums) -> float:
    """Least factor between both sets' sharpness that a 95 % interval allows, by a bootstrap over buckets; 1 if none.

    Samples fall into buckets by their content: copies, which prove nothing, fall into one.
    """
    rng = np.random.default_rng(0)

    def resample(buckets: Sums) -> Sums:
        used = buckets[buckets[:, _COLUMN["images"]] > 0]
        if len(used) < 2:
            return np.zeros(0)
        sums = used[rng.integers(0, len(used), (_BOOTSTRAP, len(used)))].sum(axis=1)
        first = sums[:, _COLUMN["first"]]
        sharpness: Sums = sums[:, _COLUMN["second"]] / np.where(first > 0, first, np.nan)
        return sharpness

    a, b = resample(mine), resample(other)
    if not (a.size and b.size):
        return 1.0
    ratios = a / np.where(b > 0, b, np.nan)
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if not ratios.size:
        return 1.0
    low, high = np.quantile(ratios, [0.025, 0.975])
    return max(float(low), 1.0 / float(high), 1.0)


def _distances(case: Case, statistics: SetStatistics) -> dict[str, float | None]:
    """Largest distance of the inputs' cumulative distribution from that of even and of normal noise."""
    index = case.record.input_tensor
    unknown: dict[str, float | None] = {"uniform_distance": None, "normal_distance": None}
    if index is None or index not in statistics.histograms:
        return unknown
    view = statistics.tensor(index)
    low, high = float(view.min.min()), float(view.max.max())
    bins, std = bins_of_view(view), input_std(case, statistics)
    if bins is None or not low < high or std == 0:
        return unknown
    mean = float((view.count * view.mean).sum()) / int(view.count.sum())
    below = np.cumsum(bins.count) / bins.count.sum()
    even = (bins.high - low) / (high - low)
    normal = normal_share((bins.high - mean) / std)
    return {
        "uniform_distance": float(np.abs(below - even).max()),
        "normal_distance": float(np.abs(below - normal).max()),
    }
