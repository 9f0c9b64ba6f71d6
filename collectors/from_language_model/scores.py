"""What both models predict, token by token: logits are made some of the vocabulary at a time and never kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.rooms import let_go

Floats = NDArray[np.float64]
#: Rows of the output layer at a time, and tokens.
ROWS, _TOKENS = 2048, 512
#: Tokens at a time where all of the vocabulary is there.
_AT_ONCE = 64
#: Gives rows of the output layer ``[rows, hidden]`` and their bias, where there is one.
Head = Callable[[slice], tuple[torch.Tensor, torch.Tensor | None]]
#: Changes logits as the architecture does.
Shape = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Scores:
    """Of each predicted token: surprise of both models in nats, divergence, agreement, probability of the token."""

    float_surprise: Floats
    quantized_surprise: Floats
    divergence: Floats
    same_top: NDArray[np.bool_]
    delta_p: Floats


class _Side:
    """What one model predicts for some tokens, from the rows of the output layer seen so far."""

    def __init__(self, targets: torch.Tensor) -> None:
        """Nothing is known yet of these next tokens."""
        self.targets = targets
        self.most = torch.full((len(targets),), -torch.inf, dtype=torch.float64)
        self.sum = torch.zeros(len(targets), dtype=torch.float64)
        self.first = torch.zeros(len(targets), dtype=torch.int64)
        self.at_target = torch.full((len(targets),), -torch.inf, dtype=torch.float64)

    def add(self, start: int, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take rows from ``start`` on, ``[tokens, rows]``.

        Gives by how much what was summed up before has to be scaled, and the exponentials that are summed up now.
        """
        highest, place = logits.max(1)
        most = torch.maximum(self.most, highest)
        self.first = torch.where(highest > self.most, place + start, self.first)
        scale = torch.exp(self.most - most)
        exponentials = torch.exp(logits - most[:, None])
        self.sum = self.sum * scale + exponentials.sum(1)
        self.most = most
        inside = (self.targets >= start) & (self.targets < start + logits.shape[1])
        picked = logits.gather(1, (self.targets - start).clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        self.at_target = torch.where(inside, picked, self.at_target)
        return scale, exponentials

    @property
    def normalizer(self) -> torch.Tensor:
        """Logarithm of the sum of the exponentials of all logits."""
        return self.most + torch.log(self.sum)


def score_tokens(
    hidden: tuple[NDArray[np.float32], NDArray[np.float32]],
    places: NDArray[np.int64],
    targets: NDArray[np.int64],
    heads: tuple[Head, Head],
    vocabulary: int,
    shape: Shape,
) -> Scores:
    """Compare predictions of the same tokens.

    The divergence is the sum of p · (log p - log q) over the vocabulary, p of the float model; logits are float32 and
    everything made of them is float64.

    Args:
        hidden: Behind the last norm of the float and of the quantized model, ``[tokens, width]``; may lie on disk.
        places: Tokens that are followed by another one.
        targets: The token that follows each.
        heads: Output layers of both.
        vocabulary: Rows of the output layers.
        shape: What the architecture does to logits.
    """
    spans = [slice(k, k + _TOKENS) for k in range(0, len(targets), _TOKENS)]
    sides = [tuple(_Side(torch.from_numpy(targets[span])) for _ in heads) for span in spans]
    crossed = [torch.zeros(len(pair[0].targets), dtype=torch.float64) for pair in sides]
    for rows in _row_slices(vocabulary):
        weights = [head(rows) for head in heads]
        for k, span in enumerate(spans):
            both = [
                shape(torch.nn.functional.linear(torch.from_numpy(np.array(own[places[span]])), *weight)).double()
                for own, weight in zip(hidden, weights, strict=True)
            ]
            own, other = sides[k]
            scale, exponentials = own.add(rows.start, both[0])
            other.add(rows.start, both[1])
            crossed[k] = crossed[k] * scale + (exponentials * (both[0] - both[1])).sum(1)
            for states in hidden:
                let_go(states)
    return _joined(sides, crossed)


def score_logits(floats: torch.Tensor, quantized: torch.Tensor, targets: torch.Tensor) -> Scores:
    """Compare predictions whose logits are there, ``[tokens, vocabulary]``; the last row predicts nothing known."""
    spans = [slice(k, min(k + _AT_ONCE, len(targets))) for k in range(0, len(targets), _AT_ONCE)]
    sides = [(_Side(targets[span]), _Side(targets[span])) for span in spans]
    crossed = []
    for (own, other), span in zip(sides, spans, strict=True):
        both = floats[span].double(), quantized[span].double()
        _, exponentials = own.add(0, both[0])
        other.add(0, both[1])
        crossed.append((exponentials * (both[0] - both[1])).sum(1))
    return _joined([*sides], crossed)


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Scores of several texts, one behind the other."""
    return Scores(*(np.concatenate([getattr(part, own.name) for part in parts]) for own in fields(Scores)))


def _row_slices(vocabulary: int) -> Iterator[slice]:
    for start in range(0, vocabulary, ROWS):
        yield slice(start, min(start + ROWS, vocabulary))


def _joined(sides: Sequence[tuple[_Side, ...]], crossed: list[torch.Tensor]) -> Scores:
    own, other = ([pair[k] for pair in sides] for k in (0, 1))
    surprises = [torch.cat([side.normalizer - side.at_target for side in model]) for model in (own, other)]
    divergence = torch.cat(
        [cross / a.sum - a.normalizer + b.normalizer for cross, a, b in zip(crossed, own, other, strict=True)]
    )
    p, q = (torch.exp(-surprise) for surprise in surprises)
    same = torch.cat([a.first == b.first for a, b in zip(own, other, strict=True)])
    return Scores(
        float_surprise=surprises[0].numpy(),
        quantized_surprise=surprises[1].numpy(),
        divergence=divergence.clamp(min=0.0).numpy(),
        same_top=same.numpy(),
        delta_p=(q - p).numpy(),
    )
