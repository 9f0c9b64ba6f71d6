"""PNG files of small pictures: zlib and a header are all that they need, so that no report depends on a package."""

import struct
import zlib
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Colour types of a header: grey and RGB by number of channels, and numbers of a table of colours.
_COLOUR = {1: 0, 3: 2}
_TABLE, _TABLE_COLOURS = 3, 256
#: From this many values on, time counts more than bytes.
_LARGE = 1 << 16


def png(pixels: Pixels) -> bytes:
    """A PNG file of ``[height, width, 1 or 3]`` (ISO/IEC 15948), by a table of its colours if that is less."""
    files = [_file(pixels, _COLOUR[pixels.shape[2]])]
    if pixels.shape[2] == 3:
        colours, numbers = np.unique(pixels @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True)
        if len(colours) <= _TABLE_COLOURS:
            table = colours.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
            places: Pixels = numbers.reshape(*pixels.shape[:2], 1).astype(np.uint8)
            files.append(_file(places, _TABLE, _chunk(b"PLTE", table.tobytes())))
    return min(files, key=len)


def fewer_colours(pixels: Pixels, most: int) -> Pixels:
    """A picture with at most so many colours: the boxes of Heckbert's median cut (1982), each by its mean."""
    flat = pixels.reshape(-1, pixels.shape[2])
    boxes = [_box(flat, np.arange(len(flat)), 0)]
    while len(boxes) < most and boxes[0].size:
        box = heappop(boxes)
        values = flat[box.places, box.channel]
        # What equals the median goes to one side, so that both hold something.
        lower = values < np.partition(values, len(values) // 2)[len(values) // 2]
        lower = lower if lower.any() else values == values.min()
        for part in (lower, ~lower):
            heappush(boxes, _box(flat, box.places[part], 2 * box.order + 1 + int(part is lower)))
    result = np.empty_like(flat)
    for box in boxes:
        result[box.places] = np.rint(flat[box.places].mean(axis=0))
    return result.reshape(pixels.shape)


class _Box(NamedTuple):
    """Pixels of near colours; the one to be cut next compares as the smallest."""

    size: int
    order: int
    channel: int
    places: NDArray[np.int64]


def _box(flat: Pixels, places: NDArray[np.int64], order: int) -> _Box:
    spans = np.ptp(flat[places], axis=0).astype(int)
    channel = int(spans.argmax())
    return _Box(-int(spans[channel]) * len(places), order, channel, places)


def _file(pixels: Pixels, colour: int, table: bytes = b"") -> bytes:
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    plain = np.insert(pixels.reshape(height, -1), 0, 0, axis=1)
    hard = 9 if pixels.size < _LARGE else 4
    data = min((zlib.compress(rows.tobytes(), hard) for rows in (plain, _filter_rows(pixels))), key=len)
    return _SIGNATURE + _chunk(b"IHDR", header) + table + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _filter_rows(pixels: Pixels) -> Pixels:
    """Rows as differences from what lies left, above, or around, whichever leaves the least; the filter comes first."""
    x = pixels.astype(np.int16)
    padded = np.pad(x, ((1, 0), (1, 0), (0, 0)))
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guesses = (np.zeros_like(x), left, up, (left + up) // 2, _paeth(left, up, corner))
    rests = np.stack([(x - guess).reshape(len(x), -1).astype(np.uint8) for guess in guesses])
    best = np.abs(rests.view(np.int8).astype(np.int32)).sum(axis=2).argmin(axis=0)
    chosen: Pixels = np.insert(rests[best, np.arange(len(x))], 0, best, axis=1)
    return chosen


def _paeth(left: NDArray[np.int16], up: NDArray[np.int16], corner: NDArray[np.int16]) -> NDArray[np.int16]:
    """Whichever of the three is nearest to left + up - corner, in this order."""
    guess = left + up - corner
    far_left, far_up, far_corner = (np.abs(guess - near) for near in (left, up, corner))
    return np.where((far_left <= far_up) & (far_left <= far_corner), left, np.where(far_up <= far_corner, up, corner))
