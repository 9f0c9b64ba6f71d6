"""What a configuration of compressed-tensors says of a quantization, as a recipe of llm-compressor takes it."""

import json
from collections.abc import Mapping

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


def declared_recipe(settings: Mapping[str, object]) -> dict[str, object]:
    """Fields of ``CheckpointFacts``: ``config_groups`` and ``kv_cache_scheme`` as JSON.

    None where the configuration has none, or more than a recipe is read for.
    """
    groups = settings.get("config_groups")
    known = {str(name): found for name, group in _items(groups) if (found := _group(group)) is not None}
    is_whole = 0 < len(known) == len(_items(groups)) <= _MOST and all(len(name) <= _LONGEST for name in known)
    cache = _arguments(settings.get("kv_cache_scheme"))
    return {
        "declared_groups": json.dumps(known) if is_whole else None,
        "declared_cache": json.dumps(cache) if cache else None,
    }


def is_per_channel(settings: Mapping[str, object]) -> bool:
    """Weights of all groups have one scale per output channel."""
    weights = [group.get("weights") for _, group in _items(settings.get("config_groups")) if isinstance(group, Mapping)]
    return bool(weights) and all(isinstance(own, Mapping) and own.get("strategy") == "channel" for own in weights)


def _items(value: object) -> list[tuple[object, object]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _group(group: object) -> dict[str, object] | None:
    """One entry of ``config_groups``; None where it names no layers, or is not of this form."""
    targets = group.get("targets") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(targets, list) or not 0 < len(targets) <= _MOST:
        return None
    if not all(isinstance(each, str) and len(each) <= _LONGEST for each in targets):
        return None
    return {"targets": targets, **{part: own for part in _PARTS if (own := _arguments(group.get(part)))}}


def _arguments(found: object) -> dict[str, object]:
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
