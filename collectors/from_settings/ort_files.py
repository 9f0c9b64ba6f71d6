"""Files of ONNX Runtime's quantization: arguments that users keep as JSON, and extremes that calibration found.

The library writes no file of its arguments: users keep those of ``quantize_static`` or ``StaticQuantConfig``, or
``extra_options`` alone, in a JSON file of their own. Values are as ``str`` gives them (QuantType.QInt8,
CalibrationMethod.MinMax) or plain. ``quantization.write_calibration_table`` writes calibration.json with both extremes.
Beside it stand calibration.cache and calibration.flatbuffers with the larger extreme alone, which are refused.
``quantize_static(calibration_cache_path=…)`` writes a JSON with extremes and method. Read with onnxruntime 1.31.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported, Requests
from quantmedic.collectors.toolchain_files.settings_files import read_json
from quantmedic.collectors.toolchain_files.values import (
    Schema,
    flag,
    grid,
    keys_of,
    left_out,
    member_name,
    number,
    table,
    unknown_keys,
    whole,
    words,
)
from quantmedic.engine.case.facts import RecordedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

EXTRA_OPTIONS: Schema = {
    **keys_of(
        "extra.Sigmoid.nnapi ActivationSymmetric ActivationRestrictedAsymmetric WeightSymmetric EnableSubgraph "
        "ForceQuantizeNoInputCheck MatMulConstBOnly AddQDQPairToWeight OpTypesToExcludeOutputQuantization "
        "DedicatedQDQPair QDQOpTypePerChannelSupportToAxis CalibTensorRangeSymmetric CalibMovingAverage "
        "CalibMovingAverageConstant CalibMaxIntermediateOutputs CalibPercentile CalibStridedMinMax QuantizeBias "
        "SmoothQuant SmoothQuantAlpha SmoothQuantFolding UseQDQContribOps MinimumRealRange "
        "QDQKeepRemovableActivations QDQDisableWeightAdjustForInt32Bias DefaultTensorType"
    ),
    "TensorQuantOverrides": {"*": keys_of("quant_type scale zero_point symmetric reduce_range rmax rmin axis convert")},
}
ARGUMENTS: Schema = {
    **keys_of(
        "activation_type weight_type op_types_to_quantize nodes_to_quantize nodes_to_exclude per_channel reduce_range "
        "use_external_data_format calibration_data_reader calibrate_method quant_format calibration_providers "
        "calibration_cache_path execution_provider model_input model_output"
    ),
    "extra_options": EXTRA_OPTIONS,
}
_BITS = {"QInt4": 4, "QUInt4": 4, "QInt8": 8, "QUInt8": 8, "QInt16": 16, "QUInt16": 16}
#: Names that no other tool's JSON has at its top.
_MARKS = ("calibrate_method", "activation_type", "nodes_to_exclude", "quant_format", "extra_options")
METHODS = {"MinMax": "minmax", "Entropy": "entropy", "Percentile": "percentile"}
_LINE = re.compile(r"\S.*? [-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?\s*", re.IGNORECASE)
_RAW = re.compile(r"\s*\{\s*\"[^\"]+\"\s*:\s*\{[^{}]*\"(lowest|highest)\"\s*:", re.DOTALL)


def _is_ort_config(name: str, text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    marks = sum(f'"{mark}"' in text for mark in _MARKS)
    extras = sum(f'"{option}"' in text for option in EXTRA_OPTIONS)
    return marks >= 2 or extras >= 1


def _read_config(path: Path) -> Imported:
    content = table(read_json(path))
    if not content:
        raise DataError("the quantization configuration holds no options", where=str(path))
    # A file of extra options alone names them at its top.
    is_extra = not any(mark in content for mark in _MARKS)
    extra = content if is_extra else table(content.get("extra_options"))
    arguments = {} if is_extra else content
    tensors, bits = {}, {}
    for name, overrides in table(extra.get("TensorQuantOverrides")).items():
        entries = [table(entry) for entry in overrides] if isinstance(overrides, list) else []
        facts = _override(entries[0]) if len(entries) == 1 else None
        if facts is not None:
            tensors[name] = facts
        asked = {_BITS.get(member_name(entry.get("quant_type"))) for entry in entries}
        if len(asked) == 1 and None not in asked and not any("convert" in entry for entry in entries):
            bits[name] = asked.pop() or 0
    settings = _ort_settings(arguments, extra)
    requests = Requests(
        floats=words(arguments.get("nodes_to_exclude")) or (),
        layers=words(arguments.get("nodes_to_quantize")) or (),
        bits=bits,
        only_types=words(arguments.get("op_types_to_quantize")),
    )
    unknown = unknown_keys(content, EXTRA_OPTIONS if is_extra else ARGUMENTS)
    return Imported(settings=settings, tensors=tensors, requests=requests, unknown=unknown)


def _ort_settings(arguments: Mapping[str, object], extra: Mapping[str, object]) -> SettingsFacts:
    method = METHODS.get(member_name(arguments.get("calibrate_method")))
    if flag(extra.get("CalibMovingAverage")) and method in (None, "minmax"):
        method = "moving-average"
    symmetric = flag(extra.get("ActivationSymmetric"))
    return SettingsFacts(
        calibration_method=method,
        percentile=number(extra.get("CalibPercentile")),
        per_channel_weights=flag(arguments.get("per_channel")),
        asymmetric_activations=None if symmetric is None else not symmetric,
        activation_bits=_BITS.get(member_name(arguments.get("activation_type"))),
        weight_bits=_BITS.get(member_name(arguments.get("weight_type"))),
        reduce_range=flag(arguments.get("reduce_range")),
        smooth_quant=flag(extra.get("SmoothQuant")),
        float_layers=words(arguments.get("nodes_to_exclude")),
    )


def _override(entry: Mapping[str, object]) -> RecordedFacts | None:
    """A range that is set by hand; None for an override of something else."""
    kind = member_name(entry.get("quant_type"))
    # One that is converted has other bits for some of its readers.
    bits, symmetric = None if "convert" in entry else _BITS.get(kind), flag(entry.get("symmetric"))
    low, high = number(entry.get("rmin")), number(entry.get("rmax"))
    scale, point = number(entry.get("scale")), whole(entry.get("zero_point"))
    if scale is not None and scale > 0 and point is not None and bits is not None:
        return grid(scale, point, bits, signed=not kind.startswith("QU")).model_copy(update={"symmetric": symmetric})
    found = RecordedFacts(low=low, high=high, scale=scale, zero_point=point, bits=bits, symmetric=symmetric)
    return found if found != RecordedFacts() else None


def _is_ort_cache(name: str, text: str) -> bool:
    return '"TensorsData"' in text and text.lstrip().startswith("{")


def _read_cache(path: Path) -> Imported:
    content = table(read_json(path))
    tensors = table(content.get("data"))
    if not tensors:
        raise DataError("the calibration cache holds no tensors", where=str(path))
    method = METHODS.get(member_name(table(content.get("calibration_method")).get("value")))
    settings = SettingsFacts(calibration_method=method, smooth_quant=flag(content.get("smooth_quant")))
    recorded, left = _ranges_by_tensor(tensors, method)
    return Imported(settings=settings, tensors=recorded, notices=left_out("tensors without a readable range", left))


def _is_ort_table(name: str, text: str) -> bool:
    return _RAW.match(text) is not None


def _read_ort_table(path: Path) -> Imported:
    recorded, left = _ranges_by_tensor(table(read_json(path)), None)
    if not recorded:
        raise DataError("the calibration table holds no ranges", where=str(path))
    return Imported(tensors=recorded, notices=left_out("tensors without a readable range", left))


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
    Format("ONNX Runtime quantization configuration", "onnxruntime", _is_ort_config, _read_config),
    Format("ONNX Runtime calibration cache", "onnxruntime", _is_ort_cache, _read_cache),
    Format("ONNX Runtime calibration table", "onnxruntime", _is_ort_table, _read_ort_table),
    Format("ONNX Runtime calibration table (TensorRT)", "onnxruntime", _is_lossy, _refuse_lossy),
)
