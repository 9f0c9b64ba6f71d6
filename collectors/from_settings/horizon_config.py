"""Configurations of Horizon OpenExplorer (D-Robotics): the YAML of hb_mapper and hb_compile, and a quant_config.

Read after the public documentation of RDK X3, Ultra, X5 and S100; versions differ, so that a key that is not known here
may be new. It is named, with the nearest known one.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_json, read_yaml
from quantmedic.collectors.toolchain_files.values import Fields, Schema, flag, keys_of, unknown_keys
from quantmedic.engine.case.facts import SettingsFacts
from quantmedic.engine.errors import DataError

TOOLCHAIN = "Horizon OpenExplorer"
T = TypeVar("T")


#: Keys of a quant_config; names of operators and nodes stand in its other parts.
QUANT_KEYS: Schema = {
    **keys_of("op_config node_config subgraph_config"),
    "model_config": {
        **keys_of("all_node_type model_output_type modelwise_search layerwise_search"),
        "activation": keys_of("calibration_type max_percentile per_channel asymmetric num_bin max_num_bin qtype"),
        "weight": keys_of("bias_correction calibration_type qtype"),
    },
}
#: Keys by group.
KEYS: Mapping[str, Schema] = {
    "model_parameters": keys_of(
        "prototxt caffe_model onnx_model march output_model_file_prefix working_dir layer_out_dump output_nodes "
        "remove_node_type remove_node_name set_node_data_type debug_mode node_info log_level enable_vpu"
    ),
    "input_parameters": keys_of(
        "input_name input_type_train input_layout_train input_type_rt input_layout_rt input_space_and_range "
        "input_shape input_batch norm_type mean_value scale_value std_value separate_batch separate_name"
    ),
    "calibration_parameters": {
        **keys_of(
            "cal_data_dir cal_data_type preprocess_on calibration_type max_percentile per_channel run_on_cpu "
            "run_on_bpu optimization"
        ),
        "quant_config": QUANT_KEYS,
    },
    "compiler_parameters": keys_of(
        "compile_mode debug core_num optimize_level input_source max_time_per_fc jobs advice balance_factor "
        "cache_path cache_mode ability_entry hbdk3_compatible_mode extra_params max_l2m_size"
    ),
    "custom_op": keys_of("custom_op_method op_register_files custom_op_dir"),
}
#: Our names of the values of calibration_type; ``default`` tries several methods.
METHODS = {"max": "minmax", "kl": "kl", "mix": "mix", "default": "search", "load": "load", "skip": "skip"}
#: Which of mean and scale each norm_type uses.
NORMS = {
    "no_preprocess": (),
    "data_mean": ("mean_value",),
    "data_scale": ("scale_value",),
    "data_mean_and_scale": ("mean_value", "scale_value"),
}
#: Colour formats of the deployed model that the toolchain converts to those of training, as documented.
CONVERTIBLE: Mapping[str, frozenset[str]] = {
    "rgb": frozenset({"rgb", "bgr", "nv12", "yuv444"}),
    "bgr": frozenset({"rgb", "bgr", "nv12", "yuv444"}),
    "yuv444": frozenset({"nv12", "yuv444"}),
    "gray": frozenset({"gray"}),
    "featuremap": frozenset({"featuremap"}),
}
_COLOURS = frozenset().union(*CONVERTIBLE.values())
#: Chips whose models hb_compile makes: it calibrates on what the float model reads, and takes norm_type from the other
#: options.
_COMPILED = "nash"
_OPTIMIZATIONS: Mapping[str, Fields] = {
    "set_model_output_int8": {"output_bits": 8},
    "set_model_output_int16": {"output_bits": 16},
    "set_all_nodes_int16": {"activation_bits": 16},
    "asymmetric": {"asymmetric_activations": True},
    "bias_correction": {"bias_correction": True},
    "run_fast": {"calibration_method": "skip"},
}
_OF_TYPE = re.compile(r"set_\w+_(input|output)_int(8|16)|lstm_\w+")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NOTHING = ("", "none", "null")
#: Shares that max_percentile takes, by the documentation.
_PERCENTILES = (0.5, 1.0)
#: Names that one notice lists.
_SHOWN = 3


@dataclass
class GroupReader:
    """Values of the groups by type; a value of another type is left out, with a notice.

    ``inert`` are options that have no effect beside others, each with the reason.
    """

    groups: Mapping[str, Mapping[str, object]]
    notices: list[str] = field(default_factory=list)
    inert: list[str] = field(default_factory=list)

    def value_of(self, group: str, key: str) -> object:
        """The value; None where it is empty or a word such as ``None``."""
        value = self.groups.get(group, {}).get(key)
        return None if isinstance(value, str) and value.strip().lower() in _NOTHING else value

    def as_text(self, group: str, key: str) -> str | None:
        """A word; of several inputs all of them, separated by semicolons."""
        return self._as(group, key, "text", lambda value: value.strip() if isinstance(value, str) else None)

    def as_flag(self, group: str, key: str) -> bool | None:
        """True or False, also as text."""
        return self._as(group, key, "True or False", flag)

    def as_number(self, group: str, key: str) -> float | None:
        """One number, also as text."""
        return self._as(group, key, "a number", lambda value: _one(_numbers_of_text(value)))

    def as_inputs(self, group: str, key: str) -> list[tuple[float, ...] | None] | None:
        """Numbers per channel of every input: ``1 2 3; 4 5 6``, a list, or one number."""

        def numbers_by_input(value: object) -> list[tuple[float, ...] | None] | None:
            parts = value.split(";") if isinstance(value, str) else [value]
            found = [None if _is_none(part) else _numbers_of_text(part) for part in parts if part != ""]
            wrong = any(own is None and not _is_none(part) for own, part in zip(found, parts, strict=False))
            return None if wrong or not found else found

        return self._as(group, key, "numbers", numbers_by_input)

    def as_mapping(self, group: str, key: str) -> Mapping[str, object] | None:
        """A mapping of names."""
        return self._as(group, key, "a mapping", lambda value: value if isinstance(value, Mapping) else None)

    def _as(self, group: str, key: str, what: str, read: Callable[[object], T | None]) -> T | None:
        value = self.value_of(group, key)
        if value is None:
            return None
        found = read(value)
        if found is None:
            self.notices.append(f"{group}.{key} is ignored: expected {what}, not {str(value)[:40]!r}")
        return found


def read_config(path: Path) -> Imported:
    """A configuration of hb_mapper or hb_compile.

    Raises:
        DataError: It cannot be read, or is not a mapping of groups.
    """
    groups = read_yaml(path)
    if not isinstance(groups, Mapping):
        raise DataError(
            "the file is not a Horizon configuration",
            where=f"{path}: {type(groups).__name__} instead of groups of parameters",
            help=f"groups are: {', '.join(KEYS)}",
        )
    notices = [
        f"group {name} is ignored: expected a mapping of parameters, not {type(group).__name__}"
        for name, group in groups.items()
        if name in KEYS and group is not None and not isinstance(group, Mapping)
    ]
    held = {str(name): group for name, group in groups.items() if isinstance(group, Mapping)}
    missing = [name for name in ("model_parameters", "input_parameters", "calibration_parameters") if name not in held]
    if missing:
        notices.append(f"no {', '.join(missing)}: their settings are not judged")
    settings, more = settings_of(held)
    return Imported(settings=settings, unknown=unknown_keys(groups, KEYS), notices=(*notices, *more))


def read_quant_config(path: Path) -> Imported:
    """The quant_config of hb_compile as a file of its own.

    Raises:
        DataError: It cannot be read, or is not a mapping.
    """
    config = read_json(path)
    if not isinstance(config, Mapping):
        raise DataError(
            "the file is not a quant_config",
            where=f"{path}: {type(config).__name__} instead of a mapping",
            help=f"its keys are: {', '.join(sorted(QUANT_KEYS))}",
        )
    settings, notices = settings_of({"calibration_parameters": {"quant_config": config}})
    return Imported(settings=settings, unknown=unknown_keys(config, QUANT_KEYS), notices=tuple(notices))


def settings_of(groups: Mapping[str, Mapping[str, object]]) -> tuple[SettingsFacts, list[str]]:
    """Options in force of all groups, and notices of what could not be read."""
    reader = GroupReader(groups)
    fields: Fields = {"toolchain": TOOLCHAIN}
    fields |= _input_settings(reader)
    fields |= _method_settings(reader, "calibration_parameters")
    fields |= _placement_settings(reader)
    fields |= _optimization_settings(reader)
    fields |= {name: value for name, value in _quant_settings(reader).items() if value is not None}
    if groups:
        fields |= {"inert_options": tuple(reader.inert), "inert_option_count": len(reader.inert)}
    return SettingsFacts.model_validate(fields), reader.notices


def _input_settings(reader: GroupReader) -> Fields:
    group = "input_parameters"
    compiled = _is_compiled(reader)
    norms = _each(reader.as_text(group, "norm_type"))
    runtime, train = (_each(reader.as_text(group, key)) for key in ("input_type_rt", "input_type_train"))
    values = {key: reader.as_inputs(group, key) for key in ("mean_value", "scale_value", "std_value")}
    norm = norms[0].lower() if norms else None
    if norm is not None and norm not in NORMS:
        reader.notices.append(f"norm_type {norm} is not known{did_you_mean(norm, NORMS)}")
    first = {key: given[0] for key, given in values.items() if given and given[0] is not None}
    used = {"mean_value", "scale_value", "std_value"} if compiled or norm not in NORMS else {*NORMS[norm], "std_value"}
    reader.inert += [f"{key}: norm_type is {norm}" for key in first if key not in used]
    scale = first.get("scale_value") if "scale_value" in used else None
    deviation = first.get("std_value")
    if scale is None and deviation is not None and min(deviation) > 0:
        scale = tuple(1 / value for value in deviation)
    mean = first.get("mean_value") if "mean_value" in used else None
    _check_colours(runtime, train, reader.notices)
    normalizes = mean is not None or scale is not None
    return {
        "input_order_runtime": runtime[0].lower() if runtime else None,
        "input_order_train": train[0].lower() if train else None,
        "norm_type": norm,
        "input_mean": mean,
        "input_scale": scale,
        "calibrates_raw": None if compiled is None or not normalizes else not compiled,
    }


def _is_compiled(reader: GroupReader) -> bool | None:
    """Made by hb_compile; None where the configuration does not show it."""
    march = reader.as_text("model_parameters", "march")
    if reader.value_of("calibration_parameters", "quant_config") is not None:
        return True
    return march.lower().startswith(_COMPILED) if march is not None else None


def _check_colours(runtime: list[str], train: list[str], notices: list[str]) -> None:
    for fed, trained in zip(runtime, train, strict=False):
        fed, trained = fed.lower(), trained.lower()
        for key, name in (("input_type_rt", fed), ("input_type_train", trained)):
            if name not in _COLOURS and not name.startswith(("yuv", "rgb", "bgr")):
                notices.append(f"{key} {name} is not known{did_you_mean(name, sorted(_COLOURS))}")
        if trained in CONVERTIBLE and fed in _COLOURS and fed not in CONVERTIBLE[trained]:
            notices.append(f"input_type_rt {fed} cannot be converted to input_type_train {trained}")


def _method_settings(reader: GroupReader, group: str) -> Fields:
    """How thresholds are chosen. ``max_percentile`` acts only with max, ``per_channel`` not with default."""
    word, percentile = reader.as_text(group, "calibration_type"), reader.as_number(group, "max_percentile")
    kind, per_channel = word.lower() if word is not None else None, reader.as_flag(group, "per_channel")
    fields: Fields = {}
    if kind is not None and kind not in METHODS:
        reader.notices.append(f"calibration_type {kind} is not known{did_you_mean(kind, METHODS)}")
    fields["calibration_method"] = METHODS.get(kind or "")
    if percentile is not None and not _PERCENTILES[0] <= percentile <= _PERCENTILES[1]:
        meant = f"; is {percentile / 100:g} meant?" if 50 <= percentile <= 100 else ""
        low, high = _PERCENTILES
        reader.notices.append(f"max_percentile {percentile:g} is outside of {low:g} … {high:g}{meant}")
    elif percentile is not None and percentile < 1 and kind == "max":
        fields |= {"calibration_method": "percentile", "percentile": 100 * percentile}
    elif percentile is not None and percentile < 1 and kind is not None:
        reader.inert.append(f"max_percentile: calibration_type is {kind}, not max")
    if per_channel and kind == "default":
        reader.inert.append("per_channel: calibration_type default decides by itself")
    elif per_channel is not None and kind is not None and kind != "default":
        fields["per_channel_activations"] = per_channel
    return fields


def _placement_settings(reader: GroupReader) -> Fields:
    """Nodes that are kept on the CPU, and those that compute with 16 bits."""
    host = _each(reader.as_text("calibration_parameters", "run_on_cpu"))
    wide: list[str] = []
    given = reader.value_of("model_parameters", "node_info")
    for pairs in (given if isinstance(given, str) else None, reader.as_text("model_parameters", "set_node_data_type")):
        wide += [name for name, _, kind in (part.rpartition(":") for part in _each(pairs)) if kind.strip() == "int16"]
    nodes = reader.as_mapping("model_parameters", "node_info") if not isinstance(given, str) else None
    for name, node in (nodes or {}).items():
        if not isinstance(node, Mapping):
            reader.notices.append(f"node_info of {name} is ignored: expected a mapping, not {str(node)[:40]!r}")
            continue
        host += [str(name)] if str(node.get("ON", "")).upper() == "CPU" else []
        wide += [str(name)] if any(str(value) == "int16" for key, value in node.items() if key != "ON") else []
    fields = {"host_layers": tuple(dict.fromkeys(host)), "wide_layers": tuple(dict.fromkeys(wide))}
    return {name: names for name, names in fields.items() if names}


def _optimization_settings(reader: GroupReader) -> Fields:
    given = reader.value_of("calibration_parameters", "optimization")
    words = [str(word) for word in given] if isinstance(given, list) else re.split(r"[;,\s]+", str(given or ""))
    fields: Fields = {}
    for word in filter(None, words):
        if word in _OPTIMIZATIONS:
            fields |= _OPTIMIZATIONS[word]
        elif not _OF_TYPE.fullmatch(word):
            reader.notices.append(f"optimization {word[:60]} is not known{did_you_mean(word, _OPTIMIZATIONS)}")
    return fields


def _quant_settings(reader: GroupReader) -> Fields:
    """Settings of a quant_config; what it leaves out stands in the groups."""
    if isinstance(file := reader.value_of("calibration_parameters", "quant_config"), str):
        reader.notices.append(f"the quant_config is a separate file, which must be given too: {file[:80]}")
        return {}
    config = reader.as_mapping("calibration_parameters", "quant_config")
    if not config:
        return {}
    parts = {name: _quant_part(config, name, reader) for name in QUANT_KEYS}
    model = parts["model_config"]
    activation = _quant_part(model, "activation", reader)
    single = {key: value for key, value in activation.items() if not isinstance(value, list)}
    single |= {key: value[0] for key, value in activation.items() if isinstance(value, list) and len(value) == 1}
    own = GroupReader({"activation": single}, reader.notices, reader.inert)
    fields: Fields = {"asymmetric_activations": own.as_flag("activation", "asymmetric")}
    if {"calibration_type", "max_percentile"} & activation.keys() - single.keys():
        fields["calibration_method"] = "search"
    elif activation:
        fields |= _method_settings(own, "activation")
    if _quant_part(model, "weight", reader).get("bias_correction"):
        fields["bias_correction"] = True
    fields["activation_bits"] = _bits_of_type(model.get("all_node_type"))
    fields["output_bits"] = _bits_of_type(model.get("model_output_type"))
    for name, key, wanted in (
        ("wide_layers", "node_config", "int16"),
        ("float_layers", "node_config", "float"),
        ("float_types", "op_config", "float"),
    ):
        fields[name] = tuple(_names_with_type(parts[key], wanted)) or None
    return fields


def _quant_part(config: Mapping[str, object], name: str, reader: GroupReader) -> Mapping[str, object]:
    part = config.get(name)
    if part is not None and not isinstance(part, Mapping):
        reader.notices.append(f"{name} of quant_config is ignored: expected a mapping, not {str(part)[:40]!r}")
    return part if isinstance(part, Mapping) else {}


def _names_with_type(part: Mapping[str, object], wanted: str) -> Iterator[str]:
    """Names in a part of a quant_config that get a type of this kind."""
    for name, given in part.items():
        if isinstance(given, Mapping) and any(str(value).startswith(wanted) for value in given.values()):
            yield str(name)


def _bits_of_type(kind: object) -> int | None:
    return {"int8": 8, "int16": 16}.get(kind) if isinstance(kind, str) else None


def _each(text: str | None) -> list[str]:
    """Parts between semicolons."""
    return [part.strip() for part in (text or "").split(";") if part.strip()]


def _is_none(part: object) -> bool:
    return part is None or (isinstance(part, str) and part.strip().lower() in _NOTHING)


def _numbers_of_text(value: object) -> tuple[float, ...] | None:
    """The numbers of a text or list; None where anything else stands there."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        found: Iterable[float] = (float(value),)
    elif isinstance(value, str):
        words = re.split(r"[\s,]+", value.strip().strip("[]()").strip())
        if not all(_NUMBER.fullmatch(word) for word in words):
            return None
        found = map(float, words)
    elif isinstance(value, list | tuple) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
        found = map(float, value)
    else:
        return None
    numbers = tuple(found)
    return numbers if numbers and all(map(math.isfinite, numbers)) else None


def _one(numbers: tuple[float, ...] | None) -> float | None:
    return numbers[0] if numbers is not None and len(numbers) == 1 else None


_GROUP = re.compile(rf"^[\"']?({'|'.join(KEYS)})[\"']?[ \t]*:", re.M)
_QUANT = re.compile(r"[\"'](model_config|op_config|node_config|subgraph_config)[\"']\s*:")
_QUANT_WORD = re.compile(r"[\"'](all_node_type|model_output_type|qtype|calibration_type|InputType|input0)[\"']\s*:")


def _is_horizon_config(name: str, text: str) -> bool:
    return len(set(_GROUP.findall(text))) > 1


def _is_quant_config(name: str, text: str) -> bool:
    return text.lstrip().startswith("{") and bool(_QUANT.search(text)) and bool(_QUANT_WORD.search(text))


FORMATS = (
    Format("Horizon configuration", TOOLCHAIN, _is_horizon_config, read_config),
    Format("Horizon quant_config", TOOLCHAIN, _is_quant_config, read_quant_config),
)
