"""Runs of language models that may be interrupted: what is finished lies in a folder, and the same run goes on from it.

A step counts once ``done.json`` names it; arrays are written to places that no finished step needs any more. A folder
that no run of this user has made is not touched.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.progress import Announce
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.collectors.from_torch.devices import title_of
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
    require_folder,
    scratch_folder,
    write_file,
)

if sys.platform != "win32":
    import fcntl

_DONE = "done.json"
#: What a run leaves in its folder, whole or not.
_OWN = re.compile(rf"{re.escape(_DONE)}|[\w-]+\.f32|\.quantmedic-[\da-f-]+")


@dataclass
class Work:
    """One run: arrays in a folder, and what finished steps have found, as plain values by name.

    Attributes:
        folder: Where both lie.
        plan: All that the results depend on, by the word that is said where it has changed.
        done: What was found.
    """

    folder: Path
    plan: Mapping[str, object]
    done: dict[str, Any] = field(default_factory=dict)
    _rooms: list[np.memmap[Any, np.dtype[np.float32]]] = field(default_factory=list)

    def keep(self, **steps: object) -> None:
        """These steps are finished, and so is what they have written to arrays."""
        for values in self._rooms:
            values.flush()
        self.done |= steps
        write_file(self.folder / _DONE, json.dumps({"plan": self.plan, "done": self.done}).encode())

    def room(self, name: str, shape: tuple[int, int]) -> NDArray[np.float32]:
        """A place for an array on disk, with what an interrupted run has left in it.

        Raises:
            OutputError: There is not enough room.
        """
        path, size = self.folder / f"{name}.f32", 4 * shape[0] * shape[1]
        try:
            if not path.exists():
                open_new(path).close()
            with change_file(path) as file:
                # A mapped file that finds no room ends the process.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                self._rooms.append(np.memmap(file, np.float32, "r+", shape=shape))
        except OSError as error:
            raise OutputError(
                "there is no room for the hidden states of both models",
                where=f"{path}: {size / 1e9:.3g} GB: {error.strerror}",
                help="name an output (without one: TMPDIR) on a larger disk, or use fewer or shorter texts: "
                "--text-length",
            ) from error
        return self._rooms[-1]


@contextmanager
def open_work(folder: Path | None, plan: Mapping[str, object], announce: Announce) -> Iterator[Work]:
    """Work in a folder, which goes once it is done and stays where it was interrupted; without one, nothing stays.

    Args:
        folder: Where it lies; None for a place among the temporary files.
        plan: See ``Work``: what was done under another plan is not used.
        announce: Is told that it goes on, or why it begins anew.

    Raises:
        OutputError: The folder cannot be made or is not ours, or another run works in it.
    """
    if folder is None:
        with scratch_folder() as place:
            yield Work(place, plan)
        return
    made = _make_folder(folder)
    with _alone(folder):
        _require_own(folder)
        work = Work(folder, plan, _resume(folder, plan, announce))
        try:
            yield work
        except BaseException as error:
            if isinstance(error, QuantmedicError) or not work.done.get("blocks"):  # the same files would give it again
                _empty(folder)
                remove_empty([folder, *made])
            raise
        _empty(folder)
        remove_empty([folder])


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


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other run works in the folder; the lock of one that was killed is gone with it. Windows has no such lock."""
    if sys.platform == "win32":
        yield
    else:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with suppress(OSError):  # a file system without locks
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise OutputError(
                        "another run works on the same output",
                        where=str(folder),
                        help="wait for it, or name another output",
                    ) from error
            yield
        finally:
            os.close(handle)


def _require_own(folder: Path) -> None:
    """Refuse a folder that no run of this user has made: it is written into, and removed in the end."""
    strange = [] if is_private_folder(folder) else [folder]
    strange += [path for path in sorted(folder.iterdir()) if not (_OWN.fullmatch(path.name) and is_plain_file(path))]
    if strange:
        raise OutputError(
            "what lies where unfinished work is kept was not left by a run of yours",
            where=str(strange[0]),
            help="move it away, or name another output",
        )


def _resume(folder: Path, plan: Mapping[str, object], announce: Announce) -> dict[str, Any]:
    """What a run of the same plan has finished; what another one has left is removed."""
    done: dict[str, Any] = {}
    why = ""
    if (folder / _DONE).exists():
        try:
            found: Any = read_json(folder / _DONE)
            earlier, done = dict(found["plan"]), dict(found["done"])
            changed = [f"other {name}" for name in plan if earlier.get(name) != plan[name]]
            why = f"it was made with {' and '.join(changed)}" if changed else ""
        except (OSError, ValueError, TypeError, KeyError, QuantmedicError):
            why = "it cannot be read"
    if why:
        announce(f"{folder} is not used, because {why}: all is run anew")
    elif done.get("blocks"):
        announce(f"an interrupted run is continued: {len(done['blocks'])} blocks are done ({folder})")
        return done
    _empty(folder)
    return {}


def _empty(folder: Path) -> None:
    """Remove what a run has left: first what makes the rest count."""
    with suppress(OSError):
        for path in (folder / _DONE, *folder.iterdir()):
            remove_file(path)


def plan_of(paths: Sequence[Path], texts: Sequence[Ids], device: torch.device, release: str) -> dict[str, object]:
    """All that the results depend on; see ``Work``. Of files: size and times, in nanoseconds.

    The time of the last change of the entry tells of a file that was copied with its times.
    """
    states = {}
    for file in sorted(file for path in paths for file in _files_of_model(path) if file.is_file()):
        own = file.stat()
        states[str(file.absolute())] = [own.st_size, own.st_mtime_ns, own.st_ctime_ns]
    return {
        "files": states,
        "texts": sha256(json.dumps([ids.tolist() for ids in texts]).encode()).hexdigest(),
        "threads": torch.get_num_threads(),
        "devices": title_of(device),
        "releases": [release, torch.__version__, version("transformers")],
    }


def _files_of_model(path: Path) -> list[Path]:
    """Weights and settings of a folder, or of a file, of which there may be several parts."""
    parts = "*.safetensors" if path.is_dir() else escape(path.name).replace("-00001-of-", "-*-of-")
    folder = path if path.is_dir() else path.parent
    return [*folder.glob(parts), *folder.glob("*.json")]
