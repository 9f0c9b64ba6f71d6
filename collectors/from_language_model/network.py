"""A language model whose weights stay on disk: a part has them while it runs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.data.messages import first_line
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.experts import load_otherwise
from quantmedic.collectors.from_language_model.rooms import let_go
from quantmedic.collectors.from_language_model.scores import Head
from quantmedic.collectors.from_language_model.skeleton import Call, RunFront, Skeleton, recorded_calls
from quantmedic.collectors.from_language_model.tokens import Ids, groups_of, spans_of
from quantmedic.engine.errors import ModelError

Values = NDArray[np.float32]
#: Tokens whose rows of the embedding are in memory at a time.
_TOKENS_OF_EMBEDDING = 4096
#: Bytes of what blocks are called with that are kept; a mask of 512 tokens takes 1 MB.
_KEPT = 1 << 24


@dataclass(frozen=True)
class Network:
    """A network without weights, and those of a checkpoint.

    Attributes:
        skeleton: Its parts. All methods that give them weights raise a ``ModelError`` where the checkpoint lacks one of
            them, or has it in another shape.
        weights: Of all parts.
    """

    skeleton: Skeleton
    weights: WeightValues

    def with_parts(self, prefixes: Sequence[str], others: "Network") -> "Network":
        """The same, but for parts whose names begin so, which have the weights of another one."""
        return replace(self, weights=self.weights.with_parts(prefixes, others.weights))

    @contextmanager
    def load_part(self, part: nn.Module) -> Iterator[str]:
        """A part with its weights on the device, as float32; without them again afterwards. Gives its name."""
        name, empty = self.skeleton.name_of(part), dict(part.state_dict())
        full = {own: self._parameter(f"{name}.{own}", tuple(value.shape)) for own, value in empty.items()}
        try:
            part.load_state_dict(full, strict=False, assign=True)
            yield name
        finally:
            part.load_state_dict(empty, strict=False, assign=True)

    def _parameter(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        found = self.weights.load(name, shape)
        if found is None:
            found = load_otherwise(name, shape, self.weights.load)
        if found is None:
            raise ModelError(
                "the checkpoint lacks weights that its config.json asks for",
                where=[f"file    {self.weights.checkpoint.path}", f"tensor  {name}  {list(shape)}"],
                help="look whether a shard is missing, or whether the config is of another model",
            )
        return torch.from_numpy(found).to(self.skeleton.device)

    def run_front(self, texts: Sequence[Ids], hidden: Values) -> None:
        """Leave what goes into the first block in ``hidden``, ``[tokens, width]``.

        Of the embedding, only the rows of the tokens at hand are in memory.
        """
        spans = spans_of(texts)
        with self._front() as front:
            for group in groups_of(texts, _TOKENS_OF_EMBEDDING):
                used = np.unique(np.concatenate([texts[place] for place in group]))
                rows = self._embedding_rows(used).to(self.skeleton.device)
                for place in group:
                    first, _ = self._call_front(front, rows, np.searchsorted(used, texts[place]))
                    hidden[spans[place]] = first[0].cpu().numpy()
                    let_go(hidden)

    @contextmanager
    def _front(self) -> Iterator[RunFront]:
        with ExitStack() as stack:
            for part in self.skeleton.front():
                stack.enter_context(self.load_part(part))
            calls = stack.enter_context(recorded_calls(self.skeleton))
            stack.enter_context(torch.inference_mode())
            yield calls

    def _call_front(self, front: RunFront, rows: torch.Tensor, places: Ids) -> tuple[torch.Tensor, Sequence[Call]]:
        """Take rows of the embedding, and a text as places among them; see ``recorded_calls``."""
        embedding = self.skeleton.embedding
        empty = embedding.weight
        embedding.weight = nn.Parameter(rows, requires_grad=False)
        try:
            return front(torch.from_numpy(places)[None].to(self.skeleton.device))
        finally:
            embedding.weight = empty

    def calls_of(self, length: int) -> Sequence[Call]:
        """What each block is called with for a text of so many tokens, beside hidden states; see ``Calls``."""
        with self._front() as front:
            blank = torch.zeros(1, self.skeleton.embedding.weight.shape[1], device=self.skeleton.device)
            return self._call_front(front, blank, np.zeros(length, np.int64))[1]

    def _embedding_rows(self, used: Ids) -> torch.Tensor:
        name = f"{self.skeleton.name_of(self.skeleton.embedding)}.weight"
        found = self.weights.load(name, tuple(self.skeleton.embedding.weight.shape), used)
        if found is None:
            raise ModelError(
                "the checkpoint has no embedding of tokens",
                where=[f"file    {self.weights.checkpoint.path}", f"tensor  {name}"],
                help="look whether a shard is missing",
            )
        return torch.from_numpy(found)

    def run_norm(self, spans: Sequence[slice], before: Values, behind: Values) -> None:
        """Run what stands behind the blocks, on the hidden states of each text."""
        norm = self.skeleton.norm
        with self.load_part(norm), torch.inference_mode():
            for span in spans:
                behind[span] = norm(torch.from_numpy(before[span]).to(self.skeleton.device)).cpu().numpy()
                let_go(before)
                let_go(behind)

    def head_rows(self) -> Head:
        """Gives rows of the output layer, on the device; tied, those of the embedding, where there are no others."""
        skeleton, weights = self.skeleton, self.weights
        layer, device = skeleton.head, skeleton.device
        shape = tuple(layer.weight.shape)
        names = [f"{skeleton.name_of(part)}.weight" for part in (layer, skeleton.embedding)]
        name = next((own for own in names if own in weights.names), None)
        if name is None or (name != names[0] and not skeleton.is_tied):
            raise ModelError(
                "the checkpoint has no output layer",
                where=[f"file    {weights.checkpoint.path}", f"tensor  {names[0]}"],
                help="look whether a shard is missing; tied embeddings need tie_word_embeddings in config.json",
            )
        bias = None
        if layer.bias is not None:
            bias = weights.load(f"{skeleton.name_of(layer)}.bias", tuple(layer.bias.shape))

        def rows_of(rows: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
            found = weights.load(name, shape, rows)
            assert found is not None  # its name is known
            return torch.from_numpy(found).to(device), None if bias is None else torch.from_numpy(bias[rows]).to(device)

        rows_of(slice(0, 1))  # a shape that does not fit is told before anything is run
        return rows_of


class Calls:
    """What blocks are called with beside hidden states: positions and masks, by the length of the text.

    They are the same for both models, and lie on the device. Those of a few lengths are kept, others made again for
    each text, so that memory does not grow with the lengths that texts have.
    """

    def __init__(self, network: Network) -> None:
        """``network``: has the weights of what else than the embedding stands in front of the blocks."""
        self._network = network
        self._kept: dict[int, Sequence[Call]] = {}
        self._free = _KEPT

    def of(self, length: int) -> Sequence[Call]:
        """What each block is called with for a text of so many tokens."""
        if length in self._kept:
            return self._kept[length]
        calls = self._network.calls_of(length)
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


def call_block(layer: nn.Module, name: str, inputs: Values, call: Call) -> Values:
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
