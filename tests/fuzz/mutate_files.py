"""Mutations of binary files by their structure: arrays, archives, checkpoints, databases, pickles, pictures."""

import io
import pickle
import pickletools
import random
import struct
import tokenize
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np
from mutate_text import FLOATS, STRINGS, any_value, mutate_bytes, times
from mutate_trees import mutate_json

_TYPES = ["f4", "f8", "f2", "i1", "u1", "i4", "i8", "u8", "?", "c8", "U3", "S2", "M8[s]", "m8[s]", ">f4", "i4,f4", "V3"]


def mutate_npy(content: bytes, rng: random.Random) -> bytes:
    """Another type, shape, order or other values; or a header that tells something else than the data."""
    chance = rng.random()
    if chance < 0.1:
        return mutate_bytes(content, rng)
    if chance < 0.25:
        text = content.replace(b"(", rng.choice((b"(0, ", b"(999999999, ", b"(-1, ", b"(1, 1, 1, ")), 1)
        return text.replace(b"'<f4'", rng.choice((b"'|O'  ", b"'<c16'", b"'<U99'", b"'>f4'")), 1)
    array = np.load(io.BytesIO(content), allow_pickle=False)
    for _ in times(rng):
        array = _other_array(array, rng)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _other_array(array: Any, rng: random.Random) -> Any:
    change = rng.choice((0, 1, 2, 3, 4, 5, 5, 6, 7, 7, 7, 7))
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        if change == 0:
            return _as_type(array, rng.choice(_TYPES))
        if change == 1:
            return array.reshape(rng.choice(((-1,), (1, -1), (1, 1, *array.shape), (*array.shape, 1))))
        if change == 2 and array.ndim:
            return np.take(array, [], rng.randrange(array.ndim)) if rng.random() < 0.3 else array[: rng.choice((1, -1))]
        if change == 3 and array.ndim > 1:
            return np.asfortranarray(array) if rng.random() < 0.3 else np.moveaxis(array, 1, -1)
        if change == 4 and 0 < array.nbytes < 4e6:
            return array.repeat(rng.choice((2, 3)), axis=rng.randrange(array.ndim)) if array.ndim else array[None]
        if change == 5 and array.dtype.kind in "fiub":
            return array * np.float64(rng.choice((0, -1, 255, 1e30, float("nan")))).astype(array.dtype)
        if change == 6 and rng.random() < 0.2:
            return np.array([None, "x", {"a": 1}], object)
        if array.size and array.dtype.kind in "fiu":
            array, number = array.copy(), np.float64(rng.choice(FLOATS)).astype(array.dtype)
            array.reshape(-1)[[rng.randrange(array.size) for _ in range(rng.choice((1, 1, 5)))]] = number
    return array


def _as_type(array: Any, kind: str) -> Any:
    try:
        return array.astype(kind)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # of objects, of strings too short for a date
        return np.zeros(array.shape, kind)


def mutate_zip(content: bytes, rng: random.Random) -> bytes:
    """Members of an archive of arrays and JSON, each after its kind; checksums are those of the new content."""
    if rng.random() < 0.05:
        return mutate_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in times(rng):
        records = [i for i, (_, data) in enumerate(members) if _is_json(data)]
        at = rng.choice([rng.randrange(len(members)), *records])
        name, data = members[at]
        change = rng.randrange(20)
        if change == 0 and len(members) > 1:
            members.pop(at)
        elif change == 1:
            members.append((rng.choice((name, name + "x", *STRINGS)), data))
        elif change == 2:
            members[at] = name, rng.choice(members)[1]
        elif change == 3:
            members[at] = name, bytes(rng.choice((0, 10, 40_000_000)))
        else:
            members[at] = name, _other_member(data, rng)
    buffer, method = io.BytesIO(), rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members:
            # A fixed date makes equal archives; surrogates and NUL have no place in names.
            plain = name.encode("utf-8", "replace").decode().replace("\x00", "?") or "?"
            archive.writestr(zipfile.ZipInfo(plain), data, compress_type=method, compresslevel=1)
    return buffer.getvalue()


def _is_json(data: bytes) -> bool:
    return data[:1] in (b"{", b"[")


def _other_member(data: bytes, rng: random.Random) -> bytes:
    if not _is_json(data) and not data.startswith(b"\x93NUMPY"):
        return mutate_bytes(data, rng)
    try:
        return (mutate_json if _is_json(data) else mutate_npy)(data, rng)
    except (
        ValueError,
        SyntaxError,
        TypeError,
        EOFError,
        MemoryError,
        RecursionError,
        tokenize.TokenError,
    ):  # no longer readable
        return mutate_bytes(data, rng)


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """The header as a tree, its length put right; or the data."""
    length = struct.unpack_from("<Q", content)[0]
    header, data = content[8 : 8 + length], content[8 + length :]
    if rng.random() < 0.2:
        data = mutate_bytes(data, rng)
    else:
        header = mutate_json(header, rng)
    stated = rng.choice((0, length, 2**40, 2**63)) if rng.random() < 0.05 else len(header)
    return struct.pack("<Q", stated) + header + data


def mutate_gguf(content: bytes, rng: random.Random) -> bytes:
    """Numbers of the header, most of them of eight bytes, written over; names doubled; or any bytes."""
    data = bytearray(content)
    if rng.random() < 0.3:
        return mutate_bytes(content, rng)
    for _ in times(rng):
        numbers = (0, 1, 2, 31, 32, 33, rng.randrange(64), len(data), 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
        layout = rng.choice(("<Q", "<Q", "<I"))
        place = rng.randrange(4, min(len(data), 700) - 8)
        struct.pack_into(layout, data, place, rng.choice(numbers) % (1 << 8 * struct.calcsize(layout)))
    if rng.random() < 0.1:
        data = data.replace(b"ffn_norm", b"ffn_up\0\0")
    return bytes(data)


def mutate_pickle(content: bytes, rng: random.Random) -> bytes:
    """Opcodes of a pickle left out, doubled and moved; or a pickle that would run something."""
    if rng.random() < 0.1:
        return rng.choice((b"cos\nsystem\n(S'touch owned'\ntR.", pickle.dumps(any_value(rng)), b"(" * 100_000 + b"."))
    if rng.random() < 0.3:
        return mutate_bytes(content, rng)
    starts = [place for _, _, place in pickletools.genops(content)]
    parts = [content[a:b] for a, b in zip(starts, [*starts[1:], len(content)], strict=True)]
    for _ in times(rng):
        at, to = rng.randrange(len(parts)), rng.randrange(len(parts))
        parts[to : to + rng.randrange(2)] = rng.choice(([], parts[at : at + 1]))
        parts = parts or [b"."]
    return b"".join(parts)


def mutate_png(content: bytes, rng: random.Random) -> bytes:
    """Chunks of a picture, their checksums put right."""
    at, chunks = 8, []
    while at < len(content):
        size = struct.unpack_from(">I", content, at)[0]
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    pixels = next(i for i, (kind, _) in enumerate(chunks) if kind == b"IDAT")
    place = rng.randrange(len(chunks))
    kind, data = chunks[place]
    if kind == b"IHDR" and rng.random() < 0.5:
        data = struct.pack(">II", *rng.choices((0, 1, 7, 70_000, 2**31), k=2)) + data[8:]
    elif place == pixels and rng.random() < 0.5:
        data = zlib.compress(mutate_bytes(zlib.decompress(data), rng))
    else:
        data = mutate_bytes(data, rng)
    chunks[place] = kind, data
    body = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return content[:8] + b"".join(body)
