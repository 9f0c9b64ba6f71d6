"""Calibration data readers in the style of onnxruntime, which give their feeds one after the other, once."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.errors import DataError

Feed = Mapping[str, NDArray[np.generic]]


class Reader(Protocol):
    """What onnxruntime's quantizer reads: a feed per call, None at the end."""

    def get_next(self) -> Feed | None:
        """The next feed."""


def is_reader(data: object) -> TypeGuard[Reader]:
    """It has the one method of a calibration data reader."""
    return callable(getattr(data, "get_next", None))


class RewindableReader:
    """Begins anew behind the last feed of a reader: by its own ``rewind()``, else from feeds that are kept in memory.

    Whoever reads up to None leaves the reader as it was: several steps of a script can share it.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader: Reader | None = reader
        self._rewind: Callable[[], object] | None = getattr(reader, "rewind", None)
        self._feeds: list[Feed] = []
        self._place = 0

    def get_next(self) -> Feed | None:
        """The next feed; None at the end, and after that the first one again.

        Raises:
            DataError: The reader gives none at all.
        """
        if self._rewind is not None:
            return self._next_of_rewound()
        if self._place == len(self._feeds) and self._reader is not None:
            self._read_one(self._reader)
        if self._place == len(self._feeds):
            self.rewind()
            return None
        self._place += 1
        return self._feeds[self._place - 1]

    def rewind(self) -> None:
        """Begin anew."""
        self._place = 0
        if self._rewind is not None:
            self._rewind()

    def __iter__(self) -> Iterator[Feed]:
        """All feeds, from the first one on."""
        self.rewind()
        while (feed := self.get_next()) is not None:
            yield feed

    def _next_of_rewound(self) -> Feed | None:
        """Nothing is kept: the reader rewinds by itself; one that was read to its end is rewound first."""
        assert self._reader is not None
        feed = self._reader.get_next()
        if feed is None and not self._place:
            self.rewind()
            feed = self._reader.get_next()
            if feed is None:
                raise _no_feeds(self._reader)
        if feed is None:
            self.rewind()
            return None
        self._place += 1
        return feed

    def _read_one(self, reader: Reader) -> None:
        feed = reader.get_next()
        if feed is not None:
            self._feeds.append(feed)
            return
        self._reader = None
        if not self._feeds:
            raise _no_feeds(reader)


def _no_feeds(reader: Reader) -> DataError:
    return DataError(
        "the calibration data reader gives no feeds",
        where=type(reader).__name__,
        help="make a new one: a reader that was read to its end gives nothing more",
    )
