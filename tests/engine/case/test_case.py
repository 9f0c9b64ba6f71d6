"""Merging: the statistics of two shards are those of one pass over both, in either implementation."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from builders import plain_loops as reference
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.engine.case.facts import ModelFacts, QuantizerFacts
from quantmedic.engine.case.histogram import BINS, SHIFT
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord, TensorRecord
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    ERROR_KINDS,
    FEATURES,
    LATTICE_POINTS,
    ROW_COLUMNS,
    SAMPLE_DTYPE,
    SetStatistics,
    union_lattice,
)
from quantmedic.engine.errors import CaseError
from quantmedic.engine.formulas.error_facts import error_facts

few = examples(40)
EXACT_ROWS = ("count", "nonfinite", "min", "max", "clipped")
EXACT_ERRORS = ("count", "nonfinite", "max")
SUMS = ("sum", "square", "cross", "power")


@st.composite
def arrays(draw: Any) -> tuple[Any, Any]:
    """Values and their quantized twin ``[outer, channels, inner]``, some of them not finite, and one bucket per row."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 15, 16, 40])))
    loc, scale = draw(st.sampled_from([0.0, 1.0, -4.0])), draw(st.sampled_from([1e-3, 1.0, 50.0]))
    x = (scale * (rng.normal(size=shape) + loc)).astype(np.float32)
    y = (x + 0.1 * scale * rng.normal(size=shape)).astype(np.float32)
    for values in (x, y):
        bad = rng.random(shape) < draw(st.sampled_from([0.0, 0.2, 1.0]) if values is x else st.sampled_from([0.0, 0.2]))
        values[bad] = rng.choice([np.nan, np.inf, -np.inf], shape)[bad]
    x[rng.random(shape) < 0.1] = 0.0
    return np.stack([x, y]), rng.integers(-1, BUCKETS, shape[0])


def measure(module: ModuleType, pair: Any, buckets: Any) -> SetStatistics:
    x, y = pair
    channels = x.shape[1]
    statistics = SetStatistics.empty([2, channels])  # another tensor stands before it
    if x.shape[0]:
        into = statistics.tensor(1)
        step = np.full(channels, 0.25, np.float32)
        low, high = np.full(channels, -8.0, np.float32), np.full(channels, 7.0, np.float32)
        deployed = reference.Deployed(y, np.ones(channels, np.float32), np.zeros(channels, np.float32))
        with np.errstate(invalid="ignore"):
            module.observe(x, into, buckets, reference.Rounding(step, low, high), deployed)
        statistics.tensor_samples[1] += x.shape[0]
    return statistics


def compare(a: SetStatistics, b: SetStatistics, scale: SetStatistics, rtol: float) -> None:
    """Exact where that is promised; sums relative to the sum of their magnitudes."""
    assert np.array_equal(a.channels, b.channels)
    for name in EXACT_ROWS:
        assert np.array_equal(a.columns[name], b.columns[name]), name
    for kind in ERROR_KINDS:
        for name in EXACT_ERRORS:
            assert np.array_equal(a.columns[f"{kind}.{name}"], b.columns[f"{kind}.{name}"]), (kind, name)
        columns = {name: scale.columns[f"{kind}.{name}"] for name in ("count", "square", "power")}
        size = {
            "sum": np.sqrt(columns["square"] * columns["count"]),
            "square": columns["square"],
            "cross": np.sqrt(columns["square"] * columns["power"]),
            "power": columns["power"],
        }
        for name in SUMS:
            gap = np.abs(a.columns[f"{kind}.{name}"] - b.columns[f"{kind}.{name}"])
            assert (gap <= rtol * size[name] + 1e-300).all(), (kind, name)
    count = np.maximum(scale.columns["count"], 1)
    spread = np.sqrt(scale.columns["m2"] / count) + np.abs(scale.columns["mean"])
    assert (np.abs(a.columns["mean"] - b.columns["mean"]) <= rtol * spread + 1e-300).all()
    assert np.allclose(
        a.columns["m2"], b.columns["m2"], rtol=rtol, atol=rtol * 1e-6 * float(spread.max() ** 2) + 1e-300
    )
    assert np.allclose(a.columns["clipped_energy"], b.columns["clipped_energy"], rtol=rtol, atol=1e-300)
    zero = np.zeros(BINS, np.int64)
    for one, other in ((a.histograms, b.histograms), (a.quantized_histograms, b.quantized_histograms)):
        for i in one.keys() | other.keys():
            assert np.array_equal(one.get(i, zero), other.get(i, zero))
    assert np.array_equal(a.bucket_min, b.bucket_min)
    assert np.array_equal(a.bucket_max, b.bucket_max)
    assert np.array_equal(a.tensor_samples, b.tensor_samples)


@given(arrays(), st.data())
@few
def test_any_split_equals_one_pass(drawn: tuple[Any, Any], data: st.DataObject) -> None:
    pair, buckets = drawn
    cut = data.draw(st.integers(0, len(buckets)))
    whole = measure(reference, pair, buckets)
    parts = [measure(reference, pair[:, part], buckets[part]) for part in (slice(0, cut), slice(cut, None))]
    compare(parts[0].merge(parts[1]), whole, whole, 1e-12)
    compare(parts[1].merge(parts[0]), whole, whole, 1e-12)


@given(arrays(), st.data())
@few
def test_merging_is_associative(drawn: tuple[Any, Any], data: st.DataObject) -> None:
    pair, buckets = drawn
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(buckets))] * 2)))
    slices = (slice(0, first), slice(first, second), slice(second, None))
    a, b, c = (measure(reference, pair[:, part], buckets[part]) for part in slices)
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    compare(left, right, left, 1e-12)


@given(arrays())
@few
def test_compiled_loops_agree_with_plain_numpy(drawn: tuple[Any, Any]) -> None:
    pair, buckets = drawn
    compiled, plain = measure(kernels, pair, buckets), measure(reference, pair, buckets)
    # the largest difference and the code of a value half-way are single-precision results
    for name in ("accumulated.max", "rounding.max"):
        assert np.allclose(compiled.columns[name], plain.columns[name], rtol=1e-5, atol=1e-7)
        compiled.columns[name] = plain.columns[name]
    compare(compiled, plain, plain, 1e-5)


def test_statistics_of_known_values() -> None:
    x = np.array([[[1.0, 2.0, 3.0], [-1.0, np.nan, 0.0]], [[4.0, np.inf, 6.0], [-5.0, -0.0, 0.5]]], np.float32)
    y = np.array([[[1.5, 2.0, 2.0], [-1.0, 7.0, 0.0]], [[4.0, 1.0, np.nan], [-5.0, 0.0, 0.0]]], np.float32)
    statistics = measure(kernels, np.stack([x, y]), np.array([3, 5]))
    view = statistics.tensor(1)
    finite = [np.array([1, 2, 3, 4, 6.0]), np.array([-1, 0, -5, 0, 0.5])]
    assert view.count.tolist() == [5, 5]
    assert view.nonfinite.tolist() == [1, 1]
    assert view.mean == pytest.approx([values.mean() for values in finite])
    assert view.m2 == pytest.approx([5 * values.var() for values in finite])
    assert view.min.tolist() == [1, -5]
    assert view.max.tolist() == [6, 0.5]
    assert view.histogram.sum() == 10
    assert view.histogram[0] + view.histogram[BINS // 2] == 2
    # of the sample in bucket 3 all values, of the one in bucket 5 none
    assert view.quantized_histogram.sum() == 6
    assert view.quantized_histogram[np.float32(2.0).view(np.uint32) >> SHIFT] == 2
    assert (view.bucket_min[3], view.bucket_max[3]) == (-1, 3)
    assert (view.bucket_min[5], view.bucket_max[5]) == (-5, 6)
    assert np.isinf(np.delete(view.bucket_min, [3, 5])).all()
    errors = view.errors["accumulated"]
    assert errors["count"].tolist() == [4, 5]
    assert errors["nonfinite"].tolist() == [1, 0]
    assert errors["sum"].tolist() == [-0.5, -0.5]
    assert errors["square"].tolist() == [1.25, 0.25]
    assert errors["cross"].tolist() == [0.5 - 3.0, -0.25]
    assert errors["power"].tolist() == [1 + 4 + 9 + 16, 1 + 25 + 0.25]
    assert errors["max"].tolist() == [1.0, 0.5]
    # codes -8 … 7 of a quarter: everything above 1.75 or below -2 is clipped
    assert view.clipped.tolist() == [4, 1]
    assert view.clipped_energy == pytest.approx([0.25**2 + 1.25**2 + 2.25**2 + 4.25**2, 3.0**2])
    assert view.errors["rounding"]["square"] == pytest.approx([0.25**2 + 1.25**2 + 2.25**2 + 4.25**2, 3.0**2])
    assert not statistics.tensor(0).count.any(), "the neighbour's rows are untouched"


def test_large_mean_does_not_hide_the_deviation() -> None:
    for rows in ((1, 1, 4096), (64, 1, 64), (64, 8, 8)):
        x = np.random.default_rng(0).normal(1000.0, 0.1, rows).astype(np.float32)
        statistics = SetStatistics.empty([rows[1]])
        kernels.observe(x, statistics.tensor(0), np.full(rows[0], -1))
        deviation = np.sqrt(statistics.columns["m2"] / statistics.columns["count"])
        assert deviation == pytest.approx(x.astype(np.float64).std(axis=(0, 2)), rel=1e-4)


def test_histogram_counts_every_finite_value() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, (5, 3, 41), np.uint32).view(np.float32)
    x[~(np.abs(x) < 1e15)] = np.nan
    statistics = SetStatistics.empty([3])
    kernels.observe(x, statistics.tensor(0), np.full(5, -1))
    expected = np.bincount(x[np.isfinite(x)].view(np.uint32) >> SHIFT, minlength=BINS)
    assert np.array_equal(statistics.histograms[0], expected)
    assert np.isinf(statistics.bucket_min).all()


def test_mask_of_the_most_negative_float() -> None:
    """An attention mask of -3.4e38 that its quantizer clips away is all noise, not free of it."""
    x = np.random.default_rng(0).normal(size=(4, 1, 50)).astype(np.float32)
    x[:, :, ::5] = np.finfo(np.float32).min
    statistics = SetStatistics.empty([1])
    into = statistics.tensor(0)
    ones = np.ones(1, np.float32)
    kernels.observe(x, into, np.full(4, -1), reference.Rounding(ones, -128 * ones, 127 * ones))
    assert np.isfinite(into.m2).all()
    assert error_facts(into.errors["rounding"], 1.0).sqnr_db == pytest.approx(0.0, abs=0.1)


@given(st.integers(0, 2**32), st.sampled_from([1e-30, 1e-15, 1e15, 1e25, 1e37]), st.sampled_from([1, 7, 40]))
@few
def test_compiled_loops_agree_on_very_large_and_small_values(seed: int, size: float, inner: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, 2, inner)).astype(np.float32)
    x[rng.random(x.shape) < 0.3] *= np.float32(size)
    y = (x * (1 + 0.1 * rng.normal(size=x.shape))).astype(np.float32)
    pair = np.stack([x, y])
    compiled, plain = (measure(module, pair, np.array([0, 1, 2])) for module in (kernels, reference))
    for name in ("accumulated.max", "rounding.max"):
        assert np.allclose(compiled.columns[name], plain.columns[name], rtol=1e-5, atol=1e-7)
        compiled.columns[name] = plain.columns[name]
    compare(compiled, plain, plain, 1e-5)


def test_rows_gathered_per_channel_keep_their_buckets() -> None:
    """Samples side by side in one long row give what one row per sample gives."""
    x = np.random.default_rng(4).normal(size=(6, 3, 5)).astype(np.float32)
    x[2, 1, 3], x[4, 0] = np.nan, np.inf
    buckets = np.array([3, 0, 3, -1, 7, 15])
    gathered = np.ascontiguousarray(x.transpose(1, 0, 2)).reshape(1, 3, -1)
    a, b = SetStatistics.empty([3]), SetStatistics.empty([3])
    kernels.observe(x, a.tensor(0), buckets)
    kernels.observe(gathered, b.tensor(0), buckets)
    compare(a, b, a, 1e-6)
    assert np.isfinite(a.bucket_min[0]).tolist() == [i in (0, 3, 15, 7) for i in range(BUCKETS)]


def filled(seed: int, shapes: tuple[int, ...] = (2, 3)) -> SetStatistics:
    """Statistics with something in every accumulator."""
    rng = np.random.default_rng(seed)
    statistics = SetStatistics.empty(shapes, lattices=2, codes=[(3, 16)])
    for i, channels in enumerate(shapes):
        x = rng.normal(size=(4, channels, 20)).astype(np.float32)
        reference.observe_values(x, statistics.tensor(i), rng.integers(0, BUCKETS, 4))
        reference.observe_error(x, x + np.float32(0.1), statistics.tensor(i), "step")
        reference.observe_deployed(np.round(x, 1), statistics.tensor(i), np.array([0, 3, 4, -1]))
    statistics.samples = np.zeros(4, SAMPLE_DTYPE)
    statistics.samples["hash"] = rng.integers(0, 2**63, 4)
    statistics.lattice = [rng.choice(np.arange(20, dtype=np.float32), 5, replace=False) for _ in range(2)]
    statistics.lattice = [np.sort(values) for values in statistics.lattice]
    vectors = rng.normal(size=(4, FEATURES))
    statistics.feature_count = statistics.flipped_count = 4
    statistics.feature_sum, statistics.flipped_sum = vectors.sum(axis=0), -vectors.sum(axis=0)
    statistics.feature_outer = vectors.T @ vectors
    statistics.codes = [rng.random((3, 16)) < 0.3]
    statistics.tensor_samples += 4
    statistics.sample_count += 4
    return statistics


def same(a: SetStatistics, b: SetStatistics) -> None:
    compare(a, b, a, 0.0)
    for name in (*ROW_COLUMNS, *(f"{kind}.{n}" for kind in ERROR_KINDS for n in ERROR_COLUMNS)):
        assert np.array_equal(a.columns[name], b.columns[name]), name
    for name in ("samples", "feature_sum", "feature_outer", "flipped_sum", "feature_count", "flipped_count"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for name in ("lattice", "codes"):
        for x, y in zip(getattr(a, name), getattr(b, name), strict=True):
            assert x.dtype == y.dtype
            assert np.array_equal(x, y), name


def test_empty_set_changes_nothing() -> None:
    statistics, nothing = filled(1), SetStatistics.empty([2, 3], lattices=2, codes=[(3, 16)])
    same(statistics.merge(nothing), statistics)
    same(nothing.merge(statistics), statistics)
    same(nothing.merge(nothing), nothing)


def test_every_accumulator_is_merged() -> None:
    a, b = filled(1), filled(2)
    merged = a.merge(b)
    assert merged.samples["hash"].tolist() == [*a.samples["hash"], *b.samples["hash"]]
    assert merged.feature_count == merged.flipped_count == 8
    assert np.allclose(merged.feature_sum, a.feature_sum + b.feature_sum)
    assert np.allclose(merged.flipped_sum, a.flipped_sum + b.flipped_sum)
    assert np.allclose(merged.feature_outer, a.feature_outer + b.feature_outer)
    assert np.array_equal(merged.codes[0], a.codes[0] | b.codes[0])
    assert [set(v.tolist()) for v in merged.lattice] == [
        set(x.tolist()) | set(y.tolist()) for x, y in zip(a.lattice, b.lattice, strict=True)
    ]
    assert merged.tensor_samples.tolist() == merged.sample_count.tolist() == [8, 8]
    assert merged.columns["step.count"].tolist() == [160] * 5
    assert [counts.sum() for counts in merged.quantized_histograms.values()] == [2 * 3 * 20 * n for n in (2, 3)]


def test_merging_leaves_the_shards_alone() -> None:
    a, b = filled(1), filled(2)
    merged = a.merge(b)
    reference.observe_values(np.full((1, 2, 5), 99.0, np.float32), merged.tensor(0), np.array([0]))
    merged.codes[0][:] = True
    same(a, filled(1))
    same(b, filled(2))


def test_different_tensors_outputs_or_inputs_are_refused() -> None:
    for shapes in ((2,), (3, 2), (2, 3, 1)):
        with pytest.raises(CaseError, match="different tensors"):
            filled(1).merge(SetStatistics.empty(shapes, lattices=2, codes=[(3, 16)]))
    for lattices, codes in ((1, (3, 16)), (2, (1, 16))):
        with pytest.raises(CaseError):
            filled(1).merge(SetStatistics.empty([2, 3], lattices=lattices, codes=[codes]))


floats = st.lists(st.floats(-1e3, 1e3, width=32), max_size=30).map(
    lambda values: np.unique(np.array(values, np.float32))
)


@given(floats, floats, floats)
@few
def test_union_of_distinct_values(a: Any, b: Any, c: Any) -> None:
    found = union_lattice(a, b)
    assert found.dtype == np.float32
    assert found.tolist() == sorted({*a.tolist(), *b.tolist()})
    assert np.array_equal(found, union_lattice(b, a))
    assert np.array_equal(union_lattice(found, c), union_lattice(a, union_lattice(b, c)))
    assert np.array_equal(union_lattice(found, found), found)


def test_too_many_distinct_values_stay_too_many() -> None:
    low, high = np.arange(200, dtype=np.float32), np.arange(150, 400, dtype=np.float32)
    many = union_lattice(low, high)
    assert len(many) == LATTICE_POINTS + 1
    assert len(union_lattice(many, low)) == len(union_lattice(low[:1], many)) == LATTICE_POINTS + 1
    assert len(union_lattice(low, low + 56)) == LATTICE_POINTS, "256 values are still a lattice"


def shard(
    seed: int, *roles: str, sha: str = "a", metric: str | None = "top1", tensor: str = "t", scale: float | None = None
) -> Case:
    tensors = tuple(
        TensorRecord(
            name=f"{tensor}{i}",
            float_name=f"{tensor}{i}",
            producer="Conv",
            producer_name=f"conv{i}",
            consumers=(),
            axis=1,
            channels=channels,
            bucketed=True,
            is_input=False,
            quantizer=QuantizerFacts(scale=scale),
        )
        for i, channels in enumerate((2, 3))
    )
    record = CaseRecord(
        quantmedic_version="0",
        model=ModelFacts(),
        tensors=tensors,
        operators=(),
        outputs=(),
        input_tensor=None,
        image_input=False,
        metric=metric,
        metric_higher_is_better=True,
        unmatched=(),
        notices=(f"notice {seed}", "same notice"),
        run={"float_sha256": sha, "quantized_sha256": "b"},
        datasets={role: DatasetRecord(origin=f"{seed}.npz", labelled=seed > 1, seen=4) for role in roles},
    )
    return Case(record, {role: filled(seed) for role in roles})


def test_cases_merge_by_role() -> None:
    merged = shard(1, "representative", "validation").merge(shard(2, "validation"))
    same(merged.statistics["representative"], filled(1))
    same(merged.statistics["validation"], filled(1).merge(filled(2)))
    assert merged.record.datasets["representative"].origin == "1.npz"
    both_ = merged.record.datasets["validation"]
    assert (both_.origin, both_.seen, both_.labelled, both_.complete) == ("1.npz + 2.npz", 8, False, True)
    assert merged.record.notices == ("notice 1", "same notice", "notice 2")


def test_cases_of_other_models_or_settings_are_refused() -> None:
    case = shard(1, "validation")
    with pytest.raises(CaseError, match="different models"):
        case.merge(shard(2, "validation", sha="c"))
    with pytest.raises(CaseError, match="different settings"):
        case.merge(shard(2, "validation", metric="mae"))
    with pytest.raises(CaseError, match="different settings"):
        case.merge(shard(2, "validation", tensor="u"))
    shard(1, "validation", scale=float("nan")).merge(shard(2, "validation", scale=float("nan")))
