"""Batches of samples, and cutting pieces of any length into batches of one size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quantmedic.collectors.arrays import Array


@dataclass(frozen=True)
class Batch:
    """Samples by input name, every array ``[samples, ...]``, and their labels if there are any."""

    inputs: dict[str, Array]
    labels: Array | None = None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(next(iter(self.inputs.values())))

    def part(self, start: int, stop: int) -> "Batch":
        """Samples ``start`` to ``stop``, as views."""
        labels = None if self.labels is None else self.labels[start:stop]
        return Batch({name: array[start:stop] for name, array in self.inputs.items()}, labels)


@dataclass(frozen=True)
class Piece(Batch):
    """Samples as a source holds them, not yet checked."""

    place: str = ""
    """File or batch they come from, for error messages."""


def limited(pieces: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """The first ``limit`` samples."""
    left = limit
    for piece in pieces:
        if left is None:
            yield piece
        else:
            yield piece.part(0, left)
            left -= min(left, piece.samples)
            if not left:
                return


def rows_alike(batch: Batch) -> list[tuple[tuple[int, ...], str]]:
    """What samples of one batch have in common."""
    arrays = [*batch.inputs.values(), *(() if batch.labels is None else (batch.labels,))]
    return [(array.shape[1:], array.dtype.str) for array in arrays]


def cut(pieces: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Batches of ``size`` samples from pieces of any length; the last one may be smaller."""
    held: list[Batch] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += piece.samples
        if count < size:
            continue
        whole = _joined(held)
        full = count - count % size
        yield from (whole.part(start, start + size) for start in range(0, full, size))
        held = [whole.part(full, count)] if full < count else []
        count -= full
    if held:
        yield _joined(held)


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    inputs = {name: np.concatenate([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return Batch(inputs, np.concatenate(labels) if labels else None)
