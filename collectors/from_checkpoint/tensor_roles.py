"""What a weight of a language model is for: by its name, and where that tells nothing by its shape.

Names are those of Hugging Face (Llama, Qwen, Gemma, Mistral, Mixtral, Phi, DeepSeek, GPT-OSS, GPT-2) and of llama.cpp.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.engine.case.weight_facts import TensorRole

#: Patterns of names by what they are for; the first that is found is taken.
_ROLES: tuple[tuple[TensorRole, re.Pattern[str]], ...] = (
    ("norm", re.compile(r"(^|\.)(ln_\w*|\w*norm\w*)(\.weight|\.bias)?$")),
    ("lm_head", re.compile(r"(^|\.)(lm_head|embed_out|output)(\.weight|\.bias)?$")),
    ("embedding", re.compile(r"embed|(^|\.)(wte|wpe)(\.|$)|token_embd|position_embd")),
    ("router", re.compile(r"(^|\.)(router|ffn_gate_inp\w*|shared_expert_gate)(\.|$)|(mlp|moe|ffn)\.gate(\.|$)")),
    ("expert", re.compile(r"expert|_exps|_shexp")),
    ("attention", re.compile(r"attn|attention|(^|\.)(mixer|wqkv|[qkv]_proj|qkv_proj|o_proj)(\.|$)")),
    ("mlp", re.compile(r"(^|[._])(mlp|ffn|feed_forward|moe|fc[12]|(gate|up|gate_up|down)_proj|w[123])([._]|$)")),
)
#: Roles of weights that stay in float in most checkpoints, and rightly so.
RIGHTLY_FLOAT = frozenset(("embedding", "norm", "router", "lm_head"))
#: Last parts of the names of layers that write what others add up: they read no norm.
_WRITERS = frozenset(
    (
        "o_proj", "out_proj", "dense", "c_proj", "wo", "down_proj", "fc2", "w2", "dense_4h_to_h", "attn_output",
        "ffn_down", "ffn_down_exps", "ffn_down_shexp", "linear_2",
    )
)  # fmt: skip
_EMBEDDING_WORDS = ("embed", "token_embd", "wte", "wpe", "word_embeddings")
#: Endings of the names of weights that may be the embeddings, too.
OUTPUT_WEIGHTS = ("lm_head.weight", "output.weight", "embed_out.weight")
_BLOCK = re.compile(r"\.\d+\.")
#: Tables of words have at least so many rows for each column; the inner width of an MLP is at least this many times the
#: hidden size, which shared keys and values make smaller in attention.
_TABLE, _INNER = 4, 1.5
#: Last part of their names: Mixtral, Qwen and DeepSeek; GPT-OSS and Llama 4; llama.cpp.
_ROUTERS = frozenset({"gate", "router", "ffn_gate_inp", "shared_expert_gate"})


def role_of(name: str, shape: Sequence[int] = (), hidden: int | None = None) -> TensorRole | None:
    """What a tensor is for; None where neither its name nor its shape tells.

    Args:
        name: As it stands in the checkpoint.
        shape: Of the tensor.
        hidden: Width of the model, by which shapes are told apart.
    """
    found = next((role for role, pattern in _ROLES if pattern.search(name)), None)
    return found if found is not None else _role_by_shape(name, shape, hidden)


def hidden_size(tensors: Mapping[str, Stored]) -> int | None:
    """The width of a model: the size that most of its vectors have."""
    sizes = Counter(each.shape[0] for each in tensors.values() if len(each.shape) == 1 and each.is_float)
    return sizes.most_common(1)[0][0] if sizes else None


def is_embedding(name: str) -> bool:
    """The weight is a table that is looked up, by its name."""
    return any(word in name.lower() for word in _EMBEDDING_WORDS) and not name.endswith(OUTPUT_WEIGHTS)


def reads_a_norm(name: str) -> bool:
    """The layer reads what a norm writes, as far as its name tells: it is none that adds to the stream."""
    return name.removesuffix(".weight").rpartition(".")[2] not in _WRITERS


def module_around(name: str) -> str:
    """Name of the module that a layer or a norm stands in, by the name of its weight."""
    return name.removesuffix(".weight").rpartition(".")[0]


def _role_by_shape(name: str, shape: Sequence[int], hidden: int | None) -> TensorRole | None:
    if len(shape) == 1:
        return "norm" if name.endswith("weight") else None
    if len(shape) == 3:
        return "expert" if hidden in shape[1:] else None
    if len(shape) != 2 or hidden is None or hidden not in shape:
        return None
    other = shape[0] if shape[1] == hidden else shape[1]
    if _BLOCK.search(name) is None:
        return "embedding" if shape[1] == hidden and other >= _TABLE * hidden else None
    return "mlp" if other >= _INNER * hidden else "attention"


def is_router_of_experts(name: str, tensors: Mapping[str, Stored]) -> bool:
    """Whether a weight is a router's, by its name and shape and because there are experts."""
    shape = tensors[name].shape
    if name.removesuffix(".weight").rpartition(".")[2] not in _ROUTERS or len(shape) != 2 or shape[0] > shape[1]:
        return False
    return any("expert" in other or "_exps" in other for other in tensors if other != name)
