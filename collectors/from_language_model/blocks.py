"""Both models run block by block: one block is in memory, and what it hands on lies on disk."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.data.messages import first_line
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.positions import Means, starts_of_bins
from quantmedic.collectors.from_language_model.rooms import Rooms, States, TrialRooms, let_go
from quantmedic.collectors.from_language_model.routing import Routing
from quantmedic.collectors.from_language_model.simulation import Simulation, Watch, simulate
from quantmedic.collectors.from_language_model.skeleton import Call, Skeleton, load_weights, recorded_calls
from quantmedic.collectors.from_language_model.source_noise import SourceNoise
from quantmedic.collectors.from_language_model.tokens import Ids, groups_of, spans_of
from quantmedic.engine.case.language_facts import BlockFacts
from quantmedic.engine.errors import ModelError

Values = NDArray[np.float32]
#: Tokens whose rows of the embedding are in memory at a time.
_TOKENS_OF_EMBEDDING = 4096
#: Bytes of what blocks are called with that are kept; a mask of 512 tokens takes 1 MB.
_KEPT = 1 << 24
#: Takes rows of the embedding, and a text as places among them; gives what goes into the first block, and the calls.
_Front = Callable[[torch.Tensor, Ids], tuple[torch.Tensor, Sequence[Call]]]
Floats = NDArray[np.float64]
#: Texts on which the part of the noise is measured that a block makes itself: another run of the quantized block.
OWN_TEXTS = 4
#: Values of a text that a median is taken of.
_FOR_MEDIAN = 4096


def run_front(skeleton: Skeleton, weights: WeightValues, texts: Sequence[Ids], hidden: Values) -> None:
    """Leave what goes into the first block in ``hidden``, ``[tokens, width]``.

    Of the embedding, only the rows of the tokens at hand are in memory.

    Raises:
        ModelError: The checkpoint lacks the embedding or what else stands there.
    """
    spans = spans_of(texts)
    with _front(skeleton, weights) as front:
        for group in groups_of(texts, _TOKENS_OF_EMBEDDING):
            used = np.unique(np.concatenate([texts[place] for place in group]))
            rows = _embedding_rows(skeleton, used, weights).to(skeleton.device)
            for place in group:
                first, _ = front(rows, np.searchsorted(used, texts[place]))
                hidden[spans[place]] = first[0].cpu().numpy()
                let_go(hidden)


class Calls:
    """What blocks are called with beside hidden states: positions and masks, by the length of the text.

    They are the same for both models, and lie on the device. Those of a few lengths are kept, others made again for
    each text, so that memory does not grow with the lengths that texts have.
    """

    def __init__(self, skeleton: Skeleton, weights: WeightValues) -> None:
        """``weights``: of what else than the embedding stands in front of the blocks."""
        self._skeleton, self._weights = skeleton, weights
        self._kept: dict[int, Sequence[Call]] = {}
        self._free = _KEPT

    def of(self, length: int) -> Sequence[Call]:
        """What each block is called with for a text of so many tokens."""
        if length in self._kept:
            return self._kept[length]
        with _front(self._skeleton, self._weights) as front:
            blank = torch.zeros(1, self._skeleton.embedding.weight.shape[1], device=self._skeleton.device)
            _, calls = front(blank, np.zeros(length, np.int64))
        size = sum(_sizes_of(calls).values())
        if size <= self._free:
            self._free -= size
            self._kept[length] = calls
        return calls


def _sizes_of(value: Any) -> dict[int, int]:
    """Bytes of tensors by where they lie, for blocks share them."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {place: size for part in parts for place, size in _sizes_of(part).items()}


@contextmanager
def _front(skeleton: Skeleton, weights: WeightValues) -> Iterator[_Front]:
    empty = skeleton.embedding.weight
    with ExitStack() as stack:
        for part in skeleton.front():
            stack.enter_context(load_weights(part, skeleton.name_of(part), weights, skeleton.device))
        calls = stack.enter_context(recorded_calls(skeleton))
        stack.enter_context(torch.inference_mode())

        def run(rows: torch.Tensor, places: Ids) -> tuple[torch.Tensor, Sequence[Call]]:
            skeleton.embedding.weight = nn.Parameter(rows, requires_grad=False)
            try:
                return calls(torch.from_numpy(places)[None].to(skeleton.device))
            finally:
                skeleton.embedding.weight = empty

        yield run


def _embedding_rows(skeleton: Skeleton, used: Ids, weights: WeightValues) -> torch.Tensor:
    name = f"{skeleton.name_of(skeleton.embedding)}.weight"
    shape = tuple(skeleton.embedding.weight.shape)
    found = weights.load(name, shape, used)
    if found is None:
        raise ModelError(
            "the checkpoint has no embedding of tokens",
            where=[f"file    {weights.checkpoint.path}", f"tensor  {name}"],
            help="look whether a shard is missing",
        )
    return torch.from_numpy(found)


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


def run_blocks(
    skeleton: Skeleton,
    sides: tuple[WeightValues, WeightValues],
    texts: Sequence[Ids],
    rooms: Rooms,
    simulation: Simulation,
    progress: Progress,
) -> Noises:
    """Run all blocks of both models; what the last of them hands on is left behind the norm, in ``states_behind_norm``.

    What went into the quantized block that makes the most noise is kept.

    Args:
        skeleton: The network without weights.
        sides: WeightValues of the float and of the quantized model.
        texts: Token ids.
        rooms: Places for the hidden states; blocks that are finished in their work are not run again.
        simulation: What is quantized beside the weights.
        progress: Called after every block.

    Raises:
        ModelError: WeightValues are missing or cannot be read, or a block cannot be run.
    """
    spans, count = spans_of(texts), len(skeleton.layers)
    starts = starts_of_bins([len(ids) for ids in texts])
    work, calls = rooms.work, Calls(skeleton, sides[1])
    found = [BlockFacts.model_validate(block) for block in work.done.get("blocks", ())]
    front = work.done["front"] if found else _run_both_fronts(skeleton, sides, texts, rooms, starts)
    most = -math.inf if rooms.noisiest is None else found[rooms.noisiest].own_noise or 0.0
    for index in range(len(found), count):
        found.append(_run_block(skeleton, index, sides, spans, rooms, calls, simulation, starts))
        if (noise := found[-1].own_noise or 0.0) > most:
            most = noise
            rooms.keep_before(index)
        work.keep(front=front, blocks=[block.model_dump() for block in found])
        progress("blocks", index + 1, count)
    before, behind = rooms.before(count), rooms.behind(count)
    _run_norm(skeleton, sides[0], spans, before.floats, behind.floats)
    _run_norm(skeleton, sides[1], spans, before.quantized, behind.quantized)
    return Noises(front, with_shares(found))


def _run_both_fronts(
    skeleton: Skeleton,
    sides: tuple[WeightValues, WeightValues],
    texts: Sequence[Ids],
    rooms: Rooms,
    starts: tuple[int, ...],
) -> float | None:
    """Leave what goes into the first block of both models, and give the mean noise of its tokens."""
    place, noise = rooms.before(0), Means(starts)
    for weights, hidden in zip(sides, (place.floats, place.quantized), strict=True):
        run_front(skeleton, weights, texts, hidden)
    for span in spans_of(texts):
        noise.add(noise_of_tokens(place.floats[span], place.quantized[span]))
        rooms.let_go()
    return noise.overall


def states_behind_norm(skeleton: Skeleton, rooms: Rooms) -> States:
    """Where ``run_blocks`` leaves what comes out of the norm."""
    return rooms.behind(len(skeleton.layers))


def run_alone(
    skeleton: Skeleton,
    weights: WeightValues,
    texts: Sequence[Ids],
    rooms: TrialRooms,
    simulation: Simulation,
    progress: Progress,
    *,
    first: int = 0,
) -> None:
    """Run the quantized model with other weights, or with else quantized; what comes of it is left behind the norm.

    Args:
        skeleton: The network without weights.
        weights: Its weights.
        texts: Token ids of the texts of trials.
        rooms: Places for the hidden states; what comes out of the norm is left in ``rooms.behind`` the last block.
        simulation: What is quantized beside the weights.
        progress: Called after every block.
        first: The block from which on the run is another one: what goes into it was kept. 0 for all.

    Raises:
        ModelError: See ``run_blocks``.
    """
    spans, count, work = spans_of(texts), len(skeleton.layers), rooms.rooms.work
    done = max(first, work.done.get("blocks_of_trial", 0))
    if done == 0:
        run_front(skeleton, weights, texts, rooms.before(0))
    calls = Calls(skeleton, weights)
    for index in range(done, count):
        layer = skeleton.layers[index]
        name = skeleton.name_of(layer)
        is_first = first > 0 and index == first
        before, places = (rooms.rooms.kept, rooms.spans) if is_first else (rooms.before(index), spans)
        behind = rooms.behind(index)
        with load_weights(layer, name, weights, skeleton.device), simulate(layer, name, simulation):
            for place, span in zip(places, spans, strict=True):
                inputs = np.array(before[place])
                behind[span] = _call(layer, name, inputs, calls.of(len(inputs))[index])
                let_go(before)
                let_go(behind)
        work.keep(blocks_of_trial=index + 1)
        progress("blocks", index + 1, count)
    _run_norm(skeleton, weights, spans, rooms.before(count), rooms.behind(count))


def _run_norm(
    skeleton: Skeleton, weights: WeightValues, spans: Sequence[slice], before: Values, behind: Values
) -> None:
    device = skeleton.device
    with load_weights(skeleton.norm, skeleton.name_of(skeleton.norm), weights, device), torch.inference_mode():
        for span in spans:
            behind[span] = skeleton.norm(torch.from_numpy(before[span]).to(device)).cpu().numpy()
            let_go(before)
            let_go(behind)


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


def _run_block(
    skeleton: Skeleton,
    index: int,
    sides: tuple[WeightValues, WeightValues],
    spans: Sequence[slice],
    rooms: Rooms,
    calls: Calls,
    simulation: Simulation,
    starts: tuple[int, ...],
) -> BlockFacts:
    """Run one block of both models, each on what its own blocks before it handed on."""
    before, behind = rooms.before(index), rooms.behind(index)
    layer = skeleton.layers[index]
    name = skeleton.name_of(layer)
    noise, sources = _BlockNoise(Means(starts)), SourceNoise(simulation.of_block(name))
    routing = Routing.of(layer, rooms.routes)
    own: list[tuple[Values, Values]] = []
    left: list[tuple[Values, Values]] = []
    is_plain = not (sources.simulation.inputs or sources.simulation.caches)
    with load_weights(layer, name, sides[0], skeleton.device):
        for number, span in enumerate(spans):
            inputs = np.array(before.floats[span])
            call = calls.of(len(inputs))[index]
            with routing.seen_floats(layer, span, is_sample=number < OWN_TEXTS):
                outputs = _call(layer, name, inputs, call)
            behind.floats[span] = outputs
            noise.look(outputs)
            if number < OWN_TEXTS:
                own.append((inputs, outputs))
                sources.look(partial(_noise_of_source, layer, name, call, (inputs, outputs)))
            rooms.let_go()
        routing.run_float_experts(layer)
    with load_weights(layer, name, sides[1], skeleton.device):
        with simulate(layer, name, simulation):
            for number, span in enumerate(spans):
                inputs = np.array(before.quantized[span])
                call = calls.of(len(inputs))[index]
                with routing.seen_quantized(layer, span):
                    outputs = _call(layer, name, inputs, call)
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
            call = calls.of(len(inputs))[index]
            noise.own.append(noise_of_tokens(outputs, _call(layer, name, inputs, call)))
    return noise.facts(name).model_copy(update={**sources.facts(), **routing.facts()})


def _noise_of_source(
    layer: nn.Module, name: str, call: Call, own: tuple[Values, Values], simulation: Simulation, watch: Watch
) -> Floats:
    """Noise of the tokens behind a float block that runs with a simulation."""
    inputs, outputs = own
    with simulate(layer, name, simulation, watch):
        return noise_of_tokens(outputs, _call(layer, name, inputs, call))


def _call(layer: nn.Module, name: str, inputs: Values, call: Call) -> Values:
    """What a block makes of one text; it runs where its weights lie."""
    args, kwargs = call
    device = next(layer.parameters()).device
    try:
        with torch.inference_mode():
            found = layer(torch.from_numpy(inputs)[None].to(device), *args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever an architecture raises
        raise ModelError(
            "a block cannot be run alone",
            where=[f"block  {name}", f"cause  {type(error).__name__}: {first_line(error)[:300]}"],
            help="without --tokens the weights alone are compared",
        ) from error
    hidden = found[0] if isinstance(found, tuple) else found
    return np.asarray(hidden[0].cpu().numpy(), np.float32)


def noise_of_tokens(floats: Values, quantized: Values) -> Floats:
    """Squared distance over squared length, of each token."""
    a, b = floats.astype(np.float64), quantized.astype(np.float64)
    length = (a * a).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(length > 0, ((b - a) ** 2).sum(1) / length, np.nan)
