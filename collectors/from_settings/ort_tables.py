"""Calibration tables of ONNX Runtime: extremes of activations, as a table and as a cache.

``quantization.write_calibration_table`` writes calibration.json with both extremes. Beside it stand calibration.cache
and calibration.flatbuffers with the larger extreme alone, which are refused.
``quantize_static(calibration_cache_path=…)`` writes a JSON with extremes and method. Read with onnxruntime 1.31.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_json
from quantmedic.collectors.toolchain_files.values import flag, number, table
from quantmedic.engine.case.facts import RecordedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

METHODS = {"MinMax": "minmax", "Entropy": "entropy", "Percentile": "percentile"}
_LINE = re.compile(r"\S.*? [-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?\s*", re.IGNORECASE)
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


def _is_lossy(name: str, text: str) -> bool:
    lines = text.splitlines()[:3]
    is_text = name.endswith(".cache") and bool(lines) and all(map(_LINE.fullmatch, lines))
    return is_text or name.endswith(".flatbuffers")


def _refuse_lossy(path: Path) -> Imported:
    raise DataError(
        "this table of ONNX Runtime holds one number per tensor, from which its range cannot be told",
        where=str(path),
        help="give calibration.json, which write_calibration_table writes beside it: it holds both extremes",
    )


FORMATS = (
    Format("ONNX Runtime calibration cache", "onnxruntime", _is_ort_cache, _read_cache),
    Format("ONNX Runtime calibration table", "onnxruntime", _is_ort_table, _read_ort_table),
    Format("ONNX Runtime calibration table (TensorRT)", "onnxruntime", _is_lossy, _refuse_lossy),
)
