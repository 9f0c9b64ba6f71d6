"""The wire format of protocol buffers, read without a schema: fields by number, nothing interpreted.

https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator

#: A message as its fields by number, each in the order of the file: whole numbers, or the bytes of what is longer.
Message = dict[int, list[int | memoryview]]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10


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
