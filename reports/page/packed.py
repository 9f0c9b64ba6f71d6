"""The layer table as small JSON: what repeats is written once, and numbers are packed into text.

``browser/data.js`` unpacks it. A packed number takes as many characters of ``ALPHABET`` as its precision needs, the
largest digit first; its code is 0 where it was not measured, 1 for NaN, 2 and 3 for the infinities. Numbers keep their
side of the middle between two shorter ones, so that what is shown does not depend on how they are packed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from quantmedic.engine.case.facts import Role
from quantmedic.reports.sections.columns import ALL, Column, Value, least_wanted, presets

#: 85 characters that JSON, HTML and terminals leave as they are.
ALPHABET = "".join(chr(c) for c in range(35, 126) if chr(c) not in "\\<>&'`")
BASE = len(ALPHABET)
#: Codes that stand for no finite number.
RESERVED = 4
#: Characters of a packed real number, and what they hold: significant digits, or decimals of a level in dB.
FULL, SHORT = 4, 3
DIGITS = {FULL: 5, SHORT: 3}
DECIMALS = {FULL: 3, SHORT: 2}
#: Bytes of the section: so many, so many more for each layer, and never more than the last.
BYTES, BYTES_PER_LAYER, MOST_BYTES = 25_000, 1_000, 5_900_000
_BYTES = np.frombuffer(ALPHABET.encode("ascii"), np.uint8)


def pack_columns(columns: Sequence[Column], role: Role, count: int) -> dict[str, object]:
    """Columns as ``data.js`` reads them: groups, and what was left out to keep the page small.

    Args:
        columns: Columns of the table, one value per layer.
        role: The data set that is judged.
        count: Layers.
    """
    budget = min(BYTES + BYTES_PER_LAYER * count, MOST_BYTES)
    packed = _pack_all(columns, FULL)
    if _table_bytes(packed) > budget:
        packed = _pack_all(columns, SHORT)
    left_out = []
    needed = {data["same"] for data in packed.values() if "same" in data}
    excess = _table_bytes(packed) - budget
    for key in least_wanted(columns, role):
        if excess <= 0:
            break
        if key in needed:
            continue
        excess -= _table_bytes({key: packed.pop(key)})
        left_out.append(key)
    kept = [column for column in columns if column.key in packed]
    texts = {text: place for place, text in enumerate(dict.fromkeys(column.description for column in kept))}
    return {
        "alphabet": ALPHABET,
        "texts": list(texts),
        "groups": _column_groups(kept, packed, texts),
        "presets": [
            {"name": preset.name, "columns": preset.columns if preset.name != ALL else None, "sort": preset.sort}
            for preset in presets(kept, role).values()
        ],
        "left_out": [column.title for column in columns if column.key in left_out],
    }


class _Packed(TypedDict, total=False):
    """The values of one column: one for all, those of another column, a list, or digits of a table, from a lowest."""

    all: Value
    same: str
    list: Sequence[Value]
    of: Sequence[Value]
    at: str
    low: int


class _Group(TypedDict):
    """Neighbours of one group."""

    name: str
    short: str
    prefix: str
    columns: list[dict[str, object]]


def _column_groups(columns: Sequence[Column], packed: Mapping[str, _Packed], texts: Mapping[str, int]) -> list[_Group]:
    """Neighbours of one group under the part of the key that they share, with the places of their descriptions."""
    groups: list[_Group] = []
    for column in columns:
        prefix = column.key.rpartition(".")[0]
        if not groups or (groups[-1]["name"], groups[-1]["prefix"]) != (column.group, prefix):
            groups.append({"name": column.group, "short": column.short_group, "prefix": prefix, "columns": []})
        entry: dict[str, object] = {
            "key": column.key.rpartition(".")[2],
            "label": column.label,
            "about": texts[column.description],
        }
        if column.unit:
            entry["unit"] = column.unit
        if not column.numeric:
            entry["text"] = 1
        groups[-1]["columns"].append({**entry, **packed[column.key]})
    return groups


def _pack_all(columns: Sequence[Column], width: int) -> dict[str, _Packed]:
    """The values of each column by key; a column that equals an earlier one only names it."""
    seen: dict[tuple[object, ...], str] = {}
    packed: dict[str, _Packed] = {}
    for column in columns:
        # Counts and flags of equal value stay apart: their columns are shown in different ways.
        same = seen.setdefault((_value_type(column), column.unit == "dB", *column.values), column.key)
        packed[column.key] = {"same": same} if same != column.key else _pack_shortest(column, width)
    return packed


def _value_type(column: Column) -> type:
    return type(next((value for value in column.values if value is not None), None))


def _pack_shortest(column: Column, width: int) -> _Packed:
    """One column in the shortest way."""
    distinct = list(dict.fromkeys(column.values))
    if len(distinct) < 2:  # None where there are no layers.
        return {"all": next(iter(distinct), None)}
    forms: list[_Packed] = [{"list": column.values}] if not column.numeric else []
    if len(distinct) < max(len(column.values) / 2, 2):
        forms.append(_dictionary(distinct, column.values))
    if column.numeric:
        forms.append(_pack_numbers(column, width))
    return min(forms, key=_length)


def _length(form: _Packed) -> int:
    """About how long it is as JSON."""
    return len(form.get("at", "")) + sum(len(str(value)) + 3 for value in form.get("of", form.get("list", ())))


def _dictionary(distinct: Sequence[Value], values: Sequence[Value]) -> _Packed:
    codes = {value: code for code, value in enumerate(distinct)}
    width = _width(len(distinct))
    return {"of": distinct, "at": _code_text(np.array([codes[v] for v in values]), width)}


def _pack_numbers(column: Column, width: int) -> _Packed:
    """Numbers packed: counts exactly, levels with a fixed number of decimals, all others with significant digits."""
    known = column.known
    numbers = np.array([np.nan if value is None else value for value in column.values], dtype=np.float64)
    codes = np.zeros(len(numbers), dtype=np.int64)
    codes[np.isnan(numbers)] = 1
    codes[[place for place, value in enumerate(column.values) if value is None]] = 0
    codes[np.isposinf(numbers)], codes[np.isneginf(numbers)] = 2, 3
    finite = np.isfinite(numbers)
    if all(isinstance(value, int) for value in known):
        return _pack_counts(column.values, codes, numbers, finite)
    packed = (_level_codes if column.unit == "dB" else _measure_codes)(numbers[finite], width)
    if packed is None:
        return {"list": column.values}
    codes[finite] = packed + RESERVED
    return {"at": _code_text(codes, width)}


def _pack_counts(
    values: Sequence[Value],
    codes: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.float64],
    finite: npt.NDArray[np.bool_],
) -> _Packed:
    low, high = int(numbers[finite].min()), int(numbers[finite].max())
    width = _width(high - low + 1 + RESERVED)
    if width > FULL:
        return {"list": values}
    codes[finite] = numbers[finite].astype(np.int64) - low + RESERVED
    return {"low": low, "at": _code_text(codes, width)}


def _level_codes(values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.int64] | None:
    """Thousandths or hundredths, counted from the middle of what the characters hold."""
    middle = int(BASE**width) // 2

    def rises(place: int) -> bool:
        level = float(values[place])
        return round(level, 1) > level

    steps = _beside_the_middle(values * 10 ** DECIMALS[width], 10 ** (DECIMALS[width] - 1), rises)
    if np.abs(steps).max(initial=0) >= middle - RESERVED:
        return None
    return steps + middle


def _measure_codes(values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.int64] | None:
    """0, or 1 + (mantissa - its smallest + (sign + 2 · (exponent + half the exponents)) · number of mantissas)."""
    digits = DIGITS[width]
    smallest = 10 ** (digits - 1)
    mantissas = 9 * smallest
    half = (BASE**width - RESERVED - 1) // (2 * mantissas) // 2
    sizes = np.abs(values)
    zero = sizes == 0
    if np.any(sizes[~zero] < 10.0 ** (1 - half)) or np.any(sizes >= 10.0 ** (half - 1)):
        return None
    exponents = np.floor(np.log10(np.where(zero, 1.0, sizes))).astype(np.int64)

    def rises(place: int) -> bool:
        size = float(sizes[place])
        return float(f"{size:.2e}") > size

    mantissa = _beside_the_middle(sizes / 10.0 ** (exponents - digits + 1), 10 ** (digits - 3), rises)
    over, under = mantissa >= 10 * smallest, mantissa < smallest
    exponents += over
    mantissa = np.where(over | under, smallest, mantissa)
    codes = 1 + (mantissa - smallest) + ((values < 0) + 2 * (exponents + half)) * mantissas
    return np.where(zero, 0, codes)


def _beside_the_middle(
    scaled: npt.NDArray[np.float64], shown: int, rises: Callable[[int], bool]
) -> npt.NDArray[np.int64]:
    """Whole numbers nearby, which round to the same multiple of ``shown`` as the values themselves do.

    Args:
        scaled: The values, scaled so that whole numbers are kept.
        shown: Multiple to which readers round.
        rises: Whether the value at a place is rounded up where it is read.
    """
    whole = np.rint(scaled).astype(np.int64)
    near = np.abs(scaled / shown % 1 - 0.5) < 0.5 / shown * (shown > 1) + 1e-7
    for place in np.flatnonzero(near).tolist():
        below = int(np.floor(scaled[place] / shown)) * shown
        if shown == 1:
            whole[place] = below + rises(place)
        elif whole[place] == below + shown // 2:
            whole[place] += 1 if rises(place) else -1
    return whole


def _width(codes: int) -> int:
    """Characters that so many codes need."""
    width = 1
    while BASE**width < codes:
        width += 1
    return width


def _code_text(codes: npt.NDArray[np.int64], width: int) -> str:
    powers = BASE ** np.arange(width - 1, -1, -1)
    text: bytes = _BYTES[codes[:, None] // powers % BASE].tobytes()
    return text.decode("ascii")


def _table_bytes(packed: Mapping[str, _Packed]) -> int:
    """Bytes of columns: their values, and about 60 for the rest."""
    return sum(_length(data) + 60 for data in packed.values())
