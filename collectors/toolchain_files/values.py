"""Values of foreign files: checked, and read as what they should be. Files are read as ``object``; these narrow it."""

import math
from collections.abc import Iterable, Mapping
from itertools import islice

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.engine.case.facts import RecordedFacts

#: Fields of a facts record by name; the record checks their types when it is made.
Fields = dict[str, object]
#: Unknown keys of one place that are named.
MAX_UNKNOWN = 50


def number(value: object) -> float | None:
    """A finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole(value: object) -> int | None:
    """A whole number; None for anything else."""
    found = number(value)
    return int(found) if found is not None and found.is_integer() else None


def numbers(value: object) -> list[float]:
    """All numbers of a scalar or of nested lists; none where anything else is among them."""
    found: list[float] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += reversed(each)
        own = number(each)
        if own is not None:
            found.append(own)
        elif not isinstance(each, list) or not each:
            return []
    return found


def flag(value: object) -> bool | None:
    """Yes or no, also as text in any spelling; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def table(value: object) -> Mapping[str, object]:
    """A mapping with names for keys; an empty one for anything else."""
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else {}


def mapping(value: object) -> Mapping[object, object]:
    """A mapping with any keys; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def words(value: object) -> tuple[str, ...] | None:
    """A list of names; None for anything else, and for an empty one."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)


def unknown_keys(keys: Iterable[str], known: Iterable[str], where: str = "") -> tuple[str, ...]:
    """Keys that a toolchain does not have, each with the nearest one that it has; at most ``MAX_UNKNOWN`` of them."""
    known = tuple(known)
    strangers = (key for key in keys if key not in known)
    return tuple(f"{where}{key}{did_you_mean(key, known)}" for key in islice(strangers, MAX_UNKNOWN))


def grid(scale: float, zero_point: int, bits: int, *, signed: bool) -> RecordedFacts:
    """What a grid of integers covers: real = scale · (code - zero_point)."""
    lowest = -(2 ** (bits - 1)) if signed else 0
    highest = lowest + 2**bits - 1
    return RecordedFacts(
        low=scale * (lowest - zero_point),
        high=scale * (highest - zero_point),
        scale=scale,
        zero_point=zero_point,
        bits=bits,
    )
