"""Tallies: what a task metric keeps of each sample, so that it can be computed for any choice of the samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Length of a sample that was not measured; one of length 0 was, and has nothing to count.
_NOT_MEASURED = -1


@dataclass(frozen=True, eq=False)
class Tally:
    """Rows of numbers that belong to samples: as many to each as ``lengths`` says, one behind the other.

    What the numbers mean is up to the metric. Metrics that are means have one row of one number per sample.

    Attributes:
        values: ``[rows, columns]``.
        lengths: Rows of each sample; -1 for a sample that was not measured.
    """

    values: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @classmethod
    def of_numbers(cls, numbers: NDArray[np.float64]) -> "Tally":
        """One number per sample."""
        return cls(numbers.reshape(-1, 1), np.ones(len(numbers), np.int64))

    @classmethod
    def of_rows(cls, rows: NDArray[np.float64]) -> "Tally":
        """One row ``[columns]`` per sample."""
        return cls(rows, np.ones(len(rows), np.int64))

    @classmethod
    def of_samples(cls, rows: Sequence[NDArray[np.float64]], columns: int) -> "Tally":
        """Any number of rows per sample."""
        return cls(np.concatenate([np.zeros((0, columns)), *rows]), np.array([len(own) for own in rows], np.int64))

    @classmethod
    def not_measured(cls, samples: int) -> "Tally":
        """Samples of which nothing is known."""
        return cls(np.zeros((0, 1)), np.full(samples, _NOT_MEASURED, np.int64))

    @classmethod
    def join(cls, parts: Sequence["Tally"]) -> "Tally":
        """The samples of all parts, one part behind the other."""
        filled = [part.values for part in parts if len(part.values)]
        values = np.concatenate(filled) if filled else parts[0].values
        return cls(values, np.concatenate([part.lengths for part in parts]))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    @property
    def owners(self) -> NDArray[np.int64]:
        """Sample of each row."""
        return np.repeat(np.arange(len(self)), np.maximum(self.lengths, 0))

    @property
    def known(self) -> NDArray[np.bool_]:
        """Samples that were measured, and whose rows are finite numbers."""
        broken = np.zeros(len(self), np.bool_)
        broken[self.owners[~np.isfinite(self.values).all(axis=1)]] = True
        found: NDArray[np.bool_] = (self.lengths >= 0) & ~broken
        return found

    def take(self, samples: NDArray[np.int64]) -> "Tally":
        """These samples in this order; one that is named twice stands there twice."""
        counts = np.maximum(self.lengths, 0)
        starts, own = np.cumsum(counts) - counts, counts[samples]
        rows = np.repeat(starts[samples] - (np.cumsum(own) - own), own) + np.arange(own.sum())
        return Tally(self.values[rows], self.lengths[samples])

    def sums(self) -> NDArray[np.float64]:
        """Rows added up by sample, ``[samples, columns]``."""
        found = np.zeros((len(self), self.values.shape[1]))
        np.add.at(found, self.owners, self.values)
        return found

    def equals(self, other: "Tally") -> bool:
        """The same numbers of the same samples."""
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(self.values, other.values)
