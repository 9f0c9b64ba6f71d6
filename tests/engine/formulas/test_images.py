"""Facts of images: neighbours, sharpness, layout and noise, from the sums that one pass leaves behind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import plain_loops as reference
from builders.cases import case_of_sets
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.statistics.accumulate import buckets_of, sample_rows
from quantmedic.collectors.statistics.spatial import MEASURED_ROWS, is_image, spatial_sums
from quantmedic.engine.case.statistics import SPATIAL, SetStatistics
from quantmedic.engine.formulas.images import image_facts, image_relation

Array = np.ndarray[Any, Any]
few = examples(20)


def scenes(seed: int, n: int = 24, size: int = 24) -> Array:
    """Colour images of overlapping rectangles with soft shading, ``[n, 3, size, size]``."""
    rng = np.random.default_rng(seed)
    images = np.zeros((n, 3, size, size))
    for image in images:
        image += rng.uniform(0, 200, (3, 1, 1))
        for _ in range(6):
            top, left = rng.integers(0, size - 4, 2)
            height, width = rng.integers(4, size, 2)
            image[:, top : top + height, left : left + width] = rng.uniform(0, 200, (3, 1, 1))
        image += np.linspace(0, rng.uniform(10, 50), size)
    return images.astype(np.float32)


def blurred(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)).mean(axis=(4, 5)), x.dtype)


def measure(x: Array, axis: int = 1) -> SetStatistics:
    """Statistics of images as the only tensor of a network."""
    statistics = SetStatistics.empty([x.shape[axis]])
    buckets = buckets_of(sample_rows(x, None))
    np.add.at(statistics.spatial, buckets, spatial_sums(x, axis))
    planes = x if axis == 1 else x.transpose(0, 3, 1, 2)
    rows = np.ascontiguousarray(planes.reshape(len(x), planes.shape[1], -1), np.float32)
    reference.observe_values(rows, statistics.tensor(0), buckets)
    return statistics


def facts(statistics: SetStatistics, spatial: bool | None = True) -> dict[str, Any]:
    return image_facts(case_of_sets({"representative": statistics}, spatial_input=spatial), statistics)


def difference(planes: Array) -> float:
    """Mean squared difference of neighbours to the right and below."""
    return float((np.square(np.diff(planes, axis=2)).mean() + np.square(np.diff(planes, axis=1)).mean()) / 2)


def test_sums_are_what_they_are_called() -> None:
    x = scenes(1, n=2, size=5).astype(np.float64)
    sums = spatial_sums(x, 1)
    for image, row in zip(x, sums, strict=True):
        found = dict(zip(SPATIAL, row, strict=True))
        right2 = image[:, :, 2:] - 2 * image[:, :, 1:-1] + image[:, :, :-2]
        down2 = image[:, 2:] - 2 * image[:, 1:-1] + image[:, :-2]
        as_pixels, as_lines = image.reshape(5, 5, 3).transpose(2, 0, 1), image.reshape(5, 3, 5).transpose(1, 0, 2)
        power = image.var(axis=(1, 2)).mean()
        alike = (image - image.mean(axis=(1, 2), keepdims=True)) / image.std(axis=(1, 2), keepdims=True)
        moved = alike.transpose(1, 2, 0).reshape(3, 5, 5) * power**0.5
        reread = min(map(difference, (as_pixels, as_lines)))
        assert found["images"] == 1
        assert found["power"] == pytest.approx(image.reshape(3, -1).var(axis=1).mean())
        assert found["first"] == pytest.approx(difference(image))
        assert found["second"] == pytest.approx(((right2**2).mean() + (down2**2).mean()) / 2)
        assert found["reread_first"] == pytest.approx(reread, rel=1e-5)
        assert found["other_first"] == pytest.approx(min(reread, difference(moved)), rel=1e-5)


def test_layouts_are_measured_alike() -> None:
    planes = scenes(1)
    pixels = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(spatial_sums(planes, 1)[:, :4], spatial_sums(pixels, 3)[:, :4], rtol=1e-12)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from([1, 3]))
@few
def test_batches_make_no_difference(lengths: list[int], axis: int) -> None:
    """Bit by bit, so that an interrupted run goes on to the same figures."""
    planes = scenes(2, n=sum(lengths), size=7)
    x = planes if axis == 1 else np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    parts = np.split(x, np.cumsum(lengths)[:-1])
    np.testing.assert_array_equal(np.concatenate([spatial_sums(part, axis) for part in parts]), spatial_sums(x, axis))


def test_images_with_holes_are_left_out() -> None:
    x = scenes(4, n=4)
    x[1, 0, 0, 0], x[2, 1, 3, 3] = np.nan, np.inf
    sums = spatial_sums(x, 1)
    assert not sums[[1, 2]].any()
    np.testing.assert_array_equal(sums[[0, 3]], spatial_sums(x[[0, 3]], 1))


def test_large_images_are_measured_in_the_middle() -> None:
    x = np.zeros((1, 1, MEASURED_ROWS * 3, 8), np.float32)
    x[:, :, :MEASURED_ROWS], x[:, :, -MEASURED_ROWS:] = np.nan, 7.0
    x[np.isnan(x)] = 5.0
    assert spatial_sums(x, 1)[0].tolist() == [1, 0, 0, 0, 0, 0]


def test_what_an_image_is() -> None:
    images = [((2, 3, 8, 8), 1), ((2, 8, 8, 1), 3), ((2, 4, 8, 8), 1)]
    others = [((2, 2, 8, 8), 1), ((2, 8, 8, 3), 1), ((2, 3, 8), 1), ((2, 3, 8, 2), 1), ((2, 3, 8, 8), 0)]
    assert [each for each in images + others if is_image(*each)] == images


@given(st.floats(0.01, 100), st.floats(-50, 50), st.integers(0, 20))
@few
def test_normalization_changes_nothing(scale: float, offset: float, seed: int) -> None:
    """Neighbours are compared, whatever the preprocessing; so a wrong one is never taken for a wrong resize."""
    x = scenes(seed).astype(np.float64)
    before, after = facts(measure(x)), facts(measure(x * scale + offset))
    for name in ("spatial_correlation", "sharpness"):
        assert after[name] == pytest.approx(before[name], rel=1e-6)


def test_noise_is_unrelated_and_images_are_not() -> None:
    rng = np.random.default_rng(0)
    normal, even = rng.standard_normal((24, 3, 24, 24)), rng.random((24, 3, 24, 24))
    for x, near, far in (
        (normal, "normal_distance", "uniform_distance"),
        (even, "uniform_distance", "normal_distance"),
    ):
        found = facts(measure(x.astype(np.float32)))
        assert abs(found["spatial_correlation"]) < 0.02
        assert found["sharpness"] == pytest.approx(3.0, abs=0.05)
        assert found["layout_roughness_ratio"] == pytest.approx(1.0, abs=0.03)
        assert found[near] < 0.01 < 0.04 < found[far]
    assert facts(measure(rng.integers(0, 256, (24, 3, 24, 24)).astype(np.float32)))["uniform_distance"] < 0.01
    found = facts(measure(scenes(0)))
    assert found["spatial_correlation"] > 0.6
    assert min(found["normal_distance"], found["uniform_distance"]) > 0.03


def normalized(planes: Array) -> Array:
    """Each channel with numbers of its own, as channels of the right layout have."""
    return planes / np.array([40.0, 70.0, 55.0]).reshape(1, 3, 1, 1) - np.array([1.0, -0.5, 2.0]).reshape(1, 3, 1, 1)


#: Planes that were not stored as planes, or were taken for pixels.
MIXED: dict[str, Callable[[Array], Array]] = {
    "pixels read as planes": lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape),
    "lines read as planes": lambda x: x.transpose(0, 2, 1, 3).reshape(x.shape),
    "planes read as pixels": lambda x: x.reshape(len(x), *x.shape[2:], 3).transpose(0, 3, 1, 2),
}


def test_mixed_planes_and_pixels_are_rougher_than_right_ones() -> None:
    x = scenes(0)
    assert facts(measure(normalized(x)))["layout_roughness_ratio"] < 0.8
    for name, mixed in MIXED.items():
        wrong = measure(normalized(mixed(x)).astype(np.float32))
        assert facts(wrong)["layout_roughness_ratio"] > 2, name
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    assert facts(measure(pixels, 3))["layout_roughness_ratio"] < 0.8
    moved = np.ascontiguousarray(pixels.reshape(x.shape).transpose(0, 2, 3, 1))
    for wrong_pixels in (x.reshape(pixels.shape), moved):
        assert facts(measure(wrong_pixels, 3))["layout_roughness_ratio"] > 2


def test_contrast_is_no_layout() -> None:
    """Channels that differ more among each other than their pixels do, as in fog, are no bands of another layout."""
    faint = 0.02 * scenes(0) + np.array([10.0, 200.0, 90.0], np.float32).reshape(1, 3, 1, 1)
    assert facts(measure(faint))["layout_roughness_ratio"] < 0.8


def test_resampling_shows_and_content_does_not() -> None:
    x, y = blurred(scenes(1)) + scenes(5) * 0.1, blurred(scenes(2)) + scenes(6) * 0.1
    assert image_relation(measure(x), measure(y))["sharpness_mismatch_low"] < 1.1
    pixelated = x[:, :, ::2, ::2].repeat(2, axis=2).repeat(2, axis=3)
    for resampled, is_softer in ((blurred(x), True), (pixelated, False)):
        other = image_relation(measure(resampled), measure(y))
        assert other["sharpness_mismatch_low"] > 1.35
        assert (other["sharpness_ratio"] < 1) == is_softer
    few_edges = image_relation(measure(0.1 * x[:, :, :12] + 3), measure(y))
    assert few_edges["sharpness_mismatch_low"] < 1.2


def test_copies_prove_nothing_about_resampling() -> None:
    relation = image_relation(measure(blurred(scenes(1))[:1].repeat(20, axis=0)), measure(scenes(2)))
    assert relation["sharpness_ratio"] < 0.8
    assert relation["sharpness_mismatch_low"] == 1.0


def test_what_is_no_image_has_no_neighbours() -> None:
    statistics, other = measure(scenes(0)), measure(scenes(1))
    statistics.spatial[:] = 0
    for spatial in (False, None):
        found = facts(statistics, spatial)
        assert found["image"] is spatial
        for name in ("spatial_correlation", "sharpness", "layout_roughness_ratio"):
            assert found[name] is None
    assert set(image_relation(statistics, other).values()) == {None}
    even = facts(measure(np.full((4, 3, 8, 8), 5, np.float32)))
    assert (even["spatial_correlation"], even["sharpness"]) == (None, None), "nothing to compare"
    grey = facts(measure(scenes(0)[:, :1]))
    assert grey["layout_roughness_ratio"] is None, "one channel has no other layout"
    assert grey["spatial_correlation"] > 0.6
