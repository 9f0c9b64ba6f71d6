"""Work on language models that may be interrupted: what is finished lies in a folder, and the same run goes on from it.

A step counts once ``done.json`` names it, which is written last, under another name, and then renamed. Arrays are
written to places that no finished step needs any more. A run with other files or options begins anew. A folder that no
run of this user has made is not touched.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import save_arrays
from quantmedic.collectors.data.progress import Announce
from quantmedic.collectors.measure.checkpoints import InterruptedRun
from quantmedic.engine.errors import OutputError, QuantmedicError
from quantmedic.engine.json_text import read_json
from quantmedic.engine.output_files import (
    change_file,
    is_plain_file,
    is_private_folder,
    make_folder,
    make_private_folder,
    open_new,
    remove_empty,
    remove_file,
    remove_folder,
    require_folder,
    scratch_folder,
    write_file,
)

if sys.platform != "win32":
    import fcntl

Values = NDArray[np.float32]
_DONE = "done.json"
_STATES, _ARRAYS = ".f32", ".npz"
#: What a run leaves in its folder, whole or not.
_OWN = re.compile(rf"{re.escape(_DONE)}|[\w-]+({_STATES}|{_ARRAYS})|\.quantmedic-[\da-f-]+")


class Work:
    """Steps of one run that are finished: small values by name, and arrays."""

    def __init__(self, folder: Path, plan: Mapping[str, object]) -> None:
        """Begin with nothing; see ``open_work``.

        Args:
            folder: Where arrays and ``done.json`` stand.
            plan: All that the results depend on.
        """
        self.folder = folder
        self._plan = dict(plan)
        self._steps: dict[str, Any] = {}

    def __contains__(self, step: str) -> bool:
        return step in self._steps

    def __getitem__(self, step: str) -> Any:
        return self._steps[step]

    def get(self, step: str, other: object = None) -> Any:
        """What a step left; ``other`` where it is not finished."""
        return self._steps.get(step, other)

    def keep(self, **steps: object) -> None:
        """These steps are finished; arrays that belong to them have been flushed before."""
        self._steps.update(steps)
        write_file(self.folder / _DONE, json.dumps({"plan": self._plan, "steps": self._steps}).encode())

    def once(self, step: str, compute: Callable[[], Any]) -> Any:
        """What a step left, or what it gives now."""
        if step not in self._steps:
            self.keep(**{step: compute()})
        return self._steps[step]

    def room(self, name: str, shape: tuple[int, int]) -> Values:
        """A place for an array on disk, with what an interrupted run has left in it.

        Raises:
            OutputError: There is not enough room on the disk.
        """
        path = self._place(name)
        size = 4 * shape[0] * shape[1]
        if path.exists() and path.stat().st_size == size:
            return _map(path, shape)
        try:
            remove_file(path)
            with open_new(path) as file:
                # A mapped file that finds no room ends the process.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
        except OSError as error:
            raise OutputError(
                "there is no room for the hidden states of both models",
                where=f"{path}: {size / 1e9:.3g} GB: {error.strerror}",
                help="make room, name another output, or use fewer or shorter texts: --text-length",
            ) from error
        return _map(path, shape)

    def has_room(self, name: str) -> bool:
        """There is a place of this name."""
        return self._place(name).is_file()

    def keep_rooms(self, prefix: str, kept: str) -> None:
        """Remove the places whose names begin so, but for one."""
        for path in self.folder.glob(f"{escape(prefix)}*{_STATES}"):
            if path != self._place(kept):
                remove_file(path)

    def _place(self, name: str) -> Path:
        return self.folder / f"{name}{_STATES}"

    def arrays(self, name: str, compute: Callable[[], Mapping[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]]:
        """Arrays of a step by name, or what it gives now."""
        path = self.folder / f"{name}{_ARRAYS}"
        if name in self._steps:
            with np.load(path, allow_pickle=False) as found:
                return dict(found)
        computed = compute()
        save_arrays(path, computed)
        self.keep(**{name: True})
        return computed

    def resume(self) -> str | None:
        """Take over what an interrupted run of the same plan has finished; why nothing is where something lies."""
        path = self.folder / _DONE
        if not path.is_file():
            return None
        try:
            found = read_json(path)
            plan, steps = found["plan"], dict(found["steps"])  # type: ignore[index, call-overload]
        except (OSError, ValueError, TypeError, KeyError, QuantmedicError):
            return "it cannot be read"
        if plan != self._plan:
            changed = [name for name in self._plan if not isinstance(plan, dict) or plan.get(name) != self._plan[name]]
            return f"it was made with {' and '.join(['other ' + name for name in changed]) or 'other options'}"
        self._steps = steps
        return None


@contextmanager
def open_work(folder: Path | None, plan: Mapping[str, object], announce: Announce) -> Iterator[Work]:
    """Work in a folder, which goes once it is done and stays where it was interrupted; without one, nothing stays.

    Args:
        folder: Where it lies; None for a place among the temporary files.
        plan: All that the results depend on: what was done under another plan is not used.
        announce: Is told that it goes on, or why it begins anew.

    Raises:
        InterruptedRun: Ctrl-C, and something is kept.
        OutputError: The folder cannot be made, or another run works in it.
    """
    if folder is None:
        with scratch_folder() as place:
            yield Work(place, plan)
        return
    made = _make_folder(folder)
    with _alone(folder):
        _require_own(folder)
        work = Work(folder, plan)
        why = work.resume()
        if why is not None:
            announce(f"{folder} is not used, because {why}: all is run anew")
            _clear(folder)
        elif work.get("blocks"):
            announce(f"an interrupted run is continued: {_steps_of(work)} are done ({folder})")
        try:
            yield work
        except KeyboardInterrupt as interrupt:
            if not work.get("blocks"):
                _remove(folder, made)
                raise
            raise InterruptedRun(folder, _steps_of(work)) from interrupt
        except QuantmedicError:  # the same files would give it again
            _remove(folder, made)
            raise
        _remove(folder, [])


def _steps_of(work: Work) -> str:
    return f"{len(work['blocks'])} blocks"


def _make_folder(folder: Path) -> list[Path]:
    """Make a folder that only the user gets into, unless one is there; those above it that were not there."""
    require_folder(folder, within=folder.parent)
    try:
        made = make_folder(folder.parent)
        with suppress(FileExistsError):
            make_private_folder(folder)
    except OSError as error:
        raise OutputError(
            "unfinished work cannot be kept", where=f"{folder}: {error.strerror}", help="name another output"
        ) from error
    return made


def _require_own(folder: Path) -> None:
    """Refuse a folder that no run of this user has made: it is written into, and removed in the end.

    Raises:
        OutputError: It is such a folder.
    """
    strange = [] if is_private_folder(folder) else [folder]
    strange += [path for path in sorted(folder.iterdir()) if not (_OWN.fullmatch(path.name) and is_plain_file(path))]
    if strange:
        raise OutputError(
            "what lies where unfinished work is kept was not left by a run of yours",
            where=str(strange[0]),
            help="move it away, or name another output",
        )


def _map(path: Path, shape: tuple[int, int]) -> Values:
    with change_file(path) as file:
        return np.memmap(file, np.float32, "r+", shape=shape)


def _clear(folder: Path) -> None:
    """Remove what lies there: first what makes it count."""
    with suppress(OSError):
        for path in (folder / _DONE, *folder.iterdir()):
            remove_file(path)


def _remove(folder: Path, made: Sequence[Path]) -> None:
    """Remove a folder, and those above it that were made for it and are empty."""
    with suppress(OSError):
        remove_file(folder / _DONE)
    remove_folder(folder)
    remove_empty(made)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other run works in the folder; the lock of one that was killed is gone with it."""
    if sys.platform == "win32":
        yield
    else:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OutputError(
                    "another run works on the same output",
                    where=str(folder),
                    help="wait for it, or name another output",
                ) from error
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(handle)


def state_of_files(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Size and times of the files that checkpoints consist of, by path: what tells that one was changed.

    Times are in nanoseconds; that of the last change of the entry tells of a file that was copied with its times.
    """
    found = {}
    for path in paths:
        for file in sorted(_files_of_model(path)):
            with suppress(OSError):
                own = file.stat()
                found[str(file.absolute())] = [own.st_size, own.st_mtime_ns, own.st_ctime_ns]
    return found


def _files_of_model(path: Path) -> list[Path]:
    """Weights and settings of a folder or a package, or of a file, of which there may be several parts."""
    if path.is_dir():
        return [file for kind in ("*.json", "*.safetensors", "Data/**/*") for file in path.glob(kind)]
    parts = escape(path.name).replace("-00001-of-", "-*-of-")
    return [*path.parent.glob(parts), *path.parent.glob("*.json")]


def hash_of_texts(texts: Iterable[NDArray[np.int64]]) -> str:
    """SHA-256 of the token ids of all texts and of their lengths."""
    digest = hashlib.sha256()
    for ids in texts:
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(ids, "<i8").tobytes())
    return digest.hexdigest()
