"""The keys of Intel Neural Compressor's configurations, versions 1 to 3, and the words in them that are read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.toolchain_files.formats import Imported
from quantmedic.collectors.toolchain_files.values import MAX_UNKNOWN
from quantmedic.engine.case.facts import SettingsFacts

TOOLCHAIN = "Intel Neural Compressor"
#: Types in which an operator counts as left in float: one of weight and activation is enough (run with 2.6).
FLOATS = {"fp32", "bf16", "fp16"}
BITS = {"int8": 8, "uint8": 8, "int4": 4, "int16": 16}
METHODS = {"minmax": "minmax", "kl": "kl", "percentile": "percentile"}
#: Characters of a key that may be a name and a type.
MAX_KEY = 2000

#: Known keys, and what stands in them; None where values are not looked into, ``*`` for any key.
Schema = Mapping[str, "Schema | None"]
_ANY: Schema = {"*": None}


def _keys(text: str) -> Schema:
    """Keys whose values are not looked into."""
    return dict.fromkeys(text.split())


_OPERATOR: Schema = {
    "weight": _keys("granularity scheme dtype algorithm bits bit group_size"),
    "activation": _keys("granularity scheme dtype algorithm compute_dtype quant_mode"),
}
_OPERATORS: Schema = {"*": _OPERATOR}
_RECIPES = _keys(
    "smooth_quant smooth_quant_args layer_wise_quant layer_wise_quant_args fast_bias_correction weight_correction "
    "gemm_to_matmul graph_optimization_level first_conv_or_matmul_quantization last_conv_or_matmul_quantization "
    "pre_post_process_quantization add_qdq_pair_to_weight optypes_to_exclude_output_quant dedicated_qdq_pair rtn_args "
    "awq_args gptq_args teq_args autoround_args scale_propagation_max_pooling scale_propagation_concat"
)
#: Arguments of PostTrainingQuantConfig and QuantizationAwareTrainingConfig, and what their printed form adds.
ARGUMENTS: Schema = {
    **_keys(
        "approach inputs outputs backend domain model_name quant_format device calibration_sampling_size "
        "example_inputs reduce_range excluded_precisions quant_level diagnosis ni_workload_name framework use_bf16"
    ),
    "recipes": _RECIPES,
    "op_type_dict": _OPERATORS,
    "op_name_dict": _OPERATORS,
    **dict.fromkeys(
        ("accuracy_criterion", "AccuracyCriterion"),
        _keys("higher_is_better criterion tolerable_loss absolute relative keys"),
    ),
    **dict.fromkeys(
        ("tuning_criterion", "TuningCriterion"), _keys("strategy strategy_kwargs timeout max_trials objective")
    ),
}
#: The YAML of version 1.
DOCUMENT: Schema = {
    **_keys("version device use_bf16 model_conversion"),
    **dict.fromkeys(("model", "evaluation", "pruning", "distillation", "graph_optimization", "mixed_precision"), _ANY),
    "quantization": {
        **_keys("approach quant_level"),
        "train": _ANY,
        "advance": _keys("bias_correction"),
        "calibration": {"sampling_size": None, "dataloader": _ANY},
        "recipes": _RECIPES,
        "model_wise": _OPERATOR,
        "op_wise": _OPERATORS,
        "optype_wise": _OPERATORS,
    },
    "tuning": {
        **_keys("objective random_seed tensorboard diagnosis"),
        "strategy": _ANY,
        "accuracy_criterion": _keys("relative absolute higher_is_better"),
        "multi_objectives": _keys("objective weight higher_is_better"),
        "exit_policy": _keys("timeout max_trials performance_only"),
        "workspace": _keys("path resume"),
    },
}
#: What deploy.yaml holds.
DEPLOYED: Schema = {"model": _keys("inputs outputs backend quant_format domain"), "device": None}
_INTERNAL = "params_list non_tunable_params white_list _is_initialized model_info"
_STATIC = "w_dtype w_sym w_granularity w_algo act_dtype act_sym act_granularity act_algo excluded_precisions"
_GROUPED = (
    "dtype bits use_sym group_size group_dim use_full_range use_mse_search use_layer_wise model_path use_double_quant "
    "double_quant_bits double_quant_dtype double_quant_use_sym double_quant_group_size quant_lm_head"
)
#: Fields of the configurations of version 3, by the name that they have in JSON.
CONFIGURATIONS: Mapping[str, Schema] = {
    "static_quant": _keys(f"{_INTERNAL} {_STATIC}"),
    "pt2e_static_quant": _keys(f"{_INTERNAL} {_STATIC}"),
    "pt2e_dynamic_quant": _keys(f"{_INTERNAL} {_STATIC}"),
    "smooth_quant": _keys(
        f"{_INTERNAL} {_STATIC} alpha folding scale_sharing init_alpha alpha_min alpha_max alpha_step shared_criterion "
        "do_blockwise auto_alpha_args"
    ),
    "rtn": _keys(f"{_INTERNAL} {_GROUPED}"),
    "gptq": _keys(
        f"{_INTERNAL} {_GROUPED} act_order hybrid_order fp8_aware percdamp block_size static_groups true_sequential "
        "use_block_wise"
    ),
    "awq": _keys(f"{_INTERNAL} {_GROUPED} use_auto_scale use_auto_clip folding absorb_layer_dict"),
    "teq": _keys(f"{_INTERNAL} {_GROUPED} absorb_to_layer folding"),
}
_TUNED = re.compile(r"^\(['\"](?P<name>.*?)['\"], ?['\"]?(?P<type>.*?)['\"]?\)$", re.DOTALL)


def operator_key(key: object) -> tuple[str, str] | None:
    """Name and type of an operator by its key; JSON holds the pair as text."""
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key):
        return key[0], key[1]
    match = _TUNED.match(key) if isinstance(key, str) and len(key) <= MAX_KEY else None
    return (match["name"], match["type"]) if match else None


def is_operator_text(key: object) -> bool:
    """The key is an operator's name and type as text."""
    return isinstance(key, str) and operator_key(key) is not None


def imported_settings(
    settings: SettingsFacts, found: Mapping[object, object], schema: Schema, notices: Sequence[str]
) -> Imported:
    """Settings of a configuration, with the keys that its schema does not have."""
    unknown = tuple(islice(unknown_paths(found, schema), MAX_UNKNOWN))
    settings = settings.model_copy(update={"unknown_keys": unknown or None})
    return Imported(settings=settings, unknown=unknown, notices=tuple(notices))


def unknown_paths(found: Mapping[object, object], schema: Schema, path: str = "") -> Iterator[str]:
    """Keys that the schema does not have, with their path and the nearest one that it has."""
    for key, value in found.items():
        name = str(key)
        if name not in schema and "*" not in schema:
            yield f"{path}{name[:MAX_KEY]}{did_you_mean(name[:MAX_KEY], schema)}"
            continue
        inner = schema.get(name, schema.get("*"))
        if inner is not None and isinstance(value, Mapping):
            yield from unknown_paths(value, inner, f"{path}{name}.")
