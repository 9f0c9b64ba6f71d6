"""Arrays in memory, in .npy and in .npz files: described without reading them, then read some rows at a time."""

import io
import math
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.archives import STEP, open_archive, open_member
from quantmedic.collectors.data.messages import cause_line, shape_text
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import require_regular
from quantmedic.engine.output_files import new_file
from quantmedic.engine.reading_limits import ARRAY_BYTES

#: An array of any type of numbers; its type is checked where it matters.
Array = NDArray[Any]
DType = np.dtype[np.generic]
#: Which rows of an array: from start to stop, or these indexes, ascending. Never none.
Rows = slice | NDArray[np.int64]

#: First bytes of an .npy file.
NPY_MAGIC = b"\x93NUMPY"
_HASH_BLOCK = 1 << 20


@dataclass(frozen=True)
class ArrayInfo:
    """File, name, shape and type of an array, known before a value is read."""

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def where(self) -> tuple[str, str, str]:
        return self.file, self.name, f"{shape_text(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Column:
    """One array, described without reading it; ``blocks`` reads it once, a block for each of the ascending rows.

    ``checksum`` is that of all its bytes, where an archive states it.
    """

    info: ArrayInfo
    blocks: Callable[[Iterable[Rows]], Iterator[Array]]
    checksum: int | None = None

    def load(self) -> Array:
        """The whole array."""
        return next(self.blocks([slice(0, *self.info.shape[:1])]))


class ColumnReader:
    """Reads a column once from front to back, as the samples are asked for: compressed files cannot do otherwise."""

    def __init__(self, column: Column) -> None:
        self._wanted: deque[Rows] = deque()
        self._blocks = column.blocks(self._requests())
        self._next = 0

    def reaches(self, numbers: NDArray[np.int64]) -> bool:
        """The samples lie ahead."""
        return not len(numbers) or int(numbers[0]) >= self._next

    def take(self, numbers: NDArray[np.int64]) -> Array:
        """These rows, ascending, that lie ahead."""
        ascending = np.arange(numbers[0], numbers[-1] + 1)
        together = np.array_equal(numbers, ascending)
        self._wanted.append(slice(int(numbers[0]), int(numbers[-1]) + 1) if together else numbers)
        self._next = int(numbers[-1]) + 1
        return next(self._blocks)

    def _requests(self) -> Iterator[Rows]:
        while self._wanted:
            yield self._wanted.popleft()


def memory_column(name: str, array: Array) -> Column:
    """An array that is in memory."""
    info = ArrayInfo("array", name or "unnamed", array.shape, array.dtype)
    return Column(info, lambda rows: _memory_blocks(array, rows))


def repeated_column(column: Column, samples: int) -> Column:
    """The same array for every sample."""
    info = replace(column.info, shape=(samples, *column.info.shape))

    def blocks(wanted: Iterable[Rows]) -> Iterator[Array]:
        array = column.load()
        for rows in wanted:
            size = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            yield np.broadcast_to(array, (size, *array.shape))

    return Column(info, blocks)


def npy_column(path: Path) -> Column:
    """The array of an .npy file."""
    with open_regular(path) as file:
        shape, fortran, dtype = _npy_header(file, str(path), path.stem)
        info = ArrayInfo(path.name, path.stem, shape, dtype)
        return _mapped_column(path, file.tell(), fortran, info)


def npz_columns(path: Path) -> dict[str, Column]:
    """Arrays of an .npz: those stored plainly are mapped, compressed ones are decompressed block by block."""
    with _damage_reported(path), open_archive(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        columns = {info.filename.removesuffix(".npy"): _member_column(path, archive, info) for info in members}
    if not columns:
        raise DataError(
            "archive holds no arrays",
            where=str(path),
            help="save it with numpy.savez(path, input_name=array)",
        )
    return columns


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to an ``.npz``, whole or not at all.

    Args:
        path: The file.
        arrays: By names other than ``file``, which is an argument of numpy's.

    Raises:
        OSError: It cannot be written.
    """
    with new_file(path) as file:
        # Before numpy 2, its keyword allow_pickle would be stored as one more array.
        np.savez(file, **arrays)  # type: ignore[arg-type]


def array_of_npy(content: bytes, path: str, name: str) -> Array:
    """The array of the bytes of an .npy file; ``path`` and ``name`` are for messages.

    Raises:
        DataError: It is none, is cut off, or holds Python objects.
    """
    with io.BytesIO(content) as file:
        shape, fortran, dtype = _npy_header(file, path, name)
        values = content[file.tell() :]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise _damaged_data(Path(path), f"{name} has another length than its header says")
    return np.frombuffer(values, dtype).reshape(shape, order="F" if fortran else "C")


def as_array(value: object, where: str) -> Array:
    """A value of the user as an array."""
    try:
        return np.asarray(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an object of the user may raise anything
        raise DataError(
            "value cannot be turned into an array", where=[where, cause_line(error)], help="give a numpy array"
        ) from error


def first_bytes(path: Path) -> bytes:
    """The bytes by which the kind of a file is recognized."""
    with open_regular(path) as file:
        return file.read(16)


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """A file that is no pipe and no device, for reading.

    Raises:
        DataError: It cannot be opened or read.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DataError(
            "file cannot be opened",
            where=[str(path), f"cause  {error.strerror}"],
            help="check that it is a file that you may read",
        ) from error


def runs(rows: Rows) -> list[range]:
    """Rows as ranges of neighbours."""
    if isinstance(rows, slice):
        return [range(rows.start, rows.stop)]
    gaps = np.flatnonzero(np.diff(rows) > 1) + 1
    return [range(int(run[0]), int(run[-1]) + 1) for run in np.split(rows, gaps)]


def file_content(paths: Iterable[Path]) -> Iterator[bytes]:
    """The bytes of files, for checksums."""
    for path in paths:
        with _damage_reported(path), open_regular(path) as file:
            while block := file.read(_HASH_BLOCK):
                yield block


def array_content(name: str, array: Array) -> Iterator[bytes]:
    """Name, type, shape and bytes of an array, for checksums."""
    yield _heading(name, array.dtype, array.shape)
    size = max(1, _HASH_BLOCK // max(1, array[:1].nbytes))
    for start in range(0, len(array), size):
        yield array[start : start + size].tobytes()


def column_marks(name: str, column: Column, rows: Iterable[int]) -> Iterator[bytes]:
    """Name, type and shape of an array, and its checksum or these of its rows: what tells it from others."""
    yield _heading(name, column.info.dtype, column.info.shape)
    if column.checksum is not None:
        yield str(column.checksum).encode()
        return
    for block in column.blocks(slice(row, row + 1) for row in rows):
        yield block.tobytes()


def _heading(name: str, dtype: DType, shape: tuple[int, ...]) -> bytes:
    return f"{name}\0{dtype.str}\0{shape}\0".encode()


def objects_refused(info: ArrayInfo) -> DataError:
    """The error for an array of Python objects."""
    return DataError(
        "array holds Python objects, which are refused: reading them could run any code",
        where="  ".join(info.where),
        help="save it with a numeric type; samples of different length go into one .npy file each",
    )


def _memory_blocks(array: Array, wanted: Iterable[Rows]) -> Iterator[Array]:
    return (array[rows] if array.ndim else array for rows in wanted)


def _member_column(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Column:
    name, crc = member.filename.removesuffix(".npy"), member.CRC
    with open_member(archive, member) as file:
        shape, fortran, dtype = _npy_header(file, str(path), name)
        header = file.tell()
    info = ArrayInfo(path.name, name, shape, dtype)
    if header + math.prod(shape) * dtype.itemsize != member.file_size:
        raise _damaged_data(path, f"{name} has another length than its header says")
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        with path.open("rb") as whole:
            whole.seek(member.header_offset + 26)
            extra = int.from_bytes(whole.read(2), "little") + int.from_bytes(whole.read(2), "little")
        return replace(_mapped_column(path, member.header_offset + 30 + extra + header, fortran, info), checksum=crc)
    return Column(info, lambda rows: _decompressed_blocks(path, member.filename, info, fortran, rows), crc)


def _mapped_column(path: Path, offset: int, fortran: bool, info: ArrayInfo) -> Column:
    if min(info.shape, default=0) < 0 or offset + math.prod(info.shape) * info.dtype.itemsize > path.stat().st_size:
        raise _damaged_data(path, f"{info.name} has another length than its header says")
    if not info.shape or 0 in info.shape:
        with _damage_reported(path):
            few = np.fromfile(path, info.dtype, math.prod(info.shape), offset=offset).reshape(info.shape)
        return Column(info, lambda rows: _memory_blocks(few, rows))

    def map_file() -> Array:
        return np.memmap(path, info.dtype, "r", offset, info.shape, "F" if fortran else "C")

    def copy_rows(rows: Rows) -> Array:
        _check_block(rows, info, path)
        with _damage_reported(path):
            return np.array(map_file()[rows])

    with _damage_reported(path):
        map_file()
    # Copies, because rows of an archive are not aligned and a file may change under a running session; mapped anew
    # for each, because pages that were read count as memory of this process as long as they are mapped.
    return Column(info, lambda wanted: map(copy_rows, wanted))


def _decompressed_blocks(
    path: Path, member: str, info: ArrayInfo, fortran: bool, wanted: Iterable[Rows]
) -> Iterator[Array]:
    with _damage_reported(path), open_archive(path) as archive, archive.open(member) as file:
        if fortran or not info.shape or 0 in info.shape:
            ARRAY_BYTES.check(math.prod(info.shape) * info.dtype.itemsize, f"{path}  {info.name}")
            yield from _memory_blocks(np.lib.format.read_array(file, allow_pickle=False), wanted)
            return
        _npy_header(file, str(path), info.name)
        begin, width = file.tell(), math.prod(info.shape[1:]) * info.dtype.itemsize
        for rows in wanted:
            ranges = runs(rows)
            _check_block(rows, info, path)
            block = np.empty((sum(map(len, ranges)), *info.shape[1:]), info.dtype)
            filled = 0
            for run in ranges:
                _skip_to(file, begin + run.start * width)
                _read_into(file, block[filled : filled + len(run)])
                filled += len(run)
            yield block


def _check_block(rows: Rows, info: ArrayInfo, path: Path) -> None:
    """Refuse what takes too much memory at once: a file of kilobytes may declare samples of gigabytes."""
    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    ARRAY_BYTES.check(count * math.prod(info.shape[1:]) * info.dtype.itemsize, f"{path}  {info.name}")


def _skip_to(file: IO[bytes], position: int) -> None:
    """Decompress what lies before without keeping it; in steps, because `zipfile` holds all of one step in memory."""
    for step in range(file.tell() + STEP, position, STEP):
        file.seek(step)
    file.seek(position)


def _read_into(file: IO[bytes], block: Array) -> None:
    view = memoryview(block.reshape(-1).view(np.uint8).data)
    while view:
        data = file.read(min(len(view), STEP))
        if not data:
            raise EOFError("the array ends early")
        view[: len(data)] = data
        view = view[len(data) :]


def _npy_header(file: IO[bytes], path: str, name: str) -> tuple[tuple[int, ...], bool, DType]:
    """Shape, column-major flag and type of the array that starts here.

    Raises:
        DataError: No array starts here, or it holds Python objects, which only pickle could read.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, TokenError) as error:
        raise DataError(
            "array cannot be read",
            where=[f"{path}  {name}", f"cause  {error}"],
            help="save it again with numpy.save or numpy.savez",
        ) from error
    if dtype.hasobject:
        raise objects_refused(ArrayInfo(path, name, shape, dtype))
    return shape, fortran, dtype


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Context in which a damaged archive raises `DataError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            "file is gone", where=str(path), help="it was there when the run began: put it back, and is its disk there?"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise _damaged_data(path, error) from error
    except (NotImplementedError, RuntimeError) as error:
        raise DataError(
            "the archive is encrypted, or compressed in an unknown way",
            where=[str(path), f"cause  {error}"],
            help="save it with numpy.savez or numpy.savez_compressed",
        ) from error


def _damaged_data(path: Path, error: object) -> DataError:
    return DataError(
        "file is damaged or was cut off",
        where=[str(path), f"cause  {error}"],
        help="copy the file again, or create it anew",
    )
