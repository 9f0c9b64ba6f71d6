"""The fact that a finding or a cause is known by, and whether it got worse."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeGuard

from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.engine.rules.evaluate import COMPARE

#: Least change of a headline fact that counts: in dB, and else as a share of the smaller of both values.
SHIFT_DB, SHIFT_SHARE = 0.5, 0.1
#: Operators that say on which side of the threshold the worse values lie.
UPWARD, DOWNWARD = ("gt", "ge"), ("lt", "le")


@dataclass(frozen=True)
class Headline:
    """A fact that was compared with a number."""

    fact: str
    unit: str | None
    comparison: str
    value: float
    threshold: float

    def worst(self, values: Iterable[float]) -> float | None:
        """The value furthest on the wrong side."""
        return (max if self.comparison in UPWARD else min)(values, default=None)

    def trend(self, before: float | None, after: float | None) -> Literal["better", "worse", "unchanged"]:
        """``better`` and ``worse`` only beyond SHIFT_DB, or SHIFT_SHARE of the smaller value."""
        if before is None or after is None or not _has_shifted(before, after, self.unit):
            return "unchanged"
        return "worse" if (after > before) is (self.comparison in UPWARD) else "better"


def headline_of(fact: str, comparison: str, value: object, threshold: object) -> Headline | None:
    """Evidence as a headline; None where the operator does not show which values are worse."""
    if comparison not in (*UPWARD, *DOWNWARD) or not is_number(value) or not is_number(threshold):
        return None
    return Headline(fact, unit_of(fact), comparison, float(value), float(threshold))


def is_beyond(value: object, comparison: str | None, threshold: object) -> bool:
    """A value still meets the condition that the headline fact is compared by."""
    if comparison not in (*UPWARD, *DOWNWARD) or not is_number(value) or not is_number(threshold):
        return False
    return bool(COMPARE[comparison](value, threshold))


def is_number(value: object) -> TypeGuard[int | float]:
    """An integer or a real number, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def unit_of(path: str) -> str | None:
    """Unit of a fact, from the first scope that has one of that path."""
    for scope in SCOPES:
        field = fact_paths(scope).get(path)
        if field is not None:
            return declared_unit(field)
    return None


def _has_shifted(before: float, after: float, unit: str | None) -> bool:
    if before == after or math.isnan(before) or math.isnan(after):
        return False
    margin = SHIFT_DB if unit == "dB" else SHIFT_SHARE * min(abs(before), abs(after))
    return abs(after - before) > margin
