"""Metrics that are no means: their intervals, and what they are for any choice of the samples."""

import numpy as np
import pytest
from builders.metrics import pair_of

from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.kinds import KINDS, built_in_kind, is_share, kind_of
from quantmedic.engine.metrics.paired import score_interval

TALLIED = ("map", "miou", "f1", "f1-binary", "cer", "perplexity")


def interval(name, floats, quantized, **options):
    kind = kind_of(name)
    return kind.drop_interval(floats, quantized, higher_is_better=bool(kind.higher_is_better), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*TALLIED, "recall@1"])
def test_the_interval_holds_the_drop_and_the_sign_turns_with_the_models(name):
    floats, quantized = pair_of(name, np.random.default_rng(1), 60)
    drop, low, high = interval(name, floats, quantized)
    kind = kind_of(name)
    change = kind.value(floats) - kind.value(quantized)
    assert drop == pytest.approx(change if kind.higher_is_better else -change, abs=1e-12)
    assert low <= drop <= high and low < high
    assert interval(name, floats, quantized) == (drop, low, high)
    back = interval(name, quantized, floats)
    assert back == pytest.approx((-drop, -high, -low), abs=0.25 * (high - low))
    assert interval(name, floats, quantized, confidence=0.5)[2] < high


@pytest.mark.parametrize("name", TALLIED)
def test_a_sample_counted_twice_is_a_sample_that_stands_there_twice(name):
    tally, _ = pair_of(name, np.random.default_rng(2), 12)
    times = np.random.default_rng(3).integers(0, 3, (4, 12)).astype(float)
    estimate = KINDS[name].estimate
    found = estimate(tally)(times)
    for own, value in zip(times, found, strict=True):
        drawn = tally.take(np.repeat(np.arange(12), own.astype(int)))
        assert kind_of(name).value(drawn) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("name", TALLIED)
def test_models_that_do_not_differ(name):
    tally, _ = pair_of(name, np.random.default_rng(4), 40)
    drop, low, high = interval(name, tally, tally)
    least, most = (float(end) for end in score_interval(0, 0, 40)) if is_share(name) else (0.0, 0.0)
    assert (drop, low, high) == (0, least, most)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*TALLIED, "recall@1"])
def test_coverage_is_near_its_name(name):
    """Of 150 sets of 80 samples (60 for boxes), about 95 % of the intervals hold the drop of a very large set."""
    rng, sets = np.random.default_rng(7), 60 if name == "map" else 150
    kind, sign = kind_of(name), 1 if kind_of(name).higher_is_better else -1
    large = [pair_of(name, rng, 2000) for _ in range(2 if name == "map" else 8)]
    truth = np.mean([sign * (kind.value(floats) - kind.value(quantized)) for floats, quantized in large])
    found = [interval(name, *pair_of(name, rng, 80)) for _ in range(sets)]
    assert 0.90 <= np.mean([low <= truth <= high for _, low, high in found]) <= 1


def test_relative_drops_and_levels():
    floats, quantized = pair_of("cer", np.random.default_rng(5), 50)
    kind = kind_of("cer")
    drop = kind.relative_drop_interval(floats, quantized, higher_is_better=False)
    assert drop[0] == pytest.approx(kind.value(quantized) / kind.value(floats) - 1)
    assert drop[1] < drop[0] < drop[2]
    low, high = kind.value_interval(floats)
    assert low < kind.value(floats) < high


def test_names():
    assert built_in_kind("recall@5") is not None and built_in_kind("recall@0") is None
    assert built_in_kind("own:metric") is None and kind_of("own:metric").is_mean
    assert not kind_of("recall@2").is_mean and kind_of("top1").is_mean
    assert [name for name in KINDS if not is_share(name)] == ["mae", "rmse", "perplexity"]


def test_nothing_to_measure():
    empty = Tally.of_samples([], 3)
    for name in KINDS:
        assert np.isnan(kind_of(name).value(empty))
    alone = Tally.of_rows(np.array([[1.0, 0.3, 0.4], [2.0, 0.5, 0.1]]))
    assert np.isnan(kind_of("recall@1").value(alone))
    assert np.isnan(interval("recall@1", alone, alone)).all()


def test_map_of_one_class_by_hand():
    """Of two labelled boxes the best detection finds one and the third the other: precision 1, then 2 / 3."""
    rows = np.array([[0, 0, 2], [0, 0.9, 1], [0, 0.8, 0], [0, 0.7, 1]], float)
    assert kind_of("map50").value(Tally.of_samples([rows], 3)) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert kind_of("map").value(Tally.of_samples([rows], 3)) == pytest.approx((51 + 50 * 2 / 3) / 1010)
