"""Intervals of metrics that are no means: samples are drawn anew, for both models the same ones."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.metrics.counts import Estimate
from quantmedic.engine.metrics.paired import interval_quantile, resampled_times
from quantmedic.engine.special_functions import normal_quantile, normal_share

Floats = NDArray[np.float64]
_RESAMPLES, _FEWEST = 2000, 300
#: Rows of a tally that all resamples together may read.
_WORK = 20_000_000


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
