"""``python -m quantmedic`` as a process of its own, without the second that its imports take each time.

A server imports what the commands import, reads the rules, and runs nothing. Each command is a fork of it: a process
with arguments, folder, environment and exit code of its own, in which no other command ran before.
"""

import gc
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

Done = subprocess.CompletedProcess[str]
#: Variables that Python and packages read when they start: commands with others of these get another server.
AT_START = re.compile(r"PYTHON\w+|LANG|LC_\w+|\w+_NUM_THREADS|NUMBA_DISABLE_JIT|XDG_CACHE_HOME")
#: Each imports much of what a command needs, but not onnxruntime: it starts a thread, and a fork would lose that.
MODULES = (
    "scipy.special",
    "quantmedic.api.checks",
    "quantmedic.api.collect",
    "quantmedic.cli.diagnose",
    "quantmedic.cli.check",
    "quantmedic.collectors.front_ends",
    "quantmedic.collectors.from_onnx.parse",
    "quantmedic.collectors.from_onnx.onnx_graph",
    "quantmedic.collectors.measure.collect_pair",
    "quantmedic.reports.write",
)


def run_quantmedic(*arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Done:
    """Run a command; ``env`` is its whole environment, if there is one."""
    words = [str(argument) for argument in arguments]
    environment = {"PYTHONIOENCODING": "utf-8", **(os.environ if env is None else env)}
    server = _server(tuple(sorted((k, v) for k, v in environment.items() if AT_START.fullmatch(k))))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
        request = {"words": words, "cwd": str(cwd or Path.cwd()), "env": environment, "files": files}
        code = server.ask(json.dumps(request))
        said = [_text(file) for file in (out, err)]
    return subprocess.CompletedProcess(["quantmedic", *words], code, *said)


def with_proof() -> dict[str, str]:
    """The environment of a user: the leading remedy is run, which tests that are not about proof do not wait for."""
    return {name: value for name, value in os.environ.items() if name != "QUANTMEDIC_NO_PROVE"}


def _text(file: io.BufferedIOBase) -> str:
    file.seek(0)
    return io.TextIOWrapper(file, encoding="utf-8").read()


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", __file__]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, request: str) -> int:
        """The exit code of the command."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(request, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@cache
def _server(at_start: tuple[tuple[str, str], ...]) -> _Server:
    others = {name: value for name, value in os.environ.items() if not AT_START.fullmatch(name)}
    return _Server(others | dict(at_start))


def _serve(requests: Iterable[str]) -> None:
    for module in MODULES:
        import_module(module)
    sys.modules["quantmedic"].load_rulebase()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
    for request in requests:
        if (child := os.fork()) == 0:
            _become(**json.loads(request))
            runpy.run_module("quantmedic", run_name="__main__", alter_sys=True)
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(words: list[str], cwd: str, env: dict[str, str], files: list[str]) -> None:
    """Take the command's place: its arguments, folder, environment and files."""
    for number, file in enumerate(("/dev/null", *files)):
        os.dup2(os.open(file, os.O_RDWR), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["quantmedic", *words]
    sys.path.insert(0, cwd)
    signal.alarm(300)  # ends a command that hangs


if __name__ == "__main__":
    _serve(sys.stdin)
