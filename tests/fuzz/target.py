"""One row of the table of what is tried: its input is written here, and its sound seeds are tried."""

import contextlib
import io
import random
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutate_options import mutate_words
from mutate_text import Mutator
from plant import Plant
from seeds import Seeds

from quantmedic.cli.main import main

# An extension on the path is imported where nothing else recognizes a file; it shall write no bytecode there.
sys.dont_write_bytecode = True

Files = Mapping[str, str]
Written = tuple[Files, Sequence[str], Sequence[str]]


@dataclass(frozen=True)
class Target:
    """``files``: name in the folder of the case and the seed that it is; ``changed``: the one that is hostile.

    ``weight``: how often it is tried. ``plant``: puts what is hostile into the folder. Without it and ``changed`` the
    words of the command are hostile.
    """

    format: str
    weight: float
    files: Files
    changed: str
    mutate: Mutator
    commands: Sequence[str]
    plant: Plant | None = None


def prepare(target: Target, seeds: Seeds, rng: random.Random) -> list[str]:
    """Write the input of a case into the current folder; returns the command's words."""
    write_all(target.files, seeds)
    words = shlex.split(rng.choice(target.commands))
    if target.plant is not None:
        target.plant(words, rng)
        return words
    if not target.changed:
        return mutate_words(words, rng)
    Path(target.changed).write_bytes(target.mutate(seeds[target.files[target.changed]], rng))
    return words


def refused_seeds(rows: Sequence[Target], seeds: Seeds) -> list[str]:
    """Run every command on what is sound. What it loads and compiles, every fork has then; what it refuses is told."""
    found = []
    for target in rows:
        for command in target.commands:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                write_all(target.files, seeds)
                code, said = _call(command)
            sys.modules.pop("mine", None)
            if code == 2:
                found.append(f"{command}, {dict(target.files)}\n{said}")
    return found


def own_seeds(seeds: Seeds, written: Written) -> Seeds:
    """What commands of quantmedic write on other seeds: files, commands, and names of what they leave in ``out``."""
    own, commands, names = written
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_all(own, seeds)
        for command in commands:
            _call(command)
        return {name: Path("out", name).read_bytes() for name in names}


def _call(command: str) -> tuple[object, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            main(shlex.split(command))
        except SystemExit as end:
            return end.code, out.getvalue()


def write_all(own: Files, seeds: Seeds) -> None:
    """Write seeds into the current folder, and make the one for outputs."""
    Path("out").mkdir()
    for name, seed in own.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(seeds[seed])
