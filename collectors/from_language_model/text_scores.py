"""What both models predict of each text: sums over its tokens, none of which is kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.positions import Positions
from quantmedic.collectors.from_language_model.scores import TokenScores

Floats = NDArray[np.float64]
#: Quantile of the divergence over all tokens that is told.
_TAIL = 0.999


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
        place_sums: Divergence of what is predicted at the tokens of each bin of ``Positions``, ``[bins]``.
        place_counts: How many tokens these are.
    """

    tokens: Floats
    float_surprise: Floats
    quantized_surprise: Floats
    divergence: Floats
    same_top: Floats
    delta_p: Floats
    nonfinite: Floats
    largest: Floats
    place_sums: Floats
    place_counts: Floats

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
        self.positions = Positions.of_texts(lengths)
        tokens = sum(lengths) - len(lengths)
        self._kept = tokens - int((tokens - 1) * _TAIL)
        self._largest = np.empty(0)
        self._sums = np.empty((7, len(lengths)))
        self._done = 0
        self._bins = np.zeros(len(self.positions.starts)), np.zeros(len(self.positions.starts))

    def add(self, found: TokenScores, lengths: Sequence[int]) -> None:
        """Take the next texts: the scores of their predicted tokens, one less than each has."""
        ends = np.cumsum([length - 1 for length in lengths]).tolist()
        for length, end in zip(lengths, ends, strict=True):
            own = slice(end - length + 1, end)
            for sums, values in zip(self._bins, self.positions.sums(found.divergence[own]), strict=True):
                sums += values
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
        return Scores(tokens, floats, quantized, divergence, same_top, delta_p, nonfinite, self._largest, *self._bins)
