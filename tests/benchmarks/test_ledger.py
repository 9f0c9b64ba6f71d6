"""The ledger of first runs: what is written once stays, and what was seen before is no first run."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from builders.zoo_rows import control, fault, said
from zoo.protocol.entries import figures_of, render_entry, shares_of
from zoo.protocol.ledger import Begun, LedgerError, begin, commit_of, read, read_finished

BEGUN = Begun("reporting", 906, 4, "2026-01-01T00:00:00+00:00", "a" * 40, {"sample": 25})
ROWS = [fault(said("wide-range")), control(said(verdict="healthy"))]
SUMMARY = {
    "left_out": [{"name": "net/x", "status": "inapplicable", "reason": "no place"}],
    "pasted": {},
    "fixed": {},
}
FIGURES = figures_of(ROWS, SUMMARY)


def test_a_first_run_is_recorded_whole(tmp_path: Path) -> None:
    entry = begin(tmp_path, BEGUN)
    assert entry.is_first
    assert read(entry.path).figures is None
    entry.finish(FIGURES, ROWS)
    record = read(entry.path)
    assert entry.path.name == "reporting-906-v4.jsonl"
    assert record.begun == BEGUN and list(record.rows) == ROWS
    assert record.figures is not None and record.figures["summary"]["not_asked"] == {"inapplicable": 1}
    assert str(shares_of(record)["now"]["first"]) == "100 % of 1"
    assert "first run: reporting-906-v4" in render_entry(entry, ROWS)
    assert [path.name for path in tmp_path.iterdir()] == [entry.path.name]


def test_a_second_run_shows_the_first_and_writes_nothing(tmp_path: Path) -> None:
    begin(tmp_path, BEGUN).finish(FIGURES, ROWS)
    written = (tmp_path / "reporting-906-v4.jsonl").read_bytes()
    again = begin(tmp_path, replace(BEGUN, commit="b" * 40))
    assert not again.is_first
    with pytest.raises(LedgerError, match="not a first run"):
        again.finish(FIGURES, ROWS)
    text = render_entry(again, [fault(said("x"))])
    assert "NOT A FIRST RUN" in text and "first run" in text
    (line,) = [line for line in text.splitlines() if line.startswith("right cause first")]
    assert line.split()[3:11] == ["0", "%", "of", "1", "100", "%", "of", "1"]
    assert (tmp_path / "reporting-906-v4.jsonl").read_bytes() == written
    assert not begin(tmp_path, BEGUN).is_first


def test_a_run_that_was_broken_off_is_continued_by_the_same_code_only(tmp_path: Path) -> None:
    begin(tmp_path, BEGUN)
    assert begin(tmp_path, replace(BEGUN, date="2026-01-02T00:00:00+00:00")).is_first
    for change in ({"commit": "b" * 40}, {"settings": {}}):
        assert not begin(tmp_path, replace(BEGUN, **change)).is_first
    with pytest.raises(LedgerError, match="broken off"):
        read_finished([tmp_path / "reporting-906-v4.jsonl"])
    assert "was broken off" in render_entry(begin(tmp_path, replace(BEGUN, settings={})), ROWS)


def test_what_counts_as_seen(tmp_path: Path) -> None:
    changes: list[tuple[dict[str, object], bool]] = [
        ({"seed": 907}, True),
        ({"part": "unseen-a"}, True),
        ({"part": "all"}, False),
        ({"part": "tuning"}, True),
        ({"version": 5}, True),
    ]
    for number, (change, first) in enumerate(changes):
        folder = tmp_path / str(number)
        folder.mkdir()
        begin(folder, BEGUN)
        entry = begin(folder, replace(BEGUN, **change))
        assert entry.is_first == first, change
        assert [other.begun for other in entry.others] == ([BEGUN] if "version" in change else []), change


def test_two_runs_at_once_do_not_write_one_record(tmp_path: Path) -> None:
    first, second = begin(tmp_path, BEGUN), begin(tmp_path, BEGUN)
    first.finish(FIGURES, ROWS)
    with pytest.raises(LedgerError, match="meanwhile"):
        second.finish(FIGURES, ROWS[:1])


def test_changes_in_no_commit_are_refused_besides_the_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no git checkout"):
        commit_of(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    (tmp_path / "code.py").write_text("1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "code"]):
        subprocess.run([*git, *command], check=True)
    ledger = tmp_path / "figures"
    ledger.mkdir()
    (ledger / "all-900-v1.jsonl").write_text("{}\n")
    assert len(commit_of(tmp_path, besides=ledger)) == 40
    with pytest.raises(LedgerError, match="figures"):
        commit_of(tmp_path)
    (tmp_path / "code.py").write_text("2\n")
    with pytest.raises(LedgerError, match=r"in no commit \(code\.py\)"):
        commit_of(tmp_path, besides=ledger)
