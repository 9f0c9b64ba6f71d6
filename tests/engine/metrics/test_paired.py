"""Paired intervals of a drop: published numbers, symmetry, coverage and determinism."""

import itertools
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.metrics import paired
from quantmedic.engine.metrics.paired import (
    drop_interval,
    margin,
    mcnemar,
    mean_interval,
    null_moments,
    score_interval,
    share_interval,
)

few = examples(60)
counts = st.tuples(*[st.integers(0, 40)] * 4).filter(lambda table: sum(table) > 0)


def table(both: int, only_float: int, only_quantized: int, neither: int) -> tuple[Any, Any]:
    floats = [1] * both + [1] * only_float + [0] * only_quantized + [0] * neither
    quantized = [1] * both + [0] * only_float + [1] * only_quantized + [0] * neither
    return np.array(floats, float), np.array(quantized, float)


def test_published_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airway reactivity (Bentur et al. 2009; 1 loss and 7 gains of 21), as in ratesci's article on paired contrasts.

    It corrects by a whole sample, or by none; where the skewness would bring an end closer, Tango's own is kept.
    """
    monkeypatch.setattr(paired, "_CONTINUITY", 1.0)
    assert score_interval(1, 7, 21) == (pytest.approx(-0.5683, abs=6e-5), pytest.approx(0.0311, abs=6e-5))
    monkeypatch.setattr(paired, "_CONTINUITY", 0.0)
    assert score_interval(1, 7, 21) == (pytest.approx(-0.5229, abs=6e-5), pytest.approx(-0.0260, abs=6e-5))


def test_interval_of_a_share_is_close_to_the_exact_one() -> None:
    """Clopper and Pearson 1934, for 0, 1 and 5 of 10 and 9 of 300: bisection of the binomial tails."""
    for hits, samples, low, high in ((0, 10, 0, 0.3085), (1, 10, 0.0025, 0.4450), (5, 10, 0.1871, 0.8129)):
        found = share_interval(hits, samples)
        assert found == (pytest.approx(low, abs=0.015), pytest.approx(high, abs=0.015))
    assert share_interval(9, 300) == (pytest.approx(0.0138, abs=5e-4), pytest.approx(0.0562, abs=5e-4))
    assert mean_interval(np.repeat([1.0, 0.0], (9, 291))) == tuple(map(float, share_interval(9, 300)))


@given(counts, st.sampled_from([0.6, 0.8, 0.95, 0.99, 0.9999]))
@few
def test_the_interval_is_what_the_score_test_does_not_exclude(cells: tuple[int, int, int, int], level: float) -> None:
    """One stretch of drops and no more, so that bisection finds its ends."""
    _, losses, gains, _ = cells
    n = sum(cells)
    low, high = score_interval(losses, gains, n, level)
    grid = np.linspace(-0.999, 0.999, 1999)
    variance, skew = null_moments(losses, gains, n, grid)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    away = losses - gains - n * grid
    kept = (away <= margin(variance, skew, n, z)) & (-away <= margin(variance, -skew, n, z))
    expected = (grid >= low) & (grid <= high)
    assert (kept == expected)[np.minimum(abs(grid - low), abs(grid - high)) > 1e-9].all()


@pytest.mark.nightly
def test_a_drop_at_the_limit_is_called_a_regression_in_one_of_forty_runs() -> None:
    """The drop is the limit: neither side is called wrongly more often than promised, and 5 sigma of 10 000 runs."""
    pairs = ((0.01, 0.01), (0.01, 0.012), (0.01, 0.05), (0.02, 0.024), (0.005, 0.3))
    for samples, (limit, discordance) in itertools.product((100, 300, 1000, 20000), pairs):
        shares = [(discordance + limit) / 2, (discordance - limit) / 2, 1 - discordance]
        losses, gains, _ = np.random.default_rng(samples).multinomial(samples, shares, 10_000).T
        low, high = score_interval(losses, gains, samples)
        above, below = (low > limit).mean(), (high < limit).mean()
        assert max(above, below) <= 0.025 + 5 * 0.00156, (samples, limit, discordance)
        assert samples < 20000 or above > 0.015, "and no more cautious than it has to be"


@given(st.integers(1, 3000), st.floats(0, 1), st.floats(0, 1))
@few
def test_all_concordant_and_all_discordant(n: int, share: float, level: float) -> None:
    low, high = score_interval(0, 0, n)
    assert low == -high and 0 < high < min(4 / n, 1) + 1e-9
    losses = round(share * n)
    low, high = score_interval(losses, n - losses, n)
    assert -1 <= low <= (2 * losses - n) / n <= high <= 1


@pytest.mark.thorough
def test_mcnemar_is_the_binomial_test() -> None:
    from scipy.stats import binomtest  # a second to import

    for losses, gains in ((3, 0), (7, 1), (12, 30), (4_321, 4_000), (123_456, 124_000)):
        exact = binomtest(losses, losses + gains).pvalue
        assert mcnemar(losses, gains) == mcnemar(gains, losses) == pytest.approx(exact, rel=1e-9)
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0


@given(counts)
@few
def test_interval_holds_the_drop_and_exchanging_the_models_turns_the_sign(cells: tuple[int, int, int, int]) -> None:
    a, b = table(*cells)
    drop, low, high = drop_interval(a, b, higher_is_better=True)
    assert drop == pytest.approx((cells[1] - cells[2]) / sum(cells))
    assert -1 - 1e-12 <= low <= drop <= high <= 1 + 1e-12
    assert drop_interval(b, a, higher_is_better=True) == pytest.approx((-drop, -high, -low))
    assert drop_interval(a, b, higher_is_better=False) == pytest.approx((-drop, -high, -low))


def test_higher_confidence_widens_the_interval() -> None:
    a, b = table(40, 9, 2, 3)
    _, low, high = drop_interval(a, b, higher_is_better=True, confidence=0.95)
    _, wider_low, wider_high = drop_interval(a, b, higher_is_better=True, confidence=0.99)
    assert wider_low < low and high < wider_high
    x, y = errors()
    _, low, high = drop_interval(x, y, higher_is_better=False)
    _, wider_low, wider_high = drop_interval(x, y, higher_is_better=False, confidence=0.99)
    assert wider_low < low and high < wider_high


@pytest.mark.thorough
def test_binary_interval_covers_the_truth() -> None:
    """Of 95 % intervals, about 95 % hold the drop that the samples were drawn with."""
    rng = np.random.default_rng(5)
    shares = np.array([0.7, 0.12, 0.05, 0.13])
    held = 0
    for cells in rng.multinomial(80, shares, 400):
        _, low, high = drop_interval(*table(*cells), higher_is_better=True)
        held += low <= shares[1] - shares[2] <= high
    assert 0.91 <= held / 400 <= 0.99


def errors(n: int = 200, extra: float = 0.1) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    before = rng.exponential(1.0, n)
    return before, before + extra * rng.exponential(1.0, n)


def test_bootstrap_is_deterministic_and_seeded() -> None:
    x, y = errors()
    first = drop_interval(x, y, higher_is_better=False)
    assert drop_interval(x, y, higher_is_better=False) == first
    other = drop_interval(x, y, higher_is_better=False, seed=1)
    assert other[0] == first[0] and other[1:] != first[1:]
    assert other == pytest.approx(first, rel=0.1)


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    x, y = errors()
    worse = y - x
    drop, low, high = drop_interval(x, y, higher_is_better=False)
    half = 1.96 * worse.std() / np.sqrt(len(worse))
    assert drop == pytest.approx(worse.mean())
    assert low == pytest.approx(drop - half, abs=0.2 * half)
    assert high == pytest.approx(drop + half, abs=0.2 * half)


def test_bootstrap_keeps_the_pairs() -> None:
    """A constant difference is certain, however much the samples vary."""
    x, _ = errors()
    assert drop_interval(x, x + 0.5, higher_is_better=False) == pytest.approx((0.5, 0.5, 0.5))
    assert drop_interval(x, x, higher_is_better=False) == (0, 0, 0)


def test_root_is_taken_after_the_mean() -> None:
    x, y = errors()
    drop, low, high = drop_interval(x**2, y**2, higher_is_better=False, root=True)
    assert drop == pytest.approx(np.sqrt((y**2).mean()) - np.sqrt((x**2).mean()))
    assert 0 < low < drop < high


def test_root_of_zeros_and_ones_is_no_proportion() -> None:
    a, b = table(10, 20, 5, 15)
    drop, low, high = drop_interval(a, b, higher_is_better=False, root=True)
    assert drop == pytest.approx(np.sqrt(b.mean()) - np.sqrt(a.mean()))
    assert low < drop < high


def skewed(n: int, runs: int = 400) -> Any:
    """Differences of which few are large: most samples lose nothing and some gain a lot; their mean is -1."""
    return -np.random.default_rng(n).exponential(1.0, (runs, n))


@pytest.mark.thorough
def test_bootstrap_keeps_its_level_on_skewed_differences() -> None:
    """The drop is -1. Percentiles would call it more in 6 % of the runs of 50 samples; studentized it is 3 %."""
    called = 0
    for worse in skewed(50):
        drop, low, _ = drop_interval(np.zeros(50), worse, higher_is_better=False)
        assert drop == pytest.approx(worse.mean())
        called += low > -1
    assert called / 400 <= 0.025 + 0.01 + 4 * math.sqrt(0.025 * 0.975 / 400)


def test_rare_differences_have_an_end() -> None:
    floats, quantized = np.zeros(1000), np.zeros(1000)
    quantized[:2] = 1.5
    drop, low, high = drop_interval(floats, quantized, higher_is_better=False)
    assert drop == pytest.approx(0.003) and low < 0.001 and 0.006 < high < 0.03


def test_a_metric_that_is_nothing_but_zeros_has_a_root() -> None:
    values = np.random.default_rng(3).exponential(1.0, 60)
    drop, low, high = drop_interval(np.zeros(60), values, higher_is_better=False, root=True)
    assert drop == pytest.approx(math.sqrt(values.mean())) and 0 < low < drop < high
    assert drop_interval(values, np.zeros(60), higher_is_better=False, root=True) == pytest.approx((-drop, -high, -low))


def test_relative_drop_is_the_drop_over_the_metric() -> None:
    x, y = errors()
    found = drop_interval(x, y, higher_is_better=False, relative=True)
    assert found[0] == pytest.approx(y.mean() / x.mean() - 1)
    assert found[1] < found[0] < found[2]
    # Twice every error: certain, however much the samples vary.
    assert drop_interval(x, 2 * x, higher_is_better=False, relative=True) == pytest.approx((1, 1, 1))
    assert drop_interval(x**2, 4 * x**2, higher_is_better=False, root=True, relative=True) == pytest.approx((1, 1, 1))
    assert drop_interval(10 * x, 10 * y, higher_is_better=False, relative=True) == pytest.approx(found)
    a, b = table(30, 20, 5, 45)
    shares = drop_interval(a, b, higher_is_better=True)
    assert drop_interval(a, b, higher_is_better=True, relative=True) == pytest.approx([value / 0.5 for value in shares])


def test_mean_interval_holds_the_mean() -> None:
    x, _ = errors()
    for root in (False, True):
        low, high = mean_interval(x, root=root)
        mean = math.sqrt(x.mean()) if root else x.mean()
        assert low < mean < high < 1.3 * mean
        assert mean_interval(np.zeros(20), root=root)[0] == 0
