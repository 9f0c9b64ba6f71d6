"""Another kind of samples, or too few: parts of the validation set as large as the other, and the light of images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders.cases import case_of_sets
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import QuantizerFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SetStatistics, slots_of
from quantmedic.engine.formulas.brightness import brightness_facts
from quantmedic.engine.formulas.domain import domain_facts, ordinary_ranges

some = examples(20)
MEAN, STD = (np.array(v).reshape(1, 3, 1, 1) for v in ((0.286, 0.29, 0.075), (0.353, 0.20, 0.032)))


def table(n: int, seed: int) -> Any:
    samples = np.zeros(n, SAMPLE_DTYPE)
    samples["hash"] = np.random.default_rng(seed).integers(0, 2**63, n, np.uint64)
    return samples


def measured(peaks: Any, seed: int = 0) -> SetStatistics:
    """Tensors whose values reach from 0 to ``peaks[sample, tensor]``."""
    n, tensors = peaks.shape
    statistics = SetStatistics.empty([1] * tensors)
    statistics.samples = table(n, seed)
    slots = slots_of(statistics.samples)
    for i in range(tensors):
        np.minimum.at(statistics.slot_min[i], slots, np.float32(0))
        np.maximum.at(statistics.slot_max[i], slots, peaks[:, i].astype(np.float32))
    statistics.tensor_samples[:] = n
    return statistics


def images(pixels: Any, seed: int, *, is_normalized: bool = True) -> SetStatistics:
    """Pixels ``[n, 3, h, w]`` as the first input."""
    x = (pixels / 255 - MEAN) / STD if is_normalized else pixels
    statistics = SetStatistics.empty([3], lattices=3)
    statistics.samples = table(len(x), seed)
    flat = x.reshape(len(x), -1)
    statistics.samples["mean"], statistics.samples["deviation"] = flat.mean(axis=1), flat.std(axis=1)
    view = statistics.tensor(0)
    view.count[:] = x[:, 0].size
    view.mean[:], view.m2[:] = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3)) * x[:, 0].size
    view.min[:], view.max[:] = x.min(axis=(0, 2, 3)), x.max(axis=(0, 2, 3))
    statistics.lattice = [np.unique(x[:, c]).astype(np.float32) for c in range(3)]
    return statistics


def case_of(representative: SetStatistics, validation: SetStatistics, run: Any = None) -> Case:
    sets = {"representative": representative, "validation": validation}
    return case_of_sets(sets, QuantizerFacts(scale=1.0), spatial_input=True, run=run or {})


def photographs(seed: int, n: int) -> Any:
    """Pixels of images whose brightness varies from one to the next."""
    rng = np.random.default_rng(seed)
    shade = rng.uniform(60, 140, (n, 1, 1, 1)) + rng.normal(0, 40, (n, 3, 8, 8))
    return np.clip(np.rint(shade), 0, 255)


@pytest.mark.thorough
@some
@given(seed=st.integers(0, 10_000), size=st.sampled_from([8, 16, 32]))
def test_the_middle_part_lacks_what_random_parts_of_that_size_lack(seed, size):
    """Parts are drawn from slots here, and sample by sample there."""
    rng = np.random.default_rng(seed)
    peaks = rng.lognormal(0, 0.5, (400, 5))
    found = ordinary_ranges(case_of(measured(peaks[:size], 1), measured(peaks, seed)))
    drawn = [peaks[rng.permutation(400)[:size]].max(axis=0) for _ in range(400)]
    lacks = [((1 - own / peaks.max(axis=0)) ** 4).mean() ** 0.25 for own in drawn]
    assert found is not None
    assert found.usual == pytest.approx(np.median(lacks), rel=0.15)


@pytest.mark.thorough
def test_ordinary_samples_are_seldom_taken_for_others():
    """By its definition a quantile of 2 % is undercut in 2 % of all draws."""
    rng = np.random.default_rng(3)
    validation = rng.lognormal(0, 0.5, (400, 5))
    cases = [case_of(measured(rng.lognormal(0, 0.5, (8, 5)), k), measured(validation, 4)) for k in range(100)]
    found = [own for case in cases if (own := ordinary_ranges(case)) is not None]
    assert len(found) == 100
    assert sum(own.quantile < 0.02 for own in found) <= 8
    assert sum(own.quantile < 0.02 and own.usual < 0.75 * own.lack for own in found) <= 2


def test_samples_of_a_third_of_the_size_lack_more_than_as_few_others():
    rng = np.random.default_rng(5)
    peaks = rng.lognormal(0, 0.2, (400, 5))
    found = ordinary_ranges(case_of(measured(0.35 * rng.lognormal(0, 0.2, (8, 5)), 1), measured(peaks, 2)))
    assert found is not None
    assert found.quantile == 0
    assert found.usual < 0.75 * found.lack


def test_few_samples_and_cases_of_earlier_versions_say_nothing():
    peaks = np.random.default_rng(0).uniform(1, 2, (100, 2))
    whole, older = measured(peaks, 2), measured(peaks)
    older.slot_max[:] = np.nan
    judged = {
        "a validation set that is hardly larger": (measured(peaks[:11], 1), measured(peaks[:20], 2), False),
        "one that is large enough": (measured(peaks[:8], 1), measured(peaks[:20], 2), True),
        "three samples": (measured(0.1 * peaks[:3], 1), whole, False),
        "an earlier version": (measured(peaks[:8], 1), older, False),
        "merged with an earlier version": (measured(peaks[:8], 1), measured(peaks).merge(older), False),
    }
    found = {name: ordinary_ranges(case_of(mine, other)) is not None for name, (mine, other, _) in judged.items()}
    assert found == {name: expected for name, (_, _, expected) in judged.items()}


#: The preprocessing of both sets, as the user told it.
NORMALIZATION = {"mean": MEAN.ravel().tolist(), "std": STD.ravel().tolist(), "scale": 255.0}
TOLD = {"representative": NORMALIZATION, "validation": NORMALIZATION}


def test_darkened_images_are_called_darker_by_their_factor():
    light = images(photographs(2, 200), 2)
    for gain in (0.35, 0.7):
        facts = brightness_facts(case_of(images(gain * photographs(1, 24), 1), light, {"preprocessing": TOLD}))
        assert facts["brightness_ratio"] == pytest.approx(gain, rel=0.1)
        assert facts["contrast_ratio"] == pytest.approx(gain, rel=0.1)
        assert (
            f"darker, {facts['brightness_ratio']:.2g} times the brightness (mean pixel" in facts["brightness_reading"]
        )
        assert "as if each pixel were multiplied by" in facts["brightness_reading"]


def test_ordinary_images_are_neither():
    light = images(photographs(99, 200), 2)
    for seed in range(20):
        facts = brightness_facts(case_of(images(photographs(seed, 4), 1), light, {"preprocessing": TOLD}))
        assert "brightness_reading" not in facts


def test_less_contrast_alone_is_no_gain():
    pixels = photographs(1, 64)
    middle = pixels.mean(axis=(1, 2, 3), keepdims=True)
    told = {"mean": [0.0], "scale": 1.0}
    found = brightness_facts(
        case_of(
            images(middle + 0.4 * (pixels - middle), 1, is_normalized=False),
            images(photographs(2, 200), 2, is_normalized=False),
            {"preprocessing": {"representative": told, "validation": told}},
        )
    )
    assert found["brightness_reading"].startswith("the representative images are of less contrast, 0.")
    assert "multiplied" not in found["brightness_reading"]


def test_where_black_is_not_known_nothing_is_said():
    pixels = np.clip(photographs(1, 24), 60, 200)
    case = case_of(images(0.35 * pixels, 1), images(pixels, 2))
    assert brightness_facts(case) == {}
    assert brightness_facts(replace(case, record=case.record.model_copy(update={"spatial_input": False}))) == {}


def test_a_grid_of_all_pixels_shows_what_is_black():
    bright = photographs(2, 200)
    bright[0, :, 0, 0], bright[0, :, 0, 1] = 0, 255
    bright[0, :, 1:] = np.arange(56).reshape(7, 8) * 4
    dark = np.rint(0.5 * photographs(1, 24))
    facts = brightness_facts(case_of(images(dark, 1), images(bright, 2)))
    assert facts["brightness_ratio"] == pytest.approx(dark.mean() / bright.mean(), rel=1e-3)


def test_the_clipped_shares_of_both_sets_are_one_phrase():
    peaks = np.random.default_rng(0).uniform(1, 2, (100, 2))
    case = case_of(measured(peaks[:60], 1), measured(peaks, 2))
    readings = {
        (0.0, 0.05): "5.00 % of the validation activations exceed the calibrated ranges, none of the representative "
        "ones do",
        (0.01, 0.05): "5.00 % of the validation activations exceed the calibrated ranges, 1.00 % of the "
        "representative ones do",
        (0.01, 1e-7): "less than 0.01 % of the validation activations exceed the calibrated ranges, 1.00 % of the "
        "representative ones do",
        (0.01, 0.0): "none of the validation activations exceed the calibrated ranges, 1.00 % of the representative "
        "ones do",
        (0.0, 0.0): "no activation of either set exceeds the calibrated ranges",
        (None, 0.05): None,
    }
    for (mine, other), words in readings.items():
        assert domain_facts(case, {"representative": mine, "validation": other})["clipped_reading"] == words
