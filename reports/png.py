"""PNG files of small pictures: zlib and a header are all that they need, so that no report depends on a package."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Colour type of a header by number of channels: grey, RGB.
_COLOUR = {1: 0, 3: 2}


def png(pixels: Pixels) -> bytes:
    """A PNG file of ``[height, width, 1 or 3]`` (ISO/IEC 15948), the smaller of plain and filtered rows."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR[channels], 0, 0, 0)
    plain = np.insert(pixels.reshape(height, -1), 0, 0, axis=1)
    data = min((zlib.compress(rows.tobytes(), 9) for rows in (plain, _filtered(pixels))), key=len)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _filtered(pixels: Pixels) -> Pixels:
    """Rows as differences from what lies left, above, or around, whichever leaves the least; the filter comes first."""
    x = pixels.astype(np.int16)
    padded = np.pad(x, ((1, 0), (1, 0), (0, 0)))
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guesses = (np.zeros_like(x), left, up, (left + up) // 2, _paeth(left, up, corner))
    rests = np.stack([(x - guess).reshape(len(x), -1).astype(np.uint8) for guess in guesses])
    best = np.abs(rests.view(np.int8).astype(np.int32)).sum(axis=2).argmin(axis=0)
    chosen: Pixels = np.insert(rests[best, np.arange(len(x))], 0, best, axis=1)
    return chosen


def _paeth(left: NDArray[Any], up: NDArray[Any], corner: NDArray[Any]) -> NDArray[Any]:
    """Whichever of the three is nearest to left + up - corner, in this order."""
    guess = left + up - corner
    far_left, far_up, far_corner = (np.abs(guess - near) for near in (left, up, corner))
    return np.where((far_left <= far_up) & (far_left <= far_corner), left, np.where(far_up <= far_corner, up, corner))
