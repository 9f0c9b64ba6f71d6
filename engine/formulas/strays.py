"""Single samples whose values are many times as large as those of all others: of other units, or damaged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.statistics import SampleTable

RoleT = TypeVar("RoleT", bound=str)
#: Fewer samples do not show how much the samples of a set differ by nature.
ENOUGH = 16
#: At most this share of a set can be strays, and one sample always can; more are a kind of their own.
FEW = 0.05
#: A stray is so many times as large as the largest of all others.
APART = 3.0
#: A stray lies ln(n) + 3 spreads, of the logarithm of the magnitude, above the middle of n samples. The largest of n
#: magnitudes that follow a power law, a heavier tail than sound or embeddings have, does so once in a hundred sets:
#: their logarithms are exponential, with the maximum at ln(n) plus a Gumbel variable.
SPREADS = 3.0
#: A spread that n samples show may be too small: they have to lie apart by this part of n more.
DOUBT = 16
#: Samples of one magnitude spread by that much at least: 5 %.
LEAST_SPREAD = 0.05
#: Share of its samples that lies below one spread above the middle of a normal distribution.
_ONE_SPREAD = 0.8413
_NAMED = 5


@dataclass(frozen=True)
class Strays:
    """Samples far above all others.

    Attributes:
        places: Where they stand in the set, counted from 0.
        factor: Magnitude of the smallest of them over that of the middle sample.
        middle: Magnitude of the middle sample.
        limit: Magnitude between them and all others.
    """

    places: tuple[int, ...]
    factor: float
    middle: float
    limit: float


def words_of(places: Sequence[int]) -> str:
    """Which samples, as text."""
    named = ", ".join(map(str, places[:_NAMED]))
    if len(places) > _NAMED:
        return f"{len(places)} samples ({named}, …)"
    return f"sample{'s' if len(places) > 1 else ''} {named}"


def magnitudes(samples: SampleTable) -> NDArray[np.float64]:
    """Root mean square of the values of each sample."""
    found: NDArray[np.float64] = np.hypot(samples["mean"].astype(np.float64), samples["deviation"].astype(np.float64))
    return found


def strays_of(samples: SampleTable) -> Strays | None:
    """The strays of a set, without a place where there are none; None where the set is too small to tell.

    Magnitudes are compared by their logarithms, so that what spreads over decades by nature (sound, embeddings) has a
    large spread, too.
    """
    found = magnitudes(samples)
    known = np.flatnonzero(np.isfinite(found) & (found > 0) & (samples["nonfinite"] == 0))
    if len(known) < ENOUGH:
        return None
    order = known[np.argsort(found[known], kind="stable")]
    logs = np.log(found[order])
    kept = _count_below_gap(logs)
    middle, spread = _middle_and_spread(logs[:kept])
    nothing = Strays((), 1.0, math.exp(middle), math.inf)
    if kept == len(logs) or logs[kept] - middle < _limit(kept) * spread:
        return nothing
    limit = math.exp((logs[kept - 1] + logs[kept]) / 2)
    places = tuple(sorted(int(place) for place in order[kept:]))
    return Strays(places, math.exp(logs[kept] - middle), math.exp(middle), limit)


def strays_by_role(tables: Mapping[RoleT, SampleTable]) -> dict[RoleT, Strays | None]:
    """The strays of each set. What the other set shows as well, be it as rarely, belongs to the data."""
    found = {role: strays_of(samples) for role, samples in tables.items()}
    for role, own in list(found.items()):
        others = [magnitudes(samples) for other, samples in tables.items() if other != role]
        if own is not None and any((sizes[np.isfinite(sizes)] > own.limit).any() for sizes in others):
            found[role] = Strays((), 1.0, own.middle, math.inf)
    return found


def _limit(n: int) -> float:
    """Spreads between the middle of n samples and a stray."""
    return (math.log(n) + SPREADS) * (1 + DOUBT / n)


def _count_below_gap(logs: NDArray[np.float64]) -> int:
    """How many of the sorted samples lie below the first wide gap among the largest few; all where there is none."""
    first = len(logs) - max(1, int(FEW * len(logs)))
    gaps = np.flatnonzero(np.diff(logs[first - 1 :]) >= math.log(APART))
    return first + int(gaps[0]) if gaps.size else len(logs)


def _middle_and_spread(logs: NDArray[np.float64]) -> tuple[float, float]:
    """Median, and how far the upper half spreads: silence and blanks below say nothing of loud samples."""
    middle, upper = (float(np.quantile(logs, q)) for q in (0.5, _ONE_SPREAD))
    return middle, max(upper - middle, LEAST_SPREAD)
