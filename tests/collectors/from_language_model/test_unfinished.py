"""Runs of language models that are killed: the same command goes on, and its report is that of a run in one go."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from builders import activation_schemes as acts
from builders import language_models as lm
from click.testing import CliRunner, Result

from quantmedic.api.cases import work_folder
from quantmedic.cli.main import cli
from quantmedic.collectors.data.progress import no_announcement
from quantmedic.collectors.from_language_model import bench, network, rooms
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.from_language_model.rooms import Rooms
from quantmedic.collectors.from_language_model.unfinished import Work, open_work, plan_of
from quantmedic.collectors.from_torch.devices import PROCESSOR
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.errors import OutputError

pytestmark = pytest.mark.thorough

#: Activations in coarse steps, so that trials look into them, and a cache.
STATIC = acts.Asked(acts.INT8_TENSOR, acts.INT8_TENSOR, 0.1, (0.02, 0.02))
#: A command that is ended by a signal as soon as the last of its trials has kept two blocks.
KILLED = """
import os, signal, sys
from quantmedic.cli.main import main
from quantmedic.collectors.from_language_model.unfinished import Work
keep = Work.keep
def keep_and_die(self, **steps):
    keep(self, **steps)
    if steps.get("blocks_of_trial") == 2 and len(self.done.get("trials", ())) == 1:
        os.kill(os.getpid(), signal.SIGTERM)
Work.keep = keep_and_die
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    top = tmp_path_factory.mktemp("models")
    floats = lm.saved(lm.random_model("Llama"), top / "float")
    ids = np.random.default_rng(0).integers(3, lm.VOCABULARY, (4, 16))
    np.savez(top / "ids.npz", ids=ids)
    np.savez(top / "others.npz", ids=ids[::-1])
    return floats, acts.write_quantized(floats, top / "static", STATIC)


def command(folders: tuple[Path, Path], report: Path) -> list[str]:
    tokens = str(folders[0].parent / "ids.npz")
    return ["diagnose", *map(str, folders), "--tokens", tokens, "--threads", "1", "-o", str(report)]


def in_process(arguments: list[str]) -> Result:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done


def figures(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((report / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_run_that_is_killed_goes_on(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """The same command goes on from what was left, and gives what a run in one go gives."""
    in_process(command(folders, tmp_path / "one"))
    assert not list((tmp_path / "one").glob("*.unfinished*"))
    arguments = command(folders, tmp_path / "report")
    words = [sys.executable, "-c", KILLED, *arguments]
    killed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert killed.returncode == 143 and "help: the same command goes on from there" in killed.stderr, killed.stderr
    work = work_folder(tmp_path / "report" / "quantmedic.case")
    left = json.loads((work / "done.json").read_text())["done"]
    again = in_process(arguments)
    assert f"an interrupted run is continued: {len(left['blocks'])} blocks are done" in again.stderr
    assert figures(tmp_path / "report") == figures(tmp_path / "one")
    assert not work.exists()


def interrupt(what: str, done: int, total: int) -> None:
    """As Ctrl-C does behind the second block."""
    if done == 2:
        raise KeyboardInterrupt


@contextmanager
def interrupted(at: float) -> Iterator[list[int]]:
    """The call of this number of what follows a step, or a text, raises as Ctrl-C does; gives how many there were."""
    calls = [0]

    def counted(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            calls[0] += 1
            if calls[0] == at:
                raise KeyboardInterrupt
            function(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for place, name in ((rooms, "let_go"), (network, "let_go"), (bench, "let_go"), (Work, "keep")):
            patched.setattr(place, name, counted(getattr(place, name)))
        yield calls


def test_runs_that_are_interrupted_equal_one_in_one_go(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """To the bit, wherever it was: in a block, what it copies, the norm or a trial, or just before one is finished."""
    texts, work = folders[0].parent / "ids.npz", tmp_path / "work"
    with interrupted(math.inf) as calls:
        wanted = run_language_models(folders, TextRun(texts, unfinished=work))
    left = set()
    for at in range(7, calls[0] + 1, calls[0] // 8):
        with interrupted(at), pytest.raises(KeyboardInterrupt):
            run_language_models(folders, TextRun(texts, unfinished=work))
        left.add((work / "done.json").read_text() if work.exists() else None)
        assert run_language_models(folders, TextRun(texts, unfinished=work)) == wanted
        assert not work.exists()
    assert len(left) > 6


def test_work_on_other_texts_begins_anew(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """And it is said why."""
    texts, others = (folders[0].parent / name for name in ("ids.npz", "others.npz"))
    work = tmp_path / "work"
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_language_models(folders, TextRun(texts, unfinished=work, progress=interrupt))
    assert json.loads((work / "done.json").read_text())["plan"]["devices"] == "cpu"
    found = run_language_models(folders, TextRun(others, unfinished=work, announce=told.append))
    assert told == [f"{work} is not used, because it was made with other texts: all is run anew"]
    assert found == run_language_models(folders, TextRun(others))


def test_only_what_is_named_as_finished_counts(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_work(tmp_path / "work", {"files": 1}, no_announcement) as work:
        work.keep(blocks=[{}])
        work.room("float-0", (2, 3))[:] = 7
        raise ZeroDivisionError
    (tmp_path / "work" / "done.json").write_text('{"plan": {"files": 1}, "done": {"blo')
    told: list[str] = []
    with open_work(tmp_path / "work", {"files": 1}, told.append) as work:
        assert not work.done and not list(work.folder.glob("float-*"))
    assert "it cannot be read" in told[0]
    assert not (tmp_path / "work").exists()


def test_another_plan_begins_anew(tmp_path: Path) -> None:
    for plan in ({"files": 2}, {"files": 1, "threads": 2}):
        with pytest.raises(ZeroDivisionError), open_work(tmp_path / "work", {"files": 1}, no_announcement) as work:
            work.keep(blocks=[{}])
            raise ZeroDivisionError
        told: list[str] = []
        with open_work(tmp_path / "work", plan, told.append) as work:
            assert not work.done
        assert "is not used" in told[0]


def plant_in(folder: Path, mode: int = 0o700) -> Path:
    folder.mkdir()
    folder.chmod(mode)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="no rights of others, and no locks")
def test_a_folder_that_no_run_of_mine_has_left_is_not_touched(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Neither written into nor emptied, whatever leads there."""
    victims = tmp_path / "victims"
    victims.mkdir(0o700)
    for name in ("done.json", "float-0.f32"):
        (victims / name).write_bytes(bytes(24))
    links = {"to a folder": victims, "to nothing": victims / "nothing", "to itself": Path("work")}
    plants = {
        **{f"a link {sort}": partial(Path.symlink_to, target=target) for sort, target in links.items()},
        "a folder in which others may write": lambda work: plant_in(work, 0o777),
        "other files": lambda work: plant_in(work).joinpath("thesis.txt").write_text("mine"),
        "a folder in it": lambda work: plant_in(work).joinpath("inner").mkdir(),
        "a link in it": lambda work: plant_in(work).joinpath("float-0.f32").symlink_to(victims / "float-0.f32"),
        "a file of two names": lambda work: plant_in(work).joinpath("done.json").hardlink_to(victims / "done.json"),
    }
    for number, (what, plant) in enumerate(plants.items()):
        with subtests.test(what=what):
            folder = tmp_path / str(number) / "work"
            folder.parent.mkdir()
            plant(folder)
            before = sorted(tmp_path.rglob("*"))
            with pytest.raises(OutputError), open_work(folder, {}, no_announcement) as work:
                work.room("float-0", (2, 3))[:] = 7
            assert sorted(tmp_path.rglob("*")) == before
    assert {path.read_bytes() for path in victims.iterdir()} == {bytes(24)}


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


def state_of_files(path: Path) -> dict[str, list[int]]:
    found = plan_of([path], [], PROCESSOR, "")["files"]
    assert isinstance(found, dict)
    return found


def test_a_file_that_was_replaced_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    before = state_of_files(tmp_path)
    times = (tmp_path / "model.safetensors").stat()
    time.sleep(0.02)
    (tmp_path / "model.safetensors").write_bytes(b"4321")
    os.utime(tmp_path / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert state_of_files(tmp_path) != before


def test_all_parts_and_the_settings_beside_a_file_count(tmp_path: Path) -> None:
    for name in ("m[1]-00001-of-00002.gguf", "m[1]-00002-of-00002.gguf", "config.json", "other.gguf"):
        (tmp_path / name).write_bytes(b"1")
    found = {Path(path).name for path in state_of_files(tmp_path / "m[1]-00001-of-00002.gguf")}
    assert found == {"m[1]-00001-of-00002.gguf", "m[1]-00002-of-00002.gguf", "config.json"}
