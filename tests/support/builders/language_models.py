"""Small language models of transformers with random weights, texts that they predict well, and references."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from builders import checkpoints as made

transformers.utils.logging.set_verbosity_error()
VOCABULARY = 300
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: Configuration of a small network by architecture.
ARCHITECTURES: Mapping[str, Callable[[], Any]] = {
    "Llama": lambda: transformers.LlamaConfig(**SIZES),
    "Llama, tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "Qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "Qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
    "Gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=16, query_pre_attn_scalar=16),
    "Gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=16),
    "Phi3": lambda: transformers.Phi3Config(**SIZES),
    "Mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
    "GPT-2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=4, bos_token_id=1, eos_token_id=2
    ),
}


def random_model(architecture: str, seed: int = 0, spread: float = 3.0) -> Any:
    """Random weights of three times the usual spread, so that predictions are far from even."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(ARCHITECTURES[architecture]()).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim > 1:
                value.mul_(spread)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def opened(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def rounded(model: Any, bits: Callable[[str], int | None], size: int = 0) -> Any:
    """Weights on a symmetric grid per output channel, or per group; None of bits leaves a tensor as it is."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1 and (own := bits(name)) is not None:
                groups = value.view(len(value), -1, size or value.shape[-1])
                step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / (2 ** (own - 1) - 1)
                value.copy_(((groups / step).round() * step).view_as(value))
    return model


def spoken(model: Any, texts: int, length: int, seed: int = 0) -> NDArray[np.int64]:
    """Texts that the model itself writes, drawn from its predictions."""
    torch.manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (texts, 1))
    with torch.inference_mode():
        for _ in range(length - 1):
            odds = torch.softmax(model(ids).logits[:, -1], -1)
            ids = torch.cat([ids, torch.multinomial(odds, 1)], 1)
    return ids.numpy()


def expected(floats: Any, quantized: Any, ids: NDArray[np.int64]) -> dict[str, float]:
    """What both models predict, by the formulas of llama.cpp's perplexity tool in float64, all logits at once."""
    tokens = torch.from_numpy(ids)
    with torch.inference_mode():
        p, q = (model(tokens).logits[:, :-1].double().log_softmax(-1) for model in (floats, quantized))
    target = tokens[:, 1:, None]
    at_p, at_q = p.gather(-1, target), q.gather(-1, target)
    divergence = (p.exp() * (p - q)).sum(-1).numpy()
    return {
        "float": float((-at_p).mean().exp()),
        "quantized": float((-at_q).mean().exp()),
        "kl_mean": float(divergence.mean()),
        "kl_tail": float(np.quantile(divergence, 0.999)),
        "same_top": float((p.argmax(-1) == q.argmax(-1)).double().mean()),
        "delta_p": float((at_q.exp() - at_p.exp()).square().mean().sqrt()),
    }


def packed_config(kind: str) -> dict[str, Any]:
    """The whole configuration of the checkpoints of ``builders.checkpoints``."""
    sizes = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": made.HIDDEN,
        "intermediate_size": made.INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": made.VOCABULARY,
        "tie_word_embeddings": False,
    }
    return sizes if not kind else {**sizes, "quantization_config": made.CONFIGS[kind]}


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
