"""Trials: the quantized model run again with something in float, on a few of the texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_language_model.network import Calls, Network, call_block
from quantmedic.collectors.from_language_model.rooms import Rooms, States, TrialRooms, let_go
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.collectors.from_language_model.scores import Head, Scores
from quantmedic.collectors.from_language_model.simulation import Simulation, simulate
from quantmedic.collectors.from_language_model.tokens import spans_of
from quantmedic.engine.metrics.paired import drop_interval

Floats = NDArray[np.float64]
#: A trial takes every fourth text, but so many at least and at most.
_EVERY, _FEWEST, _MOST = 4, 4, 16


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
            with network.loaded(layer) as name, simulate(layer, name, simulation):
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
