"""What ``collectors.statistics.numba_loops`` computes, in plain numpy: tests hold one against the other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.quantizer import Deployed, Rounding
from quantmedic.engine.case.histogram import BINS, SHIFT
from quantmedic.engine.case.statistics import ERROR_FIELDS, SHOWN_BUCKETS, TensorStatistics

Float32 = NDArray[np.float32]
Ends = NDArray[np.float64]


def observe(
    x: Float32,
    into: TensorStatistics,
    buckets: NDArray[np.int64],
    rounding: Rounding | None = None,
    deployed: Deployed | None = None,
) -> Ends:
    """Add everything that a batch tells of one tensor.

    Args:
        x: Values of the float model, shape ``[outer, channels, inner]``.
        into: Statistics of the tensor, changed in place.
        buckets: See ``observe_values``.
        rounding: The tensor's grid, where it has a fixed one: adds the error ``rounding``.
        deployed: The same tensor of the quantized model, where it is seen: adds the error ``accumulated``, and
            extremes and histogram of its values.

    Returns:
        Smallest and largest finite value of everything that has a bucket of its own, shape ``[2, len(buckets)]``.
    """
    ends = observe_values(x, into, buckets)
    if rounding is not None:
        observe_rounding(x, *rounding, into)
    if deployed is not None:
        values = deployed.values()
        observe_error(x, values, into, "accumulated")
        observe_deployed(values, into, buckets)
    return ends


def observe_values(x: Float32, into: TensorStatistics, buckets: NDArray[np.int64]) -> Ends:
    """Add moments, exact extremes, histogram and bucket extremes of a float tensor.

    Args:
        x: Values, shape ``[outer, channels, inner]``.
        into: Statistics of the tensor, changed in place.
        buckets: Bucket of the sample that each outer index belongs to, shape ``[outer]``; -1 for none. With one outer
            index and several buckets, the inner axis holds as many samples side by side.

    Returns:
        Smallest and largest finite value of everything that has a bucket of its own, shape ``[2, len(buckets)]``.
    """
    parts = zip(_by_bucket(x, buckets), buckets, strict=True)
    ends = np.array([_extend_bucket(part, bucket, into) for part, bucket in parts])
    finite = np.isfinite(x)
    for c in range(x.shape[1]):
        values = x[:, c][finite[:, c]].astype(np.float64)
        into.nonfinite[c] += finite[:, c].size - values.size
        if not values.size:
            continue
        mean = values.mean()
        m2 = ((values - mean) ** 2).sum()
        merge_moments(into, c, values.size, mean, m2)
        into.min[c] = min(into.min[c], values.min())
        into.max[c] = max(into.max[c], values.max())
    into.histogram += _bin_counts(x)
    return ends.reshape(-1, 2).T


def observe_deployed(y: Float32, into: TensorStatistics, buckets: NDArray[np.int64]) -> None:
    """Add the exact extremes of the deployed values, and a histogram of those that are shown.

    Shown are the values of the first ``SHOWN_BUCKETS`` buckets, and those without a bucket.

    Args:
        y: Values of the quantized model, shape ``[outer, channels, inner]``.
        into: Statistics of the tensor, changed in place.
        buckets: See ``observe_values``.
    """
    finite = np.isfinite(y)
    np.minimum(into.deployed_min, y.min(axis=(0, 2), initial=np.inf, where=finite), out=into.deployed_min)
    np.maximum(into.deployed_max, y.max(axis=(0, 2), initial=-np.inf, where=finite), out=into.deployed_max)
    for part, bucket in zip(_by_bucket(y, buckets), buckets, strict=True):
        if bucket < SHOWN_BUCKETS:
            into.quantized_histogram += _bin_counts(part)


def _by_bucket(x: Float32, buckets: NDArray[np.int64]) -> list[Float32]:
    """What belongs to each entry of ``buckets``."""
    return np.split(x, len(buckets), axis=2) if len(x) == 1 and len(buckets) > 1 else list(x)


def _bin_counts(x: Float32) -> NDArray[np.int64]:
    """Finite values by their leading bits."""
    bits = np.ascontiguousarray(x).view(np.uint32)[np.isfinite(x)]
    return np.bincount(bits >> SHIFT, minlength=BINS)


def _extend_bucket(values: Float32, bucket: int, into: TensorStatistics) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = finite.min(initial=np.inf), finite.max(initial=-np.inf)
    if bucket >= 0:
        into.bucket_min[bucket] = min(into.bucket_min[bucket], low)
        into.bucket_max[bucket] = max(into.bucket_max[bucket], high)
    return float(low), float(high)


def observe_error(x: Float32, y: Float32, into: TensorStatistics, kind: str) -> None:
    """Add the difference ``y - x`` of two tensors of shape ``[outer, channels, inner]``, finite pairs only."""
    finite = np.isfinite(x) & np.isfinite(y)
    errors = into.errors[kind]
    if kind != "rounding":  # there, y follows from x
        errors["nonfinite"] += np.logical_not(np.isfinite(y)).sum(axis=(0, 2))
    for c in range(x.shape[1]):
        mask = finite[:, c]
        a, b = x[:, c][mask].astype(np.float64), y[:, c][mask].astype(np.float64)
        d = b - a
        for name, value in zip(ERROR_FIELDS, (d.size, d.sum(), d @ d, a @ d, a @ a), strict=True):
            errors[name][c] += value
        errors["max"][c] = max(errors["max"][c], np.abs(d).max(initial=0.0))


def observe_rounding(x: Float32, scale: Float32, low: Float32, high: Float32, into: TensorStatistics) -> None:
    """Add the error of rounding to the codes ``low … high`` (relative to the zero point) and what is clipped.

    Args:
        x: Values, shape ``[outer, channels, inner]``.
        scale: Step per channel, shape ``[channels]``.
        low: Lowest code minus zero point per channel.
        high: Highest code minus zero point per channel.
        into: Statistics of the tensor, changed in place.
    """
    shape = (1, -1, 1)
    steps = x / scale.reshape(shape)
    codes = np.rint(steps)
    y = np.clip(codes, low.reshape(shape), high.reshape(shape)) * scale.reshape(shape)
    observe_error(x, y.astype(np.float32), into, "rounding")
    below, above = codes < low.reshape(shape), codes > high.reshape(shape)
    clipped = (below | above) & np.isfinite(x)
    into.clipped += clipped.sum(axis=(0, 2))
    square = np.where(clipped, (y.astype(np.float64) - x) ** 2, 0.0)
    into.clipped_energy += square.sum(axis=(0, 2))


def merge_moments(into: TensorStatistics, c: Any, count: Any, mean: Any, m2: Any) -> None:
    """Chan, Golub and LeVeque's update of (count, mean, M2) by another set's.

    Of one channel ``c``, or of several at once: then all are arrays.
    """
    total = into.count[c] + count
    delta = mean - into.mean[c]
    into.m2[c] += m2 + delta * delta * into.count[c] * count / total
    into.mean[c] += delta * count / total
    into.count[c] = total


def sample_moments(x: Float32) -> tuple[Float32, Float32, Float32, NDArray[np.int64]]:
    """Per sample of ``[samples, values]``: mean, deviation, share of values at the maximum, non-finite values.

    Non-finite values count as zeros in the first three.
    """
    finite = np.isfinite(x)
    values = np.where(finite, x, 0.0).astype(np.float64)
    columns = values.mean(axis=1), values.std(axis=1), (values == values.max(axis=1, keepdims=True)).mean(axis=1)
    mean, deviation, saturated = (column.astype(np.float32) for column in columns)
    return mean, deviation, saturated, np.logical_not(finite).sum(axis=1)


def distinct(x: Float32, limit: int) -> Float32:
    """Sorted distinct finite values of ``x``, at most ``limit`` of them; 0.0 and -0.0 are one value."""
    return np.unique(x[np.isfinite(x)] + np.float32(0))[:limit]
