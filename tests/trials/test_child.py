"""Printed scripts run in a process of their own: with the names supplied, until the deadline, errors in their words."""

import sys
import time
from pathlib import Path

import pytest
from builders.processes import is_running

from quantmedic.engine.errors import ModelError
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.execute import run_script


def test_a_script_finds_its_files_and_the_names_supplied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "float.txt").write_text("3")
    code = 'print("chatter")\nopen("int8.txt", "w").write(open("float.txt").read() * factor)\n'
    run_script(tmp_path, code, "factor = 2\n", None)
    assert (tmp_path / "int8.txt").read_text() == "33"
    assert (tmp_path / "prescription.py").read_text() == code
    assert capfd.readouterr() == ("", "")


def test_names_of_the_prelude_alone_do_not_reach_the_script(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="NameError: name '_own' is not defined"):
        run_script(tmp_path, "print(_own)", "_own = 1", None)


def test_a_file_of_the_folder_does_not_stand_in_for_a_package(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("raise SystemExit(3)")
    run_script(tmp_path, "import onnx\nassert onnx.__version__", "", None)


def test_an_error_is_told_in_its_own_words_with_the_line(tmp_path: Path) -> None:
    code = 'first = 1\nraise ValueError("no such recipe:\\n  gate_1")\n'
    with pytest.raises(ModelError) as caught:
        run_script(tmp_path, code, "", None)
    assert caught.value.message == "the script fails: ValueError: no such recipe:"
    assert caught.value.where == ("prescription.py, line 2", "gate_1")
    with pytest.raises(ModelError) as caught:
        run_script(tmp_path, "import json\n\njson.loads(text)\n", 'text = "{"', None)
    assert caught.value.message.startswith("the script fails: json.decoder.JSONDecodeError: Expecting")
    assert caught.value.where == ("prescription.py, line 3",), "the line that called the library"
    with pytest.raises(ModelError, match="SyntaxError"):
        run_script(tmp_path, "a = (\n", "", None)


def test_a_crash_and_an_exit_are_errors(tmp_path: Path) -> None:
    crash = 'import os, sys\nprint("last words", file=sys.stderr, flush=True)\nos.abort()\n'
    with pytest.raises(ModelError, match=r"SIGABRT\n  last words$"):
        run_script(tmp_path, crash, "", None)
    with pytest.raises(ModelError, match=r"exit code 3$"):
        run_script(tmp_path, "raise SystemExit(3)", "", None)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_script_is_killed_at_the_deadline_with_what_it_started(tmp_path: Path) -> None:
    """It would run for ten minutes; its child writes the process ids, so that both are there when time is up."""
    child = "import os, sys, time; open('pids', 'w').write(f'{os.getppid()} {os.getpid()}'); time.sleep(600)"
    code = f'import subprocess, sys\nsubprocess.run([sys.executable, "-c", {child!r}])\n'
    written = tmp_path / "pids"
    for seconds in (1, 4, 16, 64):  # until a slow machine has come so far
        with pytest.raises(OutOfTimeError):
            run_script(tmp_path, code, "", time.monotonic() + seconds)
        if written.is_file() and written.read_text():
            break
    pids = written.read_text().split()
    while any(map(is_running, pids)):
        time.sleep(0.01)


def test_a_script_is_not_begun_after_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError):
        run_script(tmp_path, "", "", time.monotonic() - 1)
    assert not list(tmp_path.iterdir())
