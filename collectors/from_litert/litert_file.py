"""A LiteRT model as its file holds it: tensors, operators and constants, checked before anything runs it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_litert.flatbuffer import (
    ACCIDENTS,
    IDENTIFIER,
    KINDS,
    SIGNED,
    Damaged,
    LiteOperator,
    LiteTensor,
    RawGraph,
    RawGrid,
    RawTensor,
    check_places,
    read_raw,
)
from quantmedic.collectors.from_litert.litert_checks import (
    check_calls,
    check_kernel,
    check_memory,
    check_order,
    check_tensor,
)
from quantmedic.collectors.pair.quantizer import Quantizer, unpack_codes
from quantmedic.engine.errors import ModelError
from quantmedic.engine.input_files import read_bytes, require_regular
from quantmedic.engine.reading_limits import LITERT_BYTES

Array = NDArray[np.generic]
#: Types that stand several to a byte.
_PACKED = {kind: signed for kind, signed in SIGNED.items() if KINDS[kind].bits < 8}


@dataclass(frozen=True)
class LiteModel:
    """The main graph of a file, its operators in the order of execution."""

    path: Path
    content: bytes = field(repr=False)
    tensors: tuple[LiteTensor, ...]
    operators: tuple[LiteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    description: str = ""
    metadata: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def read_litert(path: Path) -> LiteModel:
    """Read and check a file.

    Raises:
        ModelError: It cannot be read, is no LiteRT model or a damaged one, or ai-edge-litert is not installed.
    """
    content = _content(path)
    try:
        return _model(path, content)
    except ImportError as error:
        raise ModelError(
            "LiteRT models need the package ai-edge-litert", where=str(path), help="pip install 'quantmedic[litert]'"
        ) from error
    except Damaged as error:
        raise _damage_error(path, str(error)) from error
    except (*ACCIDENTS, MemoryError) as error:
        raise _damage_error(path, "an offset or a length in it leads outside of the file") from error


def _content(path: Path) -> bytes:
    try:
        require_regular(path)
        with path.open("rb") as file:
            start = file.read(8)
        if start[4:] == IDENTIFIER:
            return read_bytes(path, LITERT_BYTES)
    except OSError as error:
        raise ModelError(
            f"cannot read this model: {error.strerror or error}", where=str(path), help="check the path"
        ) from error
    raise ModelError(
        "this is no LiteRT model", where=str(path), help=f"a .tflite file has {IDENTIFIER.decode()} in bytes 4 to 8"
    )


def _damage_error(path: Path, detail: str) -> ModelError:
    return ModelError(
        "this LiteRT model is damaged", where=[str(path), detail], help="write it again, or fetch it once more"
    )


def _model(path: Path, content: bytes) -> LiteModel:
    raw = read_raw(content)
    check_calls(raw)
    notices: list[str] = []
    read = [_graph(graph, notices if graph is raw.graphs[0] else []) for graph in raw.graphs]
    if rest := [graph.name or f"number {i}" for i, graph in enumerate(raw.graphs) if i]:
        notices.append(f"only the main subgraph is diagnosed, not what it calls: {', '.join(rest)}")
    (tensors, operators), main = read[0], raw.graphs[0]
    return LiteModel(
        path,
        content,
        tensors,
        operators,
        main.inputs,
        main.outputs,
        raw.description,
        raw.metadata,
        tuple(dict.fromkeys(notices)),
    )


def _graph(graph: RawGraph, notices: list[str]) -> tuple[tuple[LiteTensor, ...], tuple[LiteOperator, ...]]:
    """Tensors and operators of one graph, checked."""
    stored = graph.tensors
    for tensor in stored:
        check_tensor(tensor)
    check_memory([one.nbytes for one in stored if one.content is None])
    names = _unique([tensor.name for tensor in graph.tensors])
    data = [_constant(one, name, notices) for one, name in zip(stored, names, strict=True)]
    tensors = tuple(
        LiteTensor(i, names[i], one.kind, one.sides, _tensor_quantizer(one, names[i], stored, data, notices), data[i])
        for i, one in enumerate(stored)
    )
    check_order(graph, {i for i, one in enumerate(stored) if one.is_there})
    for operator in graph.operators:
        inputs, outputs = ([tensors[i] for i in places if i >= 0] for places in (operator.inputs, operator.outputs))
        check_kernel(operator, inputs, outputs)
    return tensors, graph.operators


def _constant(stored: RawTensor, name: str, notices: list[str]) -> Array | None:
    """What a constant holds; None, with a notice, where that is not read."""
    if stored.is_sparse or stored.is_external:
        where = "stored sparsely" if stored.is_sparse else "stored in another file"
        notices.append(f"the constant {name} is {where}: what it holds is not read")
        return None
    dtype = KINDS[stored.kind].numpy
    if stored.content is None:
        return None if stored.size or dtype is None or not stored.is_there else np.empty(stored.shape, dtype)
    if dtype is None:
        notices.append(f"the constant {name} is of type {stored.kind}: what it holds is not read")
        return None
    return _constant_data(stored, dtype).reshape(stored.shape)


def _constant_data(stored: RawTensor, dtype: str) -> Array:
    assert stored.content is not None
    if stored.kind in _PACKED:
        return unpack_codes(stored.content, KINDS[stored.kind].bits, stored.size, signed=_PACKED[stored.kind])
    if stored.kind == "BFLOAT16":
        return np.asarray(stored.content.view(ml_dtypes.bfloat16), np.float32)
    if stored.kind == "BOOL":
        return np.asarray(stored.content != 0)
    return stored.content.view(dtype)


def _tensor_quantizer(
    stored: RawTensor, name: str, tensors: Sequence[RawTensor], data: Sequence[Array | None], notices: list[str]
) -> Quantizer | None:
    grid = stored.grid
    if grid is None or stored.kind not in SIGNED:
        return None
    bits, signed = KINDS[stored.kind].bits, SIGNED[stored.kind]
    if grid.block_size is not None:
        return _block_quantizer(stored, name, grid, grid.block_size, data)
    if grid.is_other:
        notices.append(f"{name} is quantized in a way that is not known here")
        return None
    if not grid.scale.size:
        return None
    scale, zero = grid.scale.astype(np.float32), grid.zero_point.astype(np.int64)
    if scale.size == 1:
        return Quantizer(scale.reshape(()), zero.reshape(()), bits, signed)
    return Quantizer(scale, zero, bits, signed, axis=grid.dimension)


def _block_quantizer(stored: RawTensor, name: str, grid: RawGrid, size: int, data: Sequence[Array | None]) -> Quantizer:
    """The grid of a tensor with a scale for each block along one axis; the shape of the scales tells which."""
    check_places((grid.block_scales,), len(data), f"tensor {name}")
    check_places((max(grid.block_zero_points, 0),), len(data), f"tensor {name}")
    scale = data[grid.block_scales]
    shape = stored.shape
    if scale is None or scale.dtype.kind != "f" or size < 1:
        raise Damaged(f"tensor {name!r} names no scales of its blocks")
    fitting = [
        (axis, target)
        for axis in reversed(range(len(shape)))
        if prod(target := (*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :])) == scale.size
    ]
    if not fitting:
        raise Damaged(f"tensor {name!r} of shape {shape} has {scale.size} scales for blocks of {size}")
    axis, target = fitting[0]
    zero = data[grid.block_zero_points] if grid.block_zero_points > 0 else None
    if zero is not None and zero.size != scale.size:
        raise Damaged(f"tensor {name!r} has {scale.size} scales and {zero.size} zero points")
    zeros = np.zeros(target, np.int64) if zero is None else zero.reshape(target).astype(np.int64)
    scales = scale.reshape(target).astype(np.float32)
    return Quantizer(scales, zeros, KINDS[stored.kind].bits, SIGNED[stored.kind], axis=axis, block_size=size)


def _unique(names: Sequence[str]) -> list[str]:
    taken: set[str] = set(names)
    seen: set[str] = set()
    found = []
    for i, name in enumerate(names):
        unique = name
        if not name or name in seen:
            unique = next(n for k in count() if (n := f"{name or 'tensor'}_{i + k}") not in taken)
        taken.add(unique)
        seen.add(unique)
        found.append(unique)
    return found
