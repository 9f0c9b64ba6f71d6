"""One case: a fork of a warm interpreter runs a command on hostile input, and is watched."""

import gc
import importlib.util
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from builders.processes import Stopwatch
from judge import Ended, describe, judge, list_files
from watched.sitecustomize import watch

#: Of the processor; and of waiting for nothing that runs. A busy machine adds to neither.
CPU_SECONDS = int(os.environ.get("QUANTMEDIC_FUZZ_CPU_SECONDS", "15"))
IDLE_SECONDS = int(os.environ.get("QUANTMEDIC_FUZZ_IDLE_SECONDS", "60"))
MEMORY = 2 << 30
#: Writes the input into the current folder and gives the words of the command.
Prepare = Callable[[], list[str]]


@dataclass(frozen=True)
class Outcome:
    """What came out: ``ok``, ``refused``, ``verdict`` or ``defect``.

    ``deep``: past the first check of the format. ``what`` names a defect, or the place that refused. ``seconds`` are
    those of the processor.
    """

    kind: str
    deep: bool
    what: str
    seconds: float
    command: str


def run_case(prepare: Prepare, folder: Path, *, anywhere: bool = False) -> Outcome:
    """Run one case in ``folder``, which is emptied first: its input in ``case``, what it says in ``aside``.

    ``anywhere``: the command may be told to write beside its input.
    """
    case, aside = folder / "case", folder / "aside"
    shutil.rmtree(folder, ignore_errors=True)
    for made in (case, aside / "home", aside / "tmp"):
        made.mkdir(parents=True)
    if (child := os.fork()) == 0:
        _become(prepare, case, aside, anywhere=anywhere)
    over = _watch(child)
    _, status, usage = os.wait4(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    ended = Ended(case, aside, os.waitstatus_to_exitcode(status), over)
    kind, deep, what = judge(ended)
    return Outcome(kind, deep, what, round(usage.ru_utime + usage.ru_stime, 3), ended.command)


def _watch(child: int) -> str:
    """Wait until a child ends; one that takes too long or too much memory is ended, and which of both is told."""
    descriptor, watch = os.pidfd_open(child), Stopwatch(child)
    try:
        while not select.select([descriptor], [], [], 0.05)[0]:
            watch.look()
            pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
            over = "memory" if pages * resource.getpagesize() > MEMORY else "hang" if watch.idle > IDLE_SECONDS else ""
            if over:
                os.kill(child, signal.SIGKILL)
                return over
        return ""
    finally:
        os.close(descriptor)


def _become(prepare: Prepare, case: Path, aside: Path, *, anywhere: bool) -> NoReturn:
    """In the child: write the input, take its place, run the command; leaves a note of how it ended."""
    os.setsid()
    os.chdir(case)
    with (aside / "note").open("w", encoding="utf-8", errors="backslashreplace") as note:
        try:
            words = prepare()
            note.write(repr(words) + "\n")
            if not anywhere:
                (aside / "inputs").write_text("\n".join(list_files()))
            for number, name in enumerate(("out", "err"), 1):
                os.dup2(os.open(aside / name, os.O_RDWR | os.O_CREAT), number)
            tempfile.tempdir = None
            os.environ.update(HOME=str(aside / "home"), TMPDIR=str(aside / "tmp"))
            resource.setrlimit(resource.RLIMIT_AS, (8 * MEMORY, 8 * MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            written = case if anywhere else case / "out"
            log = os.open(aside / "touched", os.O_RDWR | os.O_CREAT | os.O_APPEND)
            watch(log, (str(written), str(aside), os.environ["XDG_CACHE_HOME"]))
            note.flush()
            code = _call(words, note)
        except BaseException:
            note.write("\nharness: " + traceback.format_exc())
            code = 70
        note.flush()
        os._exit(code)


def _call(words: list[str], note: TextIO) -> int:
    """Exit code of the command; how it was refused is noted."""
    import quantmedic.cli.main as command  # only a child needs it, and its parent has imported it

    refused: list[BaseException] = []
    run = command.cli.main

    def noted(*given: object, **options: object) -> object:
        try:
            return run(*given, **options)
        except BaseException as error:
            refused.append(error)
            raise

    command.cli.main = noted  # in a child that ends with this command
    sys.argv = ["quantmedic", *words]
    try:
        command.main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        error = refused[0] if refused and not isinstance(refused[0], SystemExit) else None
    except BaseException as escaped:
        traceback.print_exc()
        code, error = 1, escaped
    sys.stdout.flush()
    sys.stderr.flush()
    if error is not None:
        note.write(describe(error))
    return code


def warm_up() -> None:
    """Import what commands import: every fork has it then."""
    import onnxruntime  # noqa: F401  # a child that imports it anew takes 0.1 s
    from builders.commands import MODULES

    for module in MODULES:
        __import__(module)
    if importlib.util.find_spec("torch"):  # an optional package
        __import__("torch")
    sys.modules["quantmedic"].load_rulebase()
    gc.collect()
    gc.freeze()
