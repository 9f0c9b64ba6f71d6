"""Checkpoints in safetensors files: what they hold, read a slice of one tensor at a time.

The library checks every file. Its numpy reader reads the whole tensor for a slice across rows, so the bytes come from a
memory map that is let go after each slice.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from os.path import isfile
from pathlib import Path
from typing import cast

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.layers.group_sums import from_half
from quantmedic.engine.errors import ModelError
from quantmedic.engine.input_files import require_regular
from quantmedic.engine.json_text import read_json
from quantmedic.engine.reading_limits import TEXT_BYTES, LimitError

Values = NDArray[np.float32]
#: ``safetensors.safe_open``: raises where a file is not sound.
_SafeOpen = Callable[..., AbstractContextManager[object]]
#: Of the first axis: a span of rows, or their places.
Rows = slice | NDArray[np.int64]

INDEX = "model.safetensors.index.json"
SAFETENSORS, INDEX_ENDING = ".safetensors", ".index.json"
#: Where quantization settings stand: the key in ``config.json``, or files of their own that older tools wrote.
_SETTINGS = ("config.json", "quantize_config.json", "quant_config.json")
#: The file of a model that has no shards.
SINGLE = "model.safetensors"
#: Where NVIDIA ModelOpt writes them.
_MODELOPT = "hf_quant_config.json"
#: Files of networks, which `weights` does not read.
_NETWORKS = (".onnx", ".tflite", ".xml")
#: Models that are files, by which a folder is not called.
_FILES = (".gguf", *_NETWORKS)
_CORE_ML = ".mlpackage"
_FROM_CORE_ML = (
    "save the weights of both as safetensors, by the same names: decompress_weights and get_weights_metadata of "
    "coremltools.optimize.coreml give those of the compressed one"
)
#: Bytes of each tensor that tell checkpoints of one architecture apart.
_FINGERPRINT = 4096
_HALF_MAGNITUDE, _HALF_INFINITY = np.uint16(0x7FFF), 0x7C00
#: Fewer numbers are not worth a compiled loop.
_MANY = 1 << 14
#: Numpy types of safetensors' names.
_TYPES: Mapping[str, DTypeLike] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
FLOATS = ("F64", "F32", "F16", "BF16")
EIGHT_BIT_FLOATS = ("F8_E4M3", "F8_E5M2")
INTEGERS = ("I8", "U8", "I16", "I32", "I64")


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, described without reading it."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(_TYPES[self.dtype]).itemsize

    @property
    def rows(self) -> int:
        """Length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    def load(self, rows: Rows | None = None, columns: slice | None = None) -> Array:
        """A copy of some rows of the first axis and columns of the second, as stored; raises as ``view``."""
        return np.array(self.view(rows, columns))

    def floats(self, rows: Rows | None = None, columns: slice | None = None) -> Values:
        """The same as float32."""
        seen = self.view(rows, columns)
        return np.array(seen) if self.dtype == "F32" else as_floats(seen, self.dtype)

    def view(self, rows: Rows | None, columns: slice | None) -> Array:
        """What ``load`` copies, where it lies: the caller lets go of it at once, and the memory map with it.

        Raises:
            ModelError: The file has become shorter since it was opened.
        """
        if not self.size:
            return np.empty(self.shape, _TYPES[self.dtype])
        try:
            mapped = np.memmap(self.path, _TYPES[self.dtype], "r", self.offset, self.shape or (1,))
        except (OSError, ValueError) as error:
            raise _damaged_file(self.path, error) from error
        part = mapped if rows is None else mapped[rows]
        part = part if columns is None else part[:, columns]
        return part if self.shape else part.reshape(())


@dataclass(frozen=True)
class Checkpoint:
    """A float or quantized model as one file or a folder of shards."""

    path: Path
    tensors: Mapping[str, Stored]
    config: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def fingerprint(self) -> str:
        """SHA-256 of names, types, shapes and the first bytes of all tensors: the files themselves may be terabytes."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            digest.update(f"{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
            with tensor.path.open("rb") as file:
                file.seek(tensor.offset)
                digest.update(file.read(min(_FINGERPRINT, tensor.nbytes)))
        return digest.hexdigest()


def open_checkpoint(path: Path) -> Checkpoint:
    """Describe a ``.safetensors`` file, or the shards of a folder; no tensor is read.

    Raises:
        ModelError: The library is missing, a file is missing or damaged, or the index names one outside of its folder.
    """
    safe_open = _safetensors_reader()
    tensors: dict[str, Stored] = {}
    for file in _checkpoint_files(path):
        for tensor in _described_tensors(file, safe_open):
            if tensor.name in tensors:
                raise ModelError(
                    "two files hold a tensor of the same name",
                    where=[tensor.name, str(tensors[tensor.name].path), str(file)],
                    help=f"remove the file that does not belong to the model, or name the shards in {INDEX}",
                )
            tensors[tensor.name] = tensor
    if not tensors:
        raise ModelError("the checkpoint holds no tensors", where=str(path), help="check that it is the right folder")
    folder = path if path.is_dir() else path.parent
    config = _json_object(folder / _SETTINGS[0]) if (folder / _SETTINGS[0]).is_file() else {}
    return Checkpoint(path, tensors, config, _quantization_settings(folder, config))


def as_floats(values: Array, dtype: str) -> Values:
    """Stored numbers as float32."""
    if dtype in EIGHT_BIT_FLOATS:
        return np.take(_eight_bit_table(dtype), values.view(np.uint8))
    if dtype == "F16" and values.size >= _MANY:
        bits = np.ascontiguousarray(values).view(np.uint16)
        if (bits & _HALF_MAGNITUDE).max() < _HALF_INFINITY:
            return from_half(bits)
    return np.ascontiguousarray(values, np.float32)


def _damaged_file(path: Path, error: object) -> ModelError:
    """The error for a file that cannot be read."""
    return ModelError(
        "not a readable safetensors file",
        where=[str(path), f"cause  {error}"],
        help="download or copy it again; with Git LFS it may be only a pointer",
    )


def natural_order(name: str) -> list[tuple[int, str]]:
    """Key that sorts layer 10 behind layer 2."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


@cache
def _eight_bit_table(dtype: str) -> Values:
    """Value of each byte: looking them up is five times as fast as converting them."""
    return np.arange(256, dtype=np.uint8).view(_TYPES[dtype]).astype(np.float32)


def _safetensors_reader() -> _SafeOpen:
    try:
        from safetensors import safe_open  # an optional package
    except ImportError as error:
        raise ModelError(
            "the package safetensors is not installed",
            help="pip install 'quantmedic[weights]'",
        ) from error
    return cast("_SafeOpen", safe_open)


def _checkpoint_files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        if path.suffix == SAFETENSORS:
            return (path,)
        if path.name.endswith(INDEX_ENDING):
            raise ModelError("the checkpoint is an index", where=str(path), help=f"give {path.parent}")
        told = "give a .safetensors file or a folder"
        if path.suffix in _NETWORKS:
            told = f"{told}; two networks are compared by: quantmedic diagnose FLOAT QUANT"
        raise ModelError("the checkpoint is no .safetensors file", where=str(path), help=told)
    if not path.is_dir():
        raise ModelError("no such checkpoint", where=str(path), help="give a .safetensors file or a folder with shards")
    if path.suffix == _CORE_ML:
        raise ModelError("packages of Core ML are not read", where=str(path), help=_FROM_CORE_ML)
    if (path / INDEX).is_file():
        return _shards_of_index(path / INDEX)
    found = tuple(sorted(path.glob("*.safetensors")))
    if found:
        return found
    pickled = any(path.glob("*.bin")) or any(path.glob("*.pt*"))
    why = "pickled weights could run any code and are not read; save them as safetensors" if pickled else None
    single = next((suffix for suffix in _FILES if any(path.glob(f"*{suffix}"))), None)
    why = f"give the {single} file itself" if single else why
    raise ModelError(
        "the folder holds no .safetensors file",
        where=str(path),
        help=why or "give the folder with the weights",
    )


def _shards_of_index(index: Path) -> tuple[Path, ...]:
    """Shards that an index names, which must lie beside it."""
    weight_map = _json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(
            "the index does not name the files of tensors",
            where=str(index),
            help="it needs a weight_map; write it again with save_pretrained",
        )
    files = []
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            raise ModelError(
                "the index names a file outside of its folder",
                where=[str(index), f"file  {name}"],
                help="shards must lie beside the index; do not trust this checkpoint",
            )
        if not isfile(index.parent / name):  # unlike Path's, it takes names of any length
            raise _missing_shard(index, name)
        files.append(index.parent / name)
    return tuple(files)


def _missing_shard(index: Path, name: str) -> ModelError:
    """Of a download that is not whole; or of an older index, which a model in one file was written beside."""
    where = [str(index), f"file  {name}"]
    if not isfile(index.parent / SINGLE):
        return ModelError("a shard is missing", where=where, help="download it, too")
    return ModelError(
        f"the index names a file that is not there, and {SINGLE} lies beside it",
        where=where,
        help=f"if the model was written to {SINGLE}, the index is an older one's: remove it; else download the shard",
    )


def _described_tensors(path: Path, safe_open: _SafeOpen) -> Iterable[Stored]:
    """Tensors of one file, which the library has found to be sound."""
    try:
        require_regular(path)
        with safe_open(str(path), framework="numpy"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            # The library has looked at it, but allows more than fits into memory as objects of Python.
            TEXT_BYTES.check(length, f"{path}  header")
            header = json.loads(file.read(length))
    except LimitError:
        raise
    except Exception as error:  # The library raises an exception type of its own, and OSError.
        raise _damaged_file(path, error) from error
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _TYPES:
            raise ModelError(
                "a tensor is of an unknown type",
                where=[str(path), f"tensor  {name}", f"type  {entry['dtype']}"],
                help=f"known are {', '.join(_TYPES)}",
            )
        yield Stored(name, path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])


def _quantization_settings(folder: Path, config: Mapping[str, object]) -> Mapping[str, object]:
    """What the tool that quantized has written down; empty where it wrote nothing."""
    for key in ("quantization_config", "compression_config"):
        declared = config.get(key)
        if isinstance(declared, dict):
            return declared
    for name in _SETTINGS[1:]:
        if (folder / name).is_file():
            return _json_object(folder / name)
    if (folder / _MODELOPT).is_file():
        found = _json_object(folder / _MODELOPT).get("quantization")
        return {"quant_method": "modelopt", **(found if isinstance(found, dict) else {})}
    return {}


def _json_object(path: Path) -> dict[str, object]:
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise ModelError(
            "not a readable JSON file", where=[str(path), f"cause  {error}"], help="download or write it again"
        ) from error
    return found
