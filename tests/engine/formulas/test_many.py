"""Many tensors at once give what each gives alone, and no range is passed over that would have been the best."""

from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.histogram import BINS, SHIFT, Bins, BinTable
from quantmedic.engine.formulas.simulate import (
    PERCENTILES,
    SHRINK,
    Grid,
    best_grid,
    best_grids,
    noise,
    noises,
    predict_sqnr,
)

SHARES = [0.0, 0.0001, 0.3, 0.5, 0.99, 1.0]
few = examples(30)
tensors = st.lists(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30).map(lambda x: np.array(x, np.float32)),
    min_size=1,
    max_size=6,
)


def counts(x: Any) -> Any:
    return np.bincount(x.view(np.uint32) >> SHIFT, minlength=BINS)


def table(values: list[Any]) -> BinTable:
    ends = (np.array([float(end(x)) for x in values]) for end in (np.min, np.max))
    return BinTable.of_many([counts(x) for x in values], *ends)


def alone(x: Any) -> Bins:
    return Bins.of(counts(x), float(x.min()), float(x.max()))


def smooth(scale: float, kind: int) -> Any:
    x = scale * np.random.default_rng(kind).standard_normal(5000).astype(np.float32)
    return np.maximum(x, 0) if kind % 2 else x


SMOOTH = [smooth(10.0**k, k % 3) for k in (-6, 0, 5, -1, 3)]


@given(tensors)
@few
def test_statistics_of_many(values: list[Any]) -> None:
    together, each = table(values), [alone(x) for x in values]
    assert together.totals.tolist() == [bins.total for bins in each]
    assert together.powers() == pytest.approx([bins.power() for bins in each])
    for found, of in ((together, each), (together.magnitudes(), [bins.magnitudes() for bins in each])):
        assert found.low.tolist() == [low for bins in of for low in bins.low]
        assert found.count.tolist() == [count for bins in of for count in bins.count]
        limits = np.array([(bins.lowest[0] + bins.highest[0]) / 2 for bins in of])
        alike = [bins.share_above(float(limit)) for bins, limit in zip(of, limits, strict=True)]
        assert found.shares_above(limits) == pytest.approx(alike)


def test_quantiles_of_many() -> None:
    assert table(SMOOTH).quantiles(SHARES) == pytest.approx(
        np.array([[alone(x).quantile(q) for q in SHARES] for x in SMOOTH]), rel=1e-9
    )


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_ranges_of_many(bits: int, symmetric: bool) -> None:
    n = len(SMOOTH)
    grids, found = best_grids(table(SMOOTH), np.arange(n), np.full(n, bits), np.full(n, symmetric))
    for x, grid, predicted in zip(SMOOTH, grids.T, found, strict=True):
        best, best_db = best_grid(alone(x), bits, symmetric=symmetric)
        assert predicted == pytest.approx(best_db, abs=1e-9)
        assert grid == pytest.approx([best.low, best.high, best.step])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("place", range(len(SMOOTH)))
def test_no_better_range_is_passed_over(place: int, bits: int, symmetric: bool) -> None:
    bins = alone(SMOOTH[place])
    low, high = float(bins.low[0]), float(bins.high[-1])
    ends = [(a, b) for a in SHRINK for b in SHRINK if a == b or (1.0 in (a, b) and not symmetric)]
    ranges = [(low * a, high * b) for a, b in ends] + [(bins.quantile(1 - p), bins.quantile(p)) for p in PERCENTILES]
    grids = [Grid.over(*ends, bits, symmetric=symmetric) for ends in ranges]
    allowed = [grid for grid in grids if grid.step > 0]
    assert best_grid(bins, bits, symmetric=symmetric)[1] == pytest.approx(max(predict_sqnr(bins, allowed)), abs=1e-6)


@pytest.mark.thorough
def test_noises_do_not_depend_on_the_company() -> None:
    """Blocks are cut by size: which grids share one must not show."""
    grids = [Grid.over(-r, r, 8, symmetric=False) for r in np.geomspace(1e-6, 1e6, 400)]
    columns = np.array([(grid.low, grid.high, grid.step) for grid in grids]).T
    for place, x in enumerate(SMOOTH):
        together = noises(table(SMOOTH), np.full(len(grids), place), columns)
        assert together.tolist() == [noise(alone(x), [grid])[0] for grid in grids]
