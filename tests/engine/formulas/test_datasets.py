"""Facts of the data sets: grids of 8-bit images, how two sets relate, samples, classes, features, metric."""

import zlib
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.statistics import numpy_loops as reference
from quantmedic.engine.case.facts import (
    ClippingFacts,
    DatasetFacts,
    DistributionFacts,
    ModelFacts,
    QuantizerFacts,
    RelationFacts,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord, TensorRecord
from quantmedic.engine.case.statistics import BUCKETS, FEATURES, SAMPLE_DTYPE, SetStatistics, union_lattice
from quantmedic.engine.formulas.datasets import dataset_facts
from quantmedic.engine.formulas.input_relation import _order_facts
from quantmedic.engine.formulas.inputs import feature_covariance, trace_of
from quantmedic.engine.formulas.task_metric import metric_facts

few = examples(20)
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
PREPROCESSING = {
    "raw": lambda x: x,
    "unit": lambda x: x / np.float32(255),
    "imagenet": lambda x: (x / np.float32(255) - MEAN) / STD,
    "centred": lambda x: x / np.float32(127.5) - np.float32(1),
    "caffe": lambda x: x - 255 * MEAN,
}


def pixels(seed: int, n: int = 24, low: int = 0, high: int = 255) -> Any:
    """8-bit images of correlated channels, with brightness and contrast that vary."""
    rng = np.random.default_rng(seed)
    middle, contrast = rng.uniform(80, 170, (n, 1, 1, 1)), rng.uniform(20, 70, (n, 1, 1, 1))
    shade = (
        rng.normal(size=(n, 1, 16, 16))
        + 0.3 * rng.normal(size=(n, 3, 16, 16))
        + np.array([0.3, 0, -0.3]).reshape(3, 1, 1)
    )
    values = np.clip(np.rint(middle + contrast * shade), low, high)
    values[0, :, 0, 0], values[0, :, 0, 1] = low, high
    return values.astype(np.float32)


def images(seed: int, preprocessing: str, **options: Any) -> Any:
    return PREPROCESSING[preprocessing](pixels(seed, **options)).astype(np.float32)


def measure(x: Any, *, lattice: bool = True) -> SetStatistics:
    """Statistics of a set of inputs ``[samples, channels, …]`` as the input tensor of a network."""
    n, channels = x.shape[:2]
    statistics = SetStatistics.empty([channels], lattices=channels if lattice else 0)
    samples = np.zeros(n, SAMPLE_DTYPE)
    flat = x.reshape(n, -1).astype(np.float64)
    samples["hash"] = [zlib.crc32(row.tobytes()) for row in x]
    samples["mean"], samples["deviation"] = flat.mean(axis=1), flat.std(axis=1)
    samples["saturated"] = (flat == flat.max(axis=1, keepdims=True)).mean(axis=1)
    samples["class_float"] = samples["class_quantized"] = samples["label"] = -1
    samples["metric_float"] = samples["metric_quantized"] = np.nan
    statistics.samples = samples
    rows = np.ascontiguousarray(x.reshape(n, channels, -1))
    reference.observe_values(rows, statistics.tensor(0), (samples["hash"] % BUCKETS).astype(np.int64))
    statistics.tensor_samples[0] = n
    for c in range(len(statistics.lattice)):
        statistics.lattice[c] = union_lattice(statistics.lattice[c], np.unique(x[:, c]))
    return statistics


def case_of(
    representative: SetStatistics | None = None,
    validation: SetStatistics | None = None,
    *,
    image: bool = True,
    metric: str | None = None,
    higher: bool = True,
) -> Case:
    given_ = {"representative": representative, "validation": validation}
    statistics = {role: s for role, s in given_.items() if s is not None}
    channels = len(next(iter(statistics.values())).tensor(0).mean)
    tensor = TensorRecord(
        name="input",
        float_name="input",
        producer="Input",
        producer_name=None,
        consumers=("Conv",),
        axis=1,
        channels=channels,
        bucketed=True,
        is_input=True,
        quantizer=QuantizerFacts(),
    )
    record = CaseRecord(
        quantmedic_version="0",
        model=ModelFacts(),
        tensors=(tensor,),
        operators=(),
        outputs=(),
        input_tensor=0,
        image_input=image,
        metric=metric,
        metric_higher_is_better=higher,
        unmatched=(),
        notices=(),
        run={},
        datasets={
            role: DatasetRecord(origin="x.npz", labelled=False, seen=len(s.samples)) for role, s in statistics.items()
        },
    )
    return Case(record, statistics)


def facts(case: Case, role: str = "representative", tensors: tuple[TensorFacts, ...] = ()) -> DatasetFacts:
    return dataset_facts(case, role, tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "in_part"), [(None, False), (9, True), (24, False)])
def test_a_set_may_hold_more_than_was_read(limit: int | None, in_part: bool) -> None:
    """With ``--samples 9``, nine were read, and nobody knows of how many."""
    case = case_of(measure(images(0, "raw", n=9)))
    case.record.run["samples"] = limit
    assert facts(case).read_in_part is in_part


def relation(representative: Any, validation: Any, **options: Any) -> RelationFacts:
    return facts(case_of(measure(representative, **options), measure(validation, **options))).relation


@pytest.mark.parametrize("m2", [0.0, -1e9])
def test_a_deviation_that_contradicts_the_histogram_tells_nothing(m2):
    """As a damaged case says."""
    mine, other = measure(images(1, "unit"), lattice=False), measure(images(2, "unit"), lattice=False)
    for statistics in (mine, other):
        statistics.columns["m2"][:] = m2
        statistics.columns["mean"][:] = 0.0
    found = facts(case_of(mine, other))
    assert found.relation.slope is None and found.normal_distance is None


# Grids of 8-bit images


@pytest.mark.parametrize("preprocessing", PREPROCESSING)
def test_grid_of_eight_bit_images(preprocessing: str) -> None:
    found = facts(case_of(measure(images(1, preprocessing))))
    ends = PREPROCESSING[preprocessing](
        np.array([0, 255], np.float32).reshape(2, 1, 1, 1) * np.ones((1, 3, 1, 1), np.float32)
    )
    assert found.lattice_step == pytest.approx(((ends[1] - ends[0]) / 255).ravel().tolist(), rel=1e-4)
    assert found.lattice_low == pytest.approx(ends[0].ravel().tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", ["normal", "uniform", "few values", "fine grid", "dithered"])
def test_what_is_no_grid(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = {
        "normal": rng.normal(size=(4, 1, 8, 8)),
        "uniform": rng.random((4, 1, 8, 8)),
        "few values": rng.integers(0, 2, (4, 1, 8, 8)),
        "fine grid": rng.integers(0, 1024, (4, 1, 32, 32)),
        "dithered": rng.integers(0, 20, (4, 1, 8, 8)) + rng.uniform(-0.2, 0.2, (4, 1, 8, 8)),
    }[kind]
    found = facts(case_of(measure(x.astype(np.float32))))
    assert (found.lattice_step, found.lattice_low) == (None, None)


def test_one_channel_off_the_grid_spoils_it() -> None:
    x = images(1, "unit")
    x[:, 2] += np.random.default_rng(0).normal(size=x[:, 2].shape)
    assert facts(case_of(measure(x))).lattice_step is None


# How the representative inputs relate to those of validation, on a grid


@pytest.mark.parametrize("preprocessing", PREPROCESSING)
def test_same_preprocessing(preprocessing: str) -> None:
    found = relation(images(1, preprocessing), images(2, preprocessing))
    assert (found.method, found.kind, found.certainty) == ("lattice", "same", 1)
    assert found.scale_mismatch == pytest.approx(1, abs=1e-3)
    assert found.offset_over_std == 0
    assert found.feature_distance is None


@pytest.mark.parametrize(
    "representative, validation, kind, slope",
    [
        ("unit", "imagenet", "partly-normalized", 0.224),
        ("unit", "centred", "partly-normalized", 0.5),
        ("raw", "imagenet", "not-normalized", 255 * 0.229),
        ("raw", "unit", "not-normalized", 255),
        ("raw", "centred", "not-normalized", 127.5),
        ("imagenet", "centred", "scale", 127.5 / 255 / 0.224),
        ("caffe", "raw", "offset", 1),
        ("raw", "caffe", "offset", 1),
    ],
)
def test_another_preprocessing(representative: str, validation: str, kind: str, slope: float) -> None:
    found = relation(images(1, representative), images(2, validation))
    assert (found.method, found.kind) == ("lattice", kind)
    assert found.slope == pytest.approx(slope, rel=1e-2)
    assert found.slope_low == found.slope == found.slope_high
    assert found.scale_mismatch == pytest.approx(max(slope, 1 / slope), rel=1e-2)


@pytest.mark.parametrize("preprocessing", ["imagenet", "centred", "unit"])
@pytest.mark.parametrize("divided_again", [True, False])
def test_normalized_twice(preprocessing: str, divided_again: bool) -> None:
    once = images(2, preprocessing)
    again = images(1, preprocessing) if divided_again else 255 * images(1, preprocessing)
    twice = PREPROCESSING[preprocessing](again).astype(np.float32)
    expected = "same" if preprocessing == "unit" and not divided_again else "normalized-twice"
    assert relation(twice, once).kind == expected


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.25])
def test_pure_scale(factor: float) -> None:
    found = relation(np.float32(factor) * images(1, "imagenet"), images(2, "imagenet"))
    assert (found.method, found.kind) == ("lattice", "scale")
    assert found.slope == pytest.approx(factor, rel=1e-3)


def test_scaled_inputs_of_a_raw_network() -> None:
    assert relation(images(1, "unit"), images(2, "raw")).kind == "scale"


def test_forgotten_mean() -> None:
    without = (pixels(1) / np.float32(255) / STD).astype(np.float32)
    found = relation(without, images(2, "imagenet"))
    assert found.kind == "offset"
    assert found.scale_mismatch == pytest.approx(1, abs=1e-3)
    assert found.offset_over_std is not None and found.offset_over_std > 1


def test_offset_told_is_the_largest() -> None:
    shift = np.array([0.4, 1.0, 0.4], np.float32).reshape(3, 1, 1)
    found = relation(images(1, "imagenet") + shift, images(2, "imagenet"))
    assert found.kind == "offset"
    assert found.offset_over_std == pytest.approx(1.0 / images(2, "imagenet").std(), rel=1e-2)
    assert found.offset == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("preprocessing", ["raw", "unit", "imagenet"])
@pytest.mark.parametrize("low, high", [(10, 255), (0, 240), (15, 255)])
def test_set_without_the_darkest_pixels_is_the_same(preprocessing: str, low: int, high: int) -> None:
    whole, part = images(1, preprocessing), images(2, preprocessing, low=low, high=high)
    assert relation(whole, part).kind == "same"
    assert relation(part, whole).kind == "same"


def test_set_of_bright_images_is_not_shifted() -> None:
    assert relation(images(1, "unit", low=45), images(2, "unit")).kind == "same"


@pytest.mark.parametrize("representative, kind", [("unit", "partly-normalized"), ("raw", "not-normalized")])
def test_preprocessing_is_recognised_without_the_darkest_pixels(representative: str, kind: str) -> None:
    assert relation(images(1, representative, low=10), images(2, "imagenet")).kind == kind
    assert relation(images(1, representative), images(2, "imagenet", low=10)).kind == kind


@pytest.mark.parametrize(
    "representative, validation, reading",
    [
        ("unit", "imagenet", ("x / 255", "(x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]")),
        ("raw", "centred", ("x", "x / 127.5 - 1")),
        ("unit", "unit", ("x / 255", "x / 255")),
    ],
)
def test_preprocessing_read_off_the_grids(representative: str, validation: str, reading: tuple[str, str]) -> None:
    found = relation(images(1, representative), images(2, validation)).reading
    assert found == "representative = {}, validation = {}".format(*reading)


def test_no_reading_of_a_partial_grid() -> None:
    assert relation(images(1, "unit", low=40), images(2, "imagenet")).reading is None
    assert relation(images(1, "unit"), images(2, "imagenet", high=200)).reading is None
    assert relation(smooth(1), smooth(2)).reading is None


def test_reading_of_a_nearly_full_grid_is_not_wrong() -> None:
    found = relation(images(1, "imagenet", low=4), images(2, "imagenet")).reading
    assert found is None or found.count("0.485, 0.456, 0.406") == 2


# Without a grid


def smooth(seed: int, n: int = 40) -> Any:
    """Inputs that lie on no grid: spectrograms, sensor readings."""
    rng = np.random.default_rng(seed)
    return (rng.uniform(0.7, 1.3, (n, 1, 1)) * rng.gamma(2.0, 1.0, (n, 2, 50)) - 1).astype(np.float32)


def test_smooth_inputs_are_the_same() -> None:
    found = relation(smooth(1), smooth(2))
    assert (found.method, found.kind) == ("quantiles", "same")
    assert found.slope == pytest.approx(1, abs=0.1)
    assert found.certainty is not None and found.certainty > 0.99
    assert found.slope_low < 1 < found.slope_high
    assert found.flipped_distance_ratio is None, "two channels are no image"


@pytest.mark.parametrize("factor", [3.0, 1 / 3, 255.0])
def test_smooth_inputs_scaled(factor: float) -> None:
    found = relation(np.float32(factor) * smooth(1), smooth(2))
    assert (found.method, found.kind) == ("quantiles", "scale")
    assert found.slope == pytest.approx(factor, rel=0.1)
    assert found.scale_mismatch == pytest.approx(max(factor, 1 / factor), rel=0.1)
    assert found.slope_low < found.slope < found.slope_high
    assert not found.slope_low <= 1 <= found.slope_high


def test_smooth_inputs_shifted() -> None:
    found = relation(smooth(1) + np.float32(4), smooth(2))
    assert found.kind == "offset"
    assert found.offset == pytest.approx(4, abs=0.3)
    assert found.offset_over_std == pytest.approx(4 / smooth(2).std(), abs=0.3)


@given(st.floats(1.7, 50), st.booleans(), st.integers(0, 50))
@few
def test_slope_of_any_factor(factor: float, inverse: bool, seed: int) -> None:
    factor = 1 / factor if inverse else factor
    found = relation(np.float32(factor) * smooth(seed), smooth(seed + 1000))
    assert found.kind == "scale"
    assert found.slope == pytest.approx(factor, rel=0.15)


def test_scaling_is_not_claimed_of_a_few_uncertain_samples() -> None:
    """Sets whose own samples differ that much in scale prove nothing."""
    rng = np.random.default_rng(3)
    loud = np.exp(rng.normal(0, 1.5, (6, 1, 1)))
    quiet = np.exp(rng.normal(0, 1.5, (6, 1, 1)))
    found = relation((loud * smooth(1, 6)).astype(np.float32), (quiet * smooth(2, 6)).astype(np.float32))
    assert found.slope_low <= 1 <= found.slope_high
    assert found.kind != "scale"


def test_other_shape_of_distribution_is_no_relation() -> None:
    two_piles = np.sign(smooth(1)) * 5 + 0.01 * smooth(3)
    found = relation(two_piles.astype(np.float32), smooth(2))
    assert found.kind == "unexplained"


def test_shifted_and_misshapen_inputs_are_not_the_same() -> None:
    x = smooth(2)
    piles = np.where(smooth(1) > 0.5, 1.0, -1.0) * x.std() + 20
    found = relation((piles + 0.01 * smooth(3)).astype(np.float32), x)
    assert found.certainty < 0.9
    assert found.kind == "unexplained"


def resized(seed: int) -> Any:
    """Pixels of 0 … 255 between which an interpolation has left no grid."""
    x = pixels(seed).astype(np.float64)
    x[:, :, 1:-1, 1:-1] = 0.7 * x[:, :, 1:-1, 1:-1] + 0.3 * x[:, :, 1:-1, 2:]
    return (x + np.random.default_rng(seed).uniform(0, 0.3, x.shape) * (x < 250)).astype(np.float32)


@pytest.mark.parametrize(
    "representative, kind",
    [
        (lambda x: x, "not-normalized"),
        (lambda x: x / 255, "partly-normalized"),
        (lambda x: ((x / 255 - 0.4) / 0.2 - 0.4) / 0.2, "normalized-twice"),
        (lambda x: (x / 255 - 0.4) / 0.05, "scale"),
        (lambda x: (x / 255 - 0.4) / 0.2, "same"),
    ],
)
def test_preprocessing_is_named_without_a_grid(representative: Any, kind: str) -> None:
    found = relation(representative(resized(1)).astype(np.float32), ((resized(2) / 255 - 0.4) / 0.2).astype(np.float32))
    assert (found.method, found.kind) == ("quantiles", kind)
    assert found.certainty is not None and found.certainty > 0.98


def test_grid_against_no_grid_falls_back_to_quantiles() -> None:
    found = relation(
        images(1, "unit"),
        images(2, "unit") + np.float32(1e-3) * np.random.default_rng(0).random((24, 3, 16, 16)).astype(np.float32),
    )
    assert (found.method, found.kind) == ("quantiles", "same")


def test_one_set_alone_has_no_relation() -> None:
    assert facts(case_of(measure(images(1, "unit")))).relation == RelationFacts()
    assert facts(case_of(measure(images(1, "unit"))), "validation") == DatasetFacts(role="validation")
    both = case_of(measure(images(1, "unit")), measure(images(2, "unit")))
    assert facts(both, "validation").relation == RelationFacts()


def test_constant_inputs_have_no_relation() -> None:
    flat = np.ones((4, 1, 3, 3), np.float32)
    assert relation(flat, flat).kind is None
    assert relation(flat, smooth(1)[:, :1]).kind is None


def test_reversed_channels_show() -> None:
    case = case_of(measure(images(1, "imagenet")[:, ::-1]), measure(images(2, "imagenet")))
    assert facts(case).relation.flipped_distance_ratio > 2
    case = case_of(measure(images(1, "imagenet")), measure(images(2, "imagenet")))
    assert facts(case).relation.flipped_distance_ratio < 1
    case = case_of(measure(images(1, "imagenet")), measure(images(2, "imagenet")), image=False)
    assert facts(case).relation.flipped_distance_ratio is None


# Samples


def test_moments_and_extremes_per_channel() -> None:
    x = smooth(1)
    found = facts(case_of(measure(x)))
    assert found.samples == len(x)
    assert found.mean == pytest.approx(x.mean(axis=(0, 2)).tolist(), rel=1e-4)
    assert found.std == pytest.approx(x.std(axis=(0, 2)).tolist(), rel=1e-4)
    assert (found.min, found.max) == (x.min(), x.max())
    assert found.nonfinite_samples == 0
    assert found.labelled is False


@pytest.mark.parametrize("blank, expected", [(0, 0.0), (5, 0.25), (20, 1.0)])
def test_blank_samples(blank: int, expected: float) -> None:
    x = smooth(1, 20)
    x[:blank] = np.float32(0.7)
    assert facts(case_of(measure(x))).blank_share == expected


def test_samples_that_are_not_blank_are_held_against_the_validation_samples() -> None:
    x, y = smooth(1, 20), smooth(1, 20)
    x[:5] = np.float32(0.7)
    x[5:] *= np.float32(0.25)
    assert facts(case_of(measure(x), measure(y))).kept_deviation_ratio == pytest.approx(0.25, rel=0.1)
    assert facts(case_of(measure(x))).kept_deviation_ratio is None
    x[:] = np.float32(0.7)
    assert facts(case_of(measure(x), measure(y))).kept_deviation_ratio is None, "all are blank"


def test_blank_samples_of_different_shades() -> None:
    x = np.broadcast_to(np.arange(10, dtype=np.float32).reshape(10, 1, 1), (10, 1, 9)).copy()
    assert facts(case_of(measure(x))).blank_share == 1.0


def test_nearly_flat_samples_are_not_blank() -> None:
    x = smooth(1, 20)
    x[:5] *= np.float32(0.01)
    assert facts(case_of(measure(x))).blank_share == 0.0


@pytest.mark.parametrize("copies, expected", [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_duplicates(copies: int, expected: float) -> None:
    x = np.concatenate([smooth(1, 10)] * copies)
    assert facts(case_of(measure(x))).unique_share == expected


def test_saturated_share() -> None:
    x = np.linspace(-1, 0, 100, dtype=np.float32).reshape(1, 1, 100).repeat(4, axis=0)
    assert facts(case_of(measure(x))).saturated_share == pytest.approx(0.01)
    x[:2, :, 50:] = 0.0
    assert facts(case_of(measure(x))).saturated_share == pytest.approx((0.5 + 0.01) / 2)


def test_input_spread() -> None:
    case = case_of(measure(np.float32(0.5) * smooth(1)), measure(smooth(1)))
    assert facts(case).input_spread == pytest.approx(0.5)
    assert facts(case, "validation").input_spread == pytest.approx(1)


@pytest.mark.source("horizon-data-classes")
@pytest.mark.parametrize(
    "mine, other, classes, coverage",
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], 4, 1.0),
        ([1, 1, 1, 1], [0, 1, 2, 3], 1, 0.25),
        ([0, 1, 8, 9], [0, 1, 2, 3], 4, 0.5),
        ([7, 7, 8, 9], [0, 1, 2, 3], 3, 0.0),
        ([0, -1, -1, -1], [0, -1, 2, 2], 1, 0.5),
        ([-1] * 4, [0, 1, 2, 3], None, None),
        ([0, 1, 2, 3], [-1] * 4, 4, None),
    ],
)
def test_class_coverage(mine: list[int], other: list[int], classes: int | None, coverage: float | None) -> None:
    a, b = measure(smooth(1, 4)), measure(smooth(2, 4))
    a.samples["class_float"], b.samples["class_float"] = mine, other
    found = facts(case_of(a, b))
    assert (found.classes, found.class_coverage) == (classes, coverage)


# Features


def with_features(statistics: SetStatistics, vectors: Any) -> SetStatistics:
    padded = np.pad(vectors, ((0, 0), (0, FEATURES - vectors.shape[1])))
    statistics.feature_count += len(padded)
    statistics.feature_sum += padded.sum(axis=0)
    statistics.feature_outer += padded.T @ padded
    return statistics


@pytest.mark.parametrize("dimensions", [1, 5, 30])
def test_effective_rank_counts_directions(dimensions: int) -> None:
    vectors = np.random.default_rng(0).normal(3.0, 2.0, (20_000, dimensions))
    found = facts(case_of(with_features(measure(smooth(1)), vectors)))
    assert found.effective_rank == pytest.approx(dimensions, rel=0.01)


def test_effective_rank_falls_with_uneven_directions() -> None:
    vectors = np.random.default_rng(0).normal(size=(20_000, 3)) * np.array([1.0, 0.1, 0.1])
    share = np.array([1, 0.01, 0.01]) / 1.02
    expected = np.exp(-(share * np.log(share)).sum())
    found = facts(case_of(with_features(measure(smooth(1)), vectors)))
    assert found.effective_rank == pytest.approx(expected, rel=0.02)


def test_features_of_two_sets() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = rng.normal(size=(5000, 2)), 2 * rng.normal(size=(5000, 8)) + 1
    case = case_of(with_features(measure(smooth(1)), narrow), with_features(measure(smooth(2)), wide))
    found = facts(case)
    assert found.effective_rank_ratio == pytest.approx(2 / 8, rel=0.05)
    assert found.feature_spread == pytest.approx(2 / (4 * 8), rel=0.05)
    assert found.relation.feature_distance == pytest.approx(np.sqrt(8) / np.sqrt(4 * 8), rel=0.05)
    other = facts(case, "validation")
    assert other.effective_rank_ratio == pytest.approx(1)
    assert other.feature_spread == pytest.approx(1)


def test_too_few_features_for_a_covariance() -> None:
    found = facts(case_of(with_features(measure(smooth(1)), np.ones((1, 3)))))
    assert (found.effective_rank, found.feature_spread) == (None, None)
    assert facts(case_of(with_features(measure(smooth(1)), np.ones((5, 3))))).effective_rank is None, "all alike"


# Facts over the activations


def activation(producer: str = "Conv", **roles: tuple[float, int, float]) -> TensorFacts:
    """An activation with (clipped share, values, growth of its range) per role."""
    return TensorFacts(
        producer=producer,
        **{
            role: TensorDataFacts(
                clipping=ClippingFacts(share=share), values=DistributionFacts(count=count, range_growth=growth)
            )
            for role, (share, count, growth) in roles.items()
        },
    )


def test_clipped_share_is_weighted_by_values() -> None:
    tensors = (
        activation(representative=(0.0, 100, 0.1), validation=(0.5, 100, 0.1)),
        activation(representative=(0.001, 300, 0.3), validation=(0.01, 300, 0.3)),
        TensorFacts(producer="Relu"),
    )
    case = case_of(measure(smooth(1)), measure(smooth(2)))
    found, other = facts(case, "representative", tensors), facts(case, "validation", tensors)
    assert found.clipped_share == pytest.approx(0.3 / 400)
    assert other.clipped_share == pytest.approx(53 / 400)
    assert found.clipped_share_ratio == other.clipped_share_ratio == pytest.approx(53 / 0.3)


def test_clipping_ratio_without_any_on_the_representative_set() -> None:
    tensors = (activation(representative=(0.0, 100, 0.1), validation=(0.01, 100, 0.1)),)
    case = case_of(measure(smooth(1)), measure(smooth(2)))
    assert facts(case, "validation", tensors).clipped_share_ratio == pytest.approx(0.01 / 1e-6)
    alone = case_of(None, measure(smooth(2)))
    assert facts(alone, "validation", tensors).clipped_share_ratio is None


def test_growth_is_the_median_over_activations_but_the_input() -> None:
    growths = (0.1, 0.2, 0.9)
    tensors = tuple(activation(representative=(0.0, 1, growth)) for growth in growths)
    tensors += (activation("Input", representative=(0.0, 1, 5.0)), TensorFacts(producer="Relu"))
    found = facts(case_of(measure(smooth(1))), "representative", tensors)
    assert found.range_growth == 0.2
    assert found.halves_disagreement is None


# The task metric


def with_metric(floats: Any, quantized: Any, seed: int = 1) -> SetStatistics:
    statistics = measure(smooth(seed, len(floats)))
    statistics.samples["metric_float"], statistics.samples["metric_quantized"] = floats, quantized
    return statistics


def test_metric_of_the_validation_set_first() -> None:
    rep, val = with_metric([1, 1, 1, 1], [0, 0, 0, 0]), with_metric([1, 1, 1, 0, np.nan], [1, 0, 1, 0, np.nan])
    found = metric_facts(case_of(rep, val, metric="top1"))
    assert (found.dataset, found.samples, found.float_value, found.quantized_value) == ("validation", 4, 0.75, 0.5)
    assert (found.drop, found.relative_drop) == (pytest.approx(0.25), pytest.approx(1 / 3))
    assert found.drop_low < 0.25 < found.drop_high
    unlabelled = with_metric([np.nan] * 4, [np.nan] * 4)
    assert metric_facts(case_of(rep, unlabelled, metric="top1")).dataset == "representative"
    nothing = metric_facts(case_of(unlabelled, metric="top1"))
    assert (nothing.name, nothing.samples, nothing.drop) == ("top1", None, None)
    assert metric_facts(case_of(rep, val)).name is None


def test_lower_is_better_turns_the_sign() -> None:
    rng = np.random.default_rng(0)
    before = rng.exponential(1.0, 60)
    found = metric_facts(case_of(None, with_metric(before, 2 * before), metric="mae", higher=False))
    assert found.drop == pytest.approx(before.mean())
    assert found.relative_drop == pytest.approx(1)
    assert 0 < found.drop_low < found.drop < found.drop_high


def test_root_mean_square() -> None:
    rng = np.random.default_rng(0)
    squares = rng.exponential(1.0, 60)
    found = metric_facts(case_of(None, with_metric(squares, 4 * squares), metric="rmse", higher=False))
    assert found.float_value == pytest.approx(np.sqrt(squares.mean()))
    assert found.drop == pytest.approx(np.sqrt(squares.mean()))
    assert found.relative_drop == pytest.approx(1)


# What a set shows of the other


@pytest.mark.source("horizon-data-exposure")
def test_saturation_is_compared_without_blanks() -> None:
    x, burnt = smooth(1, 20), smooth(2, 20)
    burnt = np.minimum(burnt, np.quantile(burnt, 0.7)).astype(np.float32)
    blank = burnt.copy()
    blank[:5] = 1.0
    for representative in (burnt, blank):
        found = facts(case_of(measure(representative), measure(x)))
        assert found.saturation_excess == pytest.approx(0.3, abs=0.02)
    assert facts(case_of(measure(x), measure(burnt))).saturation_excess == pytest.approx(-0.3, abs=0.02)
    assert facts(case_of(measure(burnt))).saturation_excess is None


def of_classes(classes: Any, seed: int = 0) -> SetStatistics:
    statistics = measure(smooth(seed, len(classes)))
    statistics.samples["class_float"] = classes
    return statistics


@pytest.mark.thorough
@given(st.integers(1, 300), st.integers(2, 50), st.integers(0, 10))
@few
def test_random_sets_cover_the_classes_that_are_expected_of_them(n: int, classes: int, seed: int) -> None:
    """On average over draws, whatever the size of the set and the number of classes."""
    rng = np.random.default_rng(seed)
    validation = of_classes(np.arange(4 * classes) % classes)
    draws = [of_classes(rng.integers(0, classes, n)) for _ in range(12)]
    ratios = [facts(case_of(drawn, validation)).class_coverage_ratio or 0.0 for drawn in draws]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.2)


def test_sets_of_one_class_and_copies_are_told_apart() -> None:
    validation = of_classes(np.arange(40) % 10)
    assert facts(case_of(of_classes(np.full(50, 3)), validation)).class_coverage_ratio == pytest.approx(0.1, abs=0.01)
    copies = of_classes(np.full(50, 3))
    copies.samples["hash"] = 1
    assert facts(case_of(copies, validation)).class_coverage_ratio == pytest.approx(1.0)
    assert facts(case_of(of_classes(np.full(5, -1)), validation)).class_coverage_ratio is None
    assert facts(case_of(validation)).class_coverage_ratio is None


def ranged(low: float, high: float, value: float, share: float, producer: str = "Conv") -> TensorFacts:
    data = TensorDataFacts(
        values=DistributionFacts(min=-0.1, max=value, count=100), clipping=ClippingFacts(share=share)
    )
    return TensorFacts(producer=producer, quantizer=QuantizerFacts(low=low, high=high), representative=data)


def test_ranges_against_what_the_samples_show() -> None:
    tensors = (
        ranged(-1.0, 1.0, 1.0, 0.0),
        ranged(-1.0, 3.0, 1.0, 0.0),
        ranged(0.0, 0.5, 1.0, 0.2),
        ranged(0.0, 1.0, 0.001, 0.0, "Softmax"),
    )
    found = facts(case_of(measure(smooth(1))), tensors=tensors)
    assert found.range_reach == pytest.approx(1.0)
    assert found.exact_range_share == pytest.approx(1 / 3)
    assert (found.clipped_share_max, found.clipped_share_median) == (0.2, 0.0)
    nothing = facts(case_of(measure(smooth(1))))
    assert (nothing.range_reach, nothing.exact_range_share, nothing.clipped_share_max) == (None, None, None)


def test_ranges_are_not_held_against_samples_that_a_calibrator_saw_more_of() -> None:
    """Where tensors are measured on some samples only, their extremes say nothing of how a range was chosen."""
    statistics = measure(smooth(1))
    statistics.tensor_samples[0] -= 1
    found = facts(case_of(statistics), tensors=(ranged(-1.0, 3.0, 1.0, 0.2),))
    known = (found.range_reach, found.exact_range_share, found.ranges_both_ways, found.range_method)
    assert known == (None, None, None, None)
    assert found.clipped_share_max == 0.2


@pytest.mark.parametrize(
    "low, high, symmetric, factor, said",
    [
        (-1.0, 2.0, False, 1.0, "1 times that"),
        (-0.1, 0.2, False, 0.1, "1 / 10 that"),
        (-255.0, 510.0, False, 255.0, "255 times that"),
        (-3.3, 6.6, False, 3.3, "3.3 times that"),
        (0.0, 1.0, False, 1 / 3, "0.333 times that of these samples, -1 to 2, and shifted by 0.333"),
        # On a symmetric grid the larger magnitude of both counts.
        (-2.0, 2.0, True, 1.0, "1 times that"),
        (-5.1, 5.1, True, 2.55, "2.55 times that"),
    ],
)
def test_range_of_an_input_against_its_values(
    low: float, high: float, symmetric: bool, factor: float, said: str
) -> None:
    data = TensorDataFacts(values=DistributionFacts(min=-1.0, max=2.0), clipping=ClippingFacts(share=0.25))
    quantizer = QuantizerFacts(low=low, high=high, scale=(high - low) / 255, symmetric=symmetric)
    tensor = TensorFacts(producer="Input", float_name="image", quantizer=quantizer, representative=data)
    found = facts(case_of(measure(smooth(1))), tensors=(tensor,))
    assert found.input_range_ratio == pytest.approx(factor)
    assert said in (found.input_range_reading or "")
    assert ("a single calibration sample" in (found.input_range_reading or "")) is (factor > 1.5)
    assert (found.input_clipped_share, found.input_clipped_ratio) == (0.25, 1.0)


@pytest.mark.parametrize(
    "low, high, symmetric, values, others, share",
    [
        (-1.0, 1.0, False, (0.0, 1.0), [], 0.5),
        (-2.1, 2.6, False, (0.0, 1.0), [], 2.1 / 4.7),
        (-1.0, 1.0, False, (-0.9, 1.0), [], 0.0),
        (0.0, 40.0, False, (0.0, 1.0), [], 0.0),
        # A symmetric grid says nothing, unless grids begin at zero where values do.
        (-1.0, 1.0, True, (0.0, 1.0), [], None),
        (-1.0, 1.0, True, (0.0, 1.0), [0.0], None),
        (-1.0, 1.0, True, (0.0, 1.0), [-6.0, 0.0], None),
        (-1.0, 1.0, True, (0.0, 1.0), [0.0, 0.0], 0.5),
        (-1.0, 1.0, True, (-0.9, 1.0), [0.0, 0.0], 0.0),
    ],
)
def test_share_of_an_input_range_on_the_side_that_no_sample_reaches(
    low: float, high: float, symmetric: bool, values: tuple[float, float], others: list[float], share: float | None
) -> None:
    data = TensorDataFacts(values=DistributionFacts(min=values[0], max=values[1]))
    quantizer = QuantizerFacts(low=low, high=high, scale=(high - low) / 255, symmetric=symmetric)
    image = TensorFacts(producer="Input", float_name="image", quantizer=quantizer, representative=data)
    reached = TensorDataFacts(values=DistributionFacts(min=0.0, max=3.0))
    inner = [
        TensorFacts(producer="Conv", quantizer=QuantizerFacts(low=own, high=6.0, scale=0.1), representative=reached)
        for own in others
    ]
    found = facts(case_of(measure(smooth(1))), tensors=(image, *inner))
    assert found.input_unused_side == (None if share is None else pytest.approx(share))


def test_of_a_reduced_range_the_half_in_use_counts() -> None:
    """Codes 0 … 127 of 0 … 255, as torch uses on x86: the upper half of the range is never reached."""
    data = TensorDataFacts(values=DistributionFacts(min=-1.0, max=1.0), clipping=ClippingFacts(share=0.9))
    step = 0.2 / 127
    quantizer = QuantizerFacts(low=-0.1, high=-0.1 + 255 * step, scale=step, bits=8, symmetric=False)
    tensor = TensorFacts(producer="Input", name="x", quantizer=quantizer, representative=data)
    found = facts(case_of(measure(smooth(1))), tensors=(tensor,))
    assert found.input_range_ratio == pytest.approx(0.1)
    assert (found.input_range_reading or "").endswith("1 / 10 that of these samples, -1 to 1")


def test_of_several_inputs_the_one_that_fits_least_counts() -> None:
    def given(high: float, share: float) -> TensorFacts:
        data = TensorDataFacts(values=DistributionFacts(min=0.0, max=1.0), clipping=ClippingFacts(share=share))
        quantizer = QuantizerFacts(low=0.0, high=high, scale=high / 255)
        return TensorFacts(producer="Input", name="image", quantizer=quantizer, representative=data)

    found = facts(case_of(measure(smooth(1))), tensors=(given(1.0, 0.0), given(20.0, 0.0), given(2.0, 0.0)))
    assert found.input_range_ratio == pytest.approx(20.0)
    inner = TensorFacts(producer="Conv", quantizer=QuantizerFacts(low=0.0, high=9.0))
    assert facts(case_of(measure(smooth(1))), tensors=(inner,)).input_range_ratio is None


def test_range_is_compared_on_the_side_of_the_largest_magnitude() -> None:
    data = TensorDataFacts(values=DistributionFacts(min=-2.0, max=1.0), clipping=ClippingFacts(share=0.0))
    tensor = TensorFacts(producer="Conv", quantizer=QuantizerFacts(low=-4.0, high=1.0), representative=data)
    assert facts(case_of(measure(smooth(1))), tensors=(tensor,)).range_reach == pytest.approx(2.0)


def test_channels_that_only_the_other_set_moves() -> None:
    def activation(quiet: int) -> SetStatistics:
        x = smooth(1)
        statistics = SetStatistics.empty([2, 4])
        statistics.samples = measure(x).samples
        values = np.random.default_rng(0).normal(size=(len(x), 4, 6)).astype(np.float32)
        values[:, :quiet] = 0.0
        reference.observe_values(x, statistics.tensor(0), np.zeros(len(x), np.int64))
        reference.observe_values(values, statistics.tensor(1), np.zeros(len(x), np.int64))
        return statistics

    def share(representative: int, validation: int) -> float | None:
        case = case_of(measure(smooth(1)), measure(smooth(2)))
        inner = case.record.tensors[0].model_copy(update={"is_input": False, "channels": 4, "producer": "Conv"})
        record = case.record.model_copy(update={"tensors": (case.record.tensors[0], inner)})
        roles = {"representative": activation(representative), "validation": activation(validation)}
        return facts(Case(record, roles)).unseen_channel_share  # type: ignore[arg-type]

    assert share(0, 0) == 0.0
    assert share(2, 0) == 0.5
    assert share(3, 2) == 0.5
    assert share(0, 3) == 0.0
    assert share(4, 4) is None


# Samples that are alike, that lie elsewhere, and ranges that are not of these samples


def test_resizing_keeps_how_samples_differ_and_blending_does_not() -> None:
    x, y = pixels(1, 64), pixels(2, 64)
    flat = 0.2 * x + 0.8 * x.mean(axis=(1, 2, 3), keepdims=True)
    blends = np.stack([x[np.random.default_rng(i).integers(64, size=16)].mean(axis=0) for i in range(64)])
    spread = [facts(case_of(measure(np.float32(s)), measure(y))).level_spread for s in (x, 0.1 * x + 3, flat, blends)]
    assert spread[0] == pytest.approx(1, abs=0.2) and spread[1] == pytest.approx(spread[0], rel=1e-3)
    assert spread[2] > 1
    # A mean of 16 varies a quarter as much; so does what is left of the noise within each.
    assert spread[3] < 1.2
    same = np.float32(x[:1] + np.random.default_rng(3).normal(size=x.shape))
    assert facts(case_of(measure(same), measure(y))).level_spread < 0.1


def test_excursion_is_one_for_samples_of_the_same_kind() -> None:
    rng = np.random.default_rng(0)

    def of(features: Any) -> SetStatistics:
        statistics = measure(smooth(0, 4))
        padded = np.pad(features, ((0, 0), (0, FEATURES - features.shape[1])))
        statistics.feature_sum, statistics.feature_count = padded.sum(axis=0), len(padded)
        statistics.feature_outer = padded.T @ padded
        return statistics

    validation = rng.normal(size=(4000, 4))
    sets = (rng.normal(size=(4000, 4)), validation[validation[:, 0] > 1] * [1, 0.1, 0.1, 0.1], validation * 0.01 + 1.2)
    same, part, elsewhere = (facts(case_of(of(s), of(validation)), "validation").feature_excursion for s in sets)
    assert same == pytest.approx(1.0, abs=0.1)
    assert part < 0.9 and elsewhere == pytest.approx(1.44, abs=0.1)
    assert facts(case_of(of(validation * 0.01 + 3.0), of(validation))).feature_excursion > 5


@pytest.mark.parametrize(
    ("ranges", "both", "peak"),
    [
        pytest.param([(1.0, 0.0)] * 10, 0.0, 0.0, id="min-max"),
        pytest.param([(0.3, 0.1)] * 6 + [(0.5, 0.05)] * 4, 0.0, 1.0, id="percentile"),
        pytest.param([(1.0, 0.0)] * 8 + [(3.0, 0.0)] * 2, 0.0, 0.0, id="too wide in two places"),
        pytest.param([(1.0, 0.0)] * 5 + [(3.0, 0.0)] * 2 + [(0.2, 0.4)] * 3, 0.2, 400.0, id="of the neighbour"),
        pytest.param([(0.2, 0.3)] * 3 + [(0.5, 0.06)] * 7, 0.0, 5.0, id="of older weights"),
    ],
)
def test_ranges_of_other_data_do_not_fit_alike(ranges: list[tuple[float, float]], both: float, peak: float) -> None:
    found = facts(case_of(measure(smooth(1))), tensors=tuple(ranged(0.0, high, 1.0, share) for high, share in ranges))
    assert found.ranges_both_ways == pytest.approx(both)
    assert found.clipped_share_peak == pytest.approx(peak)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_any_order_of_channels_is_told_by_the_pixels(order: tuple[int, ...]) -> None:
    tint = np.array([1.0, 0.7, 0.4], np.float32).reshape(3, 1, 1)

    def tinted(seed: int) -> Any:
        return np.rint(pixels(seed) * tint)

    wrong = PREPROCESSING["imagenet"](tinted(1)[:, list(order)]).astype(np.float32)
    right = [PREPROCESSING["imagenet"](tinted(seed)).astype(np.float32) for seed in (1, 2)]
    found = relation(wrong, right[1])
    assert found.flipped_pixel_ratio is not None and found.flipped_pixel_ratio > 3
    assert found.kind == "same", "the channels are no shifted ones"
    same = relation(*right)
    assert same.flipped_pixel_ratio is not None and same.flipped_pixel_ratio < 1


def test_fog_is_no_shift() -> None:
    fog = PREPROCESSING["imagenet"](np.rint(pixels(1) * 0.1 + 225)).astype(np.float32)
    found = relation(fog, images(2, "imagenet", high=200))
    assert found.method == "lattice" and found.kind == "same"


def test_even_surfaces_are_not_saturated() -> None:
    """Every sample repeats its largest value, and each has another one."""
    even = np.repeat(np.repeat(pixels(1)[:, :, ::8, ::8], 8, axis=2), 8, axis=3)
    found = facts(case_of(measure(even), measure(pixels(2))))
    assert found.saturated_share is not None and found.saturated_share > 0.05
    assert found.saturation_excess is not None and found.saturation_excess < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_the_best_order_of_channels_is_the_best_of_all(seed: int) -> None:
    """Held against every order; one turned by three is not reached by swaps of two that each fit better."""
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(size=5), rng.uniform(0.5, 2.0, 5)
    turned = [1, 2, 0, 3, 4]
    mine = (mean[turned] + 0.3 * rng.normal(size=5), std[turned])
    found = _order_facts(mine, (mean, std))

    def distance(order: tuple[int, ...]) -> float:
        picked = list(order)
        parts = ((mine[0][picked] - mean) / std) ** 2 + np.log(mine[1][picked] / std) ** 2
        return float(np.sqrt(parts.mean()))

    assert found["channel_distance"] == pytest.approx(distance(tuple(range(5))))
    assert found["ordered_channel_distance"] == pytest.approx(min(map(distance, permutations(range(5)))))
    assert _order_facts((mean, std), (mean, std)) == {"channel_distance": 0.0, "ordered_channel_distance": 0.0}


def test_features_whose_squares_are_above_float64_have_no_covariance() -> None:
    statistics = SetStatistics.empty([])
    statistics.feature_count = 2
    statistics.feature_sum[:] = 1e300
    assert feature_covariance(statistics) is None


def test_variance_that_rounding_takes_below_zero_is_none_at_all() -> None:
    assert trace_of(np.array([[-1e-17]])) == 0.0
