"""Runs of language models that are killed: the same command goes on, and its report is that of a run in one go."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from builders import activation_schemes as acts
from builders import language_models as lm
from builders.commands import run_quantmedic

from quantmedic.collectors.data.progress import no_announcement
from quantmedic.collectors.from_language_model.rooms import Rooms
from quantmedic.collectors.from_language_model.unfinished import Work, open_work, state_of_files, work_folder
from quantmedic.engine.errors import OutputError

pytestmark = pytest.mark.thorough

TEXTS, LENGTH = 24, 256
#: Activations in coarse steps, so that trials look into them, and a cache.
STATIC = acts.Asked(acts.INT8_TENSOR, acts.INT8_TENSOR, 0.1, (0.02, 0.02))
#: Steps that are finished where a run is killed: in the midst of the blocks, and in that of a trial.
MOMENTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "blocks": lambda steps: len(steps.get("blocks", ())) == 2,
    "trial": lambda steps: steps.get("worst_blocks", 0) == 3,
    "scales": lambda steps: steps.get("kl_token_scales_blocks", 0) == 3,
    "cache": lambda steps: steps.get("kl_float_cache_blocks", 0) == 2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The second of four blocks makes most of the noise."""
    top = tmp_path_factory.mktemp("models")
    floats = lm.saved(lm.random_model("Llama"), top / "float")
    lm.saved(lm.rounded(lm.opened(floats), lambda name: 2 if ".layers.1." in name else 6), top / "int6")
    ids = np.random.default_rng(0).integers(3, lm.VOCABULARY, (TEXTS, LENGTH))
    np.savez(top / "ids.npz", ids=ids)
    np.savez(top / "others.npz", ids=ids[::-1])
    return floats, top / "int6"


def command(folders: tuple[Path, Path], report: Path, texts: str = "ids.npz") -> list[str]:
    tokens = str(folders[0].parent / texts)
    return ["diagnose", *map(str, folders), "--tokens", tokens, "--threads", "1", "-o", str(report)]


def killed_at(moment: str, number: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The command, killed by a signal as soon as its work says so."""
    done = work_folder(Path(arguments[-1]) / "quantmedic.case") / "done.json"
    child = subprocess.Popen(
        [sys.executable, "-m", "quantmedic", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while child.poll() is None and not (done.is_file() and MOMENTS[moment](json.loads(done.read_text())["steps"])):
        time.sleep(0.002)
    child.send_signal(number)
    output, errors = child.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, child.returncode, output, errors)


def figures(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((report / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def in_one_go(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    report = tmp_path_factory.mktemp("one") / "report"
    done = run_quantmedic(*command(folders, report))
    assert done.returncode == 0, done.stderr
    assert not list(report.glob("*.unfinished*"))
    return figures(report)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    "moment, number, code", [("blocks", signal.SIGTERM, 143), ("trial", signal.SIGTERM, 143), ("blocks", 9, -9)]
)
def test_a_killed_run_goes_on(
    moment: str, number: int, code: int, folders: tuple[Path, Path], in_one_go: dict[str, Any], tmp_path: Path
) -> None:
    arguments = command(folders, tmp_path / "report")
    killed = killed_at(moment, number, arguments)
    assert killed.returncode == code, killed.stderr
    if number == signal.SIGTERM:
        assert "help: the same command goes on from there" in killed.stderr
    assert_goes_on(arguments, in_one_go)


def assert_goes_on(arguments: list[str], in_one_go: dict[str, Any]) -> None:
    """The same command goes on from what was left, and gives what a run in one go gives."""
    report = Path(arguments[-1])
    work = work_folder(report / "quantmedic.case")
    left = json.loads((work / "done.json").read_text())["steps"]
    again = run_quantmedic(*arguments)
    assert again.returncode == 0, again.stderr
    assert f"an interrupted run is continued: {len(left['blocks'])} blocks are done" in again.stderr
    assert figures(report) == in_one_go
    assert not work.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_trials_of_activations_and_cache_go_on(folders: tuple[Path, Path], tmp_path: Path) -> None:
    asking = folders[0], acts.write_quantized(folders[0], folders[0].parent / "static", STATIC)
    whole = command(asking, tmp_path / "one")
    done = run_quantmedic(*whole)
    assert done.returncode == 0, done.stderr
    arguments = command(asking, tmp_path / "report")
    for moment in ("scales", "cache"):  # killed twice
        killed = killed_at(moment, signal.SIGTERM, arguments)
        assert killed.returncode == 143, killed.stderr
    assert_goes_on(arguments, figures(tmp_path / "one"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_other_texts_begin_anew(folders: tuple[Path, Path], tmp_path: Path) -> None:
    killed_at("blocks", signal.SIGTERM, command(folders, tmp_path / "report"))
    again = run_quantmedic(*command(folders, tmp_path / "report", "others.npz"))
    assert again.returncode == 0, again.stderr
    assert "is not used, because it was made with other texts: all is run anew" in again.stderr
    other = tmp_path / "other"
    assert run_quantmedic(*command(folders, other, "others.npz")).returncode == 0
    assert figures(tmp_path / "report") == figures(other)


def test_only_what_is_named_as_finished_counts(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_work(tmp_path / "work", {"files": 1}, no_announcement) as work:
        work.keep(blocks=[{}])
        work.room("float-0", (2, 3))[:] = 7
        raise ZeroDivisionError
    (tmp_path / "work" / "done.json").write_text('{"plan": {"files": 1}, "steps": {"blo')
    told: list[str] = []
    with open_work(tmp_path / "work", {"files": 1}, told.append) as work:
        assert "blocks" not in work and not list(work.folder.glob("float-*"))
    assert "it cannot be read" in told[0]
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("plan", [{"files": 2}, {"files": 1, "threads": 2}])
def test_another_plan_begins_anew(plan: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_work(tmp_path / "work", {"files": 1}, no_announcement) as work:
        work.keep(blocks=[{}])
        raise ZeroDivisionError
    told: list[str] = []
    with open_work(tmp_path / "work", plan, told.append) as work:
        assert "blocks" not in work
    assert "is not used" in told[0]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        open_work(tmp_path / "work", {}, no_announcement),
        pytest.raises(OutputError, match="another run works on the same output"),
        open_work(tmp_path / "work", {}, no_announcement),
    ):
        pass


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError), open_work(tmp_path / "new" / "work", {}, no_announcement):
        raise OutputError("no")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_told_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no room for the hidden states"):
        Rooms.in_work(Work(tmp_path, {}), 1 << 40, 1 << 12)


def test_a_file_that_was_replaced_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    before = state_of_files([tmp_path])
    times = (tmp_path / "model.safetensors").stat()
    time.sleep(0.02)
    (tmp_path / "model.safetensors").write_bytes(b"4321")
    os.utime(tmp_path / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert state_of_files([tmp_path]) != before


def test_all_parts_and_the_settings_beside_a_file_count(tmp_path: Path) -> None:
    for name in ("m[1]-00001-of-00002.gguf", "m[1]-00002-of-00002.gguf", "config.json", "other.gguf"):
        (tmp_path / name).write_bytes(b"1")
    found = {Path(path).name for path in state_of_files([tmp_path / "m[1]-00001-of-00002.gguf"])}
    assert found == {"m[1]-00001-of-00002.gguf", "m[1]-00002-of-00002.gguf", "config.json"}
