"""Standard output and standard error: nothing reaches them that a terminal or continuous integration would obey.

All that is written passes through a `GuardedStream`: our own lines, warnings of libraries, errors of Python. Names out
of models, files and options may stand in any of them. What writes to a file descriptor itself is not seen here.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO, cast

from quantmedic.engine.errors import OutputError
from quantmedic.engine.text import inert_line
from quantmedic.reports.terminal.lines import painted_line


class GuardedStream(io.TextIOBase):
    """A text stream that shows what terminals and continuous integration would obey as escapes.

    Colours are obeyed, too: `show` alone writes them. What cannot be encoded is escaped as well. Where the reader of a
    pipe has left, what is left to print_line is dropped, and the command goes on to its end and to its own exit code.

    Attributes:
        raw: The stream that it writes to.
        name: What errors call it; None where it may lose text.
    """

    def __init__(self, raw: TextIO, name: str | None = None) -> None:
        self.raw, self._name = raw, name
        self._begun = ""
        self._lost: str | None = None
        if isinstance(raw, io.TextIOWrapper):
            raw.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a stream in memory has none
        return getattr(self.raw, "encoding", None) or "utf-8"

    #: Bytes would pass the guard.
    buffer = None

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.raw.isatty()

    def fileno(self) -> int:
        return self.raw.fileno()

    def write(self, text: str | bytes) -> int:  # type: ignore[override]  # click answers shells in bytes
        if isinstance(text, bytes):
            self.write(text.decode("utf-8", "replace"))
            return len(text)
        # A bar that a user's function draws begins anew at the head of its line; in the middle of a text that is
        # what hides the text before it.
        again = "\r" if text.startswith("\r") and not text.startswith("\r\n") else ""
        first, *rest = text.removeprefix(again).replace("\r\n", "\n").split("\n")
        head = "" if again else self._begun
        shown = _with_tabs(head + first).removeprefix(head)
        self.write_raw(again + "\n".join([shown, *map(_with_tabs, rest)]))
        last = rest[-1] if rest else head + first
        self._begun = last if last.isspace() else "." * bool(last)
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write a text as it is.

        Raises:
            OutputError: The stream cannot be written, and its text must not be lost.
        """
        if not text:
            return
        try:
            self.raw.write(text)
            self.raw.flush()
        except BrokenPipeError:
            self._drop()
        except OSError as error:
            self._drop()
            self._lost = error.strerror or str(error)
            self.flush()

    def flush(self) -> None:
        """All is written already; text that was lost is told again, since whoever printed may have passed over it.

        Raises:
            OutputError: Text was lost that must not be.
        """
        if self._lost is not None and self._name is not None:
            help = "give it a file or a device that has room"
            raise OutputError(f"{self._name} cannot be written: {self._lost}", help=help)

    def _drop(self) -> None:
        """Let what follows go nowhere, and what is still in the buffers: Python writes that once more at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.raw.fileno())
        os.close(nowhere)


def _with_tabs(line: str) -> str:
    return "\t".join(map(inert_line, line.split("\t"))) if "\t" in line else inert_line(line)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Both streams guarded while this is open; one that is closed goes nowhere."""
    with open(os.devnull, "w") as nowhere:
        out = GuardedStream(sys.stdout or nowhere, "standard output")
        err = GuardedStream(sys.stderr or nowhere)
        with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
            yield


def open_closed_descriptors() -> None:
    """Let closed standard streams lead nowhere: the next file that is opened would be written to in their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def print_line(line: str, *, err: bool = False) -> None:
    """Print one line, whatever stands in it."""
    _write(inert_line(line) + "\n", err=err)


def print_report(text: str, *, err: bool = False) -> None:
    """Print the lines of a report for the terminal, in our own colours."""
    _write("\n".join(map(painted_line, text.split("\n"))), err=err)


def print_format(text: str) -> None:
    """Print a format that other programs read: its own escapes leave little for the guard to do."""
    sys.stdout.write(text)


def print_command(line: str) -> None:
    """Print a command of continuous integration, which has escapes of its own."""
    _write(line + "\n")


def _write(text: str, *, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    if isinstance(stream, GuardedStream):
        stream.write_raw(text)
    elif stream is not None:
        stream.write(text)


def bare_stream(stream: TextIO) -> TextIO:
    """What a stream writes to in the end, for what draws on a terminal."""
    while isinstance(stream, GuardedStream):
        stream = stream.raw
    return stream
