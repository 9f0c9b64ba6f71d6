"""The container GGUF of llama.cpp: metadata and where each tensor lies, read without reading a tensor.

Whatever the header counts is held against the bytes that are left of the file before anything is made of it. Arrays of
the metadata, such as tokens, are passed over. Models that are split lie in files ``…-00001-of-00003.gguf``.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from quantmedic.collectors.from_checkpoint.gguf.blocks import BLOCKS, TYPES
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import TEXT_BYTES

SUFFIX = ".gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_AGAIN = "download or copy the file again, or convert the model again with llama.cpp"
#: The least bytes that an entry of the metadata and the description of a tensor take.
_LEAST_ENTRY, _LEAST_TENSOR = 13, 32
_MAX_DIMENSIONS = 4
#: Longer names are no names.
_NAME_BYTES = 1 << 16
_STRING, _ARRAY = 8, 9
#: Plain values of the metadata by their number.
_PLAIN: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
Value = int | float | bool | str


def open_gguf_files(path: Path) -> tuple[Mapping[str, Value], tuple[Stored, ...]]:
    """Describe a file, and those beside it that the same model is split into.

    Returns:
        Plain values and strings of the metadata of the first file, by key, and the tensors of all; the type of a tensor
        is as llama.cpp calls it, such as Q4_K.

    Raises:
        ModelError: A file is missing or damaged, of an unknown version, or holds a tensor of an unknown type; or two
            tensors have one name.
        LimitError: A header is larger than what is read whole.
    """
    files = _split_files(path)
    opened = [_read_file(file) for file in files]
    tensors: dict[str, Stored] = {}
    for _, found in opened:
        for tensor in found:
            if tensor.name in tensors:
                raise ModelError(
                    "two tensors have one name",
                    where=[f"tensor  {tensor.name}", str(tensors[tensor.name].path), str(tensor.path)],
                    help=_AGAIN,
                )
            tensors[tensor.name] = tensor
    metadata = opened[0][0]
    _check_split(path, metadata, len(files), len(tensors))
    return metadata, tuple(tensors.values())


def _split_files(path: Path) -> tuple[Path, ...]:
    if not path.is_file():
        raise ModelError("no such file", where=str(path), help="give a .gguf file, of split ones the first")
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return (path,)
    base, _, count = split.groups()
    files = []
    for number in range(1, int(count) + 1):
        files.append(path.with_name(f"{base}-{number:05}-of-{count}{SUFFIX}"))
        if not files[-1].is_file():
            raise ModelError(
                "a file of a split model is missing",
                where=[str(path), f"file  {files[-1].name}"],
                help="download it, too: all files of the model lie in one folder",
            )
    if not files:
        raise ModelError("the name counts 0 files", where=str(path), help="give the file the name that it had")
    return tuple(files)


def _check_split(path: Path, metadata: Mapping[str, Value], files: int, tensors: int) -> None:
    """Refuse files that are not all of one model."""
    counts = {"split.count": files, "split.tensors.count": tensors}
    for key, found in counts.items():
        stated = metadata.get(key)
        if isinstance(stated, int) and stated not in (0, found):
            raise ModelError(
                "the files are not those that the model was split into",
                where=[str(path), f"{key}  {stated}, found {found}"],
                help="give the files the names that llama.cpp wrote, such as model-00001-of-00003.gguf, side by side",
            )


def _read_file(path: Path) -> tuple[dict[str, Value], list[Stored]]:
    try:
        size = path.stat().st_size
        if not size:
            raise ValueError("the file is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _Header(path, mapped, size).describe()
    except (OSError, ValueError) as error:
        raise ModelError("not a readable GGUF file", where=[str(path), f"cause  {error}"], help=_AGAIN) from error


class _Header:
    """Reads a header from its start to its end; what reaches beyond the file raises a ValueError."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path, self._data, self._size, self._place = path, data, size, 0

    def describe(self) -> tuple[dict[str, Value], list[Stored]]:
        """Metadata and tensors."""
        if self._take(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not start with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            is_turned = version and not version & 0xFFFF
            raise ValueError(
                "it is written for big-endian machines" if is_turned else f"its version is {version}, read are 2 and 3"
            )
        tensors, entries = self._number("Q"), self._number("Q")
        self._check_count(entries, _LEAST_ENTRY, "entries of metadata")
        self._check_count(tensors, _LEAST_TENSOR, "tensors")
        metadata: dict[str, Value] = {}
        for _ in range(entries):
            key = self._string(_NAME_BYTES)
            value = self._value(self._number("I"))
            if value is not None:
                metadata[key] = value
        described = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment}, not a power of two")
        start = -(-self._place // alignment) * alignment
        return metadata, [self._with_place(tensor, start) for tensor in described]

    def _take(self, count: int) -> bytes:
        start = self._place
        self._skip(count)
        TEXT_BYTES.check(self._place, f"{self._path}  header")
        return self._data[start : self._place]

    def _skip(self, count: int) -> None:
        if self._place + count > self._size:
            raise ValueError(f"it ends at byte {self._size}, {count} more are announced at byte {self._place}")
        self._place += count

    def _number(self, kind: str) -> int:
        found = struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0]
        return int(found)

    def _check_count(self, count: int, least: int, what: str) -> None:
        if count * least > self._size - self._place:
            raise ValueError(f"{count} {what} are announced at byte {self._place} of {self._size}")

    def _string(self, most: int | None = None) -> str:
        length = self._number("Q")
        if most is not None and length > most:
            raise ValueError(f"a name of {length} bytes at byte {self._place}")
        return self._take(length).decode(errors="replace")

    def _value(self, kind: int) -> Value | None:
        """One value of the metadata; None where it is an array."""
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind not in _PLAIN:
            raise ValueError(f"a value of the unknown kind {kind} at byte {self._place}")
        layout = f"<{_PLAIN[kind]}"
        found: Value = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return found

    def _skip_array(self) -> None:
        kind, count = self._number("I"), self._number("Q")
        if kind in _PLAIN:
            self._skip(count * struct.calcsize(f"<{_PLAIN[kind]}"))
            return
        if kind != _STRING:
            raise ValueError(f"an array of the unknown kind {kind} at byte {self._place}")
        self._check_count(count, 8, "strings")
        for _ in range(count):
            self._skip(self._number("Q"))

    def _tensor(self) -> Stored:
        name = self._string(_NAME_BYTES)
        dimensions = self._number("I")
        if not 0 < dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        number, offset = self._number("I"), self._number("Q")
        if number not in TYPES:
            raise ValueError(f"tensor {name} is of the unknown type {number}")
        return Stored(name, self._path, TYPES[number][0], shape, offset)

    def _with_place(self, tensor: Stored, start: int) -> Stored:
        """The tensor with its place in the file, which holds all of it."""
        size = stored_bytes(tensor.dtype, tensor.shape)
        if not size:
            raise ValueError(f"tensor {tensor.name} has no elements")
        offset = start + tensor.offset
        if offset + size > self._size:
            raise ValueError(f"tensor {tensor.name} takes bytes {offset} to {offset + size}, the file has {self._size}")
        return replace(tensor, offset=offset)


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor.

    Raises:
        ValueError: Its rows are no whole blocks.
    """
    length, size = BLOCKS[kind]
    if shape[-1] % length:
        raise ValueError(f"rows of {shape[-1]} are no whole blocks of {length} ({kind})")
    return prod(shape) // length * size
