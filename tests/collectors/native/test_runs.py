"""Runs that never end are stopped: at the time limit, and by signals."""

import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.endless import endless_model
from builders.processes import is_running, start_python

import quantmedic
from quantmedic.collectors.from_litert.first_run import require_survival
from quantmedic.collectors.measure import lanes
from quantmedic.collectors.native import runs
from quantmedic.collectors.native.child import run_child
from quantmedic.collectors.native.runs import (
    Crew,
    TimeLimitError,
    in_background,
    meanwhile,
    run_native,
    time_limit,
    wait_for,
)
from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import RUN_SECONDS
from quantmedic.trials.execute import run_script

WAIT = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(endless_model(), tmp_path / "endless.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 4), np.float32))
    return tmp_path


def test_runs_leave_nothing_to_tracers() -> None:
    """Debuggers, profilers and coverage trace calls: behind a run that ended or was interrupted, none ever returned."""
    code = """
import sys, time
from quantmedic.collectors.native import runs

def work():
    while True:
        time.sleep(0.001)

step = lambda *event: step
def call():
    return sum(place for place in range(10))

runs.run_python(lambda: None, "a module")
sys.settrace(step)
print(call())
sys.settrace(None)
for _ in range(3):
    try:
        with runs.time_limit(0.05):
            runs.run_python(work, "a module")
    except runs.TimeLimitError:
        pass
sys.settrace(step)
print(call())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT, check=True)
    assert done.stdout.split() == ["45", "45"]


def test_work_is_done_in_one_thread_that_is_used_again() -> None:
    """And runs of background work stay in its thread."""
    places = {run_native(threading.get_ident, "a model") for _ in range(5)}
    assert len(places) == 1 and threading.get_ident() not in places
    own, run = in_background(lambda: (threading.get_ident(), run_native(threading.get_ident, "a model")))
    assert own == run


def test_nothing_is_kept_of_work_that_has_ended() -> None:
    """A fork would free it: OpenVINO's models wait there, without an end, for threads that the fork lacks."""

    class Model:
        pass

    gone = weakref.ref(in_background(Model))
    end = time.monotonic() + WAIT
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert gone() is None


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    def work() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        run_native(work, "a model")


def test_work_goes_on_meanwhile_where_there_are_threads_for_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert go_on.wait(WAIT)
        return threading.get_ident()

    with meanwhile(work, 2) as result:
        assert begun.wait(WAIT)
        go_on.set()
        assert result() != threading.get_ident()
    with meanwhile(threading.get_ident, 1) as result:
        assert result() == threading.get_ident()


def test_work_that_nobody_waits_for_is_stopped() -> None:
    begun, stopped = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        stopped.wait(WAIT)

    with pytest.raises(ZeroDivisionError), meanwhile(lambda: run_native(run, "a model", stopped.set), 2):
        assert begun.wait(WAIT)
        raise ZeroDivisionError
    assert stopped.is_set()


def test_the_limit_is_seen_in_the_background_and_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.current_limit() == RUN_SECONDS.most == 600
    for seconds, seen in ((7.0, 7.0), (0, None)):
        with time_limit(seconds):
            assert run_native(runs.current_limit, "a model") == seen
    monkeypatch.setenv(RUN_SECONDS.variable, "7")
    with time_limit(None):
        assert run_native(runs.current_limit, "a model") == 7
    with time_limit(9.0):
        assert runs.current_limit() == 9.0


def test_a_run_is_stopped_at_the_limit() -> None:
    stopped = threading.Event()

    def work() -> None:
        assert stopped.wait(WAIT)
        raise RuntimeError("terminated")

    with time_limit(0.2), pytest.raises(TimeLimitError, match=r"time limit\n  net\.onnx\n.*0\.2 s") as raised:
        run_native(work, "net.onnx", stopped.set)
    assert "--timeout 0.4s" in str(raised.value)
    assert "a Loop without end" in str(raised.value) and "busy" in str(raised.value)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets native code go on that nobody can stop."""
    monkeypatch.setattr(runs, "GRACE", 0.2)
    event = threading.Event()
    yield event
    event.set()


def test_a_run_that_cannot_be_stopped_is_left_behind(release: threading.Event) -> None:
    with time_limit(0.2), pytest.raises(TimeLimitError):
        run_native(lambda: release.wait(WAIT), "a model")
    assert runs.is_anything_left()
    assert run_native(lambda: 3, "a model") == 3
    release.set()
    end = time.monotonic() + WAIT
    while runs.is_anything_left():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_lane_that_cannot_be_stopped_is_left_behind(release: threading.Event, threads: int) -> None:
    def work(item: int, lane: lanes.Lane) -> None:
        run_native(lambda: release.wait(WAIT if item == 1 else 0), f"batch {item}")

    done = []
    with time_limit(0.2), pytest.raises(TimeLimitError, match="batch 1"):
        done += lanes.side_by_side(range(5), work, threads)
    assert runs.is_anything_left()


def test_stopped_work_begins_no_other_run() -> None:
    crew, first = Crew(1), threading.Event()
    begun: list[int] = []

    def work() -> None:
        run_native(lambda: first.wait(WAIT), "a model", first.set)
        run_native(lambda: begun.append(1), "a model")

    job = crew.start(work)
    while job.run is None:
        time.sleep(0.001)
    assert crew.finish(at_once=True)
    with pytest.raises(runs.Stopped):
        wait_for(job)
    assert not begun


@pytest.mark.thorough
def test_a_model_that_never_ends_is_refused(folder: Path) -> None:
    model = folder / "endless.onnx"
    with pytest.raises(ModelError, match=r"longer than the time limit\n.*endless\.onnx") as raised:
        quantmedic.collect(model, model, validation=folder / "x.npz", timeout=0.5)
    assert "timeout=1" in str(raised.value)


def test_code_that_swallows_errors_is_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "AGAIN", 0.05)
    swallowed: list[Exception] = []

    def work() -> None:
        while len(swallowed) < 3:
            try:
                while True:
                    time.sleep(0.001)
            except Exception as error:
                swallowed.append(error)
        while True:
            time.sleep(0.001)

    with time_limit(0.05), pytest.raises(TimeLimitError, match="a module"):
        runs.run_python(work, "a module")
    assert [type(error) for error in swallowed] == [runs.Stopped] * 3
    time.sleep(0.2)  # an error that came too late would be raised here


def test_work_within_the_limit_is_not_interrupted() -> None:
    """Also where it ends at the very moment."""
    with time_limit(0.002):
        for _ in range(50):
            try:
                assert runs.run_python(lambda: time.sleep(0.002), "a module") is None
            except TimeLimitError:
                continue
    time.sleep(0.1)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    code = "from quantmedic.cli.main import main; main()"
    words = ["collect", "endless.onnx", "endless.onnx", *arguments]
    return start_python(code, *words, cwd=folder, stderr=subprocess.PIPE)


def wait_for_file(path: Path, running: subprocess.Popen[str]) -> str:
    """What stands in a file, as soon as anything does."""
    end = time.monotonic() + WAIT
    while not path.exists() or not path.read_text():
        assert running.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return path.read_text()


@pytest.mark.nightly
def test_a_signal_ends_a_model_that_never_ends(folder: Path) -> None:
    (folder / "samples.py").write_text(
        "import numpy as np\ndef batches():\n    open('given', 'w').write('1')\n    yield np.ones((8, 4), np.float32)\n"
    )
    running = start(folder, "-v", "samples:batches")
    wait_for_file(folder / "given", running)
    time.sleep(1)  # the loop runs by then
    running.send_signal(signal.SIGTERM)
    _, told = running.communicate(timeout=WAIT)
    assert running.returncode == 143, told
    assert "Traceback" not in told
    assert not list(folder.glob("*.case*"))


@pytest.mark.thorough
def test_the_command_says_what_took_too_long(folder: Path) -> None:
    running = start(folder, "-v", "x.npz", "--timeout", "1")
    _, told = running.communicate(timeout=WAIT)
    assert running.returncode == 2
    assert "error: a run of the model takes longer than the time limit\n  endless.onnx\n" in told
    assert "--timeout 2s gives it more time" in told


@pytest.mark.skipif(sys.platform == "win32", reason="without pass_fds")
def test_a_child_does_not_outlive_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os\nfrom pathlib import Path\nfrom quantmedic.collectors.native.child import run_child\n"
        'run_child(\'import os, time; open("pid", "w").write(str(os.getpid())); time.sleep(300)\')\n'
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, text=True)
    pid = wait_for_file(tmp_path / "pid", parent)
    parent.kill()
    parent.wait()
    end = time.monotonic() + WAIT
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.thorough
def test_a_child_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_child("while True: pass", seconds=0.5)


def test_the_first_run_of_a_file_in_its_child_has_the_limit(tmp_path: Path) -> None:
    """No process starts in so short a time."""
    with time_limit(0.001), pytest.raises(TimeLimitError, match="its first run, on zeros"):
        require_survival([tmp_path / "a.tflite"])


@pytest.mark.thorough
def test_a_script_without_a_deadline_may_take_as_long_as_some_runs(tmp_path: Path) -> None:
    with time_limit(0.1), pytest.raises(TimeLimitError, match=r"the limit is 0\.6 s"):
        run_script(tmp_path, "while True: pass", "", None)
