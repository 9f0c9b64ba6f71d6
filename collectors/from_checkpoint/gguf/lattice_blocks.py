"""Blocks of llama.cpp whose weights are points of a lattice: IQ1, IQ2 and IQ3, and those of three numbers, TQ1 and TQ2.

A run of 4 or 8 weights is a point of the type's lattice, with the signs of its weights beside it; a scale belongs to 16
or 32 weights of a block of 256. What is computed here in float32 equals what the package ``gguf`` computes to the bit.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.gguf.block_parts import BlockType, Bytes, Unpacked, read_halves
from quantmedic.collectors.from_checkpoint.gguf.lattices import lattice
from quantmedic.collectors.from_checkpoint.weight_fields import Values

_EVERY_BIT = np.arange(8, dtype=np.uint8)
#: Signs of 8 weights by 7 bits: the last makes the number of minus signs even.
_EVEN_SIGNS = np.array([k | (bin(k).count("1") & 1) << 7 for k in range(128)], np.uint8)
#: What is added to the numbers of IQ1.
_SHIFT = np.float32(0.125)
#: Powers of three by which the digits of a byte of TQ1_0 are read.
_POWERS = np.array((1, 3, 9, 27, 81), np.uint8)
_HALF, _QUARTER = np.float32(0.5), np.float32(0.25)
Points = NDArray[np.int8]


def _signs(bits: Bytes) -> Points:
    """1 and -1 by the bits of bytes, ``[blocks, 8 · bytes]``."""
    found = (bits[:, :, None] >> _EVERY_BIT) & np.uint8(1)
    return (1 - 2 * found.astype(np.int8)).reshape(len(bits), -1)


def _points(name: str, places: NDArray[np.integer]) -> Points:
    """Points by their place in the lattice, one behind the other."""
    return lattice(name)[places].reshape(len(places), -1)


def _words(blocks: Bytes, start: int, stop: int, kind: str) -> NDArray[np.integer]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(kind)


def _nibbles(packed: Bytes) -> Bytes:
    """Both halves of each byte, the low one first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(len(packed), -1)


def _packed_signs(words: NDArray[np.integer]) -> Points:
    """Signs by four times 7 bits of words."""
    places = (words[:, :, None] >> np.array((0, 7, 14, 21), np.uint32)) & np.uint32(127)
    return _signs(_EVEN_SIGNS[places].reshape(len(words), -1))


def _iq2_xxs(blocks: Bytes) -> Unpacked:
    words = _words(blocks, 2, 66, "<u4").reshape(len(blocks), -1, 2)
    places = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    scale = read_halves(blocks, 0) * (_HALF + (words[:, :, 1] >> 28).astype(np.float32)) * _QUARTER
    return Unpacked(_points("IQ2_XXS", places) * _packed_signs(words[:, :, 1]), scale, None)


def _scales_of_halves(blocks: Bytes, packed: Bytes) -> Values:
    """Scales of IQ2_XS and IQ2_S: 4 bits for 16 weights each."""
    scale: Values = read_halves(blocks, 0) * (_HALF + _nibbles(packed).astype(np.float32)) * _QUARTER
    return scale


def _iq2_xs(blocks: Bytes) -> Unpacked:
    words = _words(blocks, 2, 66, "<u2")
    codes = _points("IQ2_XS", words & np.uint16(511)) * _signs(_EVEN_SIGNS[words >> np.uint16(9)])
    return Unpacked(codes, _scales_of_halves(blocks, blocks[:, 66:74]), None)


def _iq2_s(blocks: Bytes) -> Unpacked:
    low, signs, high = blocks[:, 2:34], blocks[:, 34:66], blocks[:, 66:74]
    places = low.astype(np.uint16) | _high_bits(high, 2) << np.uint16(8)
    return Unpacked(_points("IQ2_S", places) * _signs(signs), _scales_of_halves(blocks, blocks[:, 74:82]), None)


def _high_bits(packed: Bytes, bits: int) -> NDArray[np.uint16]:
    """Fields of bytes, the lowest first, of places whose other bits stand elsewhere."""
    fields = (packed[:, :, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
    return fields.reshape(len(packed), -1).astype(np.uint16)


def _iq3_xxs(blocks: Bytes) -> Unpacked:
    words = _words(blocks, 66, 98, "<u4")
    scale = read_halves(blocks, 0) * (_HALF + (words >> 28).astype(np.float32)) * _HALF
    return Unpacked(_points("IQ3_XXS", blocks[:, 2:66]) * _packed_signs(words), scale, None)


def _iq3_s(blocks: Bytes) -> Unpacked:
    places = blocks[:, 2:66].astype(np.uint16) | _high_bits(blocks[:, 66:74], 1) << np.uint16(8)
    scale = read_halves(blocks, 0) * (1 + 2 * _nibbles(blocks[:, 106:110])).astype(np.float32)
    return Unpacked(_points("IQ3_S", places) * _signs(blocks[:, 74:106]), scale, None)


def _iq1_s(blocks: Bytes) -> Unpacked:
    words = _words(blocks, 34, 50, "<u2")
    high = (words[:, :, None] >> np.array((0, 3, 6, 9), np.uint16)) & np.uint16(7)
    places = blocks[:, 2:34].astype(np.uint16) | high.reshape(len(blocks), -1) << np.uint16(8)
    shift = np.where(words & np.uint16(0x8000), -_SHIFT, _SHIFT)
    scale = read_halves(blocks, 0) * (2 * ((words >> np.uint16(12)) & np.uint16(7)) + 1).astype(np.float32)
    return Unpacked(_points("IQ1", places) + np.repeat(shift, 32, axis=1), scale, None)


def _iq1_m(blocks: Bytes) -> Unpacked:
    high, words = _nibbles(blocks[:, 32:48]), _words(blocks, 48, 56, "<u2")
    places = blocks[:, :32].astype(np.uint16) | (high & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    shift = np.where(high & np.uint8(8), -_SHIFT, _SHIFT)
    # The scale of the block is spread over the highest bits of four words.
    parts = (words & np.uint16(0xF000)) >> np.array((12, 8, 4, 0), np.uint16)
    whole = np.bitwise_or.reduce(parts, axis=1, keepdims=True).astype("<u2").view("<f2").astype(np.float32)
    fields = (words[:, :, None] >> np.array((0, 3, 6, 9), np.uint16)) & np.uint16(7)
    scale = whole * (2 * fields.reshape(len(blocks), -1) + 1).astype(np.float32)
    return Unpacked(_points("IQ1", places) + np.repeat(shift, 8, axis=1), scale, None)


def _digits(packed: Bytes, run: int, count: int) -> Bytes:
    """So many digits of each byte, of base three: those of ``run`` bytes in a row follow each other."""
    powers = packed.reshape(len(packed), -1, 1, run) * _POWERS[:count].reshape(1, 1, -1, 1)
    return ((powers.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(packed), -1)


def _tq1_0(blocks: Bytes) -> Unpacked:
    digits = np.hstack(
        [_digits(blocks[:, :32], 32, 5), _digits(blocks[:, 32:48], 16, 5), _digits(blocks[:, 48:52], 4, 4)]
    )
    return Unpacked(digits.astype(np.int8) - np.int8(1), read_halves(blocks, 52), None)


def _tq2_0(blocks: Bytes) -> Unpacked:
    shifts = np.array((0, 2, 4, 6), np.uint8).reshape(1, 1, 4, 1)
    codes = (blocks[:, :64].reshape(len(blocks), -1, 1, 32) >> shifts) & np.uint8(3)
    return Unpacked(codes.reshape(len(blocks), -1).astype(np.int8) - np.int8(1), read_halves(blocks, 64), None)


#: Types that are read, by name.
LATTICE_TYPES: Mapping[str, BlockType] = {
    "IQ1_S": BlockType(1, 32, True, _iq1_s, even=False),
    "IQ1_M": BlockType(1, 16, True, _iq1_m, even=False),
    "IQ2_XXS": BlockType(2, 32, True, _iq2_xxs, even=False),
    "IQ2_XS": BlockType(2, 16, True, _iq2_xs, even=False),
    "IQ2_S": BlockType(2, 16, True, _iq2_s, even=False),
    "IQ3_XXS": BlockType(3, 32, True, _iq3_xxs, even=False),
    "IQ3_S": BlockType(3, 32, True, _iq3_s, even=False),
    "TQ1_0": BlockType(2, 256, True, _tq1_0, even=False),
    "TQ2_0": BlockType(2, 256, True, _tq2_0, even=False),
}
