"""A race: of many candidates on the same samples, those that are proven worse drop out early, the others go on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.special_functions import binomial_share

Floats = NDArray[np.float64]
#: Coverage of the intervals that drop a candidate: 0.1 % of all comparisons go wrong, and a race makes a hundred.
STRICT = 0.999
#: The share of all samples that is judged before a race is given up as a tie.
TIED_FROM = 0.25
#: ``one``: all others are proven worse. ``close``: no other can be better by more than what is negligible. ``tied``:
#: all samples would not tell those that are left apart. ``spent``: all samples were used. ``none``: all failed.
Ending = Literal["one", "close", "tied", "spent", "none"]


@dataclass(frozen=True)
class Gap:
    """How far a candidate is behind another, with the ends of an interval; positive means behind."""

    loss: float
    low: float
    high: float


class Contest(Protocol):
    """What is raced: candidates by number, judged on one part of the samples after the other."""

    def judge(self, candidate: int, part: int) -> bool:
        """Judge a candidate on a part of the samples; False where it fails, and is out of the race."""

    def value(self, candidate: int) -> float:
        """How good it is on what it was judged on; more is better."""

    def gap(self, leader: int, other: int) -> Gap:
        """How far the other is behind the leader on the same samples, with its `STRICT` interval."""


@dataclass(frozen=True)
class Drop:
    """Why a candidate left the race.

    Attributes:
        leader: The candidate that it was proven worse than, which may have been overtaken since.
        gap: How far it was behind that one, with its `STRICT` interval.
        parts: Parts that it was judged on.
    """

    leader: int
    gap: Gap
    parts: int


@dataclass(frozen=True)
class Race:
    """How a race went.

    Attributes:
        leader: The candidate of the highest value; None: all failed.
        left: Those that are not proven worse than the leader, it included.
        dropped: Those that were proven worse than the leader of their time.
        failed: Those that could not be judged.
        parts: Parts that the candidates that are left were judged on.
        ending: Why it ended.
    """

    leader: int | None
    left: tuple[int, ...]
    dropped: dict[int, Drop]
    failed: tuple[int, ...]
    parts: int
    ending: Ending


def race(contest: Contest, candidates: Sequence[int], sizes: Sequence[int], negligible: float) -> Race:
    """Run a race; a candidate whose interval of the gap to the leader includes zero is never dropped.

    Args:
        contest: Judges candidates.
        candidates: Their numbers.
        sizes: Samples of each part, in the order in which the parts are used.
        negligible: A gap that does not matter.
    """
    left, dropped, failed = list(candidates), dict[int, Drop](), list[int]()
    leader: int | None = None
    for part in range(len(sizes)):
        broken = [each for each in left if not contest.judge(each, part)]
        failed += broken
        left = [each for each in left if each not in broken]
        if not left:
            return Race(None, (), dropped, tuple(failed), part + 1, "none")
        leader = max(left, key=contest.value)
        gaps = {each: contest.gap(leader, each) for each in left if each != leader}
        worse = [each for each, gap in gaps.items() if gap.low > 0]
        dropped |= {each: Drop(leader, gaps[each], part + 1) for each in worse}
        left = [each for each in left if each not in worse]
        rest = [gap for each, gap in gaps.items() if each not in worse]
        ending = _ending(rest, sum(sizes[: part + 1]), sum(sizes), negligible)
        if ending is not None:
            return Race(leader, tuple(left), dropped, tuple(failed), part + 1, ending)
    raise ValueError("a race needs samples")


def _ending(rest: Sequence[Gap], used: int, samples: int, negligible: float) -> Ending | None:
    if not rest:
        return "one"
    if all(-gap.low <= negligible for gap in rest):
        return "close"
    if used == samples:
        return "spent"
    # Intervals shrink with the root of the number of samples: those of all samples would still include zero.
    shrink = math.sqrt(used / samples)
    tied = all(abs(gap.loss) <= (gap.high - gap.low) / 2 * shrink for gap in rest)
    return "tied" if tied and used >= TIED_FROM * samples else None


def part_sizes(samples: int, first: int) -> list[int]:
    """Sizes of the parts of a race: after each, twice as many samples are judged; a small rest joins the last one."""
    sizes = [min(first, samples)]
    while sum(sizes) < samples:
        size = min(sum(sizes), samples - sum(sizes))
        rest = samples - sum(sizes) - size
        sizes.append(size + rest if rest < size / 2 else size)
    return sizes


def median_interval(values: Floats, confidence: float) -> tuple[float, float]:
    """Interval of the median by order statistics (Thompson 1936): exact for every distribution, infinite for too few.

    Args:
        values: One per sample.
        confidence: Coverage, at least.
    """
    n, tail = len(values), (1 - confidence) / 2
    if n == 0 or binomial_share(0, n, 0.5) > tail:
        return -math.inf, math.inf
    rank = _last(lambda k: binomial_share(k, n, 0.5) <= tail, n // 2)
    ordered = np.sort(values)
    return float(ordered[rank]), float(ordered[n - 1 - rank])


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to the given one for which it holds; 0 does, and what holds once does below."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
