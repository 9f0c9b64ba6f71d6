"""Files that belong together: all of them are new, or all as they were, whatever ends the process on the way.

No system moves several files at once. So the new ones are written beside the old, and one rename declares them the
files of the folder: up to it nothing has changed, and behind it whoever writes there next moves what a killed process
has not.
"""

import errno
import json
import os
import secrets
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.json_text import read_json
from quantmedic.engine.output_files import (
    is_plain_file,
    is_private_folder,
    make_folder,
    move_file,
    open_new,
    refuse_links,
    remove_file,
    remove_folder,
    rename_folder,
    scratch_folder,
)
from quantmedic.engine.text import visible

if sys.platform != "win32":  # where two writers at once may mix their files
    import fcntl

#: Holds files that count already, and are not in their places yet.
READY = ".quantmedic-ready"
#: Begins the name of what lay there and was not written by us.
SET_ASIDE = "quantmedic-set-aside-"
_FRESH, _STALE = "new", "stale.json"


def write_together(folder: Path, files: Mapping[str, bytes], stale: Collection[str] = ()) -> None:
    """Write files into a folder, which is made if it does not exist, and remove others.

    Args:
        folder: Where they stand; other files there stay as they are, and no link in it is followed.
        files: Contents by path within the folder.
        stale: Paths of files that are removed, as far as they exist.

    Raises:
        OSError: They cannot be written; all files are as they were.
    """
    make_folder(folder)
    gone = sorted(set(stale) - files.keys())
    with scratch_folder(folder) as written:
        make_folder(written / _FRESH)
        for path, content in files.items():
            _write_new(written / _FRESH / path, content)
        _write_new(written / _STALE, json.dumps(gone).encode())
        with _alone_in(folder):
            _move_rest(folder)
            for path in (*files, *gone):
                _require_place(folder / path, folder)
            try:
                rename_folder(written, folder / READY)
                _move_all(folder, [*files], gone)
            except OSError:  # it would stop the next writer too
                remove_folder(folder / READY)
                raise
            except KeyboardInterrupt:
                _move_rest(folder)
                raise


def settle_files(folder: Path) -> None:
    """Put the files into their places that a killed process has declared those of the folder.

    Raises:
        OSError: One cannot be moved.
    """
    if os.path.lexists(folder / READY):
        with _alone_in(folder):
            _move_rest(folder)


def _write_new(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    with open_new(path) as file:
        file.write(content)


def _move_rest(folder: Path) -> None:
    """Finish what a killed process has begun; what is none of ours is set aside."""
    ready = folder / READY
    if not os.path.lexists(ready):
        return
    try:
        fresh, gone = _read_rest(ready)
        for path in (*fresh, *gone):
            _require_place(folder / path, folder)
    except (OSError, ValueError, QuantmedicError) as error:
        _set_aside(ready, error)
    else:
        _move_all(folder, fresh, gone)


def _read_rest(ready: Path) -> tuple[list[str], list[str]]:
    """Files that are to be moved, and those that are to be removed, by their paths in the folder.

    Raises:
        OSError, ValueError, QuantmedicError: It was not left by a process of this user.
    """
    if not is_private_folder(ready):
        raise ValueError("it is no folder that only you can write to")
    if not os.path.lexists(ready / _STALE):  # the last that is removed, with the folder
        return [], []
    refuse_links(ready / _FRESH, ready)
    found = [path for path in sorted((ready / _FRESH).rglob("*")) if path.is_symlink() or not path.is_dir()]
    if strange := [path for path in (ready / _STALE, *found) if not is_plain_file(path)]:
        raise ValueError(f"{strange[0].name} is no regular file")
    gone = read_json(ready / _STALE)
    if not isinstance(gone, list) or not all(isinstance(path, str) for path in gone):
        raise ValueError(f"{_STALE} is no list of names")
    return [str(path.relative_to(ready / _FRESH)) for path in found], gone


def _move_all(folder: Path, fresh: Collection[str], gone: Collection[str]) -> None:
    for path in sorted(fresh):
        make_folder((folder / path).parent)
        move_file(folder / READY / _FRESH / path, folder / path)
    for path in gone:
        remove_file(folder / path)
    remove_folder(folder / READY / _FRESH)
    remove_folder(folder / READY)


def _set_aside(ready: Path, why: Exception) -> None:
    import logging  # without settings of its own it shows a warning as a line on stderr

    cause = why.message if isinstance(why, QuantmedicError) else str(getattr(why, "strerror", None) or why)
    aside = ready.with_name(f"{SET_ASIDE}{secrets.token_hex(4)}")
    rename_folder(ready, aside)
    logging.getLogger("quantmedic").warning(
        "%s was not left by an earlier run (%s): it is set aside as %s, and nothing in it was used",
        *(visible(str(ready)), visible(cause, 200), aside.name),
    )


def _require_place(path: Path, folder: Path) -> None:
    """Refuse what would stop the moving half-way, links, and what lies elsewhere."""
    refuse_links(path, folder)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(parent))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(parent))


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
