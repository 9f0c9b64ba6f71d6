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


def try_parts(
    bench: Bench, sides: tuple[WeightValues, WeightValues], found: LanguageFacts, share_of_front: float | None
) -> LanguageFacts:
    """The facts with what is left of the divergence where a part of the model is float, or scales are others.

    Args:
        bench: Runs the model again on some of the texts.
        sides: Weights of the float and of the quantized model.
        found: What is known without trials.
        share_of_front: What the embedding makes of the noise of it and all blocks.

    Raises:
        ModelError: See ``run_blocks``.
    """
    run = bench.run
    update: dict[str, float | None] = {}
    float_heads = run.heads[0], run.heads[0]
    if _has_other_head(run):
        update["head_gain"] = Gain.of(bench.before, run.score(float_heads).divergence).share
    if (share_of_front or 0.0) > TRIED_SHARE:
        mixed = sides[1].with_parts([f"{run.skeleton.name_of(run.skeleton.embedding)}."], sides[0])
        # Tied, both are one tensor, and it is mended in both places.
        is_tied = bool(getattr(run.skeleton.model.config, "tie_word_embeddings", False))
        left = bench.with_weights(mixed, run.simulation, heads=float_heads if is_tied else None)
        update["embedding_gain"] = Gain.of(bench.before, left).share
    update |= _try_routers(bench, sides, found)
    update |= _try_inputs(bench, sides[1], found) | _try_caches(bench, sides[1])
    if (found.worst_block_share or 0.0) > TRIED_SHARE:
        update |= _try_worst(bench, sides, found)
    return found.model_copy(update=update)


def _try_routers(
    bench: Bench, sides: tuple[WeightValues, WeightValues], found: LanguageFacts
) -> dict[str, float | None]:
    """All routers at once: one in float changes what those behind it are given."""
    routers = _changed_routers(sides)
    if not routers:
        return {}
    first = next((k for k, block in enumerate(found.blocks) if _is_within(routers, f"{block.name}.")), 0)
    mixed = sides[1].with_parts([f"{router}." for router in routers], sides[0])
    left = bench.with_weights(mixed, bench.run.simulation, first=bench.rooms.first_of_trial(first))
    return {"router_gain": Gain.of(bench.before, left).share}


def _changed_routers(sides: tuple[WeightValues, WeightValues]) -> list[str]:
    """Routers of experts whose weights are others than in the float model, by the names that both have for them."""
    floats, quantized = sides
    tensors = floats.checkpoint.tensors
    routers = [name for name, own in floats.names.items() if own in tensors and is_router_of_experts(own, tensors)]
    return [name.removesuffix(".weight") for name in routers if _is_other(name, floats, quantized)]


def _is_other(name: str, floats: WeightValues, quantized: WeightValues) -> bool:
    shape = floats.checkpoint.tensors[floats.names[name]].shape
    ours, theirs = floats.load(name, shape), quantized.load(name, shape)
    return ours is not None and theirs is not None and not np.array_equal(ours, theirs)


def _is_within(names: list[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)


def _try_worst(bench: Bench, sides: tuple[WeightValues, WeightValues], found: LanguageFacts) -> dict[str, float | None]:
    mixed = sides[1].with_parts([f"{found.worst_block}."], sides[0])
    worst = [block.name for block in found.blocks].index(found.worst_block)
    left = bench.with_weights(mixed, bench.run.simulation, first=bench.rooms.first_of_trial(worst))
    gain = Gain.of(bench.before, left)
    return {
        "kl_mended": bench.mean(left),
        "worst_block_gain": gain.share,
        "worst_block_gain_low": gain.low,
        "worst_block_gain_high": gain.high,
    }


def _has_other_head(run: Run) -> bool:
    """The output layers differ, by their first rows."""
    rows = slice(0, min(_ROWS_OF_HEAD, run.skeleton.head.weight.shape[0]))
    ours, theirs = (head(rows)[0] for head in run.heads)
    return not torch.equal(ours, theirs)


def _try_inputs(bench: Bench, weights: WeightValues, found: LanguageFacts) -> dict[str, float | None]:
    simulation = bench.run.simulation
    if not simulation.inputs:
        return {}
    left = bench.mean(bench.with_weights(weights, simulation.without_inputs()))
    gains = {"kl_float_activations": left, "activations_gain": bench.gain(left)}
    if (gains["activations_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    name = found.activation_block.name
    if name is not None:
        first = bench.rooms.first_of_trial([block.name for block in found.blocks].index(name))
        mended = bench.with_weights(weights, simulation.without_inputs(f"{name}."), first=first)
        gains["activation_block_gain"] = bench.gain(bench.mean(mended))
    if any(grid.scale is not None for grid in simulation.inputs.values()):
        other = bench.mean(bench.with_weights(weights, simulation.with_scales_of_tokens()))
        gains["token_scales_share"] = _share_of(bench, left, other)
    return gains


def _try_caches(bench: Bench, weights: WeightValues) -> dict[str, float | None]:
    simulation = bench.run.simulation
    if not simulation.caches:
        return {}
    left = bench.mean(bench.with_weights(weights, simulation.without_caches()))
    gains = {"kl_float_cache": left, "cache_gain": bench.gain(left)}
    if (gains["cache_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    gains["keys_gain"] = bench.gain(bench.mean(bench.with_weights(weights, simulation.with_float_keys())))
    if any(grid is not None and grid.scale is not None for pair in simulation.caches.values() for grid in pair):
        other = bench.mean(bench.with_weights(weights, simulation.with_scales_of_texts()))
        gains["text_scales_share"] = _share_of(bench, left, other)
    return gains


def _share_of(bench: Bench, left: float, other: float) -> float | None:
    """Of what a source in float takes away, after which so much is left, the share that something other does."""
    before = bench.mean(bench.before)
    return (before - other) / (before - left) if before != left else None
