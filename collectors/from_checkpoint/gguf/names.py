"""Names of llama.cpp, and those of Hugging Face that its converter made them from.

What the converter changes beside the names is told here, too: rows of q and k that are reordered for rotary positions
in pairs, and norms that compute 1 + w and are stored as such.
"""

import re
from collections.abc import Collection, Mapping

#: Prefixes of the names of Hugging Face.
_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.", "transformer.", "language_model.")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(.+_exps)\.(\d+)")
_OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "token_embd": ("embed_tokens",),
    "output": ("lm_head",),
    "output_norm": ("norm", "final_layernorm"),
}
#: Names within a block; the first that the float checkpoint has is taken. ``{}`` is the number of an expert.
_INSIDE: Mapping[str, tuple[str, ...]] = {
    "attn_norm": ("input_layernorm",),
    "attn_q": ("self_attn.q_proj",),
    "attn_k": ("self_attn.k_proj",),
    "attn_v": ("self_attn.v_proj",),
    "attn_qkv": ("self_attn.qkv_proj",),
    "attn_output": ("self_attn.o_proj", "self_attn.dense"),
    "attn_q_norm": ("self_attn.q_norm", "self_attn.q_layernorm"),
    "attn_k_norm": ("self_attn.k_norm", "self_attn.k_layernorm"),
    "ffn_norm": ("pre_feedforward_layernorm", "post_attention_layernorm"),
    "post_attention_norm": ("post_attention_layernorm",),
    "post_ffw_norm": ("post_feedforward_layernorm",),
    "ffn_gate": ("mlp.gate_proj",),
    "ffn_up": ("mlp.up_proj", "mlp.gate_up_proj", "mlp.fc1"),
    "ffn_down": ("mlp.down_proj", "mlp.fc2"),
    "ffn_gate_inp": ("mlp.gate", "block_sparse_moe.gate"),
    "ffn_gate_exps": ("mlp.experts.{}.gate_proj", "block_sparse_moe.experts.{}.w1"),
    "ffn_up_exps": ("mlp.experts.{}.up_proj", "block_sparse_moe.experts.{}.w3"),
    "ffn_down_exps": ("mlp.experts.{}.down_proj", "block_sparse_moe.experts.{}.w2"),
    "ffn_gate_shexp": ("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),
    "ffn_up_shexp": ("mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
    "ffn_down_shexp": ("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"),
    "ffn_gate_inp_shexp": ("mlp.shared_expert_gate",),
}
#: Architectures whose rows of q and k the converter reorders (``LlamaModel.permute``).
_REORDERED = frozenset(
    ("llama", "mistral3", "granite", "granitemoe", "olmo", "smollm3", "arcee", "minicpm", "nanbeige")
)
#: Architectures whose norms the converter adds 1 to; norms of state-space layers are left as they are.
_SHIFTED = frozenset(("gemma", "gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe"))


def hugging_face_name(name: str, floats: Collection[str]) -> str | None:
    """The float tensor that a tensor of llama.cpp was made from; None where there is none of a known name."""
    return next((full for full in _candidates(name) if full in floats), None)


def _candidates(name: str) -> list[str]:
    block = _BLOCK.fullmatch(name)
    if block is None:
        base, _, ending = name.rpartition(".")
        own = [f"{one}.{ending}" for one in _OUTSIDE.get(base, ())]
    else:
        number, part, ending = block.groups()
        expert = _EXPERT.fullmatch(part)
        key, index = expert.groups() if expert else (part, "")
        own = [f"layers.{number}.{one.format(index)}.{ending}" for one in _INSIDE.get(key, ())]
    return [prefix + one for one in own for prefix in _PREFIXES]


def reordered_heads(name: str, architecture: object) -> str | None:
    """Key of the number of heads by which the rows of a tensor are reordered, behind that of the architecture."""
    block = _BLOCK.fullmatch(name)
    if block is None or architecture not in _REORDERED:
        return None
    return {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}.get(block.group(2))


def has_shifted_norm(name: str, architecture: object) -> bool:
    """The tensor is a norm that is stored with 1 added to it."""
    return architecture in _SHIFTED and name.endswith("norm.weight") and "ssm_" not in name
