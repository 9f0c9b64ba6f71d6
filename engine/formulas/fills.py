"""Constants that a network puts among the values of a tensor, and the values beside them."""

import math

from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import TensorRecord

#: A softmax gives a value this far below the others hardly more than 1e-7 of what it gives them.
SILENT = 16.0
#: A range ends at a constant where it ends within this share of it: a mask is added to scores.
NEAR = 0.1


def fill_of(record: TensorRecord, low: float | None, high: float | None, mask: float) -> float | None:
    """The constant at which the range of a tensor or of its values ends; None where it ends at no such.

    Args:
        record: The tensor.
        low: The smallest of its values.
        high: The largest.
        mask: What is below this before a softmax is a mask, whether the network or its user puts it there.
    """
    ends = [end for end in (low, high, record.quantizer.low, record.quantizer.high) if end]
    reached = [fill for fill in record.fills if any(abs(end - fill) <= NEAR * abs(fill) for end in ends)]
    if reached:
        return max(reached, key=abs)
    return low if record.pattern == "softmax-input" and low is not None and low < mask else None


def beside_fill(bins: Bins, fill: float) -> Bins | None:
    """The values on this side of half of a constant; None where there are none."""
    return bins.part(fill / 2, math.inf) if fill < 0 else bins.part(-math.inf, fill / 2)


def range_of(beside: Bins) -> tuple[float, float]:
    """Ends of the values beside a constant, and of 0."""
    return min(float(beside.low[0]), 0.0), max(float(beside.high[-1]), 0.0)


def end_beside(beside: Bins, fill: float, *, reads_softmax: bool) -> float:
    """A constant that may stand for another: where the values beside it, and 0, end.

    In front of a softmax so far below them that it gives what was masked hardly anything (``SILENT``).
    """
    low, high = range_of(beside)
    if fill > 0:
        return high
    return low - (high - low) - SILENT if reads_softmax else low
