"""Files that belong together: all of them are new, or all as they were, whatever ends the process on the way.

No system moves several files at once. So the new ones are written beside the old, and one rename declares them the
files of the folder: up to it nothing has changed, and behind it whoever writes there next moves what a killed process
has not.
"""

import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from quantmedic.engine.files import leads_out
from quantmedic.engine.output_files import temporary_path

if sys.platform != "win32":  # where two writers at once may mix their files
    import fcntl

#: Holds files that count already, and are not in their places yet.
READY = ".quantmedic-ready"
_FRESH, _STALE = "new", "stale.json"


def write_together(folder: Path, files: Mapping[str, bytes], stale: Collection[str] = ()) -> None:
    """Write files into a folder, which is made if it does not exist, and remove others.

    Args:
        folder: Where they stand; other files there stay as they are.
        files: Contents by path within the folder.
        stale: Paths of files that are removed, as far as they exist.

    Raises:
        OSError: They cannot be written; all files are as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = temporary_path(folder)
    try:
        (written / _FRESH).mkdir(parents=True)
        for path, content in files.items():
            (written / _FRESH / path).parent.mkdir(parents=True, exist_ok=True)
            (written / _FRESH / path).write_bytes(content)
        (written / _STALE).write_text(json.dumps(sorted(set(stale) - files.keys())), encoding="utf-8")
        with _alone_in(folder):
            _move_rest(folder)
            for path in files:
                _require_place(folder / path, folder)
            try:
                os.rename(written, folder / READY)
                _move_rest(folder)
            except OSError:  # it would stop the next writer too
                shutil.rmtree(folder / READY, ignore_errors=True)
                raise
            except KeyboardInterrupt:
                _move_rest(folder)
                raise
    finally:
        shutil.rmtree(written, ignore_errors=True)


def settle_files(folder: Path) -> None:
    """Put the files into their places that a killed process has declared those of the folder.

    Raises:
        OSError: One cannot be moved.
    """
    if (folder / READY).exists():
        with _alone_in(folder):
            _move_rest(folder)


def _move_rest(folder: Path) -> None:
    ready = folder / READY
    if not (ready / _STALE).exists():  # the last that is removed, with the folder
        shutil.rmtree(ready, ignore_errors=True)
        return
    for fresh in sorted(path for path in (ready / _FRESH).rglob("*") if path.is_file()):
        target = folder / fresh.relative_to(ready / _FRESH)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fresh, target)
    for path in json.loads((ready / _STALE).read_text(encoding="utf-8")):
        with suppress(FileNotFoundError):
            (folder / path).unlink()
    shutil.rmtree(ready / _FRESH, ignore_errors=True)
    shutil.rmtree(ready, ignore_errors=True)


def _require_place(path: Path, folder: Path) -> None:
    """Refuse what would stop the moving half-way, and links to other folders."""
    if leads_out(path.parent, folder):
        raise NotADirectoryError(20, "A part of it is a link to another folder", str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(parent))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(parent))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other process moves files in a folder meanwhile; the lock of a killed one is gone with it."""
    if sys.platform == "win32":
        yield
    else:
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
