"""The ledger of first runs: for each part, seed and version of the cases, the figures of the run that saw them first.

A record is one file of JSON lines: when the run began and with which code, its figures, and one line per case. It is
begun before the first case is asked. So a run that was broken off has seen its seed too: it may be continued with the
very same code, and with any other it is not a first run. Nothing overwrites a record.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .row import Row

#: Figures that are reported come from seeds from here on; those from 100 on before it were used up without a record.
FIRST_SEED = 106
SUFFIX = ".jsonl"
#: Cases of ``all`` are cases of these as well.
WITHIN: Mapping[str, frozenset[str]] = {"all": frozenset({"all", "tuning", "reporting"})}


class LedgerError(Exception):
    """A run that would not be a fair one, or a record that is none."""


@dataclass(frozen=True)
class Begun:
    """How a run began.

    Attributes:
        commit: Of this version.
        settings: What else decides its figures: which cases, and what is tried.
    """

    part: str
    seed: int
    version: int
    date: str
    commit: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What is seen once."""
        return f"{self.part}-{self.seed}-v{self.version}"

    def overlaps(self, other: "Begun") -> bool:
        """Whether the other has cases of this one."""
        parts = WITHIN.get(self.part, frozenset({self.part})) & WITHIN.get(other.part, frozenset({other.part}))
        return self.seed == other.seed and bool(parts)

    def continues(self, other: "Begun") -> bool:
        """Whether it is the same run as another one, begun again."""
        return {**asdict(self), "date": ""} == {**asdict(other), "date": ""}


@dataclass(frozen=True)
class Record:
    """What the ledger holds of a run; one that was broken off has no figures."""

    begun: Begun
    figures: Mapping[str, Any] | None = None
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A run that is under way.

    Attributes:
        first: The run that saw these cases before; None for a first run.
        others: Runs that saw the same seed with another version of the cases.
    """

    path: Path
    begun: Begun
    first: Record | None
    others: tuple[Record, ...]

    @property
    def is_first(self) -> bool:
        return self.first is None

    def finish(self, figures: Mapping[str, Any], rows: Iterable[Row]) -> None:
        """Write the record of a first run."""
        if not self.is_first:
            raise LedgerError(f"{self.path.stem} is not a first run: its figures are not written")
        if read(self.path).figures is not None:
            raise LedgerError(f"{self.path} was finished by another run meanwhile: nothing was written")
        _write(self.path, [asdict(self.begun), dict(figures), *(row.as_json() for row in rows)])


def begin(folder: Path, begun: Begun) -> Entry:
    """Open the record of a run before its first case is asked."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{begun.name}{SUFFIX}"
    alike = [record for record in records(folder) if record.begun.overlaps(begun)]
    others = tuple(record for record in alike if record.begun.version != begun.version)
    before = [record for record in alike if record.begun.version == begun.version]
    if not before:
        _create(path, asdict(begun))
        return Entry(path, begun, None, others)
    same = next((record for record in before if record.begun.name == begun.name), before[0])
    if len(before) == 1 and same.figures is None and begun.continues(same.begun):
        return Entry(path, same.begun, None, others)
    return Entry(path, begun, same, others)


def records(folder: Path) -> list[Record]:
    """All records of a folder."""
    return [read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def read(path: Path) -> Record:
    """One record.

    Raises:
        LedgerError: The file is none.
    """
    try:
        begun, *rest = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        figures, rows = (rest[0], rest[1:]) if rest else (None, [])
        begun.pop("against", None)  # older records compared two versions
        return Record(Begun(**begun), figures, tuple(map(Row.from_json, rows)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"{path} is no record of the ledger: {error}") from error


def read_finished(paths: Sequence[Path]) -> list[Record]:
    """Records with figures.

    Raises:
        LedgerError: A file is none, or its run was broken off.
    """
    found = [read(path) for path in paths]
    for path, record in zip(paths, found, strict=True):
        if record.figures is None:
            raise LedgerError(f"{path} has no figures: its run was broken off; run it again with the same commit")
    return found


def _create(path: Path, begun: Mapping[str, Any]) -> None:
    """Write a new file, which fails where another run was faster."""
    temporary = _temporary(path, [begun])
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise LedgerError(f"{path} was begun by another run meanwhile: nothing was asked") from error
    finally:
        temporary.unlink()


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    os.replace(_temporary(path, lines), path)


def _temporary(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = "".join(f"{json.dumps(line, separators=(',', ':'), default=str)}\n" for line in lines)
    temporary.write_text(text, encoding="utf-8")
    return temporary


def commit_of(checkout: Path, besides: Path | None = None) -> str:
    """The commit of a checkout.

    Args:
        checkout: Its folder.
        besides: A folder whose changes do not count: the ledger's own.

    Raises:
        LedgerError: It is none, or holds changes that are in no commit.
    """
    changed = [path for path in _git(checkout, "status", "--porcelain", "--no-renames").splitlines() if path]
    own = f"{os.path.relpath(besides.resolve(), checkout.resolve())}/" if besides is not None else ""
    dirty = [line for line in changed if not (own and line[3:].strip('"').startswith(own))]
    if dirty:
        listed = ", ".join(line[3:] for line in dirty[:5])
        raise LedgerError(f"{checkout} holds changes that are in no commit ({listed}): commit or remove them first")
    return _git(checkout, "rev-parse", "HEAD").strip()


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LedgerError(
            f"{checkout} is no git checkout, so that its figures belong to no commit: {done.stderr.strip()}"
        )
    return done.stdout
