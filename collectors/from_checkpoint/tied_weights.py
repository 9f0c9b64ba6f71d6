"""Embeddings and output weights that the configuration says are one tensor, and are stored as two."""

from collections.abc import Callable, Collection, Mapping

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored

_HEADS, _TABLES = ("lm_head", "output", "embed_out"), ("embed_tokens", "token_embd", "wte")


def untied(
    config: Mapping[str, object],
    tensors: Mapping[str, Stored],
    layers: Collection[str],
    differs: Callable[[Stored, Stored], bool],
) -> str | None:
    """What is wrong with tied weights; None where nothing is, or nothing is tied.

    Args:
        config: Of the quantized checkpoint.
        tensors: Its tensors.
        layers: Names of its quantized layers.
        differs: Some element of two tensors differs.
    """
    if not is_tied(config):
        return None
    head, table = _find(_HEADS, tensors, layers), _find(_TABLES, tensors, layers)
    if head is None or table is None:
        return None
    quantized = [name in layers for name in (head, table)]
    if quantized[0] != quantized[1]:
        return f"{head if quantized[0] else table} is quantized and {table if quantized[0] else head} is not"
    if all(quantized):
        return None
    pair = tensors[f"{head}.weight"], tensors[f"{table}.weight"]
    if pair[0].shape != pair[1].shape or differs(*pair):
        return f"{head} and {table} hold different numbers"
    return None


def is_tied(config: Mapping[str, object]) -> bool:
    """The output weights are the embeddings."""
    text = config.get("text_config")
    own = text.get("tie_word_embeddings") if isinstance(text, Mapping) else None
    return (config.get("tie_word_embeddings") if own is None else own) is True


def _find(words: Collection[str], tensors: Mapping[str, Stored], layers: Collection[str]) -> str | None:
    """The module of a checkpoint with one of these names."""
    names = [*layers, *(name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))]
    return next((name for name in names if name.rpartition(".")[2] in words), None)
