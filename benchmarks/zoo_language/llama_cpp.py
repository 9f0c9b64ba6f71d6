"""Networks of the zoo as llama.cpp's converter and ``llama-quantize`` write them."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))

from builders import gguf_files  # the path comes first

from .networks import HEADS, KV_HEADS, Network, Values, Weights

#: Norms of a block of Gemma, which has four; the second of the others is ``ffn_norm``.
_FOUR_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
#: What ``llama-quantize`` takes where a row is no multiple of 256.
_FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


def write_llama_cpp(
    path: Path, network: Network, weights: Weights, kind_of: Callable[[str], str], *, is_permuted: bool = True
) -> None:
    """Write a file.

    Args:
        path: Where to.
        network: Its architecture.
        weights: By the names of transformers.
        kind_of: Type of a matrix, by its name without ``.weight``.
        is_permuted: Rows of q and k are in the order that the architecture asks for.
    """
    architecture = network.architecture
    assert architecture.in_llama_cpp is not None
    blocks: gguf_files.Blocks = {}
    for name, values in weights.items():
        stored = _reordered(name, values, is_permuted and architecture.in_llama_cpp == "llama")
        if architecture.has_offset_norms and "norm" in name:
            stored = stored + 1
        kind = "F32" if stored.ndim == 1 else kind_of(name.removesuffix(".weight"))
        kind = _FALLBACKS.get(kind, kind) if stored.shape[-1] % 256 else kind
        own = _own_name(name, has_four_norms=architecture.has_offset_norms)
        blocks[own] = (kind, stored.shape, gguf_files.quantized(stored, kind))
    prefix = architecture.in_llama_cpp
    metadata: dict[str, gguf_files.Value] = {
        "general.architecture": prefix,
        f"{prefix}.attention.head_count": HEADS,
        f"{prefix}.attention.head_count_kv": KV_HEADS,
    }
    gguf_files.written(path, blocks, metadata)


def _reordered(name: str, values: Values, is_permuted: bool) -> Values:
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    return np.ascontiguousarray(gguf_files.permute(values, heads)) if heads and is_permuted else values


def _own_name(name: str, *, has_four_norms: bool) -> str:
    base, _, ending = name.rpartition(".")
    if has_four_norms and base.rpartition(".")[2] in _FOUR_NORMS:
        return f"blk.{base.split('.')[2]}.{_FOUR_NORMS[base.rpartition('.')[2]]}.{ending}"
    return gguf_files.llama_name(name)
