"""Facts of a quantized checkpoint by itself: what its configuration declares against what its tensors are."""

from collections.abc import Mapping, Sequence
from math import isfinite

from quantmedic.collectors.from_checkpoint.comparison import Pair
from quantmedic.collectors.from_checkpoint.config_differences import config_differences
from quantmedic.collectors.from_checkpoint.declared_layers import declared, departures, modules_of
from quantmedic.collectors.from_checkpoint.declared_recipe import declared_recipe, is_per_channel
from quantmedic.collectors.from_checkpoint.fused_scales import fused_scales
from quantmedic.collectors.from_checkpoint.kv_scales import kv_scales
from quantmedic.collectors.from_checkpoint.packed_layer import Settings
from quantmedic.collectors.from_checkpoint.running_grids import running_grids
from quantmedic.collectors.from_checkpoint.scale_reaches import cache_reaches, input_reaches
from quantmedic.collectors.from_checkpoint.stored_differences import differs
from quantmedic.collectors.from_checkpoint.stored_scales import stored_scales
from quantmedic.collectors.from_checkpoint.tied_weights import is_tied, untied

#: Scales of fused parts are different from here on.
_ALIKE = 1.01


def declared_facts(pair: Pair) -> dict[str, object]:
    """Fields of ``CheckpointFacts``; None where the configuration says nothing of it."""
    differences = config_differences(pair.floats.config, pair.quantized.config)
    stored = stored_scales(pair.quantized.tensors, pair.floats.tensors)
    told: dict[str, object] = {"running_grids": running_grids(pair.quantized.settings, stored)}
    if differences is not None:
        told |= {"config_differences": differences, "differing_settings": len(differences)}
    told |= {**_weight_facts(pair.quantized.settings), **_kv_facts(pair), **_reach_facts(pair), **_fused_facts(pair)}
    return {**told, **_layer_facts(pair), **_tied_facts(pair)}


def _weight_facts(settings: Mapping[str, object]) -> dict[str, object]:
    """How weights were quantized, which a new run has to be told again."""
    said = Settings.of(settings)
    return {
        **declared_recipe(settings),
        "declared_group_size": -1 if is_per_channel(settings) else said.group_size,
        "declared_symmetric": said.symmetric,
        "declared_order": said.activation_order,
    }


def _kv_facts(pair: Pair) -> dict[str, object]:
    weights = [pair.names[name] for name in pair.floats.tensors if name in pair.names]
    found = kv_scales(pair.quantized.settings, weights, pair.quantized.tensors)
    if found.asked is None or not found.blocks:
        return {}
    counted = _count_names("kv_missing", found.missing)
    return {"kv_cache": found.asked, "kv_blocks": found.blocks, "kv_of_one": len(found.of_one), **counted}


def _reach_facts(pair: Pair) -> dict[str, object]:
    cache, inputs = cache_reaches(pair), input_reaches(pair)
    return {
        **_extreme("cache_reach", cache.usual, -1),
        **_extreme("cache_excess", cache.most, 1),
        **_extreme("cache_steps", cache.steps, -1),
        **_extreme("input_reach", inputs.usual, -1),
    }


def _extreme(name: str, found: Mapping[str, float], sign: int) -> dict[str, object]:
    """The largest figure, or with a sign of -1 the smallest, and which scale has it."""
    known = [scale for scale in found if isfinite(found[scale])]
    if not known:
        return {}
    worst = max(known, key=lambda scale: sign * found[scale])
    return {name: found[worst], f"{name}_scale": worst}


def _fused_facts(pair: Pair) -> dict[str, object]:
    found = fused_scales(pair.layers, pair.quantized.tensors)
    if found.worst is None:
        return {}
    return {
        "fused_layers": len(found.ratios),
        "fused_ratio": found.ratios[found.worst],
        "fused_differing": sum(ratio > _ALIKE for ratio in found.ratios.values()),
        "first_fused": found.worst,
    }


def _layer_facts(pair: Pair) -> dict[str, object]:
    said = declared(pair.quantized.settings)
    if not said.ignores and not said.schemes:
        return {}
    tensors = pair.quantized.tensors
    floats = [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.is_float and len(tensor.shape) == 2
    ]
    found = departures(said, pair.layers, floats, modules_of([*tensors, *pair.floats.tensors]))
    return {
        **_count_names("idle_targets", found.idle_targets, "first_idle_target"),
        **_count_names("idle_ignores", found.idle_ignores, "first_idle_ignore"),
        **_count_names("declared_float", found.quantized),
        **_count_names("declared_quantized", found.left),
        **_count_names("unmet_overrides", found.unmet, "first_unmet_override"),
    }


def _tied_facts(pair: Pair) -> dict[str, object]:
    config = pair.quantized.config
    if not is_tied(config):
        return {}
    return {"untied": untied(config, pair.quantized.tensors, pair.layers, differs) or ""}


def _count_names(name: str, found: Sequence[str], first: str = "") -> dict[str, object]:
    return {name: len(found), first or f"first_{name}": found[0] if found else None}
