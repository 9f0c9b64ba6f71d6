"""Progress in notebooks: one line under the cell that is written over in place and gone at the end.

A notebook that is stored, or executed by nbconvert, keeps one empty output of it, however long the work took.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Protocol, cast

from quantmedic.collectors.data.progress import IN_SECONDS, Progress, no_progress

#: A function that is called after each step; True is a line in notebooks, False nothing.
Watching = Progress | bool
#: Environment variable that leaves the line out wherever nothing else is asked; what sets ``CI`` does too.
NO_PROGRESS = "QUANTMEDIC_NO_PROGRESS"
#: Seconds between two versions of the line: each is a message from the kernel to whoever shows the notebook.
_PAUSE = 0.25
#: What is left of the line; an output without any kind would be shown as its Python object.
_NOTHING = {"text/plain": "", "text/html": ""}


class _Handle(Protocol):
    """IPython's handle of an output that can be written over."""

    def update(self, data: dict[str, str], *, raw: bool) -> None: ...


@contextmanager
def watching(wanted: Watching) -> Iterator[Progress]:
    """What is to be called after each step: the user's function, or what writes the line where this is a notebook."""
    if callable(wanted):
        yield wanted
        return
    if not wanted or not _is_notebook() or _is_quiet():
        yield no_progress
        return
    line = ProgressLine(_show_first)
    try:
        yield line.show
    finally:
        line.close()


class ProgressLine:
    """The line: the stage that works now, how far it is, and how long it takes still."""

    def __init__(
        self, show_first: Callable[[dict[str, str]], _Handle], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show_first = show_first
        self._clock = clock
        self._handle: _Handle | None = None
        self._stage = ""
        self._begun = (0.0, 0)
        self._shown = -_PAUSE

    def show(self, stage: str, done: int, total: int | None) -> None:
        """Write the line again, unless it was just written; a new stage and the end of one are always written."""
        now = self._clock()
        if stage != self._stage:
            self._stage, self._begun = stage, (now, done)
        elif now - self._shown < _PAUSE and done != total:
            return
        self._shown = now
        self._write(progress_text(stage, done, total, self._seconds_left(now, done, total)))

    def close(self) -> None:
        """Leave nothing where the line was."""
        if self._handle is not None:
            self._handle.update(_NOTHING, raw=True)

    def _seconds_left(self, now: float, done: int, total: int | None) -> float | None:
        """As long as the steps so far took, for those that are left."""
        begun, first = self._begun
        if total is None or done <= first or now <= begun:
            return None
        return (now - begun) / (done - first) * max(0, total - done)

    def _write(self, data: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = self._show_first(data)
        else:
            self._handle.update(data, raw=True)


def progress_text(stage: str, done: int, total: int | None, seconds_left: float | None) -> dict[str, str]:
    """The line as plain text and as HTML, by MIME type; it has neither script nor style sheet."""
    name = f"{stage} (s)" if stage in IN_SECONDS else stage
    count = f"{done}" if total is None else f"{done} of {total}"
    left = "" if seconds_left is None else f", {_duration(seconds_left)} left"
    words = escape(f"{name} {count}{left}")
    share = "" if not total else f' max="{total}" value="{min(done, total)}"'
    bar = f'<progress{share} aria-label="{escape(name)}" style="vertical-align: middle"></progress>'
    return {"text/plain": f"{name} {count}{left}", "text/html": f"<div>{bar} {words}</div>"}


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _is_notebook() -> bool:
    """A kernel runs this, which shows outputs elsewhere; a Python prompt of IPython has none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _is_quiet() -> bool:
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", NO_PROGRESS))


def _show_first(data: dict[str, str]) -> _Handle:
    from IPython.display import display  # comes with the notebook that was found

    return cast(_Handle, display(data, raw=True, display_id=True))
