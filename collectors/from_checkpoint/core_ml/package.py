"""Packages of Core ML (``.mlpackage``): float weights, and those that coremltools compressed, read without running.

A package is a folder with ``Manifest.json``, which names the model, and the file of weights that the model's program
names. In that file a description of 64 bytes stands before each tensor. Files outside of the package are not read.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.core_ml.decompression import Decompressed, Decompressor
from quantmedic.collectors.from_checkpoint.core_ml.program import TYPES, Operation, Value, as_array, read_operations
from quantmedic.collectors.from_checkpoint.packed.packed_layer import Block, PackedLayer, Reading, even_groups
from quantmedic.collectors.from_checkpoint.safetensors_file import FLOATS, Checkpoint, Stored, Values
from quantmedic.engine import input_files
from quantmedic.engine.errors import ModelError
from quantmedic.engine.json_text import read_json
from quantmedic.engine.reading_limits import ONNX_BYTES

SUFFIX = ".mlpackage"
_AGAIN = "copy the whole package again, or save it again with coremltools"
#: What coremltools adds to the name of a weight that it compresses or casts.
_ADDED = re.compile(r"(_quantized|_palettized|_sparsified|_to_fp16|_cast_fp16)+$")
#: Names for what is stored of one compressed weight, which are no weights by themselves.
_PARTS = ("weight", "weight_scale", "weight_zero_point", "weight_shape", "scales", "qzeros", "scale", "zero_point")
_SENTINEL, _DESCRIPTION = 0xDEADBEEF, struct.Struct("<IIQQ")
_PLACE = "@model_path/"


@dataclass(frozen=True)
class _Package:
    """The files of a package."""

    path: Path
    model: Path

    def place_of(self, name: str, value: Value) -> Stored:
        """Where a value is stored in a file of the package.

        Raises:
            ValueError: Its file is missing or outside, or holds something else at that place.
        """
        if value.file is None or value.kind not in TYPES:
            raise ValueError("a value of an unknown kind")
        file = self.model.parent / value.file.removeprefix(_PLACE)
        if input_files.leads_out(file, self.path):
            raise ValueError(f"{value.file} lies outside of the package")
        if not file.is_file():
            raise ValueError(f"{value.file} is missing")
        with file.open("rb") as opened:
            opened.seek(min(value.offset, file.stat().st_size))
            head = opened.read(_DESCRIPTION.size)
        if len(head) < _DESCRIPTION.size:
            raise ValueError(f"{value.file} is cut off at byte {value.offset}")
        mark, _, size, offset = _DESCRIPTION.unpack(head)
        needed = -(-value.size * TYPES[value.kind][2] // 8)
        if mark != _SENTINEL or size != needed or offset + size > file.stat().st_size:
            raise ValueError(f"{value.file} holds no tensor of {needed} bytes at byte {value.offset}, or is cut off")
        kind, _, bits = TYPES[value.kind]
        return Stored(name, file, kind, value.shape, offset) if bits >= 8 else Stored(name, file, "U8", (size,), offset)

    def load(self, value: Value) -> Array:
        """A value, from wherever it stands.

        Raises:
            ValueError: It cannot be read.
        """
        if value.file is None:
            return value.inline()
        stored = self.place_of("", value)
        return as_array(stored.load().tobytes(), value.kind, value.shape)


def is_core_ml(path: Path) -> bool:
    """The path is a package of Core ML."""
    return path.is_dir() and (path.suffix == SUFFIX or (path / "Manifest.json").is_file())


def open_core_ml(path: Path) -> tuple[Checkpoint, dict[str, PackedLayer], dict[str, str]]:
    """Weights of a package: those stored as floats, compressed layers by name, and why others cannot be read.

    Raises:
        ModelError: The package is damaged, or holds no program, such as an older neural network.
    """
    package = _Package(path, _model_file(path))
    try:
        operations = read_operations(input_files.read_bytes(package.model, ONNX_BYTES))
    except (ValueError, OSError) as error:
        raise ModelError(
            "not a readable model of Core ML",
            where=[str(package.model), f"cause  {error}"],
            help=f"{_AGAIN}; models that are no ML program are converted again with convert_to='mlprogram'",
        ) from error
    written = {name: own for own in operations for name in own.outputs}
    tensors: dict[str, Stored] = {}
    layers: dict[str, PackedLayer] = {}
    refused: dict[str, str] = {}
    maker = Decompressor(written, package.load)
    read = {given for own in operations for given in own.operands.values() if isinstance(given, str)}
    inner = {given for own in operations if _is_step(own) for given in own.operands.values() if isinstance(given, str)}
    for operation in operations:
        for name in operation.outputs[-1:]:
            if name not in read or name in inner:
                continue
            if operation.kind == "const":
                _add_floats(tensors, name, operation, package)
            elif _is_step(operation):
                _add_layer(tensors, layers, refused, name, maker, package)
    if not tensors and not refused:
        raise ModelError("the package holds no weights", where=str(path), help=_AGAIN)
    return Checkpoint(path, (package.model,), tensors), layers, refused


def _model_file(path: Path) -> Path:
    """The model that the manifest names."""
    try:
        manifest = read_json(path / "Manifest.json")
        root = manifest["rootModelIdentifier"] if isinstance(manifest, dict) else None
        entries = manifest["itemInfoEntries"] if isinstance(manifest, dict) else None
        place = entries[root]["path"] if isinstance(entries, dict) and isinstance(root, str) else None
        if not isinstance(place, str):
            raise ValueError("it names no model")
        found = path / "Data" / place
        if input_files.leads_out(found, path):
            raise ValueError(f"{place} lies outside of the package")
        if not found.is_file():
            raise ValueError(f"{place} is missing")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(
            "the package of Core ML is damaged", where=[str(path / "Manifest.json"), f"cause  {error}"], help=_AGAIN
        ) from error
    return found


def _is_step(operation: Operation) -> bool:
    return operation.kind.startswith("constexpr_")


def _tensor_name(name: str, rank: int) -> str:
    """As torch calls it: ``fc.weight`` for ``fc_weight_palettized``."""
    plain = _ADDED.sub("", name)
    for part in ("weight", "bias"):
        if plain.endswith(f"_{part}"):
            return f"{plain.removesuffix(f'_{part}')}.{part}"
    return f"{plain}.weight" if rank > 1 else plain


def _add_floats(tensors: dict[str, Stored], name: str, operation: Operation, package: _Package) -> None:
    value = operation.operands.get("val")
    if not isinstance(value, Value) or value.file is None or TYPES.get(value.kind, ("",))[0] not in FLOATS:
        return
    own = _tensor_name(name, len(value.shape))
    try:
        tensors[own] = package.place_of(own, value)
    except (ValueError, OSError) as error:
        raise _package_error(package, name, error) from error


def _package_error(package: _Package, name: str, error: object) -> ModelError:
    where = [str(package.path), f"weight  {name}", f"cause  {error}"]
    return ModelError("the package of Core ML is damaged", where=where, help=_AGAIN)


def _add_layer(
    tensors: dict[str, Stored],
    layers: dict[str, PackedLayer],
    refused: dict[str, str],
    name: str,
    maker: Decompressor,
    package: _Package,
) -> None:
    """One compressed weight; what is stored of it stands among the tensors, for their size and fingerprint."""
    base = _tensor_name(name, 2).removesuffix(".weight")
    try:
        weight = maker.decompress(name)
        if weight.values.ndim < 2:
            raise ValueError(f"a tensor of shape {list(weight.values.shape)}, which is no layer")
        for part, value in zip(_PARTS, _stored_values(name, maker), strict=False):
            tensors[f"{base}.{part}"] = package.place_of(f"{base}.{part}", value)
        layers[base] = _packed_layer(base, weight)
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        refused[base] = str(error)


def _stored_values(name: str, maker: Decompressor) -> list[Value]:
    """What is stored of one weight, the largest first."""
    found: list[Value] = []
    waiting = [maker.operations[name]]
    while waiting and len(found) < len(_PARTS):
        for given in waiting.pop().operands.values():
            if isinstance(given, Value):
                found += [given] if given.file is not None else []
            elif given in maker.operations:
                waiting.append(maker.operations[given])
    return sorted(found, key=lambda value: value.size * TYPES.get(value.kind, ("", "", 0))[2], reverse=True)


def _packed_layer(name: str, weight: Decompressed) -> PackedLayer:
    """Rows are those of the first axis; groups are runs of the others with a scale of their own."""
    shape = (weight.values.shape[0], int(np.prod(weight.values.shape[1:])))
    groups, grid = _groups_of(weight, shape)
    low = (-(2 ** (weight.bits - 1)) if weight.signed else 0) if grid is not None else None
    return PackedLayer(
        name=name,
        format=" ".join(weight.kinds),
        shape=shape,
        bits=weight.bits,
        groups=groups,
        low=low,
        high=None if low is None else low + 2**weight.bits - 1,
        signed=weight.signed,
        read=partial(_read_rows, grid or _without_grid(weight, shape), even_groups(shape[1], groups)),
    )


@dataclass(frozen=True)
class _Grid:
    """Codes ``[outputs, inputs]``, scales and zero points ``[outputs, groups]``."""

    codes: Array
    scale: Values
    zero: Values


def _groups_of(weight: Decompressed, shape: tuple[int, int]) -> tuple[int, _Grid | None]:
    """Groups of inputs, and the grid; none where scales follow another axis than outputs and inputs, or are no grid."""
    if weight.codes is None or weight.scale is None or weight.zero is None:
        return 1, None
    blocks = weight.scale.shape
    if any(side != 1 for side in blocks[2:]):
        return 1, None
    height = shape[0] // blocks[0]
    scale, zero = (
        np.repeat(np.broadcast_to(own, blocks).reshape(blocks[0], -1), height, axis=0)
        for own in (weight.scale, weight.zero)
    )
    return blocks[1], _Grid(weight.codes.reshape(shape), scale, zero)


def _without_grid(weight: Decompressed, shape: tuple[int, int]) -> _Grid:
    """Real values as codes of step 1: tables and what pruning left have no even steps."""
    ones = np.ones((shape[0], 1), np.float32)
    return _Grid(weight.values.reshape(shape), ones, np.zeros_like(ones))


def _read_rows(
    grid: _Grid, starts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], rows: slice, reading: Reading
) -> Block:
    return Block(grid.codes[rows], grid.scale[rows], grid.zero[rows], starts)


def names_by_underscores(floats: Mapping[str, Stored]) -> dict[str, str]:
    """Names in a package by those of the framework: ``layer1_0_conv1.weight`` for ``layer1.0.conv1.weight``."""
    return {f"{name.rpartition('.')[0].replace('.', '_')}.{name.rpartition('.')[2]}": name for name in floats}
