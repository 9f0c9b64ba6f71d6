"""Sums over the tokens of texts equal what all tokens at once give, and trials take texts evenly."""

import numpy as np
import pytest

pytest.importorskip("torch")

from quantmedic.collectors.from_language_model.bench import Gain, texts_of_trials
from quantmedic.collectors.from_language_model.positions import Means, starts_of_bins
from quantmedic.collectors.from_language_model.scores import Scores, ScoreSums, TokenScores

pytestmark = pytest.mark.thorough


def drawn(tokens: int, seed: int = 0) -> TokenScores:
    random = np.random.default_rng(seed)
    floats, quantized, divergence, delta_p = np.exp(random.normal(size=(4, tokens)))
    return TokenScores(floats, quantized, divergence, random.random(tokens) < 0.9, delta_p)


def part(scores: TokenScores, span: slice) -> TokenScores:
    return TokenScores(*(values[span] for values in vars(scores).values()))


def summed(scores: TokenScores, lengths: list[int], at_once: int) -> Scores:
    sums, place = ScoreSums(lengths), 0
    for start in range(0, len(lengths), at_once):
        own = lengths[start : start + at_once]
        span = slice(place, place + sum(own) - len(own))
        sums.add(part(scores, span), own)
        place = span.stop
    return sums.scores()


@pytest.mark.parametrize("texts, at_once", [(1, 1), (40, 7), (300, 300)])
def test_sums_are_those_of_all_tokens(texts: int, at_once: int) -> None:
    lengths = np.random.default_rng(texts).integers(2, 60, texts).tolist()
    scores = drawn(sum(lengths) - texts)
    found = summed(scores, lengths, at_once)
    assert found.count == len(scores.divergence)
    assert found.tail == pytest.approx(np.quantile(scores.divergence, 0.999), rel=1e-12)
    assert found.divergence.sum() == pytest.approx(scores.divergence.sum(), rel=1e-12)
    assert found.delta_p.sum() == pytest.approx((scores.delta_p**2).sum(), rel=1e-12)
    assert found.same_top.sum() == scores.same_top.sum() and not found.nonfinite.any()
    ends = np.cumsum([length - 1 for length in lengths])[:-1]
    parts = np.split(scores.divergence, ends)
    np.testing.assert_allclose(found.divergence, [own.sum() for own in parts], rtol=1e-12)
    means = Means(starts_of_bins(lengths))
    for own in parts:
        means.add(own)
    assert (found.starts, found.by_place) == (means.starts, means.by_bin)
    assert len(found.largest) <= 1 + 0.001 * found.count + 1, "one token of a thousand is kept"


def test_trials_take_texts_evenly_by_their_divergence() -> None:
    for texts, taken in ((1, 1), (3, 3), (4, 4), (16, 4), (24, 6), (64, 16), (500, 16)):
        scores = summed(drawn(29 * texts, texts), [30] * texts, texts)
        chosen = texts_of_trials(scores)
        assert len(set(chosen)) == taken and chosen == sorted(chosen), texts
        ranks = np.argsort(np.argsort(scores.divergence))[chosen]
        edges = np.linspace(0, texts, taken + 1)
        assert np.array_equal(np.searchsorted(edges, np.sort(ranks), side="right"), np.arange(1, taken + 1)), texts


def test_the_interval_of_a_gain_covers_what_all_texts_give() -> None:
    """Of many draws of few texts, about as many miss as the interval says, though their divergences differ tenfold."""
    random, hits = np.random.default_rng(0), []
    for _ in range(200):
        before = np.exp(random.normal(0, 1, 8))
        gain = Gain.of(before, before * np.clip(random.normal(0.3, 0.1, 8), 0, 1))
        assert gain.low is not None and gain.share is not None and gain.high is not None
        assert gain.low < gain.share < gain.high
        hits.append(gain.low < 0.7 < gain.high)
    assert 0.88 < np.mean(hits) <= 1


def test_a_gain_of_nothing_is_not_known() -> None:
    assert Gain.of(np.zeros(4), np.zeros(4)) == Gain(None)
    assert Gain.of(np.array([2.0]), np.array([0.5])) == Gain(0.75)
