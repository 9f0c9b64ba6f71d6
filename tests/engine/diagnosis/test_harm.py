"""The numbers behind a verdict: which samples decide, and what counts as recoverable."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builders.properties import examples
from hypothesis import assume, given
from hypothesis import strategies as st

import quantmedic
from quantmedic.engine.case.facts import CaseFacts, MetricFacts, ModelFacts
from quantmedic.engine.contract.harm_report import Undecided
from quantmedic.engine.diagnosis.assemble import drop_class
from quantmedic.engine.diagnosis.harm import (
    MOST_LABELS,
    Loss,
    as_if_harmed,
    unsimulated_gain_db,
    without_harmless,
)
from quantmedic.engine.diagnosis.prediction import Prediction
from quantmedic.engine.diagnosis.remedy_outcomes import RemedyOutcome, RemedyOutcomes
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
    return loss.why_undecided((), {})


@given(st.integers(20, 2000), st.data())
@examples(40)
def test_what_is_undecided_is_neither_proven_nor_excluded(n: int, data: st.DataObject) -> None:
    losses = data.draw(st.integers(0, n // 4))
    gains = data.draw(st.integers(0, n // 4))
    loss = loss_of(losses, gains, n)
    found = undecided(loss)
    assert (found is None) is (loss.is_proven or loss.is_excluded)
    assert found is None or found.needed is None or n < found.needed <= MOST_LABELS


@given(st.integers(20, 2000), st.data())
@examples(40)
def test_the_named_samples_decide_where_the_drop_stays(n: int, data: st.DataObject) -> None:
    losses, gains = data.draw(st.integers(0, n // 4)), data.draw(st.integers(0, n // 4))
    found = undecided(loss_of(losses, gains, n))
    assume(found is not None and found.needed is not None)
    assert found is not None and found.needed is not None
    times = -(-found.needed // n)  # whole, so that the drop stays
    assert undecided(loss_of(times * losses, times * gains, times * n)) is None


def test_nothing_is_undecided_where_little_is_to_be_had() -> None:
    assert undecided(loss_of(2, 1, 60)) is not None
    assert undecided(loss_of(2, 1, 60, 0.0)) is undecided(loss_of(2, 1, 60, 5.9)) is None
    found = undecided(loss_of(30, 15, 1001))
    assert found is not None and found.needed is None and found.most == MOST_LABELS, "more than are proposed"


def outcome(
    kind: str, gain: float, low: float, *, trial: Any = None, reach: float = 1.0, last: Prediction | None = None
) -> RemedyOutcomes:
    known = Prediction(gain_db=gain, low_db=low, high_db=gain + 1, share=0.5, sqnr_db=20, agreement=None)
    chosen: Any = SimpleNamespace(kind=kind)
    return RemedyOutcomes(BASE, {kind: RemedyOutcome(known, trial, reach)}, chosen, last=last)


def test_what_a_repair_with_the_bits_in_force_recovers() -> None:
    for kind, low, expected in [
        ("recalibrate", 5.0, 8.0),
        ("recalibrate", -1.0, None),  # perhaps nothing
        ("sixteen-bit", 5.0, None),  # more bits help any network
        ("float", 5.0, None),  # so does float
        ("float-weights", 5.0, None),  # a bound is no repair
        ("eight-bit-weights", 5.0, 8.0),  # 8 bits are what toolchains give
    ]:
        assert outcome(kind, 8.0, low).recoverable_db == expected, (kind, low)
    for kind, expected in [("best-range", 9.0), ("float", None)]:  # what other repairs leave counts too
        last = Prediction(gain_db=9.0, low_db=8.0, high_db=10.0, share=0.9, sqnr_db=30, agreement=None)
        assert outcome(kind, 0.4, -0.2, last=last).recoverable_db == expected, kind


def test_more_bits_count_for_few_places_that_make_most() -> None:
    for gain, reach, counts in [
        (8.0, 0.1, True),  # one place of ten makes most of the noise
        (5.0, 0.5, False),  # half of the places make little more than their half
        (20.0, 0.5, True),  # half of the places make all of it
        (3.0, 0.1, False),  # three decibels are no anomaly
    ]:
        expected = gain if counts else None
        assert outcome("sixteen-bit", gain, gain - 1, reach=reach).recoverable_db == expected, (gain, reach)


@given(st.floats(0.001, 0.999))
def test_what_no_quantizer_makes_is_to_be_had_by_who_shows_it(share: float) -> None:
    shown = Evidence(fact="model.unsimulated_share", value=share, comparison="shown", threshold=None, subject="model")
    other = shown.model_copy(update={"fact": "model.cpu_vnni", "value": False})
    rule = next(rule for rule in BASE.rules if rule.id == "R001")
    finding = Finding(rule, "conv", "conv", "", (other, shown))
    assert unsimulated_gain_db([finding]) == pytest.approx(-10 * math.log10(1 - share))
    assert unsimulated_gain_db([replace(finding, evidence=(other,))]) is None
    results = [RuleResult(rule, (finding,), (), 1, False)]
    kept = without_harmless(results, [replace(results[0], findings=())], {}, BASE)
    least = BASE.threshold("assumed_harm_gain_db")
    assert bool(kept[0].findings) == (-10 * math.log10(1 - share) >= least)


def test_a_trial_goes_before_a_simulation() -> None:
    for proven, high, expected in [
        (True, 3.0, 2.0),
        (False, 3.0, 3.0),  # no more than the trial leaves open
        (False, 12.0, 8.0),  # a trial on few samples refutes nothing
    ]:
        trial = SimpleNamespace(proven=proven, gain_db=2.0, high_db=high)
        assert outcome("recalibrate", 8.0, 5.0, trial=trial).recoverable_db == expected, (proven, high)


def test_harm_is_supposed_only_where_none_was_found() -> None:
    known: list[tuple[bool | None, dict[str, Any], bool | None]] = [
        (False, {}, True),
        (True, {}, True),
        (None, {}, None),
        (False, {"same_as_float": "bytes"}, False),
    ]
    for harmed, more, supposed in known:
        assert as_if_harmed(CaseFacts(model=ModelFacts(harmed=harmed, **more))).model.harmed is supposed
