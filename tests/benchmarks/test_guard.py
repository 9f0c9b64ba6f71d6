"""The guard of costs: what it compares, what it says, and that the manual shows what is recorded."""

from pathlib import Path

import guard
import pytest
from cost_networks import GUARDED
from guard import Cost, Costs, Record

ROOT = Path(__file__).parents[2]


def table(*, ratio: float = 4.0, memory: float = 400.0, contender: str = "diagnose", guarded: bool = True) -> dict:
    return {"rows": Costs(10, 1.0, {contender: Cost(ratio, memory)}, guarded)}


def test_equal_and_slightly_higher_costs_pass() -> None:
    assert guard.compare(table(), table()) == []
    assert guard.compare(table(ratio=4.0 * 1.49, memory=400 * 1.24), table()) == []
    assert guard.compare(table(ratio=1.0, memory=10.0), table()) == []


def test_a_contender_that_takes_more_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    (said,) = guard.compare(table(ratio=6.1), table())
    assert said == "rows: diagnose takes 6.10 times plain inference, 4.00 recorded (at most 1.5 times that)"
    assert guard.report(table(ratio=6.1), Record("abc1234", table())) == 1
    shown = capsys.readouterr().err
    assert said in shown and "since abc1234" in shown and "guard.py --record" in shown
    (said,) = guard.compare(table(memory=501), table())
    assert said == "rows: diagnose takes 501 MB, 400 MB recorded (at most 1.25 times that)"


def test_a_missing_contender_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    both = table() | {"images": table(contender="collect")["rows"]}
    for measured, recorded in ((table(), both), (both, table())):
        with pytest.raises(LookupError, match="images: collect stands on one side only"):
            guard.compare(measured, recorded)
        assert guard.report(measured, Record("abc1234", recorded)) == 2
        assert "guard.py --record" in capsys.readouterr().err


def test_published_networks_are_not_measured_again() -> None:
    assert guard.compare(table(), table() | {"text detector": table(guarded=False)["rows"]}) == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RECORD", tmp_path / "costs.json")
    written = Record("abc1234", table() | {"text detector": table(guarded=False)["rows"]})
    guard.write_record(written)
    assert guard.read_record() == written
    assert list(guard.kept_published()) == ["text detector"]


def test_the_record_holds_what_the_guard_measures() -> None:
    recorded = {name: costs for name, costs in guard.read_record().networks.items() if costs.guarded}
    assert {name: costs.samples for name, costs in recorded.items()} == {n: 2 * w.samples for n, w in GUARDED.items()}
    assert all(tuple(costs.contenders) == guard.CONTENDERS[1:] for costs in recorded.values())


def test_the_manual_shows_the_record() -> None:
    text = guard.PAGE.read_text(encoding="utf-8")
    assert text == guard.with_table(text, guard.table_of(guard.read_record())), "python benchmarks/guard.py --page"


def test_the_table_of_the_manual_is_written_again() -> None:
    page = "Above.\n\n{}\n\nBelow.\n\nEnd."
    old, new = ["| head |", "| old |", "| older |"], ["| head |", "| new |"]
    assert guard.with_table(page.format("\n".join(old)), new) == page.format("\n".join(new))
