"""Noise predicted from a histogram against a quantizer that really rounds the values."""

import math
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from quantmedic.engine.case.histogram import BINS, SHIFT, Bins
from quantmedic.engine.formulas.simulate import Grid, best_grid, noise, predict_sqnr

few = examples(60)
ends = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
N = 40_000


def bins_of(x: Any) -> Bins:
    counts = np.bincount(x.view(np.uint32) >> SHIFT, minlength=BINS)
    return Bins.of(counts, float(x.min()), float(x.max()))


def spike(size: float) -> Any:
    values = np.random.default_rng(2).normal(0.0, 0.05, N)
    values[:3] = size, -0.7 * size, 0.9 * size
    return values


def draw(kind: str) -> Any:
    rng = np.random.default_rng(2)
    values = {
        "gaussian": lambda: rng.normal(0.0, 1.0, N),
        "shifted": lambda: rng.normal(1.5, 1.0, N),
        "relu": lambda: np.maximum(rng.normal(0.0, 1.0, N), 0.0),
        "sparse relu": lambda: np.maximum(rng.normal(-1.5, 1.0, N), 0.0),
        "outliers": lambda: spike(30.0),
        "one huge outlier": lambda: np.append(rng.normal(0.0, 0.05, N), 1000.0),
        "lognormal": lambda: rng.lognormal(0.0, 1.0, N),
        "negative": lambda: -rng.exponential(2.0, N),
        "swish": lambda: (z := rng.normal(0.0, 2.0, N)) / (1 + np.exp(-z)),
        "tiny": lambda: rng.normal(0.0, 1e-6, N),
        "laplace": lambda: rng.laplace(0.0, 1.0, N),
    }[kind]()
    return values.astype(np.float32)


KINDS = [
    "gaussian",
    "shifted",
    "relu",
    "sparse relu",
    "outliers",
    "lognormal",
    "negative",
    "swish",
    "tiny",
    "laplace",
]


def round_trip(x: Any, low: float, high: float, bits: int, *, symmetric: bool) -> Any:
    """Quantize and dequantize with a scale and an integer zero point, as a runtime does."""
    x = x.astype(np.float64)
    if symmetric:
        top = 2 ** (bits - 1) - 1
        scale = max(-low, high) / top
        return np.clip(np.rint(x / scale), -top, top) * scale
    scale = (high - low) / (2**bits - 1)
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 2**bits - 1) - zero) * scale


def decibels(x: Any, y: Any) -> float:
    x = x.astype(np.float64)
    return float(10 * np.log10((x**2).sum() / ((y - x) ** 2).sum()))


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("kind", KINDS)
def test_prediction_is_within_one_decibel(kind: str, symmetric: bool) -> None:
    x = draw(kind)
    bins = bins_of(x)
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    ranges = {"min-max": (low, high), "wide": (4 * low, 4 * high)}
    ranges |= {f"shrunk to {part}": (part * low, part * high) for part in (0.7, 0.3, 0.1, 0.02)}
    ranges |= {f"p{p}": (min(np.quantile(x, 1 - p), 0.0), max(np.quantile(x, p), 0.0)) for p in (0.999, 0.9)}
    wrong = {}
    for name, (a, b) in ranges.items():
        for bits in (4, 8, 16):
            grid = Grid.over(a, b, bits, symmetric=symmetric)
            if grid.step == 0:
                continue
            (predicted,) = predict_sqnr(bins, [grid])
            y = round_trip(x, a, b, bits, symmetric=symmetric)
            real = decibels(x, y)
            square = (y - x.astype(np.float64)) ** 2
            clipped = square[(x < grid.low) | (x > grid.high)].sum() / square.sum()
            # how far clipped values lie beyond the range is known to within their bins only
            if abs(predicted - real) > (1.0 if clipped < 0.1 else 1.5):
                wrong[f"{name}, {bits} bits"] = (round(predicted, 2), round(real, 2))
    assert not wrong


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_one_huge_outlier_over_a_narrow_bulk(symmetric: bool, bits: int) -> None:
    x = draw("one huge outlier")
    low, high = float(x.min()), float(x.max())
    (predicted,) = predict_sqnr(bins_of(x), [Grid.over(low, high, bits, symmetric=symmetric)])
    assert predicted == pytest.approx(decibels(x, round_trip(x, low, high, bits, symmetric=symmetric)), abs=1.0)


def test_one_huge_outlier_at_few_bits() -> None:
    x = draw("one huge outlier")
    low, high = float(x.min()), float(x.max())
    (predicted,) = predict_sqnr(bins_of(x), [Grid.over(low, high, 4, symmetric=True)])
    assert predicted == pytest.approx(decibels(x, round_trip(x, low, high, 4, symmetric=True)), abs=1.0)


def test_best_range_keeps_a_massive_outlier() -> None:
    x = draw("one huge outlier")
    best, _ = best_grid(bins_of(x), 4, symmetric=True)
    base = decibels(x, round_trip(x, float(x.min()), float(x.max()), 4, symmetric=True))
    assert decibels(x, round_trip(x, best.low, best.high, 4, symmetric=True)) >= base - 0.5


@given(
    seed=st.integers(0, 2**31),
    loc=st.floats(-2, 2),
    shape=st.sampled_from(["normal", "laplace", "uniform"]),
    bits=st.sampled_from([3, 4, 6]),
    part=st.floats(0.05, 1.5),
    symmetric=st.booleans(),
)
@examples(30)
def test_prediction_of_any_shift_and_range(
    seed: int, loc: float, shape: str, bits: int, part: float, symmetric: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = (getattr(rng, shape)(size=10_000) + loc).astype(np.float32)
    a, b = part * min(float(x.min()), 0.0), part * max(float(x.max()), 0.0)
    assume(b - a > 0.01)
    (predicted,) = predict_sqnr(bins_of(x), [Grid.over(a, b, bits, symmetric=symmetric)])
    assert predicted == pytest.approx(decibels(x, round_trip(x, a, b, bits, symmetric=symmetric)), abs=1.0)


def test_textbook_formula_is_wrong_where_it_matters() -> None:
    """A twelfth of the squared step is 3 dB off where half is zero, and far more with one outlier."""
    x = draw("relu")
    grid = Grid.over(0.0, float(x.max()), 8, symmetric=False)
    assert 10 * math.log10(grid.step**2 / 12 / noise(bins_of(x), [grid])[0]) == pytest.approx(3.0, abs=0.3)
    x = draw("one huge outlier")
    grid = Grid.over(float(x.min()), float(x.max()), 8, symmetric=False)
    assert 10 * math.log10(grid.step**2 / 12 / noise(bins_of(x), [grid])[0]) > 20


def test_values_on_the_grid_cost_nothing() -> None:
    """A point mass in a bin clipped to it is judged at its value, not spread over a step."""
    for value in (0.0, 2.0, -3.0):
        x = np.full(100, value, np.float32)
        (found,) = noise(bins_of(x), [Grid(-4.0, 4.0, 0.5)])
        assert found == 0.0
    (found,) = noise(bins_of(np.full(100, 0.6, np.float32)), [Grid(-4.0, 4.0, 0.5)])
    assert found == pytest.approx(0.01, rel=1e-5)
    (found,) = noise(bins_of(np.full(100, 7.0, np.float32)), [Grid(-4.0, 4.0, 0.5)])
    assert found == pytest.approx(9.0)


def test_noise_of_several_grids_is_that_of_each() -> None:
    bins = bins_of(draw("laplace"))
    grids = [Grid.over(-r, r, 8, symmetric=s) for r in (0.1, 1.0, 9.0) for s in (True, False)]
    together = noise(bins, grids)
    assert together.shape == (6,)
    assert together.tolist() == pytest.approx([noise(bins, [grid])[0] for grid in grids])


def test_fewer_bits_are_noisier_by_six_decibels_each() -> None:
    bins = bins_of(draw("gaussian"))
    found = predict_sqnr(bins, [Grid.over(-4.5, 4.5, bits, symmetric=True) for bits in (6, 8, 10, 12)])
    assert np.diff(found) == pytest.approx([12.04] * 3, abs=0.4)


@given(ends, ends, st.integers(2, 16), st.booleans())
@few
def test_grid_holds_zero_and_covers_the_range(a: float, b: float, bits: int, symmetric: bool) -> None:
    low, high = min(a, b), max(a, b)
    grid = Grid.over(low, high, bits, symmetric=symmetric)
    low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        assert (grid.low, grid.high, grid.step) == (0, 0, 0)
        return
    assert grid.step > 0
    assert grid.low <= 0 <= grid.high
    assert grid.low / grid.step == pytest.approx(round(grid.low / grid.step), abs=1e-6)
    codes = round((grid.high - grid.low) / grid.step) + 1
    slack = grid.step * 1e-6
    if symmetric:
        assert codes == 2**bits - 1
        assert grid.low == -grid.high
        assert grid.low <= low and high <= grid.high
    else:
        # the zero point is an integer: either end may give way by half a step
        assert codes == 2**bits
        assert grid.low <= low + grid.step / 2 + slack and high <= grid.high + grid.step / 2 + slack
        assert grid.high - grid.low == pytest.approx(high - low)
    (at_zero,) = noise(bins_of(np.zeros(4, np.float32)), [grid])
    assert at_zero == 0.0


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("kind", KINDS)
def test_best_range_is_never_worse_than_min_max(kind: str, symmetric: bool, bits: int) -> None:
    x = draw(kind)
    bins = bins_of(x)
    low, high = float(x.min()), float(x.max())
    whole = Grid.over(low, high, bits, symmetric=symmetric)
    best, predicted = best_grid(bins, bits, symmetric=symmetric)
    assert predicted == pytest.approx(predict_sqnr(bins, [best])[0])
    assert predicted >= predict_sqnr(bins, [whole])[0]
    real = decibels(x, round_trip(x, best.low, best.high, bits, symmetric=symmetric))
    base = decibels(x, round_trip(x, min(low, 0.0), max(high, 0.0), bits, symmetric=symmetric))
    assert real >= base - 0.5
    assert real == pytest.approx(predicted, abs=1.0)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.sampled_from([2, 4, 8, 16]),
    st.booleans(),
)
@few
def test_best_range_of_anything(values: list[float], bits: int, symmetric: bool) -> None:
    x = np.array(values, np.float32)
    bins = bins_of(x)
    best, predicted = best_grid(bins, bits, symmetric=symmetric)
    assert not math.isnan(predicted)
    whole = Grid.over(float(x.min()), float(x.max()), bits, symmetric=symmetric)
    if whole.step > 0 and bins.power() > 0:
        assert predicted >= predict_sqnr(bins, [whole])[0]
        assert best.step <= whole.step * (1 + 1e-9)


@pytest.mark.parametrize("symmetric", [False, True])
def test_outliers_are_given_up_for_the_bulk(symmetric: bool) -> None:
    """At few bits a rare outlier is worth less than the resolution of all others; at many bits it is kept."""
    x = np.concatenate([np.random.default_rng(0).normal(0.0, 1.0, N), [12.0]]).astype(np.float32)
    best, _ = best_grid(bins_of(x), 4, symmetric=symmetric)
    assert best.high < 6
    best, _ = best_grid(bins_of(x), 16, symmetric=symmetric)
    assert best.high > 11


def test_nothing_to_quantize() -> None:
    best, predicted = best_grid(bins_of(np.zeros(10, np.float32)), 8, symmetric=False)
    assert best.step == 0
    assert predicted == math.inf
