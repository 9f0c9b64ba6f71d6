"""Layers that choose which experts of a mixture compute a token."""

from collections.abc import Mapping

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored

#: Last part of their names: Mixtral, Qwen and DeepSeek; GPT-OSS and Llama 4; llama.cpp.
_ROUTERS = frozenset({"gate", "router", "ffn_gate_inp", "shared_expert_gate"})


def is_router_of_experts(name: str, tensors: Mapping[str, Stored]) -> bool:
    """Whether a weight is a router's, by its name and shape and because there are experts."""
    shape = tensors[name].shape
    if name.removesuffix(".weight").rpartition(".")[2] not in _ROUTERS or len(shape) != 2 or shape[0] > shape[1]:
        return False
    return any("expert" in other or "_exps" in other for other in tensors if other != name)
