"""A LiteRT file with other values in its constants: their bytes are overwritten in place, nothing else changes."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_litert.checks import BITS
from quantmedic.collectors.from_litert.file import LiteModel
from quantmedic.collectors.from_litert.flatbuffer import read_raw
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: Types whose values are handed on as the file holds them.
_KINDS = frozenset({"FLOAT32", "INT2", "INT4", "INT8", "UINT8", "INT16", "INT32", "INT64"})


def writable_constants(model: LiteModel) -> frozenset[int]:
    """Places of constants that one operator reads, from bytes that no other tensor shares."""
    raw = read_raw(model.content)
    users = Counter(tensor.buffer for graph in raw.graphs for tensor in graph.tensors)
    readers = Counter(place for op in model.operators for place in op.inputs)
    return frozenset(
        tensor.index
        for tensor, stored in zip(model.tensors, raw.graphs[0].tensors, strict=True)
        if tensor.data is not None
        and tensor.kind in _KINDS
        and users[stored.buffer] == readers[tensor.index] == 1
        and tensor.index not in model.outputs
    )


def write_constants(model: LiteModel, values: Mapping[int, Array]) -> bytes:
    """The file with other values in these constants.

    Args:
        model: The file.
        values: Numbers as the file holds them, by place, in the file's order of axes.

    Raises:
        ModelError: A constant cannot be overwritten by itself, or does not take these numbers.
    """
    raw, content = read_raw(model.content), bytearray(model.content)
    start = _address(np.frombuffer(model.content, np.uint8))
    writable = writable_constants(model)
    for place, numbers in values.items():
        tensor = model.tensors[place]
        buffer = raw.buffers[raw.graphs[0].tensors[place].buffer]
        if place not in writable or buffer is None or tensor.data is None:
            raise _refusal(model, place, "shares its bytes with another tensor or is not read")
        packed = _pack(numbers, tensor.kind, tensor.data)
        if packed is None or len(packed) != len(buffer):
            raise _refusal(model, place, f"does not take these numbers as {tensor.kind}")
        at = _address(buffer) - start
        content[at : at + len(packed)] = packed
    return bytes(content)


def _refusal(model: LiteModel, place: int, reason: str) -> ModelError:
    return ModelError(
        f"the constant {model.tensors[place].name} cannot be overwritten: it {reason}", where=str(model.path)
    )


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _pack(numbers: Array, kind: str, before: Array) -> bytes | None:
    """Bytes of numbers, several codes of fewer than 8 bits to a byte; None where they do not fit into the type."""
    if numbers.shape != before.shape:
        return None
    bits = BITS[kind]
    if before.dtype.kind == "f":
        return numbers.astype(before.dtype).tobytes()
    low, end = (0, 2**bits) if kind.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if numbers.size and (numbers.min() < low or numbers.max() >= end):
        return None
    if bits >= 8:
        return numbers.astype(before.dtype).tobytes()
    per_byte = 8 // bits
    codes = numbers.astype(np.int8).reshape(-1).view(np.uint8) & (2**bits - 1)
    padded = np.pad(codes, (0, -codes.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return bytes(np.bitwise_or.reduce(padded << shifts, axis=1).astype(np.uint8))
