"""Scores of the zoo on answers made by hand: what counts as right, true, mild, silent and an alarm."""

from dataclasses import replace
from typing import Any

import pytest
from builders.zoo_rows import control, fault, said
from zoo.protocol.row import Budget, Cause, Piece, Row, Said, budget_of, causes_of
from zoo.protocol.scores import mistaken, own, peer, shares
from zoo.protocol.table import columns, render, render_misses


def figure(key: str, *rows: Row) -> tuple[int, int]:
    found = shares(rows, own)[key]
    return found.part, found.whole


def test_right_is_what_is_expected_and_true_what_the_author_calls_true() -> None:
    for names, counts in (
        (("wide-range", "x"), (1, 1, 1)),
        (("x", "y", "wide-range"), (0, 1, 0)),
        (("x", "y", "z", "wide-range"), (0, 0, 0)),
        (("poor-range", "wide-range"), (0, 1, 1)),
        ((), (0, 0, 0)),
    ):
        row = fault(said(*names))
        assert tuple(figure(key, row)[0] for key in ("first", "three", "true")) == counts, names


def test_a_right_name_inside_the_first_card_is_a_figure_of_its_own() -> None:
    answer = Said("degraded", (Cause("x", "high", 0.8, "A001", absorbs=("wide-range",)),))
    assert figure("true", fault(answer)) == (0, 1)
    assert figure("card", fault(answer)) == (1, 1)
    later = Said("degraded", (Cause("y"), Cause("x", absorbs=("wide-range",))))
    assert figure("card", fault(later)) == (0, 1)


def test_mild_and_harmless_are_told_by_the_measured_harm() -> None:
    strong, unproven = fault(said()), fault(said(), proven_drop=False)
    weak, nothing = fault(said(), gain_db=4.0), fault(said(), gain_db=4.0, hurts=False, proven_drop=False)
    loud = fault(said(), gain_db=6.0, hurts=False, proven_drop=False)
    assert [row.is_mild for row in (strong, unproven, weak, nothing, loud)] == [False, True, True, False, True]
    assert [row.to_be_found for row in (strong, unproven, weak, nothing, loud)] == [True, True, True, False, True]
    assert nothing.is_harmless and not loud.is_harmless
    by_nature = fault(said(), harms=False, hurts=False, gain_db=0.0)
    assert by_nature.to_be_found and not by_nature.is_mild and not by_nature.is_loud


def test_harmless_faults_are_neither_right_nor_wrong() -> None:
    loud, quiet = (fault(said("x", severity=s), gain_db=1.0, hurts=False) for s in ("medium", "low"))
    assert figure("first", loud, quiet) == (0, 0)
    assert figure("harmless_alarms", loud, quiet) == (1, 2)
    assert figure("alarms", loud, quiet) == (0, 0)


def test_silence_is_a_report_that_lists_nothing() -> None:
    large, small = (Budget(0.9, 0.9, 0.1, 0.0, pieces=(Piece("weight", share, ("conv",)),)) for share in (0.5, 0.1))
    rows = [
        fault(said(verdict="healthy")),
        fault(said(verdict="degraded")),
        fault(said(verdict="undecided", budget=small)),
        fault(said(verdict="healthy", budget=large)),
    ]
    assert figure("silent", *rows) == (4, 4)
    rows = [
        fault(Said("healthy", (Cause("x", "low", 0.8, gain_db=0.5),))),
        fault(Said("undecided", (Cause("x", "low", 0.8, gain_db=9.0, harm="none"),))),
        fault(said("x", severity="low", verdict="degraded", undecided_db=0.5)),
    ]
    assert figure("silent", *rows) == (3, 3)
    heard = [
        fault(said("x", severity="medium", verdict="undecided")),
        fault(Said("healthy", (Cause("x", "low", 0.8, gain_db=8.0),))),
        fault(Said("healthy", (Cause("x", "low", 0.8, harm="assumed"),))),
        fault(said(verdict="undecided", undecided_db=8.0)),
        fault(said(verdict="degraded", budget=large)),
    ]
    assert figure("silent", *heard) == (0, 5)
    assert figure("healthy", *heard) == (2, 5)
    assert figure("silent", fault(said(verdict="healthy"), gain_db=5.9)) == (0, 0)


def test_an_alarm_is_a_serious_cause_and_undecided_is_none() -> None:
    rows = [
        control(said("x", severity="medium")),
        control(said("x", severity="low", verdict="undecided")),
        control(said(verdict="undecided")),
        control(said(verdict="healthy")),
    ]
    assert figure("alarms", *rows) == (1, 4)
    assert figure("undecided_controls", *rows) == (2, 4)
    assert figure("degraded", *rows) == (1, 4)


def test_the_place_is_sought_among_the_first_three_layers() -> None:
    answer = said("x", layers=("a", "b", "c", "d"))
    rows = [fault(answer, places=("c",)), fault(answer, places=("d",)), fault(answer, places=("z", "a")), fault(answer)]
    assert figure("place", *rows) == (2, 3)


def test_both_faults_of_a_double_have_to_be_named() -> None:
    expected = (("a", "b"), ("c",))
    rows = [replace(fault(said(*names)), group="double", expected=expected) for names in (("c", "x", "b"), ("a",))]
    assert figure("both", *rows) == (1, 2)
    assert figure("first", *rows) == (0, 0)


def test_the_budget_is_asked_of_every_fault_that_costs_something() -> None:
    full, half = (said(budget=Budget(share, 0.9, 0.1, 0.0)) for share in (0.8, 0.5))
    rows = [fault(full), fault(half), fault(said()), fault(full, harms=False), control(full)]
    assert figure("assigned", *rows) == (1, 3)
    assert figure("listed", *rows) == (2, 3)


def line(share: float, places: int) -> dict[str, Any]:
    return {"source": "weight", "share": share, "places": [f"p{k}" for k in range(places)], "causes": []}


def test_parts_that_make_up_for_each_other_are_not_assigned() -> None:
    report = {
        "lines": [line(0.9, 1), line(0.3, 5), line(-0.1, 4)],
        "outputs": [{"unsimulated": 0.1}],
        "rest": -0.2,
        "runs": 9,
        "samples": 64,
        "complete": True,
    }
    found = budget_of(report)
    assert found.assigned == pytest.approx(1.0 - 0.2 - 0.1 - 0.4)
    assert found.listed == pytest.approx(1.0 - 0.2 - 0.1)


def test_a_cause_is_kept_with_its_rule_and_what_it_absorbs() -> None:
    report = [
        {"cause": "x", "severity": "low", "confidence": 0.5, "rules": ["W006", "W007"], "absorbs": [{"name": "y"}] * 2},
    ]
    assert causes_of(report) == (Cause("x", "low", 0.5, "W006", ("y",)),)
    gains = {"measured_gain_db": None, "predicted_gain_db": 3.0, "harm": "assumed"}
    assert causes_of([{**report[0], **gains}]) == (Cause("x", "low", 0.5, "W006", ("y",), 3.0, "assumed"),)


def test_a_row_is_the_same_after_it_was_stored() -> None:
    budget = Budget(0.9, 0.9, 0.1, 0.0, 10, 64, False, (Piece("weight", 0.5, ("conv",), ("x",)),))
    answer = said("x", layers=("a",), budget=budget, undecided_db=2.0)
    row = fault(answer, places=("a",), peer=("p",))
    assert Row.from_json(row.as_json()) == row
    failed = fault(Said("", error="it broke"))
    assert Row.from_json(failed.as_json()) == failed
    assert figure("failed", failed) == (1, 1)


def test_the_peer_gets_a_column_of_its_own() -> None:
    rows = [fault(said("x"), peer=("poor-range",)), control(said(verdict="healthy"))]
    found = columns(rows)
    assert {title: str(column["first"]) for title, column in found.items()} == dict.fromkeys(
        ("now", "XQuant"), "0 % of 1"
    )
    assert str(found["XQuant"]["true"]) == "100 % of 1"
    assert "silent" not in found["XQuant"] and "silent" in found["now"]
    assert shares(rows, peer)["alarms"].part == 0


def test_mistakes_are_counted_by_what_was_expected_and_named() -> None:
    rows = [fault(said("wide-range")), fault(said("x")), fault(said("x")), fault(said())]
    assert mistaken(rows) == {("wide-range", "x"): 2, ("wide-range", "nothing"): 1}


def test_everything_is_printed_with_what_is_to_be_reached() -> None:
    text = render([fault(said("x")), control(said("x"))])
    assert "right cause first" in text and ">= 85 %" in text
    assert "1 healthy cases with an alarm:\n  net/sound: x (high); verdict degraded" in text
    assert "wide-range -> x" in text


def test_misses_are_listed_with_what_was_said() -> None:
    budget = Budget(0.9, 0.9, 0.1, 0.0, pieces=(Piece("weight", 0.5, ("conv",)),))
    text = render_misses(
        [fault(said("wide-range")), fault(said("x", budget=budget)), fault(Said("", error="it broke"))]
    )
    assert "2 single faults not named first" in text
    assert "net/wide: wide-range; 20 dB; said x (high), degraded; 50 % weight at conv" in text
    assert "said nothing, it broke" in text
