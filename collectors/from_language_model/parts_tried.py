"""Parts of the quantized model that are tried with their float weights: what each of them costs."""

import numpy as np
import torch

from quantmedic.collectors.from_checkpoint.tensor_roles import is_router_of_experts
from quantmedic.collectors.from_checkpoint.weight_values import MixedValues, WeightValues
from quantmedic.collectors.from_language_model.bench import Bench, Gain
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.collectors.from_language_model.sources_tried import try_sources
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the noise from which on the part that makes it is tried.
TRIED_SHARE = 0.4
#: Rows of the output layer that are looked at: where none differs, it is not quantized.
_ROWS_OF_HEAD = 64


def try_parts(bench: Bench, sides: tuple[WeightValues, WeightValues], found: LanguageFacts) -> LanguageFacts:
    """The facts with what is left of the divergence where a part of the model is float, or scales are others.

    Args:
        bench: Runs the model again on some of the texts.
        sides: Weights of the float and of the quantized model.
        found: What is known without trials.

    Raises:
        ModelError: See ``run_blocks``.
    """
    run = bench.run
    update: dict[str, float | None] = {}
    float_heads = run.heads[0], run.heads[0]
    if _is_changed(run):
        update["head_gain"] = Gain.of(bench.before, bench.with_heads("head", float_heads)).share
    if (found.embedding_share or 0.0) > TRIED_SHARE:
        mixed = MixedValues(sides[1], sides[0], (f"{run.skeleton.name_of(run.skeleton.embedding)}.",))
        # Tied, both are one tensor, and it is mended in both places.
        is_tied = bool(getattr(run.skeleton.model.config, "tie_word_embeddings", False))
        left = bench.left("embedding", mixed, run.simulation, heads=float_heads if is_tied else None)
        update["embedding_gain"] = Gain.of(bench.before, left).share
    update |= _try_routers(bench, sides, found)
    update |= try_sources(bench, sides[1], found)
    if (found.worst_block_share or 0.0) > TRIED_SHARE:
        update |= _try_worst(bench, sides, found)
    return found.model_copy(update=update)


def _try_routers(
    bench: Bench, sides: tuple[WeightValues, WeightValues], found: LanguageFacts
) -> dict[str, float | None]:
    """All routers at once: one in float changes what those behind it are given."""
    routers = changed_routers(sides)
    if not routers:
        return {}
    first = next((k for k, block in enumerate(found.blocks) if _is_within(routers, f"{block.name}.")), 0)
    mixed = MixedValues(sides[1], sides[0], tuple(f"{router}." for router in routers))
    left = bench.left("routers", mixed, bench.run.simulation, first=bench.rooms.first_of_trial(first))
    return {"router_gain": Gain.of(bench.before, left).share}


def changed_routers(sides: tuple[WeightValues, WeightValues]) -> list[str]:
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
    mixed = MixedValues(sides[1], sides[0], (f"{found.worst_block}.",))
    worst = [block.name for block in found.blocks].index(found.worst_block)
    left = bench.left("worst", mixed, bench.run.simulation, first=bench.rooms.first_of_trial(worst))
    return {"kl_mended": bench.mean(left), **facts_of_worst(Gain.of(bench.before, left))}


def facts_of_worst(gain: Gain) -> dict[str, float | None]:
    """What is said of the trial of the worst block."""
    return {"worst_block_gain": gain.share, "worst_block_gain_low": gain.low, "worst_block_gain_high": gain.high}


def _is_changed(run: Run) -> bool:
    """The output layers differ, by their first rows."""
    rows = slice(0, min(_ROWS_OF_HEAD, run.skeleton.head.weight.shape[0]))
    ours, theirs = (head(rows)[0] for head in run.heads)
    return not torch.equal(ours, theirs)
