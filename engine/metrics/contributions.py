"""A task metric as one number per sample, so that what a network loses of it can be divided."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics import paired
from quantmedic.engine.metrics.kinds import Interval, MetricKind

Floats = NDArray[np.float64]


def contributions(kind: MetricKind, tally: Tally) -> Floats:
    """One number per sample, whose mean is the metric; NaN for all where the metric of one is not known.

    Of a mean they are its numbers. Of any other metric they are the pseudo-values of the jackknife (Tukey 1958), moved
    so that their mean is the metric itself: what the metric has with a sample more than without it, times the samples.
    """
    count = len(tally)
    if count < 2 or not tally.known.all():
        return np.full(count, np.nan)
    if kind.estimate is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            left_out = kind.estimate(tally)(1.0 - np.eye(count))
    else:
        numbers = kind.numbers(tally)
        if not kind.root:
            return numbers
        left_out = np.sqrt(np.maximum((numbers.sum() - numbers) / (count - 1), 0.0))
    found: Floats = kind.value(tally) + (count - 1) * (left_out.mean() - left_out)
    return found


def loss_interval(losses: Floats, *, is_share: bool, seed: int = 0) -> Interval:
    """Mean of what each sample lost, and its 95 % interval.

    Samples of a share lose and gain at most 1 each. Parts of a sample are taken as so many whole ones, which no loss
    between -1 and 1 of the same mean spreads more than: so the paired score interval holds, also where no sample of
    those seen lost anything. All others have the bootstrap of `paired.drop_interval`; where no sample of those loses
    anything, it has no width.

    Args:
        losses: One number per sample, at least one; positive means worse.
        is_share: The metric is a share.
        seed: Seed of the bootstrap.
    """
    if is_share and bool((np.abs(losses) <= 1.0).all()):
        lost, won = float(losses[losses > 0].sum()), float(-losses[losses < 0].sum())
        low, high = paired.score_interval(lost, won, len(losses))
        return float(losses.mean()), float(low), float(high)
    if not losses.any():
        return 0.0, 0.0, 0.0
    return paired.drop_interval(losses, np.zeros_like(losses), higher_is_better=True, seed=seed)
