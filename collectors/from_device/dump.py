"""Dumps of tensors, as devices and their tools leave them: described without reading them, then read in blocks.

A dump is a folder with one ``.npy`` per tensor, an ``.npz``, a folder with one subfolder per sample (``Result_0``,
``Result_1`` …, as qnn-net-run and snpe-net-run write them) of ``.raw`` or ``.npy`` files, outputs that Polygraphy saved
as JSON, or arrays in memory.
"""

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import (
    NPY_MAGIC,
    Array,
    ArrayInfo,
    Column,
    Rows,
    array_of_npy,
    as_array,
    first_bytes,
    memory_column,
    npy_column,
    npz_columns,
    open_regular,
)
from quantmedic.collectors.data.batches import numbers_of
from quantmedic.collectors.data.messages import missing_path_error, shape_text
from quantmedic.collectors.measure.device_tensors import DUMP_OPTION as OPTION
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import leads_out
from quantmedic.engine.json_text import read_json
from quantmedic.engine.reading_limits import ARRAY_BYTES, IMPORTED_LAYERS, SAMPLES

#: A folder of one sample: ``Result_0``, ``sample-12``, ``3``.
_SAMPLE = re.compile(r"(?:[A-Za-z_.\- ]*[_.\- ])?(\d{1,9})")
#: Folders within folders that names of tensors with ``/`` in them make.
_DEPTH = 16
_RAW, _NPY = ".raw", ".npy"
_ENDINGS = (_RAW, _NPY)
#: Names that a line lists.
_LISTED = 6
_HELP = (
    "give a folder with one .npy per tensor, or another form of dump; quantmedic explain device-tensors lists them all"
)


@dataclass(frozen=True)
class DumpedTensor:
    """What the device computed of one tensor.

    Attributes:
        name: Its name in the dump: of files their path inside the folder, without its ending.
        column: Its values, samples along axis 0; of ``raw`` ones the bytes of each sample, ``[samples, bytes]``.
        raw: Type and shape are not known: the file holds nothing but values.
    """

    name: str
    column: Column
    raw: bool = False

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.column.info.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sides of a sample; its bytes where it is raw."""
        return self.column.info.shape[1:]


@dataclass(frozen=True)
class Dump:
    """All tensors of a dump.

    Attributes:
        origin: Name of the file or folder, without the folder that it is in.
        tensors: Those that can be read.
        notices: What of it cannot be read, and why.
    """

    origin: str
    tensors: Sequence[DumpedTensor]
    notices: Sequence[str] = ()


def open_dump(source: object) -> Dump:
    """Find the tensors of a dump; no value is read.

    Args:
        source: Path of a folder, an ``.npz``, an ``.npy`` or a JSON of Polygraphy, or a mapping of names to arrays.

    Raises:
        DataError: There is none, it is of an unknown kind, holds no tensor, is damaged, or leads out of its folder.
    """
    return _leave_out_others(_find_tensors(source))


def _find_tensors(source: object) -> Dump:
    if isinstance(source, Mapping):
        arrays = {str(name): as_array(value, OPTION) for name, value in source.items()}
        return _dump_of("arrays", {name: memory_column(name, array) for name, array in arrays.items()})
    if not isinstance(source, str | Path):
        raise DataError(f"{OPTION} is neither a path nor arrays by name", where=type(source).__name__, help=_HELP)
    path = Path(source).expanduser()
    if not path.exists():
        raise missing_path_error(path, f"file or folder of {OPTION}", otherwise="")
    if path.is_dir():
        return _open_folder(path)
    start = first_bytes(path)
    if start.startswith(b"PK"):
        return _dump_of(path.name, npz_columns(path))
    if start.startswith(NPY_MAGIC):
        return _dump_of(path.name, {path.stem: npy_column(path)})
    if start.lstrip()[:1] == b"{":
        known, notices = _read_polygraphy(path)
        return _dump_of(path.name, {name: memory_column(name, array) for name, array in known.items()}, notices)
    raise DataError(f"the file of {OPTION} is of a kind that is not known", where=str(path), help=_HELP)


def _dump_of(origin: str, columns: Mapping[str, Column], notices: Sequence[str] = ()) -> Dump:
    return Dump(origin, [DumpedTensor(name, column) for name, column in columns.items()], list(notices))


def _leave_out_others(dump: Dump) -> Dump:
    """The dump without what holds no samples of numbers."""
    found, others, notices = [], [], list(dump.notices)
    for tensor in dump.tensors:
        info = tensor.column.info
        if info.dtype.kind not in "fiu" or not info.shape or 0 in info.shape:
            others.append(f"{tensor.name} {shape_text(info.shape)} {info.dtype}")
        else:
            found.append(tensor)
    if others:
        notices.append(f"no array of numbers for samples: {list_names(others)}")
    if not found:
        raise DataError(f"{OPTION} holds no tensors", where=[dump.origin, *notices[:3]], help=_HELP)
    return Dump(dump.origin, found, notices)


def list_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _open_folder(folder: Path) -> Dump:
    name = folder.resolve().name
    own = _entries(folder, folder)
    samples = [entry for entry in own if entry.is_dir() and _SAMPLE.fullmatch(entry.name)]
    if samples and not any(entry.is_file() and Path(entry.name).suffix in _ENDINGS for entry in own):
        return _open_samples(name, folder, _sort_samples(samples))
    files = dict(_files(folder, folder))
    raw = [found for found in files if found.endswith(_RAW)]
    notices = [f"{found}: a .raw is one sample, and stands in a folder of that sample (Result_0)" for found in raw]
    arrays = {found.removesuffix(_NPY): npy_column(path) for found, path in files.items() if found.endswith(_NPY)}
    return _dump_of(name, arrays, notices)


def _sort_samples(folders: Iterable["os.DirEntry[str]"]) -> list[Path]:
    """Folders of samples by their numbers.

    Raises:
        DataError: A number is missing, or two have one: samples would be held against others.
    """
    found: dict[int, Path] = {}
    for entry in folders:
        match = _SAMPLE.fullmatch(entry.name)
        number = int(match[1]) if match is not None else 0
        if number in found:
            raise DataError(
                f"two folders of {OPTION} hold one sample",
                where=[str(found[number]), entry.path],
                help="leave one folder for each sample",
            )
        found[number] = Path(entry.path)
    SAMPLES.check(len(found), OPTION)
    first = min(found)
    start = min(first, 1)
    missing = next((k for k in range(start, start + len(found)) if k not in found), None)
    if missing is not None:
        raise DataError(
            f"the folder of a sample is missing in {OPTION}",
            where=f"{found[first].parent}  {len(found)} folders up to {max(found)}, none for {missing}",
            help="dump the samples in the order of the evaluation data, numbered from 0 or 1 without gaps",
        )
    return [found[number] for number in sorted(found)]


def _open_samples(name: str, root: Path, folders: Sequence[Path]) -> Dump:
    contents = [dict(_files(folder, root)) for folder in folders]
    tensors: list[DumpedTensor] = []
    notices: list[str] = []
    for file in dict.fromkeys(file for content in contents for file in content):
        lacking = next((k for k, content in enumerate(contents) if file not in content), None)
        if lacking is not None:
            notices.append(f"{file}: {folders[lacking].name} does not hold it")
            continue
        paths = [content[file] for content in contents]
        sizes = [path.stat().st_size for path in paths]
        other = next((k for k, size in enumerate(sizes) if size != sizes[0]), None)
        if other is not None:
            sides = f"{sizes[0]} bytes in {folders[0].name}, {sizes[other]} in {folders[other].name}"
            notices.append(f"{file}: its samples differ in size, {sides}")
            continue
        if file.endswith(_RAW):
            tensors.append(DumpedTensor(file.removesuffix(_RAW), _raw_column(file, paths, sizes[0]), raw=True))
        else:
            tensors.append(DumpedTensor(file.removesuffix(_NPY), _array_samples(file, paths)))
    return Dump(name, tensors, notices)


def _raw_column(file: str, paths: Sequence[Path], size: int) -> Column:
    """The bytes of files of one size, a row for each."""
    info = ArrayInfo(file, file, (len(paths), size), np.dtype(np.uint8))

    def load(path: Path) -> Array:
        with open_regular(path) as stream:
            content = stream.read(size + 1)
        if len(content) != size:
            raise _change_error(path, f"{len(content)} bytes where there were {size}")
        return np.frombuffer(content, np.uint8)

    return _column_of_files(info, paths, load)


def _array_samples(file: str, paths: Sequence[Path]) -> Column:
    """Arrays of one shape and type, a row for each file."""
    first = npy_column(paths[0]).info
    info = ArrayInfo(file, file, (len(paths), *first.shape), first.dtype)

    def load(path: Path) -> Array:
        column = npy_column(path)
        if (column.info.shape, column.info.dtype) != (first.shape, first.dtype):
            raise _change_error(path, f"{'  '.join(column.info.where[2:])} where the first sample has {first.where[2]}")
        return column.load()

    return _column_of_files(info, paths, load)


def _column_of_files(info: ArrayInfo, paths: Sequence[Path], load: Callable[[Path], Array]) -> Column:
    width = int(np.prod(info.shape[1:], dtype=object)) * info.dtype.itemsize

    def blocks(wanted: Iterable[Rows]) -> Iterator[Array]:
        for rows in wanted:
            numbers = numbers_of(rows)
            ARRAY_BYTES.check(len(numbers) * width, info.file)
            yield np.stack([load(paths[k]) for k in numbers.tolist()])

    return Column(info, blocks)


def _change_error(path: Path, cause: str) -> DataError:
    return DataError(
        f"samples of one tensor in {OPTION} differ",
        where=[str(path), f"cause  {cause}"],
        help="dump all samples with one model and the same options",
    )


def _entries(folder: Path, root: Path) -> list["os.DirEntry[str]"]:
    """What a folder holds, by name; links that lead out of the dump, or nowhere, are refused."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            "folder cannot be read", where=[str(folder), f"cause  {error.strerror}"], help="check its permissions"
        ) from error
    IMPORTED_LAYERS.check(len(entries), folder)
    for entry in entries:
        if entry.is_symlink() and (leads_out(entry.path, root) or not os.path.exists(entry.path)):
            raise DataError(
                f"a link in {OPTION} leads out of its folder, or nowhere",
                where=entry.path,
                help="put the file itself there",
            )
    return entries


def _files(folder: Path, root: Path, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Path]]:
    """Files of values by their path inside of a folder, of subfolders too: names with ``/`` in them make these."""
    for entry in _entries(folder, root):
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if depth < _DEPTH:
                yield from _files(Path(entry.path), root, f"{name}/", depth + 1)
        elif entry.is_file() and Path(entry.name).suffix in _ENDINGS:
            yield name, Path(entry.path)


# --- outputs of Polygraphy -------------------------------------------------------------------------------------------


def _read_polygraphy(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Arrays by name, iterations one after the other along axis 0, of the first runner; and what was left out.

    ``polygraphy run --save-outputs`` writes, with an entry for each iteration and a list of them for each runner,
    ``{"lst": [[runner, [{"outputs": {name: {"values": {"array": BASE64}}}}, …]], …]}``. Else the file is refused.

    Raises:
        DataError: The file is not of this form, or an array in it is damaged.
        LimitError: It is too large.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise _unreadable_polygraphy(path, error) from error
    runs = content.get("lst") if isinstance(content, Mapping) else None
    if not isinstance(runs, Sequence) or not runs or not all(_is_run(run) for run in runs):
        raise _unreadable_polygraphy(path, "it holds no results of runners")
    runner, iterations = runs[0]
    notices = [f"of {len(runs)} runners the first was read, {runner}"] if len(runs) > 1 else []
    found: dict[str, list[Array]] = {}
    for iteration in iterations:
        for name, value in iteration["outputs"].items():
            found.setdefault(name, []).append(_array_of_json(value, path, name))
    arrays: dict[str, Array] = {}
    for name, parts in found.items():
        if len(parts) != len(iterations) or len({(part.shape[1:], part.dtype) for part in parts}) > 1:
            notices.append(f"{name}: its iterations differ")
        elif all(part.ndim for part in parts):
            arrays[name] = np.concatenate(parts)
    return arrays, notices


def _is_run(run: object) -> bool:
    """Name of a runner, and what it returned in each iteration."""
    if not (isinstance(run, Sequence) and len(run) == 2 and isinstance(run[0], str) and isinstance(run[1], list)):
        return False
    return all(isinstance(each, Mapping) and isinstance(each.get("outputs"), Mapping) for each in run[1])


def _array_of_json(value: object, path: Path, name: str) -> Array:
    """An array, or one that stands under ``values`` as newer versions write it."""
    inner = value.get("values", value) if isinstance(value, Mapping) else None
    text = inner.get("array") if isinstance(inner, Mapping) else None
    if not isinstance(text, str):
        raise _unreadable_polygraphy(path, f"{name} is no array of numpy")
    try:
        return array_of_npy(b64decode(text.encode(), validate=True), str(path), name)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise _unreadable_polygraphy(path, f"{name}: {error}") from error


def _unreadable_polygraphy(path: Path, cause: object) -> DataError:
    return DataError(
        f"the JSON of {OPTION} cannot be read as outputs of Polygraphy",
        where=[str(path), f"cause  {cause}"],
        help="write it with polygraphy run … --save-outputs, or save the tensors with numpy.savez",
    )
