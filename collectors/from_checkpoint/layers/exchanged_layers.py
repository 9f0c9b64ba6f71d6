"""Layers whose stored weights are those of another layer of the float checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from quantmedic.collectors.from_checkpoint.checkpoint_pair import Layer, Pair
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Values
from quantmedic.collectors.from_checkpoint.layers.weight_slices import finite_or_zero
from quantmedic.collectors.from_checkpoint.packed.packed_layer import UnreadableLayerError
from quantmedic.collectors.from_checkpoint.weight_values import read_rows
from quantmedic.collectors.pair.weight_grids import ALIKE, ALIKE_ROUNDED, cosine
from quantmedic.engine.case.facts import WeightFacts

#: Output and input channels that are compared: of 2048 unlike weights the cosine is within 0.1 of 0.
_ROWS, _COLUMNS = 8, 256
#: Layers for which another is looked for, at most.
_MOST = 256
#: Shape of float weights.
Shape = tuple[int, ...]
#: Gives a corner of a float tensor, by its name.
Corner = Callable[[str], Values]


def with_twins(found: Sequence[Layer], pair: Pair) -> list[Layer]:
    """The layers, strange ones with the layer that their weights are of; nothing where there is none."""
    strange = {layer.name for layer in [layer for layer in found if _is_strange(layer.facts)][:_MOST]}
    if not strange:
        return list(found)
    others: dict[Shape, list[str]] = {}
    for layer in found:
        others.setdefault(pair.floats.tensors[layer.name].shape, []).append(layer.name)
    corner_of = cache(partial(_corner_of, pair))  # each is read once
    twins = {layer.name: _twin_of(layer, pair, others, corner_of) for layer in found if layer.name in strange}
    exchanges = _exchanges(twins, [layer.name for layer in found])
    return [
        layer.with_facts(**twins[layer.name], **exchanges[layer.name]) if layer.name in strange else layer
        for layer in found
    ]


def _exchanges(twins: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> dict[str, dict[str, object]]:
    """How each strange layer and its twin stand to each other, in words; nothing where it has none.

    Args:
        twins: What was found of the strange layers.
        names: Of all layers.
    """
    partner = {name: f"{twin['twin']}.weight" for name, twin in twins.items() if twin}
    mutual = {name for name, other in partner.items() if partner.get(other) == name}
    places = {name: _blocks_apart(name, partner[name]) for name in mutual}
    found: dict[str, dict[str, object]] = {}
    for name in twins:
        if name not in partner:
            found[name] = {}
            continue
        said = "which changed places with it" if name in mutual else "which does not hold those of this one in turn"
        both = places.get(name)
        if both is not None and _are_whole(both, names, places):
            said = f"as all of {both[0]} and {both[1]} changed places"
        found[name] = {"twin_exchange": said}
    return found


def _blocks_apart(name: str, other: str) -> tuple[str, str] | None:
    """The two blocks, or experts, that two layers are the same part of, in order; None where names differ otherwise."""
    one, two = name.split("."), other.split(".")
    apart = [k for k, (a, b) in enumerate(zip(one, two, strict=False)) if a != b]
    if len(one) != len(two) or len(apart) != 1 or not one[apart[0]].isdigit() or not two[apart[0]].isdigit():
        return None
    first, second = sorted((one[: apart[0] + 1], two[: apart[0] + 1]), key=lambda parts: int(parts[-1]))
    return ".".join(first), ".".join(second)


def _are_whole(blocks: tuple[str, str], names: Sequence[str], places: Mapping[str, tuple[str, str] | None]) -> bool:
    """All layers of both blocks changed places."""
    own = [name for name in names if name.startswith(tuple(f"{block}." for block in blocks))]
    return len(own) > 2 and all(places.get(name) == blocks for name in own)


def _is_strange(own: WeightFacts) -> bool:
    kept = own.similarity_kept if own.similarity_kept is not None else own.similarity
    return kept is not None and kept < ALIKE_ROUNDED


def _corner_of(pair: Pair, name: str) -> Values:
    """Corner ``[rows, inputs]`` of a float tensor."""
    tensor = pair.floats.tensors[name]
    count = min(tensor.shape[0], _ROWS)
    return np.ascontiguousarray(tensor.floats(slice(0, count)).reshape(count, -1)[:, :_COLUMNS])


def _twin_of(layer: Layer, pair: Pair, others: Mapping[Shape, Sequence[str]], corner_of: Corner) -> dict[str, object]:
    stored = _stored_rows(layer, pair)
    own = corner_of(layer.name)
    if stored is None or stored.shape != own.shape:
        return {}
    names = [name for name in others[pair.floats.tensors[layer.name].shape] if name != layer.name]
    best, name = max(((cosine(stored, corner_of(name)), name) for name in names), default=(0.0, ""))
    if best <= ALIKE or cosine(stored, own) >= ALIKE:
        return {}
    return {"twin": name.removesuffix(".weight"), "twin_similarity": best}


def _stored_rows(layer: Layer, pair: Pair) -> Values | None:
    """A corner of what is stored, in the order of the inputs; None where it cannot be read."""
    count = min(pair.floats.tensors[layer.name].shape[0], _ROWS)
    packed = pair.quantized.layers.get(layer.quantized_name.removesuffix("weight").removesuffix("."))
    if packed is None:
        twin = pair.quantized.tensors.get(layer.quantized_name)
        return None if twin is None else twin.floats(slice(0, count)).reshape(count, -1)[:, :_COLUMNS]
    try:
        found = read_rows(packed, slice(0, min(max(count, packed.unit), packed.shape[0])))
    except UnreadableLayerError:
        return None
    return finite_or_zero(found[:count, :_COLUMNS])
