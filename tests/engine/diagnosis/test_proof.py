"""Gains with intervals, and what may be called proven."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.gains import gain_of, typical_gain
from quantmedic.engine.case.proof import MetricTrial, ProofRecord, TrialRecord
from quantmedic.engine.case.records import RunRecord, SimulationRecord
from quantmedic.engine.contract.advised_remedies import Advice
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.diagnosis.prediction import predict
from quantmedic.engine.diagnosis.remedy_outcomes import RemedyOutcome, RemedyOutcomes
from quantmedic.engine.diagnosis.report_rows import proof_of
from quantmedic.engine.diagnosis.suspects import Repair
from quantmedic.engine.formulas.change import Change, Targets

BASE = load_rulebase()
powers = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=60)


@given(powers, st.floats(1e-3, 1e3))
def test_equal_shares_of_every_sample_have_no_spread(before, factor):
    noise = np.array(before)
    gain = gain_of(noise, noise * factor)
    assert gain.gain_db == pytest.approx(-10 * np.log10(factor), abs=1e-6)
    assert gain.low_db == pytest.approx(gain.gain_db, abs=1e-6)
    assert gain.high_db == pytest.approx(gain.gain_db, abs=1e-6)
    assert gain.share == pytest.approx(1 - factor)


@given(powers, st.integers(0, 9))
def test_the_interval_holds_the_gain_and_the_same_seed_gives_it_again(before, seed):
    noise = np.array(before)
    after = np.random.default_rng(seed).permutation(noise)
    gain = gain_of(noise, after, seed)
    assert gain.low_db <= gain.high_db
    assert gain == gain_of(noise, after, seed)
    assert gain.share == pytest.approx(0, abs=1e-6)
    assert gain.typical or gain.gain_db == pytest.approx(0, abs=1e-6)


def test_a_real_gain_is_proven_and_one_that_chance_explains_is_not():
    """Of forty experiments in which nothing changes, hardly any is called proven."""
    rng = np.random.default_rng(0)
    gains = [gain_of(rng.lognormal(0, 1, 100), rng.lognormal(0, 1, 100)) for _ in range(40)]
    assert sum(TrialRecord(key="k", kind="k", **gain._asdict()).proven for gain in gains) <= 4
    before = rng.lognormal(0, 1, 100)
    gain = gain_of(before, before * rng.lognormal(-0.7, 0.5, 100))
    assert TrialRecord(key="k", kind="k", **gain._asdict()).proven
    assert gain.low_db < gain.gain_db < gain.high_db


SPIKE = np.append(np.full(63, 1.0), 1e4)
#: Noise before and after: whether it is proven, and by the median sample.
JUDGED = {
    "all samples but a spike are mended": (SPIKE, np.append(np.full(63, 0.01), 1.1e4), True, True),
    "a spike is mended, the others lose a little": (SPIKE, np.append(np.full(63, 1.1), 1.0), False, False),
    "many loud samples are mended, the others lose a little": (
        np.repeat([1.0, 100.0], 32),
        np.append(np.full(32, 1.1), np.full(32, 1.0)),
        True,
        False,
    ),
    "most gain a little, and the sum surely loses more": (
        np.repeat([1.0, 1.0], [44, 20]),
        np.repeat([0.8, 100.0], [44, 20]),
        False,
        False,
    ),
    "the sum surely gains a little, and most samples lose more": (
        np.repeat([1.0, 100.0], [44, 20]),
        np.repeat([12.0, 10.0], [44, 20]),
        False,
        True,
    ),
}


def test_the_median_sample_speaks_where_the_sum_is_not_sure():
    for name, (before, after, proven, typical) in JUDGED.items():
        gain = gain_of(before, after)
        assert (TrialRecord(key="k", kind="k", **gain._asdict()).proven, gain.typical) == (proven, typical), name
        runs = {"remedy": RunRecord(noise=tuple(after))}
        known = RunRecord(noise=tuple(before))
        record = SimulationRecord(dataset="validation", power=(1e5,) * 64, deployed=known, simulated=known, runs=runs)
        found = predict(record, "remedy")
        assert (found.low_db > 0, found.typical) == (proven, typical), name
        assert found.gain_db == pytest.approx(gain.gain_db, abs=0.01)


@given(st.integers(8, 300), st.floats(-20, 20), st.integers(0, 9))
def test_the_median_gain_is_that_of_the_samples_and_scales_with_them(samples, shift, seed):
    rng = np.random.default_rng(seed)
    before, after = rng.lognormal(0, 2, samples), rng.lognormal(0, 2, samples)
    gain, shifted = typical_gain(before, after), typical_gain(before, after / 10 ** (shift / 10))
    each = 10 * np.log10(before / after)
    assert gain.value == pytest.approx(np.median(each))
    assert {round(gain.low, 9), round(gain.high, 9)} <= set(np.round(each, 9))
    assert shifted == pytest.approx([end + shift for end in gain])


def test_the_median_of_noise_that_stays_the_same_is_hardly_ever_sure():
    rng = np.random.default_rng(1)
    found = [typical_gain(rng.lognormal(0, 2, 60), rng.lognormal(0, 2, 60)) for _ in range(300)]
    assert sum(each.sure != 0 for each in found) <= 6
    assert typical_gain(np.ones(7), np.ones(7)) is None


def test_one_sample_has_no_interval_and_proves_nothing():
    gain = gain_of(np.array([1.0]), np.array([0.01]))
    assert (gain.gain_db, gain.low_db) == (pytest.approx(20), None)
    assert not TrialRecord(key="k", kind="k", **gain._asdict()).proven
    assert gain_of(np.zeros(5), np.zeros(5)).gain_db == 0
    assert gain_of(np.ones(5), np.zeros(5)).gain_db == pytest.approx(60), "all noise is gone"


def test_less_noise_with_a_worse_metric_is_not_proven():
    worse = MetricTrial(
        name="top1", float_model=0.9, before=0.8, after=0.7, gain=-0.1, low=-0.2, high=-0.05, left=0.2,
        left_low=0.1, left_high=0.3,
    )  # fmt: skip
    assert not TrialRecord(key="k", kind="k", gain_db=3, low_db=2, high_db=4, metric=worse).proven
    even = worse.model_copy(update={"high": 0.05})
    assert TrialRecord(key="k", kind="k", gain_db=3, low_db=2, high_db=4, metric=even).proven


def test_the_chain_is_told_as_one_share():
    """10 dB and then 10 dB more: 99 % is recovered."""
    trials = (
        TrialRecord(key="a", kind="recalibrate", sqnr_before=0, sqnr_after=10, gain_db=10, low_db=9),
        TrialRecord(key="b", kind="float-bias", sqnr_before=0, sqnr_after=1, gain_db=1, low_db=0.5),
        TrialRecord(key="b", kind="float-bias", after=("a",), sqnr_before=10, sqnr_after=20, gain_db=10, low_db=9),
    )
    record = ProofRecord(
        dataset="validation", seed=0, fitted=8, judged=8, cross_fitted=False, budget_seconds=1, spent_seconds=1,
        stopped="explained", trials=trials, chain=("a", "b"),
    )  # fmt: skip
    proof = proof_of(record, [], [], BASE)
    assert proof is not None
    assert [row.trial.after for row in proof.chain] == [(), ("a",)]
    assert [row.trial.key for row in proof.trials] == ["a", "b"]
    assert proof.explained == pytest.approx(0.99)
    assert record.last_addition("b") == trials[2]


def test_what_the_printed_text_gave_counts_more_than_an_edit_that_proves_nothing() -> None:
    """An edit took 74 % of the noise away on the one noisy sample, the text of the same remedy none of it."""
    remedy = BASE.remedies["keep-group-float"]
    fields = {name: getattr(remedy, name) for name in ("id", "title", "changes", "cost", "unsafe", "scope", "simulate")}
    found = CauseReport(
        cause="one", rules=("X001",), severity="high", confidence=0.5, subjects=(), layers=(), message="one",
        evidence=(), remedies=(Advice(**fields),), manual="manual/X001",
    )  # fmt: skip
    kind = remedy.simulate
    assert kind is not None
    edited = TrialRecord(key="k", kind=kind, gain_db=5.9, low_db=0.0, high_db=5.9, share=0.74)
    outcome = RemedyOutcomes(BASE, {kind: RemedyOutcome(None, edited)}, Repair(kind, "k", Change(), Targets()))
    assert outcome.report(found).remedies[0].measured == edited
    printed = edited.model_copy(update={"gain_db": 2.7, "high_db": 2.7, "share": 0.46})
    ran = replace(outcome, executed={f"one:{remedy.id}": printed})
    shown = ran.report(found)
    assert shown.remedies[0].measured == printed and shown.measured_gain_db == 2.7
    worse = edited.model_copy(update={"gain_db": -1.1, "share": -0.3})
    left = replace(outcome, executed={f"one:{remedy.id}": worse}).report(found)
    assert not left.remedies and "makes the output 1.1 dB noisier" in left.withheld[0].because
