"""Processes: started as a terminal would, and looked up in /proc."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def start_python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start code that SIGINT interrupts: a test runner may ignore it, and its children would too.

    The code asks for that itself: Python that runs between a fork and the new program can wait for ever for a lock
    that another thread held.
    """
    asked = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen([sys.executable, "-c", asked + code, *arguments], text=True, **options)


def is_running(pid: int | str) -> bool:
    """A process that nobody has waited for yet runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Stopwatch:
    """What a process takes by its own doing: a busy machine adds to neither of its figures.

    Attributes:
        ran: Seconds of the processor that it and those that it started, as far as they live, have taken.
        idle: Seconds in which none of them ran or stood in line to run.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.ran, self.idle = pid, 0.0, 0.0
        self._looked, self._stood = time.monotonic(), 0.0

    def look(self) -> None:
        """Bring the figures up to date, twice a second at most."""
        passed = time.monotonic() - self._looked
        if passed > 0.5:
            before = self.ran + self._stood
            self.ran, self._stood = _ran_and_stood(self.pid)
            self.idle += max(0.0, passed - max(0.0, self.ran + self._stood - before))
            self._looked += passed


def _ran_and_stood(pid: int) -> tuple[float, float]:
    """Seconds that all threads of a process and of those that it started have run, and stood in line to run."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [own for own, parent in parents.items() if parent == each]
    ran = stood = 0
    for path in (path for each in found for path in Path(f"/proc/{each}/task").glob("*/schedstat")):
        with suppress(OSError):
            times = path.read_text().split()
            ran, stood = ran + int(times[0]), stood + int(times[1])
    return ran / 1e9, stood / 1e9
