"""Files are opened here: regular files of bounded size, never a pipe or a device."""

import errno
import os
import stat
from difflib import get_close_matches
from pathlib import Path

from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import TEXT_BYTES, Limit


def read_bytes(path: str | Path, limit: Limit = TEXT_BYTES) -> bytes:
    """A whole file.

    Raises:
        OSError: It cannot be read, or is no regular file.
        LimitError: It is larger than the limit.
    """
    require_regular(path)
    most = limit.in_force
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        limit.check(size, path)
        content = stream.read(size + 1)  # room for what the limit allows would be gigabytes
        if len(content) > size:
            content += stream.read(max(most + 1 - len(content), 0))
    limit.check(len(content), path)  # it may have grown
    return content


def read_text(path: str | Path, limit: Limit = TEXT_BYTES) -> str:
    """A whole file as text, without a byte order mark.

    Raises:
        OSError: It cannot be read, or is no regular file.
        UnicodeDecodeError: It is not UTF-8.
        LimitError: It is larger than the limit.
    """
    return read_bytes(path, limit).decode("utf-8-sig")


def missing_model(path: Path, otherwise: str) -> ModelError:
    """The error for a model file that is not there.

    Args:
        path: Where it should be.
        otherwise: What to do where no file beside it has a similar name.
    """
    near = get_close_matches(path.name, [other.name for other in path.parent.glob("*")], 1)
    help = f"did you mean {path.with_name(near[0])}?" if near else otherwise
    return ModelError("no such model file", where=str(path), help=help)


def leads_out(path: str | Path, folder: str | Path) -> bool:
    """A path is, or goes through, a link out of a folder, or never was in it."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_same_place(path: str | Path, other: str | Path) -> bool:
    """Both lead to one place, be there something or not."""
    return os.path.realpath(path) == os.path.realpath(other)


def require_regular(path: str | Path) -> None:
    """Refuse pipes, sockets and devices before they are opened: reading them may never end.

    Raises:
        OSError: It is no regular file, or there is none.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))
