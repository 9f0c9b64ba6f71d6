"""Both models run block by block: one block is in memory, and what it hands on lies on disk."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_language_model.network import Calls, Network, call_block
from quantmedic.collectors.from_language_model.positions import Means, starts_of_bins
from quantmedic.collectors.from_language_model.rooms import Rooms, States
from quantmedic.collectors.from_language_model.routing import Routing
from quantmedic.collectors.from_language_model.scores import Head, Scores, ScoreSums, score_tokens
from quantmedic.collectors.from_language_model.simulation import Simulation, Watch, simulate
from quantmedic.collectors.from_language_model.skeleton import Call, Skeleton
from quantmedic.collectors.from_language_model.source_noise import SourceNoise
from quantmedic.collectors.from_language_model.tokens import Ids, groups_of
from quantmedic.engine.case.language_facts import BlockFacts

#: Tokens that are scored together: of each some numbers are kept until all rows of the output layers were there.
_TOKENS = 1 << 14
Values = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Texts on which the part of the noise is measured that a block makes itself: another run of the quantized block.
OWN_TEXTS = 4
#: Values of a text that a median is taken of.
_FOR_MEDIAN = 4096


@dataclass(frozen=True)
class Run:
    """Both models on the same texts.

    Attributes:
        floats: The float model.
        quantized: The quantized one, of the same skeleton.
        texts: Token ids.
        states: Hidden states of both behind the norm.
        spans: Where the tokens of each text stand there, of both models.
        heads: Output layers of both.
        simulation: What is quantized beside the weights.
    """

    floats: Network
    quantized: Network
    texts: Sequence[Ids]
    states: States
    spans: tuple[Sequence[slice], Sequence[slice]]
    heads: tuple[Head, Head]
    simulation: Simulation

    @property
    def skeleton(self) -> Skeleton:
        """The network without weights."""
        return self.floats.skeleton

    def score(self, heads: tuple[Head, Head] | None = None) -> Scores:
        """What both models predict of the next tokens, from the states that their blocks have left.

        Args:
            heads: Other output layers than those of both.
        """
        sums = ScoreSums([len(ids) for ids in self.texts])
        for group in groups_of(self.texts, _TOKENS):
            texts = [self.texts[place] for place in group]
            floats, quantized = (_followed_places(spans[group.start : group.stop]) for spans in self.spans)
            found = score_tokens(
                (self.states.floats, self.states.quantized),
                (floats, quantized),
                np.concatenate([ids[1:] for ids in texts]),
                heads or self.heads,
                self.skeleton.head.weight.shape[0],
                _logit_shape(self.skeleton.model.config),
                self.skeleton.device,
            )
            sums.add(found, [len(ids) for ids in texts])
        return sums.scores()


def _followed_places(spans: Sequence[slice]) -> NDArray[np.int64]:
    """Places of the tokens that are followed by another one in their text."""
    return np.concatenate([np.arange(span.start, span.stop - 1) for span in spans])


def _logit_shape(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the architecture does to logits: Gemma bends them, Cohere and Granite scale them."""
    cap, factor = getattr(config, "final_logit_softcapping", None), getattr(config, "logit_scale", None) or 1.0
    factor = factor / (getattr(config, "logits_scaling", None) or 1.0)

    def shape(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits * factor if factor != 1.0 else logits
        return cap * torch.tanh(scaled / cap) if cap else scaled

    return shape


@dataclass(frozen=True)
class Noises:
    """Where the noise is made.

    Attributes:
        front: Mean noise of the tokens in front of the first block: what the embedding makes. Tokens whose embedding
            is all zeros do not count; None where there are no others.
        blocks: What is said of each block.
    """

    front: float | None
    blocks: Sequence[BlockFacts]

    @property
    def share_of_front(self) -> float | None:
        """What the embedding makes of the noise of it and all blocks."""
        front = self.front or 0.0
        total = front + sum(block.own_noise or 0.0 for block in self.blocks)
        return front / total if 0 < total < math.inf else None


def run_blocks(run: Run, rooms: Rooms, progress: Progress) -> Noises:
    """Run all blocks of both models; what the last of them hands on is left behind the norm, in ``states_behind_norm``.

    What went into the quantized block that makes the most noise is kept.

    Args:
        run: Both models on the texts.
        rooms: Places for the hidden states; blocks that are finished in their work are not run again.
        progress: Called after every block.

    Raises:
        ModelError: Weights are missing or cannot be read, or a block cannot be run.
    """
    blocks, work = _Blocks(run, rooms), rooms.work
    spans, count = run.spans[0], len(run.skeleton.layers)
    found = [BlockFacts.model_validate(block) for block in work.done.get("blocks", ())]
    front = work.done["front"] if found else blocks.run_fronts()
    most = -math.inf if rooms.noisiest is None else found[rooms.noisiest].own_noise or 0.0
    for index in range(len(found), count):
        found.append(blocks.run_block(index))
        if (noise := found[-1].own_noise or 0.0) > most:
            most = noise
            rooms.keep_before(index)
        work.keep(front=front, blocks=[block.model_dump() for block in found])
        progress("blocks", index + 1, count)
    before, behind = rooms.before(count), rooms.behind(count)
    run.floats.run_norm(spans, before.floats, behind.floats)
    run.quantized.run_norm(spans, before.quantized, behind.quantized)
    return Noises(front, with_shares(found))


def states_behind_norm(skeleton: Skeleton, rooms: Rooms) -> States:
    """Where ``run_blocks`` leaves what comes out of the norm."""
    return rooms.behind(len(skeleton.layers))


def with_shares(blocks: Sequence[BlockFacts]) -> list[BlockFacts]:
    """The blocks with the share that each has of what all of them make."""
    total = sum(block.own_noise or 0.0 for block in blocks)
    if not 0 < total < float("inf"):
        return list(blocks)
    return [block.model_copy(update={"own_share": (block.own_noise or 0.0) / total}) for block in blocks]


@dataclass
class _BlockNoise:
    """Noise of the tokens behind one block, and the magnitudes of what the float block hands on: sums, no text is kept.

    Attributes:
        carried: Noise with that of all blocks before.
        own: Noise of the block's quantized weights on the float model's values, text by text of the first few.
    """

    carried: Means
    own: list[Floats] = field(default_factory=list)
    _largest: float = 0.0
    _place: tuple[int, int] = (0, 0)
    _medians: list[float] = field(default_factory=list)

    def look(self, outputs: Values) -> None:
        """Take the magnitudes of what the float block hands on of one text, ``[tokens, width]``."""
        magnitudes = np.abs(outputs)
        largest = float(magnitudes.max())
        if largest > self._largest:
            token, channel = np.unravel_index(int(magnitudes.argmax()), magnitudes.shape)
            self._largest, self._place = largest, (int(token), int(channel))
        flat = magnitudes.ravel()
        self._medians.append(float(np.median(flat[:: max(flat.size // _FOR_MEDIAN, 1)])))

    def facts(self, name: str) -> BlockFacts:
        """What is said of the block."""
        first, others = self.carried.of_first, self.carried.of_others
        median = float(np.median(self._medians))
        return BlockFacts(
            name=name,
            noise=self.carried.overall,
            own_noise=float(np.mean(np.concatenate(self.own))),
            first_token_ratio=first / others if first is not None and others else None,
            noise_by_position=self.carried.by_bin,
            largest_ratio=self._largest / median if median > 0 else None,
            largest_position=self._place[0],
            largest_channel=self._place[1],
        )


class _Blocks:
    """Runs parts of both models, each on what its own parts before it handed on."""

    def __init__(self, run: Run, rooms: Rooms) -> None:
        self._run, self._rooms, self._spans = run, rooms, run.spans[0]
        self._calls = Calls(run.quantized)
        self._starts = starts_of_bins([len(ids) for ids in run.texts])

    def run_fronts(self) -> float | None:
        """Leave what goes into the first block of both models, and give the mean noise of its tokens."""
        place, noise = self._rooms.before(0), Means(self._starts)
        self._run.floats.run_front(self._run.texts, place.floats)
        self._run.quantized.run_front(self._run.texts, place.quantized)
        for span in self._spans:
            noise.add(noise_of_tokens(place.floats[span], place.quantized[span]))
            self._rooms.let_go()
        return noise.overall

    def run_block(self, index: int) -> BlockFacts:
        """Run one block of both."""
        run, rooms = self._run, self._rooms
        before, behind = rooms.before(index), rooms.behind(index)
        layer = run.skeleton.layers[index]
        name = run.skeleton.name_of(layer)
        noise, sources = _BlockNoise(Means(self._starts)), SourceNoise(run.simulation.of_block(name))
        routing = Routing.of(layer, rooms.routes)
        own: list[tuple[Values, Values]] = []
        left: list[tuple[Values, Values]] = []
        is_plain = not (sources.simulation.inputs or sources.simulation.caches)
        with run.floats.load_part(layer):
            for number, span in enumerate(self._spans):
                inputs = np.array(before.floats[span])
                call = self._calls.of(len(inputs))[index]
                with routing.seen_floats(layer, span, is_sample=number < OWN_TEXTS):
                    outputs = call_block(layer, name, inputs, call)
                behind.floats[span] = outputs
                noise.look(outputs)
                if number < OWN_TEXTS:
                    own.append((inputs, outputs))
                    sources.look(partial(_noise_of_source, layer, name, call, (inputs, outputs)))
                rooms.let_go()
            routing.run_float_experts(layer)
        with run.quantized.load_part(layer):
            with simulate(layer, name, run.simulation):
                for number, span in enumerate(self._spans):
                    inputs = np.array(before.quantized[span])
                    call = self._calls.of(len(inputs))[index]
                    with routing.seen_quantized(layer, span):
                        outputs = call_block(layer, name, inputs, call)
                    behind.quantized[span] = outputs
                    found = noise_of_tokens(behind.floats[span], outputs)
                    noise.carried.add(found)
                    if number < OWN_TEXTS and is_plain and np.array_equal(inputs, own[number][0]):
                        noise.own.append(found)  # what is the float model's anyway need not be run again
                    elif number < OWN_TEXTS:
                        left.append(own[number])
                    rooms.let_go()
            routing.run_quantized_experts(layer)
            for inputs, outputs in left:
                call = self._calls.of(len(inputs))[index]
                noise.own.append(noise_of_tokens(outputs, call_block(layer, name, inputs, call)))
        return noise.facts(name).model_copy(update={**sources.facts(), **routing.facts()})


def _noise_of_source(
    layer: nn.Module, name: str, call: Call, own: tuple[Values, Values], simulation: Simulation, watch: Watch
) -> Floats:
    """Noise of the tokens behind a float block that runs with a simulation."""
    inputs, outputs = own
    with simulate(layer, name, simulation, watch):
        return noise_of_tokens(outputs, call_block(layer, name, inputs, call))


def noise_of_tokens(floats: Values, quantized: Values) -> Floats:
    """Squared distance over squared length, of each token."""
    a, b = floats.astype(np.float64), quantized.astype(np.float64)
    length = (a * a).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(length > 0, ((b - a) ** 2).sum(1) / length, np.nan)
