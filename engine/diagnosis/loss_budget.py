"""Divide the noise at the output among its sources: groups of them are halved, the loudest first.

Two runs measure a group: everything else in float, and only the group in float. What a half does is the mean of what it
adds before and after the other half, without and with the rest of the network (as Owen 1977 values players in unions).
What both halves do so and what their group was found to do may differ, where the rest of the network amplifies or hides
them; the difference is shared out in proportion. So the shares of all groups always sum up to the whole.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Groups whose share is smaller at every output that counts are not taken apart.
SMALL = 0.02
#: Division ends where groups of several sources hold no more than this share of the noise together.
LEFT = 0.1
#: Runs that take a group apart.
RUNS_PER_GROUP = 4
#: An output counts where its noise, in shares of its own signal, is at least this share of the noisiest one's.
NOISY = 0.1


@dataclass(frozen=True)
class Group:
    """Sources by index, and what they do to every output, in shares of its noise.

    Attributes:
        members: Indices, neighbours in the order of execution.
        alone: Noise where everything else is in float.
        without: Noise where only these are in float.
        share: Their share of the noise; the shares of all groups sum up to 1.
    """

    members: tuple[int, ...]
    alone: Floats
    without: Floats
    share: Floats


@dataclass(frozen=True)
class Division:
    """Groups that make up the whole, the loudest first.

    Attributes:
        groups: Single sources, and groups that were not taken apart.
        runs: Runs that were made.
        complete: Nothing that matters is left together.
    """

    groups: tuple[Group, ...]
    runs: int
    complete: bool


def divide(
    parts: Sequence[Sequence[int]],
    alone: Callable[[Sequence[int]], Floats],
    without: Callable[[Sequence[int]], Floats],
    *,
    whole: Floats,
    runs: int,
) -> Division:
    """Divide the noise of everything.

    Args:
        parts: All sources: parts that are never measured together with another but as a whole, such as weights.
        alone: Noise per output where only these sources are quantized, ``[outputs]``.
        without: Noise per output where only these are in float.
        whole: Noise per output where all are quantized.
        runs: Runs to make at most.
    """
    scale = np.where(whole > 0, whole, np.inf)
    counts = whole >= NOISY * whole.max()
    done, order = 0, 0
    single: list[Group] = []
    heap: list[tuple[float, int, Group, tuple[tuple[int, ...], ...]]] = []

    def keep(group: Group, own: tuple[tuple[int, ...], ...]) -> None:
        nonlocal order
        order += 1
        if len(group.members) == 1:
            single.append(group)
        else:
            heapq.heappush(heap, (-_loudness(group, counts), order, group, own))

    def is_divided() -> bool:
        together = np.sum([np.abs(group.share) for _, _, group, _ in heap], axis=0)
        return not heap or -heap[0][0] < SMALL or bool((together[counts] <= LEFT).all())

    ones = np.ones_like(whole) * (whole > 0)
    everything = tuple(tuple(part) for part in parts)
    members = tuple(i for part in everything for i in part)
    keep(Group(members, ones, np.zeros_like(whole), ones), everything)
    while not is_divided() and done + RUNS_PER_GROUP <= runs:
        _, _, group, own = heapq.heappop(heap)
        halves = _halves(own)
        measured = [_flat(half) for half in halves]
        found = [(alone(m) / scale, without(m) / scale) for m in measured]
        done += RUNS_PER_GROUP
        for k, share in enumerate(_shares_of_halves(group, found, ones)):
            keep(Group(measured[k], *found[k], share), halves[k])
    groups = sorted([*single, *(group for _, _, group, _ in heap)], key=lambda group: -_loudness(group, counts))
    return Division(tuple(groups), done, is_divided())


def _shares_of_halves(group: Group, found: Sequence[tuple[Floats, Floats]], ones: Floats) -> tuple[Floats, Floats]:
    """Shares of two halves, which sum up to that of their group; ``found`` holds noise alone and without of each."""
    (alone, without), (other_alone, other_without) = found
    first = alone + (group.alone - other_alone) + (other_without - group.without) + (ones - without)
    second = other_alone + (group.alone - alone) + (without - group.without) + (ones - other_without)
    first, second = first / 4, second / 4
    left = group.share - first - second
    sizes = np.abs(first), np.abs(second)
    part = np.divide(sizes[0], sizes[0] + sizes[1], out=np.full_like(first, 0.5), where=sizes[0] + sizes[1] > 0)
    return first + part * left, second + (1.0 - part) * left


def _loudness(group: Group, counts: NDArray[np.bool_]) -> float:
    """The largest share of an output that counts."""
    return float(np.abs(group.share[counts]).max())


def _halves(parts: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Two halves of several parts, or of the members of one."""
    if len(parts) > 1:
        return parts[: len(parts) // 2], parts[len(parts) // 2 :]
    middle = len(parts[0]) // 2
    return (parts[0][:middle],), (parts[0][middle:],)


def _flat(parts: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(i for part in parts for i in part)
