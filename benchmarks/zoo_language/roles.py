"""What the tensors of a network are, by the names that transformers gives them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .networks import LAYERS, Network, Weights

_BLOCK = re.compile(r"model\.layers\.(\d+)\.")
_EXPERT = re.compile(r".*experts\.(\d+)\.")
_ROUTER = re.compile(r".*(mlp|block_sparse_moe)\.gate")
#: Layers by the last part of their names, and what they are joined into where a network has that instead.
QUERIES, KEYS, VALUES, OUTPUT = "q_proj", "k_proj", "v_proj", "o_proj"
GATES, UPS, DOWNS = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")
#: Layers whose outputs are added to what they started from.
BEFORE_SUMS = (OUTPUT, *DOWNS)
BLOCKS = range(LAYERS)
_IN_FRONT = frozenset((QUERIES, KEYS, VALUES, "qkv_proj"))
_OF_MLP = frozenset((*GATES, *UPS, "gate_up_proj", "gate"))


@dataclass(frozen=True)
class Norm:
    """A norm whose outputs some layers alone read.

    Attributes:
        name: Of its tensor.
        readers: Layers behind it, without ``.weight``; a router may be among them.
    """

    name: str
    readers: tuple[str, ...]


def linears(weights: Weights) -> list[str]:
    """Layers that tools quantize, in order: all matrices within blocks but routers."""
    names = [name.removesuffix(".weight") for name, value in weights.items() if value.ndim == 2]
    inside = [name for name in names if _BLOCK.match(name) and not _ROUTER.fullmatch(name)]
    return sorted(inside, key=lambda name: (block_of(name), name))


def routers(weights: Weights) -> list[str]:
    names = (name.removesuffix(".weight") for name in weights)
    return sorted(name for name in names if _ROUTER.fullmatch(name))


def left_in_float(weights: Weights) -> list[str]:
    """What tools leave in float: routers and the head."""
    return [*routers(weights), *(["lm_head"] if "lm_head.weight" in weights else [])]


def block_of(name: str) -> int:
    """Number of the block of a tensor; -1 outside."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else -1


def of_block(names: Iterable[str], block: int) -> list[str]:
    return [name for name in names if block_of(name) == block]


def last(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]


def expert_of(name: str) -> int | None:
    match = _EXPERT.match(name)
    return int(match[1]) if match else None


def norms(network: Network, block: int) -> list[Norm]:
    """The norms in front of attention and in front of the MLP."""
    names = of_block([name.removesuffix(".weight") for name in network.weights], block)
    has_four = any("pre_feedforward_layernorm" in name for name in names)
    second = "pre_feedforward_layernorm" if has_four else "post_attention_layernorm"
    found: Mapping[str, frozenset[str]] = {"input_layernorm": _IN_FRONT, second: _OF_MLP}
    prefix = f"model.layers.{block}."
    return [
        Norm(f"{prefix}{norm}.weight", tuple(name for name in names if last(name) in readers))
        for norm, readers in found.items()
    ]
