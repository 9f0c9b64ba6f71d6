"""What a change recovers at the output, from the noise of every sample before and after."""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.decibels import to_decibels

Floats = NDArray[np.float64]
#: Noise below this share of what it was counts as gone: 60 dB.
NOISELESS = 1e-6
_RESAMPLES = 2000
#: Values that one block of resamples may hold, so that memory does not grow with the samples.
_BLOCK = 4_000_000


class Gain(NamedTuple):
    """What a change recovers at the output, with 95 % intervals; no interval of fewer than two samples.

    ``typical``: the gain in dB is that of the median sample; the share is always of the summed noise power.
    """

    gain_db: float
    low_db: float | None
    high_db: float | None
    share: float
    share_low: float | None
    share_high: float | None
    typical: bool = False


class Interval(NamedTuple):
    """A number with its interval."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> float:
        """The end that is nearer to 0; 0 where the interval holds 0."""
        return max(self.low, 0.0) + min(self.high, 0.0)


def typical_gain(before: Floats, after: Floats) -> Interval | None:
    """Gain in dB of the median sample; None of fewer than eight samples, which have no such interval.

    The interval lies between two order statistics, whatever the distribution (Conover 1999, chapter 3.2): of 99 %, for
    this is the second way in which a remedy may prove itself. Where few samples hold most of the noise power, its sum
    depends on them alone, and this does not.

    Args:
        before: Noise power at the output per sample, ``[samples]``.
        after: The same with the remedy.
    """
    cut = _samples_beyond(len(before))
    if cut is None:
        return None
    ratio = np.divide(before, after, out=np.full(len(before), np.inf), where=after > 0)
    ratio[(before <= 0) & (after <= 0)] = 1.0
    gains = np.sort(to_decibels(np.clip(ratio, NOISELESS, 1 / NOISELESS)))
    return Interval(float(np.median(gains)), float(gains[cut]), float(gains[-1 - cut]))


@cache
def _samples_beyond(samples: int) -> int | None:
    """Samples beyond either end of the median's interval: at most so many heads of as many coins in 0.5 % of all."""
    ways, summed, cut = 1, 0, None
    for heads in range(samples // 2):
        summed += ways
        if 200 * summed > 2**samples:
            break
        cut = heads
        ways = ways * (samples - heads) // (heads + 1)
    return cut


def speaks_typical(pooled: Interval, typical: Interval | None) -> bool:
    """The median sample speaks for a remedy, and not the summed noise power.

    It gains for sure, and the sum neither does nor surely loses as much; or it loses more for sure than the sum gains.
    """
    if typical is None or typical.sure * pooled.sure > 0 or abs(typical.sure) <= abs(pooled.sure):
        return False
    return typical.sure > 0 or pooled.sure > 0


def gain_of(before: Floats, after: Floats, seed: int = 0) -> Gain:
    """Gain in dB and share of the noise power that is gone.

    The intervals are percentiles of a seeded bootstrap over samples (Efron and Tibshirani 1993, chapter 13), both
    networks on the same ones. The gain is that of the median sample where this speaks (`speaks_typical`).

    Args:
        before: Noise power at the output per sample, ``[samples]``.
        after: The same with the remedy.
        seed: Seed of the bootstrap.
    """
    share, low, high = pooled_share(before, after, seed)
    pooled = Interval(*map(gain_without_share, (share, low, high)))
    if len(before) < 2:
        return Gain(pooled.value, None, None, share, None, None)
    typical = typical_gain(before, after)
    if typical is not None and speaks_typical(pooled, typical):
        return Gain(*typical, share, low, high, typical=True)
    return Gain(*pooled, share, low, high)


def pooled_share(before: Floats, after: Floats, seed: int = 0) -> Interval:
    """Share of the summed noise power that is gone, with the bootstrap of `gain_of`; of one sample the share alone."""
    share = _share_gone(before.sum(keepdims=True), after.sum(keepdims=True)).item()
    if len(before) < 2:
        return Interval(share, share, share)
    rng = np.random.default_rng(seed)
    rows = max(_BLOCK // len(before), 1)
    found = []
    for start in range(0, _RESAMPLES, rows):
        picks = rng.integers(0, len(before), (min(rows, _RESAMPLES - start), len(before)))
        found.append(_share_gone(before[picks].sum(axis=1), after[picks].sum(axis=1)))
    return Interval(share, *np.quantile(np.concatenate(found), [0.025, 0.975]).tolist())


def _share_gone(before: Floats, after: Floats) -> Floats:
    """1 - after / before; 0 where there was no noise before."""
    return 1.0 - np.divide(after, before, out=np.ones_like(before), where=before > 0)


def gain_without_share(share: float) -> float:
    """What the output gains without such a share of its noise, in decibels."""
    return -to_decibels(max(1.0 - share, NOISELESS))


def share_of_gain(gain_db: float) -> float:
    """The share of the output's noise that is gone where it gains so many decibels."""
    return float(1.0 - 10.0 ** (-gain_db / 10.0))
