"""A printed script runs in a process of its own: what it prints, leaks or crashes stays there."""

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from quantmedic.collectors.native.child import run_child
from quantmedic.collectors.native.runs import TimeLimitError, current_limit
from quantmedic.engine.errors import ModelError
from quantmedic.engine.output_files import write_file
from quantmedic.trials.bench import OutOfTimeError

#: The files of the child: what users paste, and the names of theirs that it leaves open.
SCRIPT, SUPPLIED = "prescription.py", "supplied.py"
#: Runs the script unaltered, with the names that the other file defines.
_DRIVER = f"""
import runpy
names = runpy.run_path({SUPPLIED!r})
supplied = {{name: value for name, value in names.items() if not name.startswith("_")}}
runpy.run_path({SCRIPT!r}, init_globals=supplied, run_name="__main__")
"""
#: A script runs a model many times: it may take as long as so many runs.
SCRIPT_RUNS = 6
#: Bytes at the end of what it printed, and lines of them, among which the error is sought.
TAIL, LINES = 16384, 4


def run_script(folder: Path, code: str, prelude: str, deadline: float | None) -> None:
    """Run a script in a folder, in which it finds its files and leaves what it writes.

    The packages are those of this process. What the script prints is kept off the terminal. Both texts are written
    to the folder: the script as ``prescription.py``, the prelude as ``supplied.py``.

    Args:
        folder: Exists, and holds the files that the script opens.
        code: The script, executed as it is.
        prelude: Python text that defines the names that the script leaves open; those that begin with ``_`` are its
            own.
        deadline: ``time.monotonic()`` at which the process is killed; None: after the time limit of many runs.

    Raises:
        ModelError: It failed, with the last words that it printed to stderr, or its process crashed.
        OutOfTimeError: The deadline has passed.
        TimeLimitError: There is no deadline, and it took longer than ``SCRIPT_RUNS`` runs may.
    """
    limit = current_limit()
    longest = None if limit is None else SCRIPT_RUNS * limit
    left = longest if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise OutOfTimeError
    write_file(folder / SCRIPT, code.encode())
    write_file(folder / SUPPLIED, prelude.encode())
    with tempfile.TemporaryFile() as words:
        try:
            status = run_child(_DRIVER, folder=folder, stderr=words, seconds=left)
        except subprocess.TimeoutExpired:
            if deadline is None:
                raise TimeLimitError("the script of a toolchain", longest or 0.0) from None
            raise OutOfTimeError from None
        except OSError as error:
            raise ModelError("the script cannot be run: no Python process starts", where=str(error)) from error
        if status != 0:
            raise _failure(status, _end_of(words.fileno()))


def _end_of(file: int) -> str:
    size = os.lseek(file, 0, os.SEEK_END)
    os.lseek(file, max(0, size - TAIL), os.SEEK_SET)
    return os.read(file, TAIL).decode(errors="replace")


def _failure(status: int, words: str) -> ModelError:
    """The error that Python raised, with the line of the script; else the last lines that were printed."""
    before, _, after = words.rpartition("Traceback (most recent call last):")
    if before or after != words:
        raised = re.search(r"^(?=\S)(?:.*\n?)*", after.lstrip("\n"), re.M)
        lines = [line.strip() for line in (raised[0] if raised else after).splitlines() if line.strip()]
        places = re.findall(rf'File "{re.escape(SCRIPT)}", line (\d+)', after)
        where = [f"{SCRIPT}, line {places[-1]}"] if places else []
        return ModelError(f"the script fails: {lines[0]}", where=[*where, *lines[1:LINES]])
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    ended = _signal_name(-status) if status < 0 else f"exit code {status}"
    return ModelError(f"the script ends its process with {ended}", where=lines[-LINES:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
