"""Places within texts: the first token by itself, for much of attention rests on it, and the others in bins."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Bins of the tokens behind the first one.
BINS = 16


@dataclass(frozen=True)
class Positions:
    """Bins of places, as many tokens in each as goes; the first token is a bin of its own.

    Attributes:
        starts: First place of each bin.
    """

    starts: tuple[int, ...]

    @classmethod
    def of_texts(cls, lengths: Sequence[int]) -> "Positions":
        """Bins that reach as far as the longest text."""
        longest = max(lengths)
        bins = min(BINS, longest - 1)
        return cls((0, *(1 + -(-k * (longest - 1) // bins) for k in range(bins))))

    def sums(self, values: Floats) -> tuple[Floats, Floats]:
        """Sum and count per bin of what each token of one text has, from its first one on; NaN is left out."""
        places = np.searchsorted(self.starts, np.arange(len(values)), side="right") - 1
        known = ~np.isnan(values)
        return (
            np.bincount(places[known], values[known], minlength=len(self.starts)).astype(np.float64),
            np.bincount(places[known], minlength=len(self.starts)).astype(np.float64),
        )


def means_of(sums: Floats, counts: Floats) -> tuple[float | None, ...]:
    """Means of bins; None where one has no token."""
    return tuple(float(own / count) if count else None for own, count in zip(sums, counts, strict=True))


@dataclass
class Means:
    """Means per bin over texts, whose values are not kept."""

    positions: Positions
    _sums: Floats | None = None
    _counts: Floats | None = None

    def add(self, values: Floats) -> None:
        """Take one text."""
        sums, counts = self.positions.sums(values)
        self._sums = sums if self._sums is None else self._sums + sums
        self._counts = counts if self._counts is None else self._counts + counts

    @property
    def by_bin(self) -> tuple[float | None, ...]:
        """None where no text has a token."""
        if self._sums is None or self._counts is None:
            return ()
        return means_of(self._sums, self._counts)

    @property
    def overall(self) -> float | None:
        """Of all tokens."""
        return self._mean(slice(None))

    @property
    def of_first(self) -> float | None:
        """Of the first tokens."""
        return self._mean(slice(0, 1))

    @property
    def of_others(self) -> float | None:
        """Of all but the first."""
        return self._mean(slice(1, None))

    def _mean(self, bins: slice) -> float | None:
        if self._sums is None or self._counts is None or not self._counts[bins].sum():
            return None
        return float(self._sums[bins].sum() / self._counts[bins].sum())
