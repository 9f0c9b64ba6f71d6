"""Configurations of Intel Neural Compressor 2: settings, unknown keys, and options without effect.

A mapping of the arguments of ``PostTrainingQuantConfig``, read with version 2.6. Those of version 1 and 3, and what
tuning leaves, are known by their words and refused with what to give instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported, Requests
from quantmedic.collectors.toolchain_files.settings_files import read_json, read_yaml
from quantmedic.collectors.toolchain_files.values import Schema, keys_of, mapping, unknown_keys
from quantmedic.engine.case.facts import SettingsFacts
from quantmedic.engine.errors import DataError

TOOLCHAIN = "Intel Neural Compressor"
#: Types in which an operator counts as left in float: one of weight and activation is enough (run with 2.6).
FLOATS = {"fp32", "bf16", "fp16"}
BITS = {"int8": 8, "uint8": 8, "int4": 4, "int16": 16}
METHODS = {"minmax": "minmax", "kl": "kl", "percentile": "percentile"}
#: The one share of values that the percentile of ONNX models covers, in percent.
PERCENTILE = 99.999
#: Recipes that version 2 takes and no algorithm asks for (source of 2.6).
DROPPED = ("fast_bias_correction", "weight_correction")

#: What makes a key of op_name_dict more than a name; a dot matches itself too.
_SPECIAL = frozenset("\\*+?()[]{}|^$")

_OPERATORS: Schema = {
    "*": {
        "weight": keys_of("granularity scheme dtype algorithm bits bit group_size"),
        "activation": keys_of("granularity scheme dtype algorithm compute_dtype quant_mode"),
    }
}
_ACCURACY = keys_of("higher_is_better criterion tolerable_loss absolute relative keys")
_TUNING = keys_of("strategy strategy_kwargs timeout max_trials objective")
#: Arguments of PostTrainingQuantConfig and QuantizationAwareTrainingConfig, and what their printed form adds.
ARGUMENTS: Schema = {
    **keys_of(
        "approach inputs outputs backend domain model_name quant_format device calibration_sampling_size "
        "example_inputs reduce_range excluded_precisions quant_level diagnosis ni_workload_name framework use_bf16"
    ),
    "recipes": keys_of(
        "smooth_quant smooth_quant_args layer_wise_quant layer_wise_quant_args fast_bias_correction weight_correction "
        "gemm_to_matmul graph_optimization_level first_conv_or_matmul_quantization last_conv_or_matmul_quantization "
        "pre_post_process_quantization add_qdq_pair_to_weight optypes_to_exclude_output_quant dedicated_qdq_pair "
        "rtn_args awq_args gptq_args teq_args autoround_args scale_propagation_max_pooling scale_propagation_concat"
    ),
    "op_type_dict": _OPERATORS,
    "op_name_dict": _OPERATORS,
    "accuracy_criterion": _ACCURACY,
    "AccuracyCriterion": _ACCURACY,
    "tuning_criterion": _TUNING,
    "TuningCriterion": _TUNING,
}
#: Arguments of which one is enough to tell such a configuration.
_MARKS = ("op_type_dict", "op_name_dict", "recipes", "approach", "tuning_criterion")


@dataclass(frozen=True)
class _Operator:
    """Settings of one operator, or of all whose name or type matches."""

    name: str
    said: Mapping[object, object]

    def values(self, part: str, key: str) -> tuple[str, ...]:
        """The choices for one setting of ``weight`` or ``activation``; one alone stands without a list."""
        found = mapping(self.said.get(part)).get(key)
        many = found if isinstance(found, list | tuple) else [] if found is None else [found]
        return tuple(str(each) for each in many)

    @property
    def is_float(self) -> bool:
        types = [self.values(part, "dtype") for part in ("activation", "weight")]
        return any(found and set(found) <= FLOATS for found in types)


def read_config(path: Path) -> Imported:
    """A configuration.

    Raises:
        DataError: It cannot be read, or holds none.
    """
    found = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if not isinstance(found, Mapping):
        raise DataError("the file holds no configuration", where=str(path), help="a mapping of options is expected")
    return imported_config(found, path.name)


def imported_config(found: Mapping[object, object], origin: str) -> Imported:
    """A configuration as facts.

    Args:
        found: What the file holds: the arguments, or the name of their class with them.
        origin: Name of the file.

    Raises:
        DataError: It is no configuration of version 2.
    """
    if len(found) == 1:
        ((name, inner),) = found.items()
        if str(name).endswith("Config") and isinstance(inner, Mapping):
            return imported_config(inner, origin)
    if not any(key in found for key in _MARKS):
        raise DataError(
            f"no configuration of {TOOLCHAIN} 2 is found",
            where=origin,
            help="give the arguments of PostTrainingQuantConfig as JSON or YAML: files of versions 1 and 3, "
            "best_configure and deploy.yaml are not read",
        )
    types, names = (
        [_Operator(str(name), mapping(said)) for name, said in mapping(found.get(key)).items()]
        for key in ("op_type_dict", "op_name_dict")
    )
    recipes = mapping(found.get("recipes"))
    return Imported(
        settings=_settings_of(found, recipes, types, names),
        requests=_requests(names),
        unknown=unknown_keys(found, ARGUMENTS),
        notices=tuple(_config_notices(found, recipes, names)),
    )


def _settings_of(
    found: Mapping[object, object],
    recipes: Mapping[object, object],
    types: Sequence[_Operator],
    names: Sequence[_Operator],
) -> SettingsFacts:
    """Settings that hold for all operators; those of some operators only are left out.

    Where several values are to be tried, only that thresholds are searched is known.
    """
    everywhere = next((each for each in (*types, *names) if each.name == ".*"), _Operator("", {}))
    algorithms = everywhere.values("activation", "algorithm")
    method = METHODS.get(algorithms[0]) if len(algorithms) == 1 else "search" if algorithms else None
    approach, smooth, reduced = found.get("approach"), recipes.get("smooth_quant"), found.get("reduce_range")
    is_known = isinstance(approach, str) and "auto" not in approach
    return SettingsFacts(
        toolchain=TOOLCHAIN,
        calibration_method=method,
        percentile=PERCENTILE if method == "percentile" else None,
        per_channel_weights=_is(everywhere.values("weight", "granularity"), "per_channel"),
        per_channel_activations=_is(everywhere.values("activation", "granularity"), "per_channel"),
        # ONNX models ignore symmetric ones (run with 2.6), and the file does not say which models it is for.
        asymmetric_activations=_is(everywhere.values("activation", "scheme"), "asym") or None,
        weight_bits=_shared_bits(everywhere.values("weight", "dtype")),
        activation_bits=_shared_bits(everywhere.values("activation", "dtype")),
        dynamic="dynamic" in str(approach) if is_known else None,
        smooth_quant=smooth if isinstance(smooth, bool) else None,
        float_layers=_plain_names(names),
        float_types=_plain_names(types),
        reduce_range=reduced if isinstance(reduced, bool) else None,
        # Version 2 takes the recipes that correct biases, and drops them.
        bias_correction=False if any(key in recipes for key in DROPPED) else None,
    )


def _requests(operators: Sequence[_Operator]) -> Requests:
    """What is asked of operators by name; a key that is no pattern may stand for all names that begin with it."""
    named = [(name, each) for each in operators if (name := _plain_name(each.name)) is not None]
    floats = tuple(name for name, each in named if (types := each.values("weight", "dtype")) and set(types) <= FLOATS)
    return Requests(floats=floats, parts=tuple(name for name, _ in named))


def _config_notices(
    found: Mapping[object, object], recipes: Mapping[object, object], names: Sequence[_Operator]
) -> Iterator[str]:
    for key in DROPPED:
        if recipes.get(key) is True:
            yield f"recipes.{key} is taken and does nothing since version 2"
    for end in ("first", "last"):
        if recipes.get(key := f"{end}_conv_or_matmul_quantization") is False:
            yield f"recipes.{key}=False leaves the {end} convolution or matrix product in float"
    for each in names:
        if each.name != ".*" and _plain_name(each.name) is None:
            written = "is a regular expression; as a name it is not found unless re.escape writes it"
            yield f"op_name_dict: {each.name!r} {written}"
    if found.get("diagnosis") is True:
        yield "diagnosis=True ends tuning after one trial"


def _plain_names(operators: Sequence[_Operator]) -> tuple[str, ...] | None:
    """Names of the operators left in float, without those that are patterns."""
    kept = (_plain_name(each.name) for each in operators if each.is_float)
    return tuple(name for name in kept if name is not None) or None


def _plain_name(name: str) -> str | None:
    """The one name that a key of op_name_dict, a regular expression, stands for; None where it is a pattern.

    It is not compiled, since an expression can be written that takes hours to match.
    """
    if not set(name) & _SPECIAL:
        return name
    plain = re.sub(r"\\(.)", r"\1", name)
    return plain if re.escape(plain).replace(r"\-", "-") == name.replace(r"\-", "-") else None


def _is(values: tuple[str, ...], wanted: str) -> bool | None:
    """Whether the one value is the wanted one; None where there is none, or a choice."""
    return values[0].startswith(wanted) if len(values) == 1 else None


def _shared_bits(values: tuple[str, ...]) -> int | None:
    found = {BITS.get(value) for value in values}
    return found.pop() if len(found) == 1 else None


#: Words that no other toolchain's configuration has, of all its versions.
_WORDS = re.compile(
    "PostTrainingQuantConfig|QuantizationAwareTrainingConfig|op_type_dict|op_name_dict|post_training_static_quant|"
    "post_training_dynamic_quant|first_conv_or_matmul_quantization|fast_bias_correction|calibration_sampling_size|"
    "accuracy_criterion|recipe_cfgs|w_granularity|act_granularity|use_layer_wise|model_wise|op_wise|optype_wise|"
    "(?s:quant_format:.*backend:|backend:.*quant_format:)"
)


def _is_inc_config(name: str, text: str) -> bool:
    return name.rpartition(".")[2].lower() in ("json", "yaml", "yml") and _WORDS.search(text) is not None


FORMATS = (Format(f"{TOOLCHAIN} configuration", TOOLCHAIN, _is_inc_config, read_config),)
