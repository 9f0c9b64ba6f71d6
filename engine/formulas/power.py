"""How many samples a decision about a drop takes."""

import math

import numpy as np
from pydantic import Field

from quantmedic.engine.json_record import Contract
from quantmedic.engine.metrics.paired import Floats, interval_quantile, margin, null_moments, share_interval
from quantmedic.engine.special_functions import normal_quantile, normal_share

#: A proposal finds what it is made for in 9 of 10 runs; it aims higher by what the approximation may be off.
POWER = 0.91
#: Proposals beyond this are none.
MOST_SAMPLES = 10_000_000
#: The share of gains is taken from the upper end of its interval at this confidence: with the estimate itself, few
#: samples propose too few as often as too many, and then too few find less than too many find more.
_GAIN_CONFIDENCE = 0.3


class SampleSizes(Contract):
    """Samples that a decision takes, with the discordance or spread that was measured."""

    now: int = Field(description="samples that were measured")
    at_twice: int | None = Field(
        default=None,
        description="samples that find a drop of twice the limit in 9 of 10 runs, and accept none as often",
    )
    at_measured: int | None = Field(
        default=None, description="samples whose interval would end at the limit if the drop is the measured one"
    )


def power(
    samples: float, drop: float, limit: float, discordance: float, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Probabilities of REGRESSION, INSUFFICIENT_DATA and ACCEPT for a 0/1 metric, by normal approximation.

    The bounds are those of `paired.score_interval`, taken at the expected counts.

    Args:
        samples: Samples that are measured.
        drop: Real drop, as a share.
        limit: Largest drop that is let pass, as a share.
        discordance: Share of samples that only one of the two models gets right; at least the drop.
        confidence: Coverage of the interval.
    """
    z = interval_quantile(confidence)
    losses, gains = (max(discordance + turn * drop, 0.0) / 2 for turn in (1, -1))
    variance, skew = null_moments(losses * samples, gains * samples, samples, limit)
    distance = samples * (drop - limit)
    deviation = math.sqrt(samples * max(losses + gains - drop * drop, 0.0))
    regression = _probability(distance - float(margin(variance, skew, samples, z)), deviation)
    accept = _probability(-distance - float(margin(variance, -skew, samples, z)), deviation)
    return regression, max(1.0 - regression - accept, 0.0), accept


def sizes_of_counts(losses: int, gains: int, samples: int, limit: float, confidence: float) -> SampleSizes:
    """Sample sizes for a 0/1 metric.

    A drop adds losses; the gains stay. The models of a proposal gain as often as measured, and lose as often where
    there is no drop.

    Args:
        losses: Samples that only the float model got right.
        gains: Samples that only the quantized model got right.
        samples: All samples.
        limit: Largest drop that is let pass, as a share.
        confidence: Coverage of the interval.
    """
    gain = float(share_interval(gains, samples, _GAIN_CONFIDENCE)[1])
    return SampleSizes(
        now=samples,
        at_twice=_at_twice(limit, gain, confidence) if 0 < limit <= 0.5 - gain else None,
        at_measured=_at_measured(losses, gains, samples, limit, confidence),
    )


def sizes_of_share(hits: int, samples: int, least: float, confidence: float) -> SampleSizes:
    """Samples at which the measured share would be above or below the least one that is let pass.

    Args:
        hits: Samples that count.
        samples: All samples.
        least: Least share that is let pass.
        confidence: Coverage of the interval.
    """
    away = hits / samples - least
    variance, skew = np.array(least * (1 - least)), np.array(1 - 2 * least)
    return SampleSizes(now=samples, at_measured=_until(away, variance, math.copysign(1, away) * skew, confidence))


def sizes_of_interval(
    drop: float, low: float, high: float, samples: int, limit: float, confidence: float
) -> SampleSizes:
    """Sample sizes for any other metric, whose interval narrows with the square root of the samples.

    Args:
        drop: Measured drop.
        low: Lower end of its interval.
        high: Upper end.
        samples: All samples.
        limit: Largest drop that is let pass, in the unit of the drop.
        confidence: Coverage of the interval.
    """
    z = interval_quantile(confidence)
    reach, wider = (drop - low if drop > limit else high - drop), max(drop - low, high - drop)
    found = (1 + normal_quantile(POWER) / z) * wider
    return SampleSizes(
        now=samples,
        at_twice=_samples_to_narrow(samples, found, limit) if wider > 0 else None,
        at_measured=_samples_to_narrow(samples, reach, abs(drop - limit)),
    )


def _probability(excess: float, deviation: float) -> float:
    return float(normal_share(excess / deviation)) if deviation > 0 else float(excess > 0)


def _at_twice(limit: float, gain: float, confidence: float) -> int | None:
    """Smallest number that finds twice the limit and accepts no drop, by bisection."""

    def suffices(samples: int) -> bool:
        found, _, _ = power(samples, 2 * limit, limit, 2 * gain + 2 * limit, confidence)
        _, _, accepted = power(samples, 0.0, limit, 2 * gain, confidence)
        return min(found, accepted) >= POWER

    few, enough = 0, 1
    while not suffices(enough):
        few, enough = enough, 2 * enough
        if few >= MOST_SAMPLES:
            return None
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if suffices(middle) else (middle, enough)
    return enough


def _at_measured(losses: int, gains: int, samples: int, limit: float, confidence: float) -> int | None:
    away = (losses - gains) / samples - limit
    variance, skew = null_moments(losses, gains, samples, limit)
    return _until(away, variance, math.copysign(1, away) * skew, confidence)


def _until(away: float, variance: Floats, skew: Floats, confidence: float) -> int | None:
    """Samples from which on a distance exceeds its margin: a quadratic equation in their square root."""
    if not away:
        return None
    z = interval_quantile(confidence)
    constant, linear = float(margin(variance, skew, 0, z)), z * math.sqrt(float(variance))
    root = (linear + math.sqrt(linear**2 + 4 * abs(away) * constant)) / (2 * abs(away))
    return _round_up(root**2)


def _samples_to_narrow(samples: int, reach: float, wanted: float) -> int | None:
    if not wanted > 0:
        return None
    narrower = reach / wanted
    return _round_up(samples * narrower * narrower)  # a power would not overflow to infinity


def _round_up(samples: float) -> int | None:
    """Rounded up; a last bit is not another sample."""
    return max(math.ceil(samples * (1 - 1e-12)), 1) if samples <= MOST_SAMPLES else None
