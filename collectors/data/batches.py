"""Batches of samples, which samples a pass reads, and cutting pieces of any length into batches of one size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array, Rows


@dataclass(frozen=True)
class Batch:
    """Samples by input name, every array ``[samples, ...]``, and their labels if there are any.

    ``numbers`` are their indexes in the whole set, where a data set gave them.
    """

    inputs: dict[str, Array]
    labels: Array | None = None
    numbers: NDArray[np.int64] | None = None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(next(iter(self.inputs.values())))

    def take(self, rows: Rows) -> "Batch":
        """Some of the samples; views where they lie side by side."""
        labels = None if self.labels is None else self.labels[rows]
        numbers = None if self.numbers is None else self.numbers[rows]
        return Batch({name: array[rows] for name, array in self.inputs.items()}, labels, numbers)


@dataclass(frozen=True, kw_only=True)
class Piece(Batch):
    """Samples as a source holds them, not yet checked."""

    rows: Rows
    """Which samples of the whole set they are."""
    place: str = ""
    """File or batch they come from, for error messages."""

    @property
    def stop(self) -> int:
        """Number of samples in the set up to the last of these."""
        return self.rows.stop if isinstance(self.rows, slice) else int(self.rows[-1]) + 1


@dataclass(frozen=True)
class Part:
    """One of ``count`` disjoint random slices of a data set of any length, together all of it, or several in a row.

    Each ``count`` consecutive units go into ``count`` different slices, in an order drawn anew: data that are sorted or
    periodic make no slice differ from the others, and no slice is longer than another by more than one unit.
    """

    index: int
    count: int
    seed: int
    unit: int = 1
    """Consecutive samples that stay together; `Dataset` sets it for models that take a fixed number at once."""
    width: int = 1
    """How many slices it is made of, from ``index`` on."""

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.index + self.width <= self.count or self.unit < 1:
            raise ValueError(f"no such part of a data set: {self}")

    @property
    def block(self) -> int:
        """Consecutive samples among which every slice has one unit."""
        return self.count * self.unit

    def indexes(self, start: int, stop: int) -> NDArray[np.int64]:
        """Indexes of the samples of this slice from ``start`` to before ``stop``, ascending."""
        blocks = np.arange(start // self.block, -(-stop // self.block), dtype=np.int64)
        samples = (self._begin(blocks)[..., np.newaxis] + np.arange(self.unit)).reshape(-1)
        low, high = np.searchsorted(samples, (start, stop))
        return samples[low:high]

    def position(self, number: int) -> int:
        """Index of the sample that ``number`` samples of this slice precede."""
        unit, offset = divmod(number, self.unit)
        block, place = divmod(unit, self.width)
        return int(self._begin(np.array([block]))[0, place]) + offset

    def _begin(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """First samples of the units of this part, ``[blocks, width]``, ascending."""
        units = blocks[:, np.newaxis] * self.count + np.arange(self.count)
        # Sorting random keys permutes a block; stable, so that equal keys do not send a unit into two slices.
        order = np.argsort(_random_keys(units, self.seed), axis=1, kind="stable")
        own = np.sort(order[:, self.index : self.index + self.width], axis=1)
        return (blocks[:, np.newaxis] * self.count + own) * self.unit


@dataclass(frozen=True)
class Selection:
    """The samples that one pass reads: from ``first`` to before ``stop``, and of these the ones in ``part``."""

    first: int = 0
    stop: int | None = None
    part: Part | None = None

    def rows(self, size: int, length: int) -> Iterator[Rows]:
        """What to read of a set of known length, about ``size`` samples at a time."""
        end = length if self.stop is None else min(length, self.stop)
        if self.part is None:
            yield from (slice(start, min(start + size, end)) for start in range(self.first, end, size))
            return
        # A multiple of what the model takes at once, so that batches are cut of what is read without copies.
        size = -(-size // self.part.unit) * self.part.unit
        step = self.part.block * -(-size // (self.part.unit * self.part.width))
        held = np.zeros(0, np.int64)
        for start in range(self.first - self.first % self.part.block, end, step):
            held = np.concatenate([held, self.part.indexes(max(start, self.first), min(start + step, end))])
            for _ in range(len(held) // size):
                yield held[:size]
                held = held[size:]
        if len(held):
            yield held

    def among(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """What is selected of a stream that cannot skip; ends with the last selected sample."""
        for piece in pieces:
            start = piece.stop - piece.samples
            rows = self._within(start, piece.stop)
            if rows is not None:
                taken = piece.take(_shift_rows(rows, -start))
                yield Piece(taken.inputs, taken.labels, rows=rows, place=piece.place)
            if self.stop is not None and piece.stop >= self.stop:
                return

    def _within(self, start: int, stop: int) -> Rows | None:
        """Selected samples from ``start`` to before ``stop``; a slice, hence no copies, unless only a part is read."""
        start, stop = max(start, self.first), stop if self.stop is None else min(stop, self.stop)
        if start >= stop:
            return None
        if self.part is None:
            return slice(start, stop)
        rows = self.part.indexes(start, stop)
        return rows if len(rows) else None


def rows_alike(batch: Batch) -> list[tuple[tuple[int, ...], str]]:
    """What samples of one batch have in common."""
    arrays = [*batch.inputs.values(), *(() if batch.labels is None else (batch.labels,))]
    return [(array.shape[1:], array.dtype.str) for array in arrays]


def cut(pieces: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Batches of ``size`` samples from pieces of any length; the last one may be smaller."""
    held: list[Batch] = []
    count = 0
    for piece in pieces:
        if not held and piece.samples == size:
            yield piece  # Itself: what was computed of it is found again.
            continue
        held.append(piece)
        count += piece.samples
        if count < size:
            continue
        whole = _concatenate(held)
        full = count - count % size
        yield from (whole.take(slice(start, start + size)) for start in range(0, full, size))
        held = [whole.take(slice(full, count))] if full < count else []
        count -= full
    if held:
        yield _concatenate(held)


def _concatenate(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    inputs = {name: np.concatenate([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    labels = [batch.labels for batch in batches if batch.labels is not None]
    numbers = [batch.numbers for batch in batches if batch.numbers is not None]
    return Batch(inputs, np.concatenate(labels) if labels else None, np.concatenate(numbers) if numbers else None)


def numbers_of(rows: Rows) -> NDArray[np.int64]:
    """Rows as indexes."""
    return np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows


def _shift_rows(rows: Rows, by: int) -> Rows:
    return slice(rows.start + by, rows.stop + by) if isinstance(rows, slice) else rows + by


def _random_keys(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 at these places of its sequence: the same everywhere and for ever, which NumPy's streams are not."""
    offset = _mix_bits(np.array([int(seed) % 2**64], np.uint64))
    return _mix_bits(offset + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix_bits(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
