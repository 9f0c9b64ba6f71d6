"""Printed prescriptions carried out with their own toolchain, where it runs here."""

import os
import re
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.data.arrays import Array, save_arrays
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.host import installed_version
from quantmedic.collectors.measure.models import Edited, Models
from quantmedic.collectors.native.child import run_child
from quantmedic.collectors.native.runs import TimeLimitError, current_limit
from quantmedic.collectors.pair.graph import Graph
from quantmedic.engine.errors import ModelError
from quantmedic.engine.output_files import make_folder, scratch_folder, write_file
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


#: Folder of the stored batches beside a script, and Python code that reads them: names and arrays of inputs, in each
#: pass anew.
STORED = "calibration"
STORED_BATCHES = f"""
import pathlib as _pathlib
import numpy as _numpy

class _StoredBatches:
    def __init__(self):
        self.paths = sorted(_pathlib.Path({STORED!r}).glob("*.npz"))

    def __len__(self):
        return len(self.paths)

    def __iter__(self):
        for path in self.paths:
            with _numpy.load(path) as stored:
                yield {{name.removeprefix("input "): stored[name] for name in stored.files}}
"""


@dataclass(frozen=True)
class Executor(ABC):
    """Carries out the text of a prescription with one toolchain, which is a Python package.

    Attributes:
        toolchain: Its name, as in the snippets of remedies and in ``rules/toolchains.yaml``.
        package: What has to be installed.
        supplies: Names that the text leaves open (``given`` of the toolchain) and that it gets here.
    """

    toolchain: str
    package: str
    supplies: frozenset[str]

    def version(self) -> str | None:
        """Version of the package; None without it."""
        return installed_version(self.package)

    def missing(self) -> str | None:
        """Why it cannot run here, in words; None where the package is installed."""
        return None if self.version() is not None else f"the package {self.package} is not installed"

    @abstractmethod
    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Edited:
        """Run the text and open the model that it makes.

        Args:
            models: The pair that the prescription is for; neither model is changed.
            code: The text as it is printed.
            calibration: What the user's own reader or data loader gives, prepared for the network, in batches of one
                size; it can be read more than once.
            deadline: ``time.monotonic()`` at which to give up; None: never.

        Raises:
            ModelError: The toolchain refuses it, in its own words.
            OutOfTimeError: The deadline has passed.
        """


@dataclass(frozen=True)
class ScriptExecutor(Executor):
    """Runs prescriptions as scripts in an empty folder, beside the float model and the stored batches.

    Attributes:
        prelude: Python code that defines the names that a prescription leaves open; it finds ``_StoredBatches``.
        made: Name of the file that a prescription writes.
    """

    prelude: str
    made: ClassVar[str]

    @abstractmethod
    def write_float(self, models: Models, folder: Path) -> None:
        """Write the float model into a folder."""

    @abstractmethod
    def feeds(self, models: Models, calibration: Iterable[Batch]) -> Iterable[Mapping[str, Array]]:
        """The inputs of each batch by the names by which the prelude knows them."""

    @abstractmethod
    def open_made(self, models: Models, path: Path) -> Edited:
        """Read what the script wrote, which is deleted afterwards.

        Raises:
            ModelError: It is no model of this format, or lacks outputs of the float model.
        """

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Edited:
        """Run the text in a process of its own."""
        with scratch_folder() as folder:
            self.write_float(models, folder)
            store_batches(self.feeds(models, calibration), folder / STORED)
            run_script(folder, code, STORED_BATCHES + self.prelude, deadline)
            if not (folder / self.made).is_file():
                raise ModelError(f"the script ended without writing {self.made}", where="prescription.py")
            return self.open_made(models, folder / self.made)


def store_batches(feeds: Iterable[Mapping[str, Array]], folder: Path) -> None:
    """Write the inputs of each batch into a file of a new folder, for ``_StoredBatches`` to read."""
    make_folder(folder)
    for number, feed in enumerate(feeds):
        # A name such as "file" would be an argument of savez.
        save_arrays(folder / f"{number:06d}.npz", {f"input {name}": array for name, array in feed.items()})


def require_as_many_outputs(made: Graph, float_graph: Graph) -> None:
    """Refuse a model that a toolchain made with other outputs than the float model.

    Raises:
        ModelError: It has.
    """
    if len(made.outputs) != len(float_graph.outputs):
        raise ModelError(
            f"the model that came out has {len(made.outputs)} outputs, the float model {len(float_graph.outputs)}"
        )
