"""Files are refused before work is done for them, and written whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quantmedic.engine import output_files
from quantmedic.engine.errors import OutputError
from quantmedic.engine.file_sets import READY, SET_ASIDE, settle_files, write_together
from quantmedic.engine.output_files import (
    append_to_file,
    open_new,
    require_file,
    require_folder,
    scratch_folder,
    temporary_path,
    write_file,
)

OLD = {"a.txt": b"old a", "graphs/b.svg": b"old b", "gone.txt": b"old"}
NEW = {"a.txt": b"new a", "graphs/b.svg": b"new b", "graphs/c.svg": b"new c"}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_can_be_written_is_not_refused_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("mine")
    require_file(tmp_path / "there.txt")
    require_file(tmp_path / "new" / "deep" / "file.txt")
    require_folder(tmp_path)
    require_folder(tmp_path / "new" / "deep")
    assert tree(tmp_path) == {"there.txt": b"mine"} and not (tmp_path / "new").exists()


def test_what_is_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is a folder, not a file"):
        require_file(tmp_path)
    with pytest.raises(OutputError, match="the output folder is a file"):
        require_folder(tmp_path / "file")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        require_folder(tmp_path / "file" / "deep")
    with pytest.raises(OutputError, match="is a file"):
        require_file(tmp_path / "file" / "x.txt")


def test_what_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A superuser may write anything, so that the system's answer is replaced."""
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="the output may not be written"):
        require_file(tmp_path / "file")
    with pytest.raises(OutputError, match="the output folder may not be written"):
        require_folder(tmp_path / "new")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    write_file(target, b"first")

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_file(target, b"second")
    assert tree(tmp_path) == {"file.txt": b"first"}


def gone() -> int:
    """The number of a process that has ended."""
    return int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="scraps stay there")
def test_scraps_of_processes_that_are_gone_are_removed_and_no_others(tmp_path: Path) -> None:
    own, dead, machine = temporary_path(tmp_path), gone(), output_files._machine()
    own.mkdir()
    kept = [own.name, f".quantmedic-{machine}-1-00000000", f".quantmedic-00000000-{dead}-00000000", ".quantmedic-notes"]
    scraps = [f".quantmedic-{machine}-{dead}-00000000", f".quantmedic-{machine}-{os.getpid()}-00000000"]
    for name in (*kept[1:], *scraps):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("1")
    (tmp_path / f".quantmedic-{machine}-{dead}-11111111").write_text("1")
    with scratch_folder(tmp_path) as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, folder.name])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


@pytest.mark.skipif(sys.platform == "win32", reason="scraps stay there")
def test_a_scrap_that_is_a_link_takes_nothing_along(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("1")
    (tmp_path / f".quantmedic-{output_files._machine()}-{gone()}-00000000").symlink_to(tmp_path / "mine")
    write_file(tmp_path / "x", b"1")
    assert tree(tmp_path) == {"mine/file": b"1", "x": b"1"}


def test_files_are_written_together(tmp_path: Path) -> None:
    write_together(tmp_path, {**OLD, "mine": b"mine"})
    write_together(tmp_path, NEW, ["gone.txt", "never.txt", "a.txt"])
    assert tree(tmp_path) == {**NEW, "mine": b"mine"}


class Killed(BaseException):
    """Stands for the end of the process: nothing may be done behind it."""


class Dying:
    """System calls that go on until so many were made."""

    def __init__(self, left: int) -> None:
        self.left = left

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return real(*args, **kwargs)

        return call


def test_whatever_step_is_the_last_one_all_files_are_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The system calls of the second writer end after so many of them."""
    for step in range(12):
        with subtests.test(step=step):
            folder, dying = tmp_path / str(step), Dying(step)
            write_together(folder, OLD)
            with monkeypatch.context() as patched:
                for owner, name in ((os, "rename"), (os, "replace"), (Path, "open"), (Path, "unlink")):
                    patched.setattr(owner, name, dying.around(getattr(owner, name)))
                patched.setattr(shutil, "rmtree", dying.around(shutil.rmtree))
                with suppress(Killed):
                    write_together(folder, NEW, ["gone.txt"])
            settle_files(folder)
            found = {name: content for name, content in tree(folder).items() if not name.startswith(".")}
            assert found in (OLD, NEW)
            assert not (folder / READY).exists()
            write_together(folder, NEW, ["gone.txt"])
            assert {name for name in tree(folder) if not name.startswith(".")} == NEW.keys()


def test_a_folder_in_the_way_changes_nothing(tmp_path: Path) -> None:
    write_together(tmp_path, OLD)
    (tmp_path / "z.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        write_together(tmp_path, {**NEW, "z.txt": b"1"}, ["gone.txt"])
    assert tree(tmp_path) == OLD


@pytest.mark.thorough
def test_writers_at_once_do_not_mix_their_files(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom quantmedic.engine.file_sets import write_together\n"
        "for turn in range(20):\n"
        "    content = f'{sys.argv[1]} {turn}'.encode()\n"
        "    write_together(Path('out'), {f'f{i}': content for i in range(20)})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name], cwd=tmp_path) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len({*tree(tmp_path / "out").values()}) == 1
    assert len(tree(tmp_path / "out")) == 20


def test_what_is_declared_is_a_plain_list(tmp_path: Path) -> None:
    """The next writer reads it: it must stay readable for another version."""
    (tmp_path / READY / "new").mkdir(parents=True)
    (tmp_path / READY / "new" / "a.txt").write_text("new")
    (tmp_path / READY / "stale.json").write_text(json.dumps(["b.txt"]))
    (tmp_path / "b.txt").write_text("old")
    settle_files(tmp_path)
    assert tree(tmp_path) == {"a.txt": b"new"}


def test_a_pipe_or_a_device_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OutputError, match="a pipe or a device"):
            require_file(path)


def links(victim: Path, folder: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """What makes a link of each sort: to a file, a folder, nothing, itself, by a relative path, from a hard link."""
    yield "to a file", lambda path: path.symlink_to(victim)
    yield "to a folder", lambda path: path.symlink_to(folder)
    yield "to a folder by a relative path", lambda path: path.symlink_to(os.path.relpath(folder, path.parent))
    yield "to nothing", lambda path: path.symlink_to(folder / "nothing")
    yield "to itself", lambda path: path.symlink_to(path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of others, with a file."""
    folder = tmp_path / "elsewhere"
    (folder / "inner").mkdir(parents=True)
    (folder / "victim").write_bytes(b"mine")
    return folder


def test_no_link_in_an_output_folder_is_followed(tmp_path: Path, elsewhere: Path, subtests: pytest.Subtests) -> None:
    """Neither as the file that is written nor on the way to it, whoever writes."""
    before = tree(elsewhere)
    for number, (sort, link) in enumerate(links(elsewhere / "victim", elsewhere)):
        for place in ("index.html", "manual", "gone"):
            with subtests.test(sort=sort, place=place):
                report = tmp_path / f"{number}-{place}"
                report.mkdir()
                link(report / place)
                with pytest.raises(OSError, match="it is a link"):
                    write_together(report, {"index.html": b"", "manual/A.html": b""}, ["gone/victim"])
                with pytest.raises(OSError, match="it is a link"):
                    write_file(report / place, b"")
                with pytest.raises(OSError):
                    append_to_file(report / place, b"")
                with pytest.raises(OSError):
                    open_new(report / place)
                with pytest.raises(OutputError, match="is a link"):
                    require_file(report / place)
                with pytest.raises(OutputError, match="is a link"):
                    require_folder(report / place, within=report)
                assert [path.name for path in report.iterdir()] == [place]
    assert tree(elsewhere) == before


#: What somebody else puts where an earlier run would have left files: content of ``stale.json``, files below ``new``.
PLANTED: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "another's file": (b'["../elsewhere/victim"]', ()),
    "an absolute path": (b'["VICTIM"]', ()),
    "a way through a link": (b'["link/victim"]', ()),
    "the folder": (b'[".", ""]', ()),
    "no list": (b"{}", ()),
    "no names": (b"[1, null]", ()),
    "no name of a file": (b'["a\\u0000b", "\\ud800"]', ()),
    "a long name": (b'["' + b"x" * 5000 + b'"]', ()),
    "no JSON": (b"\xff[", ()),
    "too deep": (b"[" * 9999, ()),
    "files through a link": (b"[]", ("link/victim",)),
    "files in the place of a folder": (b"[]", ("inner",)),
}


def test_what_others_left_in_an_output_folder_is_set_aside(
    tmp_path: Path, elsewhere: Path, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, nothing in it is used, and files are written as if it were not there."""
    before = tree(elsewhere)
    for number, (what, (stale, names)) in enumerate(PLANTED.items()):
        with subtests.test(what=what):
            report = tmp_path / str(number)
            (report / READY / "new").mkdir(parents=True)
            (report / "inner").mkdir()
            (report / "link").symlink_to(elsewhere)
            (report / READY / "stale.json").write_bytes(stale.replace(b"VICTIM", bytes(elsewhere / "victim")))
            for name in names:
                (report / READY / "new" / name).parent.mkdir(exist_ok=True)
                (report / READY / "new" / name).write_text("planted")
            check_set_aside(report, caplog)
    for number, (sort, link) in enumerate(links(elsewhere / "victim", elsewhere)):
        for place in (READY, f"{READY}/stale.json", f"{READY}/new", f"{READY}/new/a.txt"):
            with subtests.test(sort=sort, place=place):
                report = tmp_path / f"{number}-{place.count('/')}-{Path(place).name}"
                (report / place).parent.mkdir(parents=True)
                if Path(place).name != READY:
                    (report / READY / "stale.json").write_text("[]")
                (report / place).unlink(missing_ok=True)
                link(report / place)
                check_set_aside(report, caplog)
    assert tree(elsewhere) == before


def test_a_pipe_where_files_of_an_earlier_run_would_be_waits_for_no_writer(tmp_path: Path) -> None:
    (tmp_path / READY).mkdir(mode=0o700)
    os.mkfifo(tmp_path / READY / "new")
    write_together(tmp_path, {"a.txt": b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def check_set_aside(report: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    write_together(report, {"a.txt": b"new"})
    assert (report / "a.txt").read_bytes() == b"new" and not (report / "a.txt").is_symlink()
    assert len(list(report.glob(f"{SET_ASIDE}*"))) == 1
    assert "was not left by an earlier run" in caplog.text and SET_ASIDE in caplog.text
