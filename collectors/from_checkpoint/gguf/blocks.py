"""Blocks of weights as llama.cpp stores them: codes, and for each run of 16 or 32 weights a scale and an offset.

A weight is scale · code + offset; where steps are not even, a table has a number for each code. The layouts are those
of ``ggml-common.h``; what is computed here in float32 equals what the package ``gguf`` computes to the bit. K types
hold 256 weights, whose scales are codes of a few bits times a scale of the block. Of IQ1, IQ2 and IQ3 a run of 4 or 8
weights is a point of the type's lattice, with the signs of its weights beside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Values

Bytes = NDArray[np.uint8]
_EVERY_BIT = np.arange(8, dtype=np.uint8)
#: Signs of 8 weights by 7 bits: the last makes the number of minus signs even.
_EVEN_SIGNS = np.array([k | (bin(k).count("1") & 1) << 7 for k in range(128)], np.uint8)
#: What is added to the numbers of IQ1.
_SHIFT = np.float32(0.125)
#: Powers of three by which the digits of a byte of TQ1_0 are read.
_POWERS = np.array((1, 3, 9, 27, 81), np.uint8)
_HALF, _QUARTER = np.float32(0.5), np.float32(0.25)
Points = NDArray[np.int8]
#: Types by their number: name, weights of a block, bytes of a block.
TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
#: Weights and bytes of a block, by the name of the type.
BLOCKS: Mapping[str, tuple[int, int]] = {name: (length, size) for name, length, size in TYPES.values()}
#: Numbers of the codes of IQ4_NL and IQ4_XS, and twice those of MXFP4, which are floats of four bits.
_UNEVEN = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)
_FOUR_BIT_FLOATS = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)
FLOAT_TYPES = ("F64", "F32", "F16", "BF16")
INTEGER_TYPES = ("I8", "I16", "I32", "I64")


class Unpacked(NamedTuple):
    """Some blocks ``[blocks, weights]``: codes or their numbers; scales, and offsets or None ``[blocks, groups]``."""

    codes: Array
    scale: Values
    offset: Values | None


@dataclass(frozen=True)
class BlockType:
    """How one type is read.

    Attributes:
        bits: Bits of a code.
        group: Weights that share a scale.
        signed: Codes are signed, and there are no offsets.
        unpack: Takes blocks ``[blocks, bytes]``.
        even: Codes have even steps.
    """

    bits: int
    group: int
    signed: bool
    unpack: Callable[[Bytes], Unpacked]
    even: bool = True


def read_halves(blocks: Bytes, start: int) -> Values:
    """A float16 of each block, ``[blocks, 1]``."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _signs(bits: Bytes) -> Points:
    """1 and -1 by the bits of bytes, ``[blocks, 8 · bytes]``."""
    found = (bits[:, :, None] >> _EVERY_BIT) & np.uint8(1)
    return (1 - 2 * found.astype(np.int8)).reshape(len(bits), -1)


@cache
def lattice(name: str) -> Points:
    """Points of the lattice of a type, ``[points, weights]``; ``lattices.npz`` has the tables of ``ggml-common.h``."""
    with as_file(files(__package__).joinpath("lattices.npz")) as path, np.load(path) as tables:
        found: Points = tables[name]
    return found


def _points(name: str, places: NDArray[np.integer]) -> Points:
    """Points by their place in the lattice, one behind the other."""
    return lattice(name)[places].reshape(len(places), -1)


def _read_words(blocks: Bytes, start: int, stop: int, kind: str) -> NDArray[np.integer]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(kind)


def _nibbles(packed: Bytes) -> Bytes:
    """Both halves of each byte, the low one first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(len(packed), -1)


def _packed_signs(words: NDArray[np.integer]) -> Points:
    """Signs by four times 7 bits of words."""
    places = (words[:, :, None] >> np.array((0, 7, 14, 21), np.uint32)) & np.uint32(127)
    return _signs(_EVEN_SIGNS[places].reshape(len(words), -1))


def _iq2_xxs(blocks: Bytes) -> Unpacked:
    words = _read_words(blocks, 2, 66, "<u4").reshape(len(blocks), -1, 2)
    places = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    scale = read_halves(blocks, 0) * (_HALF + (words[:, :, 1] >> 28).astype(np.float32)) * _QUARTER
    return Unpacked(_points("IQ2_XXS", places) * _packed_signs(words[:, :, 1]), scale, None)


def _scales_of_halves(blocks: Bytes, packed: Bytes) -> Values:
    """Scales of IQ2_XS and IQ2_S: 4 bits for 16 weights each."""
    scale: Values = read_halves(blocks, 0) * (_HALF + _nibbles(packed).astype(np.float32)) * _QUARTER
    return scale


def _iq2_xs(blocks: Bytes) -> Unpacked:
    words = _read_words(blocks, 2, 66, "<u2")
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
    words = _read_words(blocks, 66, 98, "<u4")
    scale = read_halves(blocks, 0) * (_HALF + (words >> 28).astype(np.float32)) * _HALF
    return Unpacked(_points("IQ3_XXS", blocks[:, 2:66]) * _packed_signs(words), scale, None)


def _iq3_s(blocks: Bytes) -> Unpacked:
    places = blocks[:, 2:66].astype(np.uint16) | _high_bits(blocks[:, 66:74], 1) << np.uint16(8)
    scale = read_halves(blocks, 0) * (1 + 2 * _nibbles(blocks[:, 106:110])).astype(np.float32)
    return Unpacked(_points("IQ3_S", places) * _signs(blocks[:, 74:106]), scale, None)


def _iq1_s(blocks: Bytes) -> Unpacked:
    words = _read_words(blocks, 34, 50, "<u2")
    high = (words[:, :, None] >> np.array((0, 3, 6, 9), np.uint16)) & np.uint16(7)
    places = blocks[:, 2:34].astype(np.uint16) | high.reshape(len(blocks), -1) << np.uint16(8)
    shift = np.where(words & np.uint16(0x8000), -_SHIFT, _SHIFT)
    scale = read_halves(blocks, 0) * (2 * ((words >> np.uint16(12)) & np.uint16(7)) + 1).astype(np.float32)
    return Unpacked(_points("IQ1", places) + np.repeat(shift, 32, axis=1), scale, None)


def _iq1_m(blocks: Bytes) -> Unpacked:
    high, words = _nibbles(blocks[:, 32:48]), _read_words(blocks, 48, 56, "<u2")
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


def _fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """Fields of each byte ``[blocks, fields]``, the lowest first: those of ``run`` bytes in a row follow each other."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    found = packed.reshape(len(packed), -1, 1, run) >> shifts
    return (found & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def _less_zero(codes: Bytes, zero: int) -> NDArray[np.int8]:
    return codes.astype(np.int8) - np.int8(zero)


def _five_bits(blocks: Bytes) -> Bytes:
    """Codes of Q5_0 and Q5_1: the fifth bits of all stand before the other four."""
    high = np.unpackbits(np.ascontiguousarray(blocks[:, -20:-16]), axis=1, bitorder="little")
    return _fields(blocks[:, -16:], 4, 16) | (high << np.uint8(4))


def _q2_k(blocks: Bytes) -> Unpacked:
    scales, packed = blocks[:, :16], blocks[:, 16:80]
    scale = read_halves(blocks, 80) * (scales & np.uint8(15)).astype(np.float32)
    offset = read_halves(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return Unpacked(_fields(packed, 2, 32), scale, -offset)


def _q3_k(blocks: Bytes) -> Unpacked:
    high, packed, scales = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    six = _fields(scales[:, :8], 4, 8) | (_fields(scales[:, 8:], 2, 4) << np.uint8(4))
    missing = _fields(high, 1, 32) ^ np.uint8(1)  # a bit that is 0 takes 4 away
    codes = _fields(packed, 2, 32).astype(np.int8) - (missing << np.uint8(2)).astype(np.int8)
    return Unpacked(codes, read_halves(blocks, 108) * _less_zero(six, 32).astype(np.float32), None)


def _scales_of_six_bits(blocks: Bytes) -> tuple[Values, Values]:
    """Scales and offsets of Q4_K and Q5_K: eight of six bits each, those of the last four in two parts."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    low, high = np.uint8(0x3F), np.uint8(0x30)
    scales = np.hstack([first & low, (rest & np.uint8(15)) | ((first >> np.uint8(2)) & high)])
    offsets = np.hstack([second & low, (rest >> np.uint8(4)) | ((second >> np.uint8(2)) & high)])
    return read_halves(blocks, 0) * scales.astype(np.float32), -(read_halves(blocks, 2) * offsets.astype(np.float32))


def _q4_k(blocks: Bytes) -> Unpacked:
    return Unpacked(_fields(blocks[:, 16:], 4, 32), *_scales_of_six_bits(blocks))


def _q5_k(blocks: Bytes) -> Unpacked:
    codes = _fields(blocks[:, 48:], 4, 32) | (_fields(blocks[:, 16:48], 1, 32) << np.uint8(4))
    return Unpacked(codes, *_scales_of_six_bits(blocks))


def _q6_k(blocks: Bytes) -> Unpacked:
    low, high, scales = blocks[:, :128], blocks[:, 128:192], blocks[:, 192:208]
    codes = _less_zero(_fields(low, 4, 64) | (_fields(high, 2, 32) << np.uint8(4)), 32)
    own = np.ascontiguousarray(scales).view(np.int8).astype(np.float32)
    return Unpacked(codes, read_halves(blocks, 208) * own, None)


def _iq4_xs(blocks: Bytes) -> Unpacked:
    six = _fields(blocks[:, 4:8], 4, 1) | (_fields(blocks[:, 2:4], 2, 1) << np.uint8(4))
    scale = read_halves(blocks, 0) * _less_zero(six, 32).astype(np.float32)
    return Unpacked(_UNEVEN[_fields(blocks[:, 8:], 4, 16)], scale, None)


def _mxfp4(blocks: Bytes) -> Unpacked:
    exponent = blocks[:, :1].astype(np.uint32)
    tiny = np.uint32(0x00200000) << exponent  # below the least normal float32
    bits = np.where(exponent < 2, tiny, (exponent - np.uint32(1)) << np.uint32(23))
    return Unpacked(_FOUR_BIT_FLOATS[_fields(blocks[:, 1:], 4, 16)], bits.astype(np.uint32).view(np.float32), None)


def _nvfp4(blocks: Bytes) -> Unpacked:
    exponent, mantissa = (blocks[:, :4] >> np.uint8(3)).astype(np.int32) & 15, (blocks[:, :4] & 7).astype(np.float32)
    scale = np.where(exponent == 0, np.ldexp(mantissa, -10), np.ldexp(1 + mantissa / 8, exponent - 8))
    scale[(blocks[:, :4] == 0) | (blocks[:, :4] == 0x7F)] = 0.0
    return Unpacked(_FOUR_BIT_FLOATS[_fields(blocks[:, 4:], 4, 8)], scale.astype(np.float32), None)


def _one_scale(codes: Callable[[Bytes], Array], offset: int | None = None) -> Callable[[Bytes], Unpacked]:
    """Blocks of codes with a scale in front, and behind that an offset where its place is given."""
    return lambda blocks: Unpacked(
        codes(blocks), read_halves(blocks, 0), None if offset is None else read_halves(blocks, offset)
    )


#: Types that are read, by name.
BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(4, 32, True, _one_scale(lambda blocks: _less_zero(_fields(blocks[:, 2:], 4, 16), 8))),
    "Q4_1": BlockType(4, 32, False, _one_scale(lambda blocks: _fields(blocks[:, 4:], 4, 16), offset=2)),
    "Q5_0": BlockType(5, 32, True, _one_scale(lambda blocks: _less_zero(_five_bits(blocks), 16))),
    "Q5_1": BlockType(5, 32, False, _one_scale(_five_bits, offset=2)),
    "Q8_0": BlockType(8, 32, True, _one_scale(lambda blocks: np.ascontiguousarray(blocks[:, 2:]).view(np.int8))),
    "Q2_K": BlockType(2, 16, False, _q2_k),
    "Q3_K": BlockType(3, 16, True, _q3_k),
    "Q4_K": BlockType(4, 32, False, _q4_k),
    "Q5_K": BlockType(5, 32, False, _q5_k),
    "Q6_K": BlockType(6, 16, True, _q6_k),
    "IQ4_NL": BlockType(4, 32, True, _one_scale(lambda blocks: _UNEVEN[_fields(blocks[:, 2:], 4, 16)]), even=False),
    "IQ4_XS": BlockType(4, 32, True, _iq4_xs, even=False),
    "MXFP4": BlockType(4, 32, True, _mxfp4, even=False),
    "NVFP4": BlockType(4, 16, True, _nvfp4, even=False),
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
