"""What is kept between runs lies where nobody else can write, or nowhere: what is loaded from there is executed."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from quantmedic.collectors.tensorflow_files import convert_tensorflow
from quantmedic.engine.cache_folder import cache_folder, is_private
from quantmedic.engine.errors import ModelError

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform == "win32", reason="modes of files tell nothing there"),
]

#: Compiles one loop, or loads it.
LOAD = """
import numpy as np
from quantmedic.collectors.statistics import numba_loops
print(numba_loops.sample_moments(np.ones((2, 3), np.float32))[0].tolist())
"""


class Planted:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def run(**environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-c", LOAD], env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_folder_is_made_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        (tmp_path / "cache").mkdir(mode=0o755)
        folder = cache_folder("kernels")
    finally:
        os.umask(before)
    assert folder is None, "its parent was open to all under this mask"
    (tmp_path / "cache" / "quantmedic").chmod(0o755)
    folder = cache_folder("kernels")
    assert folder == tmp_path / "cache" / "quantmedic" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    """One that they could only read is closed."""
    for mode in (0o755, 0o777, 0o1777, 0o733):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        assert is_private(folder) == (mode == 0o755), folder
    assert (tmp_path / "755").stat().st_mode & 0o777 == 0o700


def test_neither_is_one_that_others_can_put_another_in_place_of(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "mine"
    folder.mkdir(parents=True)
    assert is_private(folder)
    folder.parent.chmod(0o777)
    assert not is_private(folder)
    folder.parent.chmod(0o1777)  # as the temporary directory: what is there stays whose it is
    assert is_private(folder)


def test_links_are_followed_and_where_they_lead_is_asked_too(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "open")
    assert is_private(tmp_path / "link" / "mine")
    (tmp_path / "open").chmod(0o777)
    assert not is_private(tmp_path / "link" / "mine")
    (tmp_path / "last").symlink_to(tmp_path)
    assert not is_private(tmp_path / "last")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError):
        is_private(tmp_path / "loop" / "mine")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    assert not is_private(folder)


@pytest.mark.nightly
def test_without_a_private_folder_nothing_is_kept_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "home").write_bytes(b"no folder")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert run(HOME=str(tmp_path / "home"), TMPDIR=str(temporary)) == "[1.0, 1.0]\n"
    assert list(temporary.iterdir()) == []


@pytest.mark.nightly
def test_a_planted_index_is_not_loaded(tmp_path: Path) -> None:
    """Numba loads it where the user named the folder, so what was planted is what would run."""
    folder, trace = tmp_path / "cache" / "quantmedic" / "kernels", tmp_path / "trace"
    run(XDG_CACHE_HOME=str(tmp_path / "cache"))
    indices = [path for path in files_in(folder) if path.suffix == ".nbi"]
    assert indices
    for path in indices:
        path.write_bytes(pickle.dumps(Planted(trace)))
    folder.chmod(0o777)
    assert run(XDG_CACHE_HOME=str(tmp_path / "cache")) == "[1.0, 1.0]\n"
    assert not trace.exists()
    folder.chmod(0o700)
    command = [sys.executable, "-c", LOAD]
    subprocess.run(command, env=os.environ | {"NUMBA_CACHE_DIR": str(folder)}, capture_output=True, check=False)
    assert trace.exists()


def test_a_converted_model_needs_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    (tmp_path / "old.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("quantmedic.collectors.tensorflow_files.find_spec", lambda name: object())
    with pytest.raises(ModelError, match="no private folder"):
        convert_tensorflow(tmp_path / "old.h5", "Keras model", "litert")
