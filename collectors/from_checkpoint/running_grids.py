"""What a configuration quantizes while the network runs, in words: no comparison of weights sees what that costs."""

from collections.abc import Iterator, Mapping

from quantmedic.collectors.from_checkpoint.stored_scales import StoredScales

#: Algorithms of ModelOpt that leave activations in float.
_WEIGHTS_ALONE = ("W4A16", "W8A16", "W4A16_AWQ", "NVFP4_W4A16", "W4A16_NVFP4")


#: Type of what has scales of which the configuration says nothing.
_UNSAID = "scales are stored, and no configuration says of which type"
_NO_SCALES = StoredScales()


def running_grids(settings: Mapping[str, object], stored: StoredScales = _NO_SCALES) -> str | None:
    """Inputs of layers and K/V cache with the types that the configuration asks for; None where both stay in float.

    Args:
        settings: The configuration of the quantization.
        stored: Scales that the checkpoint has: where there are any, something is quantized, said or not.
    """
    inputs, cache = (", ".join(dict.fromkeys(found)) for found in (_inputs(settings), _cache(settings)))
    inputs, cache = inputs or (_UNSAID if stored.inputs else ""), cache or (_UNSAID if stored.caches else "")
    parts = [f"{what} ({how})" for what, how in (("inputs of layers", inputs), ("K/V cache", cache)) if how]
    return " and ".join(parts) or None


def _inputs(settings: Mapping[str, object]) -> Iterator[str]:
    algorithm, groups = settings.get("quant_algo"), settings.get("config_groups")
    if isinstance(algorithm, str) and algorithm.upper() not in (*_WEIGHTS_ALONE, "NONE"):
        yield algorithm
    elif isinstance(groups, Mapping):
        schemes = (group.get("input_activations") for group in groups.values() if isinstance(group, Mapping))
        yield from (_words(scheme) for scheme in schemes if isinstance(scheme, Mapping))
    elif settings.get("quant_method") == "fp8":
        yield "float8"


def _cache(settings: Mapping[str, object]) -> Iterator[str]:
    algorithm, scheme = settings.get("kv_cache_quant_algo"), settings.get("kv_cache_scheme")
    if isinstance(algorithm, str) and algorithm.lower() not in ("none", ""):
        yield algorithm
    elif isinstance(scheme, Mapping):
        yield _words(scheme)


def _words(scheme: Mapping[str, object]) -> str:
    return f"{scheme.get('type') or 'int'}{scheme.get('num_bits') or 8}"
