"""Facts of distributions and of clipping, of all tensors of a data set at once."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import ClippingFacts, DistributionFacts
from quantmedic.engine.case.histogram import BinTable
from quantmedic.engine.case.records import TensorRecord
from quantmedic.engine.case.statistics import EXTREME_SAMPLES, Column, SetStatistics
from quantmedic.engine.formulas.columns import (
    Floats,
    facts_by_tensor,
    medians_by_tensor,
    nan_for_none,
    owner_of_rows,
    per_tensor,
)
from quantmedic.engine.formulas.stored_bins import extremes, moments

NO_CLIPPING = ClippingFacts()
_QUANTILES = {"p1": 0.01, "p50": 0.5, "p99": 0.99}
#: Facts that rest on the smallest and largest values.
_EXTREME = (
    "zscore_max",
    "tail_share",
    "tail_body_ratio",
    "range_inflation_bits",
    "channel_absmax_ratio",
    "channel_shape_ratio",
    "absmax_over_median",
    "sample_range_ratio",
    "range_growth",
    "halves_disagreement",
)


def distributions_of(
    statistics: SetStatistics,
    records: Sequence[TensorRecord],
    seen: Sequence[int],
    shapes: Sequence[Mapping[str, Floats]],
) -> list[DistributionFacts]:
    """Distributions of the tensors that were seen.

    ``shapes`` holds what is read off their histograms, some tensors at a time.
    """
    if not shapes:
        return []
    columns, offsets = statistics.columns, statistics.offsets
    count = per_tensor(np.add, columns["count"], offsets)
    low, high = extremes(statistics)
    mean, std = moments(statistics)
    with np.errstate(all="ignore"):
        zscore = np.where(std > 0, np.maximum(high - mean, mean - low) / std, np.nan)
    growth, disagreement = _halves(statistics, records)
    absmax = np.maximum(np.abs(low), np.abs(high))
    spread = _channel_ratio(statistics)
    with np.errstate(all="ignore"):
        alike = _channel_rms_ratio(statistics) / spread
    fields: dict[str, Column] = {
        "count": count,
        "samples": statistics.tensor_samples,
        "nonfinite_count": per_tensor(np.add, columns["nonfinite"], offsets),
        "min": low,
        "max": high,
        "absmax": absmax,
        "mean": mean,
        "std": std,
        "zscore_max": zscore,
        "channel_absmax_ratio": spread,
        "channel_shape_ratio": alike,
        "sample_range_ratio": _sample_range_ratio(statistics, records, high - low),
        "range_growth": growth,
        "halves_disagreement": disagreement,
    }
    fields = {name: column[seen] for name, column in fields.items()}
    fields |= {name: np.concatenate([shape[name] for shape in shapes]) for name in shapes[0]}
    reach, bulk, median = fields["absmax"], fields["abs_p99_99"], fields.pop("abs_p50")
    with np.errstate(all="ignore"):
        fields["absmax_over_median"] = np.where(median > 0, reach / median, np.nan)
        fields["range_inflation_bits"] = np.where((reach > 0) & (bulk > 0), np.log2(reach / bulk), np.nan)
    known = knows_extremes(statistics)[seen]
    fields |= {name: np.where(known, fields[name], np.nan) for name in _EXTREME}
    return [DistributionFacts(**row) for row in facts_by_tensor(fields)]


def knows_extremes(statistics: SetStatistics) -> NDArray[np.bool_]:
    """Tensors that were seen on all samples of a set, or on enough of them to say something of its extremes."""
    seen = statistics.tensor_samples
    return (seen >= EXTREME_SAMPLES) | (seen >= len(statistics.samples))


def shape_of(bins: BinTable) -> dict[str, Floats]:
    """Facts of distributions that follow from the histograms alone."""
    magnitudes = bins.magnitudes()
    top = magnitudes.highest
    quantiles = bins.quantiles(list(_QUANTILES.values()))
    tail = magnitudes.shares_above(top / 2)
    zeros = bins.sum_by_tensor(np.where((bins.low == 0) & (bins.high == 0), bins.count, 0.0)) / bins.totals
    return {
        **dict(zip(_QUANTILES, quantiles.T, strict=True)),
        "abs_p50": magnitudes.quantiles(zeros[:, None] + (1 - zeros[:, None]) / 2)[:, 0],
        "abs_p99_99": magnitudes.quantiles([0.9999])[:, 0],
        "tail_share": np.where(top > 0, tail, np.nan),
        "tail_body_ratio": np.where(
            tail > 0, magnitudes.shares_above(top / 16) / np.maximum(tail, np.finfo(np.float64).tiny) - 1, np.nan
        ),
        "negative_share": bins.sum_by_tensor(np.where(bins.low < 0, bins.count, 0.0)) / bins.totals,
    }


def _channel_ratio(statistics: SetStatistics) -> Floats:
    """Largest over median channel absmax; channels of which nothing was seen do not count."""
    offsets, owner = statistics.offsets, owner_of_rows(statistics.offsets)
    tops = np.maximum(np.abs(statistics.columns["min"]), np.abs(statistics.columns["max"])).astype(np.float32)
    finite = np.isfinite(tops)
    # Extremes are float32, and those that are not negative sort as their bits do: one sort serves all tensors.
    keys = np.sort(owner[finite] << 32 | tops[finite].view(np.uint32))
    tops = keys.astype(np.uint32).view(np.float32).astype(np.float64)
    size = np.bincount(keys >> 32, minlength=len(offsets) - 1)
    start = np.cumsum(size) - size
    judged = np.flatnonzero((size > 0) & (np.diff(offsets) > 1))
    first, n = start[judged], size[judged]
    middle = (tops[first + (n - 1) // 2] + tops[first + n // 2]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(middle > 0, tops[first + n - 1] / middle, np.nan)
    ratios = np.full(len(size), np.nan)
    ratios[judged] = found
    return ratios


def _channel_rms_ratio(statistics: SetStatistics) -> Floats:
    """Largest over median root mean square of a channel; channels of which nothing was seen do not count."""
    columns, owner = statistics.columns, owner_of_rows(statistics.offsets)
    seen = columns["count"] > 0
    with np.errstate(all="ignore"):
        mean = columns["mean"][seen]
        rms = np.sqrt(columns["m2"][seen] / columns["count"][seen] + mean * mean)
        medians = medians_by_tensor(rms, owner[seen], np.diff(statistics.offsets))
        top = np.full(len(medians), -np.inf)
        np.maximum.at(top, owner[seen], rms)
        return np.where(medians > 0, top / medians, np.nan)


def _sample_range_ratio(statistics: SetStatistics, records: Sequence[TensorRecord], width: Floats) -> Floats:
    """Mean range width of a sample over that of all; unknown where the first axis holds no samples."""
    bucketed = np.array([record.bucketed for record in records], bool)
    known = bucketed & (statistics.sample_count > 0) & (width > 0) & np.isfinite(width)
    with np.errstate(all="ignore"):
        return np.where(known, statistics.sample_width / statistics.sample_count / width, np.nan)


def _halves(statistics: SetStatistics, records: Sequence[TensorRecord]) -> tuple[Floats, Floats]:
    """Growth and disagreement of the range between even and odd buckets."""
    low, high = statistics.bucket_min, statistics.bucket_max
    even, odd = (high[:, half::2].max(axis=1) - low[:, half::2].min(axis=1) for half in (0, 1))
    whole = high.max(axis=1) - low.min(axis=1)
    known = np.array([record.bucketed for record in records], bool) & np.isfinite(even) & np.isfinite(odd) & (whole > 0)
    with np.errstate(all="ignore"):
        growth, disagreement = 1.0 - (even + odd) / 2 / whole, np.abs(even - odd) / whole
    return np.where(known, growth, np.nan), np.where(known, disagreement, np.nan)


def clipping_of(statistics: SetStatistics, records: Sequence[TensorRecord]) -> list[ClippingFacts]:
    columns, offsets = statistics.columns, statistics.offsets
    low, high = (nan_for_none(getattr(record.quantizer, end) for record in records) for end in ("low", "high"))
    smallest, largest = extremes(statistics)
    count = per_tensor(np.add, columns["rounding.count"], offsets)
    square = per_tensor(np.add, columns["rounding.square"], offsets)
    energy = per_tensor(np.add, columns["clipped_energy"], offsets)
    with np.errstate(all="ignore"):
        width = high - low
        fields = {
            "share": per_tensor(np.add, columns["clipped"], offsets) / count,
            "energy_share": np.where(square > 0, energy / square, 0.0),
            "overshoot": np.maximum(np.maximum(largest - high, low - smallest), 0.0) / width,
            "utilisation": np.maximum(np.minimum(largest, high) - np.maximum(smallest, low), 0.0) / width,
        }
        known_ends = knows_extremes(statistics)
        fields |= {name: np.where(known_ends, fields[name], np.nan) for name in ("overshoot", "utilisation")}
        known = ((width > 0) & (count > 0)).tolist()
    return [ClippingFacts(**row) if k else NO_CLIPPING for k, row in zip(known, facts_by_tensor(fields), strict=True)]
