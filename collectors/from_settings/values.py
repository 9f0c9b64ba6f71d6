"""Values of foreign files, taken only where they are what they should be."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from quantmedic.collectors.messages import did_you_mean
from quantmedic.engine.facts import RecordedFacts


def number(value: Any) -> float | None:
    """A finite number; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """A whole number; None for anything else."""
    found = number(value)
    return int(found) if found is not None and found.is_integer() else None


def flag(value: Any) -> bool | None:
    """Yes or no, also as text in any spelling; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def table(value: Any) -> Mapping[str, Any]:
    """A mapping with names for keys; an empty one for anything else."""
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else {}


def words(value: Any) -> tuple[str, ...] | None:
    """A list of names; None for anything else, and for an empty one."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)


def unknown_keys(keys: Iterable[str], known: Iterable[str], where: str = "") -> tuple[str, ...]:
    """Keys that a toolchain does not know, with the nearest that it does."""
    known = tuple(known)
    return tuple(f"{where}{key}{did_you_mean(key, known)}" for key in keys if key not in known)


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
