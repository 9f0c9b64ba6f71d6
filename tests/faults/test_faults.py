"""Whatever stops a command, what it wrote is valid or as it was; ``campaign.py`` strikes as often as wanted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faults.invariants import broken
from faults.scenes import CASE, OUT, REPORT, SCENES
from faults.strike import HANGS, Ended

from quantmedic.engine.file_sets import write_together

OLD, NEW = {"report.json": b"old", "a.svg": b"old"}, {"report.json": b"new", "a.svg": b"new"}
WELL = Ended(0, "", struck=False, seconds=1.0, left=())
CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_blows_at_random_moments_leave_nothing_invalid(tmp_path: Path) -> None:
    """In a process of its own, without threads, which a fork would lose."""
    log = tmp_path / "log.jsonl"
    line = [sys.executable, str(CAMPAIGN), "--kills", "8", "--seed", "7", "--log", str(log)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 left an invalid state" in done.stdout
    rows = [json.loads(text) for text in log.read_text().splitlines()]
    assert [row["number"] for row in rows] == list(range(8))
    assert sum(row["struck"] for row in rows) > 4 and any(row["resumed"] for row in rows)


def wrong(name: str, folder: Path, ended: Ended = WELL, blow: str = "none") -> list[str]:
    return broken(SCENES[name], folder, ended, blow, OLD, NEW)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (OUT, "tmp", REPORT):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_mixed_report_is_seen(folder: Path) -> None:
    write_together(folder / REPORT, OLD)
    assert wrong("report", folder) == []
    write_together(folder / REPORT, NEW)
    assert wrong("report", folder) == []
    (folder / REPORT / "a.svg").write_bytes(b"old")
    assert wrong("report", folder) == ["the report is mixed: files of both"]


def test_a_damaged_case_is_seen(folder: Path) -> None:
    (folder / CASE).write_bytes(b"PK half of it")
    assert "the case cannot be judged" in wrong("collect", folder)[0]


def test_what_a_process_leaves_is_seen(folder: Path) -> None:
    assert wrong("collect", folder, Ended(130, "", True, 1.0, (4711,)), "interrupt") == ["process 4711 is left"]
    assert wrong("collect", folder, Ended(HANGS, "", True, 1.0, ()), "terminate") == ["it hangs after terminate"]
    assert "exit status 2" in wrong("collect", folder, Ended(2, "error: x", True, 1.0, ()), "interrupt")[0]
    assert "Traceback" in wrong("collect", folder, Ended(2, "error: Traceback", True, 1.0, ()), "full")[0]
    (folder / "elsewhere").write_text("1")
    (folder / "tmp" / "quantmedic-1").mkdir()
    assert wrong("collect", folder) == ["elsewhere was written", "the scrap tmp/quantmedic-1 was left"]
