"""Histogram over the leading bits of a float: bounds, quantiles, magnitudes and shares."""

from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.histogram import BINS, HIGH, LOW, ORDER, SHIFT, Bins, StoredHistograms

few = examples(60)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
#: Below this magnitude a value shares the bin of the exact zeros.
NEGLIGIBLE = float(np.array([1 << SHIFT], np.uint32).view(np.float32)[0])
#: Mantissa bits dropped leave bins as wide as this share of their lower edge.
WIDTH = 1 / 8


def bin_of(x: Any) -> Any:
    return np.asarray(x, np.float32).view(np.uint32) >> SHIFT


def bins_of(x: Any) -> Bins:
    x = np.asarray(x, np.float32)
    return Bins.of(np.bincount(bin_of(x), minlength=BINS), float(x.min()), float(x.max()))


def sample(kind: str, n: int = 50_000) -> Any:
    rng = np.random.default_rng(3)
    values = {
        "normal": rng.normal(0.5, 2.0, n),
        "lognormal": rng.lognormal(0.0, 1.5, n),
        "relu": np.maximum(rng.normal(-0.2, 1.0, n), 0.0),
        "negative": -rng.lognormal(2.0, 0.5, n),
        "far from zero": rng.normal(1000.0, 30.0, n),
    }[kind]
    return values.astype(np.float32)


KINDS = ["normal", "lognormal", "relu", "negative", "far from zero"]


@given(finite)
@few
def test_every_float_lies_in_its_bin(x: float) -> None:
    i = int(bin_of(x))
    if abs(x) < NEGLIGIBLE:
        assert i in (0, BINS // 2)
        assert LOW[i] == HIGH[i] == 0
    else:
        assert LOW[i] <= x <= HIGH[i]
        assert i in ORDER


@given(st.integers(min_value=8, max_value=(0x7F800000 >> SHIFT) - 1), st.sampled_from([0, BINS // 2]))
@few
def test_bins_adjoin_and_are_narrow(i: int, sign: int) -> None:
    """From the smallest normal float on, a bin is at most an eighth of its lower edge wide."""
    near, far = (LOW[i], HIGH[i]) if not sign else (-HIGH[i + sign], -LOW[i + sign])
    assert 0 < near < far
    assert far - near <= WIDTH * near
    if i + 1 < 0x7F800000 >> SHIFT:
        assert far == (LOW[i + 1] if not sign else -HIGH[i + 1 + sign])


def test_order_is_ascending_and_leaves_out_what_is_not_finite() -> None:
    assert len(ORDER) == len(set(ORDER.tolist())) == 2 * (0x7F800000 >> SHIFT)
    assert (np.diff(LOW[ORDER]) >= 0).all()
    assert (np.diff(HIGH[ORDER]) >= 0).all()
    rest = np.setdiff1d(np.arange(BINS), ORDER)
    assert np.isnan(LOW[rest]).all() and np.isnan(HIGH[rest]).all()
    for value in (np.nan, np.inf, -np.inf):
        assert int(bin_of(value)) in rest


@given(st.lists(finite, min_size=1, max_size=60), st.floats(0.0, 1.0))
@few
def test_quantile_lies_in_the_bin_of_the_order_statistic(values: list[float], q: float) -> None:
    x = np.sort(np.array(values, np.float32))
    target = q * len(x)
    rank = max(int(np.ceil(target)), 1) - 1
    found = bins_of(x).quantile(q)
    neighbours = {int(bin_of(x[rank])), int(bin_of(x[min(rank + 1, len(x) - 1)])), int(bin_of(x[max(rank - 1, 0)]))}
    clipped = [(np.clip(LOW[i], x[0], x[-1]), np.clip(HIGH[i], x[0], x[-1])) for i in neighbours]
    assert any(low <= found <= high for low, high in clipped)


@given(st.lists(finite, min_size=1, max_size=60))
@few
def test_quantiles_rise_and_end_at_the_extremes(values: list[float]) -> None:
    x = np.array(values, np.float32)
    bins = bins_of(x)
    assert bins.total == len(x)
    found = [bins.quantile(q) for q in np.linspace(0, 1, 21)]
    assert (np.diff(found) >= 0).all()
    if abs(x.max()) >= NEGLIGIBLE:
        assert found[-1] == float(x.max())
    if abs(x.min()) >= NEGLIGIBLE:
        assert found[0] == float(x.min())


def test_smooth_data() -> None:
    """Quantiles of values and of magnitudes, shares beyond a limit and the power are close to numpy's."""
    for kind in KINDS:
        x = sample(kind)
        exact, bins = x.astype(np.float64), bins_of(x)
        for q in (0.0001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.9999):
            assert bins.quantile(q) == pytest.approx(np.quantile(exact, q), rel=0.063, abs=1e-3), (kind, q)
        for q in (0.5, 0.99, 0.9999):
            found = bins.magnitudes().quantile(q)
            assert found == pytest.approx(np.quantile(np.abs(exact), q), rel=0.063, abs=1e-3), (kind, q)
        for limit in np.quantile(x, [0.01, 0.3, 0.5, 0.8, 0.99]):
            i = int(bin_of(limit))
            found = bins.share_above(float(limit))
            assert float((x > HIGH[i]).mean()) <= found <= float((x >= LOW[i]).mean()), (kind, limit)
            if kind != "far from zero":  # there, few bins hold everything
                assert found == pytest.approx(float((x > limit).mean()), abs=0.005), (kind, limit)
        assert bins.power() == pytest.approx(float((exact**2).mean()), rel=0.01), kind


@given(st.lists(finite, min_size=1, max_size=60))
@few
def test_magnitudes_keep_the_values(values: list[float]) -> None:
    bins = bins_of(values)
    magnitudes = bins.magnitudes()
    assert magnitudes.total == bins.total
    assert (magnitudes.low >= 0).all() and (magnitudes.low <= magnitudes.high).all()
    assert (np.diff(magnitudes.low) >= 0).all()
    assert magnitudes.power() == pytest.approx(bins.power())
    assert magnitudes.high.max() == max(abs(bins.low[0]), abs(bins.high[-1]))


@given(st.lists(finite, min_size=1, max_size=60), finite)
@few
def test_share_above_is_exact_at_bin_edges_and_falls(values: list[float], limit: float) -> None:
    x = np.array(values, np.float32)
    x[np.abs(x) < NEGLIGIBLE] = 0.0
    bins = bins_of(x)
    for edge in np.unique(bins.high):
        found = bins.share_above(float(edge))
        assert float((x > edge).mean()) - 1e-9 <= found <= float((x >= edge).mean()) + 1e-9
    assert 0.0 <= bins.share_above(limit) <= 1.0
    assert bins.share_above(float(x.max())) == 0.0
    assert bins.share_above(float(np.nextafter(np.float64(x.min()), -np.inf))) == pytest.approx(1.0)


def test_zeros_of_both_signs_stand_alone() -> None:
    bins = bins_of([0.0, -0.0, 0.0, 1e-42, 2.0, -3.0])
    at_zero = (bins.low == 0) & (bins.high == 0)
    assert bins.count[at_zero].sum() == 4
    assert bins.quantile(0.5) == 0.0
    only = bins_of([0.0, -0.0])
    assert only.quantile(0.0) == only.quantile(1.0) == only.power() == 0.0
    assert only.magnitudes().total == 2


@given(st.lists(finite.filter(lambda x: abs(x) < 1e15), min_size=1, max_size=60))
@few
def test_power_is_within_the_bins(values: list[float]) -> None:
    x = np.array(values, np.float32)
    x[np.abs(x) < np.finfo(np.float32).tiny] = 0.0
    power = float((x.astype(np.float64) ** 2).mean())
    assert power / (1 + WIDTH) ** 2 * (1 - 1e-9) <= bins_of(x).power() <= power * (1 + WIDTH) ** 2 * (1 + 1e-9)


def test_stored_histograms_are_those_that_were_stored() -> None:
    rng = np.random.default_rng(0)
    dense = {i: np.zeros(BINS, np.int64) for i in (7, 0, 300)}
    for counts in dense.values():
        counts[rng.choice(BINS, 40, replace=False)] = rng.integers(1, 1 << 40, 40)
    rows = [(i, b, counts[b]) for i, counts in dense.items() for b in np.flatnonzero(counts)]
    tensors, bins, counts = (np.array(column) for column in zip(*rng.permutation(rows).tolist(), strict=True))
    stored = StoredHistograms(tensors, bins.astype(np.uint16), counts)
    assert sorted(stored) == [0, 7, 300]
    assert len(stored) == 3
    assert 1 not in stored
    for i, expected in dense.items():
        assert np.array_equal(stored[i], expected)


def test_a_stored_histogram_is_counted_into_once_it_is_set() -> None:
    stored = StoredHistograms(np.array([3, 3]), np.array([0, 9]), np.array([1, 2]))
    stored[3][9] += 5
    assert stored[3][9] == 2, "a copy was changed"
    stored[3] = stored[3]
    stored[3][9] += 5
    stored[4] = np.ones(BINS, np.int64)
    assert (stored[3][0], stored[3][9], list(stored), len(stored)) == (1, 7, [3, 4], 2)
    del stored[3]
    assert list(stored) == [4]
    with pytest.raises(KeyError):
        del stored[3]
