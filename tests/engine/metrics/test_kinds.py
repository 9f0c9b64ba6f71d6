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
def test_the_interval_holds_the_drop_and_the_sign_turns_with_the_models(subtests: pytest.Subtests) -> None:
    for name in (*TALLIED, "recall@1"):
        with subtests.test(name):
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


def test_a_sample_counted_twice_is_a_sample_that_stands_there_twice() -> None:
    for name in TALLIED:
        tally, _ = pair_of(name, np.random.default_rng(2), 12)
        times = np.random.default_rng(3).integers(0, 3, (4, 12)).astype(float)
        found = KINDS[name].estimate(tally)(times)
        drawn = [tally.take(np.repeat(np.arange(12), own.astype(int))) for own in times]
        assert [kind_of(name).value(own) for own in drawn] == pytest.approx(found.tolist(), abs=1e-12), name


def test_models_that_do_not_differ() -> None:
    for name in TALLIED:
        tally, _ = pair_of(name, np.random.default_rng(4), 40)
        least, most = (float(end) for end in score_interval(0, 0, 40)) if is_share(name) else (0.0, 0.0)
        assert interval(name, tally, tally) == (0, least, most), name


def coverage(name: str, sets: int) -> float:
    """How many intervals of 80 samples hold the drop of a very large set."""
    rng = np.random.default_rng(7)
    kind, sign = kind_of(name), 1 if kind_of(name).higher_is_better else -1
    large = [pair_of(name, rng, 2000) for _ in range(2 if name == "map" else 8)]
    truth = np.mean([sign * (kind.value(floats) - kind.value(quantized)) for floats, quantized in large])
    found = [interval(name, *pair_of(name, rng, 80)) for _ in range(sets)]
    return float(np.mean([low <= truth <= high for _, low, high in found]))


@pytest.mark.nightly
def test_coverage_is_near_its_name() -> None:
    found = {name: coverage(name, 150) for name in ("miou", "f1", "f1-binary", "cer", "perplexity", "recall@1")}
    assert not {name: share for name, share in found.items() if not 0.90 <= share <= 1}


@pytest.mark.nightly
def test_coverage_of_average_precision_is_near_its_name() -> None:
    assert 0.90 <= coverage("map", 60) <= 1


def test_relative_drops_and_levels():
    floats, quantized = pair_of("cer", np.random.default_rng(5), 50)
    kind = kind_of("cer")
    drop = kind.drop_interval(floats, quantized, higher_is_better=False, relative=True)
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
