"""Facts of the data sets: grids of 8-bit images, how two sets relate, samples, classes, features, metric."""

import zlib
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from builders import plain_loops as reference
from builders.cases import case_of_sets
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import (
    ClippingFacts,
    DatasetFacts,
    DistributionFacts,
    QuantizerFacts,
    RelationFacts,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import BUCKETS, FEATURES, SAMPLE_DTYPE, SetStatistics, union_lattice
from quantmedic.engine.formulas.datasets import dataset_facts
from quantmedic.engine.formulas.input_relation import _order_facts
from quantmedic.engine.formulas.task_metric import metric_facts

few = examples(20)
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
PREPROCESSING: dict[str, Callable[[Any], Any]] = {
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


def smooth(seed: int, n: int = 40) -> Any:
    """Inputs that lie on no grid: spectrograms, sensor readings."""
    rng = np.random.default_rng(seed)
    return (rng.uniform(0.7, 1.3, (n, 1, 1)) * rng.gamma(2.0, 1.0, (n, 2, 50)) - 1).astype(np.float32)


def measure(x: Any) -> SetStatistics:
    """Statistics of a set of inputs ``[samples, channels, …]`` as the input tensor of a network."""
    n, channels = x.shape[:2]
    statistics = SetStatistics.empty([channels], lattices=channels)
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
    representative: SetStatistics | None = None, validation: SetStatistics | None = None, **fields: Any
) -> Case:
    given_ = {"representative": representative, "validation": validation}
    return case_of_sets({role: own for role, own in given_.items() if own is not None}, **fields)


def facts(case: Case, role: str = "representative", tensors: tuple[TensorFacts, ...] = ()) -> DatasetFacts:
    return next(view for view in dataset_facts(case, tensors) if view.role == role)


def facts_of(*tensors: TensorFacts) -> DatasetFacts:
    """Of a set of any samples, whose activations are these."""
    return facts(case_of(measure(smooth(1))), tensors=tensors)


def relation(representative: Any, validation: Any) -> RelationFacts:
    return facts(case_of(measure(representative), measure(validation))).relation


# Grids of 8-bit images


def test_grid_of_eight_bit_images() -> None:
    for name, prepare in PREPROCESSING.items():
        found = facts(case_of(measure(images(1, name))))
        black, white = (prepare(np.full((3, 1, 1), value, np.float32)).ravel() for value in (0, 255))
        assert found.lattice_step == pytest.approx(((white - black) / 255).tolist(), rel=1e-4), name
        assert found.lattice_low == pytest.approx(black.tolist(), abs=1e-5), name


def test_what_is_no_grid() -> None:
    rng = np.random.default_rng(0)
    one_channel_off = images(1, "unit")
    one_channel_off[:, 2] += rng.normal(size=one_channel_off[:, 2].shape)
    sets = {
        "normal": rng.normal(size=(4, 1, 8, 8)),
        "uniform": rng.random((4, 1, 8, 8)),
        "few values": rng.integers(0, 2, (4, 1, 8, 8)),
        "fine grid": rng.integers(0, 1024, (4, 1, 32, 32)),
        "dithered": rng.integers(0, 20, (4, 1, 8, 8)) + rng.uniform(-0.2, 0.2, (4, 1, 8, 8)),
        "one channel off": one_channel_off,
    }
    found = {name: facts(case_of(measure(x.astype(np.float32)))) for name, x in sets.items()}
    assert not [name for name, own in found.items() if (own.lattice_step, own.lattice_low) != (None, None)]


# How the representative inputs relate to those of validation, on a grid


def test_another_preprocessing() -> None:
    pairs = [
        ("unit", "imagenet", "partly-normalized", 0.224),
        ("raw", "imagenet", "not-normalized", 255 * 0.229),
        ("unit", "raw", "scale", 1 / 255),
        ("raw", "caffe", "offset", 1),
    ]
    for representative, validation, kind, slope in pairs:
        found = relation(images(1, representative), images(2, validation))
        assert (found.method, found.kind) == ("lattice", kind), (representative, validation)
        assert found.slope == pytest.approx(slope, rel=1e-2)
        assert found.slope_low == found.slope == found.slope_high
        assert found.scale_mismatch == pytest.approx(max(slope, 1 / slope), rel=1e-2)
    found = relation(np.float32(1.25) * images(1, "imagenet"), images(2, "imagenet"))
    assert (found.kind, found.slope) == ("scale", pytest.approx(1.25, rel=1e-3))


def test_normalized_twice() -> None:
    for name in ("imagenet", "centred", "unit"):
        for factor in (1, 255):  # divided by 255 again, or not
            twice = PREPROCESSING[name](factor * images(1, name)).astype(np.float32)
            expected = "same" if (name, factor) == ("unit", 255) else "normalized-twice"
            assert relation(twice, images(2, name)).kind == expected, (name, factor)


def test_offset_told_is_the_largest() -> None:
    shift = np.array([0.4, 1.0, 0.4], np.float32).reshape(3, 1, 1)
    found = relation(images(1, "imagenet") + shift, images(2, "imagenet"))
    assert found.kind == "offset"
    assert found.offset_over_std == pytest.approx(1.0 / images(2, "imagenet").std(), rel=1e-2)
    assert found.offset == pytest.approx(1.0, rel=1e-2)


def test_sets_without_the_darkest_or_brightest_pixels_are_no_other_ones() -> None:
    for name, low, high in [("raw", 10, 255), ("imagenet", 15, 255), ("unit", 0, 240), ("unit", 45, 255)]:
        whole, part = images(1, name), images(2, name, low=low, high=high)
        assert relation(part, whole).kind == "same", (name, low, high)
        assert low == 45 or relation(whole, part).kind == "same", (name, low, high)
    fog = PREPROCESSING["imagenet"](np.rint(pixels(1) * 0.1 + 225)).astype(np.float32)
    found = relation(fog, images(2, "imagenet", high=200))
    assert (found.method, found.kind) == ("lattice", "same"), "fog is no shift"


def test_preprocessing_read_off_whole_grids() -> None:
    readings = {
        ("unit", "imagenet"): ("x / 255", "(x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]"),
        ("raw", "centred"): ("x", "x / 127.5 - 1"),
        ("unit", "unit"): ("x / 255", "x / 255"),
    }
    for (representative, validation), reading in readings.items():
        found = relation(images(1, representative), images(2, validation)).reading
        assert found == "representative = {}, validation = {}".format(*reading)
    assert relation(images(1, "unit", low=40), images(2, "imagenet")).reading is None
    assert relation(images(1, "unit"), images(2, "imagenet", high=200)).reading is None
    assert relation(smooth(1), smooth(2)).reading is None
    nearly = relation(images(1, "imagenet", low=4), images(2, "imagenet")).reading
    assert nearly is None or nearly.count("0.485, 0.456, 0.406") == 2


# Without a grid


def test_smooth_inputs_are_the_same_or_shifted() -> None:
    found = relation(smooth(1), smooth(2))
    assert (found.method, found.kind) == ("quantiles", "same")
    assert found.slope == pytest.approx(1, abs=0.1)
    assert found.certainty is not None and found.certainty > 0.99
    assert found.slope_low < 1 < found.slope_high
    assert found.flipped_distance_ratio is None, "two channels are no image"
    found = relation(smooth(1) + np.float32(4), smooth(2))
    assert found.kind == "offset"
    assert found.offset == pytest.approx(4, abs=0.3)
    assert found.offset_over_std == pytest.approx(4 / smooth(2).std(), abs=0.3)


@given(st.floats(1.7, 50), st.booleans(), st.integers(0, 50))
@few
def test_slope_of_any_factor(factor: float, inverse: bool, seed: int) -> None:
    factor = 1 / factor if inverse else factor
    found = relation(np.float32(factor) * smooth(seed), smooth(seed + 1000))
    assert (found.method, found.kind) == ("quantiles", "scale")
    assert found.slope == pytest.approx(factor, rel=0.15)
    assert found.scale_mismatch == pytest.approx(max(factor, 1 / factor), rel=0.15)
    assert found.slope_low < found.slope < found.slope_high
    assert not found.slope_low <= 1 <= found.slope_high


def test_scaling_is_not_claimed_of_a_few_uncertain_samples() -> None:
    """Sets whose own samples differ that much in scale prove nothing."""
    rng = np.random.default_rng(3)
    loud = np.exp(rng.normal(0, 1.5, (6, 1, 1)))
    quiet = np.exp(rng.normal(0, 1.5, (6, 1, 1)))
    found = relation((loud * smooth(1, 6)).astype(np.float32), (quiet * smooth(2, 6)).astype(np.float32))
    assert found.slope_low <= 1 <= found.slope_high
    assert found.kind != "scale"


def test_other_shape_of_distribution_is_no_relation() -> None:
    x = smooth(2)
    two_piles = np.sign(smooth(1)) * 5 + 0.01 * smooth(3)
    assert relation(two_piles.astype(np.float32), x).kind == "unexplained"


def test_preprocessing_is_named_without_a_grid() -> None:
    def resized(seed: int) -> Any:
        """Pixels of 0 … 255 between which an interpolation has left no grid."""
        x = pixels(seed).astype(np.float64)
        x[:, :, 1:-1, 1:-1] = 0.7 * x[:, :, 1:-1, 1:-1] + 0.3 * x[:, :, 1:-1, 2:]
        return (x + np.random.default_rng(seed).uniform(0, 0.3, x.shape) * (x < 250)).astype(np.float32)

    changes: dict[str, Callable[[Any], Any]] = {
        "not-normalized": lambda x: x,
        "partly-normalized": lambda x: x / 255,
        "normalized-twice": lambda x: ((x / 255 - 0.4) / 0.2 - 0.4) / 0.2,
        "scale": lambda x: (x / 255 - 0.4) / 0.05,
        "same": lambda x: (x / 255 - 0.4) / 0.2,
    }
    right = changes["same"](resized(2)).astype(np.float32)
    for kind, change in changes.items():
        found = relation(change(resized(1)).astype(np.float32), right)
        assert (found.method, found.kind) == ("quantiles", kind)
        assert found.certainty is not None and found.certainty > 0.98


def test_grid_against_no_grid_falls_back_to_quantiles() -> None:
    dither = np.float32(1e-3) * np.random.default_rng(0).random((24, 3, 16, 16)).astype(np.float32)
    found = relation(images(1, "unit"), images(2, "unit") + dither)
    assert (found.method, found.kind) == ("quantiles", "same")


def test_what_cannot_be_compared_has_no_relation() -> None:
    one, two = measure(images(1, "unit")), measure(images(2, "unit"))
    assert facts(case_of(one)).relation == RelationFacts()
    assert facts(case_of(one), "validation") == DatasetFacts(role="validation")
    assert facts(case_of(one, two), "validation").relation == RelationFacts()
    flat = np.ones((4, 1, 3, 3), np.float32)
    assert relation(flat, flat).kind is None
    assert relation(flat, smooth(1)[:, :1]).kind is None


def test_reversed_channels_show() -> None:
    right, reversed_, other = (
        measure(x) for x in (images(1, "imagenet"), images(1, "imagenet")[:, ::-1], images(2, "imagenet"))
    )
    assert facts(case_of(reversed_, other)).relation.flipped_distance_ratio > 2
    assert facts(case_of(right, other)).relation.flipped_distance_ratio < 1
    assert facts(case_of(right, other, image_input=False)).relation.flipped_distance_ratio is None


def test_any_order_of_channels_is_told_by_the_pixels() -> None:
    tint = np.array([1.0, 0.7, 0.4], np.float32).reshape(3, 1, 1)
    mine, other = (np.rint(pixels(seed) * tint) for seed in (1, 2))
    right = PREPROCESSING["imagenet"](other).astype(np.float32)
    for order in [(2, 1, 0), (1, 2, 0), (0, 2, 1)]:
        found = relation(PREPROCESSING["imagenet"](mine[:, list(order)]).astype(np.float32), right)
        assert found.flipped_pixel_ratio is not None and found.flipped_pixel_ratio > 3
        assert found.kind == "same", "the channels are no shifted ones"
    same = relation(PREPROCESSING["imagenet"](mine).astype(np.float32), right)
    assert same.flipped_pixel_ratio is not None and same.flipped_pixel_ratio < 1


@given(st.integers(0, 2**32))
@few
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


def test_a_set_may_hold_more_than_was_read() -> None:
    """With ``--samples 9``, nine were read, and nobody knows of how many."""
    case = case_of(measure(images(0, "raw", n=9)))
    for limit, in_part in [(None, False), (9, True), (24, False)]:
        case.record.run["samples"] = limit
        assert facts(case).read_in_part is in_part


def test_blank_and_repeated_samples() -> None:
    for blank, share in [(0, 0.0), (5, 0.25), (20, 1.0)]:
        x = smooth(1, 20)
        x[:blank] = np.float32(0.7)
        assert facts(case_of(measure(x))).blank_share == share
    shades = np.broadcast_to(np.arange(10, dtype=np.float32).reshape(10, 1, 1), (10, 1, 9)).copy()
    assert facts(case_of(measure(shades))).blank_share == 1.0
    nearly_flat = smooth(1, 20)
    nearly_flat[:5] *= np.float32(0.01)
    assert facts(case_of(measure(nearly_flat))).blank_share == 0.0
    assert facts(case_of(measure(np.concatenate([smooth(1, 10)] * 4)))).unique_share == 0.25


def test_samples_that_are_not_blank_are_held_against_the_validation_samples() -> None:
    x, y = smooth(1, 20), smooth(1, 20)
    x[:5] = np.float32(0.7)
    x[5:] *= np.float32(0.25)
    assert facts(case_of(measure(x), measure(y))).kept_deviation_ratio == pytest.approx(0.25, rel=0.1)
    assert facts(case_of(measure(x))).kept_deviation_ratio is None
    x[:] = np.float32(0.7)
    assert facts(case_of(measure(x), measure(y))).kept_deviation_ratio is None, "all are blank"


@pytest.mark.source("horizon-data-exposure")
def test_saturation_is_compared_without_blanks() -> None:
    ramp = np.linspace(-1, 0, 100, dtype=np.float32).reshape(1, 1, 100).repeat(4, axis=0)
    ramp[:2, :, 50:] = 0.0
    assert facts(case_of(measure(ramp))).saturated_share == pytest.approx((0.5 + 0.01) / 2)
    x, burnt = smooth(1, 20), smooth(2, 20)
    burnt = np.minimum(burnt, np.quantile(burnt, 0.7)).astype(np.float32)
    blank = burnt.copy()
    blank[:5] = 1.0
    for representative in (burnt, blank):
        found = facts(case_of(measure(representative), measure(x)))
        assert found.saturation_excess == pytest.approx(0.3, abs=0.02)
    assert facts(case_of(measure(x), measure(burnt))).saturation_excess == pytest.approx(-0.3, abs=0.02)
    assert facts(case_of(measure(burnt))).saturation_excess is None


def test_even_surfaces_are_not_saturated() -> None:
    """Every sample repeats its largest value, and each has another one."""
    even = np.repeat(np.repeat(pixels(1)[:, :, ::8, ::8], 8, axis=2), 8, axis=3)
    found = facts(case_of(measure(even), measure(pixels(2))))
    assert found.saturated_share is not None and found.saturated_share > 0.05
    assert found.saturation_excess is not None and found.saturation_excess < 0.05


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


# Classes


def of_classes(classes: Any, hashes: Any = None) -> SetStatistics:
    statistics = SetStatistics.empty([2])
    statistics.samples = np.zeros(len(classes), SAMPLE_DTYPE)
    statistics.samples["class_float"] = classes
    statistics.samples["hash"] = np.arange(len(classes)) if hashes is None else hashes
    return statistics


@pytest.mark.source("horizon-data-classes")
def test_class_coverage() -> None:
    table: list[tuple[list[int], list[int], int | None, float | None]] = [
        ([0, 1, 2, 3], [0, 1, 2, 3], 4, 1.0),
        ([1, 1, 1, 1], [0, 1, 2, 3], 1, 0.25),
        ([0, 1, 8, 9], [0, 1, 2, 3], 4, 0.5),
        ([7, 7, 8, 9], [0, 1, 2, 3], 3, 0.0),
        ([0, -1, -1, -1], [0, -1, 2, 2], 1, 0.5),
        ([-1] * 4, [0, 1, 2, 3], None, None),
        ([0, 1, 2, 3], [-1] * 4, 4, None),
    ]
    for mine, other, classes, coverage in table:
        found = facts(case_of(of_classes(mine), of_classes(other)))
        assert (found.classes, found.class_coverage) == (classes, coverage), (mine, other)


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
    assert facts(case_of(of_classes(np.full(50, 3), 1), validation)).class_coverage_ratio == pytest.approx(1.0)
    assert facts(case_of(of_classes(np.full(5, -1)), validation)).class_coverage_ratio is None
    assert facts(case_of(validation)).class_coverage_ratio is None


# Features


def with_features(vectors: Any) -> SetStatistics:
    statistics = measure(smooth(1, 4))
    padded = np.pad(vectors, ((0, 0), (0, FEATURES - vectors.shape[1])))
    statistics.feature_count += len(padded)
    statistics.feature_sum += padded.sum(axis=0)
    statistics.feature_outer += padded.T @ padded
    return statistics


def test_effective_rank_counts_directions() -> None:
    rng = np.random.default_rng(0)
    for scales in ([1.0], [2.0] * 5, [1.0, 0.1, 0.1]):
        own = with_features(3.0 + rng.normal(size=(20_000, len(scales))) * np.array(scales))
        found = facts(case_of(own, with_features(rng.normal(size=(20_000, 1)))))
        share = np.square(scales) / np.square(scales).sum()
        assert found.effective_rank_ratio == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=0.02)


def test_features_of_two_sets() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = rng.normal(size=(5000, 2)), 2 * rng.normal(size=(5000, 8)) + 1
    case = case_of(with_features(narrow), with_features(wide))
    found = facts(case)
    assert found.effective_rank_ratio == pytest.approx(2 / 8, rel=0.05)
    assert found.feature_spread == pytest.approx(2 / (4 * 8), rel=0.05)
    other = facts(case, "validation")
    assert other.effective_rank_ratio == pytest.approx(1)
    assert other.feature_spread == pytest.approx(1)


def test_excursion_is_one_for_samples_of_the_same_kind() -> None:
    rng = np.random.default_rng(0)
    validation = rng.normal(size=(4000, 4))
    sets = (rng.normal(size=(4000, 4)), validation[validation[:, 0] > 1] * [1, 0.1, 0.1, 0.1], validation * 0.01 + 1.2)
    known = with_features(validation)
    same, part, elsewhere = (facts(case_of(with_features(s), known), "validation").feature_excursion for s in sets)
    assert same == pytest.approx(1.0, abs=0.1)
    assert part < 0.9 and elsewhere == pytest.approx(1.44, abs=0.1)
    assert facts(case_of(with_features(validation * 0.01 + 3.0), known)).feature_excursion > 5


def test_features_without_a_covariance() -> None:
    validation = with_features(np.random.default_rng(0).normal(size=(100, 3)))
    found = facts(case_of(with_features(np.ones((1, 3))), validation))
    assert (found.effective_rank_ratio, found.feature_spread) == (None, None), "too few"
    assert facts(case_of(with_features(np.ones((5, 3))), validation)).effective_rank_ratio is None, "all alike"


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
    unclipped = (activation(representative=(0.0, 100, 0.1), validation=(0.01, 100, 0.1)),)
    assert facts(case, "validation", unclipped).clipped_share_ratio == pytest.approx(0.01 / 1e-6)
    assert facts(case_of(None, measure(smooth(2))), "validation", unclipped).clipped_share_ratio is None


def test_growth_is_the_median_over_activations_but_the_input() -> None:
    tensors = tuple(activation(representative=(0.0, 1, growth)) for growth in (0.1, 0.2, 0.9))
    found = facts_of(*tensors, activation("Input", representative=(0.0, 1, 5.0)), TensorFacts(producer="Relu"))
    assert (found.range_growth, found.halves_disagreement) == (0.2, None)


def ranged(
    low: float,
    high: float,
    values: tuple[float, float],
    share: float | None = 0.0,
    producer: str = "Conv",
    **quantizer: Any,
) -> TensorFacts:
    data = TensorDataFacts(
        values=DistributionFacts(min=values[0], max=values[1], count=100), clipping=ClippingFacts(share=share)
    )
    grid = QuantizerFacts(low=low, high=high, scale=(high - low) / 255, **quantizer)
    return TensorFacts(producer=producer, float_name="image", quantizer=grid, representative=data)


def test_ranges_against_what_the_samples_show() -> None:
    tensors = (
        ranged(-1.0, 1.0, (-0.1, 1.0)),
        ranged(-1.0, 3.0, (-0.1, 1.0)),
        ranged(0.0, 0.5, (-0.1, 1.0), 0.2),
        ranged(0.0, 1.0, (-0.1, 0.001), producer="Softmax"),
    )
    found = facts_of(*tensors)
    assert found.range_reach == pytest.approx(1.0)
    assert found.exact_range_share == pytest.approx(1 / 3)
    assert (found.clipped_share_max, found.clipped_share_median) == (0.2, 0.0)
    nothing = facts_of()
    assert (nothing.range_reach, nothing.exact_range_share, nothing.clipped_share_max) == (None, None, None)
    assert facts_of(ranged(-4.0, 1.0, (-2.0, 1.0))).range_reach == pytest.approx(2.0), "the largest magnitude counts"


def test_ranges_are_not_held_against_samples_that_a_calibrator_saw_more_of() -> None:
    """Where tensors are measured on some samples only, their extremes say nothing of how a range was chosen."""
    statistics = measure(smooth(1))
    statistics.tensor_samples[0] -= 1
    found = facts(case_of(statistics), tensors=(ranged(-1.0, 3.0, (-0.1, 1.0), 0.2),))
    known = (found.range_reach, found.exact_range_share, found.ranges_both_ways, found.range_method_error)
    assert known == (None, None, None, None)
    assert found.clipped_share_max == 0.2


def test_ranges_of_other_data_do_not_fit_alike() -> None:
    table = {
        "min-max": ([(1.0, 0.0)] * 10, 0.0, 0.0),
        "percentile": ([(0.3, 0.1)] * 6 + [(0.5, 0.05)] * 4, 0.0, 1.0),
        "too wide in two places": ([(1.0, 0.0)] * 8 + [(3.0, 0.0)] * 2, 0.0, 0.0),
        "of the neighbour": ([(1.0, 0.0)] * 5 + [(3.0, 0.0)] * 2 + [(0.2, 0.4)] * 3, 0.2, 400.0),
        "of older weights": ([(0.2, 0.3)] * 3 + [(0.5, 0.06)] * 7, 0.0, 5.0),
    }
    for name, (ranges, both, peak) in table.items():
        found = facts_of(*(ranged(0.0, high, (-0.1, 1.0), share) for high, share in ranges))
        assert found.ranges_both_ways == pytest.approx(both), name
        assert found.clipped_share_peak == pytest.approx(peak), name


def test_range_of_an_input_against_its_values() -> None:
    table = [
        (-1.0, 2.0, False, 1.0, "range 1 times"),
        (-0.1, 0.2, False, 0.1, "range 1 / 10"),
        (-3.3, 6.6, False, 3.3, "range 3.3 times"),
        (0.0, 1.0, False, 1 / 3, "these samples span -1 to 2 (range 0.333 times, offset 0.333)"),
        # On a symmetric grid the larger magnitude of both counts.
        (-5.1, 5.1, True, 2.55, "range 2.55 times"),
    ]
    for low, high, symmetric, factor, said in table:
        found = facts_of(ranged(low, high, (-1.0, 2.0), 0.25, "Input", symmetric=symmetric))
        assert found.input_range_ratio == pytest.approx(factor)
        assert said in (found.input_range_reading or "")
        assert ("a single calibration sample" in (found.input_range_reading or "")) is (factor > 1.5)
        assert (found.input_clipped_share, found.input_clipped_ratio) == (0.25, 1.0)


def test_share_of_an_input_range_on_the_side_that_no_sample_reaches() -> None:
    table: list[tuple[float, float, bool, tuple[float, float], list[float], float | None]] = [
        (-1.0, 1.0, False, (0.0, 1.0), [], 0.5),
        (-1.0, 1.0, False, (-0.9, 1.0), [], 0.0),
        (0.0, 40.0, False, (0.0, 1.0), [], 0.0),
        # A symmetric grid says nothing, unless grids begin at zero where values do.
        (-1.0, 1.0, True, (0.0, 1.0), [0.0], None),
        (-1.0, 1.0, True, (0.0, 1.0), [-6.0, 0.0], None),
        (-1.0, 1.0, True, (0.0, 1.0), [0.0, 0.0], 0.5),
        (-1.0, 1.0, True, (-0.9, 1.0), [0.0, 0.0], 0.0),
    ]
    for low, high, symmetric, values, others, share in table:
        inner = [ranged(own, 6.0, (0.0, 3.0)) for own in others]
        found = facts_of(ranged(low, high, values, None, "Input", symmetric=symmetric), *inner)
        assert found.input_unused_side == (None if share is None else pytest.approx(share)), (low, high, values, others)


def test_of_a_reduced_range_the_half_in_use_counts() -> None:
    """Codes 0 … 127 of 0 … 255, as torch uses on x86: the upper half of the range is never reached."""
    high = -0.1 + 255 * 0.2 / 127
    found = facts_of(ranged(-0.1, high, (-1.0, 1.0), 0.9, "Input", bits=8, symmetric=False))
    assert found.input_range_ratio == pytest.approx(0.1)
    assert (found.input_range_reading or "").endswith("these samples span -1 to 1 (range 1 / 10)")


def test_of_several_inputs_the_one_that_fits_least_counts() -> None:
    found = facts_of(*(ranged(0.0, high, (0.0, 1.0), 0.0, "Input") for high in (1.0, 20.0, 2.0)))
    assert found.input_range_ratio == pytest.approx(20.0)
    assert facts_of(TensorFacts(producer="Conv", quantizer=QuantizerFacts(low=0.0, high=9.0))).input_range_ratio is None


# The task metric


def with_metric(floats: Any, quantized: Any) -> SetStatistics:
    statistics = measure(smooth(1, len(floats)))
    statistics.samples["metric_float"], statistics.samples["metric_quantized"] = floats, quantized
    return statistics


def test_metric_of_the_validation_set_first() -> None:
    rep, val = with_metric([1, 1, 1, 1], [0, 0, 0, 0]), with_metric([1, 1, 1, 0, np.nan], [1, 0, 1, 0, np.nan])
    found = metric_facts(case_of(rep, val, metric="top1", metric_higher_is_better=True))
    assert (found.dataset, found.samples, found.float_value, found.quantized_value) == ("validation", 4, 0.75, 0.5)
    assert (found.drop, found.relative_drop) == (pytest.approx(0.25), pytest.approx(1 / 3))
    assert found.drop_low < 0.25 < found.drop_high
    unlabelled = with_metric([np.nan] * 4, [np.nan] * 4)
    first = case_of(rep, unlabelled, metric="top1", metric_higher_is_better=True)
    assert metric_facts(first).dataset == "representative"
    nothing = metric_facts(case_of(unlabelled, metric="top1", metric_higher_is_better=True))
    assert (nothing.name, nothing.samples, nothing.drop) == ("top1", None, None)
    assert metric_facts(case_of(rep, val)).name is None


def test_lower_is_better_turns_the_sign() -> None:
    squares = np.random.default_rng(0).exponential(1.0, 60)
    found = metric_facts(case_of(None, with_metric(squares, 2 * squares), metric="mae", metric_higher_is_better=False))
    assert found.drop == pytest.approx(squares.mean())
    assert found.relative_drop == pytest.approx(1)
    assert 0 < found.drop_low < found.drop < found.drop_high
    found = metric_facts(case_of(None, with_metric(squares, 4 * squares), metric="rmse", metric_higher_is_better=False))
    assert found.float_value == found.drop == pytest.approx(np.sqrt(squares.mean())), "the root of the mean square"
    assert found.relative_drop == pytest.approx(1)
