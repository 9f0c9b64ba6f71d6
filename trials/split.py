"""The samples of a trial: one half to fit remedies on, the other to judge them on."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, Part, cut, rows_alike
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.memory import kept_bytes, samples_that_fit
from quantmedic.engine.case.records import Case

#: Fewer samples than this are fitted on and judged on in turn.
CROSS_FITTED_BELOW = 64
#: Samples that are kept in memory for trials, and their bytes.
MAX_SAMPLES, MAX_BYTES = 4096, 256 << 20
#: Samples per batch: trials are compared with each other, on every processor alike.
BATCH = 32


@dataclass(frozen=True)
class Fold:
    """Batches to fit on, and others to judge on."""

    fitted: tuple[Batch, ...]
    judged: tuple[Batch, ...]


@dataclass(frozen=True)
class Pool:
    """Which samples of a data set are kept in memory, the same wherever they are read.

    Attributes:
        parts: The set is cut into so many random parts, of which the first is kept.
        size: Samples per batch.
    """

    parts: int
    size: int


def judged_together(case: Case) -> int:
    """Samples per batch: one where a grid that is found at run time would depend on the others of its batch."""
    return 1 if any(tensor.quantizer.dynamic for tensor in case.record.tensors) else BATCH


def plan_pool(dataset: Dataset, seen: int, limit: int | None, wanted: int, size: int = BATCH) -> Pool:
    """A random part of a data set, spread over all of it, as much as is wanted and fits into memory here.

    Args:
        dataset: Where to read.
        seen: Samples that the data set is known to have.
        limit: Samples of the whole set to read at most.
        wanted: About so many samples.
        size: Samples per batch.
    """
    first = next(dataset.batches(1, limit))
    bytes_each = max(sum(array.nbytes for array in first.inputs.values()) // first.samples, 1)
    wanted = max(min(wanted, MAX_SAMPLES, kept_bytes(MAX_BYTES) // bytes_each), 2 * dataset.unit)
    return Pool(-(-seen // wanted), samples_that_fit(size))


def read_planned(dataset: Dataset, pool: Pool, limit: int | None, seed: int) -> list[Batch]:
    """The samples of a pool; ``seed`` is that of their choice."""
    part = Part(0, pool.parts, seed) if pool.parts > 1 else None
    return list(dataset.batches(pool.size, limit, part=part))


def read_pool(dataset: Dataset, seen: int, limit: int | None, wanted: int, seed: int, size: int = BATCH) -> list[Batch]:
    """The samples of the pool that is planned here; see ``plan_pool`` and ``read_planned``."""
    return read_planned(dataset, plan_pool(dataset, seen, limit, wanted, size), limit, seed)


def folds(pool: Sequence[Batch], unit: int, seed: int) -> list[Fold]:
    """One fold; two with the halves exchanged where there are few samples.

    Classes fall evenly into both halves, and equal samples into the same one.

    Args:
        pool: All samples.
        unit: Samples that the model takes at a time and that stay together.
        seed: Seed of the split.
    """
    if unit > 1:
        half = np.random.default_rng(seed).permutation(len(pool)) % 2
        parts = [[batch for batch, h in zip(pool, half, strict=True) if h == side] for side in (0, 1)]
    else:
        parts = _by_sample(pool, seed)
    a, b = (tuple(part) for part in parts)
    if not a or not b:
        return [Fold(tuple(pool), tuple(pool))]
    exchanged = [Fold(b, a)] if sum(batch.samples for batch in pool) < CROSS_FITTED_BELOW else []
    return [Fold(a, b), *exchanged]


def even_size(samples: int, largest: int = BATCH) -> int:
    """The largest number of samples per batch that leaves no smaller last batch."""
    return max(size for size in range(1, min(largest, samples) + 1) if samples % size == 0)


@dataclass(frozen=True)
class EvenBatches:
    """A data set in batches of one size, read anew each time.

    Attributes:
        dataset: The data.
        seen: Samples that are read.
        limit: Samples to read at most.
        largest: Samples of a batch at most.
    """

    dataset: Dataset
    seen: int
    limit: int | None
    largest: int = BATCH

    def __iter__(self) -> Iterator[Batch]:
        return self.dataset.batches(even_size(self.seen, self.largest), self.limit)


def even_batches(batches: Sequence[Batch], largest: int = BATCH) -> list[Batch]:
    """The same samples in batches of one size, as some calibrators take no others; samples of one shape only.

    Args:
        batches: The samples.
        largest: Samples of a batch at most; batches of one size are cut only where theirs is larger.
    """
    sizes = {batch.samples for batch in batches}
    if len(sizes) <= 1 and max(sizes, default=0) <= largest:
        return list(batches)
    if any(rows_alike(b) != rows_alike(batches[0]) for b in batches):
        return list(batches)
    return list(cut(batches, even_size(samples_of(batches), largest)))


def take_samples(batches: Iterable[Batch], kept: NDArray[np.int64]) -> list[Batch]:
    """These samples, by their ascending numbers in all batches; none of the batches is left empty.

    A batch that stays whole is itself, so that what was computed of it is found again.
    """
    found, start = [], 0
    for batch in batches:
        rows = kept[(kept >= start) & (kept < start + batch.samples)] - start
        start += batch.samples
        if rows.size:
            found.append(batch if rows.size == batch.samples else batch.take(rows))
    return found


def samples_of(batches: Iterable[Batch]) -> int:
    """Number of samples."""
    return sum(batch.samples for batch in batches)


def _by_sample(pool: Sequence[Batch], seed: int) -> list[list[Batch]]:
    side = _assign_halves([_key(batch, row) for batch in pool for row in range(batch.samples)], _classes(pool), seed)
    return [take_samples(pool, np.flatnonzero(side == number)) for number in (0, 1)]


def _key(batch: Batch, row: int) -> bytes:
    """Hash of a sample's content."""
    digest = hashlib.blake2b(digest_size=16)
    for array in batch.inputs.values():
        digest.update(np.ascontiguousarray(array[row]).tobytes())
    return digest.digest()


def _classes(pool: Sequence[Batch]) -> NDArray[np.int64] | None:
    """Class number per sample, where labels are such."""
    labels = [batch.labels for batch in pool]
    if any(own is None or own.ndim != 1 or own.dtype.kind not in "iu" for own in labels):
        return None
    return np.concatenate([np.asarray(own, np.int64) for own in labels])


def _assign_halves(keys: Sequence[bytes], classes: NDArray[np.int64] | None, seed: int) -> NDArray[np.int64]:
    """0 or 1 for every sample: distinct ones take turns within their class, in random order."""
    numbers: dict[bytes, int] = {}
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    label = np.zeros(len(numbers), np.int64)
    if classes is not None:
        label[group] = classes
    order = np.lexsort((np.random.default_rng(seed).permutation(len(numbers)), label))
    side: NDArray[np.int64] = np.empty(len(numbers), np.int64)
    side[order] = np.arange(len(numbers)) % 2
    return np.take(side, group)
