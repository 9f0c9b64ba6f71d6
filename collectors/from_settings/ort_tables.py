"""Calibration tables of ONNX Runtime: extremes of activations, as three files of one content and as a cache.

``quantization.write_calibration_table`` writes calibration.json with both extremes, and calibration.cache and
calibration.flatbuffers with one number per tensor, the larger extreme, that its TensorRT provider takes for a range
symmetric to 0. ``quantize_static(calibration_cache_path=…)`` writes a JSON with extremes and method. Read with
onnxruntime 1.31.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_bytes, read_json, read_text
from quantmedic.collectors.toolchain_files.values import flag, number, table
from quantmedic.engine.case.facts import RecordedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

METHODS = {"MinMax": "minmax", "Entropy": "entropy", "Percentile": "percentile"}
_LINE = re.compile(r"(?P<name>\S.*?) (?P<value>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*", re.IGNORECASE)
_RAW = re.compile(r"\s*\{\s*\"[^\"]+\"\s*:\s*\{[^{}]*\"(lowest|highest)\"\s*:", re.DOTALL)


def _is_ort_cache(name: str, text: str) -> bool:
    return '"TensorsData"' in text and text.lstrip().startswith("{")


def _read_cache(path: Path) -> Imported:
    content = table(read_json(path))
    tensors = table(content.get("data"))
    if not tensors:
        raise DataError("the calibration cache holds no tensors", where=str(path))
    word = table(content.get("calibration_method")).get("value")
    method = METHODS.get(str(word).rpartition(".")[2])
    settings = SettingsFacts(calibration_method=method, smooth_quant=flag(content.get("smooth_quant")))
    recorded, left = _ranges_by_tensor(tensors, method)
    return Imported(settings=settings, tensors=recorded, notices=_unread_tensors(left))


def _is_ort_table(name: str, text: str) -> bool:
    return _RAW.match(text) is not None


def _read_ort_table(path: Path) -> Imported:
    recorded, left = _ranges_by_tensor(table(read_json(path)), None)
    if not recorded:
        raise DataError("the calibration table holds no ranges", where=str(path))
    return Imported(tensors=recorded, notices=_unread_tensors(left))


def _ranges_by_tensor(tensors: Mapping[str, object], method: str | None) -> tuple[dict[str, RecordedFacts], list[str]]:
    """Ranges by tensor, and the names of those that have none."""
    found, left = {}, []
    for name, entry in tensors.items():
        low, high = (_scalar(table(entry).get(key)) for key in ("lowest", "highest"))
        if low is None or high is None or low > high:
            left.append(name)
        else:
            found[name] = RecordedFacts(low=low, high=high, method=method)
    return found, left


def _scalar(value: object) -> float | None:
    """A number as it is, or as the encoder of arrays wraps it."""
    if isinstance(value, dict):
        value = value.get("data")
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return number(value)


def _unread_tensors(names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    return (f"tensors without a readable range: {len(names)}, first {names[0]}",)


def _is_text(name: str, text: str) -> bool:
    lines = text.splitlines()[:3]
    return bool(lines) and name.endswith(".cache") and all(_LINE.fullmatch(line) for line in lines)


def _read_text(path: Path) -> Imported:
    pairs = []
    for number_of_line, line in enumerate(read_text(path).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None and line.strip():
            raise DataError(
                "a line of the calibration cache is not a name with a number",
                where=f"{path}:{number_of_line}: {line[:80]}",
                help="the file may be cut off: write it again with write_calibration_table",
            )
        if match is not None:
            pairs.append((match["name"], float(match["value"])))
    return _symmetric(pairs)


def _symmetric(pairs: list[tuple[str, float]]) -> Imported:
    """Ranges of a number per tensor, which the TensorRT provider takes for both ends."""
    found = {name: RecordedFacts(low=-value, high=value, symmetric=True) for name, value in pairs if value > 0}
    left = [name for name, value in pairs if value <= 0]
    notices = (f"tensors with a range of 0 or less: {len(left)}, first {left[0]}",) if left else ()
    return Imported(tensors=found, notices=notices)


def _is_flat(name: str, text: str) -> bool:
    return name.endswith(".flatbuffers")


def _read_flat(path: Path) -> Imported:
    content = read_bytes(path)
    try:
        return _symmetric(list(_flat_pairs(content)))
    except (ValueError, IndexError) as error:
        raise DataError(
            "the file is not a calibration table of ONNX Runtime, or is damaged",
            where=f"{path}: {error}",
            help="write it again with write_calibration_table; calibration.json holds more",
        ) from error


def _flat_pairs(content: bytes) -> Iterator[tuple[str, float]]:
    """Names and numbers of the only table: a vector of tables with a key and a value, both text.

    Every offset is checked before it is followed; ``ValueError`` where one leads out of the file.
    """
    root = _at(content, 0)
    vector = _field(content, root, 0)
    if vector is None:
        return
    start = vector + _at(content, vector)
    count = _at(content, start)
    if count > len(content) // 4:
        raise ValueError(f"{count} entries in {len(content)} bytes")
    for place in range(start + 4, start + 4 + 4 * count, 4):
        entry = place + _at(content, place)
        key, value = (_field(content, entry, slot) for slot in (0, 1))
        if key is not None and value is not None:
            yield _string(content, key), float(_string(content, value))


def _at(content: bytes, place: int, size: int = 4, *, signed: bool = False) -> int:
    if not 0 <= place <= len(content) - size:
        raise ValueError(f"an offset leads to byte {place} of {len(content)}")
    return int.from_bytes(content[place : place + size], "little", signed=signed)


def _field(content: bytes, where: int, slot: int) -> int | None:
    """Place of a field of a table; None where it has none."""
    index = where - _at(content, where, signed=True)
    if 4 + 2 * slot >= _at(content, index, 2):
        return None
    offset = _at(content, index + 4 + 2 * slot, 2)
    return where + offset if offset else None


def _string(content: bytes, field: int) -> str:
    start = field + _at(content, field)
    size = _at(content, start)
    if start + 4 + size > len(content):
        raise ValueError(f"a text of {size} bytes leads out of the file")
    return content[start + 4 : start + 4 + size].decode("utf-8")


FORMATS = (
    Format("ONNX Runtime calibration cache", "onnxruntime", _is_ort_cache, _read_cache),
    Format("ONNX Runtime calibration table", "onnxruntime", _is_ort_table, _read_ort_table),
    Format("ONNX Runtime calibration table (TensorRT)", "onnxruntime", _is_text, _read_text, lists_all=True),
    Format("ONNX Runtime calibration table (FlatBuffers)", "onnxruntime", _is_flat, _read_flat, lists_all=True),
)
