"""The history file: what `check --record` keeps comes back, and `trend` shows it."""

import json
import struct
from pathlib import Path

import pytest
from builders.comparisons import facts, judged, layer, table
from builders.gates import regression
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.engine.errors import HistoryError
from quantmedic.engine.gate.history import figures_of
from quantmedic.store.history_file import load_history, record


def test_what_is_recorded_comes_back_and_is_plotted(tmp_path: Path) -> None:
    layers = [layer("a"), layer("b", sqnr=15.0, ratio=64.0)]
    diagnosis = regression(judged(facts(layers, quantized_share=0.5), {"validation": table(300)}).diagnosis)
    path = tmp_path / "history.db"
    record(path, diagnosis, time="2026-11-06T03:00:00Z", label="abc123")
    found = record(path, diagnosis, time="2026-11-07T03:00:00Z")
    assert load_history(path) == found == quantmedic.load_history(path)
    first, last = found.runs
    assert (first.number, first.label, first.verdict, found.model) == (1, "abc123", "REGRESSION", "int8.onnx")
    assert first.figures == figures_of(diagnosis) and last.label is None
    shown = CliRunner().invoke(cli, ["trend", str(path)], catch_exceptions=False)
    assert shown.output.startswith("REGRESSION  int8.onnx\n2 runs from 2026-11-06 to 2026-11-07, 0 accepted")
    assert "limit 1.00: beyond it" in shown.output and "┤" in shown.output
    printed = CliRunner().invoke(cli, ["trend", str(path), "--format", "json", "--last", "1"]).output
    assert [run["number"] for run in json.loads(printed)["runs"]] == [2]
    path.write_bytes(b"hello")
    with pytest.raises(HistoryError, match="not a SQLite database"):
        record(path, diagnosis, time="2026-11-08T03:00:00Z")
    assert path.read_bytes() == b"hello"


def test_a_journal_that_others_put_there_removes_no_file(tmp_path: Path) -> None:
    """SQLite plays back what it finds beside a database, and then removes the file that the journal's end names."""
    path, victim = tmp_path / "history.db", tmp_path / "victim"
    record(path, judged(facts([layer("a")]), {"validation": table(300)}).diagnosis, time="2026-11-06T03:00:00Z")
    victim.write_text("mine")
    mark, name, page = bytes.fromhex("d9d505f920a163d7"), bytes(victim), 4096
    head = (mark + struct.pack(">5I", 0, 1, path.stat().st_size // page, 512, page)).ljust(512, b"\0")
    end = struct.pack(">I", (1 << 30) // page + 1) + name + struct.pack(">2I", len(name), sum(name)) + mark
    Path(f"{path}-journal").write_bytes(head + end)
    with pytest.raises(HistoryError, match="none of ours"):
        load_history(path)
    assert victim.exists()
    (tmp_path / "link.db").symlink_to(path)
    with pytest.raises(HistoryError, match="is a link"):
        load_history(tmp_path / "link.db")
