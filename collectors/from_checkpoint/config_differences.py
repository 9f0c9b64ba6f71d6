"""What the configurations of two checkpoints say of the network otherwise."""

from collections.abc import Iterator, Mapping

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
_HIDDEN = "_"
#: Depth to which tables are compared, and differences that are kept.
_DEPTH, _KEPT = 4, 8


def config_differences(floats: Mapping[str, object], quantized: Mapping[str, object]) -> tuple[str, ...] | None:
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
        if key in _OTHER or key.startswith(_HIDDEN) or key.endswith("_token_id"):
            continue
        mine, theirs = floats[key], quantized[key]
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and depth:
            yield from _pairs(mine, theirs, f"{prefix}{key}.", depth - 1)
        elif mine != theirs:
            yield f"{prefix}{key}"[:80], str(mine)[:60], str(theirs)[:60]
