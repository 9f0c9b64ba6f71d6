"""Trials: the quantized model run again with something in float, on a few of the texts: what it costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.tensor_roles import is_router_of_experts
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.blocks import Run
from quantmedic.collectors.from_language_model.network import Calls, Network, call_block
from quantmedic.collectors.from_language_model.rooms import Rooms, States, TrialRooms, let_go
from quantmedic.collectors.from_language_model.scores import Head, Scores
from quantmedic.collectors.from_language_model.simulation import Simulation, simulate
from quantmedic.collectors.from_language_model.tokens import spans_of
from quantmedic.engine.case.facts import LanguageFacts
from quantmedic.engine.metrics.paired import drop_interval

Floats = NDArray[np.float64]
#: A trial takes every fourth text, but so many at least and at most.
_EVERY, _FEWEST, _MOST = 4, 4, 16
#: Share of the noise from which on the part that makes it is tried.
TRIED_SHARE = 0.4
#: Rows of the output layer that are looked at: where none differs, it is not quantized.
_ROWS_OF_HEAD = 64
#: Share of the divergence from which on it is asked what of a source makes it.
_LOOKED_INTO = 0.4
Gains = dict[str, float | None]


def texts_of_trials(scores: Scores) -> list[int]:
    """Places of the texts that trials run on, evenly among all in the order of their divergence.

    A trial asks for a share of the divergence, which texts have in common more than the divergence itself: both runs
    read the same texts, so that what makes some harder than others cancels.
    """
    count = len(scores.tokens)
    taken = min(max(count // _EVERY, _FEWEST), _MOST, count)
    order = np.argsort(scores.divergence / scores.tokens, kind="stable")
    return sorted(order[((np.arange(taken) + 0.5) * count / taken).astype(int)].tolist())


@dataclass(frozen=True)
class Gain:
    """Share of a divergence that is gone, and its 95 % interval over texts; one text alone has no interval.

    A share of nothing is not known.
    """

    share: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, before: Floats, after: Floats) -> "Gain":
        """The share by divergences of the same texts, each summed over its tokens.

        The interval is that of a ratio of sums: a seeded studentized bootstrap of the texts, in pairs.
        """
        if not before.sum() > 0:
            return cls(None)
        if len(before) == 1:
            return cls(float(1 - after.sum() / before.sum()))
        return cls(*drop_interval(before, after, higher_is_better=True, relative=True))


@dataclass(frozen=True)
class Bench:
    """Runs the quantized model with something else on the texts of trials.

    Attributes:
        run: Both models on these texts, as they were run.
        rooms: Places for the hidden states.
        finished: What is left by the trials that an interrupted run has finished, in the same order.
        before: Divergence of each of these texts with all that is quantized, summed over its tokens, in nats.
        progress: Called after every block that is run again.
    """

    run: Run
    rooms: TrialRooms
    finished: Iterator[list[float]]
    before: Floats
    progress: Progress

    @classmethod
    def of(cls, run: Run, scores: Scores, chosen: Sequence[int], rooms: Rooms, progress: Progress) -> "Bench":
        """Of a run on all texts, its scores, and the texts that are chosen of them."""
        floats, quantized = ([spans[place] for place in chosen] for spans in run.spans)
        own = replace(run, texts=[run.texts[place] for place in chosen], spans=(floats, quantized))
        finished = iter(rooms.work.done.get("trials", ()))
        return cls(own, TrialRooms.of_spans(rooms, quantized), finished, scores.divergence[list(chosen)], progress)

    @property
    def tokens(self) -> int:
        """Tokens that are predicted."""
        return sum(len(ids) - 1 for ids in self.run.texts)

    def left_with_floats(
        self, parts: Sequence[str], *, first: int = 0, heads: tuple[Head, Head] | None = None
    ) -> Floats:
        """Divergence of each text that is left where parts have their float weights, summed over its tokens, in nats.

        Args:
            parts: By name.
            first: The first block that is another one.
            heads: Other output layers than those of both.

        Raises:
            ModelError: See ``run_blocks``.
        """
        mixed = self.run.quantized.with_parts([f"{part}." for part in parts], self.run.floats)
        return self._left_with(mixed, self.run.simulation, first, heads)

    def mean_left(self, simulation: Simulation, *, first: int = 0) -> float:
        """Mean divergence that is left where something else is quantized beside the weights; raises as above."""
        return self.mean(self._left_with(self.run.quantized, simulation, first, None))

    def _left_with(
        self, network: Network, simulation: Simulation, first: int, heads: tuple[Head, Head] | None
    ) -> Floats:
        known = next(self.finished, None)
        if known is not None:
            return np.array(known, np.float64)
        run, rooms, work = self.run, self.rooms, self.rooms.rooms.work
        spans, behind = spans_of(run.texts), rooms.behind(len(run.skeleton.layers))
        self._run_alone(network, simulation, spans, rooms.first_of_trial(first))
        tried = replace(run, states=States(run.states.floats, behind), spans=(run.spans[0], spans))
        left = tried.score(heads).divergence
        work.keep(trials=[*work.done.get("trials", ()), left.tolist()], blocks_of_trial=0)
        return left

    def _run_alone(self, network: Network, simulation: Simulation, spans: Sequence[slice], first: int) -> None:
        """Run a model in place of the quantized one; what comes of it is left in ``rooms.behind`` the last block."""
        rooms, layers, work = self.rooms, network.skeleton.layers, self.rooms.rooms.work
        done = max(first, work.done.get("blocks_of_trial", 0))
        if done == 0:
            network.run_front(self.run.texts, rooms.before(0))
        calls = Calls(network)
        for index in range(done, len(layers)):
            layer = layers[index]
            is_first = first > 0 and index == first
            before, places = (rooms.rooms.kept, rooms.spans) if is_first else (rooms.before(index), spans)
            behind = rooms.behind(index)
            with network.load_part(layer) as name, simulate(layer, name, simulation):
                for place, span in zip(places, spans, strict=True):
                    inputs = np.array(before[place])
                    behind[span] = call_block(layer, name, inputs, calls.of(len(inputs))[index])
                    let_go(before)
                    let_go(behind)
            work.keep(blocks_of_trial=index + 1)
            self.progress("blocks", index + 1, len(layers))
        network.run_norm(spans, rooms.before(len(layers)), rooms.behind(len(layers)))

    def mean(self, divergence: Floats) -> float:
        """Of a token, in nats."""
        return float(divergence.sum() / self.tokens)

    def gain(self, left: float) -> float | None:
        """Share of the mean divergence that is gone where so much is left; None where there was none."""
        before = self.mean(self.before)
        return 1 - left / before if before else None

    def share_of(self, left: float, other: float) -> float | None:
        """Of what a source in float takes away, after which so much is left, the share that something other does."""
        before = self.mean(self.before)
        return (before - other) / (before - left) if before != left else None


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
