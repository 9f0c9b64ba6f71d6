"""The history file: what is stored survives, several processes lose nothing, and what is no history is left alone."""

import json
import math
import os
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import run_quantmedic
from builders.comparisons import facts, judged, layer, table
from builders.gates import regression
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import HistoryError
from quantmedic.engine.gate.history import figures_of
from quantmedic.store import history_file
from quantmedic.store.history_file import SHOWN, load_history, models_in, record

TIME = "2026-11-06T03:00:00Z"
HOSTILE = (
    "</script>",
    "'); DROP TABLE run; --",
    "nul\x00name",
    "bidi\u202ename",
    "line\n::error::owned",
    "]]>",
    "esc\x1b[31mred",
    "snow☃man 層",
    "not text \udcff",
    "x" * 10_000,
)
WRITER = """
import pickle, sys
from quantmedic.store.history_file import record
diagnosis = pickle.load(open(sys.argv[1], "rb"))
for place in range(int(sys.argv[4])):
    record(sys.argv[2], diagnosis, time="2026-11-06T03:00:00Z", label=f"{sys.argv[3]}-{place}")
"""


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    layers = [layer("a"), layer("b", sqnr=15.0, ratio=64.0)]
    return regression(judged(facts(layers, quantized_share=0.5), {"validation": table(300)}).diagnosis)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def renamed(diagnosis: Diagnosis, name: str | None) -> Diagnosis:
    return diagnosis.model_copy(update={"model": diagnosis.model.model_copy(update={"name": name})})


def refused(path: Path, diagnosis: Diagnosis) -> list[HistoryError]:
    """Both ways to use a history fail, and nothing in its folder has changed."""
    before = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    errors = []
    for use in (lambda: record(path, diagnosis, time=TIME), lambda: load_history(path), lambda: models_in(path)):
        with pytest.raises(HistoryError) as told:
            use()
        assert told.value.help and told.value.where and "Traceback" not in str(told.value)
        errors.append(told.value)
    assert {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()} == before
    return errors


def test_what_is_recorded_comes_back(path: Path, diagnosis: Diagnosis) -> None:
    first = record(path, diagnosis, time=TIME, label="abc123")
    second = record(path, diagnosis, time="2026-11-07T03:00:00Z")
    assert load_history(path) == second == quantmedic.load_history(path)
    run, last = second.runs
    assert first.runs == (run,) and second.model == "int8.onnx"
    assert (run.number, run.time, run.label, run.verdict) == (1, TIME, "abc123", "REGRESSION")
    assert run.quantized_sha256 == "a" * 64 and last.label is None and last.number == 2
    assert run.figures == figures_of(diagnosis), "in the same order, every field"
    assert sorted(file.name for file in path.parent.iterdir()) == ["history.db"], "one file, nothing beside it"


def test_the_verdict_is_the_diagnosis_s_where_no_gate_spoke(path: Path, diagnosis: Diagnosis) -> None:
    plain = diagnosis.model_copy(update={"gate": None, "check": None})
    assert record(path, plain, time=TIME).runs[0].verdict == "degraded"


def test_infinite_values_survive_and_no_numbers_are_left_out(path: Path, diagnosis: Diagnosis) -> None:
    for value in (math.inf, -math.inf, math.nan):
        model = diagnosis.model.model_copy(update={"output_sqnr_db": value})
        record(path, diagnosis.model_copy(update={"model": model}), time=TIME)
    found = [{figure.name: figure for figure in run.figures} for run in load_history(path).runs]
    assert [run["sqnr_db"].value for run in found[:2]] == [math.inf, -math.inf] and "sqnr_db" not in found[2]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_stored_and_found_again(path: Path, diagnosis: Diagnosis, name: str) -> None:
    outputs = tuple(diagnosis.outputs[0].model_copy(update={"name": one}) for one in (name, "other"))
    hostile = renamed(diagnosis, name).model_copy(update={"outputs": outputs})
    record(path, hostile, time=TIME, label=name)
    record(path, renamed(diagnosis, "other.onnx"), time=TIME)
    expected = name.encode("utf-8", "backslashreplace").decode()
    assert models_in(path) == {"other.onnx": 1, expected: 1}
    found = load_history(path, model=name)
    assert found.model == found.runs[0].label == expected
    assert f"sqnr_db {expected}" in {figure.name for figure in found.runs[0].figures}


def test_a_model_without_a_name_and_a_name_of_the_users(path: Path, diagnosis: Diagnosis) -> None:
    assert record(path, renamed(diagnosis, None), time=TIME, label="").runs[0].label is None
    assert record(path, renamed(diagnosis, "int8-20261107.onnx"), time=TIME, model="nightly").model == "nightly"
    assert models_in(path) == {"nightly": 1, "?": 1}


@pytest.mark.thorough
def test_only_the_last_runs_of_the_same_model_are_shown(path: Path, diagnosis: Diagnosis) -> None:
    for place in range(SHOWN + 5):
        record(path, renamed(diagnosis, "other.onnx"), time=TIME)
        shown = record(path, diagnosis, time=TIME, label=str(place))
    assert [run.label for run in shown.runs] == [str(place) for place in range(5, SHOWN + 5)]
    assert len(load_history(path, model="int8.onnx").runs) == SHOWN + 5
    assert [run.label for run in load_history(path, model="int8.onnx", last=2).runs] == ["53", "54"]
    assert len(load_history(path, model="int8.onnx", last=2**80).runs) == len(
        load_history(path, model="int8.onnx").runs
    )


def test_models_that_cannot_be_told_apart_are_asked_for(path: Path, diagnosis: Diagnosis) -> None:
    for name in ("resnet_int8.onnx", "mobilenet_int8.onnx", "mobilenet_int8.onnx"):
        record(path, renamed(diagnosis, name), time=TIME)
    with pytest.raises(HistoryError, match="several models") as told:
        load_history(path)
    assert told.value.where == ("mobilenet_int8.onnx  2 runs", "resnet_int8.onnx  1 run")
    with pytest.raises(HistoryError) as told:
        load_history(path, model="resnet_int.onnx")
    assert told.value.help == "did you mean 'resnet_int8.onnx'?"
    with pytest.raises(HistoryError, match="0 runs"):
        load_history(path, last=0)


@pytest.mark.thorough
def test_processes_that_record_at_once_lose_nothing(path: Path, diagnosis: Diagnosis) -> None:
    pickled = path.with_name("diagnosis.pickle")
    pickled.write_bytes(pickle.dumps(diagnosis))
    command = [sys.executable, "-c", WRITER, str(pickled), str(path)]
    writers = [subprocess.Popen([*command, str(number), "25"], stderr=subprocess.PIPE) for number in range(8)]
    complaints = [writer.communicate(timeout=300)[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8, complaints
    runs = load_history(path).runs
    assert [run.number for run in runs] == list(range(1, 201))
    assert {run.label for run in runs} == {f"{number}-{place}" for number in range(8) for place in range(25)}
    assert all(run.figures == figures_of(diagnosis) for run in runs)


@pytest.mark.thorough
def test_a_run_that_was_cut_short_leaves_no_trace(path: Path, diagnosis: Diagnosis) -> None:
    record(path, diagnosis, time=TIME, label="whole")
    pickled = path.with_name("diagnosis.pickle")
    pickled.write_bytes(pickle.dumps(diagnosis))
    # The page cache is so small that the half-done run is in the file when the process dies.
    dying = """
import os, pickle, sys
from quantmedic.store import history_file
def die(connection, *rest):
    connection.execute("PRAGMA cache_spill = 1"), connection.execute("PRAGMA cache_size = 1")
    insert(connection, *rest)
    connection.execute("INSERT INTO run (model, time, label, verdict) VALUES ('m', 't', ?, 'v')", ("x" * 10**6,))
    os._exit(9)
insert, history_file._insert = history_file._insert, die
history_file.record(sys.argv[2], pickle.load(open(sys.argv[1], "rb")), time="2026-11-06T03:00:00Z", label="half")
"""
    assert subprocess.run([sys.executable, "-c", dying, str(pickled), str(path)], timeout=60).returncode == 9
    assert path.with_name("history.db-journal").exists(), "the file itself holds half a run"
    assert [run.label for run in load_history(path).runs] == ["whole"]
    assert [run.label for run in record(path, diagnosis, time=TIME, label="next").runs] == ["whole", "next"]


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files as Linux does")
def test_a_full_disk_keeps_the_history_as_it_was(path: Path, diagnosis: Diagnosis) -> None:
    record(path, diagnosis, time=TIME, label="whole")
    pickled = path.with_name("diagnosis.pickle")
    pickled.write_bytes(pickle.dumps(diagnosis))
    limited = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({path.stat().st_size},) * 2)
{WRITER}"""
    done = subprocess.run(
        [sys.executable, "-c", limited, str(pickled), str(path), "late", "30"], capture_output=True, timeout=60
    )
    assert b"HistoryError" in done.stderr, done.stderr
    runs = load_history(path).runs
    assert 0 < len(runs) < 31 and all(run.figures == figures_of(diagnosis) for run in runs)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    "content", [b"hello", b"# no history\n" * 1000, b"\x00" * 20_000], ids=["short", "text", "nul"]
)
def test_what_is_no_database_is_refused(path: Path, diagnosis: Diagnosis, content: bytes) -> None:
    path.write_bytes(content)
    for error in refused(path, diagnosis):
        assert "not a SQLite database" in error.message


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("mark", ["PRAGMA application_id = 7", "PRAGMA user_version = 1", "SELECT 1"])
def test_the_database_of_another_program_is_refused(path: Path, diagnosis: Diagnosis, journal: str, mark: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE bookmark (name TEXT)")
        connection.execute(mark)
    for error in refused(path, diagnosis):
        assert error.message == "the file is the database of another program"


def test_a_history_of_a_newer_version_is_refused(path: Path, diagnosis: Diagnosis) -> None:
    record(path, diagnosis, time=TIME)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {history_file.VERSION + 1}")
    for error in refused(path, diagnosis):
        assert error.message == "the history was written by a newer quantmedic" and "update" in str(error.help)


def test_a_history_of_an_older_version_is_brought_up_to_date(
    path: Path, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(path, diagnosis, time=TIME)
    added = ("ALTER TABLE run ADD COLUMN note TEXT",)
    monkeypatch.setattr(history_file, "MIGRATIONS", (*history_file.MIGRATIONS, added))
    monkeypatch.setattr(history_file, "VERSION", history_file.VERSION + 1)
    assert len(record(path, diagnosis, time=TIME).runs) == 2
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (history_file.VERSION,)
        assert connection.execute("SELECT note FROM run").fetchall() == [(None,), (None,)]


EDITS = {
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END", "was edited"),
    "a view": (
        "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n",
        "edited",
    ),
    "an index": ("CREATE INDEX i ON run (label)", "was edited"),
    "a column": ("ALTER TABLE run ADD COLUMN note TEXT", "was edited"),
    "no index": ("DROP INDEX run_model", "was edited"),
    "no figures": ("DROP TABLE figure", "was edited"),
    "a view for a table": (
        "DROP TABLE figure; CREATE VIEW figure AS WITH RECURSIVE n(run) AS (SELECT 1 UNION ALL SELECT run FROM n) "
        "SELECT run, 1 AS place, 'a' AS name, NULL AS unit, 1.0 AS value, NULL AS low, NULL AS high, NULL AS bound, "
        "NULL AS better FROM n",
        "was edited",
    ),
    "no version": ("PRAGMA user_version = -1", "of no version"),
    "a number as a verdict": ("PRAGMA ignore_check_constraints = 1; UPDATE run SET verdict = x'00ff'", "is damaged"),
    "a text as a value": ("PRAGMA ignore_check_constraints = 1; UPDATE figure SET value = 'many'", "is damaged"),
    "a direction of its own": ("PRAGMA ignore_check_constraints = 1; UPDATE figure SET better = 'up'", "is damaged"),
    "half a character": ("UPDATE run SET label = CAST(x'ff' AS TEXT)", "cannot be used: Could not decode"),
    "a text without end": ("UPDATE run SET label = printf('%.*c', 3000000, 'x')", "a text without end"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_history_that_was_edited_is_refused_and_stays_as_it_is(path: Path, diagnosis: Diagnosis, name: str) -> None:
    statements, told = EDITS[name]
    record(path, diagnosis, time=TIME)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(statements)
    before = path.read_bytes()
    for use in (lambda: record(path, diagnosis, time=TIME), lambda: load_history(path)):
        with pytest.raises(HistoryError, match=told) as error:
            use()
        assert error.value.help
    assert path.read_bytes() == before


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bytes_are_refused_or_read_and_never_spread(path: Path, diagnosis: Diagnosis, seed: int) -> None:
    for _ in range(4):
        record(path, diagnosis, time=TIME)
    content, random = bytearray(path.read_bytes()), np.random.default_rng(seed)
    for place in random.integers(100, len(content), 40):
        content[place] ^= 1 << int(random.integers(8))
    path.write_bytes(content)
    try:
        record(path, diagnosis, time=TIME)
    except HistoryError:
        assert path.read_bytes() == content
    else:
        assert len(load_history(path).runs) == 5


def test_a_pipe_is_no_history(path: Path, diagnosis: Diagnosis) -> None:
    os.mkfifo(path)
    for use in (lambda: record(path, diagnosis, time=TIME), lambda: load_history(path)):
        with pytest.raises(HistoryError, match="cannot be opened"):
            use()


def test_a_folder_and_a_place_that_is_not_there_are_refused(tmp_path: Path, diagnosis: Diagnosis) -> None:
    (tmp_path / "folder").mkdir()
    assert {error.message for error in refused(tmp_path / "folder", diagnosis)} == {"the history is a folder"}
    with pytest.raises(HistoryError, match="cannot be opened"):
        record(tmp_path / "no" / "history.db", diagnosis, time=TIME)
    assert not (tmp_path / "no").exists()
    with pytest.raises(HistoryError, match="no such history"):
        load_history(tmp_path / "typo.db")
    assert not (tmp_path / "typo.db").exists(), "looking makes no file"


def test_a_history_that_stays_locked_is_an_error(
    path: Path, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(path, diagnosis, time=TIME)
    monkeypatch.setattr(history_file, "TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        for use in (lambda: record(path, diagnosis, time=TIME), lambda: load_history(path)):
            with pytest.raises(HistoryError, match="in use by another process"):
                use()
    assert len(load_history(path).runs) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anything")
def test_a_history_that_can_only_be_read_is_read(path: Path, diagnosis: Diagnosis) -> None:
    record(path, diagnosis, time=TIME)
    path.chmod(0o444)
    with pytest.raises(HistoryError, match="can only be read"):
        record(path, diagnosis, time=TIME)
    assert len(load_history(path).runs) == 1


def test_an_empty_file_becomes_a_history(path: Path, diagnosis: Diagnosis) -> None:
    path.touch()
    with pytest.raises(HistoryError, match="no run yet"):
        load_history(path)
    assert len(record(path, diagnosis, time=TIME).runs) == 1


def test_names_that_sqlite_reads_a_meaning_into_are_files(
    tmp_path: Path, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x.db?mode=memory", "a b#c%20.db"):
        record(name, diagnosis, time=TIME)
        assert (tmp_path / name).is_file() and len(load_history(name).runs) == 1


def test_no_path_of_the_machine_is_stored(path: Path, diagnosis: Diagnosis) -> None:
    record(path, diagnosis, time=TIME)
    content = path.read_bytes()
    for canary in (str(path.parent), str(Path.home()), os.uname().nodename):
        assert canary.encode() not in content


# --- The command ------------------------------------------------------------------------------------------------------


def run(*arguments: Any, **options: Any) -> Any:
    return CliRunner().invoke(cli, ["trend", *map(str, arguments)], catch_exceptions=False, **options)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, diagnosis: Diagnosis) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.db"
    for day in range(1, 4):
        record(path, diagnosis, time=f"2026-11-{day:02}T03:00:00Z", label=f"commit{day}")
    return path


def test_the_command_plots_the_runs(history: Path) -> None:
    result = run(history)
    assert result.exit_code == 0
    assert result.output.startswith("REGRESSION  int8.onnx\n3 runs from 2026-11-01 to 2026-11-03, 0 accepted")
    for part in ("drop top1   points, lower is better", "limit 1.00: beyond it", "commit3", "┤"):
        assert part in result.output
    assert "causes high" in result.output and "\x1b" not in result.output


def test_the_command_narrows_and_prints_every_format(history: Path) -> None:
    text = run(history, "--figure", "agreement", "--last", 2).output
    assert "agreement" in text and "drop" not in text and "2 runs from 2026-11-02" in text
    found = json.loads(run(history, "--format", "json", "--last", 1).output)
    assert [one["number"] for one in found["runs"]] == [3] and found["model"] == "int8.onnx"
    assert run(history, "--format", "markdown").output.startswith("# REGRESSION: int8.onnx\n")
    assert run(history, "--format", "html").output.startswith("<!DOCTYPE html>")


def test_a_folder_gets_the_files(history: Path, tmp_path: Path) -> None:
    result = run(history, "-o", tmp_path / "out", "--figure", "drop")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "trend.html",
        "trend.md",
        "trend-1.svg",
        "trend.json",
    }
    assert "wrote" in result.output.splitlines()[-1]
    for path in (tmp_path / "out").iterdir():
        assert str(history.parent) not in path.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_terminal_without_unicode_gets_ascii(history: Path) -> None:
    command = [sys.executable, "-m", "quantmedic", "trend", str(history)]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout.isascii() and b"*" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "int9.onnx"], "did you mean 'int8.onnx'?"),
        (["--figure", "drp"], "did you mean 'drop top1'?"),
        (["--format", "json", "--format", "html"], "add --output"),
        (["--last", "0"], "--last"),
    ],
)
def test_what_cannot_be_shown_is_an_error(history: Path, arguments: list[str], told: str) -> None:
    done = run_quantmedic("trend", history, *arguments)
    assert done.returncode == 2 and told in done.stderr and not done.stdout and "Traceback" not in done.stderr
