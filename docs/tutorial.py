"""The tutorial: its commands are run while the site is built, and what they print stands on the page.

A block that begins with ```` ```sh run ```` holds one command a line; ``cd`` changes the folder for those that follow.
"""

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from docs.markdown import Page
from quantmedic.cli.main import cli

_BLOCK = re.compile(r"^```sh run\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
#: Reports beside those of the tutorial, for the gallery.
_OTHERS = ("quantmedic demo --detection -o detector", "quantmedic demo --healthy -o healthy")


def run_tutorial(page: Page, folder: Path) -> Page:
    """The page with what its commands print; their reports, and those of the gallery, stay in the folder."""
    folder.mkdir()
    where = folder

    def shown(block: re.Match[str]) -> str:
        nonlocal where
        said = []
        for line in block["lines"].splitlines():
            said.append(f"$ {line}")
            if line.startswith("cd "):
                where = (where / line.removeprefix("cd ")).resolve()
            else:
                said.append(_printed(line, where))
        return "```console\n" + "\n".join(filter(None, said)) + "\n```"

    told = _BLOCK.sub(shown, page.text)
    for line in _OTHERS:
        _printed(line, folder)
    return replace(page, text=told)


def _printed(line: str, folder: Path) -> str:
    """Standard output of a command that must succeed, with the words of the page in place of this machine's."""
    program, *words = shlex.split(line, comments=True)
    code, out, err = _run_here(words, folder) if program == "quantmedic" else _run_python(words, folder)
    if code != 0:
        raise SystemExit(f"error: a command of the tutorial failed: {line}\n{out}{err}")
    return out.replace(sys.executable, "python").replace(str(folder), ".").rstrip()


def _run_here(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """A command of quantmedic in this process, for to start one each time would double the time of the build."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(cli, words)
    return done.exit_code, done.stdout, f"{done.stderr}{done.exception or ''}"


def _run_python(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr
