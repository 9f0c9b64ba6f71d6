"""Paired intervals of a drop: published numbers, symmetry, coverage and determinism."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantmedic.engine.paired import drop_interval

few = settings(max_examples=60, deadline=None)
counts = st.tuples(*[st.integers(0, 40)] * 4).filter(lambda table: sum(table) > 0)


def table(both: int, only_float: int, only_quantized: int, neither: int) -> tuple[Any, Any]:
    floats = [1] * both + [1] * only_float + [0] * only_quantized + [0] * neither
    quantized = [1] * both + [0] * only_float + [1] * only_quantized + [0] * neither
    return np.array(floats, float), np.array(quantized, float)


@pytest.mark.parametrize(
    "cells, drop, low, high",
    [
        # Newcombe 1998, Statistics in Medicine 17:2635, method 10
        pytest.param((36, 12, 2, 0), 0.2, 0.0569, 0.3404, id="negative phi"),
        # Fagerland, Lydersen and Laake 2017, chapter 8: responses of Cavo et al. 2012
        pytest.param((59, 6, 16, 80), -0.0621, -0.1186, -0.0046, id="positive phi"),
    ],
)
def test_published_intervals(cells: tuple[int, int, int, int], drop: float, low: float, high: float) -> None:
    found, found_low, found_high = drop_interval(*table(*cells), higher_is_better=True)
    assert found == pytest.approx(drop, abs=5e-5)
    assert found_low == pytest.approx(low, abs=5e-5)
    assert found_high == pytest.approx(high, abs=5e-5)


@given(counts)
@few
def test_interval_holds_the_drop_and_stays_in_bounds(cells: tuple[int, int, int, int]) -> None:
    drop, low, high = drop_interval(*table(*cells), higher_is_better=True)
    assert drop == pytest.approx((cells[1] - cells[2]) / sum(cells))
    assert -1 - 1e-12 <= low <= drop <= high <= 1 + 1e-12


@given(counts)
@few
def test_exchanging_the_models_turns_the_sign(cells: tuple[int, int, int, int]) -> None:
    a, b = table(*cells)
    drop, low, high = drop_interval(a, b, higher_is_better=True)
    assert drop_interval(b, a, higher_is_better=True) == pytest.approx((-drop, -high, -low))
    assert drop_interval(a, b, higher_is_better=False) == pytest.approx((-drop, -high, -low))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 20))
@few
def test_no_difference_contains_zero(both: int, neither: int, disagree: int) -> None:
    if both + neither + disagree:
        drop, low, high = drop_interval(*table(both, disagree, disagree, neither), higher_is_better=True)
        assert drop == 0
        assert low <= 0 <= high


def test_more_samples_narrow_the_interval_and_prove_the_drop() -> None:
    widths = []
    for factor in (1, 4, 16):
        _, low, high = drop_interval(*table(40 * factor, 5 * factor, 2 * factor, 3 * factor), higher_is_better=True)
        widths.append(high - low)
    assert widths[0] > 1.5 * widths[1] > 2.25 * widths[2]
    _, low, _ = drop_interval(*table(40, 5, 2, 3), higher_is_better=True)
    assert low < 0
    _, low, _ = drop_interval(*table(640, 80, 32, 48), higher_is_better=True)
    assert low > 0


def test_higher_confidence_widens_the_interval() -> None:
    a, b = table(40, 9, 2, 3)
    _, low, high = drop_interval(a, b, higher_is_better=True, confidence=0.95)
    _, wider_low, wider_high = drop_interval(a, b, higher_is_better=True, confidence=0.99)
    assert wider_low < low and high < wider_high
    x, y = errors()
    _, low, high = drop_interval(x, y, higher_is_better=False)
    _, wider_low, wider_high = drop_interval(x, y, higher_is_better=False, confidence=0.99)
    assert wider_low < low and high < wider_high


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
