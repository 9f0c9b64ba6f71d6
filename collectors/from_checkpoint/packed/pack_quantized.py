"""Layers of compressed-tensors whose codes are packed into words.

``weight_packed`` int32 ``[outputs, inputs · bits / 32]`` holds codes plus 2^(bits-1); ``weight_zero_point`` is packed
in the same way along the outputs, or holds one int8 each. Where bits do not divide 32, a code may reach into the next
word, or the rest of each word is unused.
"""

import math
from collections.abc import Callable

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    AWQ_ORDER,
    REVERSED_ORDER,
    WORD,
    Block,
    Codes,
    PackedLayer,
    Parts,
    Reading,
    Settings,
    group_columns,
    group_rows,
    in_column_order,
    matrix_shape,
    require,
    require_parts,
    sort_by_group,
    unpack_padded_words,
    unpack_words,
)
from quantmedic.collectors.from_checkpoint.safetensors_file import INTEGERS, Stored, Values

#: Takes words, bits of a code, and the number of codes per row.
Unpacker = Callable[[Array, int, int], Codes]


def pack_quantized_layer(parts: Parts, settings: Settings) -> PackedLayer:
    """A layer whose codes are called ``weight_packed``; see ``packed_layers``."""
    words, scales = require_parts(parts, "weight_packed", "weight_scale")
    outputs, width = matrix_shape(words, "weight_packed")
    rows_scaled, groups = matrix_shape(scales, "weight_scale") if len(scales.shape) == 2 else (scales.size, 1)
    require(rows_scaled in (1, outputs), f"weight_scale has shape {list(scales.shape)} for {outputs} outputs")
    inputs = _packed_inputs(parts.get("weight_shape"), width, settings)
    bits = settings.bits if settings.bits and _fits_words(inputs, settings.bits, width) else width * WORD // inputs
    require(
        1 <= bits <= 8 and _fits_words(inputs, bits, width), f"{width} words for {inputs} inputs fit no number of bits"
    )
    unpack: Unpacker = unpack_words if -(-inputs * bits // WORD) == width else unpack_padded_words
    zeros = parts.get("weight_zero_point")
    if zeros is not None and zeros.dtype == "I32":
        fits = len(zeros.shape) == 2 and zeros.shape[1] == groups and _fits_words(outputs, bits, zeros.shape[0])
        require(fits, f"weight_zero_point has shape {list(zeros.shape)} for {outputs} outputs in {groups} groups")
    starts, order = group_columns(parts.get("weight_g_idx"), inputs, groups, settings.group_size)
    middle = 2 ** (bits - 1)

    def read_block(rows: slice, reading: Reading) -> Block:
        codes = in_column_order(unpack(words.load(rows), bits, inputs), reading.order)
        codes = codes ^ np.uint8(middle) if reading.flipped else codes
        scale = group_rows(scales, rows, groups)
        zero = np.full_like(scale, middle) + reading.zero_shift
        if zeros is not None:
            zero += _packed_zeros(zeros, rows, groups, bits, unpack)
        return Block(sort_by_group(codes, order), scale, zero, starts, order)

    return PackedLayer(
        format="pack-quantized",
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        signed=False,
        read=read_block,
        alternatives=_alternative_readings(bits, inputs),
        unit=WORD,
    )


def _alternative_readings(bits: int, inputs: int) -> dict[str, Reading]:
    found = {
        "zero points 1 higher": Reading(zero_shift=1),
        "zero points 1 lower": Reading(zero_shift=-1),
        "codes in two's complement instead of plus 2^(bits-1)": Reading(flipped=True),
    }
    if bits == 4 and inputs % 8 == 0:
        found["codes in AWQ's order of a word"] = Reading(order=AWQ_ORDER)
        found["codes in the reverse order of a word"] = Reading(order=REVERSED_ORDER)
    return found


def _fits_words(inputs: int, bits: int, width: int) -> bool:
    """This number of words holds the codes of a row, dense or padded."""
    return 1 <= bits <= 8 and width in (-(-inputs * bits // WORD), -(-inputs // (WORD // bits)))


def _packed_inputs(shape: Stored | None, width: int, settings: Settings) -> int:
    """Input channels as ``weight_shape`` says, else as many codes as the words hold."""
    if shape is not None and shape.size == 2 and shape.dtype in INTEGERS:
        inputs = int(shape.load().ravel()[1])
        require(0 < inputs <= width * WORD, f"weight_shape says {inputs} inputs in {width} words")
        return inputs
    require(bool(settings.bits) and WORD % (settings.bits or WORD) == 0, "no weight_shape beside its codes")
    return width * WORD // (settings.bits or WORD)


def _packed_zeros(zeros: Stored, rows: slice, groups: int, bits: int, unpack: Unpacker) -> Values:
    """Zero points ``[rows, groups]`` relative to the middle code; packed along the outputs, or one int8 each."""
    if zeros.dtype != "I32":
        return group_rows(zeros, rows, groups)
    count = rows.stop - rows.start
    # Without padding a word may begin inside a code; blocks of 32 rows begin with a whole one.
    per_word = WORD / bits if unpack is unpack_words else WORD // bits
    span = slice(int(rows.start / per_word), math.ceil(rows.stop / per_word))
    first = round(rows.start - span.start * per_word)
    words = zeros.load(span).reshape(-1, groups)
    codes = unpack(np.ascontiguousarray(words.T), bits, first + count)[:, first:]
    return np.ascontiguousarray(codes.T).astype(np.float32) - np.float32(2 ** (bits - 1))
