"""Thorough tests that take turns: so many turns run each of them once, and what is quick runs always."""

from pathlib import Path

import pytest
import turns

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("of", [1, 2, 4])
def test_each_has_one_turn_and_those_of_a_file_have_the_same(of: int) -> None:
    for file in (f"tests/test_{i}.py" for i in range(100)):
        runs = [[turns.has_turn(f"{file}::test_{case}", (k, of)) for k in range(of)] for case in "ab"]
        assert runs[0] == runs[1] and sum(runs[0]) == 1


def test_turns_are_of_about_one_size() -> None:
    files = [str(path) for path in Path(__file__).parent.rglob("test_*.py")]
    sizes = [sum(turns.has_turn(file, (k, 4)) for file in files) for k in range(4)]
    assert min(sizes) > len(files) / 6


def test_what_is_quick_runs_in_every_turn(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeconftest(
        "import turns\n\n\ndef pytest_collection_modifyitems(config, items):\n    turns.leave_out(config, items)\n"
    )
    pytester.makeini("[pytest]\nmarkers = thorough\n")
    pytester.makepyfile(
        test_one="import pytest\n\n\ndef test_quick(): ...\n\n\n@pytest.mark.thorough\ndef test_long(): ...\n"
    )
    ran = []
    for turn in range(2):
        monkeypatch.setenv("QUANTMEDIC_TURN", f"{turn}/2")
        ran.append(pytester.runpytest_inprocess("-p", "no:xdist").parseoutcomes()["passed"])
    assert sorted(ran) == [1, 2]


def test_turns_follow_the_number_of_commits() -> None:
    assert turns.turn_of({}) is None
    assert turns.turn_of({"QUANTMEDIC_TURN": "1027/4"}) == (3, 4)


@pytest.mark.parametrize("value", ["2", "x/4", "1/0", "/", "-1/4"])
def test_what_is_no_turn_is_said(value: str) -> None:
    with pytest.raises(pytest.UsageError, match=value):
        turns.turn_of({"QUANTMEDIC_TURN": value})
