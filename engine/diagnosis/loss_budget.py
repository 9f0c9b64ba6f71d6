"""Divide the noise at the output among its sources: groups of them are halved, the loudest first.

Two runs measure a group: everything else in float, and only the group in float. What a half does is the mean of what it
adds before and after the other half, without and with the rest of the network (as Owen 1977 values players in unions).
What both halves do so and what their group was found to do may differ, where the rest of the network amplifies or hides
them; the difference is shared out in proportion. So the shares of all groups always sum up to the whole.

What the task loses is divided in the same runs, one number per sample, of which the mean counts. A loss that both
halves hide from each other is shared out in proportion, too; one that they only make together belongs to neither, and
is kept as interaction.
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
#: Division goes on while groups of several sources take more than this share of a loss that is told from none.
LOSS_LEFT = 0.2


@dataclass(frozen=True)
class Group:
    """Sources by index, and what they do to every output, in shares of its noise.

    The numbers behind those of the outputs are what each sample loses.

    Attributes:
        members: Indices, neighbours in the order of execution.
        alone: Noise where everything else is in float.
        without: Noise where only these are in float.
        share: Their share of the noise; the shares of all groups sum up to 1. That of the loss sums up to the loss
            with the interaction.
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
        interaction: What each sample loses by sources together only, and no group by itself.
    """

    groups: tuple[Group, ...]
    runs: int
    complete: bool
    interaction: Floats


def divide(
    parts: Sequence[Sequence[int]],
    alone: Callable[[Sequence[int]], Floats],
    without: Callable[[Sequence[int]], Floats],
    *,
    whole: Floats,
    runs: int,
    samples: int = 0,
    loss_counts: bool = False,
) -> Division:
    """Divide the noise of everything.

    Args:
        parts: All sources: parts that are never measured together with another but as a whole, such as weights.
        alone: Noise per output where only these sources are quantized, then what each sample loses, ``[outputs +
            samples]``.
        without: The same where only these are in float.
        whole: The same where all are quantized.
        runs: Runs to make at most.
        samples: Samples of which the loss is divided as well.
        loss_counts: The loss is told from none: groups are taken apart for it as well.
    """
    outputs = len(whole) - samples
    scale = np.where(whole > 0, whole, np.inf)
    scale[outputs:] = 1.0
    judge = _Judge(outputs, whole, loss_counts)
    interaction = np.zeros(samples)
    done, order = 0, 0
    single: list[Group] = []
    heap: list[tuple[float, int, Group, tuple[tuple[int, ...], ...]]] = []

    def keep(group: Group, own: tuple[tuple[int, ...], ...]) -> None:
        nonlocal order
        order += 1
        if len(group.members) == 1:
            single.append(group)
        else:
            heapq.heappush(heap, (-judge.loudness(group), order, group, own))

    def is_divided() -> bool:
        return not heap or -heap[0][0] < SMALL or judge.is_little([group for _, _, group, _ in heap])

    ones = whole / scale
    everything = tuple(tuple(part) for part in parts)
    members = tuple(i for part in everything for i in part)
    keep(Group(members, ones, np.zeros_like(whole), ones), everything)
    while not is_divided() and done + RUNS_PER_GROUP <= runs:
        _, _, group, own = heapq.heappop(heap)
        halves = _halves(own)
        measured = [_flat(half) for half in halves]
        found = [(alone(m) / scale, without(m) / scale) for m in measured]
        done += RUNS_PER_GROUP
        shares = _shares_of_halves(group, found, ones, outputs)
        interaction += (group.share - shares[0] - shares[1])[outputs:]
        for k, share in enumerate(shares):
            keep(Group(measured[k], *found[k], share), halves[k])
    groups = sorted([*single, *(group for _, _, group, _ in heap)], key=lambda group: -judge.loudness(group))
    return Division(tuple(groups), done, is_divided(), interaction)


@dataclass(frozen=True)
class _Judge:
    """What matters of a group: its share of the noise of outputs that count, and of a loss that counts."""

    outputs: int
    whole: Floats
    loss_counts: bool

    def loudness(self, group: Group) -> float:
        """The largest share of an output that counts, or of the loss."""
        noise = np.abs(group.share[: self.outputs][self._counts]).max()
        return float(max(noise, self._of_loss(group)))

    def is_little(self, groups: Sequence[Group]) -> bool:
        """What these hold together need not be taken apart."""
        together = np.sum([np.abs(group.share[: self.outputs]) for group in groups], axis=0)
        return bool((together[self._counts] <= LEFT).all()) and sum(map(self._of_loss, groups)) <= LOSS_LEFT

    @property
    def _counts(self) -> NDArray[np.bool_]:
        noise = self.whole[: self.outputs]
        counts: NDArray[np.bool_] = noise >= NOISY * noise.max()
        return counts

    def _of_loss(self, group: Group) -> float:
        if not self.loss_counts:
            return 0.0
        return abs(float(group.share[self.outputs :].sum() / self.whole[self.outputs :].sum()))


def _shares_of_halves(
    group: Group, found: Sequence[tuple[Floats, Floats]], ones: Floats, outputs: int
) -> tuple[Floats, Floats]:
    """Shares of two halves; ``found`` holds noise alone and without of each.

    Those of the noise sum up to that of their group; those of the loss too, but for what only both make together.
    """
    (alone, without), (other_alone, other_without) = found
    first = alone + (group.alone - other_alone) + (other_without - group.without) + (ones - without)
    second = other_alone + (group.alone - alone) + (without - group.without) + (ones - other_without)
    first, second = first / 4, second / 4
    kept = _kept(float((first + second)[outputs:].sum()), float(group.share[outputs:].sum()))
    first[outputs:] *= kept
    second[outputs:] *= kept
    left = group.share - first - second
    left[outputs:] = 0.0
    sizes = np.abs(first), np.abs(second)
    part = np.divide(sizes[0], sizes[0] + sizes[1], out=np.full_like(first, 0.5), where=sizes[0] + sizes[1] > 0)
    return first + part * left, second + (1.0 - part) * left


def _kept(halves: float, group: float) -> float:
    """Factor for what halves lose, so that they claim no more than their group does."""
    return min(max(group / halves, 0.0), 1.0) if halves else 1.0


def _halves(parts: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Two halves of several parts, or of the members of one."""
    if len(parts) > 1:
        return parts[: len(parts) // 2], parts[len(parts) // 2 :]
    middle = len(parts[0]) // 2
    return (parts[0][:middle],), (parts[0][middle:],)


def _flat(parts: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(i for part in parts for i in part)
