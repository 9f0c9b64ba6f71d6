"""Layers whose codes are bytes, or two in each: of compressed-tensors, torchao, bitsandbytes and others.

* compressed-tensors: ``weight`` int8 or float8 with ``weight_scale``; MXFP8, there and in ModelOpt, with the
  exponent of a power of two plus 127 per 32.
* torchao: ``_weight_qdata`` int8 (one code per byte, whatever the bits) or float8, ``_weight_scale``,
  ``_weight_zero_point``.
* bitsandbytes of 8 bits: ``weight`` int8 and ``SCB``, the largest magnitude of each row; 127 codes.
* bitsandbytes of 4 bits, NF4 and FP4: ``weight`` bytes hold two codes into a table each, the first in the high bits;
  ``weight.absmax`` has the largest magnitude of each block, in a row over all outputs, or with nested statistics a
  byte that stands for one in ``weight.nested_quant_map``, times the number of its own block in
  ``weight.nested_absmax``, plus an offset. The rest is told by JSON in ``weight.quant_state…``.
"""

import json
import math
from collections.abc import Callable, Mapping

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    Block,
    PackedLayer,
    Parts,
    Reading,
    Settings,
    UnreadableLayerError,
    even_groups,
    group_rows,
    in_column_order,
    require,
    require_parts,
    unpack_words,
)
from quantmedic.collectors.from_checkpoint.packed.small_floats import powers_of_two
from quantmedic.collectors.from_checkpoint.safetensors_file import EIGHT_BIT_FLOATS, Stored, Values, as_floats

#: Edge of the blocks that share a scale in float8 checkpoints.
_FP8_BLOCK = 128
#: Weights that share a scale in MXFP8.
_MX_GROUP = 32
#: Names that scales and zero points go by beside ``weight``; the first that is there is taken.
_SCALES = ("weight_scale", "weight_scale_inv", "SCB", "weight_scales", "scales", "scale")
_ZERO_POINTS = ("weight_zero_point", "weight_zeros", "zero_point")
#: Codes of whole bytes, read as if the highest bit of each were inverted.
_OTHER_SIGN = {
    "the highest bit of each code inverted, as between codes from 0 to 255 and signed ones": Reading(flipped=True)
}
#: Rows that are read to count the bits of the codes.
_ROWS_FOR_BITS = 256
#: Names of the tensors with JSON, by the kind of codes.
STATES: Mapping[str, str] = {
    "nf4": "weight.quant_state.bitsandbytes__nf4",
    "fp4": "weight.quant_state.bitsandbytes__fp4",
}
#: Parts of the names of the tensors of a layer of 4 bits.
FOUR_BIT_PARTS = (
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    *STATES.values(),
)
#: JSON of a layer is some hundred bytes.
_MOST_BYTES = 1 << 16
_CODES, _NESTED_CODES = 16, 256


def plain_layer(parts: Parts, settings: Settings) -> PackedLayer:
    """A layer whose ``weight`` are codes, beside a scale; see ``packed_layers``."""
    scale = next((parts[each] for each in _SCALES if each in parts), None)
    zero = next((parts[each] for each in _ZERO_POINTS if each in parts), None)
    return _byte_layer(parts["weight"], scale, zero, settings.bits or 8)


def torchao_layer(parts: Parts, settings: Settings) -> PackedLayer:
    """A layer whose codes are called ``_weight_qdata``; see ``packed_layers``."""
    codes = parts["_weight_qdata"]
    return _byte_layer(codes, parts.get("_weight_scale"), parts.get("_weight_zero_point"), None)


def _byte_layer(codes: Stored, scale: Stored | None, zero: Stored | None, bits: int | None) -> PackedLayer:
    if scale is None:
        raise UnreadableLayerError(f"{codes.dtype} codes without a scale: known are {', '.join(_SCALES)}")
    require(len(codes.shape) >= 2 and codes.size > 0, f"codes have shape {list(codes.shape)}")
    is_float8 = codes.dtype in EIGHT_BIT_FLOATS
    outputs, inputs = codes.shape[0], math.prod(codes.shape[1:])
    is_power = is_float8 and scale.dtype == "U8" and scale.shape == (outputs, inputs // _MX_GROUP)
    require(scale.is_float or is_power, f"{scale.name} is {scale.dtype}, not a float type")
    groups, block = _scale_groups(scale, outputs, inputs)
    # torchao keeps codes of any number of bits in bytes; the codes themselves show how many are used.
    used = 8 if is_float8 else bits or _bits_of(codes)
    is_absmax = scale.name.endswith(".SCB") or scale.name == "SCB"
    step = np.float32(1 / 127 if is_absmax else 1.0)
    starts = even_groups(inputs, groups, _block_length(inputs, groups))

    def read_block(rows: slice, reading: Reading) -> Block:
        found = codes.load(rows).reshape(rows.stop - rows.start, -1)
        numbers = as_floats(found, codes.dtype) if is_float8 else _flip_highest_bit(found) if reading.flipped else found
        if is_power:
            scales = powers_of_two(scale.load(rows))
        elif block > 1:
            scales = scale.floats()[np.arange(rows.start, rows.stop) // block]
        else:
            scales = group_rows(scale, rows, groups)
        zeros = np.zeros_like(scales) if zero is None else group_rows(zero, rows, groups)
        return Block(numbers, scales * step, zeros, starts)

    kind = "mxfp8" if is_power else "fp8" if is_float8 else "bitsandbytes" if is_absmax else "int8"
    is_torchao = codes.name.rpartition(".")[2] == "_weight_qdata"
    return PackedLayer(
        format=f"torchao {kind}" if is_torchao else kind,
        shape=(outputs, inputs),
        bits=used,
        groups=groups,
        signed=codes.dtype != "U8",
        read=read_block,
        even=not is_float8,
        alternatives=_OTHER_SIGN if used == 8 and not is_float8 else {},
        block_scales=scale if is_power else None,
    )


def _flip_highest_bit(codes: Array) -> Array:
    """Bytes with their highest bit inverted, of the same type."""
    return (codes.view(np.uint8) ^ np.uint8(128)).view(codes.dtype)


def _scale_groups(scale: Stored, outputs: int, inputs: int) -> tuple[int, int]:
    """Groups per output channel, and output channels that share one row of scales (blocks of float8)."""
    shape = tuple(n for n in scale.shape if n != 1) or (1,)
    if scale.size == 1 or (scale.size == outputs and scale.rows in (1, outputs)):
        return 1, 1
    require(len(shape) == 2 and len(scale.shape) == 2, f"{scale.name} has shape {list(scale.shape)}")
    rows, groups = scale.shape
    require(groups <= inputs, f"{scale.name} has shape {list(scale.shape)} for {inputs} inputs")
    if rows == outputs:
        return groups, 1
    block = _block_length(outputs, rows)
    require(
        rows < outputs and -(-outputs // block) == rows,
        f"{scale.name} has shape {list(scale.shape)} for {outputs} outputs",
    )
    return groups, block


def _block_length(length: int, parts: int) -> int:
    """Length of one part; 128 where that fits, since the last block of float8 may be shorter."""
    return _FP8_BLOCK if -(-length // _FP8_BLOCK) == parts else -(-length // parts)


def _bits_of(codes: Stored) -> int:
    """The fewest bits that hold the codes of the first rows: 2, 3, 4, 5, 6, 7 or 8."""
    rows = codes.load(slice(0, min(codes.rows, _ROWS_FOR_BITS)))
    low, high = int(rows.min()), int(rows.max())
    return next((bits for bits in range(2, 8) if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1)), 8)


def is_bitsandbytes(parts: Parts) -> bool:
    """The layer has 4 bits of bitsandbytes."""
    return any(name in parts for name in STATES.values())


def bitsandbytes_layer(parts: Parts) -> PackedLayer:
    """A layer of NF4 or FP4; see ``packed_layers``."""
    kind = next(kind for kind, key in STATES.items() if key in parts)
    codes, absmax, table = require_parts(parts, "weight", "weight.absmax", "weight.quant_map")
    state = _state_of(parts[STATES[kind]])
    shape, length = state.get("shape"), state.get("blocksize")
    require(isinstance(shape, list) and len(shape) > 1 and all(map(_is_size, shape)), f"its shape is {shape}")
    require(_is_size(length), f"its blocksize is {length}")
    assert isinstance(shape, list) and isinstance(length, int)  # which has just been required
    outputs, inputs = int(shape[0]), int(np.prod(shape[1:], dtype=np.int64))
    require(inputs % length == 0, f"blocks of {length} reach over outputs of {inputs} inputs")
    groups = inputs // length
    fits = codes.dtype == "U8" and codes.size * 2 == outputs * inputs and codes.rows == codes.size
    require(fits, f"codes have type {codes.dtype} and shape {list(codes.shape)} for {outputs} x {inputs} weights")
    require(absmax.size == outputs * groups, f"absmax has shape {list(absmax.shape)} for {outputs} x {groups} blocks")
    values = _read_table(table, _CODES)
    magnitudes = _nested_magnitudes(parts, absmax, state) if absmax.dtype == "U8" else absmax.floats
    starts = even_groups(inputs, groups)

    def read_block(rows: slice, reading: Reading) -> Block:
        count = rows.stop - rows.start
        found = codes.load(slice(rows.start * inputs // 2, rows.stop * inputs // 2)).reshape(count, -1)
        scale = magnitudes(slice(rows.start * groups, rows.stop * groups)).reshape(count, groups)
        high_first = in_column_order(unpack_words(found, 4, inputs), (1, 0))
        return Block(values[high_first], scale, np.zeros_like(scale), starts)

    return PackedLayer(
        format=f"bitsandbytes {kind}",
        shape=(outputs, inputs),
        bits=4,
        groups=groups,
        signed=True,
        read=read_block,
        even=False,
        unit=2 if inputs % 2 else 1,
    )


def _nested_magnitudes(parts: Parts, absmax: Stored, state: Mapping[str, object]) -> Callable[[slice], Values]:
    """Gives magnitudes of some blocks that are bytes themselves."""
    table, own = require_parts(parts, "weight.nested_quant_map", "weight.nested_absmax")
    length, offset = state.get("nested_blocksize"), state.get("nested_offset")
    require(_is_size(length), f"its nested_blocksize is {length}")
    require(isinstance(offset, int | float), f"its nested_offset is {offset}")
    assert isinstance(length, int) and isinstance(offset, int | float)  # which has just been required
    require(own.is_float and own.size == -(-absmax.size // length), f"nested_absmax has shape {list(own.shape)}")
    values, scales, shift = _read_table(table, _NESTED_CODES), own.floats().ravel(), np.float32(offset)

    def read_magnitudes(blocks: slice) -> Values:
        found: Values = values[absmax.load(blocks)] * scales[np.arange(blocks.start, blocks.stop) // length] + shift
        return found

    return read_magnitudes


def _read_table(stored: Stored, size: int) -> Values:
    require(stored.is_float and stored.size == size, f"{stored.name} has shape {list(stored.shape)}, not {size}")
    return stored.floats().ravel()


def _state_of(stored: Stored) -> Mapping[str, object]:
    require(stored.dtype == "U8" and stored.size <= _MOST_BYTES, f"{stored.name} is no text")
    try:
        found = json.loads(stored.load().tobytes().decode())
    except (ValueError, RecursionError):
        found = None
    require(isinstance(found, dict), f"{stored.name} is no JSON object")
    state: Mapping[str, object] = found
    return state


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40
