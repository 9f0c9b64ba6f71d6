"""All files are written here: refused before work is done for them, whole or not at all, cleared away after a kill.

What lies in an output folder may have been put there by anybody, so that no link is followed in it. How a user's path
leads to the output is the user's own business.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from quantmedic.engine.errors import OutputError

_NAME = re.compile(r"\.?quantmedic-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}")
#: Temporary names of this process.
_own: set[str] = set()


def require_file(path: Path) -> None:
    """Refuse a place where no file can be written, before anything is done for it; nothing is made.

    Raises:
        OutputError: It is a folder or a link, or may not be written, or its folder cannot be made or written, or the
            disk is full.
    """
    if path.is_symlink():
        raise OutputError(
            "the output is a link", where=str(path), help="name the file that it leads to, or remove the link"
        )
    if path.is_dir():
        raise OutputError("the output is a folder, not a file", where=str(path), help="name a file in it")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError("the output may not be written", where=str(path), help="allow writing it, or name another")
    if path.exists() and not path.is_file():
        raise OutputError("the output is a pipe or a device", where=str(path), help="name a file")
    require_folder(path.parent)


def require_folder(path: Path, within: Path | None = None) -> None:
    """Refuse a folder that cannot be made or written, before anything is done for it; nothing is made.

    Args:
        path: The folder.
        within: The output folder that it lies in, below which no link is followed.

    Raises:
        OutputError: It, or what it is to stand in, is a file or may not be written, or the disk is full.
    """
    try:
        refuse_links(path, within or path)
    except OSError as error:
        raise OutputError(
            "a part of the output is a link", where=str(error.filename), help="remove it, or name another folder"
        ) from error
    place = Path(os.path.abspath(path))
    while not place.exists() and place != place.parent and not place.is_symlink():
        place = place.parent
    if place.is_symlink() and not place.exists():
        raise OutputError(
            "the output folder is a link that leads nowhere", where=f"{path}: {place}", help="name another folder"
        )
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


def refuse_links(path: Path, folder: Path) -> None:
    """Refuse a path that does not lie in a folder, or that is or goes through a link on its way from there.

    Raises:
        OSError: It is such a path.
    """
    inside = path.is_relative_to(folder) and "\0" not in str(path)
    if not inside or ".." in (parts := path.relative_to(folder).parts):
        raise OSError(errno.EINVAL, f"it does not lie in {folder}", str(path))
    for part in parts:
        folder /= part
        if folder.is_symlink():
            raise _link_error(folder)


def open_new(path: Path) -> IO[bytes]:
    """Open a file that is not there yet for writing: nothing that lies there is written to, be it a link.

    Raises:
        OSError: There is something, or it cannot be made.
    """
    return path.open("xb")


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which stands under its name where the block ends without an error; its folder is made.

    Raises:
        OSError: It cannot be written, or what lies there is no regular file.
    """
    make_folder(path.parent)
    _require_replaceable(path)
    temporary = temporary_path(path.parent)
    try:
        with open_new(temporary) as file:
            yield file
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; its folder is made.

    Raises:
        OSError: It cannot be written, or what lies there is no regular file.
    """
    with new_file(path) as file:
        file.write(content)


def copy_file(source: Path, target: Path) -> None:
    """Write a file with the content of another one.

    Raises:
        OSError: It cannot be read or written.
    """
    with source.open("rb") as read, new_file(target) as written:
        shutil.copyfileobj(read, written)


def append_to_file(path: Path, content: bytes) -> None:
    """Add to a file, which is made if it does not exist.

    Raises:
        OSError: It cannot be written, or is a link.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o666), "ab") as file:
        file.write(content)


def change_file(path: Path) -> IO[bytes]:
    """Open a file of ours for reading and writing.

    Raises:
        OSError: There is none, or it is a link.
    """
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return open(os.open(path, flags), "r+b")


def move_file(source: Path, target: Path) -> None:
    """Give a file that was written its place, where it takes that of another one.

    Raises:
        OSError: It cannot be moved, or what lies there is no regular file.
    """
    _require_replaceable(target)
    os.replace(source, target)


def rename_folder(source: Path, target: Path) -> None:
    """Give a folder, or what lies in its place, a name that nothing has.

    Raises:
        OSError: It cannot be renamed.
    """
    os.rename(source, target)


def remove_file(path: Path) -> None:
    """Remove a file or a link, if there is one.

    Raises:
        OSError: It cannot be removed.
    """
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> list[Path]:
    """Make a folder and what it lies in; returns those that were not there, the innermost first.

    Raises:
        OSError: It cannot be made.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def make_private_folder(path: Path) -> None:
    """Make a folder that only the user gets into.

    Raises:
        OSError: It cannot be made, or there is something.
    """
    path.mkdir(mode=0o700)


def is_private_folder(path: Path) -> bool:
    """It is a folder of the user, no link to one, and nobody else may write to it.

    Raises:
        OSError: There is none.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return False
    return sys.platform == "win32" or (
        found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def is_plain_file(path: Path) -> bool:
    """It is a regular file, no link to one, under this name alone.

    Raises:
        OSError: There is none.
    """
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def remove_folder(path: Path) -> None:
    """Remove a folder with all that lies in it, as far as that goes; links in it lose nothing but their name."""
    if path.is_dir():  # of a pipe in its place, opening it would wait for a writer
        shutil.rmtree(path, ignore_errors=True)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those folders in which nothing lies."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _link_error(path: Path) -> OSError:
    return OSError(errno.ELOOP, "it is a link, and in an output none is followed", str(path))


def _require_replaceable(path: Path) -> None:
    """Refuse what a file must not take the place of: a link, a folder, a pipe or a device."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise _link_error(path)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))


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
        make_private_folder(folder)
        yield folder
    finally:
        try:
            remove_folder(folder)
        except KeyboardInterrupt:
            remove_folder(folder)
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
