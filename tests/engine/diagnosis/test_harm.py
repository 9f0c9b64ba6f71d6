"""The numbers behind a verdict: which samples decide, and what counts as recoverable."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import quantmedic
from quantmedic.engine.case.facts import CaseFacts, MetricFacts, ModelFacts
from quantmedic.engine.contract.harm import Undecided
from quantmedic.engine.diagnosis.diagnose import drop_class
from quantmedic.engine.diagnosis.harm import (
    MOST_LABELS,
    Loss,
    as_if_harmed,
    recoverable_db,
    unsimulated_gain_db,
    without_idle,
)
from quantmedic.engine.diagnosis.prediction import Prediction
from quantmedic.engine.formulas.power import sizes_of_counts
from quantmedic.engine.metrics.paired import score_interval
from quantmedic.engine.rules.evaluate import Evidence, Finding, RuleResult

BASE = quantmedic.load_rulebase()


def loss_of(losses: int, gains: int, n: int, probed: float = 12.0) -> Loss:
    low, high = (float(end) for end in score_interval(losses, gains, n))
    metric = MetricFacts(
        name="top1", samples=n, float_value=0.9, drop=(losses - gains) / n, drop_low=low, drop_high=high
    )
    size = drop_class(metric, BASE)
    facts = CaseFacts(model=ModelFacts(metric=metric, harmed=size in ("moderate", "large"), output_worst_sqnr_db=15.0))
    return Loss(facts, size, BASE, lambda drop: sizes_of_counts(losses, gains, n, drop, 0.95), probed)


def undecided(loss: Loss) -> Undecided | None:
    return loss.undecided((), {})


@given(st.integers(20, 2000), st.data())
def test_what_is_undecided_is_neither_proven_nor_excluded(n: int, data: st.DataObject) -> None:
    losses = data.draw(st.integers(0, n // 4))
    gains = data.draw(st.integers(0, n // 4))
    loss = loss_of(losses, gains, n)
    found = undecided(loss)
    assert (found is None) is (loss.is_proven or loss.is_excluded)
    assert found is None or found.needed is None or n < found.needed <= MOST_LABELS


@given(st.integers(20, 2000), st.data())
def test_the_named_samples_decide_where_the_drop_stays(n: int, data: st.DataObject) -> None:
    losses, gains = data.draw(st.integers(0, n // 4)), data.draw(st.integers(0, n // 4))
    found = undecided(loss_of(losses, gains, n))
    assume(found is not None and found.needed is not None)
    assert found is not None and found.needed is not None
    times = -(-found.needed // n)  # whole, so that the drop stays
    assert undecided(loss_of(times * losses, times * gains, times * n)) is None


@pytest.mark.parametrize("probed", [0.0, 5.9])
def test_nothing_is_undecided_where_little_is_to_be_had(probed: float) -> None:
    assert undecided(loss_of(2, 1, 60, probed)) is None
    assert undecided(loss_of(2, 1, 60)) is not None


def test_a_drop_close_to_what_matters_takes_more_samples_than_are_proposed() -> None:
    found = undecided(loss_of(30, 15, 1001))
    assert found is not None and found.needed is None and found.most == MOST_LABELS


def outcome(
    kind: str, gain: float, low: float, *, trial: Any = None, reach: float = 1.0, last: Prediction | None = None
) -> Any:
    known = Prediction(gain_db=gain, low_db=low, high_db=gain + 1, share=0.5, sqnr_db=20, agreement=None)
    trials = {kind: trial} if trial is not None else {}
    chosen = SimpleNamespace(kind=kind)
    return SimpleNamespace(
        remedies={kind: known}, trials=trials, reach={kind: reach}, repair=chosen, last=last, added=None
    )


@pytest.mark.parametrize(("kind", "low", "expected"), [("best-range", 8.0, 9.0), ("float", 8.0, None)])
def test_what_other_repairs_leave_counts_too(kind: str, low: float, expected: float | None) -> None:
    last = Prediction(gain_db=9.0, low_db=low, high_db=10.0, share=0.9, sqnr_db=30, agreement=None)
    assert recoverable_db(outcome(kind, 0.4, -0.2, last=last), BASE) == expected


@pytest.mark.parametrize(
    ("kind", "low", "expected"),
    [
        ("recalibrate", 5.0, 8.0),
        pytest.param("recalibrate", -1.0, None, id="perhaps nothing"),
        pytest.param("sixteen-bit", 5.0, None, id="more bits help any network"),
        pytest.param("float", 5.0, None, id="so does float"),
        pytest.param("float-weights", 5.0, None, id="a bound is no repair"),
        pytest.param("eight-bit-weights", 5.0, 8.0, id="8 bits are what toolchains give"),
    ],
)
def test_what_a_repair_with_the_bits_in_force_recovers(kind: str, low: float, expected: float | None) -> None:
    assert recoverable_db(outcome(kind, 8.0, low), BASE) == expected


@pytest.mark.parametrize(
    ("gain", "reach", "counts"),
    [
        pytest.param(8.0, 0.1, True, id="one place of ten makes most of the noise"),
        pytest.param(5.0, 0.5, False, id="half of the places make little more than their half"),
        pytest.param(20.0, 0.5, True, id="half of the places make all of it"),
        pytest.param(3.0, 0.1, False, id="three decibels are no anomaly"),
    ],
)
def test_more_bits_count_for_few_places_that_make_most(gain: float, reach: float, counts: bool) -> None:
    assert recoverable_db(outcome("sixteen-bit", gain, gain - 1, reach=reach), BASE) == (gain if counts else None)


@given(st.floats(0.001, 0.999))
def test_what_no_quantizer_makes_is_to_be_had_by_who_shows_it(share: float) -> None:
    shown = Evidence("model.unsimulated_share", share, "shown", None, None, "model")
    other = replace(shown, fact="model.cpu_vnni", value=False)
    rule = next(rule for rule in BASE.rules if rule.id == "R001")
    finding = Finding(rule, "conv", "conv", "", (other, shown))
    assert unsimulated_gain_db([finding]) == pytest.approx(-10 * math.log10(1 - share))
    assert unsimulated_gain_db([replace(finding, evidence=(other,))]) is None
    results = [RuleResult(rule, (finding,), (), 1, False)]
    kept = without_idle(results, [replace(results[0], findings=())], {}, BASE)
    least = BASE.threshold("latent_gain_db")
    assert bool(kept[0].findings) == (-10 * math.log10(1 - share) >= least)


@pytest.mark.parametrize(
    ("proven", "high", "expected"),
    [
        pytest.param(True, 3.0, 2.0, id="proven"),
        pytest.param(False, 3.0, 3.0, id="no more than the trial leaves open"),
        pytest.param(False, 12.0, 8.0, id="a trial on few samples refutes nothing"),
    ],
)
def test_a_trial_goes_before_a_simulation(proven: bool, high: float, expected: float) -> None:
    trial = SimpleNamespace(proven=proven, gain_db=2.0, high_db=high)
    assert recoverable_db(outcome("recalibrate", 8.0, 5.0, trial=trial), BASE) == expected


@pytest.mark.parametrize(
    ("harmed", "known", "supposed"),
    [(False, {}, True), (True, {}, True), (None, {}, None), (False, {"same_as_float": "bytes"}, False)],
)
def test_harm_is_supposed_only_where_none_was_found(harmed: bool | None, known: Any, supposed: bool | None) -> None:
    assert as_if_harmed(CaseFacts(model=ModelFacts(harmed=harmed, **known))).model.harmed is supposed
