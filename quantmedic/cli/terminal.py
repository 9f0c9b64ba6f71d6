"""The terminal: progress bars, Ctrl-C, colour and encoding, and how an error is shown."""

import os
import shlex
import shutil
import signal
import sys
import webbrowser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quantmedic.cli.streams import bare_stream, guarded_streams, print_format, print_line, print_report
from quantmedic.collectors.data.progress import IN_SECONDS, Progress, no_progress
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.text import inert_line
from quantmedic.reports.terminal.lines import WIDTH, paint_style, wrap_line

if TYPE_CHECKING:
    from rich.progress import TaskID

#: The signal that stopped this process.
_received: list[int] = []


def heed_signals() -> None:
    """Ctrl-C and SIGTERM, which batch systems send before they kill, keep what was measured; a second one kills."""

    _received.clear()  # of an earlier command of this process

    def interrupt(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        _received.append(number)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, interrupt)


def was_interrupted() -> bool:
    """Ctrl-C or SIGTERM came, whatever a library has made of it."""
    return bool(_received)


def interrupted_status() -> int:
    """The exit code after an interrupt: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + next(iter(_received), signal.SIGINT)


def leave_at_once_if_stuck(code: int) -> None:
    """End the process with an exit code, where native code, or a thread that an interrupt met, would hold it back."""
    runs = sys.modules.get("quantmedic.collectors.native.runs")
    if not was_interrupted() and (runs is None or not runs.is_anything_left()):
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar per data set on a terminal's stderr, with the time left."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    # Slow to import, and a pipe has no bars.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBars

    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=bare_stream(sys.stderr))
    # What is printed while bars are shown passes through them, and has to be guarded before.
    with ProgressBars(*columns, console=console, transient=True) as bars, guarded_streams():
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                # What comes next says that a stage is over, which may have needed fewer steps than announced.
                for task in bars.tasks:
                    bars.update(task.id, total=task.completed)
                tasks[stage] = bars.add_task(f"{stage} (s)" if stage in IN_SECONDS else stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def with_color() -> bool:
    """Standard output is a terminal, and ``NO_COLOR`` is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_wrote(files: Iterable[tuple[Path, int]]) -> None:
    """Print the line that ends a command: the first file with its size, and the names of those beside it."""
    (first, size), *others = files
    beside = ", ".join(path.name if path.parent == first.parent else str(path) for path, _ in others)
    wrote, beside = f"wrote {first} ({size_text(size)})", f"beside it {beside}" if beside else ""
    whole = "; ".join(filter(None, (wrote, beside)))
    if len(whole) <= WIDTH or not beside:
        print_line(whole)
        return
    for each in [f"{wrote};", *wrap_line(inert_line(beside), indent=2, whole_words=True)]:
        print_line(each)


def _between_words(line: str, width: int) -> list[str]:
    """A line in lines of at most ``width`` columns; what is to be copied, such as a path, stays whole."""
    indent = len(line) - len(line.lstrip())
    return wrap_line(line.lstrip(), indent, width=width, whole_words=True) or [line]


def print_paste(command: str) -> None:
    """Print a command that is to be pasted, broken before an option where it is wider than the console."""
    lines = [""]
    for word in shlex.split(command):
        if word.startswith("-") and len(lines[-1]) > 2 * WIDTH // 3:
            lines.append("  ")
        lines[-1] += f"{' ' if lines[-1].strip() else ''}{shlex.quote(word)}"
    for line in lines[:-1]:
        print_line(f"  {line} \\")
    print_line(f"  {lines[-1]}")


def show_page(page: Path) -> None:
    """Open a page in the user's browser, or say that there is none."""
    if not webbrowser.open(page.resolve().as_uri()):
        print_report(f"no browser was found here: open {page} yourself\n", err=True)


def columns() -> int:
    """Columns of the terminal; a pipe has as many as any text needs."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def ascii_only() -> bool:
    """The terminal's encoding is not a Unicode one."""
    return not (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


def print_markdown(text: str) -> None:
    """Markdown as it is into a pipe, laid out on a terminal."""
    if not sys.stdout.isatty():
        print_format(text if text.endswith("\n") else f"{text}\n")
        return
    # Slow to import, and a pipe gets the text as it is.
    from rich.console import Console
    from rich.markdown import Markdown

    # Loads pydantic, which is as slow.
    from quantmedic.reports.text import printable

    Console(width=100, file=bare_stream(sys.stdout)).print(Markdown(printable(text)))


def size_text(size: int) -> str:
    """Bytes as bytes, kB or MB."""
    if size < 1000:
        return f"{size} {'byte' if size == 1 else 'bytes'}"
    return f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1e6:.1f} MB"


def print_error(error: QuantmedicError) -> None:
    """Say on standard error what was wrong, where, and what to do next."""
    colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    word = paint_style("error: ", "failed") if colored else "error: "
    text = str(error)
    if sys.stderr.isatty():  # a log is searched for whole sentences
        width = min(shutil.get_terminal_size().columns, WIDTH)
        first, *rest = text.split("\n")
        first = "\n".join(_between_words(f"error: {first}", width)).removeprefix("error: ")
        text = "\n".join([first, *(part for line in rest for part in _between_words(line, width))])
    print_report(f"{word}{text}\n", err=True)
