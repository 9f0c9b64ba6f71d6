"""A data set in slices, each with sums of its own: what they add up to does not depend on who measured which.

How many samples a slice has follows from the data alone. Sums of slices are added up as ``engine.case.slice_sums``
tells, on one machine as on many.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.statistics.accumulate import SetAccumulator
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.slice_sums import (
    SliceSum,
    add_slices,
    join_slices,
    with_histograms_in_first,
)
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.errors import DataError

#: A slice has at least so many samples, for adding two up costs about what measuring some samples does.
MIN_SAMPLES = 64
#: So many keep hundreds of workers busy, and few enough sums travel.
MAX_SLICES = 512
#: Samples of a slice where nobody knows how many there are.
SAMPLES_OF_STREAM = 256


@dataclass(frozen=True)
class Slicing:
    """How one data set is divided, and which of its slices are measured.

    Attributes:
        size: Samples of a slice; None where each part of the set is one slice.
        count: Number of slices; 0 where that is not known.
        first, stop: The slices that are measured, from the first to before the last; None is up to the end.
    """

    size: int | None
    count: int
    first: int = 0
    stop: int | None = None

    @classmethod
    def of_samples(cls, samples: int | None, step: int) -> "Slicing":
        """Of a set that is measured as a whole; every slice but the last is a multiple of ``step`` samples."""
        if samples is None:
            return cls(-(-SAMPLES_OF_STREAM // step) * step, 0)
        wanted = -(-samples // min(max(samples // MIN_SAMPLES, 1), MAX_SLICES))
        size = -(-wanted // step) * step
        return cls(size, -(-samples // size))

    def only(self, first: int, stop: int) -> "Slicing":
        """Only these slices are measured."""
        return replace(self, first=first, stop=stop)

    @property
    def start(self) -> tuple[int, int]:
        """The part of the set that is read first, and the samples of it that are passed over."""
        return (self.first, 0) if self.size is None else (0, self.first * self.size)

    def begins_with(self, sums: Sequence[SliceSum]) -> bool:
        """These are sums of its slices, from the first one on; none, where they were not kept apart."""
        last = sums[-1].stop if sums else 0
        return not sums or (sums[0].first == self.first and (self.stop is None or last <= self.stop))

    @property
    def is_whole(self) -> bool:
        """All slices are measured."""
        return self.first == 0 and self.stop in (None, self.count)

    def holds(self, number: int) -> bool:
        """This slice is measured."""
        return self.first <= number and (self.stop is None or number < self.stop)


def require_counted(slicings: Mapping[Role, Slicing]) -> Mapping[Role, Slicing]:
    """The slicings, each with a known number of slices.

    Raises:
        DataError: Nobody knows how many samples a set has.
    """
    for role, slicing in slicings.items():
        if not slicing.count:
            raise DataError(
                f"the {role} data cannot be divided: nobody knows how many samples they have",
                help="give them as .npz or as a folder of .npy files or images",
            )
    return slicings


def read_slices(
    dataset: Dataset, slicing: Slicing, batches: Callable[[int], Iterator[Batch]], done: int
) -> Iterator[tuple[int, Batch]]:
    """Batches with the number of their slice, none of which holds samples of two.

    Args:
        dataset: Where they come from.
        slicing: How it is divided.
        batches: A pass over it from a sample on.
        done: Samples of the measured slices to pass over.
    """
    assert slicing.size is not None
    size, place = slicing.size, slicing.first * slicing.size + done
    stop = None if slicing.stop is None else slicing.stop * size
    # Where samples differ in shape, batches depend on where a pass begins: then every slice is a pass of its own.
    anew = dataset.samples is not None and not dataset.alike
    while stop is None or place < stop:
        begun = place
        for batch in batches(place):
            for piece in _cut_at(batch, place, size):
                yield place // size, piece
                place += piece.samples
                if place == stop or (anew and place % size == 0):
                    break
            if place == stop or (anew and place % size == 0):
                break
        else:
            return
        if place == begun:
            return


def _cut_at(batch: Batch, place: int, size: int) -> Iterator[Batch]:
    """The batch, whose first sample is number ``place``, cut where a slice ends."""
    start = 0
    while start < batch.samples:
        end = min(start + size - (place + start) % size, batch.samples)
        yield batch if end - start == batch.samples else batch.take(slice(start, end))
        start = end


class SetSums:
    """What is added up of one data set, slice by slice."""

    def __init__(self, new: Callable[[SetStatistics | None], SetAccumulator], known: Sequence[SliceSum] = ()) -> None:
        """Begin, or go on from sums that are known.

        Args:
            new: Makes an accumulator, empty or going on from statistics.
            known: Sums of slices that were measured already.
        """
        self._new = new
        self._sums = [one for one in known if one.slices]
        self._open = [(one.first, new(one.statistics)) for one in known if not one.slices]

    def open(self, number: int) -> SetAccumulator:
        """The accumulator of a slice; they are opened in order."""
        if not self._open or self._open[-1][0] != number:
            self._open.append((number, self._new(None)))
        return self._open[-1][1]

    def close_before(self, number: int) -> None:
        """All slices before this one have been read to their end."""
        while self._open and self._open[0][0] < number:
            first, accumulator = self._open[0]
            joined = join_slices([*self._sums, SliceSum(first, 1, accumulator.finish())])
            # Moved at once, at the end: an interrupt before it loses nothing.
            self._sums, self._open = with_histograms_in_first(joined), self._open[1:]

    def close(self) -> None:
        """All slices that were opened have been read to their end."""
        if self._open:
            self.close_before(self._open[-1][0] + 1)

    @property
    def settled(self) -> bool:
        """No batch was left half added."""
        return all(accumulator.begun == accumulator.ended for _, accumulator in self._open)

    @property
    def samples(self) -> int:
        """Samples that were added."""
        return sum(len(one.statistics.samples) for one in self._sums) + sum(own.ended for _, own in self._open)

    def sums(self) -> list[SliceSum]:
        """Everything so far; while batches are on their way, nobody may ask."""
        if self._open:
            self.close_before(self._open[-1][0])
        return [*self._sums, *(SliceSum(first, 0, own.finish()) for first, own in self._open if own.ended)]

    def settle(self) -> SetAccumulator:
        """All slices added up, as one accumulator: what does not belong to a slice goes there.

        Returns:
            That accumulator.
        """
        first = self._sums[0].first if self._sums else self._open[0][0]
        whole = self._new(add_slices(self.sums()))
        self._sums, self._open = [], [(first, whole)]
        return whole
