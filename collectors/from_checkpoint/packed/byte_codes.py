"""Layers with one code per byte: int8 and float8 of compressed-tensors, torchao, bitsandbytes and others.

* compressed-tensors: ``weight`` int8 or float8 with ``weight_scale``; MXFP8, there and in ModelOpt, with the
  exponent of a power of two plus 127 per 32.
* torchao: ``_weight_qdata`` int8 (one code per byte, whatever the bits) or float8, ``_weight_scale``,
  ``_weight_zero_point``.
* bitsandbytes: ``weight`` int8 and ``SCB``, the largest magnitude of each row; 127 codes.
"""

import math

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
    require,
)
from quantmedic.collectors.from_checkpoint.packed.small_floats import powers_of_two
from quantmedic.collectors.from_checkpoint.safetensors_file import EIGHT_BIT_FLOATS, Stored, as_floats

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
