"""What ExecuTorch writes on a device: an ETDump, its debug buffer, and the ETRecord of the program that ran.

The ETDump is a flatbuffer (``etdump_schema_flatcc.fbs``) of runs; each debug event of a run says which instruction made
a tensor, and where its values lie in the debug buffer. The ETRecord is a zip: ``debug_handle_map`` gives each
instruction a debug handle, ``delegate_map`` those within delegates, and ``edge_dialect_exported_program``, JSON, the
nodes of a handle. What else it holds (weights, example inputs) is stored as pickles, and not read.
"""

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.archives import open_archive, read_member
from quantmedic.collectors.data.arrays import Array, Column, first_bytes, open_regular
from quantmedic.collectors.from_device.parts import fit_together, join_parts
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import read_bytes
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.reading_limits import TEXT_BYTES

#: What a damaged flatbuffer raises.
DAMAGE = (struct.error, ValueError, OSError)
#: Bytes that a table takes at least: one that is walked oftener than the file has room for is shared without end.
_TABLE_BYTES = 8
#: Bytes of an ETDump behind the position of its root, and behind its size where that stands before.
_IDENTIFIER = b"ED00"
_PROGRAM = "edge_dialect_exported_program"
_METHOD = "forward"
#: Types of torch by their numbers in ``scalar_type.fbs``; float and integer types that numpy has.
_TYPES = {0: "u1", 1: "i1", 2: "<i2", 3: "<i4", 4: "<i8", 5: "<f2", 6: "<f4", 7: "<f8", 27: "<u2", 28: "<u4"}
_BAD_RECORD = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, OSError, ValueError, RuntimeError)


class FlatBuffer:
    """A flatbuffer. A table is known by its position; its fields by their places in the schema."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.left = len(content) // _TABLE_BYTES
        self.root = self._follow(0)

    def table(self, table: int, field: int) -> int | None:
        """The table that a field holds; None without it."""
        place = self._place(table, field)
        return None if place is None else self._follow(place)

    def tables(self, table: int, field: int) -> list[int]:
        """The tables of a vector; none without it.

        Raises:
            ValueError: It holds more than the file has room for.
        """
        start, count = self._vector(table, field, 4)
        self.left -= count
        if self.left < 0:
            raise ValueError("it holds more tables than it has room for")
        return [self._follow(start + 4 * k) for k in range(count)]

    def longs(self, table: int, field: int) -> tuple[int, ...]:
        """Whole numbers of 64 bits."""
        start, count = self._vector(table, field, 8)
        return struct.unpack_from(f"<{count}q", self.content, start)

    def number(self, table: int, field: int, kind: str, default: int) -> int:
        """A number of a kind of ``struct``."""
        place = self._place(table, field)
        return default if place is None else self._at(place, kind)

    def text(self, table: int, field: int) -> str:
        """A text; empty without it."""
        start, count = self._vector(table, field, 1)
        return self.content[start : start + count].decode()

    def _vector(self, table: int, field: int, width: int) -> tuple[int, int]:
        place = self._place(table, field)
        if place is None:
            return 0, 0
        start = self._follow(place)
        count = self._at(start, "I")
        if start + 4 + count * width > len(self.content):
            raise ValueError("a vector is longer than the file")
        return start + 4, count

    def _place(self, table: int, field: int) -> int | None:
        """Where a field of a table stands; None where it is left out."""
        schema = table - self._at(table, "i")
        if 4 + 2 * field >= self._at(schema, "H"):
            return None
        within = self._at(schema + 4 + 2 * field, "H")
        return table + within if within else None

    def _follow(self, place: int) -> int:
        return place + self._at(place, "I")

    def _at(self, place: int, kind: str) -> int:
        if place < 0:
            raise ValueError("a position lies before the file")
        number: int = struct.unpack_from(f"<{kind}", self.content, place)[0]
        return number


@dataclass(frozen=True)
class _Entry:
    """A tensor of a run: the instruction and, within a delegate, the identifier there; where its values lie."""

    instruction: int
    delegate: str | None
    kind: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def dtype(self) -> "np.dtype[np.generic]":
        return np.dtype(_TYPES[self.kind])

    @property
    def order(self) -> tuple[int, ...]:
        """Axes from the slowest to the fastest in memory."""
        return tuple(sorted(range(len(self.sizes)), key=lambda axis: -self.strides[axis]))

    def flaw(self, size: int) -> str | None:
        """Why it cannot be read from a debug buffer of so many bytes; None where it can."""
        if self.kind not in _TYPES:
            return f"it is of type {self.kind} of torch"
        if len(self.strides) != len(self.sizes) or not all(1 <= side < 1 << 40 for side in self.sizes):
            return "it has no shape"
        width = 1
        for axis in reversed(self.order):
            if self.sizes[axis] > 1 and self.strides[axis] != width:
                return "its values have gaps"
            width *= self.sizes[axis]
        if self.offset < 0 or self.offset + width * self.dtype.itemsize > size:
            return "the debug buffer ends before it: make that larger"
        return None


@dataclass(frozen=True)
class _Record:
    """What an ETRecord tells.

    Attributes:
        handles: Debug handles of each instruction, in the order in which their nodes run.
        within: The same by identifier within the delegate that an instruction calls.
        names: Name in the exported program by debug handle; of quantizers that of what they quantize.
    """

    handles: Mapping[int, Sequence[int]]
    within: Mapping[tuple[int, str], Sequence[int]]
    names: Mapping[int, str]

    def name_of(self, entry: _Entry) -> str | int | None:
        """Name of what an entry holds, its debug handle where the record has no node of that; None without a handle."""
        if entry.delegate is None:
            handles = self.handles.get(entry.instruction, ())
        else:
            handles = self.within.get((entry.instruction, entry.delegate), ())
        return self.names.get(handles[-1], handles[-1]) if handles else None

    def last_instructions(self) -> dict[str, int]:
        """The instruction that ends each tensor: its operator, or the last of its quantizers."""
        named = ((self.names.get(h), instruction) for instruction, handles in self.handles.items() for h in handles)
        last: dict[str, int] = {}
        for name, instruction in named:
            if name is not None:
                last[name] = max(instruction, last.get(name, instruction))
        return last


def is_etdump(start: bytes) -> bool:
    """A file that begins so is an ETDump."""
    return _IDENTIFIER in (start[4:8], start[8:12])


def read_etdump(folder: Path, files: Sequence[Path], option: str) -> tuple[dict[str, Column], list[str]]:
    """Tensors by the names of the nodes of the exported program, runs one after the other along axis 0.

    Args:
        folder: The folder, for messages.
        files: What it holds: the ETDump, its debug buffer and the ETRecord.
        option: The option that named the folder, for messages.

    Returns:
        The tensors, and what was left out, and why.

    Raises:
        DataError: One of the three files is missing, stands there twice, or is damaged.
        LimitError: One is too large.
    """
    dump, record, buffer = (_only(files, kind, folder, option) for kind in ("ETDump", "ETRecord", "debug buffer"))
    known = _read_record(record)
    size = buffer.stat().st_size
    runs = [{known.name_of(entry): entry for entry in run} for run in _read_runs(dump)]
    runs = [run for run in runs if run]
    columns: dict[str, Column] = {}
    notices: list[str] = []
    if unknown := {name for run in runs for name in run if isinstance(name, int)}:
        notices.append(
            f"{len(unknown)} debug handles have no node in {record.name}: write it before the program is lowered "
            "(generate_etrecord=True)"
        )
    last = known.last_instructions()
    for name in dict.fromkeys(name for run in runs for name in run if isinstance(name, str)):
        found = [run.get(name) for run in runs]
        entries = [entry for entry in found if entry is not None]
        flaw = next((flaw for entry in entries if (flaw := entry.flaw(size)) is not None), None)
        if len(entries) < len(runs):
            notices.append(f"{name}: run {found.index(None)} lacks it")
        elif any(entry.instruction != last.get(name) for entry in entries):
            notices.append(f"{name}: its quantizer runs in a delegate, and what the dump has is not rounded yet")
        elif flaw is not None:
            notices.append(f"{name}: {flaw}")
        elif not fit_together([entry.sizes for entry in entries], [entry.dtype for entry in entries]):
            notices.append(f"{name}: its runs differ in shape or type")
        else:
            columns[name] = _column(buffer, name, entries)
    return columns, notices


def _column(buffer: Path, name: str, entries: Sequence[_Entry]) -> Column:
    def load(k: int) -> Array:
        entry = entries[k]
        with open_regular(buffer) as file:
            file.seek(entry.offset)
            content = file.read(math.prod(entry.sizes) * entry.dtype.itemsize)
        sides = [entry.sizes[axis] for axis in entry.order]
        try:
            stored = np.frombuffer(content, entry.dtype).reshape(sides)
        except ValueError as error:
            raise _dump_error(buffer, error) from error
        return stored.transpose([entry.order.index(axis) for axis in range(len(sides))])

    return join_parts(buffer.name, name, [entry.sizes for entry in entries], entries[0].dtype, load)


# --- the ETDump ------------------------------------------------------------------------------------------------------


def _read_runs(path: Path) -> list[list[_Entry]]:
    """Tensors of each run, in the order in which they were made."""
    try:
        content = read_bytes(path)
        flat = FlatBuffer(content if content[4:8] == _IDENTIFIER else content[4:])
        return [list(_entries_of_run(flat, run)) for run in flat.tables(flat.root, 1)]
    except DAMAGE as error:
        raise _dump_error(path, error) from error


def _entries_of_run(flat: FlatBuffer, run: int) -> Iterator[_Entry]:
    """Tensors of a run; outputs of the whole program, which stand there once more, have no instruction."""
    for event in flat.tables(run, 3):
        debug = flat.table(event, 2)
        value = None if debug is None else flat.table(debug, 2)
        if debug is None or value is None or flat.table(value, 7) is not None:
            continue
        number = flat.number(debug, 3, "i", -1)
        delegate = flat.text(debug, 4) or (None if number < 0 else str(number))
        listed = flat.table(value, 2)
        tensors = [flat.table(value, 1)] if listed is None else flat.tables(listed, 0)
        for tensor in tensors:
            if tensor is not None:
                yield _Entry(
                    flat.number(debug, 1, "i", -1),
                    delegate,
                    flat.number(tensor, 0, "b", 0),
                    flat.longs(tensor, 1),
                    flat.longs(tensor, 2),
                    flat.number(tensor, 3, "q", 0),
                )


# --- the ETRecord ----------------------------------------------------------------------------------------------------


def _read_record(path: Path) -> _Record:
    try:
        with open_archive(path) as archive:
            by_method, delegates = (_member(archive, path, name) for name in ("debug_handle_map", "delegate_map"))
            program = _member(archive, path, f"{_PROGRAM}/{_METHOD}") or _member(archive, path, _PROGRAM)
        calls = _table(delegates.get(_METHOD)).items()
        return _Record(
            {int(instruction): _handles_of(handles) for instruction, handles in _table(by_method.get(_METHOD)).items()},
            {
                (int(instruction), identifier): _handles_of(handles)
                for instruction, delegate in calls
                for identifier, handles in _table(_table(delegate).get("delegate_map")).items()
            },
            _names_by_handle(program),
        )
    except _BAD_RECORD as error:
        raise _dump_error(path, error) from error


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> Mapping[str, object]:
    """A member of JSON; empty where there is none."""
    member = next((info for info in archive.infolist() if info.filename == name), None)
    if member is None:
        return {}
    TEXT_BYTES.check(member.file_size, f"{path}  {name}")
    return _table(parse_json(read_member(archive, member).decode(), path))


def _names_by_handle(program: Mapping[str, object]) -> dict[int, str]:
    nodes = _table(_table(program.get("graph_module")).get("graph")).get("nodes")
    names: dict[int, str] = {}
    origins: dict[str, str] = {}
    for node in map(_table, nodes if isinstance(nodes, list) else ()):
        metadata = _table(node.get("metadata"))
        handle, chain = metadata.get("debug_handle"), metadata.get("from_node")
        if not (isinstance(handle, str) and handle.isdecimal() and isinstance(chain, str)):
            continue
        fed = _tensor_name(_first_table(node.get("inputs")).get("arg"))
        is_quantizer = "quantize_per_" in str(node.get("target"))
        name = origins.get(fed, fed) if is_quantizer else _origin(json.loads(chain))
        if name:
            names.setdefault(int(handle), name)
            origins[_tensor_name(_first_table(node.get("outputs")))] = name
    return names


def _origin(chain: object) -> str | None:
    """The name of a node in the graph that was exported first; a chain leads there from each graph that came of it."""
    name = None
    while isinstance(chain, list) and chain:
        node = _table(chain[0])
        name, chain = node.get("name", name), node.get("from_node")
    return name if isinstance(name, str) else None


def _tensor_name(value: object) -> str:
    """Name of a tensor in the graph; empty where it is none."""
    name = _table(_table(value).get("as_tensor")).get("name")
    return name if isinstance(name, str) else ""


def _first_table(values: object) -> Mapping[str, object]:
    return _table(values[0]) if isinstance(values, list) and values else {}


def _handles_of(handles: object) -> list[int]:
    """One handle, or several."""
    listed = handles if isinstance(handles, list) else [handles]
    return [handle for handle in listed if isinstance(handle, int)]


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


# --- the folder ------------------------------------------------------------------------------------------------------


def _kind(path: Path) -> str:
    """What a file is, by what it begins with."""
    start = first_bytes(path)
    if is_etdump(start):
        return "ETDump"
    return "ETRecord" if start.startswith(b"PK") else "debug buffer"


def _only(files: Sequence[Path], kind: str, folder: Path, option: str) -> Path:
    found = [path for path in files if _kind(path) == kind]
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise DataError(
            f"a dump of ExecuTorch in {option} needs one {kind}",
            where=f"{folder}  {listed}",
            help="give a folder of three files alone: the ETDump, its debug buffer, and the ETRecord of the program",
        )
    return found[0]


def _dump_error(path: Path, cause: object) -> DataError:
    return DataError(
        "a dump of ExecuTorch cannot be read",
        where=[str(path), f"cause  {cause}"],
        help="copy ETDump, debug buffer and ETRecord of one program again",
    )
