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
        feed = self._read_one()
        if feed is None and not self._place and self._rewind is not None:  # it was read to its end before
            self.rewind()
            feed = self._read_one()
        if feed is None and not self._place:
            raise DataError(
                "the calibration data reader gives no feeds",
                where=type(self._reader).__name__,
                help="make a new one: a reader that was read to its end gives nothing more",
            )
        if feed is None:
            self.rewind()
        else:
            self._place += 1
        return feed

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

    def _read_one(self) -> Feed | None:
        """The feed at this place, which is kept where the reader cannot rewind."""
        if self._place < len(self._feeds):
            return self._feeds[self._place]
        if self._reader is None:
            return None
        feed = self._reader.get_next()
        if self._rewind is None and feed is not None:
            self._feeds.append(feed)
        elif self._rewind is None and self._feeds:
            self._reader = None  # read to its end, and needed no more
        return feed
