"""JSON of the page's data: compact, with short numbers, and with text that is visible."""

import json
import math
from collections.abc import Iterable, Mapping

from quantmedic.reports.text import visible

#: Significant digits of numbers that are drawn or listed.
DIGITS = 5
_NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def dump(content: object) -> str:
    """Compact JSON with short numbers."""
    return json.dumps(_shorten(content), separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _shorten(value: object) -> object:
    """Numbers to ``DIGITS`` significant digits, names visible, NaN as text."""
    match value:
        case bool() | int() | None:
            return value
        case float():
            return plain_number(float(f"{value:.{DIGITS}g}"))
        case str():
            return visible(value)
        case Mapping():
            return {str(key): _shorten(item) for key, item in value.items()}
        case Iterable():
            return [_shorten(item) for item in value]
    return visible(str(value))


def plain_number(value: float) -> float | int | str:
    """A number as JSON has it: whole ones without decimals, and as text what is not finite."""
    if not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
