"""The networks of the zoo: byte-level language models of transformers' own classes, trained here in a minute each."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file

from .texts import VOCABULARY, drawn_texts, held_out_bytes, training_bytes, unigram_entropy

Values = NDArray[np.float32]
Weights = Mapping[str, Values]
WIDTH, LAYERS, HEADS, KV_HEADS = 128, 4, 4, 2
#: A network that has not learned so much against a guess by frequency is not taken, in nats per byte.
LEARNED = 0.6
_STEPS, _BATCH, _LENGTH, _RATE = 500, 16, 128, 3e-3
_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS: Mapping[str, Any] = {**_SIZES, "intermediate_size": 128, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """How a network is built.

    Attributes:
        name: The name of the architecture in this zoo.
        config: Makes its configuration.
        is_tuned: Rules may be tuned on networks of it.
        has_offset_norms: Its norms compute 1 + w.
        is_fused: q, k and v are one layer, and gate and up are another.
        in_llama_cpp: Its name there; None where the zoo does not write it.
    """

    name: str
    config: Callable[[], Any]
    is_tuned: bool = True
    has_offset_norms: bool = False
    is_fused: bool = False
    in_llama_cpp: str | None = None


def _gemma() -> Any:
    return transformers.Gemma2Config(
        **_SIZES, head_dim=32, sliding_window=128, query_pre_attn_scalar=32, tie_word_embeddings=True
    )


def _qwen_experts() -> Any:
    return transformers.Qwen3MoeConfig(
        **_EXPERTS, num_experts=6, moe_intermediate_size=128, head_dim=32, norm_topk_prob=True, decoder_sparse_step=1
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    each.name: each
    for each in (
        Architecture("llama", lambda: transformers.LlamaConfig(**_SIZES), in_llama_cpp="llama"),
        Architecture("gemma2", _gemma, has_offset_norms=True, in_llama_cpp="gemma2"),
        Architecture("mixtral", lambda: transformers.MixtralConfig(**_EXPERTS, num_local_experts=4)),
        Architecture("qwen2", lambda: transformers.Qwen2Config(**_SIZES), in_llama_cpp="qwen2"),
        Architecture("phi3", lambda: transformers.Phi3Config(**_SIZES), is_tuned=False, is_fused=True),
        Architecture("qwen3moe", _qwen_experts, is_tuned=False),
    )
}


@dataclass(frozen=True)
class Network:
    """A trained network.

    Attributes:
        architecture: How it is built.
        seed: Of its weights and of the texts that it learned from.
        folder: What ``save_pretrained`` wrote, in bfloat16.
        config: Its ``config.json``.
        weights: As float32, by name.
    """

    architecture: Architecture
    seed: int
    folder: Path
    config: Mapping[str, Any]
    weights: Weights

    @property
    def name(self) -> str:
        return f"{self.architecture.name}-{self.seed}"


def trained(architecture: Architecture, seed: int, folder: Path, steps: int = _STEPS) -> Network:
    """The network, trained unless the folder holds it.

    Raises:
        RuntimeError: It learned too little.
    """
    own = folder / f"{architecture.name}-{seed}"
    if not (own / "trained.json").is_file():
        _train(architecture, seed, own, steps)
    told = json.loads((own / "trained.json").read_text())
    if told["steps"] >= _STEPS and told["loss"] > told["unigram"] - LEARNED:
        raise RuntimeError(f"{own.name} learned too little: {told}")
    weights = {name: value.float().numpy() for name, value in load_file(own / "model.safetensors").items()}
    return Network(architecture, seed, own, json.loads((own / "config.json").read_text()), weights)


def _train(architecture: Architecture, seed: int, folder: Path, steps: int) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    started = time.process_time()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(architecture.config(), attn_implementation="eager")
    _learn(model.train(), seed, steps)
    model.eval().to(torch.bfloat16).save_pretrained(folder)
    told = {
        "steps": steps,
        "loss": _loss(model.float(), drawn_texts(held_out_bytes(), 32, _LENGTH, 0)),
        "unigram": unigram_entropy(),
        "seconds": time.process_time() - started,
    }
    (folder / "trained.json").write_text(json.dumps(told))


def _learn(model: Any, seed: int, steps: int) -> None:
    """AdamW with a warm start and a rate that falls to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.05)
    source = training_bytes()
    for step in range(steps):
        rate = _RATE * min((step + 1) / 40, 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = torch.from_numpy(drawn_texts(source, _BATCH, _LENGTH, seed * 100_000 + step))
        loss = model(ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _loss(model: Any, texts: NDArray[np.int64]) -> float:
    ids = torch.from_numpy(texts)
    with torch.inference_mode():
        return float(model(ids, labels=ids, use_cache=False).loss)
