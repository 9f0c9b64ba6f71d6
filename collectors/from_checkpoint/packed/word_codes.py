"""Layers whose codes are packed into words of 32 bits: GPTQ, AWQ and compressed-tensors.

* GPTQ (AutoGPTQ, GPTQModel): ``qweight`` int32 ``[inputs · bits / 32, outputs]`` packs codes along the inputs,
  ``qzeros`` ``[groups, outputs · bits / 32]`` along the outputs, ``scales`` ``[groups, outputs]``, ``g_idx``
  ``[inputs]``. The v1 format stores zero points less 1; v2 (``checkpoint_format: gptq_v2``) as they are.
* AWQ (AutoAWQ, GEMM version): ``qweight`` int32 ``[inputs, outputs · bits / 32]`` and ``qzeros`` pack along the
  outputs, eight 4-bit codes per word in the order 0 2 4 6 1 3 5 7.
* compressed-tensors: ``weight_packed`` int32 ``[outputs, inputs · bits / 32]`` holds codes plus 2^(bits-1);
  ``weight_zero_point`` is packed in the same way along the outputs, or holds one int8 each. Where bits do not divide
  32, a code may reach into the next word, or the rest of each word is unused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

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
    even_groups,
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

_AWQ = Reading(order=AWQ_ORDER, zero_order=AWQ_ORDER)
_AWQ_ALTERNATIVES: Mapping[str, Reading] = {
    "codes in the order of a word instead of AWQ's": Reading(),
    "codes in the order of a word, zero points in AWQ's": replace(_AWQ, order=None),
    "zero points in the order of a word, codes in AWQ's": replace(_AWQ, zero_order=None),
    "codes in the reverse order of a word": Reading(REVERSED_ORDER, REVERSED_ORDER),
    "zero points 1 higher, as GPTQ v1 stores them": replace(_AWQ, zero_shift=1),
    "zero points 1 lower": replace(_AWQ, zero_shift=-1),
}
#: Takes words, bits of a code, and the number of codes per row.
Unpacker = Callable[[Array, int, int], Codes]


def gptq_or_awq_layer(parts: Parts, settings: Settings) -> PackedLayer:
    """A layer whose codes are called ``qweight``; see ``packed_layers``."""
    words, scales = require_parts(parts, "qweight", "scales")
    _, width = matrix_shape(words, "qweight")
    _, outputs = matrix_shape(scales, "scales")
    return (
        _gptq_layer(words, scales, parts, settings) if width == outputs else _awq_layer(words, scales, parts, settings)
    )


def _awq_layer(words: Stored, scales: Stored, parts: Parts, settings: Settings) -> PackedLayer:
    inputs, width = matrix_shape(words, "qweight")
    groups, outputs = matrix_shape(scales, "scales")
    bits = width * WORD // outputs
    require(
        bits == 4 and width * WORD == outputs * bits,
        f"qweight {list(words.shape)} fits neither GPTQ nor AWQ with scales {list(scales.shape)}",
    )
    require(groups <= inputs, f"{groups} groups of {inputs} inputs")
    (zeros,) = require_parts(parts, "qzeros")
    require(zeros.shape == (groups, width), f"qzeros has shape {list(zeros.shape)}, not {[groups, width]}")
    starts = even_groups(inputs, groups, settings.group_size)

    def read_block(rows: slice, reading: Reading) -> Block:
        codes = _packed_along_outputs(words, rows, bits, reading.order)
        zero = _packed_along_outputs(zeros, rows, bits, reading.zero_order).astype(np.float32) + reading.zero_shift
        return Block(codes, np.ascontiguousarray(scales.floats(None, rows).T), zero, starts)

    return PackedLayer(
        format="awq",
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        signed=False,
        read=read_block,
        declared=_AWQ,
        alternatives=_AWQ_ALTERNATIVES,
        unit=WORD // bits,
    )


def _gptq_layer(words: Stored, scales: Stored, parts: Parts, settings: Settings) -> PackedLayer:
    height, outputs = matrix_shape(words, "qweight")
    groups, _ = matrix_shape(scales, "scales")
    index, zeros = parts.get("g_idx"), parts.get("qzeros")
    bits = _gptq_bits(height, outputs, index, zeros, settings)
    inputs = height * WORD // bits
    require(groups <= inputs, f"{groups} groups of {inputs} inputs")
    starts, order = group_columns(index, inputs, groups, settings.group_size)
    if zeros is not None:
        expected = (groups, -(-outputs * bits // WORD))
        require(zeros.shape == expected, f"qzeros has shape {list(zeros.shape)}, not {list(expected)}")

    def read_block(rows: slice, reading: Reading) -> Block:
        columns = words.load(None, rows)
        codes = in_column_order(unpack_words(np.ascontiguousarray(columns.T), bits, inputs), reading.order)
        scale = np.ascontiguousarray(scales.floats(None, rows).T)
        if zeros is None:
            zero = np.full_like(scale, 2 ** (bits - 1))
        else:
            whole = _packed_along_outputs(zeros, rows, bits, reading.zero_order).astype(np.int16) + reading.zero_shift
            zero = (whole & (2**bits - 1) if reading.wraps else whole).astype(np.float32)
        if reading.in_sequence:
            return Block(codes, scale, zero, even_groups(inputs, groups, settings.group_size))
        return Block(sort_by_group(codes, order), scale, zero, starts, order)

    declared = Reading(zero_shift=1 if settings.zero_minus_one and zeros is not None else 0)
    alternatives = _gptq_zero_readings(declared) if zeros is not None else {}
    alternatives |= _gptq_code_readings(declared, bits, inputs)
    if order is not None:
        alternatives["groups in sequence, without g_idx"] = replace(declared, in_sequence=True)
    return PackedLayer(
        format="gptq",
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        signed=False,
        read=read_block,
        declared=declared,
        alternatives=alternatives,
        unit=WORD,
    )


def _packed_along_outputs(words: Stored, rows: slice, bits: int, order: tuple[int, ...] | None) -> Codes:
    """Codes ``[rows, inputs or groups]`` of some outputs, of words ``[inputs or groups, outputs · bits / 32]``."""
    span = slice(rows.start * bits // WORD, -(-rows.stop * bits // WORD))
    found = unpack_words(words.load(None, span), bits, (span.stop - span.start) * WORD // bits)
    return np.ascontiguousarray(in_column_order(found, order)[:, : rows.stop - rows.start].T)


def _gptq_zero_readings(declared: Reading) -> dict[str, Reading]:
    """Other readings of stored zero points."""
    if not declared.zero_shift:
        return {"zero points plus 1, as GPTQ v1 stores them": Reading(zero_shift=1)}
    wrapping = "zero points that wrap around to 0 after the + 1, which loaders do not agree on"
    return {
        "zero points as stored, without the + 1 of GPTQ v1": Reading(),
        wrapping: replace(declared, wraps=True),
    }


def _gptq_code_readings(declared: Reading, bits: int, inputs: int) -> dict[str, Reading]:
    """Other orders of the codes of a word; none where a word does not hold eight."""
    if bits != 4 or inputs % 8:
        return {}
    return {
        "codes in AWQ's order of a word": replace(declared, order=AWQ_ORDER),
        "codes and zero points in AWQ's order of a word": replace(declared, order=AWQ_ORDER, zero_order=AWQ_ORDER),
        "codes in the reverse order of a word": replace(declared, order=REVERSED_ORDER),
    }


def _gptq_bits(height: int, outputs: int, index: Stored | None, zeros: Stored | None, settings: Settings) -> int:
    """Bits by the shapes, which cannot be wrong; by the configuration where they leave it open."""
    if index is not None and index.size and height * WORD % index.size == 0:
        bits = height * WORD // index.size
    elif zeros is not None and len(zeros.shape) == 2 and zeros.shape[1] * WORD % outputs == 0:
        bits = zeros.shape[1] * WORD // outputs
    else:
        bits = settings.bits or 0
    require(bits in (2, 3, 4, 8), f"GPTQ has 2, 3, 4 or 8 bits, not {bits}")
    return bits


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
