"""A child process that runs Python code and does not outlive this process, however that ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from quantmedic.engine.offline import IN_CHILD, offline_environment
from quantmedic.engine.output_files import scratch_folder, write_file

#: Holds a pipe whose other end this process alone has: its end, be it by a kill, ends the child and what that started.
_LIFELINE = """
def _hold_on():
    import os, signal, threading
    def wait_for_the_end():
        os.read({pipe}, 1)
        os.killpg(0, signal.SIGKILL)
    os.set_inheritable({pipe}, False)
    threading.Thread(target=wait_for_the_end, daemon=True).start()
_hold_on()
"""


#: Lets allocations beyond so many bytes fail; Windows has no such limit.
_BOUND = """
def _bound():
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, ({memory}, {memory}))
_bound()
"""


def run_child(
    code: str,
    arguments: Sequence[str] = (),
    *,
    folder: Path | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    seconds: float | None = None,
    memory: int | None = None,
) -> int:
    """Run Python code, with the packages of this process, in a session of its own; returns its exit status.

    Libraries are kept offline in it, see ``engine.offline``.

    Args:
        code: What runs; no file of the folder stands in for a package.
        arguments: What it finds in ``sys.argv[1:]``.
        folder: Where it runs.
        stdout: Where its output goes. Not a pipe: a process that it started and that outlives it would hold that open.
        stderr: Likewise.
        seconds: After which it is killed with all that it started; None: never.
        memory: Bytes that it may allocate; None: all that there are.

    Raises:
        OSError: No process starts.
        subprocess.TimeoutExpired: The time has passed.
    """
    lifeline = os.pipe() if sys.platform != "win32" else None
    try:
        held = _LIFELINE.format(pipe=lifeline[0]) if lifeline is not None else ""
        bound = _BOUND.format(memory=memory) if memory is not None and sys.platform != "win32" else ""
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", held + bound + IN_CHILD + code, *arguments],
            cwd=folder,
            env=offline_environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=lifeline[:1] if lifeline is not None else (),
        )
        try:
            return child.wait(seconds)
        finally:
            _stop(child)
    finally:
        for end in lifeline or ():
            os.close(end)


#: Calls a function on the bytes of one file, and writes what it returns to another.
_ANSWER = """
import sys
from importlib import import_module
from pathlib import Path
module, _, name = sys.argv[1].partition(":")
answer = getattr(import_module(module), name)(Path("question").read_bytes())
Path("answer").write_bytes(answer)
"""


def ask_child(function: str, question: bytes, seconds: float, memory: int | None = None) -> bytes:
    """What a function of ours returns that may never end.

    Args:
        function: ``module:function``, which makes bytes of bytes.
        question: What it is given.
        seconds: After which its process is killed.
        memory: See ``run_child``.

    Raises:
        OSError: No process starts, or it fails.
        subprocess.TimeoutExpired: The time has passed.
    """
    with scratch_folder() as folder:
        write_file(folder / "question", question)
        run_child(_ANSWER, [function], folder=folder, seconds=seconds, memory=memory)
        return (folder / "answer").read_bytes()


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Kill it with the processes that it started, unless it has ended."""
    if child.poll() is not None:
        return
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()
