"""The tables of a case as text: columns and ready tables of the page, all facts of one layer, the data sets."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from quantmedic.engine.case.facts import ROLES, LayerFacts, Role, fact_paths
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.layer_rows import flagging_rules
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.reports.sections.columns import DEFAULT, PRESETS, Column, Preset, judged_set, layer_columns, presets
from quantmedic.reports.sections.tables import dataset_table
from quantmedic.reports.text import NOT_MEASURED, UNITS_SHOWN, count, field_info, level, number, visible

TABLES = (*(preset.name for preset in PRESETS), "all")
ROWS = 50
WIDTH = 100
NAME_WIDTH = 44
TEXT_WIDTH = 24
DATA_WIDTH = 34
#: Columns that every block of a wide table begins with.
FIXED = ("index", "name")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Table:
    """Some columns of some layers, in the order asked for."""

    columns: tuple[Column, ...]
    rows: tuple[int, ...]
    total: int
    order: str


def layer_table(
    inspection: Inspection,
    *,
    table: str = DEFAULT.name,
    columns: Sequence[str] = (),
    sort: str | None = None,
    text: str = "",
    flagged: bool = False,
) -> Table:
    """Choose columns and layers of a case.

    Args:
        inspection: The case.
        table: One of the ready tables: ``default`` or one of ``TABLES``.
        columns: Instead of those of the table: keys, or their ends where these are clear.
        sort: ``KEY`` or ``KEY:desc``; the order of the ready table by default, else that of the network.
        text: Words that name, operator or findings of a layer must contain.
        flagged: Only layers that are degraded or that a rule flagged.

    Raises:
        QuantmedicError: A table or column is not known, or nothing of it was measured.
    """
    layers = inspection.facts.layers
    codes = flagging_rules(evaluate(inspection.base, inspection.facts))
    findings = [tuple(codes.get(layer.name or "", ())) for layer in layers]
    known = layer_columns(layers, findings)
    role = judged_set(layers)
    by_key = {column.key: column for column in known}
    ready = _preset(presets(known, role), table)
    keys = [_key(name, by_key, role) for name in columns] or ready.columns
    asked = sort or ("" if columns else _sort_option(ready.sort))
    places = [
        place
        for place, layer in enumerate(layers)
        if (not flagged or layer.degraded or findings[place]) and _contains(layer, findings[place], text)
    ]
    order = "in the order of the network" if layers else "as none was measured"
    if asked:
        key, descending = _sort_key(asked, by_key, role)
        places = _sorted(places, by_key[key], descending=descending)
        order = f"by {by_key[key].title}, {'largest' if descending else 'smallest'} first"
    return Table(tuple(by_key[key] for key in keys), tuple(places), len(layers), order)


def table_lines(table: Table, *, limit: int = ROWS, width: int = WIDTH) -> Iterator[str]:
    """A table in aligned columns; one that is too wide goes on below, with the names again.

    Args:
        table: What to print.
        limit: At most so many layers.
        width: Columns of the terminal.
    """
    shown = table.rows[:limit]
    chosen = f"{len(table.rows)} of {table.total}" if len(table.rows) < table.total else str(table.total)
    yield f"{chosen} {'layer' if table.total == 1 else 'layers'}, {table.order}"
    if not shown:
        return
    for block in _blocks(table.columns, shown, width):
        yield ""
        yield from _aligned(block)
    if len(table.rows) > len(shown):
        yield f"{len(table.rows) - len(shown)} more (--limit {len(table.rows)}, or --csv FILE)"


def table_csv(table: Table) -> str:
    """All rows with full precision: one heading line of keys; what was not measured is empty.

    Text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    for place in table.rows:
        writer.writerow([_field(column.values[place]) for column in table.columns])
    return out.getvalue()


def layer_lines(inspection: Inspection, name: str) -> Iterator[str]:
    """All facts of the layers of one name, with unit; those of both data sets side by side.

    Raises:
        QuantmedicError: No layer has that name.
    """
    codes = flagging_rules(evaluate(inspection.base, inspection.facts))
    for layer in _named(inspection.facts.layers, name):
        findings = codes.get(layer.name or "", [])
        state = [*(["degraded"] if layer.degraded else []), *findings]
        yield f"{visible(layer.name or '?')}   {visible(layer.op_type or '?')}   {', '.join(state)}".rstrip()
        yield from _facts(layer)


def data_lines(inspection: Inspection) -> Iterator[str]:
    """Facts of both data sets side by side, and how they relate."""
    table = dataset_table(inspection.facts.datasets)
    yield f"relation of the inputs: {table.relation}" if table.relation == NOT_MEASURED else table.relation
    yield from _grid([("", *table.roles), *((row.label, *_short(row.values)) for row in table.rows)])
    if table.relation_rows:
        yield ""
        yield from _grid([("relation", "value"), *((row.label, *_short(row.values)) for row in table.relation_rows)])
    if table.unmeasured:
        yield ""
        yield f"not measured on either set: {len(table.unmeasured)} facts"


def _short(values: Iterable[str]) -> Iterator[str]:
    """Values of many channels are cut in the middle."""
    return (visible(value, DATA_WIDTH) for value in values)


def _preset(known: dict[str, Preset], name: str) -> Preset:
    if name in known:
        return known[name]
    if name in TABLES:
        raise QuantmedicError(
            f"nothing of the table {name!r} was measured in this case", help=f"it has: {', '.join(known)}"
        )
    near = get_close_matches(name, list(known), n=1)
    raise QuantmedicError(
        f"no table is called {name!r}", help=f"did you mean {near[0]}?" if near else f"tables: {', '.join(known)}"
    )


def _key(asked: str, known: dict[str, Column], role: Role) -> str:
    """The key that is meant: itself, as rules write it (``output.data`` for the judged set), or its end."""
    name = asked.strip().replace("output.data.", f"output.{role}.", 1)
    if name in known:
        return name
    ends = [key for key in known if key.endswith(f".{name}")]
    judged = [key for key in ends if key.startswith(f"output.{role}.")]
    for found in (ends, judged):
        if len(found) == 1:
            return found[0]
    listed = "quantmedic rules facts --scope layer lists them"
    if ends:
        raise QuantmedicError(f"{asked!r} is the end of {len(ends)} columns", where=ends[:6], help="write one in full")
    if name in fact_paths("layer") or name.replace("variance", "std") in fact_paths("layer"):
        raise QuantmedicError(f"column {asked!r} was not measured in this case", help=listed)
    labels = {column.label: key for key, column in known.items()}
    near = get_close_matches(name, [*known, *labels], n=1, cutoff=0.5)
    meant = f"did you mean {labels.get(near[0], near[0])}? " if near else ""
    raise QuantmedicError(f"no column is called {asked!r}", help=meant + listed)


def _sort_option(sort: str | None) -> str:
    if sort is None:
        return ""
    return f"{sort[1:]}:desc" if sort.startswith("-") else sort


def _sort_key(asked: str, known: dict[str, Column], role: Role) -> tuple[str, bool]:
    name, colon, direction = asked.partition(":")
    if colon and direction not in ("asc", "desc"):
        raise QuantmedicError(f"{direction!r} is no direction", where=f"--sort {asked}", help="write KEY or KEY:desc")
    return _key(name, known, role), direction == "desc"


def _contains(layer: LayerFacts, findings: Iterable[str], text: str) -> bool:
    names = (layer.name, layer.float_name, layer.quantized_name, layer.op_type, *findings)
    haystack = " ".join(name for name in names if name).lower()
    return all(word in haystack for word in text.lower().split())


def _sorted(places: Sequence[int], column: Column, *, descending: bool) -> list[int]:
    """Equal ones in topological order; what was not measured comes last either way."""
    known = [place for place in places if not _is_missing(column.values[place])]
    known.sort(key=lambda place: _comparable(column.values[place]), reverse=descending)
    return [*known, *(place for place in places if _is_missing(column.values[place]))]


def _is_missing(value: Any) -> bool:
    return value is None or value == () or (isinstance(value, float) and math.isnan(value))


def _comparable(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def _named(layers: Sequence[LayerFacts], name: str) -> list[LayerFacts]:
    def names(layer: LayerFacts) -> tuple[str, ...]:
        return tuple(one for one in (layer.name, layer.float_name, layer.quantized_name) if one)

    if found := [layer for layer in layers if name in names(layer)]:
        return found
    known = list(dict.fromkeys(one for layer in layers for one in names(layer)))
    near = [one for one in known if name.lower() in one.lower()] or get_close_matches(name, known, n=3)
    raise QuantmedicError(
        f"no layer is called {name!r}",
        help=f"did you mean {', '.join(visible(one, NAME_WIDTH) for one in near[:3])}?"
        if near
        else "quantmedic show CASE lists them",
    )


def _facts(layer: LayerFacts) -> Iterator[str]:
    """One line per fact that was measured; those of the data sets in two columns."""
    single, double = [], []
    missing = 0
    for path, field in fact_paths("layer").items():
        if path.startswith(("model.", "output.data.")) or path.startswith(f"output.{ROLES[1]}."):
            continue
        of_set = path.startswith(f"output.{ROLES[0]}.")
        paths = [path.replace(f".{ROLES[0]}.", f".{role}.", 1) for role in ROLES] if of_set else [path]
        values = [_read(layer, one) for one in paths]
        unit = field_info(field).unit or ""
        if all(value is None or value == () for value in values):
            missing += 1
        elif of_set:
            double.append((path.removeprefix(f"output.{ROLES[0]}."), *(_cell(v, unit) for v in values), unit))
        else:
            single.append((path, visible(_cell(values[0], unit), NAME_WIDTH), unit))
    yield ""
    yield from _grid([("fact", "value", "unit"), *single])
    if double:
        yield ""
        yield from _grid([("output on", *ROLES, "unit"), *double])
    yield f"{count(missing, 'fact')} not measured"


def _read(layer: LayerFacts, path: str) -> Any:
    value: Any = layer
    for field in path.split("."):
        value = getattr(value, field)
    return value


def _grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of text: the first column to the left, the middle ones to the right, a last one of units to the left."""
    units = rows[0][-1] == "unit"
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if place == 0 or (units and place == len(row) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


@dataclass(frozen=True)
class _Printed:
    """One column as text: its group, its heading, then the cells."""

    group: str
    head: str
    cells: tuple[str, ...]
    right: bool

    @property
    def width(self) -> int:
        words = (*self.head.split(), *self.group.split(), *self.cells)
        return max((len(word) for word in words), default=0)


def _blocks(columns: Sequence[Column], rows: Sequence[int], width: int) -> Iterator[list[_Printed]]:
    """Columns that fit beside each other, each time behind number and name."""
    printed = {column.key: _printed(column, rows) for column in columns}
    fixed = [printed[key] for key in FIXED if key in printed]
    others = [text for key, text in printed.items() if key not in FIXED]
    if not others:
        yield fixed
        return
    room = width - sum(text.width + 2 for text in fixed)
    block: list[_Printed] = []
    for text in others:
        if block and sum(one.width + 2 for one in [*block, text]) > room + 2:
            yield [*fixed, *block]
            block = []
        block.append(text)
    yield [*fixed, *block]


def _printed(column: Column, rows: Sequence[int]) -> _Printed:
    limit = NAME_WIDTH if column.key == "name" else TEXT_WIDTH
    unit = f" {column.unit}" if column.unit in ("dB", *UNITS_SHOWN) and column.unit != column.label else ""
    return _Printed(
        group=column.short_group,
        head=column.label + unit,
        cells=tuple(visible(_cell(column.values[place], column.unit), limit) for place in rows),
        right=column.numeric,
    )


def _aligned(block: Sequence[_Printed]) -> Iterator[str]:
    widths = [text.width for text in block]
    yield from _group_lines(block, widths)
    for cells in _level([_stacked(text.head, width) for text, width in zip(block, widths, strict=True)]):
        yield _line(block, widths, cells)
    for place in range(len(block[0].cells)):
        yield _line(block, widths, [text.cells[place] for text in block])


def _line(block: Sequence[_Printed], widths: Sequence[int], cells: Iterable[str]) -> str:
    aligned = (
        cell.rjust(width) if text.right else cell.ljust(width)
        for text, width, cell in zip(block, widths, cells, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _group_lines(block: Sequence[_Printed], widths: Sequence[int]) -> Iterator[str]:
    """Names of groups over all of their columns."""
    spans: list[tuple[str, int]] = []
    for text, width in zip(block, widths, strict=True):
        if spans and spans[-1][0] == text.group:
            spans[-1] = (text.group, spans[-1][1] + 2 + width)
        else:
            spans.append((text.group, width))
    for cells in _level([_stacked(group, width) for group, width in spans]):
        yield "  ".join(cell.center(width) for cell, (_, width) in zip(cells, spans, strict=True)).rstrip()


def _level(stacks: Sequence[list[str]]) -> Iterator[list[str]]:
    """Line by line, so that all stacks end on the last line; nothing where all are empty."""
    height = max(len(stack) for stack in stacks)
    for row in range(height):
        yield [([""] * (height - len(stack)) + stack)[row] for stack in stacks]


def _stacked(text: str, width: int) -> list[str]:
    """Words below each other where they do not fit beside each other."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _cell(value: Any, unit: str | None) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return visible(value)
        case tuple():
            return ", ".join(visible(str(item)) for item in value)
        case int() | float():
            return level(value) if unit == "dB" else number(value)
    return visible(str(value))


def _field(value: Any) -> Any:
    """A value for CSV: numbers in full, names visible, formulas disarmed."""
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else str(value).lower() if isinstance(value, bool) else value
    text = visible(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
