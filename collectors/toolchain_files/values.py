"""Values of foreign files: checked, and read as what they should be. Files are read as ``object``; these narrow it."""

import math
from collections.abc import Iterator, Mapping, Sequence

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.engine.case.facts import RecordedFacts

#: Fields of a facts record by name; the record checks their types when it is made.
Fields = dict[str, object]
#: Known keys of a file, and what stands in them; None where values are not looked into, ``*`` for any key.
Schema = Mapping[str, "Schema | None"]
#: Unknown keys of one file that are named, and characters of one.
MAX_UNKNOWN, MAX_KEY = 50, 2000


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


def member_name(value: object) -> str:
    """Name of an enumeration's member, alone or behind its class, as in ``QuantType.QInt8``; empty for no text."""
    return value.rpartition(".")[2] if isinstance(value, str) else ""


def left_out(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """The notice of what could not be read, with the first of these; none without any."""
    return (f"{what}: {len(names)}, first {names[0]}",) if names else ()


def keys_of(text: str) -> Schema:
    """Keys, separated by blanks, whose values are not looked into."""
    return dict.fromkeys(text.split())


def unknown_keys(found: object, schema: Schema) -> tuple[str, ...]:
    """Keys that a toolchain does not have, by their path; at most ``MAX_UNKNOWN`` of them.

    Each is told with the neighbour in which it would be known, else with the nearest key that is.

    Args:
        found: What a file holds, lists of such among it.
        schema: The keys that are known.
    """
    told: dict[str, None] = {}
    for text in _unknown_paths(found, schema, "", {}):
        told[text] = None
        if len(told) == MAX_UNKNOWN:
            break
    return tuple(told)


def _unknown_paths(found: object, schema: Schema, path: str, around: Schema) -> Iterator[str]:
    for each in found if isinstance(found, list) else [found]:
        for key, value in mapping(each).items():
            name = str(key)[:MAX_KEY]
            inner = schema.get(name, schema.get("*"))
            if name not in schema and "*" not in schema:
                home = next((other for other, keys in around.items() if keys is not None and name in keys), None)
                yield f"{path}{name}{did_you_mean(name, schema) if home is None else f', it belongs to {home}'}"
            elif inner is not None:
                yield from _unknown_paths(value, inner, f"{path}{name}.", schema)


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
