"""Experts that an architecture holds as one tensor and a checkpoint stores one by one, and routers by other names."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
#: Gives a tensor of the checkpoint; None where it lacks it.
Load = Callable[[str, tuple[int, ...]], Values | None]
#: What checkpoints call the parts of a fused tensor of an expert, in the order in which they are joined.
_PARTS = {
    "mlp.experts.gate_up_proj": (
        ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"),
        ("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight"),
    ),
    "mlp.experts.down_proj": (("mlp.experts.{}.down_proj.weight",), ("block_sparse_moe.experts.{}.w2.weight",)),
}
_RENAMED = {"mlp.gate.weight": "block_sparse_moe.gate.weight"}


def load_otherwise(name: str, shape: tuple[int, ...], load: Load) -> Values | None:
    """A tensor that stands under other names in the checkpoint; None where it is not known how.

    Args:
        name: As the architecture calls it.
        shape: As the architecture has it, ``[experts, outputs, inputs]`` of experts.
        load: Gives what the checkpoint stores.
    """
    for ending, other in _RENAMED.items():
        if name.endswith(ending):
            return load(name.removesuffix(ending) + other, shape)
    for ending, choices in _PARTS.items():
        if name.endswith(ending) and len(shape) == 3:
            found = (_stack(name.removesuffix(ending), parts, shape, load) for parts in choices)
            return next((values for values in found if values is not None), None)
    return None


def layers_of_expert(name: str, expert: int) -> list[str]:
    """Names that checkpoints may give the weights of one expert in a fused tensor.

    Args:
        name: Of the fused tensor.
        expert: Its place there.
    """
    for ending, choices in _PARTS.items():
        if name.endswith(ending):
            prefix = name.removesuffix(ending)
            return [prefix + part.format(expert) for parts in choices for part in parts]
    return []


def _stack(prefix: str, parts: tuple[str, ...], shape: tuple[int, ...], load: Load) -> Values | None:
    experts, outputs, inputs = shape
    found = np.empty(shape, np.float32)
    height = outputs // len(parts)
    for expert in range(experts):
        for place, part in enumerate(parts):
            values = load(prefix + part.format(expert), (height, inputs))
            if values is None:
                return None
            found[expert, place * height : (place + 1) * height] = values
    return found
