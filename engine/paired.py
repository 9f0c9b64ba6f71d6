"""Paired comparison of a metric before and after quantization."""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
#: Values that one block of resamples may hold, so that memory does not grow with the samples.
_BLOCK = 4_000_000


def drop_interval(
    floats: NDArray[np.float64],
    quantized: NDArray[np.float64],
    *,
    higher_is_better: bool,
    root: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Drop of a per-sample metric and its confidence interval; positive means worse.

    Values of 0 and 1 alone get the paired score interval (Newcombe 1998, method 10), all others a seeded percentile
    bootstrap over samples.

    Args:
        floats: Metric of the float model, one value per sample.
        quantized: Metric of the quantized model on the same samples.
        higher_is_better: Direction of the metric.
        root: The metric is the square root of the mean (rmse, given squared errors).
        confidence: Coverage of the interval.
        seed: Seed of the bootstrap.
    """
    sign = 1.0 if higher_is_better else -1.0
    binary = not root and bool(np.isin(floats, (0, 1)).all() and np.isin(quantized, (0, 1)).all())
    if binary:
        drop, low, high = _newcombe(floats, quantized, confidence)
    else:
        drop, low, high = _bootstrap(floats, quantized, root, confidence, seed)
    return (drop, low, high) if sign > 0 else (-drop, -high, -low)


def mean_interval(
    values: NDArray[np.float64], *, root: bool = False, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Confidence interval of a per-sample metric's mean: Wilson's score interval of zeros and ones, else a bootstrap.

    Args:
        values: Metric of one model, one value per sample.
        root: The metric is the square root of the mean (rmse, given squared errors).
        confidence: Coverage of the interval.
        seed: Seed of the bootstrap.
    """
    if not root and bool(np.isin(values, (0, 1)).all()):
        return _wilson(float(values.mean()), len(values), confidence)
    # The mean of a metric is its drop to a model that always gets 0.
    _, low, high = _bootstrap(values, np.zeros(len(values)), root, confidence, seed)
    return low, high


def independent_difference(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Difference of two independent estimates and its interval: square-and-add (Zou and Donner 2008).

    Args:
        first: Estimate, lower and upper end of its interval.
        second: The same, which is subtracted.
    """
    (a, low_a, high_a), (b, low_b, high_b) = first, second
    difference = a - b
    below, above = math.hypot(a - low_a, high_b - b), math.hypot(high_a - a, b - low_b)
    return difference, difference - below, difference + above


def _newcombe(a: NDArray[np.float64], b: NDArray[np.float64], confidence: float) -> tuple[float, float, float]:
    n = len(a)
    both, only_a = float((a * b).sum()), float((a * (1 - b)).sum())
    only_b = float(((1 - a) * b).sum())
    neither = n - both - only_a - only_b
    first, second = (both + only_a) / n, (both + only_b) / n
    (low1, high1), (low2, high2) = (_wilson(p, n, confidence) for p in (first, second))
    product = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    phi = 0.0
    if product > 0:
        excess = both * neither - only_a * only_b
        phi = (max(excess - n / 2, 0.0) if excess > 0 else excess) / math.sqrt(product)
    drop = first - second
    down = (first - low1) ** 2 - 2 * phi * (first - low1) * (high2 - second) + (high2 - second) ** 2
    up = (high1 - first) ** 2 - 2 * phi * (high1 - first) * (second - low2) + (second - low2) ** 2
    return drop, drop - math.sqrt(max(down, 0.0)), drop + math.sqrt(max(up, 0.0))


def _wilson(share: float, n: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def _bootstrap(
    a: NDArray[np.float64], b: NDArray[np.float64], root: bool, confidence: float, seed: int
) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    finish = np.sqrt if root else (lambda values: values)
    drops = []
    rows = min(max(_BLOCK // len(a), 1), _RESAMPLES)
    for start in range(0, _RESAMPLES, rows):
        picks = rng.integers(0, len(a), (min(rows, _RESAMPLES - start), len(a)))
        drops.append(finish(a[picks].mean(axis=1)) - finish(b[picks].mean(axis=1)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drops), [tail, 1 - tail])
    return float(finish(a.mean()) - finish(b.mean())), float(low), float(high)
