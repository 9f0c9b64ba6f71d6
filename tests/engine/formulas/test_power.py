"""Sample sizes of a decision, against simulated runs."""

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.formulas.power import MOST_SAMPLES, power, sizes_of_counts, sizes_of_interval, sizes_of_share
from quantmedic.engine.metrics.paired import drop_interval, score_interval, share_interval

pytestmark = pytest.mark.thorough

few = examples(40)
RUNS = 10_000
#: Of 10 000 runs, five standard deviations.
CHANCE = 5 * 0.5 / RUNS**0.5


def simulated(samples: int, drop: float, limit: float, discordance: float) -> tuple[float, float, float]:
    shares = [(discordance + drop) / 2, (discordance - drop) / 2, 1 - discordance]
    losses, gains, _ = np.random.default_rng(samples).multinomial(samples, shares, RUNS).T
    low, high = score_interval(losses, gains, samples)
    regression, accept = float((low > limit).mean()), float((high <= limit).mean())
    return regression, 1 - regression - accept, accept


def test_power_is_what_is_simulated() -> None:
    for samples, limit, discordance in [(500, 0.02, 0.2), (2000, 0.01, 0.05), (20000, 0.005, 0.2)]:
        for drop in (0.0, limit, 2 * limit):
            expected = simulated(samples, drop, limit, discordance)
            found = power(samples, drop, limit, discordance)
            assert found == pytest.approx(expected, abs=CHANCE + 0.01), (samples, limit, drop)


def test_the_proposal_finds_twice_the_limit_and_accepts_no_drop() -> None:
    many = 10**8
    for limit, discordance in [(0.005, 0.2), (0.01, 0.0), (0.03, 0.05)]:
        gains = round(many * discordance / 2)
        size = sizes_of_counts(gains, gains, many, limit, 0.95).at_twice
        assert size is not None
        assert simulated(size, 2 * limit, limit, discordance + 2 * limit)[0] >= 0.9 - CHANCE / 2
        assert simulated(size, 0.0, limit, discordance)[2] >= 0.9 - CHANCE / 2
        fewer = round(0.8 * size)
        assert power(fewer, 2 * limit, limit, discordance + 2 * limit)[0] < 0.9


def test_so_does_the_proposal_of_a_pilot() -> None:
    """Each of the runs has a pilot of its own, whose gains are all that is known."""
    limit = 0.01
    for pilot, discordance in [(100, 0.02), (1000, 0.0), (1000, 0.2)]:
        gain, rng = discordance / 2, np.random.default_rng(pilot)
        known, inverse = np.unique(rng.binomial(pilot, gain, RUNS), return_inverse=True)
        sizes = [sizes_of_counts(0, int(gains), pilot, limit, 0.95).at_twice for gains in known]
        samples = np.array(sizes, np.int64)[inverse]
        losses, gains, _ = rng.multinomial(samples, [gain + 2 * limit, gain, 1 - discordance - 2 * limit]).T
        low, _ = score_interval(losses, gains, samples)
        assert (low > limit).mean() >= 0.9, (pilot, discordance)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(500, 5000), st.sampled_from([0.0, 0.005, 0.01, 0.05]))
@few
def test_at_measured_is_where_the_interval_leaves_the_limit(losses: int, gains: int, n: int, limit: float) -> None:
    size = sizes_of_counts(losses, gains, n, limit, 0.95).at_measured
    drop = (losses - gains) / n
    if size is None:
        assert abs(drop - limit) < 0.003
        return
    for samples, decided in ((1.02 * size + 2, True), (0.98 * size - 2, False)):
        if samples > 1:
            low, high = score_interval(losses / n * samples, gains / n * samples, samples)
            assert bool(low > limit or high < limit) is decided


def test_what_cannot_be_decided_has_no_size() -> None:
    assert sizes_of_counts(30, 20, 1000, 0.0, 0.95).at_twice is None, "twice nothing is nothing"
    assert sizes_of_counts(30, 20, 1000, 0.01, 0.95).at_measured is None, "the drop is the limit"
    assert sizes_of_counts(10_000_001, 0, 10**9, 0.01, 0.95).at_measured is None, "more than anybody has"
    assert sizes_of_counts(0, 0, 10, 0.6, 0.95).at_twice is None, "nothing can drop by more than all"
    assert sizes_of_interval(0.5, 0.5, 0.5, 10, 0.1, 0.95).at_twice is None, "no spread was seen"
    assert sizes_of_interval(0.1, 0.0, 0.2, 10, 0.1, 0.95).at_measured is None
    assert sizes_of_interval(0.1, 0.0, 0.2, 10, 0.0, 0.95).at_twice is None
    tiny = sizes_of_counts(100, 100, 1000, 1e-6, 0.95)
    assert tiny.at_twice is None and MOST_SAMPLES == 10_000_000


def test_sizes_of_a_share() -> None:
    for right, end in [(985, 1), (995, 0)]:
        size = sizes_of_share(right, 1000, 0.99, 0.95).at_measured
        assert size is not None and size > 100
        fewer, more = (share_interval(right / 1000 * n, n)[end] - 0.99 for n in (size - 20, size + 20))
        assert (more < 0 <= fewer) if end else (fewer <= 0 < more)


def test_sizes_of_other_metrics_follow_the_spread() -> None:
    rng = np.random.default_rng(4)
    errors = rng.exponential(1.0, 4000)
    worse = errors + 0.04 + rng.normal(0, 1, 4000)
    drop, low, high = drop_interval(errors, worse, higher_is_better=False)
    sizes = sizes_of_interval(drop, low, high, 4000, 0.02, 0.95)
    spread = (worse - errors).std()
    assert sizes.at_twice == pytest.approx((1.96 + 1.2816) ** 2 * (spread / 0.02) ** 2, rel=0.2)
    assert sizes.at_measured == pytest.approx((1.96 * spread / (drop - 0.02)) ** 2, rel=0.2)
