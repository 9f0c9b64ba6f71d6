"""The simulation that a quantized checkpoint asks for: grids of its configuration with the scales that are stored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from quantmedic.collectors.from_checkpoint.declared.stored_scales import (
    INPUT_SCALES,
    INVERSE_SCALE,
    StoredScales,
    cache_scale,
    name_of_cache_scale,
    stored_scales,
)
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.experts import layers_of_expert
from quantmedic.collectors.from_language_model.network import Network
from quantmedic.collectors.from_language_model.running_grids import Grid
from quantmedic.collectors.from_language_model.schemes import (
    InputSchemes,
    UnknownSchemeError,
    cache_grid,
    input_schemes,
)
from quantmedic.collectors.from_language_model.simulation import FUSED, Pair, Simulation, attentions, is_fused
from quantmedic.collectors.from_language_model.skeleton import Skeleton
from quantmedic.engine.case.language_facts import BlockFacts

#: Stored scales fit up to this factor: other texts, and a margin, make as much.
_OFF = 2.0
#: Attention that caches what keys and values are made of, and not these.
_LATENT = ("kv_a_proj_with_mqa", "kv_a_proj")


def asked_simulation(network: Network) -> tuple[Simulation, dict[str, object]]:
    """What the configuration of a quantized checkpoint says of activations and of the cache, with its scales.

    Returns:
        What can be simulated of it, and fields of ``LanguageFacts``: how it is quantized, and what is not simulated.
    """
    schemes = input_schemes(network.weights.checkpoint.settings)
    inputs, left = _input_grids(network, schemes)
    caches, why = _cache_grids(network)
    said = [f"inputs of {count} of the layers: {reason}" for reason, count in left.items()]
    unsaid = _unsaid_scales(network, schemes)
    unknown = [*said, *([f"K/V cache: {why}"] if why else []), *_unsaid_in_words(unsaid)]
    return Simulation(inputs, caches).on(network.skeleton.device), {
        "activations": ", ".join(dict.fromkeys(map(str, inputs.values()))) or None,
        "cache": _caches_in_words(network.skeleton, caches) or None,
        "not_simulated": "; ".join(unknown) or None,
        "scales_unsaid": len(unsaid.inputs) + len(unsaid.caches),
    }


def _unsaid_in_words(unsaid: StoredScales) -> Iterator[str]:
    for what, names in (("inputs", unsaid.inputs), ("the K/V cache", unsaid.caches)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"scales of {what} are stored ({names[0]}{more}), and no configuration says how they are used"


def _unsaid_scales(network: Network, schemes: InputSchemes) -> StoredScales:
    """Stored scales of which the configuration does not say how they are used: something is quantized all the same."""
    weights = network.weights
    own = {weights.names[name] for name in network.skeleton.model.state_dict() if name in weights.names}
    stored = stored_scales(weights.checkpoint.tensors, own)
    inputs = tuple(name for name in stored.inputs if _is_float(partial(schemes.grid_of, name.rpartition(".")[0])))
    return StoredScales(inputs, stored.caches if _is_float(partial(cache_grid, weights.checkpoint.settings)) else ())


def _is_float(grid: Callable[[], Grid | None]) -> bool:
    """The configuration leaves values in float; what it says in an unknown way is told elsewhere."""
    try:
        return grid() is None
    except UnknownSchemeError:
        return False


def _input_grids(network: Network, schemes: InputSchemes) -> tuple[dict[str, Grid], dict[str, int]]:
    """Grids by the name of the layer, and how many are not simulated by why."""
    found: dict[str, Grid] = {}
    left: dict[str, int] = {}
    for name, layers in _layers(network):
        try:
            grids = [grid for layer in layers if (grid := _grid_of_layer(layer, schemes, network.weights)) is not None]
        except UnknownSchemeError as why:
            left[str(why)] = left.get(str(why), 0) + 1
            continue
        if grids:
            found[name] = _widest_grid(grids)
    if _is_head_quantized(network, schemes):
        left["that of the output layer is not quantized here"] = 1
    return found, left


def _is_head_quantized(network: Network, schemes: InputSchemes) -> bool:
    layers = _with_codes([f"{network.skeleton.name_of(network.skeleton.head)}.weight"], network.weights)
    try:
        return any(schemes.grid_of(layer) is not None for layer in layers)
    except UnknownSchemeError:
        return True


def _layers(network: Network) -> Iterator[tuple[str, list[str]]]:
    """Layers by the name of their module, and those of the checkpoint with codes that it stands for."""
    weights = network.weights
    for block in network.skeleton.layers:
        prefix = network.skeleton.name_of(block)
        for own, module in block.named_modules():
            name = f"{prefix}.{own}"
            if is_fused(module):
                yield from _experts(name, module, weights)
            elif isinstance(weight := getattr(module, "weight", None), nn.Parameter) and weight.ndim == 2:
                yield name, _with_codes([f"{name}.weight"], weights)


def _experts(name: str, module: nn.Module, weights: WeightValues) -> Iterator[tuple[str, list[str]]]:
    for part in FUSED:
        for expert in range(len(getattr(module, part))):
            yield f"{name}.{part}.{expert}", _with_codes(layers_of_expert(f"{name}.{part}", expert), weights)


def _with_codes(names: list[str], weights: WeightValues) -> list[str]:
    bases = [own.removesuffix(".weight") for name in names if (own := weights.names.get(name)) is not None]
    return [base for base in bases if base in weights.checkpoint.layers]


def _grid_of_layer(layer: str, schemes: InputSchemes, weights: WeightValues) -> Grid | None:
    grid = schemes.grid_of(layer)
    tensors = weights.checkpoint.tensors
    if grid is not None and f"{layer}.pre_quant_scale" in tensors:
        raise UnknownSchemeError("gains of inputs stored beside the weights (pre_quant_scale)")
    if grid is not None and grid.strategy == "group" and weights.checkpoint.layers[layer].shape[1] % grid.size:
        raise UnknownSchemeError(f"{grid}, which its channels are no multiple of")
    if grid is None or not grid.needs_scale:
        return grid
    part = next((part for part in INPUT_SCALES if f"{layer}.{part}" in tensors), None)
    stored = None if part is None else tensors[f"{layer}.{part}"]
    if stored is None or not stored.is_float or stored.size != 1:
        raise UnknownSchemeError(f"{grid}, but no input_scale of one number is stored")
    scale = torch.from_numpy(stored.floats().ravel())
    if grid.strategy == "group" and part != INVERSE_SCALE:
        scale = 1 / scale  # ModelOpt stores what scales of groups are divided by
    zero = tensors.get(f"{layer}.input_zero_point")
    if grid.is_symmetric or zero is None or zero.size != 1:
        return grid.with_scale(scale)
    return grid.with_scale(scale, torch.tensor([float(zero.load().ravel()[0])]))


def _widest_grid(grids: list[Grid]) -> Grid:
    """One grid for parts that read the same input: that with the widest range, as runtimes take it."""
    if len(grids) == 1 or grids[0].scale is None:
        return grids[0]
    is_widest_first = grids[0].strategy != "group"
    return sorted(grids, key=lambda grid: float(grid.scale.max()), reverse=is_widest_first)[0]  # type: ignore[union-attr]


def _cache_grids(network: Network) -> tuple[dict[str, Pair], str]:
    """Grids of keys and values by the name of the attention, and why they are not simulated."""
    found: dict[str, Pair] = {}
    skeleton, weights = network.skeleton, network.weights
    try:
        grid = cache_grid(weights.checkpoint.settings)
        if grid is None:
            return {}, ""
        for block in skeleton.layers:
            for name, attention in attentions(block, skeleton.name_of(block)):
                own = _own_name(name, attention, weights)
                if _is_latent(attention):
                    found[name] = _of_latent_cache(grid, attention, own, weights)
                else:
                    found[name] = _of_cache(grid, own, "k", weights), _of_cache(grid, own, "v", weights)
    except UnknownSchemeError as why:
        return {}, str(why)
    return found, "" if found else f"{grid}, and attention that takes no cache"


def _caches_in_words(skeleton: Skeleton, caches: Mapping[str, Pair]) -> str:
    said = ", ".join(dict.fromkeys(str(grid) for pair in caches.values() for grid in pair))
    owners = [own for block in skeleton.layers for _, own in attentions(block, skeleton.name_of(block))]
    return f"{said}, of latent vectors and rotated keys" if said and all(map(_is_latent, owners)) else said


def _is_latent(attention: nn.Module) -> bool:
    """It caches a vector that keys and values are made of, and the rotated part of keys."""
    return any(hasattr(attention, own) for own in _LATENT)


def _of_latent_cache(grid: Grid, attention: nn.Module, name: str, weights: WeightValues) -> Pair:
    """Both parts with the scale of keys, as vLLM, SGLang and TensorRT-LLM keep them; that of values has no use there.

    Raises:
        UnknownSchemeError: Runtimes keep it otherwise, or transformers caches what is made of it.
    """
    if not hasattr(attention, "expand_kv"):
        raise UnknownSchemeError(f"{grid} of a latent cache, which this release of transformers keeps expanded")
    if hasattr(attention, "indexer"):
        raise UnknownSchemeError(f"{grid} of a latent cache of sparse attention, which runtimes keep in tiles")
    if not (grid.is_float and grid.bits == 8 and grid.strategy == "tensor" and grid.needs_scale):
        raise UnknownSchemeError(f"{grid} of a latent cache, of which float8 with one stored scale is known")
    own = _of_cache(grid, name, "k", weights)
    if own.strategy != "tensor":
        raise UnknownSchemeError(f"{grid} of a latent cache, but k_scale is not one number")
    return own, own


def _of_cache(grid: Grid, attention: str, kind: str, weights: WeightValues) -> Grid:
    """A scale that is missing is 1, as runtimes take it."""
    if not grid.needs_scale:
        return grid
    stored = cache_scale(f"{attention}.", kind, weights.checkpoint.tensors)
    scale = torch.ones(1) if stored is None else torch.from_numpy(stored)
    if grid.strategy == "group":
        return grid.with_scale(1 / scale)
    return replace(grid, strategy="head" if scale.numel() > 1 else "tensor").with_scale(scale)


def misfit_scales(network: Network, blocks: Sequence[BlockFacts]) -> dict[str, object]:
    """Scales of the cache that are stored and more than twice off, and what the texts need: facts of the models.

    Args:
        network: The quantized one.
        blocks: What was measured of its blocks, in their order.
    """
    skeleton, weights = network.skeleton, network.weights
    found: dict[str, tuple[float, float]] = {}
    for block, facts in zip(skeleton.layers, blocks, strict=True):
        for name, attention in attentions(block, skeleton.name_of(block)):
            own = _own_name(name, attention, weights)
            for kind, (stored, needed) in _scales_by_kind(facts, is_latent=_is_latent(attention)).items():
                tensor = name_of_cache_scale(f"{own}.", kind, weights.checkpoint.tensors)
                if tensor is not None and stored and needed and _is_off(stored, needed):
                    found[tensor] = stored, needed
    return _misfits("cache", found)


def misfit_inputs(network: Network, blocks: Sequence[BlockFacts]) -> dict[str, object]:
    """The same of scales of inputs, by the numbers that are stored: facts of the models; see ``misfit_scales``.

    Scales with a zero point that is not 0 are left out: how far they reach is no matter of the largest magnitude alone.
    """
    needed = {own.layer: own.scale_needed for block in blocks for own in block.inputs}
    weights, tensors = network.weights, network.weights.checkpoint.tensors
    found: dict[str, tuple[float, float]] = {}
    for name, layers in _layers(network):
        for layer in layers if needed.get(name) else ():
            part = next((part for part in INPUT_SCALES if f"{layer}.{part}" in tensors), None)
            if part is None or _has_zero_point(layer, weights):
                continue
            stored, wanted = float(tensors[f"{layer}.{part}"].floats().max()), needed[name] or 0.0
            wanted = 1 / wanted if part == INVERSE_SCALE else wanted
            if stored > 0 and _is_off(stored, wanted):
                found[f"{layer}.{part}"] = stored, wanted
    return _misfits("input", found)


def _is_off(stored: float, needed: float) -> bool:
    return not 1 / _OFF <= stored / needed <= _OFF


def _misfits(what: str, found: Mapping[str, tuple[float, float]]) -> dict[str, object]:
    """Facts of scales by tensor: what is needed, what is stored, and how many there are."""
    return {
        f"{what}_scales": {tensor: needed for tensor, (_, needed) in found.items()},
        f"{what}_scales_stored": {tensor: stored for tensor, (stored, _) in found.items()},
        f"{what}_scales_off": len(found),
    }


def _has_zero_point(layer: str, weights: WeightValues) -> bool:
    zero = weights.checkpoint.tensors.get(f"{layer}.input_zero_point")
    return zero is not None and bool(zero.load().any())


def _scales_by_kind(facts: BlockFacts, *, is_latent: bool) -> dict[str, tuple[float | None, float | None]]:
    """What is stored and what is needed; a latent cache has one scale, that both of its parts need."""
    if is_latent:
        needed = [each for each in (facts.key_scale_needed, facts.value_scale_needed) if each is not None]
        return {"k": (facts.key_scale, max(needed, default=None))}
    return {"k": (facts.key_scale, facts.key_scale_needed), "v": (facts.value_scale, facts.value_scale_needed)}


def _own_name(name: str, attention: nn.Module, weights: WeightValues) -> str:
    """What the checkpoint calls a module: its name with other prefixes, by that of one of its tensors."""
    for part, _ in attention.named_parameters():
        own = weights.names.get(f"{name}.{part}")
        if own is not None and own.endswith(f".{part}"):
            return own.removesuffix(f".{part}")
    return name
