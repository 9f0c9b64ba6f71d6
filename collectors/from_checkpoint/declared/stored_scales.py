"""Scales of inputs and of the K/V cache that a checkpoint stores, whatever its configuration says of their use.

Those of the cache are held against what the configuration asks for."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored, Values, natural_order

#: Layers that make keys, by which blocks with a cache are counted.
_KEYS = re.compile(r"(.*\.)?(k_proj|qkv_proj|c_attn|kv_a_proj_with_mqa|query_key_value|Wqkv)\.[^.]+")
#: Those of them that make a latent vector, which is cached with the scale of keys.
_LATENT, _LATENT_KINDS = ("kv_a_proj_with_mqa",), ("k",)
#: Names of the scales below the attention of a block: compressed-tensors, its older form, ModelOpt, llama.cpp's kin.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "k": ("k_scale", "k_proj.k_scale", "k_proj.output_scale", "attn.k_scale", "k_cache.scale"),
    "v": ("v_scale", "v_proj.v_scale", "v_proj.output_scale", "attn.v_scale", "v_cache.scale"),
}
#: All of them.
CACHE_SCALES = tuple(name for names in _NAMES.values() for name in names)
#: Types whose small scales ModelOpt raises to 1 on purpose.
_CLAMPED = frozenset(("fp8",))
#: Names of the scale of inputs beside ``weight``; the second is multiplied where the others divide.
INVERSE_SCALE = "input_global_scale"
INPUT_SCALES = ("input_scale", INVERSE_SCALE, "act_scale", "activation_scale")


def kv_facts(settings: Mapping[str, object], names: Iterable[str], tensors: Mapping[str, Stored]) -> dict[str, object]:
    """Fields of ``CheckpointFacts`` on the scales of the cache; none where no stored ones are asked for.

    Blocks whose scales of K and V are both 1 are counted, as they are where nothing was calibrated.

    Args:
        settings: Configuration of the quantized checkpoint.
        names: Names of all its weights.
        tensors: Its tensors.
    """
    asked = asked_cache(settings)
    makers = {match[1] or "": match[2] for name in names if (match := _KEYS.fullmatch(name))}
    if asked is None or not makers:
        return {}
    missing, of_one = [], 0
    for block, maker in sorted(makers.items()):
        kinds = _LATENT_KINDS if maker in _LATENT else tuple(_NAMES)
        scales = [cache_scale(block, kind, tensors) for kind in kinds]
        if any(scale is None for scale in scales):
            missing.append(block.rstrip("."))
        elif asked not in _CLAMPED and all(scale is not None and scale.max() == 1.0 for scale in scales):
            of_one += 1
    return {
        "kv_cache": asked,
        "kv_blocks": len(makers),
        "kv_of_one": of_one,
        "kv_missing": len(missing),
        "first_kv_missing": next(iter(missing), None),
    }


def cache_statement(settings: Mapping[str, object]) -> Mapping[str, object] | str | None:
    """What a configuration says of the cache: a scheme of compressed-tensors, or an algorithm of ModelOpt by name."""
    algorithm, scheme = settings.get("kv_cache_quant_algo"), settings.get("kv_cache_scheme")
    if isinstance(algorithm, str) and algorithm.lower() not in ("none", ""):
        return algorithm
    return scheme if isinstance(scheme, Mapping) else None


def asked_cache(settings: Mapping[str, object]) -> str | None:
    """Type of the codes of the cache that a configuration asks for, with scales that are stored."""
    said = cache_statement(settings)
    if isinstance(said, str):
        return said.lower()
    return None if said is None or said.get("dynamic") is True else code_type(said)


def code_type(scheme: Mapping[str, object]) -> str:
    """Type of the codes of a scheme of compressed-tensors, such as int8."""
    return f"{scheme.get('type') or 'int'}{scheme.get('num_bits') or 8}"


def cache_scale(block: str, kind: str, tensors: Mapping[str, Stored]) -> Values | None:
    """The scale of K or V of a block as it is stored: one number, or one per head; None where there is none.

    Args:
        block: Name of the attention, with a dot behind it.
        kind: ``k`` or ``v``.
        tensors: Of the checkpoint.
    """
    name = name_of_cache_scale(block, kind, tensors)
    stored = None if name is None else tensors[name]
    return stored.floats().ravel() if stored is not None and stored.is_float and stored.size else None


def name_of_cache_scale(block: str, kind: str, tensors: Mapping[str, Stored]) -> str | None:
    """What the tensor with the scale is called; None where there is none. See ``cache_scale``."""
    return next((f"{block}{name}" for name in _NAMES[kind] if f"{block}{name}" in tensors), None)


@dataclass(frozen=True)
class StoredScales:
    """Names of tensors, in their order.

    Attributes:
        inputs: Scales of inputs of layers.
        caches: Scales of keys and of values.
    """

    inputs: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()


def stored_scales(names: Iterable[str], floats: Collection[str]) -> StoredScales:
    """The scales among the tensors of a quantized checkpoint.

    Args:
        names: Of its tensors.
        floats: Names that the network has anyway: what it calls a scale itself is a parameter like others.
    """
    added = sorted((name for name in names if name not in floats), key=natural_order)
    endings = [tuple(f".{part}" for part in parts) for parts in (INPUT_SCALES, CACHE_SCALES)]
    return StoredScales(*(tuple(name for name in added if name.endswith(own)) for own in endings))
