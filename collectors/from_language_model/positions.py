"""Places within texts: the first token by itself, for much of attention rests on it, and the others in bins."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Bins of the tokens behind the first one.
BINS = 16


def starts_of_bins(lengths: Sequence[int]) -> tuple[int, ...]:
    """First place of each bin of texts of so many tokens, as many tokens in each as goes; the first has its own."""
    longest = max(lengths)
    bins = min(BINS, longest - 1)
    return (0, *(1 + -(-k * (longest - 1) // bins) for k in range(bins)))


@dataclass
class Means:
    """Means per bin over texts, whose values are not kept.

    Attributes:
        starts: First place of each bin.
    """

    starts: tuple[int, ...]
    _sums: Floats = field(init=False)
    _counts: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._sums, self._counts = np.zeros(len(self.starts)), np.zeros(len(self.starts))

    def add(self, values: Floats) -> None:
        """Take what each token of one text has, from its first one on; NaN is left out."""
        places = np.searchsorted(self.starts, np.arange(len(values)), side="right") - 1
        known = ~np.isnan(values)
        self._sums += np.bincount(places[known], values[known], minlength=len(self.starts))
        self._counts += np.bincount(places[known], minlength=len(self.starts))

    @property
    def by_bin(self) -> tuple[float | None, ...]:
        """None where one has no token."""
        return tuple(self._mean(slice(k, k + 1)) for k in range(len(self.starts)))

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
        count = self._counts[bins].sum()
        return float(self._sums[bins].sum() / count) if count else None
