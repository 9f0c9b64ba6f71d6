"""The grid of a FakeQuantize: codes, steps and zero points of its levels and ranges.

OpenVINO's operation: where ``il < x <= ih``, ``round((x - il) / (ih - il) * (levels - 1)) / (levels - 1) * (oh - ol) +
ol``; below ``ol``, above ``oh`` (https://docs.openvino.ai, FakeQuantize-1).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.quantizer import Quantizer

Floats = NDArray[np.float64]
#: Of a step that 0 may lie off the grid: float32 ranges that were meant to hit it miss it by about so much.
OFF_GRID = 1e-2
#: Bits of the codes that ONNX has.
_BITS = (2, 4, 8, 16)


class Ranges(NamedTuple):
    """Constant ranges of a FakeQuantize, each with the axes of its input or fewer."""

    input_low: Floats
    input_high: Floats
    output_low: Floats
    output_high: Floats


@dataclass(frozen=True)
class FakeGrid:
    """How a FakeQuantize rounds.

    Attributes:
        encoder: The grid on which it rounds what it reads.
        decoder: The grid on which what it writes lies; its codes are those of the encoder.
        off: Largest distance of 0 from the grid, in steps.
    """

    encoder: Quantizer
    decoder: Quantizer
    off: float


def grid_of(levels: int, ranges: Ranges, rank: int) -> FakeGrid | None:
    """The grid of a FakeQuantize; None where codes of 2, 4, 8 or 16 bits do not express it.

    Args:
        levels: Number of codes: a power of two, or one less, where the lowest code is left out.
        ranges: Its ranges.
        rank: Axes of what it reads.
    """
    bits = next((b for b in _BITS if levels in (1 << b, (1 << b) - 1)), None)
    sides = _sides(ranges, rank)
    if bits is None or sides is None or not _is_sound(ranges):
        return None
    axis, parts = sides
    low_in, high_in, low_out, high_out = parts
    ends = (low_in, high_in), (low_out, high_out)
    # Where only one of them has its 0 in the middle, as where codes are read as values, codes are unsigned.
    is_signed = all(_is_central(low, high, levels) for low, high in ends)
    (encoder, off), (decoder, _) = (_quantizer(low, high, levels, bits, axis, is_signed) for low, high in ends)
    return None if encoder is None or decoder is None else FakeGrid(encoder, decoder, off)


def _is_sound(ranges: Ranges) -> bool:
    finite = all(np.isfinite(each).all() for each in ranges)
    return finite and bool(
        (ranges.input_low < ranges.input_high).all() and (ranges.output_low < ranges.output_high).all()
    )


def _sides(ranges: Ranges, rank: int) -> tuple[int | None, list[Floats]] | None:
    """The axis along which ranges differ, and all of them along it; None where they differ along several."""
    try:
        common = np.broadcast_shapes(*(each.shape for each in ranges))
    except ValueError:
        return None
    long = [axis for axis, side in enumerate(common) if side > 1]
    if len(common) > rank or len(long) > 1:
        return None
    parts = [np.broadcast_to(each, common).ravel() for each in ranges]
    return (long[0] + rank - len(common) if long else None), parts


def _is_central(low: Floats, high: Floats, levels: int) -> bool:
    """0 has the middle code, so that codes are signed."""
    middle = (levels - 1) // 2 + (levels % 2 == 0)
    return bool((np.rint(-low * (levels - 1) / (high - low)) == middle).all())


def _quantizer(
    low: Floats, high: Floats, levels: int, bits: int, axis: int | None, signed: bool
) -> tuple[Quantizer | None, float]:
    """The grid from ``low`` to ``high``, and how far 0 lies off it; no grid where its zero point is no code."""
    step = (high - low) / (levels - 1)
    zero = -low / step
    whole = np.rint(zero)
    if (whole < 0).any() or (whole >= levels).any():
        return None, 0.0
    # Of an odd number of levels the lowest code is left out.
    codes = np.zeros_like(whole) if signed else whole
    shape: tuple[int, ...] = () if axis is None else (-1,)
    quantizer = Quantizer(
        step.astype(np.float32).reshape(shape), codes.astype(np.int64).reshape(shape), bits, signed, axis
    )
    return quantizer, float(np.abs(zero - whole).max())
