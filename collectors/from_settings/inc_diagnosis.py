"""The diagnosis of Intel Neural Compressor 2: the tables that it prints, and the CSV files that it writes.

Its "MSE" is of tensors that were each scaled to 0 … 1 by their own extremes. Of ONNX models the tensor is the first
that the operator reads, of one sample, while minimum and maximum are of what it writes (source of 2.2 to 2.6).
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from quantmedic.collectors.from_settings.inc_config import TOOLCHAIN, imported_config
from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import parse_yaml, read_text
from quantmedic.collectors.toolchain_files.values import mapping
from quantmedic.engine.case.facts import ReportedFacts, SettingsFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import IMPORTED_LAYERS

NAME = "OP name"
ACTIVATIONS = {"MSE": "normalized_mse", "Activation min": "min", "Activation max": "max"}
WEIGHTS = {
    "MSE": "weight_normalized_mse",
    "Input model min": "weight_min",
    "Input model max": "weight_max",
    "Input model mean": "weight_mean",
    "Input model standard deviation": "weight_std",
    "Optimized model min": "weight_stored_min",
    "Optimized model max": "weight_stored_max",
    "Optimized model mean": "weight_stored_mean",
    "Optimized model standard deviation": "weight_stored_std",
}
_STAMP = re.compile(r"^.*?\[(?:INFO|WARNING|DEBUG)\](?:\[[^\]]*\])? ?")
_TITLES = {"Activations summary": ACTIVATIONS, "Weights summary": WEIGHTS}
_TITLE = re.compile(r"^\|\s*(Activations summary|Weights summary)\s*\|$")


@dataclass(frozen=True)
class _Row:
    """One line of a table: where it stands, and its cells by the heading."""

    place: str
    cells: dict[str, str]


def read_table(path: Path) -> Imported:
    """``activations_table.csv`` or ``weights_table.csv``.

    Raises:
        DataError: It cannot be read, or a row does not fit the heading.
    """
    reader = csv.reader(io.StringIO(read_text(path)))
    try:
        heading = next(reader, [])
        rows = [
            _table_row(heading, cells, f"{path}:{reader.line_num}")
            for cells in islice(reader, IMPORTED_LAYERS.in_force + 1)
            if cells
        ]
    except csv.Error as error:
        raise DataError("the table cannot be read", where=f"{path}:{reader.line_num}: {error}") from error
    IMPORTED_LAYERS.check(len(rows), path)
    facts = ACTIVATIONS if "Activation min" in heading else WEIGHTS
    absent = [column for column in (NAME, *facts) if column not in heading]
    if absent:
        raise DataError(
            "the table lacks columns",
            where=f"{path}: {', '.join(absent)}",
            help="give the file as Neural Compressor wrote it",
        )
    return _imported_rows(rows, facts, path.name)


def read_log(path: Path) -> Imported:
    """The tables and the configuration in a printed log.

    Raises:
        DataError: It cannot be read, or a row does not fit the heading.
    """
    lines = [_STAMP.sub("", line).rstrip() for line in read_text(path).splitlines()]
    parts = list(_tables(lines, path))
    parts += [imported_config(config, path.name) for config in list(_printed_configs(lines))[-1:]]
    if not parts:
        notice = "the log holds neither the tables of a diagnosis nor the configuration"
        return Imported(settings=SettingsFacts(toolchain=TOOLCHAIN), notices=(notice,))
    layers: dict[str, ReportedFacts] = {}
    for part in parts:
        for name, facts in part.layers.items():
            figures = facts.model_dump(exclude_none=True)
            layers[name] = layers[name].model_copy(update=figures) if name in layers else facts
    merged = replace(parts[-1], layers=layers, notices=tuple(notice for part in parts for notice in part.notices))
    if not any(part.layers for part in parts):
        return merged
    if any("Weights summary" in line for line in lines):
        return merged
    lacks = "the table of weights is missing: versions 2.5 and 2.6 stop before it on ONNX models"
    return replace(merged, notices=(*merged.notices, lacks))


def _tables(lines: Sequence[str], path: Path) -> Iterator[Imported]:
    """Tables by their titles; one that is printed again stands in for the first."""
    found: dict[str, Imported] = {}
    for start, line in enumerate(lines):
        title = _TITLE.match(line)
        if title is None:
            continue
        rows, whole = _printed_rows(lines, start, path)
        table = _imported_rows(rows, _TITLES[title[1]], path.name)
        cut = () if whole else (f"{title[1]}: the table ends without its last line; rows may be missing",)
        found[title[1]] = replace(table, notices=(*table.notices, *cut))
    yield from found.values()


def _printed_rows(lines: Sequence[str], start: int, path: Path) -> tuple[list[_Row], bool]:
    """Rows below a title, and whether the table is whole; what other programs print between them is passed over."""
    rules, heading, rows = 0, list[str](), list[_Row]()
    for number, line in enumerate(lines[start + 1 : start + IMPORTED_LAYERS.in_force], start + 2):
        if line.startswith("+-"):
            rules += 1
            if rules == 3:
                return rows, True
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if heading and len(cells) != len(heading):
                return rows, False
            if heading:
                rows.append(_table_row(heading, cells, f"{path}:{number}"))
            heading = heading or cells
    return rows, False


def _table_row(heading: Sequence[str], cells: Sequence[str], place: str) -> _Row:
    if len(cells) != len(heading):
        raise DataError(
            "a row of the table does not fit its heading",
            where=f"{place}: {len(cells)} cells, {len(heading)} columns",
            help="give the file as Neural Compressor wrote it",
        )
    return _Row(place, dict(zip(heading, cells, strict=True)))


def _imported_rows(rows: Sequence[_Row], facts: dict[str, str], origin: str) -> Imported:
    """Facts of the rows; of several tensors of one operator the one with the largest error, which comes first."""
    layers: dict[str, ReportedFacts] = {}
    again: list[str] = []
    for row in rows:
        name = row.cells.get(NAME, "")
        if name in layers:
            again.append(name)
            continue
        values = {fact: _cell_number(row, column) for column, fact in facts.items() if column in row.cells}
        figures = {fact: value for fact, value in values.items() if math.isfinite(value)}
        layers[name] = ReportedFacts.model_validate({"origin": origin, **figures})
    notices = []
    if again:
        notices = [f"tensors left out, whose operators have one with a larger error: {len(again)}, first of {again[0]}"]
    return Imported(settings=SettingsFacts(toolchain=TOOLCHAIN), layers=layers, notices=tuple(notices))


def _cell_number(row: _Row, column: str) -> float:
    try:
        return float(row.cells[column])
    except ValueError as error:
        raise DataError("a number is expected", where=f"{row.place}: {column}: {row.cells[column][:80]!r}") from error


def _printed_configs(lines: Sequence[str]) -> Iterator[Mapping[object, object]]:
    """Configurations as they are printed when quantization starts: a mapping in Python's words, an option a line."""
    for number, line in enumerate(lines):
        starts = line.strip() == "'PostTrainingQuantConfig': {"
        if starts and (text := _bracket_content(lines[number + 1 : number + IMPORTED_LAYERS.in_force])):
            with suppress(DataError):
                yield mapping(parse_yaml(f"{{{text}}}", "log"))


def _bracket_content(lines: Sequence[str]) -> str:
    """The lines up to the bracket that closes; none where the text ends before."""
    depth = 1
    for number, line in enumerate(map(str.strip, lines)):
        depth += line.endswith(("{", "[")) - (line.rstrip(",") in ("}", "]"))
        if not depth:
            return " ".join(map(str.strip, lines[:number]))
    return ""


_LOG_MARKS = (
    "'PostTrainingQuantConfig': {",
    "[INFO] *** Initialize auto tuning",
    "Activations summary  ",
    "Weights summary  ",
    "|******Mixed Precision Statistics******|",
)


def _is_inc_table(name: str, text: str) -> bool:
    first = text.partition("\n")[0]
    return first.startswith(f"{NAME},MSE,") and ("Activation min" in first or "Input model min" in first)


def _is_inc_log(name: str, text: str) -> bool:
    if name.rpartition(".")[2].lower() in ("csv", "json", "yaml", "yml"):
        return False
    return any(mark in text for mark in _LOG_MARKS)


FORMATS = (
    Format(f"{TOOLCHAIN} diagnosis table", TOOLCHAIN, _is_inc_table, read_table),
    Format(f"{TOOLCHAIN} log", TOOLCHAIN, _is_inc_log, read_log),
)
