"""Mutations of models by their structure, so that what comes out still parses: fields of ONNX, tables, IRs."""

import copy
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor as Kind
from google.protobuf.message import Message
from mutate_text import FLOATS, NUMBERS, STRINGS, mutate_bytes, times

_UNSIGNED = {Kind.TYPE_UINT32: 32, Kind.TYPE_UINT64: 64, Kind.TYPE_FIXED32: 32, Kind.TYPE_FIXED64: 64}
_SIGNED = {Kind.TYPE_INT32: 32, Kind.TYPE_INT64: 64, Kind.TYPE_SINT32: 32, Kind.TYPE_SINT64: 64}
_PATTERNS = tuple(map(bytes.fromhex, ("00", "ff", "80", "0000807f", "0000c07f", "ffff7f7f", "00000080", "807f807f")))


def _as_int(value: Any, bits: int, *, signed: bool = True) -> int:
    whole = int(value) % 2**bits if isinstance(value, int) else 3
    return whole - 2**bits if signed and whole >= 2 ** (bits - 1) else whole


# --- ONNX ------------------------------------------------------------------------------------------------------------


def mutate_onnx(content: bytes, rng: random.Random) -> bytes:
    """Fields: other values, other names of the same model, entries lost, doubled and moved."""
    if rng.random() < 0.03:
        return mutate_bytes(content, rng)
    model = onnx.ModelProto.FromString(content)
    for _ in times(rng):
        messages = list(_messages(model))
        kind = rng.choice(sorted({each.DESCRIPTOR.name for each in messages}))
        message = rng.choice([each for each in messages if each.DESCRIPTOR.name == kind])
        fields = [field for field, _ in message.ListFields()]
        if not fields or rng.random() < 0.1:
            fields = list(message.DESCRIPTOR.fields)
        _change_field(message, rng.choice(fields), messages, rng)
    return bytes(model.SerializeToString(deterministic=True))


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == Kind.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                yield from _messages(each)


def _change_field(message: Message, field: Any, messages: Sequence[Message], rng: random.Random) -> None:
    value = getattr(message, field.name)
    others = [each for each in messages if each.DESCRIPTOR is field.message_type]
    if rng.random() < 0.06:
        message.ClearField(field.name)
    elif field.is_repeated:
        own = _other_entries([copy.deepcopy(each) for each in value], field, others, messages, rng)
        del value[:]
        value.extend(own)
    elif field.type != Kind.TYPE_MESSAGE:
        setattr(message, field.name, _scalar(field, value, messages, rng))
    elif others and rng.random() < 0.6:
        value.CopyFrom(copy.deepcopy(rng.choice(others)))
    else:
        value.SetInParent()


def _other_entries(
    own: list[Any], field: Any, others: Sequence[Message], messages: Sequence[Message], rng: random.Random
) -> list[Any]:
    change, at = rng.randrange(6), rng.randrange(len(own) or 1)
    if change == 0:
        return own[:at] + own[at + 1 :]
    if change == 1:
        return own[:at] + own[at : at + 1] * rng.choice((2, 2, 30)) + own[at + 1 :]
    if change == 2:
        return rng.sample(own, len(own))
    if field.type == Kind.TYPE_MESSAGE:
        return own + [copy.deepcopy(each) for each in rng.sample(others, min(1, len(others)))]
    return [*own[:at], _scalar(field, own[at] if own else 0, messages, rng), *own[at + 1 :]]


def _scalar(field: Any, value: Any, messages: Sequence[Message], rng: random.Random) -> Any:
    near = (value + 1, value - 1, rng.randrange(25)) if isinstance(value, int) else ()
    if field.type == Kind.TYPE_STRING:
        names = [v for m in messages for f, v in m.ListFields() if f.type == field.type and not f.is_repeated]
        return rng.choice(STRINGS if rng.random() < 0.2 or not names else names)
    if field.type == Kind.TYPE_BYTES:
        return _other_raw(value if isinstance(value, bytes) else b"", rng)
    if field.enum_type is not None:
        return rng.choice([each.number for each in field.enum_type.values])
    if field.type in _SIGNED:
        return _as_int(rng.choice((*near, *near, *near, *NUMBERS)), _SIGNED[field.type])
    if field.type in _UNSIGNED:
        return _as_int(rng.choice((*near, *NUMBERS)), _UNSIGNED[field.type], signed=False)
    return float(np.float32(rng.choice(FLOATS)))


def _other_raw(raw: bytes, rng: random.Random) -> bytes:
    """Data of a tensor, mostly of the length that its shape asks for."""
    if rng.random() < 0.2:
        return mutate_bytes(raw, rng)
    unit = rng.choice(_PATTERNS)
    if rng.random() < 0.3:
        return (unit * len(raw))[: len(raw)]
    at = rng.randrange(max(1, len(raw) // 4)) * 4
    return (raw[:at] + unit + raw[at + len(unit) :])[: len(raw)] or unit


# --- LiteRT ----------------------------------------------------------------------------------------------------------


def mutate_litert(content: bytes, rng: random.Random) -> bytes:
    """Tables of a LiteRT model, as objects; what cannot be packed again is tried anew."""
    import flatbuffers  # belongs to the optional ai-edge-litert
    from ai_edge_litert import schema_py_generated as schema

    for _ in range(4):
        if rng.random() < 0.04:
            break
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        for _ in times(rng):
            try:
                found = list(_attributes(model))
            except RecursionError:  # an earlier change made a table its own part
                break
            table = rng.choice(sorted({type(owner).__name__ for owner, _ in found}))
            owner, name = rng.choice([each for each in found if type(each[0]).__name__ == table])
            setattr(owner, name, _other_attribute(getattr(owner, name), found, rng))
        try:
            builder = flatbuffers.Builder(1024)
            builder.Finish(model.Pack(builder), b"TFL3")
            return bytes(builder.Output())
        except Exception:  # the packer refuses in many types what does not fit a field
            continue
    return mutate_bytes(content, rng)


def _attributes(table: Any) -> Iterator[tuple[Any, str]]:
    for name, value in vars(table).items():
        yield table, name
        for each in value if isinstance(value, list) else [value]:
            if hasattr(each, "__dict__"):
                yield from _attributes(each)


def _other_attribute(value: Any, found: Sequence[tuple[Any, str]], rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return _as_int(rng.choice((value + 1, value - 1, rng.randrange(20), *NUMBERS)), rng.choice((8, 32)))
    if isinstance(value, float):
        return float(np.float32(min(rng.choice(FLOATS), 1e38)))
    if isinstance(value, bytes | str):
        return rng.choice(STRINGS).encode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.size and rng.random() < 0.9:
        return _other_vector(value, rng)
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        kept = [*value[:at], *value[at + 1 :]]
        return rng.choice((kept, [*value, value[at]], [value[at], *kept], [value[at]] * len(value)))
    others = [getattr(owner, name) for owner, name in found]
    return rng.choice([None, *(each for each in others if type(each) is type(value))])


def _other_vector(value: Any, rng: random.Random) -> Any:
    change = rng.randrange(4)
    if change == 0:
        return value[: rng.randrange(value.size)]
    if change == 1:
        return np.concatenate([value, value[:1]])
    value, near = value.copy(), (float(value.flat[0]) + 1, -1.0, 0.0, float(rng.randrange(20)))
    with np.errstate(all="ignore"):
        value.flat[rng.randrange(value.size)] = np.float64(rng.choice((*near, *FLOATS))).astype(value.dtype)
    return value


# --- OpenVINO --------------------------------------------------------------------------------------------------------

_NUMBERS = ("0", "-1", "1", "2", "7", "65536", "2147483648", "1099511627776", "0,0", "-3,5", "9,9,9", "1e9", "")
_VALUE = re.compile(r'="([^"]*)"|<dim>(-?\d+)</dim>')


def mutate_ir(content: bytes, rng: random.Random) -> bytes:
    """Attributes and sides of an IR take numbers, or the values of others; lines change places or go."""
    if rng.random() < 0.1:
        return mutate_bytes(content, rng)
    text = content.decode(errors="replace")
    for _ in times(rng):
        found = list(_VALUE.finditer(text))
        lines = text.splitlines()
        if not found or len(lines) < 4:
            break
        kind = rng.random()
        if kind < 0.2:
            first, second = (rng.randrange(2, len(lines)) for _ in range(2))
            lines[first] = lines[second] if kind < 0.1 else ""
            text = "\n".join(lines)
            continue
        place, other = rng.choice(found), rng.choice(found)
        group = 1 if place[1] is not None else 2
        value = rng.choice(_NUMBERS) if kind < 0.6 else (other[1] or other[2] or "")
        text = text[: place.start(group)] + value + text[place.end(group) :]
    return text.encode()
