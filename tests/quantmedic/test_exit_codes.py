"""Exit codes say what happened, whatever functions of the user, pipes and devices do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.commands import run_quantmedic
from click.testing import CliRunner

import quantmedic
from quantmedic.cli import main as command_line
from quantmedic.cli.main import cli
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.collectors.data.arrays import as_array
from quantmedic.collectors.data.functions import failing_as, import_function
from quantmedic.collectors.data.sources import FunctionSource
from quantmedic.collectors.measure.debugger import UserMetric
from quantmedic.collectors.metrics.metric import call_metric
from quantmedic.demo import patient
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.reading_limits import SAMPLES, LimitError
from quantmedic.trials import workbench

pytestmark = pytest.mark.thorough

LOADER = """\
class Mine(BaseException):
    def __str__(self):
        raise SystemExit(1)

def ends():
    raise SystemExit(1)

def is_closed():
    raise GeneratorExit

def is_odd():
    yield None
    raise Mine

def is_stopped():
    raise KeyboardInterrupt

ends.higher_is_better = True
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("leaving", None)
    (tmp_path / "leaving.py").write_text(LOADER)
    return tmp_path


def shell(command: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A command line in which $Q is quantmedic, and its own exit code."""
    env = {**os.environ, "Q": f"{sys.executable} -m quantmedic", **environment}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


# Functions of the user


def test_what_a_function_raises_is_an_error_that_names_it(functions: Path) -> None:
    (float_model, quantized), _ = patient()
    for name in ("ends", "is_closed", "is_odd"):
        done = run_quantmedic("check", float_model, quantized, "--validation", f"leaving:{name}", cwd=functions)
        assert done.returncode == 2 and f"leaving:{name}" in done.stderr
        assert "internal error" not in done.stderr and "Traceback" not in done.stderr


def test_an_interrupt_in_a_function_is_an_interrupt(functions: Path) -> None:
    (float_model, quantized), _ = patient()
    done = run_quantmedic("check", float_model, quantized, "--validation", "leaving:is_stopped", cwd=functions)
    assert done.returncode == 130 and "interrupted" in done.stderr


def test_what_ends_the_process_or_cannot_be_shown_is_an_error(functions: Path) -> None:
    (functions / "leaves.py").write_text("raise SystemExit(1)\n")
    with pytest.raises(DataError, match="leaves:load") as refusal:
        import_function("leaves:load", "metric")
    assert "SystemExit: 1" in str(refusal.value)
    metric, odd = (import_function(f"leaving:{name}", "metric") for name in ("ends", "Mine"))
    with pytest.raises(DataError, match="leaving:ends"):
        call_metric("leaving:ends", lambda *_: metric(), {}, [])  # type: ignore[arg-type]  # it takes nothing
    shown = r"Mine: its text cannot be shown \(SystemExit\)"
    with pytest.raises(DataError, match=shown), failing_as(lambda cause: DataError(cause)):
        raise odd()
    with pytest.raises(QuantmedicError, match="mine"), failing_as(lambda cause: DataError(cause)):
        raise QuantmedicError("mine")  # our own errors pass


def test_an_array_whose_error_cannot_be_shown_is_refused(functions: Path) -> None:
    odd = import_function("leaving:Mine", "data")

    class Unreadable:
        shape, dtype = (1,), "float32"

        def __array__(self, *_: object, **__: object) -> object:
            raise odd()

    with pytest.raises(DataError, match="its text cannot be shown"):
        as_array(Unreadable(), "mine:data")
    with pytest.raises(DataError, match="did not return numbers"):
        call_metric("mine:metric", lambda *_: Unreadable(), {}, [])  # type: ignore[arg-type]  # it takes nothing
    with pytest.raises(DataError, match="did not return one number"):
        UserMetric("mine", "output", "mine:number", lambda *_: Unreadable())()()


def test_data_that_are_no_longer_read_end_in_peace() -> None:
    def load():  # type: ignore[no-untyped-def]  # as users write it
        while True:
            yield [1.0]

    source = FunctionSource.__new__(FunctionSource)
    source._function, source._returned = load, None
    items = source._items()
    assert next(items) == [1.0]
    items.close()


# Errors that nothing expected


class Mute(Exception):
    """An error of the user that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError


def test_what_a_command_lacks_is_an_error_with_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command_line.main(["fix", "float.onnx"])
    said = "error: fix needs QUANT\nhelp: quantmedic fix [OPTIONS] FLOAT QUANT\n"
    assert (left.value.code, capsys.readouterr().err) == (2, said)


def test_each_ends_with_2_and_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("QUANTMEDIC_DEBUG", "")
    errors: dict[BaseException, str] = {
        MemoryError("Unable to allocate 8 TiB"): "not enough memory",
        RecursionError("maximum recursion depth exceeded"): "nested too deep",
        SystemExit(1): "tried to end the process",
        GeneratorExit(): "internal error: GeneratorExit",
        EOFError("ended"): "internal error: EOFError: ended",
        BrokenPipeError(32, "Broken pipe"): "internal error: BrokenPipeError",
        Mute(): "internal error: Mute: its text cannot be shown (ValueError)",
    }
    for error, text in errors.items():

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("quantmedic.cli.explain.rules_in_force", fail)
        with pytest.raises(SystemExit) as left:
            command_line.main(["explain", "--list", "rules"])
        said = capsys.readouterr().err
        assert left.value.code == 2 and text in said and "Traceback" not in said


def test_a_traceback_that_was_asked_for_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quantmedic.cli.explain.rules_in_force", lambda *_: 1 / 0)
    monkeypatch.setenv("QUANTMEDIC_DEBUG", "1")
    with pytest.raises(SystemExit) as left:
        command_line.main(["explain", "--list", "rules"])
    assert left.value.code == 2 and "Traceback" in capsys.readouterr().err


#: Ctrl-C comes while a module is imported; each stands for a part of the start-up.
STRUCK = """
import os, runpy, signal, sys
class Striking:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Striking())
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
sys.argv = ["quantmedic", "show", "--environment"]
runpy.run_module("quantmedic", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_ctrl_c_while_the_program_starts_is_one_line() -> None:
    for module in ("quantmedic.cli.main", "click", "quantmedic.engine.errors", "quantmedic.api.environment"):
        code = STRUCK.format(module=module)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.strip()) in ((130, "interrupted"), (-2, "interrupted")), module


# Standard streams

STREAMS: list[tuple[str, int, Callable[["subprocess.CompletedProcess[str]"], bool]]] = [
    (
        "$Q explain --list rules | head -1; exit ${PIPESTATUS[0]}",
        0,
        lambda done: done.stderr == "" and done.stdout.count("\n") == 1,
    ),
    ("$Q explain W001 | true; exit ${PIPESTATUS[0]}", 0, lambda done: done.stderr == ""),
    (
        "$Q explain --list rules > /dev/full",
        2,
        lambda done: "standard output cannot be written: No space" in done.stderr,
    ),
    ("$Q --help > /dev/full", 2, lambda done: "standard output cannot be written: No space" in done.stderr),
    ("$Q explain --list rules >&-", 0, lambda done: done.stderr == ""),
    ("$Q diagnose none.case 2> /dev/full", 2, lambda done: done.stdout == ""),
    ("$Q diagnose none.case 2>&-", 2, lambda done: done.stdout == ""),
    ("$Q explain --list rules <&- >&- 2>&-", 0, lambda done: True),
    ("PYTHONIOENCODING=ascii $Q diagnose 층.case", 2, lambda done: "\\uce35" in done.stderr),
    ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $Q explain index", 0, lambda done: done.stdout.isascii()),
]


@pytest.mark.nightly
def test_streams(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for command, code, holds in STREAMS:
        with subtests.test(command):
            done = shell(command, tmp_path)
            assert done.returncode == code, done.stderr
            assert holds(done), done
            assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.nightly
def test_a_closed_output_is_not_written_into_a_file(tmp_path: Path, patient_case: Path) -> None:
    done = shell(f"$Q diagnose {patient_case} -o report >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "report" / "report.json").read_text().startswith("{")


# What lies in the working directory


def test_packages_are_not_taken_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("numpy", "click", "onnx", "yaml", "pydantic"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working directory')\n")
    done = shell("$Q explain --list rules", tmp_path)
    assert done.returncode == 0 and "taken" not in done.stderr


def test_the_module_path_is_as_before_but_for_its_end(functions: Path) -> None:
    before = [place for place in sys.path if place not in ("", str(functions))]
    import_function("leaving:ends", "metric")
    try:
        assert sys.path == [*before, str(functions)]
    finally:
        sys.path.remove(str(functions))


def test_a_function_imports_beside_itself_when_it_is_called(functions: Path) -> None:
    (functions / "beside_it.py").write_text("VALUE = 7\n")
    (functions / "importing.py").write_text("def load():\n    from beside_it import VALUE\n    return VALUE\n")
    try:
        assert import_function("importing:load", "metric")() == 7
    finally:
        sys.path.remove(str(functions))


# Settings of the machine


@pytest.mark.nightly
def test_numba_switched_off_by_its_own_variable(tmp_path: Path) -> None:
    (float_model, quantized), options = patient()
    words = ["collect", float_model, quantized, "--validation", options["validation"], "-p", "validation.scale=255"]
    words += ["--samples", "8", "--output", "a.case"]
    done = run_quantmedic(*words, cwd=tmp_path, env={**os.environ, "NUMBA_DISABLE_JIT": "1"})
    assert done.returncode == 0, done.stderr


def test_a_numba_that_does_not_fit_numpy_is_named(tmp_path: Path) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less')\n")
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "quantmedic", "check", *patient()[0], "--static"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "numba, which compiles" in done.stderr and "Numba needs NumPy 2.4" in done.stderr


def test_threads_beyond_reason_are_refused(tmp_path: Path) -> None:
    (float_model, quantized), options = patient()
    done = run_quantmedic(*("check", float_model, quantized, "--static", "--threads", "100000"), cwd=tmp_path)
    assert done.returncode == 2 and "--threads" in done.stderr and "1024" in done.stderr
    for threads in (1025, 10**9):
        with pytest.raises(LimitError, match="a run has too many threads"):
            quantmedic.collect(float_model, quantized, **options, threads=threads)
    with pytest.raises(LimitError, match="a run has too many threads"):
        quantmedic.collect_static(float_model, quantized, threads=1025)


def test_samples_beyond_reason_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, options = patient()
    monkeypatch.setenv(SAMPLES.variable, "16")
    with pytest.raises(LimitError, match="a data set has too many samples: 160 samples") as raised:
        quantmedic.collect(*models, **options)
    assert "fewer are read" in str(raised.value)
    assert quantmedic.collect(*models, **options, samples=16).statistics
    done = run_quantmedic("search", "debugger", *models, "-v", options["validation"], "-p", "scale=255", cwd=tmp_path)
    assert done.returncode == 2 and SAMPLES.variable in done.stderr


@pytest.mark.thorough
def test_an_interrupt_of_the_trials_leaves_the_report_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workbench, "edit", stop)
    (float_model, quantized), data = patient(detection=True)
    given = [
        "-r",
        data["representative"],
        "-v",
        data["validation"],
        "-p",
        "scale=255",
        "-p",
        "mean=0.5",
        "-p",
        "std=0.5",
    ]
    words = ["diagnose", float_model, quantized, *given, "--prove"]
    done = CliRunner().invoke(cli, [*map(str, words), "-o", str(tmp_path)])
    assert done.exit_code == 130 and "interrupted: not everything was tried" in done.stderr
    proof = read_case(tmp_path / "quantmedic.case").record.proof
    assert proof is not None and proof.stopped == "interrupted"
