"""Facts of a quantized checkpoint by itself: what its configuration declares against what its tensors are."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from quantmedic.collectors.from_checkpoint.checkpoint_pair import Pair, differs
from quantmedic.collectors.from_checkpoint.declared.declared_layers import departures, modules_of, read_declared
from quantmedic.collectors.from_checkpoint.declared.scale_reaches import reach_facts
from quantmedic.collectors.from_checkpoint.declared.stored_scales import (
    StoredScales,
    cache_statement,
    code_type,
    kv_facts,
    stored_scales,
)
from quantmedic.collectors.from_checkpoint.packed.packed_layer import Settings, config_groups
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored

#: Scales of fused parts are different from here on.
_ALIKE = 1.01
#: Keys that say nothing of what is computed, or that quantization may change.
_OTHER = (
    "quantization_config",
    "compression_config",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "auto_map",
    "attn_implementation",
)
#: Depth to which tables are compared, and differences that are kept.
_DEPTH, _KEPT = 4, 8
#: Keys of ``QuantizationArgs`` that say how numbers are quantized; a recipe with others is refused. Observers are left
#: out, which are chosen by the recipe, and names of them differ between releases.
_KEYS = (
    "num_bits",
    "type",
    "symmetric",
    "strategy",
    "group_size",
    "block_structure",
    "dynamic",
    "actorder",
    "scale_dtype",
    "zp_dtype",
)
_PARTS = ("weights", "input_activations", "output_activations")
#: Orders of columns that recipes no longer take.
_REMOVED_ORDERS = ("group", "dynamic", True)
#: More groups, or patterns of layers, are not written into a recipe.
_MOST = 64
_LONGEST = 200
#: Layers that vLLM, SGLang and TensorRT-LLM put together, by the last part of their names.
_FUSED: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
#: Scales of a whole tensor beside scales per block; kernels take one for all parts.
_SCALES = ("weight_global_scale", "weight_scale_2")
#: Algorithms of ModelOpt that leave activations in float.
_WEIGHTS_ALONE = ("W4A16", "W8A16", "W4A16_AWQ", "NVFP4_W4A16", "W4A16_NVFP4")
#: Type of what has scales of which the configuration says nothing.
_UNSAID = "scales are stored, and no configuration says of which type"
_HEADS, _TABLES = ("lm_head", "output", "embed_out"), ("embed_tokens", "token_embd", "wte")


def declared_facts(pair: Pair) -> dict[str, object]:
    """Fields of ``CheckpointFacts``; None where the configuration says nothing of it."""
    differences = _config_differences(pair.floats.config, pair.quantized.config)
    stored = stored_scales(pair.quantized.tensors, pair.floats.tensors)
    told: dict[str, object] = {"running_grids": running_grids(pair.quantized.settings, stored)}
    if differences is not None:
        told |= {"config_differences": differences, "differing_settings": len(differences)}
    names = [pair.names[name] for name in pair.floats.tensors if name in pair.names]
    told |= _weight_facts(pair.quantized.settings)
    told |= kv_facts(pair.quantized.settings, names, pair.quantized.tensors)
    return {**told, **reach_facts(pair), **_fused_facts(pair), **_layer_facts(pair), **_tied_facts(pair)}


def _weight_facts(settings: Mapping[str, object]) -> dict[str, object]:
    """How weights were quantized, which a new run has to be told again."""
    said = Settings.of(settings)
    return {
        **declared_recipe(settings),
        "declared_group_size": -1 if is_per_channel(settings) else said.group_size,
        "declared_symmetric": said.symmetric,
        "declared_order": said.activation_order,
    }


def _fused_facts(pair: Pair) -> dict[str, object]:
    ratios = _fused_ratios(pair.quantized.layers, pair.quantized.tensors)
    if not ratios:
        return {}
    worst = max(ratios, key=lambda name: ratios[name])
    return {
        "fused_layers": len(ratios),
        "fused_ratio": ratios[worst],
        "fused_differing": sum(ratio > _ALIKE for ratio in ratios.values()),
        "first_fused": worst,
    }


def _layer_facts(pair: Pair) -> dict[str, object]:
    said = read_declared(pair.quantized.settings)
    if not said.ignores and not said.schemes:
        return {}
    tensors = pair.quantized.tensors
    floats = [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.is_float and len(tensor.shape) == 2
    ]
    found = departures(said, pair.quantized.layers, floats, modules_of([*tensors, *pair.floats.tensors]))
    told: dict[str, object] = {field: len(names) for field, names in found.items()}
    return told | {f"first_{field.removesuffix('s')}": next(iter(names), None) for field, names in found.items()}


def _tied_facts(pair: Pair) -> dict[str, object]:
    """What is wrong with output weights and embeddings that the configuration says are one tensor."""
    return {"untied": _difference_of_tied(pair) or ""} if _are_tied(pair.quantized.config) else {}


def _difference_of_tied(pair: Pair) -> str | None:
    tensors, layers = pair.quantized.tensors, pair.quantized.layers
    head, table = (_find_module(names, tensors, layers) for names in (_HEADS, _TABLES))
    if head is None or table is None:
        return None
    quantized = [name in layers for name in (head, table)]
    if quantized[0] != quantized[1]:
        return f"{head if quantized[0] else table} is quantized and {table if quantized[0] else head} is not"
    if all(quantized):
        return None
    both = tensors[f"{head}.weight"], tensors[f"{table}.weight"]
    if both[0].shape != both[1].shape or differs(*both):
        return f"{head} and {table} hold different numbers"
    return None


def _config_differences(floats: Mapping[str, object], quantized: Mapping[str, object]) -> tuple[str, ...] | None:
    """Settings that both name and that differ, as ``key: quantized (float)``; None where one has no configuration.

    A key that one alone has may be a default of the other's version, and does not count.
    """
    if not floats or not quantized:
        return None
    found = [f"{key}: {theirs} ({mine})" for key, mine, theirs in _pairs(floats, quantized, "", _DEPTH)]
    return tuple(found[:_KEPT])


def _pairs(
    floats: Mapping[str, object], quantized: Mapping[str, object], prefix: str, depth: int
) -> Iterator[tuple[str, object, object]]:
    for key in sorted(floats.keys() & quantized.keys()):
        if key in _OTHER or key.startswith("_") or key.endswith("_token_id"):
            continue
        mine, theirs = floats[key], quantized[key]
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and depth:
            yield from _pairs(mine, theirs, f"{prefix}{key}.", depth - 1)
        elif mine != theirs:
            yield f"{prefix}{key}"[:80], str(mine)[:60], str(theirs)[:60]


def declared_recipe(settings: Mapping[str, object]) -> dict[str, object]:
    """Fields of ``CheckpointFacts``: ``config_groups`` and ``kv_cache_scheme`` as JSON.

    None where the configuration has none, or more than a recipe is read for.
    """
    groups, given = config_groups(settings) or {}, settings.get("config_groups")
    known = {name: found for name, group in groups.items() if (found := _recipe_of_group(group)) is not None}
    is_whole = isinstance(given, Mapping) and 0 < len(known) == len(given) <= _MOST
    is_whole = is_whole and all(len(name) <= _LONGEST for name in known)
    cache = _recipe_arguments(cache_statement(settings))
    return {
        "declared_groups": json.dumps(known) if is_whole else None,
        "declared_cache": json.dumps(cache) if cache else None,
    }


def is_per_channel(settings: Mapping[str, object]) -> bool:
    """Weights of all groups have one scale per output channel."""
    weights = [group.get("weights") for group in (config_groups(settings) or {}).values()]
    return bool(weights) and all(isinstance(own, Mapping) and own.get("strategy") == "channel" for own in weights)


def _recipe_of_group(group: Mapping[str, object]) -> dict[str, object] | None:
    """One entry of ``config_groups``; None where it names no layers, or too many."""
    targets = group.get("targets")
    if not isinstance(targets, list) or not 0 < len(targets) <= _MOST:
        return None
    if not all(isinstance(each, str) and len(each) <= _LONGEST for each in targets):
        return None
    return {"targets": targets, **{part: own for part in _PARTS if (own := _recipe_arguments(group.get(part)))}}


def _recipe_arguments(found: object) -> dict[str, object]:
    if not isinstance(found, Mapping):
        return {}
    given = {key: found[key] for key in _KEYS if _is_plain(found.get(key))}
    if given.get("actorder") in _REMOVED_ORDERS:
        del given["actorder"]
    return given


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(isinstance(each, int) for each in value)
    return isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= _LONGEST)


def _fused_ratios(layers: Iterable[str], tensors: Mapping[str, Stored]) -> dict[str, float]:
    """Largest over smallest scale of the parts of fused layers that have such scales, by what the parts become."""
    found: dict[str, float] = {}
    for name in sorted(layers):
        parent, _, last = name.rpartition(".")
        group = next((group for group in _FUSED if group[0] == last), None)
        if group is None:
            continue
        scales = [*_scales_of([f"{parent}.{part}".lstrip(".") for part in group], tensors)]
        if len(scales) > 1:
            found[f"{parent}.{'/'.join(group)}".lstrip(".")] = max(scales) / min(scales)
    return found


def _scales_of(names: Sequence[str], tensors: Mapping[str, Stored]) -> Iterator[float]:
    for name in names:
        stored = next((tensors[f"{name}.{part}"] for part in _SCALES if f"{name}.{part}" in tensors), None)
        value = float(stored.floats().ravel()[0]) if stored is not None and stored.is_float and stored.size == 1 else 0
        if value > 0:
            yield value


def running_grids(settings: Mapping[str, object], stored: StoredScales) -> str | None:
    """Inputs of layers and K/V cache with the types that the configuration asks for; None where both stay in float.

    Args:
        settings: The configuration of the quantization.
        stored: Scales that the checkpoint has: where there are any, something is quantized, said or not.
    """
    inputs, said = ", ".join(dict.fromkeys(_input_types(settings))), cache_statement(settings)
    cache = code_type(said) if isinstance(said, Mapping) else said
    inputs, cache = inputs or (_UNSAID if stored.inputs else ""), cache or (_UNSAID if stored.caches else "")
    parts = [f"{what} ({how})" for what, how in (("inputs of layers", inputs), ("K/V cache", cache)) if how]
    return " and ".join(parts) or None


def _input_types(settings: Mapping[str, object]) -> Iterator[str]:
    algorithm, groups = settings.get("quant_algo"), config_groups(settings)
    if isinstance(algorithm, str) and algorithm.upper() not in (*_WEIGHTS_ALONE, "NONE"):
        yield algorithm
    elif groups is not None:
        schemes = (group.get("input_activations") for group in groups.values())
        yield from (code_type(scheme) for scheme in schemes if isinstance(scheme, Mapping))
    elif settings.get("quant_method") == "fp8":
        yield "float8"


def _are_tied(config: Mapping[str, object]) -> bool:
    text = config.get("text_config")
    own = text.get("tie_word_embeddings") if isinstance(text, Mapping) else None
    return (config.get("tie_word_embeddings") if own is None else own) is True


def _find_module(words: Collection[str], tensors: Mapping[str, Stored], layers: Collection[str]) -> str | None:
    """The module of a checkpoint with one of these names."""
    names = [*layers, *(name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))]
    return next((name for name in names if name.rpartition(".")[2] in words), None)
