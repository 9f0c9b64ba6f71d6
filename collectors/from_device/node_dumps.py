"""What onnxruntime writes of its nodes where it was built with ``onnxruntime_DEBUG_NODE_INPUTS_OUTPUTS=1``.

With ``ORT_DEBUG_NODE_IO_DUMP_DATA_DESTINATION=files`` each tensor is a ``.tensorproto``, a serialized TensorProto. Its
file is named after the tensor with ``_`` for all but letters and digits, perhaps with the provider before it or the
rank behind it; the name inside is whole. With ``sqlite`` they are rows of the table ``Tensors``, one for each tensor
and step, and a step is one run of the session.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import numpy as np
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from quantmedic.collectors.data.arrays import Array, ArrayInfo, Column
from quantmedic.collectors.from_device.parts import fit_together, join_parts
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import read_bytes, require_regular
from quantmedic.engine.reading_limits import ARRAY_BYTES, IMPORTED_LAYERS

TENSOR_FILE = ".tensorproto"
DATABASE = b"SQLite "
#: Steps of SQLite's machine between two looks at whether a query takes too long, and so many of these looks.
_OPERATIONS, _LOOKS = 1_000_000, 50


def tensor_file_column(path: Path) -> Column:
    """The tensor of a ``.tensorproto``, under the name that it holds.

    Raises:
        DataError: It is none, or its values stand in another file.
        LimitError: It is too large.
    """
    name, array = _read_tensor_file(path)
    info = ArrayInfo(path.name, name or path.stem, array.shape, array.dtype)
    return Column(info, lambda wanted: (_again(path, info)[rows] for rows in wanted))


def read_node_database(path: Path) -> tuple[dict[str, Column], list[str]]:
    """Tensors of a database by name, steps one after the other along axis 0; and what was left out, and why.

    Raises:
        DataError: It is damaged, no database of onnxruntime, or holds what is no tensor.
        LimitError: It is too large.
    """
    columns: dict[str, Column] = {}
    notices: list[str] = []
    with _open_database(path) as connection:
        rows = connection.execute("SELECT Name, Step, length(Value) FROM Tensors ORDER BY Name, Step")
        found = [
            (_text(name), _whole_number(step), _whole_number(size)) for name, step, size in _limit_rows(rows, path)
        ]
        steps = sorted({step for _, step, _ in found})
        for name, own in groupby(found, key=lambda row: row[0]):
            parts = [_part(connection, path, name, step, size) for _, step, size in own]
            lacking = sorted(set(steps) - {part.step for part in parts})
            if lacking:
                notices.append(f"{name}: step {lacking[0]} lacks it")
            elif not fit_together([part.shape for part in parts], [part.dtype for part in parts]):
                notices.append(f"{name}: its steps differ in shape or type")
            else:
                columns[name] = _joined_column(path, name, parts)
    return columns, notices


@dataclass(frozen=True)
class _Part:
    """A tensor in one step."""

    step: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def _part(connection: sqlite3.Connection, path: Path, name: str, step: int, size: int) -> _Part:
    ARRAY_BYTES.check(size, f"{path}  {name}")
    array = _read_value(connection, path, name, step)
    return _Part(step, array.shape, array.dtype)


def _joined_column(path: Path, name: str, parts: Sequence[_Part]) -> Column:
    """Arrays of steps one after the other; of values without axes each step is one."""

    def load(k: int) -> Array:
        with _open_database(path) as connection:
            array = _read_value(connection, path, name, parts[k].step)
        if (array.shape, array.dtype) != (parts[k].shape, parts[k].dtype):
            raise _node_dump_error(path, f"{name} has changed while it was read")
        return array

    return join_parts(path.name, name, [part.shape for part in parts], parts[0].dtype, load)


def _read_value(connection: sqlite3.Connection, path: Path, name: str, step: int) -> Array:
    row = connection.execute("SELECT Value FROM Tensors WHERE Name = ? AND Step = ?", (name, step)).fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise _node_dump_error(path, f"{name} of step {step} is no tensor")
    return _parse(row[0], path)[1]


@contextmanager
def _open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A database for reading; nothing in it is run: no view, no virtual table, no query without end."""
    looks = 0

    def has_run_long() -> bool:
        nonlocal looks
        looks += 1
        return looks > _LOOKS

    try:
        require_regular(path)
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(ARRAY_BYTES.in_force, (1 << 31) - 1))
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.set_progress_handler(has_run_long, _OPERATIONS)
            made = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'Tensors' AND type = 'table'")
            if not any(str(sql).upper().startswith("CREATE TABLE") for (sql,) in made):
                raise _node_dump_error(path, "it has no table Tensors")
            yield connection
    except (sqlite3.Error, UnicodeDecodeError, OSError, OverflowError) as error:
        raise _node_dump_error(path, error) from error


def _limit_rows(rows: Iterable[tuple[object, object, object]], path: Path) -> Iterator[tuple[object, object, object]]:
    for count, row in enumerate(rows, 1):
        IMPORTED_LAYERS.check(count, path)
        yield row


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)[:80]


def _whole_number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _read_tensor_file(path: Path) -> tuple[str, Array]:
    try:
        content = read_bytes(path, ARRAY_BYTES)
    except OSError as error:
        raise _node_dump_error(path, error.strerror) from error
    return _parse(content, path)


def _again(path: Path, info: ArrayInfo) -> Array:
    """The values of a file that was described before."""
    array = _read_tensor_file(path)[1]
    if (array.shape, array.dtype) != (info.shape, info.dtype):
        raise _node_dump_error(path, "it has changed while it was read")
    return array


def _parse(content: bytes, path: Path) -> tuple[str, Array]:
    """Name and values of a serialized TensorProto.

    Values that stand in a file of their own are refused: a dump has none, and the file could be any.
    """
    tensor = TensorProto()
    try:
        tensor.ParseFromString(content)
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise _node_dump_error(path, f"the values of {tensor.name} stand in another file")
        return tensor.name, numpy_helper.to_array(tensor)
    except (DecodeError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise _node_dump_error(path, error) from error


def _node_dump_error(path: Path, cause: object) -> DataError:
    return DataError(
        "tensors that onnxruntime dumped cannot be read",
        where=[str(path), f"cause  {cause}"],
        help="dump them again with ORT_DEBUG_NODE_IO_DUMP_DATA_DESTINATION=files, one folder or process per run",
    )
