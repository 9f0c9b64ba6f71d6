"""How the gate's lines write figures and limits, and what a line says that could not be judged."""

import math
from typing import Literal

from quantmedic.engine.contract.check_report import GateLine

Status = Literal["pass", "fail", "undecided"]
#: Decimals that a figure has at least, and at most where it lies close to its limit.
DECIMALS, MOST_DECIMALS = 2, 12


def unjudged_line(kind: Literal["accuracy", "agreement", "sqnr"], message: str) -> GateLine:
    """A line that is no pass: why it could not be judged."""
    return GateLine(kind=kind, name="", status="not-judged", message=message)


def digits_for(limit: float, *ends: float, least: int = DECIMALS) -> int:
    """Decimals that show a small limit, and on which side of it each end lies."""
    start = max(least, 1 - math.floor(math.log10(abs(limit)))) if limit else least
    for digits in range(min(start, MOST_DECIMALS), MOST_DECIMALS):
        shown = float(fixed_point(limit, digits))
        sides = [(end - limit, float(fixed_point(end, digits)) - shown) for end in ends if math.isfinite(end)]
        if all((real > 0) == (rounded > 0) and (real < 0) == (rounded < 0) for real, rounded in sides):
            return digits
    return MOST_DECIMALS


def fixed_point(value: float, digits: int) -> str:
    """A number with so many decimals, and no negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"
