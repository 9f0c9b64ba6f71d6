"""Parts of the quantized model that are tried with their float weights: what each of them costs."""

import numpy as np
import torch

from quantmedic.collectors.from_checkpoint.tensor_roles import is_router_of_experts
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.bench import Bench, Gain
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the noise from which on the part that makes it is tried.
TRIED_SHARE = 0.4
#: Rows of the output layer that are looked at: where none differs, it is not quantized.
_ROWS_OF_HEAD = 64
#: Share of the divergence from which on it is asked what of a source makes it.
_LOOKED_INTO = 0.4
Gains = dict[str, float | None]


def try_parts(bench: Bench, found: LanguageFacts, share_of_front: float | None) -> LanguageFacts:
    """The facts with what is left of the divergence where a part of the model is float, or scales are others.

    Args:
        bench: Runs the model again on some of the texts.
        found: What is known without trials.
        share_of_front: What the embedding makes of the noise of it and all blocks.

    Raises:
        ModelError: See ``run_blocks``.
    """
    run = bench.run
    update: Gains = {}
    float_heads = run.heads[0], run.heads[0]
    if _has_other_head(run):
        update["head_gain"] = Gain.of(bench.before, run.score(float_heads).divergence).share
    if (share_of_front or 0.0) > TRIED_SHARE:
        # Tied, both are one tensor, and it is mended in both places.
        heads = float_heads if run.skeleton.is_tied else None
        left = bench.left_with_floats([run.skeleton.name_of(run.skeleton.embedding)], heads=heads)
        update["embedding_gain"] = Gain.of(bench.before, left).share
    update |= _try_routers(bench, found) | _try_inputs(bench, found) | _try_caches(bench)
    if found.worst_block is not None and (found.worst_block_share or 0.0) > TRIED_SHARE:
        left = bench.left_with_floats([found.worst_block], first=_place_of(found.worst_block, found))
        gain = Gain.of(bench.before, left)
        update |= {
            "kl_mended": bench.mean(left),
            "worst_block_gain": gain.share,
            "worst_block_gain_low": gain.low,
            "worst_block_gain_high": gain.high,
        }
    return found.model_copy(update=update)


def _place_of(block: str, found: LanguageFacts) -> int:
    return [each.name for each in found.blocks].index(block)


def _try_routers(bench: Bench, found: LanguageFacts) -> Gains:
    """All routers at once: one in float changes what those behind it are given."""
    routers = _changed_routers(bench.run.floats.weights, bench.run.quantized.weights)
    if not routers:
        return {}
    within = (any(own.startswith(f"{block.name}.") for own in routers) for block in found.blocks)
    left = bench.left_with_floats(routers, first=next((k for k, is_first in enumerate(within) if is_first), 0))
    return {"router_gain": Gain.of(bench.before, left).share}


def _changed_routers(floats: WeightValues, quantized: WeightValues) -> list[str]:
    """Routers of experts whose weights are others than in the float model, by the names that both have for them."""
    tensors = floats.checkpoint.tensors
    routers = [name for name, own in floats.names.items() if own in tensors and is_router_of_experts(own, tensors)]
    return [name.removesuffix(".weight") for name in routers if _is_other(name, floats, quantized)]


def _is_other(name: str, floats: WeightValues, quantized: WeightValues) -> bool:
    shape = floats.checkpoint.tensors[floats.names[name]].shape
    ours, theirs = floats.load(name, shape), quantized.load(name, shape)
    return ours is not None and theirs is not None and not np.array_equal(ours, theirs)


def _has_other_head(run: Run) -> bool:
    """The output layers differ, by their first rows."""
    rows = slice(0, min(_ROWS_OF_HEAD, run.skeleton.head.weight.shape[0]))
    ours, theirs = (head(rows)[0] for head in run.heads)
    return not torch.equal(ours, theirs)


def _try_inputs(bench: Bench, found: LanguageFacts) -> Gains:
    simulation = bench.run.simulation
    if not simulation.inputs:
        return {}
    left = bench.mean_left(simulation.without_inputs())
    gains = {"kl_float_activations": left, "activations_gain": bench.gain(left)}
    if (gains["activations_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    name = found.activation_block.name
    if name is not None:
        mended = bench.mean_left(simulation.without_inputs(f"{name}."), first=_place_of(name, found))
        gains["activation_block_gain"] = bench.gain(mended)
    if any(grid.scale is not None for grid in simulation.inputs.values()):
        gains["token_scales_share"] = bench.share_of(left, bench.mean_left(simulation.with_scales_of_tokens()))
    return gains


def _try_caches(bench: Bench) -> Gains:
    simulation = bench.run.simulation
    if not simulation.caches:
        return {}
    left = bench.mean_left(simulation.without_caches())
    gains = {"kl_float_cache": left, "cache_gain": bench.gain(left)}
    if (gains["cache_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    gains["keys_gain"] = bench.gain(bench.mean_left(simulation.with_float_keys()))
    if any(grid is not None and grid.scale is not None for pair in simulation.caches.values() for grid in pair):
        gains["text_scales_share"] = bench.share_of(left, bench.mean_left(simulation.with_scales_of_texts()))
    return gains
