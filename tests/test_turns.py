"""Tests that take turns: all of them run in so many turns, and the list names tests that there are."""

import pytest
import turns

NAMES = frozenset({"a.py::test_long"})


@pytest.mark.parametrize("name", sorted(turns.listed()))
def test_what_is_listed_is_there(name: str) -> None:
    file, *_, function = name.split("::")
    assert f"def {function}(" in (turns.LISTED.parents[1] / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("of", [1, 2, 4])
def test_each_has_one_turn(of: int) -> None:
    tests = [f"a.py::test_long[{i}]" for i in range(100)]
    runs = [sum(turns.has_turn(test, (k, of), NAMES) for k in range(of)) for test in tests]
    assert runs == [1] * 100


def test_others_run_in_every_turn() -> None:
    assert all(turns.has_turn("a.py::test_short[x]", (k, 4), NAMES) for k in range(4))


def test_turns_follow_the_number_of_commits() -> None:
    assert turns.turn_of({}) is None
    assert turns.turn_of({"QUANTMEDIC_TURN": "1027/4"}) == (3, 4)


@pytest.mark.parametrize("value", ["2", "x/4", "1/0", "/", "-1/4"])
def test_what_is_no_turn_is_said(value: str) -> None:
    with pytest.raises(pytest.UsageError, match=value):
        turns.turn_of({"QUANTMEDIC_TURN": value})
