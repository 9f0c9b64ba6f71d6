"""Scales per block that are small floats themselves: how many of them are at the ends of what they can be."""

import numpy as np

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.collectors.from_checkpoint.weight_slices import slices

#: Of float8 E4M3: the largest number, and the first that is not subnormal; the highest bit is the sign.
_SIGN, _LARGEST, _NORMAL = 0x7F, 0x7E, 0x08
#: Of exponents of two: the largest, and the smallest that float32 holds without becoming subnormal.
_LARGEST_POWER, _NORMAL_POWER = 254, 1


def end_shares(scales: Stored) -> dict[str, float]:
    """Facts: shares of the scales that are the largest number, one left out, and of those that are subnormal.

    A tensor's scale is chosen so that one block gets the largest number.
    """
    is_power = scales.dtype == "U8"
    largest, normal = (_LARGEST_POWER, _NORMAL_POWER) if is_power else (_LARGEST, _NORMAL)
    top = low = 0
    for rows in slices(scales.rows, scales.size // scales.rows, 1):
        codes = scales.load(rows).view(np.uint8) & np.uint8(0xFF if is_power else _SIGN)
        top += int((codes >= largest).sum())
        low += int(((codes < normal) & (codes > 0)).sum()) if not is_power else int((codes < normal).sum())
    return {"block_scale_top_share": max(top - 1, 0) / scales.size, "block_scale_low_share": low / scales.size}
