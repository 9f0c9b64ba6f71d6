"""Noise predicted from histograms against a quantizer that really rounds, and the search for the best range."""

import math
from typing import Any

import numpy as np
import pytest
from builders.cases import bins_of, counts_of
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.histogram import BinTable
from quantmedic.engine.formulas.simulate import (
    PERCENTILES,
    SHRINK,
    Grid,
    best_grids,
    grid_columns,
    noises,
    predict_sqnr,
)

few = examples(60)
ends = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
arrays = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30).map(lambda x: np.array(x, np.float32))
N = 20_000
OUTLIER = "one huge outlier"


def noise(bins: BinTable, grids: Any) -> Any:
    return noises(bins, np.zeros(len(grids), np.int64), grid_columns(grids))


def best_grid(bins: BinTable, bits: int, *, symmetric: bool) -> tuple[Grid, float]:
    grids, predicted = best_grids(bins, np.zeros(1, np.int64), np.array([bits]), np.array([symmetric]))
    return Grid(*grids[:, 0].tolist()), float(predicted[0])


def draw(kind: str) -> Any:
    rng = np.random.default_rng(2)
    normal = rng.normal(0.0, 1.0, N)
    values = {
        "gaussian": normal,
        "shifted": normal + 1.5,
        "relu": np.maximum(normal, 0.0),
        "sparse relu": np.maximum(normal - 1.5, 0.0),
        "outliers": np.append(0.05 * normal, [30.0, -21.0, 27.0]),
        OUTLIER: np.append(0.05 * normal, 1000.0),
        "lognormal": np.exp(normal),
        "negative": -rng.exponential(2.0, N),
        "swish": 2 * normal / (1 + np.exp(-2 * normal)),
        "tiny": 1e-6 * normal,
        "laplace": rng.laplace(0.0, 1.0, N),
    }
    return values[kind].astype(np.float32)


KINDS = (
    "gaussian", "shifted", "relu", "sparse relu", "outliers", "lognormal", "negative", "swish", "tiny", "laplace"
)  # fmt: skip


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
def test_prediction_is_within_one_decibel(symmetric: bool) -> None:
    wrong = {}
    for kind in (*KINDS, OUTLIER):
        x = draw(kind)
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        ranges = [(low, high)]
        if kind != OUTLIER:  # clipped, nothing but the outlier counts
            ranges += [(part * low, part * high) for part in (4, 0.7, 0.3, 0.02)]
            ranges += [(min(np.quantile(x, 1 - p), 0.0), max(np.quantile(x, p), 0.0)) for p in (0.999, 0.9)]
        tried = [(a, b, bits) for a, b in ranges for bits in (4, 8, 16) if b > a]
        grids = [Grid.over(*each, symmetric=symmetric) for each in tried]
        predictions = predict_sqnr(bins_of(x), grids)
        for (a, b, bits), grid, predicted in zip(tried, grids, predictions, strict=True):
            if kind == OUTLIER and bits == 4 and not symmetric:
                continue
            y = round_trip(x, a, b, bits, symmetric=symmetric)
            square = (y - x.astype(np.float64)) ** 2
            clipped = square[(x < grid.low) | (x > grid.high)].sum() / square.sum()
            # How far clipped values lie beyond the range is known to within their bins only.
            if abs(predicted - decibels(x, y)) > (1.0 if clipped < 0.1 else 1.5):
                wrong[kind, a, b, bits] = (round(predicted, 2), round(decibels(x, y), 2))
    assert not wrong


def test_values_on_the_grid_cost_nothing() -> None:
    """A point mass in a bin clipped to it is judged at its value, not spread over a step."""
    grid = Grid(-4.0, 4.0, 0.5)
    for value, expected in [(0.0, 0.0), (2.0, 0.0), (-3.0, 0.0), (0.6, 0.01), (7.0, 9.0)]:
        (found,) = noise(bins_of(np.full(100, value, np.float32)), [grid])
        assert found == pytest.approx(expected, rel=1e-5)


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


# The best range


@given(arrays, st.sampled_from([2, 4, 8, 16]), st.booleans())
@few
def test_best_range_of_anything(x: Any, bits: int, symmetric: bool) -> None:
    bins = bins_of(x)
    best, predicted = best_grid(bins, bits, symmetric=symmetric)
    assert not math.isnan(predicted)
    whole = Grid.over(float(x.min()), float(x.max()), bits, symmetric=symmetric)
    if whole.step > 0 and bins.power() > 0:
        assert predicted == pytest.approx(predict_sqnr(bins, [best])[0]) and predicted >= predict_sqnr(bins, [whole])[0]
        assert best.step <= whole.step * (1 + 1e-9)


def smooth(scale: float, kind: int) -> Any:
    x = scale * np.random.default_rng(kind).standard_normal(5000).astype(np.float32)
    return np.maximum(x, 0) if kind % 2 else x


SMOOTH = [smooth(10.0**k, k % 3) for k in (-6, 0, 5, -1, 3)]


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_no_better_range_is_passed_over(symmetric: bool) -> None:
    for bits in (4, 8, 16):
        for place, x in enumerate(SMOOTH):
            bins = bins_of(x)
            low, high = float(bins.low[0]), float(bins.high[-1])
            parts = [(a, b) for a in SHRINK for b in SHRINK if a == b or (1.0 in (a, b) and not symmetric)]
            ranges = [(low * a, high * b) for a, b in parts]
            ranges += [(bins.quantile(1 - p), bins.quantile(p)) for p in PERCENTILES]
            grids = [Grid.over(*ends, bits, symmetric=symmetric) for ends in ranges]
            most = max(predict_sqnr(bins, [grid for grid in grids if grid.step > 0]))
            assert best_grid(bins, bits, symmetric=symmetric)[1] == pytest.approx(most, abs=1e-6), (place, bits)


def test_nothing_to_quantize() -> None:
    best, predicted = best_grid(bins_of(np.zeros(10, np.float32)), 8, symmetric=False)
    assert best.step == 0
    assert predicted == math.inf


# Many tensors at once give what each gives alone


def table(values: list[Any]) -> BinTable:
    lows, highs = (np.array([float(end(x)) for x in values]) for end in (np.min, np.max))
    return BinTable.of_many([counts_of(x) for x in values], lows, highs)


@given(st.lists(arrays, min_size=1, max_size=6))
@examples(30)
def test_statistics_of_many(values: list[Any]) -> None:
    together, each = table(values), [bins_of(x) for x in values]
    assert together.totals.tolist() == [bins.total for bins in each]
    assert together.powers() == pytest.approx([bins.power() for bins in each])
    for found, of in ((together, each), (together.magnitudes(), [bins.magnitudes() for bins in each])):
        assert found.low.tolist() == [low for bins in of for low in bins.low]
        assert found.count.tolist() == [count for bins in of for count in bins.count]
        limits = np.array([(bins.lowest[0] + bins.highest[0]) / 2 for bins in of])
        alike = [bins.share_above(float(limit)) for bins, limit in zip(of, limits, strict=True)]
        assert found.shares_above(limits) == pytest.approx(alike)


def test_quantiles_and_ranges_of_many() -> None:
    together, n = table(SMOOTH), len(SMOOTH)
    shares = [0.0, 0.0001, 0.3, 0.5, 0.99, 1.0]
    each = [[bins_of(x).quantile(q) for q in shares] for x in SMOOTH]
    assert together.quantiles(shares) == pytest.approx(np.array(each), rel=1e-9)
    for bits, symmetric in [(4, False), (8, True), (16, False)]:
        grids, found = best_grids(together, np.arange(n), np.full(n, bits), np.full(n, symmetric))
        for x, grid, predicted in zip(SMOOTH, grids.T, found, strict=True):
            best, best_db = best_grid(bins_of(x), bits, symmetric=symmetric)
            assert predicted == pytest.approx(best_db, abs=1e-9)
            assert grid == pytest.approx([best.low, best.high, best.step])


def test_noises_do_not_depend_on_the_company() -> None:
    """Blocks are cut by size: which grids share one must not show."""
    grids = [Grid.over(-r, r, 8, symmetric=False) for r in np.geomspace(1e-6, 1e6, 150)]
    columns = np.array([(grid.low, grid.high, grid.step) for grid in grids]).T
    for place, x in enumerate(SMOOTH):
        together = noises(table(SMOOTH), np.full(len(grids), place), columns)
        assert together.tolist() == [noise(bins_of(x), [grid])[0] for grid in grids]
