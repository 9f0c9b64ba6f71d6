"""A fork of this process runs a command, and something happens to it."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from builders.processes import Stopwatch

from quantmedic.cli.main import main
from quantmedic.cli.terminal import heed_signals

SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}
#: Seconds after which a process that was struck counts as hanging: in which it does nothing, or runs without an end.
PATIENCE = 120.0
#: Exit status that stands for a process that does not end.
HANGS = -1000
#: Names a process and all that it started.
MARK = "QUANTMEDIC_FAULT"


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status, negative for a signal; what it said; whether the blow met it running."""

    status: int
    said: str
    struck: bool
    seconds: float
    left: tuple[int, ...]


@dataclass(frozen=True)
class Running:
    """A command that runs in a fork of this process."""

    words: Sequence[str]
    folder: Path
    child: int
    mark: str
    begun: float

    def wait(self, seconds: float) -> int | None:
        """Its exit status; None where it runs on when so much time has passed since it began."""
        while True:
            found, status = os.waitpid(self.child, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            left = self.begun + seconds - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(left, 0.002))

    def _wait_out(self) -> int | None:
        """Its exit status; None where it hangs."""
        watch = Stopwatch(self.child)
        while (status := self.wait(time.monotonic() - self.begun + 0.5)) is None:
            watch.look()
            if max(watch.idle, watch.ran) > PATIENCE:
                return None
        return status

    def finish(self, *, blow: str = "none", after: float = 0.0) -> Ended:
        """Strike it after so many seconds, and wait for its end.

        Args:
            blow: ``none``, a key of ``SIGNALS``, ``vanish`` (the data are removed) or ``short`` (they are cut off).
            after: Seconds since it began.
        """
        status, struck = self.wait(after), False
        if status is None:
            struck = True
            _strike(blow, self.child, self.folder)
            status = self._wait_out()
        seconds = time.monotonic() - self.begun
        if status is None:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            status = HANGS
        return Ended(status, (self.folder / "said").read_text(errors="replace"), struck, seconds, _left(self.mark))


def start(words: Sequence[str], folder: Path, *, most: int | None = None) -> Running:
    """Run a command in a folder; it heeds signals when this returns.

    Args:
        words: Its arguments.
        folder: Where it runs; its temporary files go to ``tmp`` there, and what it says is added to ``said``.
        most: Bytes beyond which no file can grow, as on a full disk.
    """
    mark = f"{os.getpid()}-{random.getrandbits(64):x}"
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        _become(words, folder, mark, told, most)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    return Running(words, folder, child, mark, time.monotonic())


def _strike(blow: str, child: int, folder: Path) -> None:
    if blow in SIGNALS:
        os.kill(child, SIGNALS[blow])
    for path in folder.glob("*val.npz") if blow in ("vanish", "short") else ():
        source = path.resolve()
        path.unlink()
        if blow == "short":
            content = source.read_bytes()
            path.write_bytes(content[: len(content) // 2])


def _become(words: Sequence[str], folder: Path, mark: str, told: int, most: int | None) -> NoReturn:
    """In the child: take the command's place."""
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update({MARK: mark, "TMPDIR": str(folder / "tmp")})
        tempfile.tempdir = None
        for number in (1, 2):
            os.dup2(os.open("said", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        heed_signals()
        os.write(told, b"1")
        main(words)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 70
    except BaseException:
        (folder / "said").write_text(traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _left(mark: str) -> tuple[int, ...]:
    """Processes that the command started and that live on, after some time to end."""
    end = time.monotonic() + 60
    while (found := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def _marked(mark: str) -> tuple[int, ...]:
    """Started by exec: a fork keeps the environment that its parent was started with."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                environment = (path / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environment:
                found.append(int(path.name))
    return tuple(found)


def copy_back(folder: Path, target: Path) -> None:
    """Keep a folder, for whoever looks for what went wrong."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(folder), str(target)], check=True)
