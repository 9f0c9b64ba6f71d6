"""Sums of a data set's slices, added up in a fixed order: so that it does not matter who measured which slice."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from quantmedic.engine.case.statistics import SetStatistics, add_histograms
from quantmedic.engine.errors import CaseError


class SliceSum(NamedTuple):
    """Statistics of some slices in a row of one data set.

    Attributes:
        first: Number of the first slice.
        slices: How many, a power of two; 0 for a single slice that was not read to its end.
        statistics: What was measured of their samples.
    """

    first: int
    slices: int
    statistics: SetStatistics

    @property
    def stop(self) -> int:
        """Number of the slice behind the last one that is whole."""
        return self.first + self.slices

    def is_left_of(self, other: "SliceSum") -> bool:
        """Both are the halves of one node in the tree of all slices."""
        equal = 0 < self.slices == other.slices
        return equal and self.stop == other.first and self.first % (2 * self.slices) == 0


def join_slices(sums: Iterable[SliceSum]) -> list[SliceSum]:
    """The sums in order, halves of one node added up: whatever was joined before, the same comes out.

    Raises:
        CaseError: A slice is there twice, or the sums were measured on different tensors.
    """
    found: list[SliceSum] = []
    for one in sorted(sums, key=lambda one: (one.first, one.slices)):
        if found and found[-1].stop > one.first:
            raise CaseError(
                "the same samples were measured twice", where=f"slice {one.first}", help="give each case once"
            )
        found.append(one)
        while len(found) > 1 and found[-2].is_left_of(found[-1]):
            right, left = found.pop(), found.pop()
            found.append(SliceSum(left.first, 2 * left.slices, left.statistics.merge(right.statistics)))
    return found


def add_slices(sums: Sequence[SliceSum]) -> SetStatistics:
    """Statistics of all of them, in order, from the last one backwards: as joining would have added them up."""
    total = sums[-1].statistics
    for one in reversed(sums[:-1]):
        total = one.statistics.merge(total)
    return total


def with_histograms_in_first(sums: Sequence[SliceSum]) -> list[SliceSum]:
    """The same with all histograms in the first one: counts are exact in any order, and they are what takes memory."""
    if len(sums) < 2 or not any(one.statistics.histograms for one in sums[1:]):
        return list(sums)
    held = sums[0].statistics
    for one in sums[1:]:
        own = one.statistics
        held = replace(
            held,
            histograms=add_histograms(held.histograms, own.histograms),
            quantized_histograms=add_histograms(held.quantized_histograms, own.quantized_histograms),
        )
    emptied = (replace(one.statistics, histograms={}, quantized_histograms={}) for one in sums[1:])
    rest = (one._replace(statistics=own) for one, own in zip(sums[1:], emptied, strict=True))
    return [sums[0]._replace(statistics=held), *rest]
