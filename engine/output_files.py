"""Files that are written: refused before work is done for them, whole or not at all, cleared away after a kill."""

import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quantmedic.engine.errors import OutputError

_NAME = re.compile(r"\.?quantmedic-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}")
#: Temporary names of this process.
_own: set[str] = set()


def require_file(path: Path) -> None:
    """Refuse a place where no file can be written, before anything is done for it; nothing is made.

    Raises:
        OutputError: It is a folder, or may not be written, or its folder cannot be made or written, or the disk is
            full.
    """
    if path.is_dir():
        raise OutputError("the output is a folder, not a file", where=str(path), help="name a file in it")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError("the output may not be written", where=str(path), help="allow writing it, or name another")
    if path.exists() and not path.is_file():
        raise OutputError("the output is a pipe or a device", where=str(path), help="name a file")
    require_folder(path.parent)


def require_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written, before anything is done for it; nothing is made.

    Raises:
        OutputError: It, or what it is to stand in, is a file or may not be written, or the disk is full.
    """
    place = Path(os.path.abspath(path))
    while not place.exists() and place != place.parent and not place.is_symlink():
        place = place.parent
    if not place.is_dir():
        what = "the output folder is a file" if place == Path(os.path.abspath(path)) else "a part of the path is a file"
        raise OutputError(what, where=f"{path}: {place}", help="name another folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(
            "the output folder may not be written", where=f"{path}: {place}", help="allow writing it, or name another"
        )
    if hasattr(os, "statvfs") and (disk := os.statvfs(place)).f_blocks and not disk.f_bavail:
        raise OutputError(
            "no space is left for the output", where=f"{path}: {place}", help="make room, or name another"
        )


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    if path.exists() and not path.is_file():  # a pipe or a device
        path.write_bytes(content)
        return
    with temporary_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A name beside a file, to write under: where the block ends without an error, that becomes the file.

    Raises:
        OSError: The file cannot be written.
    """
    path = path.resolve()  # a link goes on to lead where it leads
    temporary = temporary_path(path.parent)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder that is removed with what it holds at the end; of those that killed processes left, the rest goes too.

    Args:
        parent: Where it stands; among the temporary files of the system by default.

    Raises:
        OSError: It cannot be made.
    """
    folder = temporary_path(parent or Path(tempfile.gettempdir()), hidden=parent is not None)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def temporary_path(folder: Path, *, hidden: bool = True) -> Path:
    """A new name in a folder, which tells whose it is; nothing is made, and scraps of killed processes are removed."""
    remove_scraps(folder)
    name = f"{'.' if hidden else ''}quantmedic-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
    _own.add(name)
    return folder / name


def remove_scraps(folder: Path) -> None:
    """Remove temporary files and folders whose process is gone: one of this machine and this user."""
    if sys.platform == "win32":  # where nobody can be asked for
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            named = _NAME.fullmatch(entry.name)
            if named is None or named[1] != _machine() or entry.name in _own or _is_alive(int(named[2])):
                continue
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _is_alive(process: int) -> bool:
    """Another process has this number; a scrap of ours was left by one that had our number before."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _machine() -> str:
    """What tells apart machines, and containers, that share a folder: process numbers mean nothing among them."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:8]
