"""Small versions of a few samples of a data set, so that a reader sees what the network was fed with."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

#: Longest side of a thumbnail in pixels.
SIDE = 48
#: Samples that stand for a set: those of the smallest content hash, which depend neither on order nor on shards.
TYPICAL = 8
#: What is known of a kept sample; its values are its pixels times ``scale``, a power of two.
THUMBNAIL_DTYPE = np.dtype(
    [("hash", "u8"), ("deviation", "f4"), ("saturated", "f4"), ("nonfinite", "i4"), ("scale", "f4")]
)
Table = NDArray[np.void]


@dataclass
class Thumbnails:
    """The samples kept of one data set; each content counts once.

    ``pixels`` are ``[height, width, channels]``, in the order of the table, which is by hash.
    """

    table: Table = field(default_factory=lambda: np.zeros(0, THUMBNAIL_DTYPE))
    pixels: list[NDArray[np.float16]] = field(default_factory=list)

    def merge(self, other: "Thumbnails") -> "Thumbnails":
        """What one pass over both sets would have kept."""
        table, pixels = np.concatenate([self.table, other.table]), [*self.pixels, *other.pixels]
        places = places_to_keep(table)
        return Thumbnails(table[places], [pixels[i] for i in places])

    def values(self, place: int) -> NDArray[np.float32]:
        """Values of one thumbnail, ``[height, width, channels]``."""
        return self.pixels[place].astype(np.float32) * np.float32(self.table["scale"][place])

    @property
    def typical(self) -> list[int]:
        """Places of the samples that stand for the set."""
        return list(range(min(TYPICAL, len(self.table))))

    @property
    def faintest(self) -> int | None:
        """Place of the sample with the smallest deviation; None where no sample is finite."""
        return _faintest(self.table)

    @property
    def most_spoiled(self) -> int | None:
        """Place of the sample with the most non-finite values, else the largest share at its largest value."""
        return _most_spoiled(self.table)


def places_to_keep(table: Table) -> NDArray[np.int64]:
    """Which samples of a table are kept, by hash: the typical ones, the faintest and the most spoiled one.

    Keeping in steps and keeping at once give the same samples.
    """
    _, places = np.unique(table["hash"], return_index=True)
    rows = table[places]
    chosen = {*range(min(TYPICAL, len(rows))), _faintest(rows), _most_spoiled(rows)} - {None}
    return places[sorted(place for place in chosen if place is not None)].astype(np.int64)


def _faintest(rows: Table) -> int | None:
    finite = np.flatnonzero(rows["nonfinite"] == 0)
    if not len(finite):
        return None
    return int(finite[np.lexsort((rows["hash"][finite], rows["deviation"][finite]))[0]])


def _most_spoiled(rows: Table) -> int | None:
    """Constant samples are left out: all of one is its largest value."""
    varied = np.flatnonzero((rows["nonfinite"] > 0) | (rows["deviation"] > 0))
    if not len(varied):
        return None
    keys = (rows["hash"][varied], -rows["saturated"][varied], -rows["nonfinite"][varied])
    return int(varied[np.lexsort(keys)[0]])
