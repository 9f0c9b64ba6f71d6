"""What both models predict, token by token: logits are made some of the vocabulary at a time and never kept."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.positions import Means, starts_of_bins
from quantmedic.collectors.from_language_model.rooms import let_go
from quantmedic.collectors.from_torch.devices import PROCESSOR, wide_place, widen

Floats = NDArray[np.float64]
#: Rows of the output layer at a time, and tokens that they are multiplied with.
ROWS, TOKENS = 8192, 512
#: Weights of the output layer at a time: 128 MB as float32.
_WEIGHTS = 1 << 25
#: Logits that are looked at in one go: as float64 numbers they stay in the processor's cache, which takes a fifth of
#: the time of some millions.
_TILE = 1 << 16
#: The same on a device, where starting a kernel costs more than small numbers of values in it: 32 MB as float64.
_TILE_OF_DEVICE = 1 << 22
#: Gives rows of the output layer ``[rows, hidden]`` and their bias, where there is one.
Head = Callable[[slice], tuple[torch.Tensor, torch.Tensor | None]]
#: Changes logits as the architecture does.
Shape = Callable[[torch.Tensor], torch.Tensor]
#: Quantile of the divergence over all tokens that is told.
_TAIL = 0.999


@dataclass(frozen=True)
class TokenScores:
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
        self.sum = torch.zeros(len(targets), dtype=torch.float64, device=targets.device)
        self.most = torch.full_like(self.sum, -torch.inf)
        self.first = torch.zeros_like(targets)
        self.at_target = torch.full_like(self.sum, -torch.inf)

    def add(self, span: slice, start: int, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take rows from ``start`` on of the tokens of a span, ``[tokens, rows]``.

        Gives by how much what was summed up before has to be scaled, and the exponentials that are summed up now.
        """
        before, targets = self.most[span], self.targets[span]
        highest, place = logits.max(1)
        most = torch.maximum(before, highest)
        self.first[span] = torch.where(highest > before, place + start, self.first[span])
        scale = torch.exp(before - most)
        exponentials = (logits - most[:, None]).exp_()
        self.sum[span] = self.sum[span] * scale + exponentials.sum(1)
        self.most[span] = most
        inside = (targets >= start) & (targets < start + logits.shape[1])
        picked = logits.gather(1, (targets - start).clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        self.at_target[span] = torch.where(inside, picked, self.at_target[span])
        return scale, exponentials

    @property
    def normalizer(self) -> torch.Tensor:
        """Logarithm of the sum of the exponentials of all logits."""
        return self.most + torch.log(self.sum)


class _Comparison:
    """Predictions of both models for the same tokens.

    All that is known of a token has its place from the beginning: small arrays that came about between large ones would
    keep the memory of these from going back.
    """

    def __init__(self, targets: torch.Tensor) -> None:
        """Nothing is known yet of these next tokens."""
        self._sides = _Side(targets), _Side(targets)
        self._crossed = torch.zeros(len(targets), dtype=torch.float64, device=targets.device)

    def add(self, span: slice, start: int, floats: torch.Tensor, quantized: torch.Tensor) -> None:
        """Take logits of both for the tokens of a span and rows from ``start`` on, ``[tokens, rows]``."""
        tile = _TILE if self._crossed.device.type == "cpu" else _TILE_OF_DEVICE
        step = max(tile // floats.shape[1], 1)
        for begin in range(0, len(floats), step):
            both = [widen(logits[begin : begin + step]) for logits in (floats, quantized)]
            part = slice(span.start + begin, span.start + begin + len(both[0]))
            scale, exponentials = self._sides[0].add(part, start, both[0])
            self._sides[1].add(part, start, both[1])
            crossed = exponentials.mul_(both[0] - both[1]).sum(1)
            self._crossed[part] = self._crossed[part] * scale + crossed

    def scores(self) -> TokenScores:
        """What is said of each token, once all rows were taken."""
        own, other = self._sides
        p, q = own.normalizer, other.normalizer
        surprises = p - own.at_target, q - other.at_target
        divergence = self._crossed / own.sum - p + q
        return TokenScores(
            float_surprise=surprises[0].cpu().numpy(),
            quantized_surprise=surprises[1].cpu().numpy(),
            divergence=divergence.clamp(min=0.0).cpu().numpy(),
            same_top=(own.first == other.first).cpu().numpy(),
            delta_p=(torch.exp(-surprises[1]) - torch.exp(-surprises[0])).cpu().numpy(),
        )


def score_tokens(
    hidden: tuple[NDArray[np.float32], NDArray[np.float32]],
    places: tuple[NDArray[np.int64], NDArray[np.int64]],
    targets: NDArray[np.int64],
    heads: tuple[Head, Head],
    vocabulary: int,
    shape: Shape,
    device: torch.device = PROCESSOR,
) -> TokenScores:
    """Compare predictions of the same tokens.

    The divergence is the sum of p · (log p - log q) over the vocabulary, p of the float model; logits are float32 and
    everything made of them is float64.

    Args:
        hidden: Behind the last norm of the float and of the quantized model, ``[tokens, width]``; may lie on disk.
        places: Where tokens that are followed by another one stand there, of both models.
        targets: The token that follows each.
        heads: Output layers of both.
        vocabulary: Rows of the output layers.
        shape: What the architecture does to logits.
        device: Where the output layers give their rows.
    """
    found = _Comparison(torch.from_numpy(targets).to(wide_place(device)))
    for rows in _row_slices(vocabulary, hidden[0].shape[1]):
        weights = [head(rows) for head in heads]
        for start in range(0, len(targets), TOKENS):
            span = slice(start, min(start + TOKENS, len(targets)))
            states = [np.asarray(own)[chosen[span]] for own, chosen in zip(hidden, places, strict=True)]
            floats, quantized = (
                shape(torch.nn.functional.linear(torch.from_numpy(own).to(device), *weight))
                for own, weight in zip(states, weights, strict=True)
            )
            found.add(span, rows.start, floats, quantized)
            for own in hidden:
                let_go(own)
    return found.scores()


def _row_slices(vocabulary: int, width: int) -> Iterator[slice]:
    step = min(ROWS, max(_WEIGHTS // width, 1))
    for start in range(0, vocabulary, step):
        yield slice(start, min(start + step, vocabulary))


@dataclass(frozen=True)
class Scores:
    """Sums over the predicted tokens of each text, ``[texts]``.

    Attributes:
        tokens: How many there are.
        float_surprise: Surprise of the float model, in nats.
        quantized_surprise: That of the quantized one.
        divergence: Of the quantized model's prediction from the float model's, in nats.
        same_top: Tokens for which both models predict the same one first.
        delta_p: Squared changes of the probability of the token of the text.
        nonfinite: Tokens of which the quantized model predicts what is no number.
        largest: The largest divergences of all tokens, one of a thousand, from the smallest on.
        starts: First place of each bin of tokens.
        by_place: Mean divergence of what is predicted at the tokens of each bin.
    """

    tokens: Floats
    float_surprise: Floats
    quantized_surprise: Floats
    divergence: Floats
    same_top: Floats
    delta_p: Floats
    nonfinite: Floats
    largest: Floats
    starts: tuple[int, ...]
    by_place: tuple[float | None, ...]

    @classmethod
    def of_plain(cls, values: Mapping[str, list[Any]]) -> "Scores":
        """From what ``plain`` has given."""
        tuples = {name: tuple(values[name]) for name in ("starts", "by_place")}
        arrays = {name: np.array(own, np.float64) for name, own in values.items() if name not in tuples}
        fields: dict[str, Any] = arrays | tuples
        return cls(**fields)

    def plain(self) -> dict[str, list[Any]]:
        """All values by name, as JSON takes them."""
        return {name: np.asarray(own).tolist() for name, own in vars(self).items()}

    @property
    def count(self) -> int:
        """All tokens."""
        return int(self.tokens.sum())

    @property
    def tail(self) -> float:
        """Divergence that 99.9 % of the tokens stay below: the quantile between the two nearest ones."""
        share = math.modf((self.count - 1) * _TAIL)[0]
        first, second = self.largest[0], self.largest[min(1, len(self.largest) - 1)]
        return float(first + share * (second - first))


class ScoreSums:
    """Sums that grow text by text."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """Nothing is known yet of texts of so many tokens."""
        tokens = sum(lengths) - len(lengths)
        self._kept = tokens - int((tokens - 1) * _TAIL)
        self._largest = np.empty(0)
        self._sums = np.empty((7, len(lengths)))
        self._done = 0
        self._places = Means(starts_of_bins(lengths))

    def add(self, found: TokenScores, lengths: Sequence[int]) -> None:
        """Take the next texts: the scores of their predicted tokens, one less than each has."""
        ends = np.cumsum([length - 1 for length in lengths]).tolist()
        for length, end in zip(lengths, ends, strict=True):
            own = slice(end - length + 1, end)
            self._places.add(found.divergence[own])
            self._sums[:, self._done] = (
                length - 1,
                found.float_surprise[own].sum(),
                found.quantized_surprise[own].sum(),
                found.divergence[own].sum(),
                found.same_top[own].sum(),
                (found.delta_p[own] ** 2).sum(),
                (~np.isfinite(found.quantized_surprise[own])).sum(),
            )
            self._done += 1
        known = np.concatenate([self._largest, found.divergence])
        self._largest = np.sort(known)[-self._kept :].copy()

    def scores(self) -> Scores:
        """What is said, once all texts were taken."""
        tokens, floats, quantized, divergence, same_top, delta_p, nonfinite = self._sums
        starts, means = self._places.starts, self._places.by_bin
        return Scores(tokens, floats, quantized, divergence, same_top, delta_p, nonfinite, self._largest, starts, means)
