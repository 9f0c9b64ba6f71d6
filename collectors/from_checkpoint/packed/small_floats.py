"""Layers of 4- and 6-bit floats with a scale per block: NVFP4 and MXFP4 (E2M1), and MXFP6 (E2M3).

Two codes of four bits are a byte, four of six bits three bytes; the first one lies in the lowest bits.

* NVFP4 of compressed-tensors: ``weight_packed``, ``weight_scale`` float8 per 16, divided by ``weight_global_scale``.
* NVFP4 of ModelOpt: ``weight``, ``weight_scale`` float8 per 16, multiplied by ``weight_scale_2``.
* MXFP4 and MXFP6 of compressed-tensors: ``weight_packed``, ``weight_scale`` per 32: the exponent of a power of two plus
  127.
"""

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    Block,
    PackedLayer,
    Parts,
    Reading,
    even_groups,
    in_column_order,
    matrix_shape,
    require,
    require_parts,
    unpack_words,
)
from quantmedic.collectors.from_checkpoint.safetensors_file import EIGHT_BIT_FLOATS, Stored, Values, as_floats

#: Value of each code: sign, two bits of exponent, one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)
#: The same of a sign, two bits of exponent, three of mantissa.
_FINE = (*(part / 8 for part in range(8)), *((1 + part / 8) * 2**power for power in range(3) for part in range(8)))
E2M3 = np.array([*_FINE, *(-value for value in _FINE)], np.float32)
#: What is added to the exponent of a scale that is a power of two; one code stands for no number.
_BIAS, _NO_NUMBER = 127, 255
#: Bits of a code and weights of a block that there are; bytes of a block tell them apart.
_KINDS = ((4, 16), (4, 32), (6, 32))


def is_small_float(parts: Parts) -> bool:
    """The codes are 4- or 6-bit floats: bytes with a float8 scale, or with an exponent, per block of 16 or 32."""
    codes, scale = parts.get("weight_packed", parts.get("weight")), parts.get("weight_scale")
    if codes is None or scale is None or codes.dtype != "U8" or len(codes.shape) != 2 or len(scale.shape) != 2:
        return False
    bits = _bits_of_code(codes.shape, scale.shape)
    return bits is not None and scale.dtype in ((*EIGHT_BIT_FLOATS, "U8") if bits == 4 else ("U8",))


def _bits_of_code(codes: tuple[int, ...], scales: tuple[int, ...]) -> int | None:
    """By the shapes of the bytes and of the scales, ``[outputs, …]``; None where they do not fit together."""
    found = (bits for bits, length in _KINDS if scales[1] * length * bits == 8 * codes[1])
    return next(found, None) if codes[0] == scales[0] else None


def small_float_layer(parts: Parts) -> PackedLayer:
    """A layer of NVFP4, MXFP4 or MXFP6; see ``packed_layers``."""
    key = "weight_packed" if "weight_packed" in parts else "weight"
    codes, scales = require_parts(parts, key, "weight_scale")
    outputs, width = matrix_shape(codes, key)
    _, groups = matrix_shape(scales, "weight_scale")
    bits = _bits_of_code(codes.shape, scales.shape) or 4
    inputs = width * 8 // bits
    is_power = scales.dtype == "U8"
    factor = None if is_power else _global_factor(parts)
    starts = even_groups(inputs, groups)

    def read_block(rows: slice, reading: Reading) -> Block:
        unpacked = unpack_words(codes.load(rows), bits, inputs)
        values = (E2M1 if bits == 4 else E2M3)[in_column_order(unpacked, reading.order)]
        scale = powers_of_two(scales.load(rows)) if is_power else scales_of_bytes(scales, rows, factor)
        return Block(values, scale, np.zeros_like(scale), starts)

    return PackedLayer(
        format=f"mxfp{bits}" if is_power else "nvfp4",
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        signed=True,
        read=read_block,
        even=False,
        alternatives={"the codes of each byte the other way round": Reading(order=(1, 0))} if bits == 4 else {},
        block_scales=scales,
        lacks_global_scale=not is_power and factor is None,
    )


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
