"""Configurations of quantized checkpoints that no tool wrote: words where they belong, with anything beside them."""

from typing import Any

from hypothesis import strategies as some

_WORDS = ["float", "token", "fp8", "modelopt", "FP8", "MIXED_PRECISION", "static", "dynamic", "Linear"]
_JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-9, 999) | some.text(max_size=9) | some.sampled_from(_WORDS),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
_FIELDS = ["num_bits", "type", "strategy", "dynamic", "symmetric", "group_size", "block_structure", "actorder"]
_SCHEMES = _JSON | some.dictionaries(some.sampled_from(_FIELDS), _JSON, max_size=6)
_GROUP = some.fixed_dictionaries(
    {"input_activations": _SCHEMES, "targets": _JSON | some.just(["Linear"])}, optional={"weights": _SCHEMES}
)
_SINGLE = ["quant_method", "quant_algo", "kv_cache_quant_algo", "activation_scheme", "weight_block_size", "ignore"]


def strange_configurations() -> some.SearchStrategy[dict[str, Any]]:
    """What may stand under ``quantization_config``."""
    return some.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(_SINGLE, _JSON | some.sampled_from(_WORDS)),
            "quantized_layers": _JSON | some.dictionaries(some.text(max_size=5), _JSON, max_size=3),
            "config_groups": _JSON | some.dictionaries(some.text(max_size=3), _GROUP, max_size=3),
            "kv_cache_scheme": _SCHEMES,
        },
    )
