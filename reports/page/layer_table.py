"""The layer table as JSON: the values of each column are a text of their own, which ``browser/data.js`` parses when the
column is first asked for. The page carries all of it compressed.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TypedDict

from quantmedic.engine.case.facts import Role
from quantmedic.reports.page.short_json import dump, plain_number
from quantmedic.reports.sections.columns import ALL, Column, Value, least_wanted, presets

#: Bytes of the section as the page carries it: so many, so many more for each layer, and never more than the last.
BYTES, BYTES_PER_LAYER, MOST_BYTES = 25_000, 1_000, 5_900_000
#: Digits that are kept, and how people are shown a number: levels in dB, and all others.
LEVEL, MEASURE = (".3f", ".1f"), (".5g", ".3g")


def table_data(columns: Sequence[Column], role: Role, count: int) -> dict[str, object]:
    """Columns as ``data.js`` reads them: groups, and what was left out to keep the page small.

    Args:
        columns: Columns of the table, one value per layer.
        role: The data set that is judged.
        count: Layers.
    """
    written = _write_columns(columns)
    sizes = {key: _carried_bytes(values) for key, values in written.items()}
    excess = sum(sizes.values()) - min(BYTES + BYTES_PER_LAYER * count, MOST_BYTES)
    needed = {values["same"] for values in written.values() if "same" in values}
    left_out = []
    for key in least_wanted(columns, role):
        if excess <= 0:
            break
        if key in needed:
            continue
        excess -= sizes[key]
        left_out.append(key)
    kept = [column for column in columns if column.key not in left_out]
    texts = {text: place for place, text in enumerate(dict.fromkeys(column.description for column in kept))}
    return {
        "texts": list(texts),
        "groups": _column_groups(kept, written, texts),
        "presets": [
            {"name": preset.name, "columns": preset.columns if preset.name != ALL else None, "sort": preset.sort}
            for preset in presets(kept, role).values()
        ],
        "left_out": [column.title for column in columns if column.key in left_out],
    }


class _Values(TypedDict, total=False):
    """The values of one column as JSON, or the key of an earlier column that has the same."""

    values: str
    same: str


class _Group(TypedDict):
    """Neighbours of one group."""

    name: str
    short: str
    prefix: str
    columns: list[dict[str, object]]


def _column_groups(columns: Sequence[Column], written: Mapping[str, _Values], texts: Mapping[str, int]) -> list[_Group]:
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
        groups[-1]["columns"].append({**entry, **written[column.key]})
    return groups


def _write_columns(columns: Sequence[Column]) -> dict[str, _Values]:
    """The values of each column by key; a column that equals an earlier one only names it."""
    seen: dict[tuple[object, ...], str] = {}
    written: dict[str, _Values] = {}
    for column in columns:
        # Counts and flags of equal value stay apart: their columns are shown in different ways.
        same = seen.setdefault((_value_type(column), column.unit == "dB", *column.values), column.key)
        written[column.key] = {"same": same} if same != column.key else {"values": _values_text(column)}
    return written


def _value_type(column: Column) -> type:
    return type(next((value for value in column.values if value is not None), None))


def _values_text(column: Column) -> str:
    if not column.numeric:
        return dump(column.values)
    kept, shown = LEVEL if column.unit == "dB" else MEASURE
    short = [_shorter(value, kept, shown) if isinstance(value, float) else value for value in column.values]
    return json.dumps(short, separators=(",", ":"))


def _shorter(value: float, kept: str, shown: str) -> Value:
    """A number of few digits, unless people would be shown another one then."""
    short = float(f"{value:{kept}}")
    return plain_number(short if f"{short:{shown}}" == f"{value:{shown}}" else value)


def _carried_bytes(values: _Values) -> int:
    """About what the page takes for a column: compressed, in base64, and 60 for what stands around it."""
    return 60 + len(zlib.compress(values.get("values", "").encode(), 1)) * 4 // 3
