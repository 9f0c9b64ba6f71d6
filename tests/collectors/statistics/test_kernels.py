"""The compiled loops against numpy in float64, on ordinary and nasty tensors."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from builders import plain_loops
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantmedic.collectors.pair.quantizer import Deployed, Rounding
from quantmedic.collectors.statistics import numba_loops
from quantmedic.collectors.statistics.accumulate import as_rows
from quantmedic.engine.case.histogram import BINS, LOW
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    LATTICE_POINTS,
    ROW_COLUMNS,
    SHOWN_BUCKETS,
    SetStatistics,
    TensorStatistics,
)

Array = NDArray[Any]
F = np.float32
NAN, INF = np.nan, np.inf
#: A few times the smallest number of float32: below, nothing is told.
TINY = 1e-44


class Seen(NamedTuple):
    """What is told of a tensor ``[outer, channels, inner]``; several buckets of one outer row share its inner axis."""

    x: Array
    buckets: NDArray[np.int64]
    grid: Rounding | None = None
    deployed: Deployed | None = None


# --- what float64 says -----------------------------------------------------------------------------------------------


def bins_of(x: Array) -> NDArray[np.int64]:
    """Histogram by the edges of the bins instead of the bits of the values."""
    values = x[np.isfinite(x)].astype(np.float64)
    half = np.searchsorted(LOW[: BINS // 2 - 8], np.abs(values), side="right") - 1
    return np.bincount(half + np.signbit(values) * (BINS // 2), minlength=BINS)


def ends_of(x: Array, axes: Any) -> tuple[Array, Array]:
    finite = np.isfinite(x)
    return x.min(axes, initial=INF, where=finite), x.max(axes, initial=-INF, where=finite)


def parts_of(x: Array, buckets: Array) -> list[Array]:
    """The values that belong to each bucket."""
    return np.split(x, len(buckets), axis=2) if len(x) == 1 and len(buckets) > 1 else list(x)


def error_of(x: Array, y: Array) -> dict[str, Array]:
    both = np.isfinite(x) & np.isfinite(y)
    a, b = (np.where(both, values, 0).astype(np.float64) for values in (x, y))
    d = b - a
    sums = {"sum": d, "square": d * d, "cross": a * d, "power": a * a, "count": both, "nonfinite": ~np.isfinite(y)}
    return {name: values.sum((0, 2)) for name, values in sums.items()} | {"max": np.abs(d).max((0, 2), initial=0)}


class Codes(NamedTuple):
    """Rounded to a grid; ``unsure`` values lie so near the middle between two codes that either is right."""

    y: Array
    clipped: Array
    energy: Array
    unsure: Array


def codes_of(x: Array, grid: Rounding) -> Codes:
    scale, low, high = (values.astype(np.float64).reshape(1, -1, 1) for values in grid)
    with np.errstate(invalid="ignore"):
        steps = x.astype(np.float64) / scale
        codes = np.rint(steps)
        y = np.clip(codes, low, high) * scale
        outside = ((codes < low) | (codes > high)) & np.isfinite(x)
        unsure = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-6 * (1 + np.abs(steps))
        # Whichever code such a value gets, it costs nothing more unless that code is out of range.
        energy = np.where(outside, (y - x) ** 2, 0).sum((0, 2))
    return Codes(y, outside.sum((0, 2)), energy, unsure.sum((0, 2)))


def wrong_values(found: TensorStatistics, x: Array, buckets: Array) -> list[str]:
    """Columns that are not what float64 says of the values."""
    low, high = ends_of(x, (0, 2))
    exact = {"count": np.isfinite(x).sum((0, 2)), "nonfinite": (~np.isfinite(x)).sum((0, 2)), "min": low, "max": high}
    exact |= {"histogram": bins_of(x), "bucket_min": np.full(BUCKETS, INF), "bucket_max": np.full(BUCKETS, -INF)}
    for part, bucket in zip(parts_of(x, buckets), buckets, strict=True):
        if bucket >= 0:
            low, high = ends_of(part, None)
            exact["bucket_min"][bucket] = min(exact["bucket_min"][bucket], low)
            exact["bucket_max"][bucket] = max(exact["bucket_max"][bucket], high)
    wrong = [name for name, true in exact.items() if not np.array_equal(getattr(found, name), true)]
    for c in range(x.shape[1]):
        values = x[:, c][np.isfinite(x[:, c])].astype(np.float64)
        mean, std = (values.mean(), values.std()) if values.size else (0.0, 0.0)
        if not abs(found.mean[c] - mean) <= 1e-5 * std + 1e-7 * abs(mean) + TINY:
            wrong.append("mean")
        deviation = np.sqrt(found.m2[c] / max(values.size, 1))
        # A constant has none at all, whatever its value.
        if not abs(deviation - std) <= 1e-3 * std + (1e-7 if std > 1e-12 * abs(mean) else 1e-9) * abs(mean) + TINY:
            wrong.append("m2")
    return wrong


def wrong_errors(found: Any, x: Array, y: Array, unsure: Array | int = 0, step: Array | float = 0.0) -> list[str]:
    """Columns of an error that are not what float64 says; sums of float32 are as exact as the larger of its values."""
    true = error_of(x, y)
    n, power = np.maximum(true["count"], 1), true["power"]
    grain = 1e-6 * np.sqrt(power / n) + TINY
    noise = np.sqrt(true["square"] / n) + grain
    close = 1e-5 * noise + grain
    top = np.abs(np.where(np.isfinite(x), x, 0)).max((0, 2), initial=0)
    slack = {
        "power": 1e-5 * power + n * TINY**2,
        "square": 2 * n * close * noise,
        "sum": n * close + unsure * step,
        "cross": np.sqrt(power * n) * close + unsure * step * top + n * TINY * true["max"],
        "max": 1e-5 * true["max"] + 1e-6 * top + TINY,
    }
    names = [name for name in true if name != "nonfinite" or isinstance(unsure, int)]  # codes follow from the values
    return [name for name in names if not (np.abs(found[name] - true[name]) <= slack.get(name, 0) + 1e-300).all()]


def wrong(found: TensorStatistics, seen: Seen) -> list[str]:
    """Columns that are not what float64 says of a tensor."""
    x, buckets, grid, deployed = seen
    names = wrong_values(found, x, buckets)
    if grid is not None:
        true = codes_of(x, grid)
        rounding = wrong_errors(found.errors["rounding"], x, true.y, true.unsure, grid.scale)
        names += [f"rounding.{name}" for name in rounding]
        slack = 1e-3 * true.energy + (1e-6 * x[:, 0].size + true.unsure) * grid.scale.astype(np.float64) ** 2
        names += ["clipped"] * bool((np.abs(found.clipped - true.clipped) > true.unsure).any())
        names += ["clipped_energy"] * bool((np.abs(found.clipped_energy - true.energy) > slack).any())
    if deployed is not None:
        scale, zero = (values.reshape(1, -1, 1) for values in (deployed.scale, deployed.zero))
        y = (deployed.codes.astype(F) - zero) * scale
        names += [f"accumulated.{name}" for name in wrong_errors(found.errors["accumulated"], x, y)]
        low, high = ends_of(y, (0, 2))
        parts = [part for part, b in zip(parts_of(y, buckets), buckets, strict=True) if b < SHOWN_BUCKETS]
        histogram = sum(map(bins_of, parts), np.zeros(BINS, np.int64))
        exact = {"deployed_min": low, "deployed_max": high, "quantized_histogram": histogram}
        names += [name for name, true in exact.items() if not np.array_equal(getattr(found, name), true)]
    return names


def check(seen: Seen, pieces: int = 1) -> list[str]:
    """What the loops get wrong that is told of a tensor in as many pieces, last first."""
    x, buckets, grid, deployed = seen
    into = SetStatistics.empty([x.shape[1]]).tensor(0)
    told = np.array_split(np.arange(len(x)), pieces)[::-1] if len(x) == len(buckets) else [np.arange(len(x))]
    compares = deployed is not None and deployed.codes.dtype == F and x.size > 0
    ends = []
    with np.errstate(all="ignore"):
        for rows in told:
            part = deployed and deployed._replace(codes=np.ascontiguousarray(deployed.codes[rows]))
            own = buckets[rows] if len(told) > 1 else buckets
            ends.append(numba_loops.observe(np.ascontiguousarray(x[rows]), into, own, grid, part))
        if compares:
            numba_loops.observe_error(x, deployed.codes, into, "step")
        names = wrong(into, seen)
    expected = np.array([ends_of(part, None) for part in parts_of(x, buckets)]).reshape(-1, 2).T
    if not np.array_equal(np.concatenate(ends[::-1], axis=1), expected):
        names.append("ends of samples")
    if compares:
        names += [f"step.{name}" for name in wrong_errors(into.errors["step"], x, deployed.codes)]
    return names


# --- tensors ---------------------------------------------------------------------------------------------------------

INNER = [1, 2, 15, 16, 17, 1023, 1024, 1025, 2049]
KINDS = [F, np.uint8, np.int8, np.uint16, np.int16, np.int32, np.float16]
MAGNITUDES = [1e-38, 1e-30, 1e-20, 9e-16, 1.1e-15, 1e-6, 1.0, 1.0, 1.0, 1e4, 9e14, 1.1e15, 1e18, 1e30]
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1e-45, 255.0]
GRIDS = [(0.05, -100, 155), (0.02, -128, 127), (1e-4, -32768, 32767), (0.01, 0, 255), (1e-3, -8, 7), (3.0, -128, 127)]


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def with_special(x: Array, *values: float) -> Array:
    """A tenth of the elements replaced by the given values in turn."""
    x = x.copy()
    places = np.random.default_rng(1).choice(x.size, max(x.size // 10, len(values)), replace=False)
    x.reshape(-1)[places] = np.resize(np.array(values, F), len(places))
    return x


def a_channel_of(value: float, x: Array) -> Array:
    x = x.copy()
    x[:, 1] = value
    return x


def deployed_as(x: Array, kind: type, rng: np.random.Generator) -> Deployed:
    """Codes of any type near the values, with a zero point of its own per channel."""
    zero = np.resize(F([0, 3, 128, -5]), x.shape[1])
    top = np.abs(x[np.isfinite(x)]).max(initial=1e-30)
    if np.dtype(kind).kind == "f":
        with np.errstate(all="ignore"):
            codes = (x + rng.standard_normal(x.shape) * 0.01 * top).astype(kind)
        return Deployed(codes, np.ones(x.shape[1], F), np.zeros(x.shape[1], F))
    ends = np.iinfo(kind)
    codes = rng.integers(max(ends.min, -40_000), min(ends.max, 40_000), x.shape, kind, endpoint=True)
    return Deployed(codes, np.full(x.shape[1], top / 100, F), zero)


@st.composite
def tensors(draw: st.DrawFn) -> Seen:
    shape = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.sampled_from(INNER) | st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shift = draw(st.sampled_from([0.0, 0.0, 1.0, 100.0, -1e4]))
    x = ((rng.standard_normal(shape) + shift) * draw(st.sampled_from(MAGNITUDES))).astype(F)
    if special := draw(st.lists(st.sampled_from(SPECIAL), max_size=4)):
        places = rng.choice(x.size, min(len(special) * draw(st.sampled_from([1, 20])), x.size), replace=False)
        x.reshape(-1)[places] = np.resize(np.array(special, F), len(places))
    groups = draw(st.integers(2, 6))
    if draw(st.sampled_from([False, False, True])):
        x = np.concatenate([x[:1]] * groups, axis=2) + np.arange(groups * x.shape[2], dtype=F) * F(1e-3)
        buckets = rng.integers(-1, BUCKETS, groups)
    else:
        buckets = rng.integers(-1, BUCKETS, len(x))
    steps, low, high = draw(st.sampled_from(GRIDS))
    step = F(steps * np.abs(x[np.isfinite(x)]).max(initial=1e-30) / 3) * np.resize(F([1, 0.5, 2]), shape[1])
    zero = np.resize(F([0, 7]), shape[1])
    kind = draw(st.none() | st.sampled_from(KINDS))
    grid = draw(st.sampled_from([None, Rounding(step, low + zero, high + zero)]))
    return Seen(x, buckets, grid, None if kind is None else deployed_as(x, kind, rng))


NASTY = {
    "long rows": noise(3, 4, 5000),
    "many short rows": noise(700, 5, 1),
    "one channel": noise(64, 1, 1),
    "a whole chunk": noise(1, 1, numba_loops.CHUNK),
    "a chunk and one": noise(1, 2, numba_loops.CHUNK + 1),
    "one element": noise(1, 1, 1),
    "shown values worth a table": with_special(noise(16, 3, 2500), NAN, INF),
    "a large mean": noise(2, 3, 3000) + 10_000,
    "a large mean in short rows": noise(900, 3, 1) - 10_000,
    "a tiny deviation": noise(2, 2, 900) * F(1e-3) + 10,
    "an outlier first": noise(1, 2, 3000) + np.eye(1, 3000, dtype=F) * F(1e4),
    "masked attention": np.where(np.arange(3000) % 3, noise(1, 1, 3000), np.finfo(F).min),
    "all magnitudes": noise(2, 2, 2000) * F(10.0) ** np.linspace(-15, 15, 2000, dtype=F),
    "denormal": np.full((2, 2, 50), 1e-42, F),
    "constant": np.full((3, 2, 5000), 0.1, F),
    "constant in short rows": np.full((5000, 2, 1), 1e6 / 3, F),
    "zeros": np.zeros((2, 2, 40), F),
    "signed zeros": np.where(noise(2, 2, 40) > 0, F(0.0), F(-0.0)),
    "after a relu": np.maximum(noise(2, 3, 500), 0),
    "some of each": with_special(noise(4, 3, 200), NAN, INF, -INF, -NAN),
    "some of each in short rows": with_special(noise(200, 3, 1), NAN, INF, -INF),
    "not finite at both ends": np.pad(noise(2, 2, 30), ((0, 0), (0, 0), (1, 1)), constant_values=NAN),
    "a channel of nan": a_channel_of(NAN, noise(3, 3, 100)),
    "all nan": np.full((2, 2, 40), NAN, F),
    "all infinite": np.full((40, 2, 1), -INF, F),
    "extremes of float32": np.tile(F([3e38, -3e38, 1e-45, -1e-45]), (2, 2, 1)),
    "no samples": np.zeros((0, 3, 4), F),
    "no values": np.zeros((2, 3, 0), F),
}


# --- claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_nasty_tensors_are_measured_as_in_float64():
    broken = []
    for name, x in NASTY.items():
        channels, mixed = x.shape[1], (np.arange(len(x)) * 5 + 3) % BUCKETS
        grid = Rounding(np.full(channels, 0.02, F), np.full(channels, -128, F), np.full(channels, 127, F))
        # Values far beyond a grid are known to be clipped and no more; codes as far beyond the values hide them.
        fits = name not in ("extremes of float32", "masked attention", "all magnitudes")
        for kind, buckets in ((None, mixed), (F, mixed), (np.uint8 if fits else None, np.full(len(x), -1))):
            deployed = kind and deployed_as(x[::-1], kind, np.random.default_rng(3))
            broken += [(name, kind, *check(Seen(x, buckets, grid if fits else None, deployed)))]
    assert not [case for case in broken if len(case) > 2]


@examples(120)
@given(tensors(), st.integers(1, 4))
def test_any_tensor_is_measured_as_in_float64(seen, pieces):
    """In whatever pieces it comes, in whatever order."""
    assert not check(seen, pieces)


def test_values_that_are_not_finite_count_on_the_side_that_has_them():
    broken = []
    for inner in INNER:
        for special in (NAN, INF, -INF):
            x = noise(2, 3, inner)
            y = x + F(0.01) * noise(2, 3, inner, seed=1)
            for left, right in ((x, a_channel_of(special, y)), (a_channel_of(special, x), y)):
                one, zero = np.ones(3, F), np.zeros(3, F)
                broken += check(Seen(left, np.array([0, 1]), None, Deployed(right, one, zero)))
    assert not broken


def test_values_on_the_grid_cost_nothing_and_infinite_ones_are_not_clipped():
    codes = np.arange(-128, 128, dtype=F).reshape(1, 1, -1)
    for step in (0.25, 0.1):
        into = SetStatistics.empty([1]).tensor(0)
        numba_loops.observe(codes * F(step), into, np.array([-1]), Rounding(F([step]), F([-128]), F([127])))
        assert into.clipped[0] == 0 and into.errors["rounding"]["max"][0] < 1e-5
        assert step != 0.25 or into.errors["rounding"]["square"][0] == 0
    into, x = SetStatistics.empty([1]).tensor(0), F([[[INF, -INF, NAN, 0.1, 99.0]]])
    numba_loops.observe(x, into, np.array([-1]), Rounding(F([0.1]), F([-128]), F([127])))
    assert into.clipped[0] == 1 and into.errors["rounding"]["count"][0] == 2
    assert into.clipped_energy[0] == pytest.approx((99.0 - 12.7) ** 2, rel=1e-5)


def test_grids_that_make_no_sense_are_measured_alike_with_and_without_compiled_code():
    """Broken models have them."""
    broken = []
    for scale in (0.0, -0.0, NAN, INF, -0.1, 1e-42, 1e-30, 3e38):
        for inner in (1, 17, 1025):
            x = np.where(np.arange(inner) % 3 == 1, F(0), noise(2, 2, inner))
            codes = np.arange(x.size, dtype=np.uint8).reshape(x.shape)
            one, found = np.ones(2, F), []
            for module in (numba_loops, plain_loops):
                statistics = SetStatistics.empty([2])
                grid, deployed = (
                    Rounding(one * F(scale), -128 * one, 127 * one),
                    Deployed(codes, one * F(scale), 3 * one),
                )
                with np.errstate(all="ignore"):
                    module.observe(x, statistics.tensor(0), np.array([0, 1]), grid, deployed)
                found.append(statistics.columns | {"shown": statistics.quantized_histograms[0]})
            for name, column in found[0].items():
                top = np.abs(column[np.isfinite(column)]).max(initial=0)
                if not np.allclose(column, found[1][name], rtol=1e-5, atol=1e-6 * top, equal_nan=True):
                    broken.append((scale, inner, name))
            assert np.isfinite(scale) or not found[0]["shown"].any()
    assert not broken


def test_rows_are_arranged_so_that_channels_and_samples_stay_together():
    broken = []
    for name, x in {"plain": noise(3, 3, 500), "a channel of nan": a_channel_of(NAN, noise(3, 3, 100))}.items():
        for axis in (1, 2, 3, None):
            moved = np.moveaxis(x.reshape(len(x), 3, 10, -1), 1, -1 if axis is None else axis)
            rows, buckets = as_rows(moved, axis), np.arange(len(x))[::-1] % BUCKETS
            # Gathered rows hold samples side by side; else each sample has as many rows as axes before its channels.
            found = SetStatistics.empty([rows.shape[1]]).tensor(0)
            own = buckets if len(rows) == 1 else np.repeat(buckets, len(rows) // len(x))
            numba_loops.observe(rows, found, own)
            channels = moved.reshape(1, 1, -1) if axis is None else np.moveaxis(moved, axis, 1).reshape(len(x), 3, -1)
            samples = [ends_of(sample, None) for sample in x]
            mine = list(zip(found.bucket_min[buckets], found.bucket_max[buckets], strict=True))
            extremes = ends_of(channels, (0, 2))
            if mine != samples or not all(map(np.array_equal, (found.min, found.max), extremes)):
                broken.append((name, axis))
    assert not broken


def test_merged_halves_equal_one_pass():
    x, y = with_special(noise(48, 3, 30), NAN) + 20, noise(48, 3, 30, seed=1) + 20
    buckets = np.arange(len(x)) % BUCKETS

    def everything(rows: slice) -> SetStatistics:
        statistics, one = SetStatistics.empty([3]), np.ones(3, F)
        grid, deployed = Rounding(one * F(0.02), -128 * one, 127 * one), Deployed(y[rows], one, 0 * one)
        numba_loops.observe(x[rows], statistics.tensor(0), buckets[rows], grid, deployed)
        return statistics

    whole, empty = everything(slice(None)), SetStatistics.empty([3])
    errors = [f"{kind}.{name}" for kind in ("accumulated", "rounding") for name in ERROR_COLUMNS]
    exact = {"count", "nonfinite", "min", "max", "clipped", "deployed_min", "deployed_max"}
    for cut in (1, 32):
        parts = everything(slice(None, cut)), everything(slice(cut, None))
        for merged in (parts[0].merge(parts[1]), parts[1].merge(parts[0])):
            for name in (*ROW_COLUMNS, *errors):
                slack = 0 if name.rpartition(".")[2] in exact else 1e-5
                found, expected = merged.columns[name], whole.columns[name]
                np.testing.assert_allclose(found, expected, rtol=slack, atol=100 * slack, err_msg=name)
            np.testing.assert_array_equal(merged.histograms[0], whole.histograms[0])
            np.testing.assert_array_equal(merged.quantized_histograms[0], whole.quantized_histograms[0])
    for both in (whole.merge(empty), empty.merge(whole)):
        for name, column in whole.columns.items():
            np.testing.assert_array_equal(both.columns[name], column, err_msg=name)


@examples(80)
@given(tensors())
def test_samples_and_their_distinct_values(seen):
    x = np.ascontiguousarray(seen.x.reshape(len(seen.x), -1))
    finite = np.isfinite(x)
    values = np.where(finite, x, 0).astype(np.float64)
    scale, top = np.abs(values).max(initial=0.0), values.max(axis=1, keepdims=True)
    distinct, limit = np.unique(x[finite] + F(0)), LATTICE_POINTS + 1
    mean, deviation, saturated, nonfinite = numba_loops.sample_moments(x)
    close = {"rtol": 1e-5, "atol": 1e-6 * scale + TINY}
    np.testing.assert_allclose(mean, values.mean(axis=1), **close)
    np.testing.assert_allclose(deviation, values.std(axis=1), **close)
    np.testing.assert_allclose(saturated, (values == top).mean(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(nonfinite, (~finite).sum(axis=1))
    found = numba_loops.distinct(x.reshape(-1), limit)
    assert np.array_equal(found, distinct) if len(distinct) <= limit else len(found) == limit
    assert np.isin(found, distinct).all()
