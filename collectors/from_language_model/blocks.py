"""Both models run block by block: one block is in memory, and what it hands on lies on disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.weight_values import Weights
from quantmedic.collectors.from_language_model.block_noise import BlockNoise
from quantmedic.collectors.from_language_model.positions import Positions
from quantmedic.collectors.from_language_model.routing import Routing
from quantmedic.collectors.from_language_model.simulation import Simulation, simulated
from quantmedic.collectors.from_language_model.skeleton import Call, Skeleton, loaded, recorded_calls
from quantmedic.collectors.from_language_model.sources import SourceNoise, Tallies
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.case.language_facts import BlockFacts
from quantmedic.engine.errors import ModelError

Values = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Texts on which the part of the noise is measured that a block makes itself: another run of the quantized block.
OWN_TEXTS = 4
#: What each block is called with, by the length of the text.
Calls = Mapping[int, Sequence[Call]]
#: Takes token ids; gives what goes into the first block, and what each block is called with.
Front = Callable[[torch.Tensor], tuple[torch.Tensor, Sequence[Call]]]


@dataclass(frozen=True)
class States:
    """Hidden states of both models, ``[tokens, width]``, text after text.

    Attributes:
        routes: Room for the experts that are chosen in one block, and their shares; None where there are none.
    """

    floats: Values
    quantized: Values
    routes: Values | None = None


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


def run_blocks(
    skeleton: Skeleton,
    sides: tuple[Weights, Weights],
    texts: Sequence[Ids],
    states: States,
    simulation: Simulation,
    progress: Progress,
) -> Noises:
    """Run all blocks of both models; what the last of them hands on is left in ``states``, behind the norm.

    Args:
        skeleton: The network without weights.
        sides: Weights of the float and of the quantized model.
        texts: Token ids.
        states: Room for the hidden states, which is overwritten.
        simulation: What is quantized beside the weights.
        progress: Called after every block.

    Raises:
        ModelError: Weights are missing or cannot be read, or a block cannot be run.
    """
    spans, both = spans_of(texts), (states.floats, states.quantized)
    for weights, hidden in zip(sides, both, strict=True):
        calls = _run_front(skeleton, weights, texts, hidden)  # the same of both
    front = _mean_of_known(np.concatenate([_noise_of_tokens(*(hidden[span] for hidden in both)) for span in spans]))
    found = []
    positions = Positions.of_texts([len(ids) for ids in texts])
    for index in range(len(skeleton.layers)):
        found.append(_run_block(skeleton, index, sides, spans, states, calls, simulation, positions))
        progress("blocks", index + 1, len(skeleton.layers))
    for weights, hidden in zip(sides, both, strict=True):
        _run_norm(skeleton, weights, spans, hidden)
    return Noises(front, _with_shares(found))


def run_alone(
    skeleton: Skeleton,
    weights: Weights,
    texts: Sequence[Ids],
    hidden: Values,
    simulation: Simulation,
    progress: Progress,
) -> None:
    """Run one model; what its last block hands on is left in ``hidden``, behind the norm.

    Raises:
        ModelError: See ``run_blocks``.
    """
    spans = spans_of(texts)
    calls = _run_front(skeleton, weights, texts, hidden)
    for index, layer in enumerate(skeleton.layers):
        name = skeleton.name_of(layer)
        with loaded(layer, name, weights), simulated(layer, name, simulation):
            for span in spans:
                inputs = np.array(hidden[span])
                hidden[span] = _call(layer, name, inputs, calls[len(inputs)][index])
        progress("blocks", index + 1, len(skeleton.layers))
    _run_norm(skeleton, weights, spans, hidden)


def _run_front(skeleton: Skeleton, weights: Weights, texts: Sequence[Ids], hidden: Values) -> Calls:
    """Leave what goes into the first block in ``hidden``; what each block is called with."""
    calls: dict[int, Sequence[Call]] = {}
    with _front(skeleton, weights, texts) as front:
        for ids, span in zip(texts, spans_of(texts), strict=True):
            first, calls[len(ids)] = front(torch.from_numpy(ids))
            hidden[span] = first[0].numpy()
    return calls


def _run_norm(skeleton: Skeleton, weights: Weights, spans: Sequence[slice], hidden: Values) -> None:
    with loaded(skeleton.norm, skeleton.name_of(skeleton.norm), weights), torch.inference_mode():
        for span in spans:
            hidden[span] = skeleton.norm(torch.from_numpy(hidden[span])).numpy()


def spans_of(texts: Sequence[Ids]) -> list[slice]:
    """Where the tokens of each text are among all."""
    ends = np.cumsum([len(ids) for ids in texts]).tolist()
    return [slice(end - len(ids), end) for end, ids in zip(ends, texts, strict=True)]


def _with_shares(blocks: Sequence[BlockFacts]) -> list[BlockFacts]:
    total = sum(block.own_noise or 0.0 for block in blocks)
    if not 0 < total < float("inf"):
        return list(blocks)
    return [block.model_copy(update={"own_share": (block.own_noise or 0.0) / total}) for block in blocks]


@contextmanager
def _front(skeleton: Skeleton, weights: Weights, texts: Sequence[Ids]) -> Iterator[Front]:
    """What stands before the blocks; of the embedding, only the rows of tokens that occur are read."""
    used = np.unique(np.concatenate(texts))
    empty = skeleton.embedding.weight
    rows = _embedding_rows(skeleton, used, weights)
    with ExitStack() as stack:
        for part in skeleton.front():
            stack.enter_context(loaded(part, skeleton.name_of(part), weights))
        calls = stack.enter_context(recorded_calls(skeleton))
        stack.enter_context(torch.inference_mode())
        skeleton.embedding.weight = nn.Parameter(rows, requires_grad=False)
        try:
            yield lambda ids: calls(torch.searchsorted(torch.from_numpy(used), ids)[None])
        finally:
            skeleton.embedding.weight = empty


def _embedding_rows(skeleton: Skeleton, used: Ids, weights: Weights) -> torch.Tensor:
    name = f"{skeleton.name_of(skeleton.embedding)}.weight"
    shape = tuple(skeleton.embedding.weight.shape)
    found = [weights.load(name, shape, slice(token, token + 1)) for token in used.tolist()]
    rows = [row for row in found if row is not None]
    if len(rows) < len(found):
        raise ModelError(
            "the checkpoint has no embedding of tokens",
            where=[f"file    {weights.checkpoint.path}", f"tensor  {name}"],
            help="look whether a shard is missing",
        )
    return torch.from_numpy(np.concatenate(rows))


def _run_block(
    skeleton: Skeleton,
    index: int,
    sides: tuple[Weights, Weights],
    spans: Sequence[slice],
    states: States,
    calls: Calls,
    simulation: Simulation,
    positions: Positions,
) -> BlockFacts:
    """Run one block of both models, each on what its own blocks before it handed on."""
    layer = skeleton.layers[index]
    name = skeleton.name_of(layer)
    noise, sources = BlockNoise.of(positions), SourceNoise(simulation.of_block(name))
    routing = Routing.of(layer, states.routes)
    own: list[tuple[Values, Values]] = []
    with loaded(layer, name, sides[0]):
        for number, span in enumerate(spans):
            inputs = np.array(states.floats[span])
            call = calls[len(inputs)][index]
            with routing.seen_floats(layer, span, is_sample=number < OWN_TEXTS):
                outputs = _call(layer, name, inputs, call)
            states.floats[span] = outputs
            noise.look(outputs)
            if number < OWN_TEXTS:
                own.append((inputs, outputs))
                sources.look(partial(_noise_of_source, layer, name, call, (inputs, outputs)))
        routing.run_float_experts(layer)
    with loaded(layer, name, sides[1]):
        with simulated(layer, name, simulation):
            for span in spans:
                inputs = np.array(states.quantized[span])
                with routing.seen_quantized(layer, span):
                    outputs = _call(layer, name, inputs, calls[len(inputs)][index])
                states.quantized[span] = outputs
                noise.carried.add(_noise_of_tokens(states.floats[span], outputs))
        routing.run_quantized_experts(layer)
        for inputs, outputs in own:
            noise.own.append(_noise_of_tokens(outputs, _call(layer, name, inputs, calls[len(inputs)][index])))
    return noise.facts(name).model_copy(update={**sources.facts(), **routing.facts()})


def _noise_of_source(
    layer: nn.Module, name: str, call: Call, own: tuple[Values, Values], simulation: Simulation, tallies: Tallies
) -> Floats:
    """Noise of the tokens behind a float block that runs with a simulation."""
    inputs, outputs = own
    with simulated(layer, name, simulation, tallies):
        return _noise_of_tokens(outputs, _call(layer, name, inputs, call))


def _mean_of_known(noise: Floats) -> float | None:
    known = noise[~np.isnan(noise)]
    return float(known.mean()) if known.size else None


def _call(layer: nn.Module, name: str, inputs: Values, call: Call) -> Values:
    args, kwargs = call
    try:
        with torch.inference_mode():
            found = layer(torch.from_numpy(inputs)[None], *args, **kwargs)
    except Exception as error:  # whatever an architecture raises
        raise ModelError(
            "a block cannot be run alone",
            where=[
                f"block  {name}",
                f"cause  {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            ],
            help="without --tokens the weights alone are compared",
        ) from error
    hidden = found[0] if isinstance(found, tuple) else found
    return np.asarray(hidden[0].numpy(), np.float32)


def _noise_of_tokens(floats: Values, quantized: Values) -> Floats:
    """Squared distance over squared length, of each token."""
    a, b = floats.astype(np.float64), quantized.astype(np.float64)
    length = (a * a).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(length > 0, ((b - a) ** 2).sum(1) / length, np.nan)
