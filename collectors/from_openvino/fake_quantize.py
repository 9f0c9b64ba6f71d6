"""The grid of a FakeQuantize: codes, steps and zero points of its levels and ranges.

OpenVINO's operation: where ``il < x <= ih``, ``round((x - il) / (ih - il) * (levels - 1)) / (levels - 1) * (oh - ol) +
ol``; below ``ol``, above ``oh`` (https://docs.openvino.ai, FakeQuantize-1).

What an ONNX model has as QuantizeLinear and DequantizeLinear, OpenVINO reads as FakeQuantize, Convert to integers,
Convert to numbers, Subtract, Multiply. When it converts a model it joins these to one FakeQuantize where there are 256
or 65536 levels, and leaves those of fewer bits as they are. Together they are one quantizer, and are read as one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_openvino.openvino_constants import REAL, Held
from quantmedic.collectors.pair.quantizer import Quantizer, code_ends

if TYPE_CHECKING:
    import openvino

Floats = NDArray[np.float64]
#: Of a step that 0 may lie off the grid: float32 ranges that were meant to hit it miss it by about so much.
OFF_GRID = 1e-2
#: Bits of the codes that ONNX has.
_BITS = (2, 4, 8, 16)
#: Codes that integers of these types hold.
_HELD_CODES = {f"{'i' if low else 'u'}{bits}": bits for bits in (2, 4, 8, 16) for low in (0, 1)}
#: A constant, wherever it stands in the order of execution.
Lookup = Callable[["openvino.Output"], Held | None]


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


def fake_grid_of(levels: int, ranges: Ranges, rank: int) -> FakeGrid | None:
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


class CodeChain(NamedTuple):
    """The operators behind a FakeQuantize that make values of its codes.

    Attributes:
        ranges: Of the FakeQuantize, as if it wrote the values itself.
        between: Operators that nothing else reads, in order; the FakeQuantize is the first.
        last: Writes the values.
    """

    ranges: Ranges
    between: tuple["openvino.Node", ...]
    last: "openvino.Node"


def code_chain(op: "openvino.Node", levels: int, ranges: Ranges, held: Lookup) -> CodeChain | None:
    """What makes values of the codes that a FakeQuantize writes; None where it writes values, or others read the codes.

    Args:
        op: The FakeQuantize.
        levels: Number of its levels.
        ranges: Its ranges.
        held: Finds constants.
    """
    chain = list(_only_readers(op))
    if len(chain) < 2 or not _is_conversion_of_codes(chain[0], chain[1], levels, ranges):
        return None
    low, high, kept = ranges.output_low, ranges.output_high, 2
    for kind in ("Subtract", "Multiply"):
        constant = _constant_of(chain[kept], held) if kept < len(chain) and _kind(chain[kept]) == kind else None
        if constant is not None:
            low, high = (each - constant if kind == "Subtract" else each * constant for each in (low, high))
            kept += 1
    values = ranges._replace(output_low=low, output_high=high)
    return CodeChain(values, (op, *chain[: kept - 1]), chain[kept - 1])


def _kind(op: "openvino.Node") -> str:
    return str(op.get_type_name())


def _only_readers(op: "openvino.Node", most: int = 4) -> Iterator["openvino.Node"]:
    """The only reader of an operator's result, the only one of that, and so on."""
    for _ in range(most):
        readers = list(op.output(0).get_target_inputs())
        if len(readers) != 1 or readers[0].get_index() != 0:
            return
        op = readers[0].get_node()
        yield op


def _is_conversion_of_codes(first: "openvino.Node", second: "openvino.Node", levels: int, ranges: Ranges) -> bool:
    """One makes integers of whole numbers that their type holds, and the other numbers of these."""
    if (_kind(first), _kind(second)) != ("Convert", "Convert"):
        return False
    name, low, high = first.get_element_type().get_type_name(), ranges.output_low, ranges.output_high
    if name not in _HELD_CODES or second.get_element_type().get_type_name() not in REAL:
        return False
    lowest, highest = code_ends(_HELD_CODES[name], name.startswith("i"))
    fits = (low >= lowest).all() and (high <= highest).all()
    return bool(fits and (high - low == levels - 1).all() and (low == np.rint(low)).all())


def _constant_of(op: "openvino.Node", held: Lookup) -> Floats | None:
    found = held(op.input_value(1))
    return None if found is None else np.asarray(found.values, np.float64)


def round_weights(source: Held, grid: FakeGrid) -> Held:
    """Constant weights as codes on the grid of the FakeQuantize that reads them."""
    own = grid.encoder
    codes = own.encode(np.asarray(source.values, np.float32)).astype(np.int64)
    plain = Held(source.name, codes, own.bits, own.signed, is_real=True)
    shape: list[int] = [1] * codes.ndim
    if grid.decoder.axis is not None:
        shape[grid.decoder.axis] = -1
    zeroed = plain.with_zero(np.asarray(grid.decoder.zero_point, np.float64).reshape(shape))
    found = zeroed and zeroed.with_scale(np.asarray(grid.decoder.scale).reshape(shape))
    if found is None:
        raise ValueError(f"the ranges of {source.name} do not fit its shape")
    return found
