"""The compiled loops, their plain twin and those of torch against numpy in float64, on ordinary and nasty tensors."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from builders.torch_kernels import ON_DEVICES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics import numpy_loops as reference
from quantmedic.collectors.statistics.accumulate import as_rows
from quantmedic.engine.case.histogram import BINS, LOW
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    ROW_COLUMNS,
    SHOWN_BUCKETS,
    SetStatistics,
    TensorStatistics,
)

Array = NDArray[Any]
NAN, INF = np.nan, np.inf


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_special(x: Array, *values: float) -> Array:
    """A tenth of the elements replaced by the given values in turn."""
    x = x.copy()
    places = np.random.default_rng(1).choice(x.size, max(x.size // 10, len(values)), replace=False)
    x.reshape(-1)[places] = np.resize(np.array(values, np.float32), len(places))
    return x


def channel_of_nan(x: Array) -> Array:
    x = x.copy()
    x[:, 1] = NAN
    return x


TENSORS = {
    "long rows": noise(3, 4, 5000),
    "inner 1": noise(700, 5, 1),
    "inner 1, one channel": noise(64, 1, 1),
    "inner 15": noise(6, 3, 15),
    "inner 16": noise(6, 3, 16),
    "inner 17": noise(6, 3, 17),
    "row of a whole chunk": noise(1, 1, kernels.CHUNK),
    "row of a chunk and one": noise(1, 2, kernels.CHUNK + 1),
    "one element": noise(1, 1, 1),
    "mean 100 times the deviation": noise(2, 3, 3000) + 100,
    "mean 10000 times the deviation": noise(2, 3, 3000) + 10_000,
    "mean 10000 times the deviation, inner 1": noise(900, 3, 1) - 10_000,
    "tiny deviation": noise(2, 2, 900) * np.float32(1e-3) + 10,
    "outlier first": with_special(noise(1, 2, 3000), 0.0) + np.eye(1, 3000, dtype=np.float32) * 1e4,
    "wide magnitudes": noise(2, 2, 2000) * np.float32(10.0) ** np.linspace(-15, 15, 2000, dtype=np.float32),
    "small": noise(2, 2, 300) * np.float32(1e-18),
    "large": noise(2, 2, 300) * np.float32(1e15),
    "denormal": np.full((2, 2, 50), 1e-42, np.float32),
    "constant": np.full((3, 2, 70), 0.3, np.float32),
    "constant, inner 1": np.full((33, 2, 1), -7.7, np.float32),
    "zeros": np.zeros((2, 2, 40), np.float32),
    "signed zeros": np.where(noise(2, 2, 40) > 0, np.float32(0.0), np.float32(-0.0)),
    "after a relu": np.maximum(noise(2, 3, 500), 0),
    "some nan": with_special(noise(4, 3, 200), NAN),
    "some of each": with_special(noise(4, 3, 200), NAN, INF, -INF, -NAN),
    "some of each, inner 1": with_special(noise(200, 3, 1), NAN, INF, -INF),
    "nan first and last": np.pad(noise(2, 2, 30), ((0, 0), (0, 0), (1, 1)), constant_values=NAN),
    "one channel all nan": channel_of_nan(noise(3, 3, 100)),
    "all nan": np.full((2, 2, 40), NAN, np.float32),
    "all infinite": np.full((40, 2, 1), -INF, np.float32),
    "extremes of float32": np.tile(np.float32([3e38, -3e38, 1e-45, -1e-45]), (2, 2, 1)),
}
#: Where squares fit float32 and where they do not, on either side of the borders between.
MAGNITUDES = [1e-38, 1e-30, 1e-20, 9e-16, 1.1e-15, 1e-8, 1e8, 9e14, 1.1e15, 1e18, 1e20, 1e30, 5e37]


#: In the inner loop nothing imports torch.
BY_TORCH = [pytest.param(own, marks=pytest.mark.thorough, id=name) for name, own in ON_DEVICES.items()]


@pytest.fixture(params=[pytest.param(kernels, id="compiled"), pytest.param(reference, id="plain"), *BY_TORCH])
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture(params=TENSORS)
def tensor(request: pytest.FixtureRequest) -> Array:
    return np.ascontiguousarray(TENSORS[request.param])


def no_buckets(x: Array) -> NDArray[np.int64]:
    return np.full(len(x), -1, np.int64)


def observed(module: ModuleType, x: Array, buckets: NDArray[np.int64] | None = None) -> TensorStatistics:
    into = SetStatistics.empty([x.shape[1]]).tensor(0)
    module.observe(x, into, no_buckets(x) if buckets is None else buckets)
    return into


def finite(x: Array, c: int) -> Array:
    values = x[:, c].astype(np.float64)
    return values[np.isfinite(values)]


def bins_of(x: Array) -> NDArray[np.int64]:
    """Histogram by the edges of the bins instead of the bits of the values."""
    values = x[np.isfinite(x)].astype(np.float64)
    half = np.searchsorted(LOW[: BINS // 2 - 8], np.abs(values), side="right") - 1
    return np.bincount(half + np.signbit(values) * (BINS // 2), minlength=BINS)


# --- values ------------------------------------------------------------------------------------------------------


def test_counts_extremes_and_histogram_are_exact(implementation, tensor):
    into = observed(implementation, tensor)
    for c in range(tensor.shape[1]):
        values = finite(tensor, c)
        assert into.count[c] == values.size
        assert into.nonfinite[c] == tensor[:, c].size - values.size
        assert into.min[c] == values.min(initial=INF)
        assert into.max[c] == values.max(initial=-INF)
    np.testing.assert_array_equal(into.histogram, bins_of(tensor))


def test_moments_agree_with_float64(implementation, tensor):
    into = observed(implementation, tensor)
    for c in range(tensor.shape[1]):
        values = finite(tensor, c)
        if not values.size:
            assert (into.mean[c], into.m2[c]) == (0, 0)
            continue
        std = values.std()
        assert into.mean[c] == pytest.approx(values.mean(), rel=1e-6, abs=1e-3 * std + 1e-45)
        assert math.sqrt(into.m2[c] / values.size) == pytest.approx(std, rel=1e-3, abs=1e-7 * abs(values.mean()))


@pytest.mark.parametrize("scale", MAGNITUDES)
def test_moments_and_errors_of_any_magnitude(implementation, scale):
    x = noise(1, 1, 3000) * np.float32(scale)
    y = x * np.float32(1.1)
    into, true = observed(implementation, x), x.astype(np.float64)
    assert math.sqrt(into.m2[0] / x.size) == pytest.approx(true.std(), rel=1e-3, abs=0)
    found = errors(implementation, x, y)
    assert found["power"][0] == pytest.approx((true**2).sum(), rel=1e-4, abs=0)
    assert found["square"][0] == pytest.approx(((y - true) ** 2).sum(), rel=1e-4, abs=0)
    assert found["max"][0] == pytest.approx(np.abs(y - true).max(), rel=1e-4, abs=0)


@pytest.mark.parametrize("scale", MAGNITUDES[1:])
def test_rounding_of_any_magnitude(implementation, scale):
    x, step = noise(1, 1, 3000) * np.float32(scale), np.float32(scale * 0.02)
    into, true = rounding(implementation, x, step, -128, 127), x.astype(np.float64)
    codes = np.rint(true / step)
    d = np.clip(codes, -128, 127) * np.float64(step) - true
    assert into.clipped[0] == (np.abs(codes - np.clip(codes, -128, 127)) > 0).sum() > 0
    assert into.errors["rounding"]["square"][0] == pytest.approx((d * d).sum(), rel=1e-3, abs=0)


def test_attention_mask_leaves_finite_moments(implementation):
    x = noise(1, 1, 3000)
    x[..., ::3] = np.finfo(np.float32).min
    into = observed(implementation, x)
    assert into.mean[0] == pytest.approx(x.astype(np.float64).mean())
    assert math.sqrt(into.m2[0] / x.size) == pytest.approx(x.astype(np.float64).std())


def test_constant_rows_have_no_deviation(implementation):
    for x in (np.full((3, 2, 5000), 0.1, np.float32), np.full((5000, 2, 1), 1e6 / 3, np.float32)):
        into = observed(implementation, x)
        np.testing.assert_allclose(into.mean, np.float64(x[0, 0, 0]), rtol=1e-12)
        assert (np.sqrt(into.m2 / into.count) <= 1e-9 * np.abs(into.mean)).all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)])
def test_empty_tensors_add_nothing(shape):
    for module in (reference, kernels):
        into = observed(module, np.zeros(shape, np.float32))
        assert not into.count.any()
        assert not into.histogram.any()


@pytest.mark.parametrize("shape", [(6, 3, 40), (6, 3, 1), (6, 1, 1), (12, 3, 1), (18, 4, 40), (1, 3, 7)])
def test_buckets_hold_the_extremes_of_their_samples(implementation, shape):
    x = with_special(noise(*shape, seed=5), NAN)
    buckets = np.repeat(np.array([3, 0, 3, 15, 7, 0])[: min(6, len(x))], max(1, len(x) // 6))
    into = observed(implementation, x, buckets)
    for bucket in range(BUCKETS):
        values = x[buckets == bucket]
        values = values[np.isfinite(values)]
        assert into.bucket_min[bucket] == values.min(initial=INF)
        assert into.bucket_max[bucket] == values.max(initial=-INF)


def test_samples_without_a_bucket_leave_the_buckets_alone(implementation):
    for shape in ((6, 3, 40), (6, 3, 1), (1, 2, 9)):
        into = observed(implementation, noise(*shape))
        assert np.isposinf(into.bucket_min).all()
        assert np.isneginf(into.bucket_max).all()


@pytest.mark.parametrize("name", ["long rows", "inner 1", "mean 10000 times the deviation", "some of each, inner 1"])
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_neither_batches_nor_order_matter(implementation, name, batch):
    x = TENSORS[name]
    buckets = np.arange(len(x)) % BUCKETS
    whole = observed(implementation, x, buckets)
    parts = SetStatistics.empty([x.shape[1]]).tensor(0)
    order = np.random.default_rng(2).permutation(len(x))[: len(x)]
    for start in range(0, len(x), batch):
        rows = order[start : start + batch]
        implementation.observe(np.ascontiguousarray(x[rows]), parts, buckets[rows])
    for field in ("count", "nonfinite", "min", "max", "histogram", "bucket_min", "bucket_max"):
        np.testing.assert_array_equal(getattr(parts, field), getattr(whole, field), err_msg=field)
    std = np.sqrt(whole.m2 / whole.count)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-7, atol=1e-6 * std.max())
    np.testing.assert_allclose(np.sqrt(parts.m2 / parts.count), std, rtol=1e-5)


@pytest.mark.parametrize("name", ["after a relu", "some of each", "one channel all nan"])
@pytest.mark.parametrize("axis", [1, 2, 3, None])
def test_arranging_rows_keeps_channels_and_samples_together(implementation, name, axis):
    x = np.moveaxis(TENSORS[name].reshape(len(TENSORS[name]), 3, 10, -1), 1, -1 if axis is None else axis)
    rows = as_rows(x, axis)
    buckets = np.arange(len(x))[::-1] % BUCKETS
    # Gathered rows hold the samples side by side; else each sample has as many rows as the axes before the channels.
    found = observed(implementation, rows, buckets if len(rows) == 1 else np.repeat(buckets, len(rows) // len(x)))
    for c in range(rows.shape[1]):
        values = x if axis is None else np.take(x, c, axis)
        values = values[np.isfinite(values)].astype(np.float64)
        assert found.count[c] == values.size
        assert found.max[c] == values.max(initial=-INF)
        assert found.mean[c] == pytest.approx(values.mean() if values.size else 0, abs=1e-6)
    for sample, bucket in zip(x, buckets, strict=True):
        assert found.bucket_min[bucket] == sample[np.isfinite(sample)].min()


special = st.sampled_from([0.0, -0.0, NAN, INF, -INF, 1.0, -1.0, 1e-45, 255.0, 0.5])
shapes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
arrays = shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=special | st.floats(-1e6, 1e6, width=32)))


@given(arrays)
@examples(150)
def test_both_implementations_agree_on_any_tensor(x):
    buckets = np.arange(len(x)) % BUCKETS
    a, b = observed(kernels, x, buckets), observed(reference, x, buckets)
    for field in ("count", "nonfinite", "min", "max", "histogram", "bucket_min", "bucket_max"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)
    spread = np.maximum(b.max - b.min, 0, where=b.count > 0, out=np.zeros(len(b.max)))
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-5, atol=1e-5 * spread.max() + 1e-40)
    np.testing.assert_allclose(a.m2, b.m2, rtol=1e-3, atol=1e-6 * (spread**2).max() * x.size + 1e-40)


# --- errors --------------------------------------------------------------------------------------------------------


def errors(module: ModuleType, x: Array, y: Array) -> dict[str, Array]:
    into = SetStatistics.empty([x.shape[1]]).tensor(0)
    module.observe_error(x, y, into, "accumulated")
    return into.errors["accumulated"]


PAIRS = {
    "long rows": (noise(3, 4, 5000), noise(3, 4, 5000, seed=1)),
    "inner 1": (noise(700, 5, 1), noise(700, 5, 1, seed=1)),
    "small difference": (noise(2, 3, 3000) + 50, noise(2, 3, 3000) + 50 + noise(2, 3, 3000, seed=1) * np.float32(0.1)),
    "equal": (noise(2, 3, 50), noise(2, 3, 50)),
    "one element": (noise(1, 1, 1), noise(1, 1, 1, seed=1)),
    "nan in float": (with_special(noise(4, 3, 60), NAN, INF), noise(4, 3, 60, seed=1)),
    "nan in quantized": (noise(4, 3, 60), with_special(noise(4, 3, 60, seed=1), NAN, -INF)),
    "nan in both, inner 1": (with_special(noise(90, 3, 1), NAN), with_special(noise(90, 3, 1, seed=1), INF, NAN)),
    "all nan": (noise(2, 2, 40), np.full((2, 2, 40), NAN, np.float32)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_errors_agree_with_float64(implementation, name):
    x, y = PAIRS[name]
    found = errors(implementation, x, y)
    for c in range(x.shape[1]):
        both = np.isfinite(x[:, c]) & np.isfinite(y[:, c])
        a, b = x[:, c][both].astype(np.float64), y[:, c][both].astype(np.float64)
        d = b - a
        assert found["count"][c] == both.sum()
        assert found["nonfinite"][c] == (~np.isfinite(y[:, c])).sum()
        close = {"rel": 1e-5, "abs": 1e-6 * (1 + np.abs(a).sum() * np.abs(d).max(initial=0))}
        assert found["sum"][c] == pytest.approx(d.sum(), **close)
        assert found["square"][c] == pytest.approx((d * d).sum(), rel=1e-5)
        assert found["cross"][c] == pytest.approx((a * d).sum(), **close)
        assert found["power"][c] == pytest.approx((a * a).sum(), rel=1e-5)
        assert found["max"][c] == pytest.approx(np.abs(d).max(initial=0), rel=1e-6)


# --- deployed values ------------------------------------------------------------------------------------------------

CODES = {
    np.float32: (1.0, 0.0),
    np.uint8: (0.02, 128.0),
    np.int8: (0.02, -3.0),
    np.uint16: (1e-4, 30_000.0),
    np.int16: (1e-4, 0.0),
    np.int32: (1e-6, 5.0),
}


def deployed(x: Array, kind: type, scale: float, zero: float) -> reference.Deployed:
    """Codes of ``x``; floats as they are."""
    channels = x.shape[1]
    codes = x
    if kind is not np.float32:
        ends = np.iinfo(kind)
        steps = np.nan_to_num(x, posinf=1e9, neginf=-1e9).astype(np.float64) / scale
        codes = np.clip(np.rint(steps) + zero, ends.min, ends.max).astype(kind)
    return reference.Deployed(codes, np.full(channels, scale, np.float32), np.full(channels, zero, np.float32))


def shown(module: ModuleType, x: Array, y: reference.Deployed, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
    into = SetStatistics.empty([x.shape[1]]).tensor(0)
    module.observe(x, into, buckets, None, y)
    return into.quantized_histogram


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["long rows", "inner 1", "inner 17", "some of each", "one channel all nan"])
def test_deployed_values_of_a_quarter_of_the_samples_are_counted(implementation, name, kind):
    x = TENSORS[name]
    y, buckets = deployed(x, kind, *CODES[kind]), (np.arange(len(x)) * 5 + 3) % BUCKETS
    with np.errstate(invalid="ignore"):
        values = y.values()
    expected = bins_of(values[buckets < SHOWN_BUCKETS])
    np.testing.assert_array_equal(shown(implementation, x, y, buckets), expected)
    np.testing.assert_array_equal(shown(implementation, x, y, no_buckets(x)), bins_of(values))
    np.testing.assert_array_equal(shown(implementation, x, y, np.full(len(x), SHOWN_BUCKETS)), np.zeros(BINS))


@pytest.mark.parametrize("samples", [5, 7, 200])
@pytest.mark.parametrize("size", [1, 300, 2000])
def test_deployed_values_of_gathered_rows_belong_to_their_samples(implementation, samples, size):
    """Rows as long as several samples, whose borders lie within chunks."""
    x = with_special(noise(1, 2, samples * size), INF)
    y, buckets = deployed(x, np.float32, 1.0, 0.0), np.arange(samples) * 3 % BUCKETS
    kept = np.repeat(buckets, size) < SHOWN_BUCKETS
    np.testing.assert_array_equal(shown(implementation, x, y, buckets), bins_of(x[:, :, kept]))


def test_deployed_values_on_a_broken_grid_are_not_counted(implementation):
    x = noise(2, 3, 30_000)
    for scale in (NAN, INF):
        y = deployed(x, np.uint8, 0.02, 128.0)._replace(scale=np.full(3, scale, np.float32))
        with np.errstate(invalid="ignore"):
            assert not shown(implementation, x, y, no_buckets(x)).any()


@given(arrays, st.integers(0, 2**32), st.sampled_from([np.float32, np.uint8, np.int8]))
@examples(150)
def test_both_implementations_count_the_same_deployed_values(x, seed, kind):
    rng = np.random.default_rng(seed)
    gathered = len(x) == 1 and x.shape[2] % 2 == 0
    buckets = rng.integers(-1, BUCKETS, 2 if gathered else len(x))
    with np.errstate(invalid="ignore", over="ignore"):
        y = deployed(rng.permutation(x, axis=0), kind, *CODES[kind])
        np.testing.assert_array_equal(shown(kernels, x, y, buckets), shown(reference, x, y, buckets))


# --- rounding ------------------------------------------------------------------------------------------------------

GRIDS = {
    "uint8": (0.05, -100, 155),
    "int8": (0.02, -128, 127),
    "int16": (1e-4, -32768, 32767),
    "clips on one side": (0.01, 0, 255),
    "clips most": (1e-3, -8, 7),
    "covers much more": (3.0, -128, 127),
}


def rounding(module: ModuleType, x: Array, scale: Any, low: Any, high: Any) -> TensorStatistics:
    channels = x.shape[1]
    parameters = [np.ascontiguousarray(np.broadcast_to(np.float32(v), (channels,))) for v in (scale, low, high)]
    into = SetStatistics.empty([channels]).tensor(0)
    module.observe(x, into, no_buckets(x), reference.Rounding(*parameters))
    return into


def check_rounding(into: TensorStatistics, x: Array, c: int, scale: float, low: float, high: float) -> None:
    values = finite(x, c)
    steps = values / np.float64(np.float32(scale))
    codes = np.rint(steps)
    d = np.clip(codes, low, high) * np.float64(np.float32(scale)) - values
    outside = (codes < low) | (codes > high)
    # Values within float32's resolution of a border between two codes may fall on either side.
    unsure = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-6 * (1 + np.abs(steps))
    found = into.errors["rounding"]
    assert found["count"][c] == values.size
    assert abs(into.clipped[c] - outside.sum()) <= unsure.sum()
    assert found["square"][c] == pytest.approx((d * d).sum(), rel=1e-3, abs=1e-9)
    assert found["power"][c] == pytest.approx((values**2).sum(), rel=1e-5)
    resolution = 2e-7 * np.abs(values).max(initial=0)
    assert found["max"][c] == pytest.approx(np.abs(d).max(initial=0), rel=1e-3, abs=resolution)
    assert into.clipped_energy[c] == pytest.approx((d[outside] ** 2).sum(), rel=1e-3, abs=1e-6 * scale**2 * values.size)
    if not unsure.any():
        assert found["sum"][c] == pytest.approx(d.sum(), rel=1e-3, abs=1e-5 * (scale + np.abs(d).sum()))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "name", ["long rows", "inner 1", "one element", "some of each", "one channel all nan", "zeros"]
)
def test_rounding_agrees_with_float64(implementation, name, grid):
    x, (scale, low, high) = TENSORS[name], GRIDS[grid]
    into = rounding(implementation, x, scale, low, high)
    for c in range(x.shape[1]):
        check_rounding(into, x, c, scale, low, high)


def test_rounding_with_a_grid_per_channel(implementation):
    x = noise(3, 3, 400)
    scales, lows, highs = (0.5, 0.01, 0.03), (-4, -128, 0), (3, 127, 255)
    into = rounding(implementation, x, scales, lows, highs)
    for c in range(3):
        check_rounding(into, x, c, scales[c], lows[c], highs[c])


def test_values_on_the_grid_cost_nothing(implementation):
    codes = np.arange(-128, 128, dtype=np.float32).reshape(1, 1, -1)
    into = rounding(implementation, codes * np.float32(0.25), 0.25, -128, 127)
    assert into.errors["rounding"]["square"][0] == 0
    assert into.clipped[0] == 0
    into = rounding(implementation, codes * np.float32(0.1), 0.1, -128, 127)
    assert into.errors["rounding"]["max"][0] < 1e-5
    assert into.clipped[0] == 0


def test_infinite_values_are_not_clipped_values(implementation):
    x = np.float32([[[INF, -INF, NAN, 0.1, 99.0]]])
    into = rounding(implementation, x, 0.1, -128, 127)
    assert into.clipped[0] == 1
    assert into.errors["rounding"]["count"][0] == 2
    assert into.clipped_energy[0] == pytest.approx((99.0 - 12.7) ** 2, rel=1e-5)


def test_both_implementations_fill_the_same_columns_of_the_rounding_error():
    x = with_special(noise(2, 2, 50), NAN, INF)
    a, b = (rounding(module, x, 0.05, -128, 127).errors["rounding"] for module in (kernels, reference))
    np.testing.assert_array_equal(a["nonfinite"], b["nonfinite"])


# --- merging -------------------------------------------------------------------------------------------------------


def everything(x: Array, y: Array, buckets: NDArray[np.int64]) -> SetStatistics:
    statistics = SetStatistics.empty([x.shape[1]])
    into = statistics.tensor(0)
    rounding = reference.Rounding(*(np.full(x.shape[1], v, np.float32) for v in (0.02, -128, 127)))
    deployed = reference.Deployed(y, np.ones(x.shape[1], np.float32), np.zeros(x.shape[1], np.float32))
    kernels.observe(x, into, buckets, rounding, deployed)
    return statistics


@pytest.mark.parametrize("special", [(), (NAN, INF, -INF)])
def test_extremes_of_deployed_values_are_those_of_finite_ones(implementation, special):
    x = noise(6, 3, 2500)
    y = deployed(with_special(4 * x + 1, *special) if special else 4 * x + 1, np.float32, 1.0, 0.0)
    into = SetStatistics.empty([3]).tensor(0)
    implementation.observe(x, into, no_buckets(x), None, y)
    values = y.values()
    for c in range(3):
        kept = finite(values, c)
        assert (into.deployed_min[c], into.deployed_max[c]) == (kept.min(), kept.max())


@pytest.mark.parametrize("cut", [1, 16, 32, 47])
def test_merged_halves_equal_one_pass(cut):
    x, y = with_special(noise(48, 3, 30), NAN) + 20, noise(48, 3, 30, seed=1) + 20
    buckets = np.arange(len(x)) % BUCKETS
    parts = [everything(np.ascontiguousarray(x[s]), y[s], buckets[s]) for s in (slice(None, cut), slice(cut, None))]
    merged, reverse = parts[0].merge(parts[1]), parts[1].merge(parts[0])
    whole = everything(x, y, buckets)
    for name in (*ROW_COLUMNS, *(f"accumulated.{n}" for n in ERROR_COLUMNS), *(f"rounding.{n}" for n in ERROR_COLUMNS)):
        exact = name.rpartition(".")[2] in (
            "count",
            "nonfinite",
            "min",
            "max",
            "clipped",
            "deployed_min",
            "deployed_max",
        )
        expected = whole.columns[name]
        for found in (merged.columns[name], reverse.columns[name]):
            np.testing.assert_allclose(found, expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-3)
    np.testing.assert_array_equal(merged.histograms[0], whole.histograms[0])
    np.testing.assert_array_equal(merged.quantized_histograms[0], whole.quantized_histograms[0])
    assert whole.quantized_histograms[0].sum() == np.isfinite(y[buckets < SHOWN_BUCKETS]).sum()
    empty = SetStatistics.empty([3])
    for both in (whole.merge(empty), empty.merge(whole)):
        for name, column in whole.columns.items():
            np.testing.assert_array_equal(both.columns[name], column, err_msg=name)
