"""Writes what is in this folder with llama.cpp's package ``gguf``: pip install gguf, then run this here.

``blocks.npz`` holds random blocks of each type and what its ``gguf.quants.dequantize`` makes of them; ``q4_0.gguf`` and
``f16.gguf`` are one layer as its ``GGUFWriter`` writes it. Made with gguf 0.19.0.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import quants

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
TYPES += ("IQ4_NL", "IQ4_XS", "MXFP4")
# Later ones come last, so that the random blocks of the others stay as they are.
TYPES += ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4")


def blocks(kind):
    """Random blocks whose values are finite."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    with np.errstate(invalid="ignore"):
        found = RNG.integers(0, 256, (64, size), dtype=np.uint8)
        values = quants.dequantize(found, kind)
    finite = np.isfinite(values).all(axis=1)
    return found[finite][:16], values[finite][:16]


def model(kind):
    """One layer of 64 x 64 weights, a norm, and metadata of every form."""
    values = np.random.default_rng(1).normal(0, 0.05, (64, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(HERE / f"{kind.name.lower()}.gguf", "llama")
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["<s>", "</s>", "ä"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    writer.add_bool("general.tested", True)
    writer.add_tensor("blk.0.ffn_up.weight", quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    recorded = {}
    for name in TYPES:
        recorded[f"{name}/blocks"], recorded[f"{name}/values"] = blocks(gguf.GGMLQuantizationType[name])
    np.savez_compressed(HERE / "blocks.npz", **recorded)
    model(gguf.GGMLQuantizationType.Q4_0)
    model(gguf.GGMLQuantizationType.F16)
