"""What stands in front of the blocks: hidden states of the first one, and what blocks are called with beside them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.from_checkpoint.weight_values import Weights
from quantmedic.collectors.from_language_model.rooms import let_go
from quantmedic.collectors.from_language_model.skeleton import Call, Skeleton, loaded, recorded_calls
from quantmedic.collectors.from_language_model.spans import groups_of, spans_of
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.errors import ModelError

Values = NDArray[np.float32]
#: Tokens whose rows of the embedding are in memory at a time.
_TOKENS = 4096
#: Bytes of what blocks are called with that are kept; a mask of 512 tokens takes 1 MB.
_KEPT = 1 << 24
#: Takes rows of the embedding, and a text as places among them; gives what goes into the first block, and the calls.
_Front = Callable[[torch.Tensor, Ids], tuple[torch.Tensor, Sequence[Call]]]


def run_front(skeleton: Skeleton, weights: Weights, texts: Sequence[Ids], hidden: Values) -> None:
    """Leave what goes into the first block in ``hidden``, ``[tokens, width]``.

    Of the embedding, only the rows of the tokens at hand are in memory.

    Raises:
        ModelError: The checkpoint lacks the embedding or what else stands there.
    """
    spans = spans_of(texts)
    with _front(skeleton, weights) as front:
        for group in groups_of(texts, _TOKENS):
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

    def __init__(self, skeleton: Skeleton, weights: Weights) -> None:
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
def _front(skeleton: Skeleton, weights: Weights) -> Iterator[_Front]:
    empty = skeleton.embedding.weight
    with ExitStack() as stack:
        for part in skeleton.front():
            stack.enter_context(loaded(part, skeleton.name_of(part), weights, skeleton.device))
        calls = stack.enter_context(recorded_calls(skeleton))
        stack.enter_context(torch.inference_mode())

        def run(rows: torch.Tensor, places: Ids) -> tuple[torch.Tensor, Sequence[Call]]:
            skeleton.embedding.weight = nn.Parameter(rows, requires_grad=False)
            try:
                return calls(torch.from_numpy(places)[None].to(skeleton.device))
            finally:
                skeleton.embedding.weight = empty

        yield run


def _embedding_rows(skeleton: Skeleton, used: Ids, weights: Weights) -> torch.Tensor:
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
