"""The change of metric and outputs, and the one word for it."""

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import MetricFacts, OutputFacts
from quantmedic.engine.case.statistics import SAMPLE_DTYPE
from quantmedic.engine.metrics.paired import drop_interval, independent_difference
from quantmedic.engine.versus.outcome import MetricChange, answer, direction_of, metric_change, output_changes

OPPOSITE = {"healed": "broken", "broken": "healed", "better": "worse", "worse": "better"}


def samples(hashes: Any, quantized: Any, labels: int = 0) -> Any:
    table = np.zeros(len(hashes), SAMPLE_DTYPE)
    table["hash"], table["metric_quantized"], table["metric_float"], table["label"] = hashes, quantized, 1.0, labels
    return table


def case(table: Any, metric: str = "top1", higher: bool = True) -> Any:
    """A case as far as the change of its metric needs one."""
    record = SimpleNamespace(metric=metric, metric_higher_is_better=higher, run={"seed": 0})
    return SimpleNamespace(record=record, statistics={"validation": SimpleNamespace(samples=table, tallies={})})


def facts(table: Any, higher: bool = True, name: str = "top1") -> MetricFacts:
    values = table["metric_float"], table["metric_quantized"]
    drop, low, high = drop_interval(*values, higher_is_better=higher, root=name == "rmse")
    ends = {"drop": drop, "drop_low": low, "drop_high": high}
    return MetricFacts(name=name, higher_is_better=higher, dataset="validation", samples=len(table), **ends)


def change(then: Any, now: Any, *, same_float: bool = True, name: str = "top1", higher: bool = True) -> Any:
    cases = [case(table, name, higher) for table in (then, now)]
    return metric_change(*cases, facts(then, higher, name), facts(now, higher, name), same_float=same_float)


def test_the_same_samples_are_paired_whatever_their_order() -> None:
    rng = np.random.default_rng(1)
    hashes = np.arange(200)
    old, new = (rng.random(200) < 0.6).astype(float), (rng.random(200) < 0.9).astype(float)
    mixed = rng.permutation(200)
    found = cast(MetricChange, change(samples(hashes, old), samples(hashes[mixed], new[mixed])))
    assert found.paired and found.samples == 200
    assert found.gain == pytest.approx(new.mean() - old.mean())
    _, low, high = drop_interval(old, new, higher_is_better=True)
    assert (found.low, found.high) == (pytest.approx(-high), pytest.approx(-low))
    assert found.direction == "better"
    hashes, old = np.arange(40), np.ones(40)
    inside = change(samples(hashes, old), samples(hashes, np.where(hashes < 2, 0.0, old)))
    assert inside.gain == pytest.approx(-0.05) and inside.low < 0 < inside.high and inside.direction == "same"
    repeated = change(samples([5, 5, 5, 7], [1, 0, 1, 1]), samples([5, 7, 5], [1, 1, 0]))
    assert repeated.samples == 3 and repeated.gain == pytest.approx(0.0)


def test_lower_is_better_turns_the_sign() -> None:
    rng = np.random.default_rng(2)
    hashes, old = np.arange(100), rng.random(100)
    found = change(samples(hashes, old + 1), samples(hashes, old), name="mae", higher=False)
    assert found.gain == pytest.approx(1.0) and found.direction == "better"


def test_relabelled_and_other_samples_are_not_paired() -> None:
    rng = np.random.default_rng(3)
    old, new = (rng.random(300) < 0.3).astype(float), (rng.random(300) < 0.9).astype(float)
    for then, now in (
        (samples(np.arange(300), old), samples(np.arange(300) + 1000, new)),
        (samples(np.arange(300), old, labels=1), samples(np.arange(300), new, labels=2)),
    ):
        found = change(then, now)
        assert not found.paired and found.direction == "better"
        assert found.gain == pytest.approx(facts(then).drop - facts(now).drop)
        assert found.low < found.gain < found.high
        assert change(then, now, same_float=False) is None, "drops of two float models do not compare"


def test_few_common_samples_do_not_stand_for_the_set() -> None:
    values = np.ones(100)
    assert change(samples(np.arange(100), values), samples(np.arange(50, 150), values)).paired
    assert not change(samples(np.arange(100), values), samples(np.arange(51, 151), values)).paired


def test_different_metrics_are_not_compared() -> None:
    table = samples(np.arange(10), np.ones(10))
    cases = case(table, "top1"), case(table, "top5")
    assert metric_change(*cases, facts(table), facts(table, name="top5"), same_float=True) is None
    assert metric_change(case(table), case(table), facts(table), MetricFacts(), same_float=True) is None


estimate = st.tuples(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1)).map(lambda x: (x[0], x[0] - x[1], x[0] + x[2]))


@given(estimate, estimate)
def test_a_difference_is_at_least_as_uncertain_as_either_part(first: Any, second: Any) -> None:
    difference, low, high = independent_difference(first, second)
    assert low <= difference <= high
    widths = (first[0] - first[1], second[2] - second[0])
    assert difference - low == pytest.approx(math.hypot(*widths), abs=1e-12)
    mirrored = independent_difference(second, first)
    assert mirrored == (pytest.approx(-difference), pytest.approx(-high), pytest.approx(-low))


def output(name: str, sqnr: float | None) -> OutputFacts:
    return OutputFacts.model_validate({"name": name, "tensor": {"data": {"accumulated": {"sqnr_db": sqnr}}}})


def outputs(then: Any, now: Any, same: bool = True) -> Any:
    return output_changes(then, now, same_data=same, margin_db=1.0)


def test_outputs_change_by_levels() -> None:
    for before, after, gain, direction in [
        (20.0, 20.9, 0.9, "same"),
        (20.0, 21.0, 1.0, "better"),
        (20.0, 18.0, -2.0, "worse"),
        (math.inf, math.inf, 0.0, "same"),
        (20.0, math.inf, math.inf, "better"),
        (None, 20.0, None, None),
    ]:
        (found,) = outputs([output("y", before)], [output("y", after)])
        assert (found.gain_db, found.direction) == (gain if gain is None else pytest.approx(gain), direction)
        (elsewhere,) = outputs([output("y", before)], [output("y", after)], same=False)
        assert elsewhere.direction is None


def test_outputs_match_by_name_else_one_by_one() -> None:
    found = outputs([output("a", 1.0), output("b", 2.0)], [output("b", 5.0), output("c", 9.0)])
    assert [(row.name, row.before, row.after) for row in found] == [("b", 2.0, 5.0)]
    found = outputs([output("a", 1.0), output("b", 2.0)], [output("x", 5.0), output("y", 9.0)])
    assert [row.gain_db for row in found] == [4.0, 7.0]
    assert outputs([output("a", 1.0)], [output("x", 5.0), output("y", 9.0)]) == ()


def test_directions_together() -> None:
    assert direction_of([]) is None and direction_of([None]) is None
    assert direction_of(["same", "better", None]) == "better"
    assert direction_of(["worse", "better"]) == "mixed"
    assert direction_of(["same", None]) == "same"


def word(before: str, after: str, measured: Any, causes: Any = None, healed: bool = False, new: bool = False) -> str:
    sides: Any = (SimpleNamespace(verdict=before), SimpleNamespace(verdict=after))
    return answer(*sides, measured, causes, all_healed=healed, all_new=new)


def test_the_answer() -> None:
    for arguments, expected in [
        (("degraded", "healthy", "better"), "healed"),
        (("degraded", "healthy", "same", None, True), "healed"),
        (("degraded", "healthy", None, "better", True), "healed"),
        (("degraded", "healthy", "same"), "unchanged"),
        (("degraded", "healthy", "worse", None, True), "worse"),
        (("degraded", "healthy", "mixed"), "healed"),
        (("degraded", "healthy", None, None, True), "undecided"),
        (("degraded", "degraded", "better"), "better"),
        (("healthy", "healthy", "worse"), "worse"),
        (("degraded", "degraded", "same", "better"), "unchanged"),
        (("degraded", "degraded", None, "mixed"), "mixed"),
        (("degraded", "degraded", None, "same"), "unchanged"),
        (("degraded", "degraded", None), "undecided"),
        (("not-comparable", "healthy", "better"), "not-comparable"),
        (("degraded", "not-comparable", "same"), "not-comparable"),
    ]:
        assert word(*arguments) == expected, arguments


verdicts = st.sampled_from(["healthy", "degraded", "not-comparable"])
signs = st.sampled_from(["better", "worse", "same", "mixed", None])


@given(verdicts, verdicts, signs, signs, st.booleans(), st.booleans())
def test_swapped_cases_give_the_opposite_word(
    before: str, after: str, measured: Any, causes: Any, healed: bool, new: bool
) -> None:
    there = word(before, after, measured, causes, healed, new)
    turned = [OPPOSITE.get(sign, sign) for sign in (measured, causes)]
    assert word(after, before, *turned, new, healed) == OPPOSITE.get(there, there)
