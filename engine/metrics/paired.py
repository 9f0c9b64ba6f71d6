"""Paired comparison of a metric before and after quantization: drops and their intervals."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantmedic.engine.metrics.counts import Estimate
from quantmedic.engine.special_functions import binomial_share, normal_quantile, normal_share

Floats = NDArray[np.float64]
#: Value of a statistic of two means, and its derivatives by both.
Statistic = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]

_RESAMPLES, _FEWEST = 2000, 300
#: Rows of a tally that all resamples together may read.
_WORK = 20_000_000
#: Values that one block of resamples may hold, so that memory does not grow with the samples.
_BLOCK = 4_000_000
#: A resample counts as spread out at least this much as the samples, so that a few equal ones do not end in infinity.
_LEAST_SPREAD = 0.25
#: Counts come in whole samples, and a bound lies half of one further out.
_CONTINUITY = 0.5
#: How often an interval is cut, and into how many pieces: to 12 digits of a share.
_ROUNDS, _PIECES = 10, 16


def drop_interval(
    floats: Floats,
    quantized: Floats,
    *,
    higher_is_better: bool,
    relative: bool = False,
    root: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Drop of a per-sample metric and its confidence interval; positive means worse.

    Values of 0 and 1 alone get the paired score interval (`score_interval`), all others a seeded studentized bootstrap
    over samples (Hall 1988): its quantiles are those of drop over standard error, so that skewed differences do not
    favour one end. Differences that are all equal, those of one sample among them, have an interval without width.

    The relative drop of zeros and ones, where 1 is right, has the interval of the drop over the measured metric: what
    is lost was right before, so that the chance of the metric itself only takes from the spread at a given relative
    drop. All others get the bootstrap of the ratio; where the metric is a root, of the ratio of its squares.

    Args:
        floats: Metric of the float model, one value per sample.
        quantized: Metric of the quantized model on the same samples.
        higher_is_better: Direction of the metric.
        relative: The drop over the magnitude of the float model's metric, which must not be 0.
        root: The metric is the square root of the mean (rmse, given squared errors).
        confidence: Coverage of the interval.
        seed: Seed of the bootstrap.
    """
    if not root and is_binary(floats, quantized) and (higher_is_better or not relative):
        losses, gains = discordant(floats, quantized)
        low, high = score_interval(losses, gains, len(floats), confidence)
        level = float(floats.mean()) if relative else 1.0
        found = (losses - gains) / len(floats) / level, float(low) / level, float(high) / level
    elif relative:
        found = _bootstrap(floats, quantized, _relative_drop, confidence, seed)
        if root:  # 1 - √(b / a), where 1 - b / a was found
            drop, below, above = (1 - math.sqrt(max(1 - value, 0.0)) for value in found)
            found = drop, below, above
    else:
        found = _bootstrap(floats, quantized, _difference_of_roots if root else _difference_of_means, confidence, seed)
    return worse_is_positive(found, higher_is_better)


def mean_interval(
    values: Floats, *, root: bool = False, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Confidence interval of a per-sample metric's mean: `share_interval` of zeros and ones, else a bootstrap.

    Args:
        values: Metric of one model, one value per sample.
        root: The metric is the square root of the mean (rmse, given squared errors).
        confidence: Coverage of the interval.
        seed: Seed of the bootstrap.
    """
    if not root and is_binary(values):
        ends = share_interval(values.sum(), len(values), confidence)
        return float(ends[0]), float(ends[1])
    _, low, high = _bootstrap(values, values, _root_of_one if root else _mean_of_one, confidence, seed)
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


def interval_quantile(confidence: float) -> float:
    """Quantile of the standard normal distribution at the upper end of a two-sided interval."""
    return normal_quantile(0.5 + confidence / 2)


def resampled_times(samples: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each sample is drawn in each resample, ``[resamples, samples]`` in blocks."""
    rng = np.random.default_rng(seed)
    rows = min(max(_BLOCK // samples, 1), resamples)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        picks = rng.integers(0, samples, (count, samples)) + samples * np.arange(count)[:, np.newaxis]
        times = np.bincount(picks.reshape(-1), minlength=count * samples)
        yield times.reshape(count, samples).astype(np.float64)


def is_binary(*columns: Floats) -> bool:
    """Every value is 0 or 1."""
    return all(bool(np.isin(values, (0, 1)).all()) for values in columns)


def discordant(floats: Floats, quantized: Floats) -> tuple[int, int]:
    """Of zeros and ones: samples that only the float model got right (losses), and only the quantized one (gains)."""
    return int((floats > quantized).sum()), int((quantized > floats).sum())


def score_interval(
    losses: ArrayLike, gains: ArrayLike, samples: ArrayLike, confidence: float = 0.95
) -> tuple[Floats, Floats]:
    """Confidence interval of the drop (losses - gains) / samples of paired zeros and ones, by counts or arrays of them.

    The asymptotic score interval of Tango (1998), each end corrected for the skewness of the counts (Gart and Nam 1990;
    Laud 2017) and by half a sample, for they are whole, but never narrower than Tango's. Either end is missed with a
    probability of at most (1 - confidence) / 2 for 50 samples and more, except where nearly all samples are
    discordant: there by a tenth more, in simulated runs.

    Args:
        losses: Samples that only the float model got right.
        gains: Samples that only the quantized model got right.
        samples: All samples, at least one.
        confidence: Coverage of the interval.
    """
    b, c, n = (np.asarray(counts, np.float64) for counts in np.broadcast_arrays(losses, gains, samples))
    z = interval_quantile(confidence)
    return _lower_drop(b, c, n, z), -_lower_drop(c, b, n, z)


def share_interval(hits: ArrayLike, samples: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Confidence interval of a share: Wilson's score interval with the corrections of `score_interval`.

    It is close to the exact interval of Clopper and Pearson (Laud 2017).
    """
    k, n = (np.asarray(counts, np.float64) for counts in np.broadcast_arrays(hits, samples))
    z = interval_quantile(confidence)
    return _lower_share(k, n, z), 1 - _lower_share(n - k, n, z)


def null_moments(losses: ArrayLike, gains: ArrayLike, samples: ArrayLike, drop: ArrayLike) -> tuple[Floats, Floats]:
    """Of a sample's loss (1), gain (-1) or neither (0), if the drop were the given one: variance, and third central
    moment over variance.

    The share of gains is then its maximum-likelihood estimate (Tango 1998), the root of a quadratic equation.
    """
    b, c, n = (np.asarray(counts, np.float64) for counts in (losses, gains, samples))
    drop = np.asarray(drop, np.float64)
    half = (2 * n - b + c) * drop - b - c
    gain = (np.sqrt(np.maximum(half * half + 8 * n * c * drop * (1 - drop), 0)) - half) / (4 * n)
    gain = np.clip(gain, np.maximum(0, -drop), (1 - drop) / 2)
    discordance = np.clip(2 * gain + drop, np.abs(drop), 1)
    variance = discordance - drop * drop
    third = drop - 3 * drop * discordance + 2 * drop**3
    return variance, np.divide(third, variance, out=np.zeros_like(variance), where=variance > 1e-14)


def margin(variance: Floats, skew: Floats, samples: Floats | float, z: float) -> Floats:
    """How far, in samples, a count has to lie above what is expected, to exclude what was expected.

    The normal quantile with the first term of Cornish and Fisher for the skewness, and half a sample.

    Args:
        variance: Variance of one sample.
        skew: Its third central moment over its variance; with the other sign for counts below.
        samples: Number of samples.
        z: Quantile of the standard normal distribution.
    """
    correction = np.maximum(_CONTINUITY + (z * z - 1) / 6 * skew, 0)
    return z * np.sqrt(samples * variance) + correction


def mcnemar(losses: int, gains: int) -> float:
    """Exact two-sided p of McNemar's test: of as many discordant samples, half are losses if nothing changed."""
    # This is scipy.stats.binomtest, which takes a second to import.
    return min(2 * binomial_share(min(losses, gains), losses + gains, 0.5), 1.0)


def worse_is_positive(found: tuple[float, float, float], higher_is_better: bool) -> tuple[float, float, float]:
    """A drop and its interval, with the sign turned where lower is better."""
    drop, low, high = found
    return (drop, low, high) if higher_is_better else (-drop, -high, -low)


def _lower_drop(b: Floats, c: Floats, n: Floats, z: float) -> Floats:
    def excludes(drop: Floats) -> NDArray[np.bool_]:
        return b - c - n * drop > margin(*null_moments(b, c, n, drop), n, z)

    return _lowest_kept(np.full(b.shape, -1.0), (b - c) / n, excludes)


def _lower_share(k: Floats, n: Floats, z: float) -> Floats:
    def excludes(share: Floats) -> NDArray[np.bool_]:
        return k - n * share > margin(share * (1 - share), 1 - 2 * share, n, z)

    return _lowest_kept(np.zeros(k.shape), k / n, excludes)


def _lowest_kept(start: Floats, end: Floats, excludes: Callable[[Floats], NDArray[np.bool_]]) -> Floats:
    """Where values stop to be excluded; ``start`` where it is not excluded itself.

    The interval is cut into pieces again and again; to ask of several values at once costs hardly more than of one.
    """
    steps = np.arange(_PIECES).reshape(-1, *(1,) * start.ndim)
    low, width = start, end - start
    for _ in range(_ROUNDS):
        width = width / _PIECES
        excluded = excludes(low + steps * width).sum(axis=0)
        low, width = low + np.maximum(excluded - 1, 0) * width, np.where(excluded > 0, width, 0.0)
    return low + width


def _mean_of_one(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    return a, np.ones_like(a), np.zeros_like(a)


def _difference_of_means(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    return a - b, np.ones_like(a), -np.ones_like(a)


def _root_of_one(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    root = np.sqrt(np.maximum(a, 0))
    slope = np.divide(0.5, root, out=np.zeros_like(root), where=root > 0)  # of a mean that is always 0, nothing varies
    return root, slope, np.zeros_like(a)


def _difference_of_roots(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    (first, by_a, _), (second, by_b, _) = _root_of_one(a, b), _root_of_one(b, a)
    return first - second, by_a, -by_b


def _relative_drop(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    return (a - b) / np.abs(a), b / (a * np.abs(a)), -1 / np.abs(a)


def _bootstrap(a: Floats, b: Floats, statistic: Statistic, confidence: float, seed: int) -> tuple[float, float, float]:
    """Statistic of the means of both columns, and its studentized bootstrap interval.

    Standard errors are those of the delta method. Sums are taken around the means, and of the differences instead of
    one of the columns, so that neither a large level nor small differences cost digits.
    """
    n, middle, shift = len(a), float(a.mean()), float((a - b).mean())
    level, change = a - middle, (a - b) - shift
    columns = np.stack([level, change, level * level, level * change, change * change], axis=1)

    def estimate(sums: Floats) -> tuple[Floats, Floats]:
        first, other, *squares = sums.T
        mean = middle + first
        value, by_a, by_b = statistic(mean, mean - (shift + other))
        of_level, of_change = by_a + by_b, -by_b
        xx, xy, yy = squares[0] - first**2, squares[1] - first * other, squares[2] - other**2
        variance = of_level**2 * xx + 2 * of_level * of_change * xy + of_change**2 * yy
        return value, np.sqrt(np.maximum(variance, 0) / n)

    with np.errstate(divide="ignore", invalid="ignore"):
        (value,), (error,) = estimate(columns.mean(axis=0)[np.newaxis])
        drop = float(value)
        if not error > 1e-12 * abs(drop):
            return drop, drop, drop
        found = []
        for times in resampled_times(n, _RESAMPLES, seed):
            values, errors = estimate(times @ columns / n)
            found.append((values - drop) / np.fmax(errors, _LEAST_SPREAD * error))
    ratios = np.concatenate(found)
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios[np.isfinite(ratios)], [tail, 1 - tail])
    return drop, drop - float(high * error), drop - float(low * error)


def resampled_interval(
    estimates: tuple[Estimate, ...],
    statistic: Callable[..., Floats],
    *,
    samples: int,
    rows: int,
    confidence: float,
    seed: int,
) -> tuple[float, float, float]:
    """Statistic of metrics over the same samples, and its bootstrap interval.

    Each end is the farther one of the bias-corrected percentile interval (Efron 1987) and of Student's with the
    standard error of the bootstrap: where few samples differ, the first alone is too narrow. The percentiles are as far
    out as Student's quantiles are (Hesterberg 2015). Resamples in which a metric is not defined are left out.

    Args:
        estimates: The metric of each model, given how often each sample counts.
        statistic: Takes their values, ``[choices]`` each.
        samples: Samples of the tallies, at least one.
        rows: Rows of the largest tally: of more, fewer resamples are drawn.
        confidence: Coverage of the interval.
        seed: Seed of the bootstrap.
    """
    count = int(np.clip(_WORK // max(rows, 1), _FEWEST, _RESAMPLES))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(*(estimate(np.ones((1, samples))) for estimate in estimates))[0])
        drawn = np.concatenate(
            [statistic(*(estimate(t) for estimate in estimates)) for t in resampled_times(samples, count, seed)]
        )
    drawn = drawn[np.isfinite(drawn)]
    if not math.isfinite(value) or len(drawn) < count / 2 or samples < 2:
        return value, value, value
    below = ((drawn < value).sum() + 0.5 * (drawn == value).sum()) / len(drawn)
    bias = normal_quantile(float(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn))))
    z = _student_quantile(interval_quantile(confidence), samples - 1)
    low, high = np.quantile(drawn, normal_share([2 * bias - z, 2 * bias + z]))
    reach = z * float(drawn.std())
    return value, min(float(low), value - reach), max(float(high), value + reach)


def _student_quantile(z: float, freedom: int) -> float:
    """Student's quantile by the normal one: the first terms of Cornish and Fisher (Abramowitz and Stegun 26.7.5)."""
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
