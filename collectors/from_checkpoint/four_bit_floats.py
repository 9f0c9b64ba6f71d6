"""Layers of 4-bit floats (E2M1) with a scale per block: NVFP4 and MXFP4, two codes a byte, the first in the low bits.

* NVFP4 of compressed-tensors: ``weight_packed``, ``weight_scale`` float8 per 16, divided by ``weight_global_scale``.
* NVFP4 of ModelOpt: ``weight``, ``weight_scale`` float8 per 16, multiplied by ``weight_scale_2``.
* MXFP4 of compressed-tensors: ``weight_packed``, ``weight_scale`` per 32: the exponent of a power of two plus 127.
"""

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.packed_codes import Codes, in_column_order
from quantmedic.collectors.from_checkpoint.packed_layer import (
    Block,
    PackedLayer,
    Parts,
    Reading,
    even_groups,
    matrix_shape,
    require,
    require_parts,
)
from quantmedic.collectors.from_checkpoint.safetensors_file import EIGHT_BIT_FLOATS, Stored, Values, as_floats

#: Value of each code: sign, two bits of exponent, one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)
#: What is added to the exponent of a scale that is a power of two; one code stands for no number.
_BIAS, _NO_NUMBER = 127, 255
#: Weights of a block.
_LENGTHS = (16, 32)


def is_four_bit_float(parts: Parts) -> bool:
    """The codes are 4-bit floats: bytes with a float8 scale, or with an exponent, per block of 16 or 32."""
    codes, scale = parts.get("weight_packed", parts.get("weight")), parts.get("weight_scale")
    if codes is None or scale is None or codes.dtype != "U8" or len(codes.shape) != 2 or len(scale.shape) != 2:
        return False
    fits = codes.shape[0] == scale.shape[0] and any(scale.shape[1] * n == 2 * codes.shape[1] for n in _LENGTHS)
    return fits and scale.dtype in (*EIGHT_BIT_FLOATS, "U8")


def four_bit_float_layer(name: str, parts: Parts) -> PackedLayer:
    """A layer of NVFP4 or MXFP4.

    Raises:
        UnreadableLayerError: Its tensors do not fit together.
    """
    key = "weight_packed" if "weight_packed" in parts else "weight"
    codes, scales = require_parts(parts, key, "weight_scale")
    outputs, width = matrix_shape(codes, key)
    _, groups = matrix_shape(scales, "weight_scale")
    is_power = scales.dtype == "U8"
    factor = None if is_power else _global_factor(parts)
    starts = even_groups(2 * width, groups)

    def read_block(rows: slice, reading: Reading) -> Block:
        values = E2M1[in_column_order(nibbles(codes.load(rows)), reading.order)]
        scale = powers_of_two(scales.load(rows)) if is_power else scales_of_bytes(scales, rows, factor)
        return Block(values, scale, np.zeros_like(scale), starts)

    return PackedLayer(
        name=name,
        format="mxfp4" if is_power else "nvfp4",
        shape=(outputs, 2 * width),
        bits=4,
        groups=groups,
        low=None,
        high=None,
        signed=True,
        read=read_block,
        declared=Reading(),
        alternatives={"the codes of each byte the other way round": Reading(order=(1, 0))},
        block_scales=scales,
        lacks_global_scale=not is_power and factor is None,
    )


def nibbles(codes: Array) -> Codes:
    """Both codes of each byte, the low bits first."""
    found = np.empty((*codes.shape[:-1], 2 * codes.shape[-1]), np.uint8)
    found[..., 0::2] = codes & np.uint8(15)
    found[..., 1::2] = codes >> np.uint8(4)
    return found


def powers_of_two(exponents: Array) -> Values:
    """Scales of microscaling formats: 2 to the exponent less 127; one code is no number."""
    found = np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS)
    found[exponents == _NO_NUMBER] = np.nan
    return found.astype(np.float32)


def scales_of_bytes(scales: Stored, rows: slice, factor: tuple[np.float32, bool] | None) -> Values:
    """Float8 scales with that of the tensor."""
    own = as_floats(scales.load(rows), scales.dtype)
    if factor is None:
        return own
    value, divides = factor
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return own / value if divides else own * value


def _global_factor(parts: Parts) -> tuple[np.float32, bool] | None:
    """The scale of the whole tensor, and whether it divides; None where there is none."""
    for part, divides in (("weight_global_scale", True), ("weight_scale_2", False)):
        stored = parts.get(part)
        if stored is not None:
            require(stored.size == 1 and stored.is_float, f"{part} has shape {list(stored.shape)}, not one number")
            return np.float32(stored.floats().ravel()[0]), divides
    return None
