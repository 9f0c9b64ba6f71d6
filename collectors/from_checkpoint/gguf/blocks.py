"""Blocks of weights as llama.cpp stores them: codes, and for each run of 16 or 32 weights a scale and an offset.

A weight is scale · code + offset; where steps are not even, a table has a number for each code. The layouts are those
of ``ggml-common.h``; what is computed here in float32 equals what the package ``gguf`` computes to the bit. K types
hold 256 weights, whose scales are codes of a few bits times a scale of the block.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.gguf.block_parts import BlockType, Bytes, Unpacked, read_halves
from quantmedic.collectors.from_checkpoint.gguf.lattice_blocks import LATTICE_TYPES
from quantmedic.collectors.from_checkpoint.weight_fields import Values

#: Types by their number: name, weights of a block, bytes of a block.
_TYPES: Mapping[int, tuple[str, int, int]] = {
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
BLOCKS: Mapping[str, tuple[int, int]] = {name: (length, size) for name, length, size in _TYPES.values()}
#: Numbers of the codes of IQ4_NL and IQ4_XS, and twice those of MXFP4, which are floats of four bits.
_UNEVEN = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)
_FOUR_BIT_FLOATS = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)
FLOAT_TYPES = ("F64", "F32", "F16", "BF16")
INTEGER_TYPES = ("I8", "I16", "I32", "I64")


def type_name(number: int) -> str | None:
    """Name of a type; None where it is not known."""
    return _TYPES[number][0] if number in _TYPES else None


def _fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """Fields of each byte ``[blocks, fields]``, the lowest first: those of ``run`` bytes in a row follow each other."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    found = packed.reshape(len(packed), -1, 1, run) >> shifts
    return (found & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def _less_zero(codes: Bytes, zero: int) -> NDArray[np.int8]:
    return codes.astype(np.int8) - np.int8(zero)


def _q4_0(blocks: Bytes) -> Unpacked:
    return Unpacked(_less_zero(_fields(blocks[:, 2:], 4, 16), 8), read_halves(blocks, 0), None)


def _q4_1(blocks: Bytes) -> Unpacked:
    return Unpacked(_fields(blocks[:, 4:], 4, 16), read_halves(blocks, 0), read_halves(blocks, 2))


def _five_bits(blocks: Bytes) -> Bytes:
    """Codes of Q5_0 and Q5_1: the fifth bits of all stand before the other four."""
    high = np.unpackbits(np.ascontiguousarray(blocks[:, -20:-16]), axis=1, bitorder="little")
    return _fields(blocks[:, -16:], 4, 16) | (high << np.uint8(4))


def _q5_0(blocks: Bytes) -> Unpacked:
    return Unpacked(_less_zero(_five_bits(blocks), 16), read_halves(blocks, 0), None)


def _q5_1(blocks: Bytes) -> Unpacked:
    return Unpacked(_five_bits(blocks), read_halves(blocks, 0), read_halves(blocks, 2))


def _q8_0(blocks: Bytes) -> Unpacked:
    return Unpacked(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), read_halves(blocks, 0), None)


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


def _iq4_nl(blocks: Bytes) -> Unpacked:
    return Unpacked(_UNEVEN[_fields(blocks[:, 2:], 4, 16)], read_halves(blocks, 0), None)


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


#: Types that are read, by name.
BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(4, 32, True, _q4_0),
    "Q4_1": BlockType(4, 32, False, _q4_1),
    "Q5_0": BlockType(5, 32, True, _q5_0),
    "Q5_1": BlockType(5, 32, False, _q5_1),
    "Q8_0": BlockType(8, 32, True, _q8_0),
    "Q2_K": BlockType(2, 16, False, _q2_k),
    "Q3_K": BlockType(3, 16, True, _q3_k),
    "Q4_K": BlockType(4, 32, False, _q4_k),
    "Q5_K": BlockType(5, 32, False, _q5_k),
    "Q6_K": BlockType(6, 16, True, _q6_k),
    "IQ4_NL": BlockType(4, 32, True, _iq4_nl, even=False),
    "IQ4_XS": BlockType(4, 32, True, _iq4_xs, even=False),
    "MXFP4": BlockType(4, 32, True, _mxfp4, even=False),
    "NVFP4": BlockType(4, 16, True, _nvfp4, even=False),
    **LATTICE_TYPES,
}
