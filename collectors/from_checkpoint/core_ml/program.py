"""Programs of Core ML (MIL): their constants, and the operators that decompress weights.

Field numbers are those of ``MIL.proto`` and ``Model.proto``; messages are read without a schema, as
https://protobuf.dev/programming-guides/encoding describes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from quantmedic.collectors.data.arrays import Array

#: A message as its fields by number, each in the order of the file: whole numbers, or the bytes of what is longer.
Message = dict[int, list[int | memoryview]]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10
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


def read_message(data: memoryview) -> Message:
    """The fields of one message.

    Raises:
        ValueError: The bytes are no message: cut off, or of a kind of field that does not exist.
    """
    fields: Message = {}
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value: int | memoryview
            value, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32, _BYTES):
            size, place = _read_varint(data, place) if kind == _BYTES else (8 if kind == _FIXED64 else 4, place)
            value, place = data[place : place + size], place + size
            if len(value) != size:
                raise ValueError(f"a field of {size} bytes is cut off at byte {place - size}")
        else:
            raise ValueError(f"a field of kind {kind} at byte {place}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _read_varint(data: memoryview, place: int) -> tuple[int, int]:
    found = 0
    for k in range(_MAX_VARINT):
        if place >= len(data):
            raise ValueError(f"a number is cut off at byte {place}")
        byte = data[place]
        place += 1
        found |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return found, place
    raise ValueError(f"a number of more than {_MAX_VARINT} bytes at byte {place}")


def submessages(message: Message, number: int) -> Iterator[Message]:
    """The messages in the fields of one number.

    Raises:
        ValueError: One is no message.
    """
    for value in message.get(number, []):
        if isinstance(value, memoryview):
            yield read_message(value)


def submessage(message: Message, number: int) -> Message:
    """The last message in the fields of one number, as readers of protobuf take it; empty where there is none.

    Raises:
        ValueError: It is no message.
    """
    return next(iter(list(submessages(message, number))[-1:]), {})


def whole_number_of(message: Message, number: int) -> int:
    """The last whole number in the fields of one number; 0 where there is none."""
    return next((value for value in reversed(message.get(number, [])) if isinstance(value, int)), 0)


def bytes_of(message: Message, number: int) -> bytes:
    """The last bytes in the fields of one number; none where there are none."""
    return next((bytes(value) for value in reversed(message.get(number, [])) if isinstance(value, memoryview)), b"")


def text_of(message: Message, number: int) -> str:
    """The same as text.

    Raises:
        ValueError: It is not UTF-8.
    """
    return bytes_of(message, number).decode("utf-8")


def numbers_of(message: Message, number: int) -> list[int]:
    """Whole numbers of a repeated field, packed or one by one.

    Raises:
        ValueError: They are cut off.
    """
    found: list[int] = []
    for value in message.get(number, []):
        if isinstance(value, int):
            found.append(value)
            continue
        place = 0
        while place < len(value):
            each, place = _read_varint(value, place)
            found.append(each)
    return found


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
