"""Quantization configurations of ONNX Runtime as JSON: arguments of ``quantize_static`` or ``StaticQuantConfig``.

The library writes no such file: users keep its arguments, or ``extra_options`` alone, in a JSON file of their own.
Values are as ``str`` gives them (QuantType.QInt8, CalibrationMethod.MinMax) or plain. Names of onnxruntime 1.31.
"""

from collections.abc import Mapping
from pathlib import Path

from quantmedic.collectors.from_settings.ort_tables import METHODS
from quantmedic.collectors.toolchain_files.formats import Format, Imported, Requests
from quantmedic.collectors.toolchain_files.settings_files import read_json
from quantmedic.collectors.toolchain_files.values import flag, grid, number, table, unknown_keys, whole, words
from quantmedic.engine.case.facts import RecordedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

ARGUMENTS = (
    "activation_type",
    "weight_type",
    "op_types_to_quantize",
    "nodes_to_quantize",
    "nodes_to_exclude",
    "per_channel",
    "reduce_range",
    "use_external_data_format",
    "calibration_data_reader",
    "calibrate_method",
    "quant_format",
    "calibration_providers",
    "calibration_cache_path",
    "extra_options",
    "execution_provider",
    "model_input",
    "model_output",
)
EXTRA_OPTIONS = (
    "extra.Sigmoid.nnapi",
    "ActivationSymmetric",
    "ActivationRestrictedAsymmetric",
    "WeightSymmetric",
    "EnableSubgraph",
    "ForceQuantizeNoInputCheck",
    "MatMulConstBOnly",
    "AddQDQPairToWeight",
    "OpTypesToExcludeOutputQuantization",
    "DedicatedQDQPair",
    "QDQOpTypePerChannelSupportToAxis",
    "CalibTensorRangeSymmetric",
    "CalibMovingAverage",
    "CalibMovingAverageConstant",
    "CalibMaxIntermediateOutputs",
    "CalibPercentile",
    "CalibStridedMinMax",
    "QuantizeBias",
    "SmoothQuant",
    "SmoothQuantAlpha",
    "SmoothQuantFolding",
    "UseQDQContribOps",
    "MinimumRealRange",
    "TensorQuantOverrides",
    "QDQKeepRemovableActivations",
    "QDQDisableWeightAdjustForInt32Bias",
    "DefaultTensorType",
)
OVERRIDE_KEYS = ("quant_type", "scale", "zero_point", "symmetric", "reduce_range", "rmax", "rmin", "axis", "convert")
_BITS = {"QInt4": 4, "QUInt4": 4, "QInt8": 8, "QUInt8": 8, "QInt16": 16, "QUInt16": 16}
#: Names that no other tool's JSON has at its top.
_MARKS = ("calibrate_method", "activation_type", "nodes_to_exclude", "quant_format", "extra_options")


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
    unknown = [*unknown_keys(arguments, ARGUMENTS), *unknown_keys(extra, EXTRA_OPTIONS)]
    tensors, bits = {}, {}
    for name, overrides in table(extra.get("TensorQuantOverrides")).items():
        entries = [table(entry) for entry in overrides] if isinstance(overrides, list) else []
        unknown += [text for entry in entries for text in unknown_keys(entry, OVERRIDE_KEYS, f"{name}: ")]
        facts = _override(entries[0]) if len(entries) == 1 else None
        if facts is not None:
            tensors[name] = facts
        asked = {_BITS.get(_member(entry.get("quant_type"))) for entry in entries}
        if len(asked) == 1 and None not in asked and not any("convert" in entry for entry in entries):
            bits[name] = asked.pop() or 0
    settings = _ort_settings(arguments, extra)
    requests = Requests(
        floats=words(arguments.get("nodes_to_exclude")) or (),
        layers=words(arguments.get("nodes_to_quantize")) or (),
        bits=bits,
        only_types=words(arguments.get("op_types_to_quantize")),
    )
    unknown = [*dict.fromkeys(unknown)]
    return Imported(settings=settings, tensors=tensors, requests=requests, unknown=tuple(unknown))


def _ort_settings(arguments: Mapping[str, object], extra: Mapping[str, object]) -> SettingsFacts:
    method = METHODS.get(_member(arguments.get("calibrate_method")))
    if flag(extra.get("CalibMovingAverage")) and method in (None, "minmax"):
        method = "moving-average"
    symmetric = flag(extra.get("ActivationSymmetric"))
    return SettingsFacts(
        calibration_method=method,
        percentile=number(extra.get("CalibPercentile")),
        per_channel_weights=flag(arguments.get("per_channel")),
        asymmetric_activations=None if symmetric is None else not symmetric,
        activation_bits=_BITS.get(_member(arguments.get("activation_type"))),
        weight_bits=_BITS.get(_member(arguments.get("weight_type"))),
        reduce_range=flag(arguments.get("reduce_range")),
        smooth_quant=flag(extra.get("SmoothQuant")),
        float_layers=words(arguments.get("nodes_to_exclude")),
    )


def _override(entry: Mapping[str, object]) -> RecordedFacts | None:
    """A range that is set by hand; None for an override of something else."""
    kind = _member(entry.get("quant_type"))
    # One that is converted has other bits for some of its readers.
    bits, symmetric = None if "convert" in entry else _BITS.get(kind), flag(entry.get("symmetric"))
    low, high = number(entry.get("rmin")), number(entry.get("rmax"))
    scale, point = number(entry.get("scale")), whole(entry.get("zero_point"))
    if scale is not None and scale > 0 and point is not None and bits is not None:
        return grid(scale, point, bits, signed=not kind.startswith("QU")).model_copy(update={"symmetric": symmetric})
    found = RecordedFacts(low=low, high=high, scale=scale, zero_point=point, bits=bits, symmetric=symmetric)
    return found if found != RecordedFacts() else None


def _member(value: object) -> str:
    """Name of an enumeration's member, alone or behind its class."""
    return str(value).rpartition(".")[2] if isinstance(value, str) else ""


FORMATS = (Format("ONNX Runtime quantization configuration", "onnxruntime", _is_ort_config, _read_config),)
