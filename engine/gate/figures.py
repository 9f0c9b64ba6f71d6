"""How the gate's lines write figures and limits, and what a line says that could not be judged."""

import math
from typing import Literal, NamedTuple

from quantmedic.engine.contract.check_report import GateLine, GateStatus

Status = Literal["pass", "fail", "undecided"]
#: Decimals that a figure has at least, and at most where it lies close to its limit.
DECIMALS, MOST_DECIMALS = 2, 12


Kind = Literal["accuracy", "agreement", "sqnr"]


class Figure(NamedTuple):
    """What was measured against its bound, in one unit.

    Attributes:
        value: The figure.
        low: Lower end of its interval; both ends are None where there are too few samples to know it.
        high: Upper end.
        limit: The bound.
        unit: Unit of all of them.
        least: The bound is the least that passes, else the most.
    """

    value: float
    low: float | None
    high: float | None
    limit: float
    unit: str
    least: bool = False

    @property
    def status(self) -> Status:
        """It passes, or fails, where its whole interval does."""
        if self.low is None or self.high is None:
            return "undecided"
        if self.least:
            return "pass" if self.low >= self.limit else "fail" if self.high < self.limit else "undecided"
        return "pass" if self.high <= self.limit else "fail" if self.low > self.limit else "undecided"

    def line(self, kind: Kind, message: str, **more: object) -> GateLine:
        """The gate's line, without its name and its place in the policy; ``more`` are fields of it."""
        ends = {"value": self.value, "low": self.low, "high": self.high, "limit": self.limit, "unit": self.unit}
        known = {"kind": kind, "name": "", "status": self.status, "message": message}
        return GateLine.model_validate({**known, **ends, **more})


def gate_line(kind: str, status: GateStatus, message: str, **more: object) -> GateLine:
    """The line of a gate that is the only one of its kind; ``more`` are further fields of it."""
    return GateLine.model_validate({"kind": kind, "name": kind, "status": status, "message": message, **more})


def unjudged_line(kind: Kind, message: str) -> GateLine:
    """A line that is no pass: why it could not be judged. Without its name and its place in the policy."""
    return gate_line(kind, "not-judged", message, name="")


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
