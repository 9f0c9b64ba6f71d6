"""Programs of Core ML (MIL): their constants, and the operators that decompress weights. Field numbers are those of
``MIL.proto`` and ``Model.proto``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.core_ml.protobuf_wire import (
    Message,
    bytes_of,
    numbers_of,
    read_message,
    submessage,
    submessages,
    text_of,
    whole_number_of,
)

_ML_PROGRAM = 502
#: Types of tensors by number: our name, numpy's type, bits of an element.
TYPES: Mapping[int, tuple[str, DTypeLike, int]] = {
    10: ("F16", "<f2", 16),
    11: ("F32", "<f4", 32),
    12: ("F64", "<f8", 64),
    13: ("BF16", ml_dtypes.bfloat16, 16),
    21: ("I8", "i1", 8),
    22: ("I16", "<i2", 16),
    23: ("I32", "<i4", 32),
    24: ("I64", "<i8", 64),
    25: ("I4", "i1", 4),
    31: ("U8", "u1", 8),
    32: ("U16", "<u2", 16),
    33: ("U32", "<u4", 32),
    35: ("U4", "u1", 4),
    36: ("U2", "u1", 2),
    37: ("U1", "u1", 1),
    38: ("U6", "u1", 6),
    39: ("U3", "u1", 3),
    40: ("F8_E4M3", ml_dtypes.float8_e4m3fn, 8),
    41: ("F8_E5M2", ml_dtypes.float8_e5m2, 8),
}
#: Fields of TensorValue that hold numbers: numpy's type of what stands there in fixed width.
_FIXED: Mapping[int, DTypeLike] = {1: "<f4", 6: "<f8"}
_INTS, _BOOLS, _LONGS, _RAW = 2, 3, 5, 7


@dataclass(frozen=True)
class Value:
    """A tensor that a program states: in a file of the package, or in itself.

    Attributes:
        kind: Number of its type, see ``TYPES``.
        shape: Its sides.
        file: Where it is stored, as the program names it; None where the program holds it.
        offset: Place of its description in that file.
        message: What the program holds.
    """

    kind: int
    shape: tuple[int, ...]
    file: str | None = None
    offset: int = 0
    message: Message | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    def inline(self) -> Array:
        """What the program itself holds.

        Raises:
            ValueError: It is of no known type, or its bytes do not fit its shape.
        """
        tensor = submessage(submessage(self.message or {}, 3), 1)
        place = next((place for place in (_RAW, _INTS, _LONGS, _BOOLS, *_FIXED) if place in tensor), None)
        if place is None or self.kind not in TYPES:
            raise ValueError("a value of an unknown kind")
        values = submessage(tensor, place)
        if place == _RAW:
            return as_array(bytes_of(values, 1), self.kind, self.shape)
        if place in _FIXED:
            parts = [bytes(part) for part in values.get(1, []) if isinstance(part, memoryview)]
            found: Array = np.frombuffer(b"".join(parts), _FIXED[place])
        else:
            found = np.array([_as_signed(each) for each in numbers_of(values, 1)], np.int64)
        return found.reshape(self.shape)


@dataclass(frozen=True)
class Operation:
    """An operator: what it writes, and what it is given, as a value or as the name of what another one writes."""

    kind: str
    outputs: tuple[str, ...]
    operands: Mapping[str, Value | str]


def as_array(data: bytes, kind: int, shape: tuple[int, ...]) -> Array:
    """Bytes as a tensor of a type; elements of few bits lie one behind the other, the lowest bits first.

    Raises:
        ValueError: There are fewer or more bytes than the shape has elements.
    """
    _, dtype, bits = TYPES[kind]
    count = prod(shape)
    if len(data) != -(-count * bits // 8):
        raise ValueError(f"{len(data)} bytes for {count} elements of {bits} bits")
    if bits >= 8:
        return np.frombuffer(data, dtype).reshape(shape)
    codes = unpack_bits(data, bits, count)
    if TYPES[kind][0].startswith("I"):
        codes = ((codes ^ (1 << (bits - 1))).astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
    return codes.reshape(shape)


def unpack_bits(data: bytes, bits: int, count: int) -> Array:
    """Unsigned numbers of up to 8 bits, the lowest bits first.

    Raises:
        ValueError: There are fewer.
    """
    stream = np.frombuffer(data, np.uint8)
    if len(stream) * 8 < count * bits:
        raise ValueError(f"{len(stream)} bytes hold fewer than {count} numbers of {bits} bits")
    single = np.unpackbits(stream, bitorder="little", count=count * bits).reshape(count, bits)
    return (single << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)


def read_operations(model: bytes) -> list[Operation]:
    """The operators of the main function of a model.

    Raises:
        ValueError: The bytes are no model, or one without a program.
    """
    program = submessage(read_message(memoryview(model)), _ML_PROGRAM)
    functions = {text_of(entry, 1): submessage(entry, 2) for entry in submessages(program, 2)}
    if not functions:
        raise ValueError("the model holds no program")
    function = functions.get("main") or next(iter(functions.values()))
    blocks = {text_of(entry, 1): submessage(entry, 2) for entry in submessages(function, 3)}
    block = blocks.get(text_of(function, 2)) or next(iter(blocks.values()), {})
    return [_operation_of(message) for message in submessages(block, 3)]


def _operation_of(message: Message) -> Operation:
    outputs = tuple(text_of(output, 1) for output in submessages(message, 3))
    operands: dict[str, Value | str] = {}
    for entry in submessages(message, 5):
        operands[text_of(entry, 1)] = _value_of(submessage(entry, 2))
    for entry in submessages(message, 2):
        binding = next(submessages(submessage(entry, 2), 1), {})
        operands[text_of(entry, 1)] = text_of(binding, 1) if 1 in binding else _value_of(submessage(binding, 2))
    return Operation(text_of(message, 1), outputs, operands)


def _value_of(message: Message) -> Value:
    tensor = submessage(submessage(message, 2), 1)
    shape = tuple(whole_number_of(submessage(side, 1), 1) for side in submessages(tensor, 3))
    blob = submessage(message, 5)
    file = text_of(blob, 1) if 5 in message else None
    return Value(whole_number_of(tensor, 1), shape, file, whole_number_of(blob, 2), None if 5 in message else message)


def _as_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
