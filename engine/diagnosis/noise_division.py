"""Divide the noise at the output among its sources: groups of them are halved, the loudest first.

Two runs measure a group: everything else in float, and only the group in float. A half that does next to nothing in
both leaves the rest to the other one, which is not run. Neither is it where a half does alone what it does on top of
all the others: then it shares nothing with these, as rounding does, and noise powers add up.
What a half does is the mean of what it adds before and after the other half, without and with the rest of the network
(as Owen 1977 values players in unions). What both halves do so and what their group was found to do may differ, where
the rest of the network amplifies or hides them; the difference is shared out in proportion. So the shares of all groups
always sum up to the whole.

What the task loses is divided in the same runs, one number per sample, of which the mean counts. A loss that both
halves hide from each other is shared out in proportion, too; one that they only make together belongs to neither, and
is kept as interaction.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Groups whose share is smaller at every output that counts are not taken apart.
SMALL = 0.02
#: Division ends where groups of several sources hold no more than this share of the noise together; the second one
#: where half of the runs are made.
LEFT, LEFT_LATER = 0.05, 0.2
#: Runs that take a group apart, at most.
RUNS_PER_GROUP = 4
#: A half shares nothing with the others where what it does alone and on top of them differs by no more than this part
#: of it, or of the whole noise.
ADDS_UP, ADDS_UP_OF_ALL = 0.15, 0.02
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
    expected: Sequence[float] | None = None,
    nothing: float = 0.0,
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
        expected: Noise that each source is expected to make, in any unit: groups are cut where that falls into halves,
            and the quieter half is run first. It decides how many runs there are, not what they show.
        nothing: A half with less of the noise than this, alone and last, at every output that counts, and none of a
            loss that counts, leaves the rest to the other half, which is not run.
    """
    judge = _Judge(len(whole) - samples, whole, loss_counts, nothing)
    divider = _Divider(alone, without, judge, _cutting_weights(expected, parts), runs)
    everything = tuple(tuple(part) for part in parts)
    divider.keep(Group(_flat(everything), divider.ones, np.zeros_like(whole), divider.ones), everything)
    while not divider.is_divided() and divider.done + RUNS_PER_GROUP <= runs:
        divider.halve_loudest()
    return Division(divider.groups(), divider.done, divider.is_divided(), divider.interaction)


class _Divider:
    """Groups that make up the whole, and how they are taken apart.

    Attributes:
        done: Runs that were made.
        ones: What everything does, in shares.
        interaction: What each sample loses by sources together only.
    """

    def __init__(
        self,
        alone: Callable[[Sequence[int]], Floats],
        without: Callable[[Sequence[int]], Floats],
        judge: "_Judge",
        weights: Mapping[int, float],
        runs: int,
    ) -> None:
        scale = np.where(judge.whole > 0, judge.whole, np.inf)
        scale[judge.outputs :] = 1.0
        self._alone, self._without, self._scale = alone, without, scale
        self._judge, self._weights, self._runs = judge, weights, runs
        self.ones: Floats = judge.whole / scale
        self.interaction: Floats = np.zeros(len(judge.whole) - judge.outputs)
        self.done, self._order = 0, 0
        self._single: list[Group] = []
        self._heap: list[tuple[float, int, Group, tuple[tuple[int, ...], ...]]] = []

    def keep(self, group: Group, own: tuple[tuple[int, ...], ...]) -> None:
        self._order += 1
        if len(group.members) == 1:
            self._single.append(group)
        else:
            heapq.heappush(self._heap, (-self._judge.loudness(group), self._order, group, own))

    def is_divided(self) -> bool:
        """Nothing that matters is left together."""
        left = LEFT if 2 * self.done <= self._runs else LEFT_LATER
        together = [group for _, _, group, _ in self._heap]
        return not together or -self._heap[0][0] < SMALL or self._judge.is_little(together, left)

    def halve_loudest(self) -> None:
        _, _, group, own = heapq.heappop(self._heap)
        halves = _halves(own, self._weights)
        members = [_flat(half) for half in halves]
        found = self._measure_halves(group, members)
        shares = _shares_of_halves(group, found, self.ones, self._judge.outputs)
        self.interaction += (group.share - shares[0] - shares[1])[self._judge.outputs :]
        for k, share in enumerate(shares):
            self.keep(Group(members[k], *found[k], share), halves[k])

    def groups(self) -> tuple[Group, ...]:
        """All of them, the loudest first."""
        found = [*self._single, *(group for _, _, group, _ in self._heap)]
        return tuple(sorted(found, key=lambda group: -self._judge.loudness(group)))

    def _measure_halves(self, group: Group, halves: Sequence[tuple[int, ...]]) -> Sequence[tuple[Floats, Floats]]:
        """Noise alone and without of both halves; the quieter one is run first, and the other where that matters."""
        quiet = int(self._weight(halves[1]) < self._weight(halves[0]))
        first = self._measure(halves[quiet])
        self.done += RUNS_PER_GROUP // 2
        if self._judge.leaves_the_rest(first[0], self.ones - first[1]):
            second = group.alone - first[0], group.without + (self.ones - first[1])
        else:
            second = self._measure(halves[1 - quiet])
            self.done += RUNS_PER_GROUP // 2
        return (second, first) if quiet else (first, second)

    def _measure(self, members: Sequence[int]) -> tuple[Floats, Floats]:
        return self._alone(members) / self._scale, self._without(members) / self._scale

    def _weight(self, members: Sequence[int]) -> float:
        return sum(self._weights[i] for i in members)


@dataclass(frozen=True)
class _Judge:
    """What matters of a group: its share of the noise of outputs that count, and of a loss that counts."""

    outputs: int
    whole: Floats
    loss_counts: bool
    nothing: float

    def loudness(self, group: Group) -> float:
        """The largest share of an output that counts, or of the loss."""
        noise = np.abs(group.share[: self.outputs][self._counts]).max()
        return float(max(noise, self._of_loss(group)))

    def leaves_the_rest(self, alone: Floats, last: Floats) -> bool:
        """A half that does this alone and on top of all others tells what the other half does.

        Next to nothing both times, and none of a loss that counts; or, of noise only, both times the same.
        """
        first, second = (found[: self.outputs][self._counts] for found in (alone, last))
        is_nothing = bool((np.maximum(np.abs(first), np.abs(second)) < self.nothing).all())
        if self.loss_counts:
            return is_nothing and not alone[self.outputs :].any() and not last[self.outputs :].any()
        adds_up = np.abs(first - second) <= np.maximum(ADDS_UP * first, ADDS_UP_OF_ALL)
        return is_nothing or bool(adds_up.all())

    def is_little(self, groups: Sequence[Group], left: float) -> bool:
        """What these hold together need not be taken apart: no more than this share of the noise."""
        together = np.sum([np.abs(group.share[: self.outputs]) for group in groups], axis=0)
        return bool((together[self._counts] <= left).all()) and sum(map(self._of_loss, groups)) <= LOSS_LEFT

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
    kept = _limit_to_group(float((first + second)[outputs:].sum()), float(group.share[outputs:].sum()))
    first[outputs:] *= kept
    second[outputs:] *= kept
    left = group.share - first - second
    left[outputs:] = 0.0
    sizes = np.abs(first), np.abs(second)
    part = np.divide(sizes[0], sizes[0] + sizes[1], out=np.full_like(first, 0.5), where=sizes[0] + sizes[1] > 0)
    return first + part * left, second + (1.0 - part) * left


def _limit_to_group(halves: float, group: float) -> float:
    """Factor for what halves lose, so that they claim no more than their group does."""
    return min(max(group / halves, 0.0), 1.0) if halves else 1.0


def _cutting_weights(expected: Sequence[float] | None, parts: Sequence[Sequence[int]]) -> dict[int, float]:
    """What a source weighs where groups are cut: half of it what is expected, half the same for all."""
    members = [i for part in parts for i in part]
    total = sum(expected[i] for i in members) if expected is not None else 0.0
    if expected is None or not 0 < total < np.inf:
        return dict.fromkeys(members, 1.0)
    return {i: expected[i] / total + 1.0 / len(members) for i in members}


def _halves(
    parts: tuple[tuple[int, ...], ...], weights: Mapping[int, float]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Two halves of several parts; of one part the members before and behind the middle of its weight."""
    if len(parts) > 1:
        return parts[: len(parts) // 2], parts[len(parts) // 2 :]
    before = np.cumsum([weights[i] for i in parts[0]])
    cut = int(np.argmin(np.abs(2 * before[:-1] - before[-1]))) + 1
    return (parts[0][:cut],), (parts[0][cut:],)


def _flat(parts: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(i for part in parts for i in part)
