"""Zip archives of strangers: nothing in them is read in one piece, whatever their tables say.

`zipfile` reads the table of contents at once, and decompresses what it is asked for before the size that the archive
declares ends the reading: kilobytes become gigabytes.
"""

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from quantmedic.engine.input_files import require_regular
from quantmedic.engine.reading_limits import ZIP_TABLE_BYTES

#: Bytes that are to be read of a member at a time.
STEP = 1 << 20
#: Compressions that `zipfile` ends where it is told to.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _Pieces(io.BufferedReader):
    """A file of which no more is read at once than a table of contents may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = max(STEP, ZIP_TABLE_BYTES.in_force)
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > most:
            raise ZIP_TABLE_BYTES.error_for(str(self.name))
        return super().read(wanted)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive, of whose members at most ``STEP`` bytes are to be read at once.

    Raises:
        OSError: It cannot be read, or is no regular file.
        zipfile.BadZipFile: It is no zip archive.
        LimitError: Its table of contents is too large.
    """
    require_regular(path)
    with _Pieces(io.FileIO(path)) as stream, zipfile.ZipFile(stream) as archive:
        yield archive


@contextmanager
def new_archive(file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """A zip archive in a file that is opened for writing.

    Where its writing is interrupted it is left as it is: closing it would raise an error in place of the interruption.

    Raises:
        OSError: It cannot be written.
    """
    archive = zipfile.ZipFile(file, "w")
    try:
        yield archive
    except BaseException:
        archive.fp = None  # what marks it as closed
        raise
    archive.close()


def open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    """A member for reading.

    Raises:
        NotImplementedError: It is compressed in a way that cannot be read in steps.
    """
    if member.compress_type not in _METHODS:
        raise NotImplementedError(f"{member.filename} is compressed by method {member.compress_type}")
    return archive.open(member)


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """All that a member holds, at most as much as the archive declares: the caller has looked at that.

    Raises:
        NotImplementedError: It is compressed in a way that cannot be read in steps.
    """
    with open_member(archive, member) as file:
        return b"".join(iter(lambda: file.read(STEP), b""))
