"""Configurations of Intel Neural Compressor 1 to 3: what was set, what of it is not known and what does nothing.

Read with versions 2.6 and 3.7: ``PostTrainingQuantConfig`` as a mapping, the YAML of version 1 that 2 still takes, the
JSON of version 3, and the choice per operator that tuning leaves (``best_configure``, ``qconfig.json``, ``cfg.pkl``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.from_settings.files import read_json, read_yaml
from quantmedic.collectors.from_settings.formats import Format, Imported
from quantmedic.collectors.from_settings.values import MAX_UNKNOWN
from quantmedic.engine.case.facts import ReportedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

TOOLCHAIN = "Intel Neural Compressor"
#: Types in which an operator counts as left in float: one of weight and activation is enough (run with 2.6).
FLOATS = {"fp32", "bf16", "fp16"}
BITS = {"int8": 8, "uint8": 8, "int4": 4, "int16": 16}
#: The one share of values that the percentile of ONNX models covers, in percent.
PERCENTILE = 99.999
METHODS = {"minmax": "minmax", "kl": "kl", "percentile": "percentile"}
#: Of these, 2.x takes the setting and no algorithm asks for it (source of 2.6).
DROPPED = ("fast_bias_correction", "weight_correction")

#: Characters of a key that may be a name and a type.
MAX_KEY = 2000

Schema = Mapping[str, Any]
_ANY: Schema = {"*": None}


def _named(text: str) -> Schema:
    return dict.fromkeys(text.split())


_OPERATOR: Schema = {
    "weight": _named("granularity scheme dtype algorithm bits bit group_size"),
    "activation": _named("granularity scheme dtype algorithm compute_dtype quant_mode"),
}
_OPERATORS: Schema = {"*": _OPERATOR}
_RECIPES = _named(
    "smooth_quant smooth_quant_args layer_wise_quant layer_wise_quant_args fast_bias_correction weight_correction "
    "gemm_to_matmul graph_optimization_level first_conv_or_matmul_quantization last_conv_or_matmul_quantization "
    "pre_post_process_quantization add_qdq_pair_to_weight optypes_to_exclude_output_quant dedicated_qdq_pair rtn_args "
    "awq_args gptq_args teq_args autoround_args scale_propagation_max_pooling scale_propagation_concat"
)
#: Arguments of PostTrainingQuantConfig and QuantizationAwareTrainingConfig, and what their printed form adds.
ARGUMENTS: Schema = {
    **_named(
        "approach inputs outputs backend domain model_name quant_format device calibration_sampling_size "
        "example_inputs reduce_range excluded_precisions quant_level diagnosis ni_workload_name framework use_bf16"
    ),
    "recipes": _RECIPES,
    "op_type_dict": _OPERATORS,
    "op_name_dict": _OPERATORS,
    **dict.fromkeys(
        ("accuracy_criterion", "AccuracyCriterion"),
        _named("higher_is_better criterion tolerable_loss absolute relative keys"),
    ),
    **dict.fromkeys(
        ("tuning_criterion", "TuningCriterion"), _named("strategy strategy_kwargs timeout max_trials objective")
    ),
}
#: The YAML of version 1.
DOCUMENT: Schema = {
    **_named("version device use_bf16 model_conversion"),
    **dict.fromkeys(("model", "evaluation", "pruning", "distillation", "graph_optimization", "mixed_precision"), _ANY),
    "quantization": {
        **_named("approach quant_level"),
        "train": _ANY,
        "advance": _named("bias_correction"),
        "calibration": {"sampling_size": None, "dataloader": _ANY},
        "recipes": _RECIPES,
        "model_wise": _OPERATOR,
        "op_wise": _OPERATORS,
        "optype_wise": _OPERATORS,
    },
    "tuning": {
        **_named("objective random_seed tensorboard diagnosis"),
        "strategy": _ANY,
        "accuracy_criterion": _named("relative absolute higher_is_better"),
        "multi_objectives": _named("objective weight higher_is_better"),
        "exit_policy": _named("timeout max_trials performance_only"),
        "workspace": _named("path resume"),
    },
}
#: What deploy.yaml holds.
DEPLOYED: Schema = {"model": _named("inputs outputs backend quant_format domain"), "device": None}
_INTERNAL = "params_list non_tunable_params white_list _is_initialized model_info"
_STATIC = "w_dtype w_sym w_granularity w_algo act_dtype act_sym act_granularity act_algo excluded_precisions"
_GROUPED = (
    "dtype bits use_sym group_size group_dim use_full_range use_mse_search use_layer_wise model_path use_double_quant "
    "double_quant_bits double_quant_dtype double_quant_use_sym double_quant_group_size quant_lm_head"
)
#: Fields of the configurations of version 3, by the name that they have in JSON.
CONFIGURATIONS: Mapping[str, Schema] = {
    "static_quant": _named(f"{_INTERNAL} {_STATIC}"),
    "pt2e_static_quant": _named(f"{_INTERNAL} {_STATIC}"),
    "pt2e_dynamic_quant": _named(f"{_INTERNAL} {_STATIC}"),
    "smooth_quant": _named(
        f"{_INTERNAL} {_STATIC} alpha folding scale_sharing init_alpha alpha_min alpha_max alpha_step shared_criterion "
        "do_blockwise auto_alpha_args"
    ),
    "rtn": _named(f"{_INTERNAL} {_GROUPED}"),
    "gptq": _named(
        f"{_INTERNAL} {_GROUPED} act_order hybrid_order fp8_aware percdamp block_size static_groups true_sequential "
        "use_block_wise"
    ),
    "awq": _named(f"{_INTERNAL} {_GROUPED} use_auto_scale use_auto_clip folding absorb_layer_dict"),
    "teq": _named(f"{_INTERNAL} {_GROUPED} absorb_to_layer folding"),
}
_SCOPES = ("local", "global")
#: What makes a key of op_name_dict more than a name; a dot matches itself too.
_SPECIAL = frozenset("\\*+?()[]{}|^$")
_TUNED = re.compile(r"^\(['\"](?P<name>.*?)['\"], ?['\"]?(?P<type>.*?)['\"]?\)$", re.DOTALL)


@dataclass(frozen=True)
class _Operator:
    """What is said of one operator, or of all whose name or type matches."""

    name: str
    said: Mapping[str, Any]

    def values(self, part: str, key: str) -> tuple[str, ...]:
        """The choices for one setting of ``weight`` or ``activation``; one alone stands without a list."""
        found = _mapping(self.said.get(part)).get(key)
        many = found if isinstance(found, list | tuple) else [] if found is None else [found]
        return tuple(str(each) for each in many)

    @property
    def is_float(self) -> bool:
        types = [self.values(part, "dtype") for part in ("activation", "weight")]
        return any(found and set(found) <= FLOATS for found in types)


def read_config(path: Path) -> Imported:
    """A configuration of any version.

    Raises:
        DataError: It cannot be read, or holds none.
    """
    found = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if not isinstance(found, Mapping):
        raise DataError("the file holds no configuration", where=str(path), help="a mapping of options is expected")
    return imported_config(found, path.name)


def imported_config(found: Mapping[Any, Any], origin: str) -> Imported:
    """A configuration as facts.

    Args:
        found: What the file holds.
        origin: Name of the file.

    Raises:
        DataError: It is no configuration that is known.
    """
    if len(found) == 1:
        ((name, inner),) = found.items()
        if str(name).endswith("Config") and isinstance(inner, Mapping):
            return imported_config(inner, origin)
    if "op" in found:
        return _tuned(_mapping(found["op"]), found, origin)
    if "quantization" in found or "tuning" in found:
        return _document(found)
    if set(found) <= set(DEPLOYED) and "model" in found:
        return _deployed(found)
    if any(key in found for key in ("op_type_dict", "op_name_dict", "recipes", "approach", "tuning_criterion")):
        return _arguments(found)
    if _version_3(found):
        return _composed(found, origin)
    raise DataError(
        f"no configuration of {TOOLCHAIN} is found",
        where=origin,
        help="it has the arguments of PostTrainingQuantConfig, a key quantization, or the fields of version 3",
    )


def _arguments(found: Mapping[str, Any]) -> Imported:
    """Arguments of PostTrainingQuantConfig."""
    types, names = (_operators(found.get(key)) for key in ("op_type_dict", "op_name_dict"))
    everywhere = [each for each in (*types, *names) if each.name == ".*"]
    settings = _settings(
        approach=found.get("approach"),
        recipes=_mapping(found.get("recipes")),
        everywhere=everywhere[0] if everywhere else _Operator("", {}),
        types=types,
        names=names,
        samples=found.get("calibration_sampling_size"),
    )
    reduced = found.get("reduce_range")
    recipes = _mapping(found.get("recipes"))
    settings = settings.model_copy(
        update={
            "reduce_range": reduced if isinstance(reduced, bool) else None,
            # Version 2 takes the recipes that correct biases, and drops them.
            "bias_correction": False if any(key in recipes for key in DROPPED) else None,
        }
    )
    notices = [*_dropped(recipes), *_kept_ends(found), *_patterns(names)]
    if found.get("diagnosis") is True:
        notices.append("diagnosis=True ends tuning after one trial")
    return _result(settings, found, ARGUMENTS, notices)


def _document(found: Mapping[str, Any]) -> Imported:
    """The YAML of version 1."""
    quantization = _mapping(found.get("quantization"))
    types, names = (_operators(quantization.get(key)) for key in ("optype_wise", "op_wise"))
    everywhere = _Operator("", _mapping(quantization.get("model_wise")))
    recipes = _mapping(quantization.get("recipes"))
    settings = _settings(
        approach=quantization.get("approach"),
        recipes=recipes,
        everywhere=everywhere,
        types=types,
        names=names,
        samples=_mapping(quantization.get("calibration")).get("sampling_size"),
    )
    bits = everywhere.values("weight", "bit")
    if bits and all(each in ("7", "7.0") for each in bits):
        settings = settings.model_copy(update={"reduce_range": True})
    notices = [*_dropped(recipes), *_kept_ends(quantization), *_patterns(names)]
    return _result(settings, found, DOCUMENT, notices)


def _deployed(found: Mapping[str, Any]) -> Imported:
    notice = "deploy.yaml tells format and device only, not how the model was quantized"
    return _result(SettingsFacts(toolchain=TOOLCHAIN), found, DEPLOYED, [notice])


def _settings(
    *,
    approach: Any,
    recipes: Mapping[str, Any],
    everywhere: _Operator,
    types: Sequence[_Operator],
    names: Sequence[_Operator],
    samples: Any,
) -> SettingsFacts:
    """What versions 1 and 2 were told; what is said of some operators only is no setting of all."""
    smooth = recipes.get("smooth_quant")
    return SettingsFacts(
        toolchain=TOOLCHAIN,
        **_grids(everywhere),
        calibration_samples=_first_number(samples),
        dynamic=_is_dynamic(approach),
        smooth_quant=smooth if isinstance(smooth, bool) else None,
        float_layers=_plain_names(names),
        float_types=_plain_names(types),
    )


def _grids(told: _Operator) -> dict[str, Any]:
    """Facts on thresholds and grids; where several values are to be tried, only that thresholds are searched."""
    algorithms = told.values("activation", "algorithm")
    method = METHODS.get(algorithms[0]) if len(algorithms) == 1 else "search" if algorithms else None
    return {
        "calibration_method": method,
        "percentile": PERCENTILE if method == "percentile" else None,
        "per_channel_weights": _is(told.values("weight", "granularity"), "per_channel"),
        "per_channel_activations": _is(told.values("activation", "granularity"), "per_channel"),
        "asymmetric_weights": _is(told.values("weight", "scheme"), "asym"),
        # Symmetric ones are asked for in vain of ONNX models (run with 2.6), and nothing here tells which models.
        "asymmetric_activations": _is(told.values("activation", "scheme"), "asym") or None,
        "weight_bits": _bits(told.values("weight", "dtype")),
        "activation_bits": _bits(told.values("activation", "dtype")),
    }


def _tuned(operators: Mapping[Any, Any], found: Mapping[Any, Any], origin: str) -> Imported:
    """What tuning chose, operator by operator: every one is listed, so what they share is in force."""
    chosen = {key: _Operator(key[0], _mapping(said)) for name, said in operators.items() if (key := _tuned_key(name))}
    if not chosen:
        raise DataError(
            "no operator is listed", where=f"{origin}: op", help="expected are keys such as ('conv', 'Conv')"
        )
    quantized = [each for each in chosen.values() if not each.is_float]
    shared = [_grids(each) for each in quantized if each.values("weight", "dtype")] or [{}]
    same = {key: value for key, value in shared[0].items() if all(each.get(key) == value for each in shared)}
    recipes = _mapping(found.get("recipe_cfgs"))
    smooth = recipes.get("smooth_quant")
    settings = SettingsFacts(
        toolchain=TOOLCHAIN,
        **same,
        calibration_samples=_first_number(found.get("calib_sampling_size")),
        dynamic=_is_dynamic(found.get("approach")),
        smooth_quant=smooth if isinstance(smooth, bool) else None,
        float_layers=tuple(each.name for each in chosen.values() if each.is_float) or None,
    )
    layers = {each.name: ReportedFacts(origin=origin, dtype=_dtype(each)) for each in chosen.values()}
    unreadable = len(operators) - len(chosen)
    notices = [f"{unreadable} entries of op have no name and type"] if unreadable else []
    return Imported(
        settings=settings,
        layers=layers,
        layer_types={name: op_type for name, op_type in chosen if op_type},
        notices=(*notices, *_dropped(recipes)),
    )


def _tuned_key(key: Any) -> tuple[str, str] | None:
    """Name and type of an operator; JSON holds the pair as text."""
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key):
        return key[0], key[1]
    match = _tuned_text(key)
    return (match["name"], match["type"]) if match else None


def _tuned_text(key: Any) -> re.Match[str] | None:
    return _TUNED.match(key) if isinstance(key, str) and len(key) <= MAX_KEY else None


def _dtype(operator: _Operator) -> str | None:
    if operator.is_float:
        return "float"
    found = operator.values("activation", "dtype")
    return f"int{BITS[found[0]]}" if len(found) == 1 and found[0] in BITS else None


def _version_3(found: Mapping[Any, Any]) -> bool:
    """It has the shape of a configuration of version 3: fields, scopes, several by name, or one per module."""
    fields = {key for known in CONFIGURATIONS.values() for key in known} - {"dtype", "bits", "folding"}
    if fields & set(found) or set(found) & set(_SCOPES) or set(found) & set(CONFIGURATIONS):
        return True
    return bool(found) and all(_tuned_text(key) for key in found)


def _composed(found: Mapping[str, Any], origin: str) -> Imported:
    """Version 3: one configuration, several by name, or one per module."""
    if all(_tuned_text(key) for key in found):
        return _per_module(found, origin)
    named = {key: _mapping(value) for key, value in found.items() if key in CONFIGURATIONS}
    if not named:
        guessed = _configuration(found, _guessed(found))
        if "excluded_precisions" in (_mapping(found.get("global")) or found):
            return guessed
        # Static and dynamic differ by their name alone, and it is not in the file.
        unsure = guessed.settings.model_copy(update={"dynamic": None, "smooth_quant": None})
        return replace(guessed, settings=unsure)
    parts = [_configuration(value, name) for name, value in named.items()]
    others = {key: value for key, value in found.items() if key not in named}
    told: dict[str, Any] = {}
    for part in parts:
        told |= part.settings.model_dump(exclude_none=True)
    unknown = [*islice(_unknown(others, CONFIGURATIONS), MAX_UNKNOWN), *(key for part in parts for key in part.unknown)]
    notices = [notice for part in parts for notice in part.notices]
    if len(parts) > 1:
        notices.append(f"{', '.join(named)} are given together: each module takes the first that fits it")
    settings = SettingsFacts(**told).model_copy(update={"unknown_keys": tuple(unknown) or None})
    return Imported(settings=settings, unknown=tuple(unknown), notices=tuple(notices))


def _guessed(found: Mapping[str, Any]) -> str:
    """The configuration that has the most of these fields; the first where they are equal."""
    fields = set(_mapping(found.get("global")) or found)
    return max(CONFIGURATIONS, key=lambda name: len(fields & set(CONFIGURATIONS[name])))


def _configuration(found: Mapping[str, Any], name: str) -> Imported:
    """One configuration of version 3, with what is set for single modules or types."""
    scoped = any(scope in found for scope in _SCOPES)
    overall = _mapping(found.get("global")) if scoped else found
    local = _mapping(found.get("local"))
    kept = [each for each, said in local.items() if _is_float_3(_mapping(said))]
    types = tuple(each for each in kept if _is_type(each))
    told = _told_3(overall, name)
    told["float_layers"] = tuple(each for each in kept if not _is_type(each)) or None
    told["float_types"] = types or None
    schema: Schema = CONFIGURATIONS[name]
    if scoped:
        schema = {"global": schema, "local": {"*": schema}}
    return _result(SettingsFacts(**told), found, schema, [])


def _told_3(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Facts by the fields of version 3."""
    symmetric = found.get("w_sym", found.get("use_sym"))
    activations = found.get("act_sym")
    bits = found.get("bits")
    granularity = found.get("w_granularity")
    is_8bit = name in ("static_quant", "pt2e_static_quant", "pt2e_dynamic_quant", "smooth_quant")
    return {
        "toolchain": TOOLCHAIN,
        "dynamic": name == "pt2e_dynamic_quant" if is_8bit else None,
        "smooth_quant": name == "smooth_quant" if is_8bit else None,
        "calibration_method": METHODS.get(str(found.get("act_algo"))),
        "per_channel_weights": None if granularity is None else granularity == "per_channel",
        "asymmetric_weights": not symmetric if isinstance(symmetric, bool) else None,
        "asymmetric_activations": not activations if isinstance(activations, bool) else None,
        "weight_bits": BITS.get(str(found.get("w_dtype"))) or (bits if type(bits) is int else None),
        "activation_bits": BITS.get(str(found.get("act_dtype"))),
    }


def _per_module(found: Mapping[str, Any], origin: str) -> Imported:
    """``qconfig.json``: the configuration of every module."""
    kept: list[str] = []
    layers: dict[str, ReportedFacts] = {}
    told: list[dict[str, Any]] = []
    for key, said in found.items():
        name = (_tuned_key(key) or (key, ""))[0]
        for kind, fields in _mapping(said).items():
            is_float = _is_float_3(_mapping(fields))
            layers[name] = ReportedFacts(origin=origin, dtype="float" if is_float else None)
            if is_float:
                kept.append(name)
            else:
                told.append(_told_3(_mapping(fields), str(kind)))
    same = {key: value for key, value in told[0].items() if all(t.get(key) == value for t in told)} if told else {}
    settings = SettingsFacts(**{**same, "toolchain": TOOLCHAIN, "float_layers": tuple(kept) or None})
    return Imported(settings=settings, layers=layers)


def _is_float_3(found: Mapping[str, Any]) -> bool:
    return {str(found.get("w_dtype", found.get("dtype"))), str(found.get("act_dtype", "fp32"))} <= FLOATS


def _is_type(name: str) -> bool:
    """Types of modules are written like classes, names like attributes."""
    return "." not in name and name[:1].isupper()


def _result(settings: SettingsFacts, found: Mapping[str, Any], schema: Schema, notices: Sequence[str]) -> Imported:
    unknown = tuple(islice(_unknown(found, schema), MAX_UNKNOWN))
    settings = settings.model_copy(update={"unknown_keys": unknown or None})
    return Imported(settings=settings, unknown=unknown, notices=tuple(notices))


def _unknown(found: Mapping[Any, Any], schema: Schema, path: str = "") -> Iterator[str]:
    """Keys that the schema does not have, with their path and the nearest one that it has."""
    for key, value in found.items():
        if key not in schema and "*" not in schema:
            yield f"{path}{str(key)[:MAX_KEY]}{did_you_mean(str(key)[:MAX_KEY], schema)}"
            continue
        inner = schema.get(key, schema.get("*"))
        if inner is not None and isinstance(value, Mapping):
            yield from _unknown(value, inner, f"{path}{key}.")


def _operators(found: Any) -> list[_Operator]:
    return [_Operator(str(name), _mapping(said)) for name, said in _mapping(found).items()]


def _dropped(recipes: Mapping[str, Any]) -> list[str]:
    return [f"recipes.{key} is taken and does nothing since version 2" for key in DROPPED if recipes.get(key) is True]


def _kept_ends(found: Mapping[str, Any]) -> list[str]:
    recipes = _mapping(found.get("recipes"))
    return [
        f"recipes.{end}_conv_or_matmul_quantization=False leaves the {end} convolution or matrix product in float"
        for end in ("first", "last")
        if recipes.get(f"{end}_conv_or_matmul_quantization") is False
    ]


def _plain_names(operators: Sequence[_Operator]) -> tuple[str, ...] | None:
    """Names of the operators left in float, without those that are patterns."""
    kept = (_literal(each.name) for each in operators if each.is_float)
    return tuple(name for name in kept if name is not None) or None


def _literal(name: str) -> str | None:
    """The one name that a key of op_name_dict, a regular expression, stands for; None where it is a pattern.

    It is not compiled, since an expression can be written that takes hours to match.
    """
    if not set(name) & _SPECIAL:
        return name
    plain = re.sub(r"\\(.)", r"\1", name)
    return plain if re.escape(plain).replace(r"\-", "-") == name.replace(r"\-", "-") else None


def _patterns(names: Sequence[_Operator]) -> list[str]:
    return [
        f"op_name_dict: {each.name!r} is a regular expression; as a name it is not found unless re.escape writes it"
        for each in names
        if each.name != ".*" and _literal(each.name) is None
    ]


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _is(values: tuple[str, ...], wanted: str) -> bool | None:
    """Whether the one value is the wanted one; None where there is none, or a choice."""
    return values[0].startswith(wanted) if len(values) == 1 else None


def _bits(values: tuple[str, ...]) -> int | None:
    found = {BITS.get(value) for value in values}
    return found.pop() if len(found) == 1 else None


def _first_number(value: Any) -> int | None:
    found = value[0] if isinstance(value, list | tuple) and value else value
    return found if type(found) is int else None


def _is_dynamic(approach: Any) -> bool | None:
    if not isinstance(approach, str) or "auto" in approach:
        return None
    return "dynamic" in approach


#: Words that no other toolchain's configuration has.
_WORDS = (
    "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig",
    "op_type_dict",
    "op_name_dict",
    "first_conv_or_matmul_quantization",
    "fast_bias_correction",
    "calibration_sampling_size",
    "post_training_static_quant",
    "post_training_dynamic_quant",
    "w_granularity",
    "act_granularity",
    "recipe_cfgs",
    "accuracy_criterion",
    "use_layer_wise",
)
_SECTION = re.compile(r"^['\"]?quantization['\"]?:", re.MULTILINE)
_SECTION_WORDS = ("model_wise", "op_wise", "optype_wise", "approach")


def _recognises(name: str, text: str) -> bool:
    if name.rpartition(".")[2].lower() not in ("json", "yaml", "yml"):
        return False
    if any(word in text for word in _WORDS) or ("quant_format:" in text and "backend:" in text):
        return True
    return _SECTION.search(text) is not None and any(word in text for word in _SECTION_WORDS)


FORMATS = (Format(f"{TOOLCHAIN} configuration", TOOLCHAIN, _recognises, read_config),)
