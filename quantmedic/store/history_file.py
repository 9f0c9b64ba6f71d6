"""The health history: figures of earlier checks in one SQLite file.

The file keeps SQLite's default journal. Write-ahead logging would need memory that all writers share, which network
file systems do not have, and would leave files beside the history that caches of continuous integration do not take
along. A record is one transaction of a few kilobytes, so that there is nothing to gain by it.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from quantmedic.engine.contract.check import Figure, HistoryRun, Trend
from quantmedic.engine.errors import HistoryError, OutputError
from quantmedic.engine.files import read_bytes, require_regular
from quantmedic.engine.gate.history import figures_of
from quantmedic.engine.limits import HISTORY_BYTES
from quantmedic.engine.output_files import require_file
from quantmedic.engine.text import whole
from quantmedic.reports.text import count, visible

if TYPE_CHECKING:
    from quantmedic.engine.contract.diagnosis import Diagnosis
    from quantmedic.reports.write import Written

FORMATS = ("html", "markdown", "json")
#: Runs that a report shows at most.
SHOWN = 50
#: How long a record waits for others to finish theirs.
TIMEOUT_S = 60.0
#: Marks the file as a history: "qmhi".
APPLICATION_ID = 0x716D6869
#: Statements that lead from each version of the schema to the next one; a new file begins at version 0.
#:
#: Types are checked by constraints rather than by STRICT tables: SQLite before 3.37 cannot open a file that has one,
#: and such versions are what a laptop's history may meet in continuous integration.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE run (
            number INTEGER PRIMARY KEY,
            model TEXT NOT NULL CHECK (typeof(model) = 'text'),
            time TEXT NOT NULL CHECK (typeof(time) = 'text'),
            label TEXT CHECK (typeof(label) IN ('text', 'null')),
            verdict TEXT NOT NULL CHECK (typeof(verdict) = 'text'),
            quantized_sha256 TEXT CHECK (typeof(quantized_sha256) IN ('text', 'null'))
        )
        """,
        "CREATE INDEX run_model ON run (model, number)",
        """
        CREATE TABLE figure (
            run INTEGER NOT NULL REFERENCES run (number),
            place INTEGER NOT NULL CHECK (typeof(place) = 'integer'),
            name TEXT NOT NULL CHECK (typeof(name) = 'text'),
            unit TEXT CHECK (typeof(unit) IN ('text', 'null')),
            value REAL NOT NULL CHECK (typeof(value) = 'real'),
            low REAL CHECK (typeof(low) IN ('real', 'null')),
            high REAL CHECK (typeof(high) IN ('real', 'null')),
            bound REAL CHECK (typeof(bound) IN ('real', 'null')),
            better TEXT CHECK (better IN ('higher', 'lower')),
            PRIMARY KEY (run, place),
            UNIQUE (run, name)
        ) WITHOUT ROWID
        """,
    ),
)
VERSION = len(MIGRATIONS)
#: Bytes of a text in a history: names of files and figures, labels.
_LONGEST = 1 << 20
_ELSEWHERE = "name another file"
_RESTORE = "restore it from a copy, or begin a new one; SQLite's own shell may save runs with .recover"
#: What is wrong and what to do next, by SQLite's primary result code.
_ADVICE: Mapping[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: (
        f"the history has been in use by another process for {TIMEOUT_S:.0f} s",
        "try again when that is done, or end the process that holds the file",
    ),
    sqlite3.SQLITE_NOTADB: ("the file is not a history: it is not a SQLite database", _ELSEWHERE),
    sqlite3.SQLITE_CORRUPT: ("the history is damaged", _RESTORE),
    sqlite3.SQLITE_TOOBIG: ("the history is damaged: it holds a text without end", _RESTORE),
    sqlite3.SQLITE_READONLY: ("the history can only be read", f"make file and folder writable, or {_ELSEWHERE}"),
    sqlite3.SQLITE_CANTOPEN: (
        "the history cannot be opened",
        f"its folder must exist, and both must be writable; or {_ELSEWHERE}",
    ),
    sqlite3.SQLITE_FULL: ("there is no room for the history", "free some space and try again"),
    sqlite3.SQLITE_IOERR: (
        "the history cannot be read or written",
        "check the disk, and keep the file where locks work: some network drives have none",
    ),
    sqlite3.SQLITE_PROTOCOL: ("the history cannot be locked", "keep the file where locks work, such as a local disk"),
}


def record(
    path: str | Path,
    diagnosis: "Diagnosis",
    *,
    time: str,
    label: str | None = None,
    model: str | None = None,
) -> Trend:
    """Add a run to a history, which is made if it does not exist.

    A run is stored whole or not at all, also while other processes record. Neither host nor user nor any path is
    stored.

    Args:
        path: The history.
        diagnosis: What was checked.
        time: When, as ISO 8601 in UTC with seconds.
        label: What the user calls the run, such as a commit.
        model: Name that the runs of one model share. By default the file name of the quantized model.

    Returns:
        The last ``SHOWN`` runs of this model, this one included.

    Raises:
        HistoryError: The file is not a history, or of a newer version, or cannot be written. It is as it was before.
    """
    run = HistoryRun(
        number=0,
        time=time,
        label=_storable(label) or None,
        verdict=diagnosis.gate or diagnosis.verdict,
        quantized_sha256=diagnosis.run.get("quantized_sha256"),
        figures=figures_of(diagnosis),
    )
    name = _storable(model or diagnosis.model.name) or "?"
    with _transaction(path, writing=True) as connection:
        _bring_up_to_date(connection, path)
        _insert(connection, name, run)
        return Trend(model=name, runs=_last_runs(connection, name, SHOWN))


def load_history(path: str | Path, *, model: str | None = None, last: int | None = None) -> Trend:
    """Recorded runs of one model, oldest first.

    Args:
        path: The history.
        model: Whose runs; may be left out where the history holds one model alone.
        last: At most so many runs, the latest ones; all by default.

    Raises:
        HistoryError: The file is not a history, holds no run of that model, or several models of which none is named.
    """
    if last is not None and last < 1:
        raise HistoryError(f"{last} runs cannot be shown", help="ask for 1 or more")
    with _transaction(path, writing=False) as connection:
        known = _models(connection, path)
        name = _choose_model(_storable(model), known, path)
        return Trend(model=name, runs=_last_runs(connection, name, last))


def models_in(path: str | Path) -> dict[str, int]:
    """Models of a history with the number of their runs, the one recorded last first.

    Raises:
        HistoryError: The file is not a history.
    """
    with _transaction(path, writing=False) as connection:
        return _models(connection, path)


def require_history(path: str | Path) -> None:
    """Refuse a file that `record` could not add to, as far as that is seen without writing.

    Raises:
        HistoryError: The file is not a history, or of a newer version, or cannot be written, or its folder does not
            exist.
    """
    if os.path.exists(path):
        models_in(path)
    elif not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise HistoryError("the history's folder does not exist", where=str(path), help=f"make it, or {_ELSEWHERE}")
    try:
        require_file(Path(path))
    except OutputError as error:
        raise HistoryError(error.message, where=error.where, help=error.help) from error


def write_trend(trend: Trend, folder: str | Path, *, formats: Sequence[str] = FORMATS) -> "list[Written]":
    """Write ``trend.html``, ``trend.md`` with its graphs, and ``trend.json``, each whole or not at all.

    Raises:
        OutputError: The folder cannot be written.
        QuantmedicError: A format is unknown.
    """
    # Recording a run, as every check in CI does, writes no report.
    from quantmedic.reports.files import trend_files
    from quantmedic.reports.write import place

    return place(trend_files(trend, formats), Path(folder))


@contextmanager
def _transaction(path: str | Path, *, writing: bool) -> Iterator[sqlite3.Connection]:
    """A connection inside one transaction, committed where the block ends without an error, else undone."""
    file = os.path.abspath(path)  # SQLite gives some other names a meaning, such as ":memory:".
    if os.path.islink(file):
        raise HistoryError("the history is a link", where=str(path), help="name the file that it leads to")
    if os.path.isdir(file):
        raise HistoryError("the history is a folder", where=str(path), help=f"{_ELSEWHERE}, such as history.db in it")
    if os.path.exists(file):
        _require_sound_file(file, path)
    elif not writing:
        raise HistoryError("there is no such history", where=str(path), help="quantmedic check --record FILE makes one")
    try:
        # A reader opens for writing too where it may: it undoes what a killed writer left.
        with closing(sqlite3.connect(file, timeout=TIMEOUT_S, isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            _check_content(connection, path)
            yield connection  # Closing a connection undoes what was not committed.
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise _history_error(error, path) from error
    except UnicodeDecodeError as error:  # of a message of SQLite that quotes what is damaged
        raise HistoryError("the history is damaged", where=str(path), help=_RESTORE) from error


#: Ends the journal of a transaction over several databases, which names a file that SQLite removes.
_OF_SEVERAL = bytes.fromhex("d9d505f920a163d7")


def _require_sound_file(file: str, path: str | Path) -> None:
    try:
        require_regular(file)
    except OSError as error:
        help = f"{_ELSEWHERE}, such as history.db"
        raise HistoryError("the history cannot be opened", where=f"{path}: {error.strerror}", help=help) from error
    HISTORY_BYTES.check(os.stat(file).st_size, path)
    journal = Path(f"{file}-journal")
    if journal.is_file() and read_bytes(journal, HISTORY_BYTES).endswith(_OF_SEVERAL):
        raise HistoryError("the journal beside the history is none of ours", where=str(journal), help="remove it")


def _check_content(connection: sqlite3.Connection, path: str | Path) -> None:
    """Refuse a history that is damaged or was edited, before anything is read of it or added to it.

    Views and triggers could do or cost anything, so that there must be none.

    Raises:
        HistoryError: It is not as it was written.
    """
    version = _version(connection, path)
    if version == 0:
        return
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in chain.from_iterable(MIGRATIONS[:version]):
            fresh.execute(statement)
        wanted = _definitions(fresh)
    found = _definitions(connection)
    changed = sorted(name for kind, name, _ in wanted - found)
    changed += sorted(name for kind, name, _ in found - wanted if kind in ("view", "trigger", "index"))
    if changed:
        raise HistoryError(
            "the history was edited: its tables are not those that were made",
            where=(str(path), *(visible(name, 80) for name in changed[:5])),
            help=_RESTORE,
        )
    (wrong,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if wrong != "ok":
        where = (str(path), visible(str(wrong).replace("\n", " "), 200))
        raise HistoryError("the history is damaged", where=where, help=_RESTORE)


def _definitions(connection: sqlite3.Connection) -> set[tuple[str, str, str | None]]:
    """Kind, name and SQL of all tables, indexes, views and triggers."""
    return set(connection.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"))


def _history_error(error: sqlite3.Error, path: str | Path) -> HistoryError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # The other bits say more than users can act upon.
    message, advice = _ADVICE.get(code, (f"the history cannot be used: {error}", _ELSEWHERE))
    return HistoryError(message, where=(str(path), str(error)), help=advice)


def _bring_up_to_date(connection: sqlite3.Connection, path: str | Path) -> None:
    version = _version(connection, path)
    if version == VERSION:
        return
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection, path: str | Path) -> int:
    """Version of the schema; 0 for a file in which nothing is.

    Raises:
        HistoryError: It belongs to another program, or to a newer quantmedic.
    """
    ours = _one_number(connection, "PRAGMA application_id") == APPLICATION_ID
    version = _one_number(connection, "PRAGMA user_version")
    if not ours and (version or _one_number(connection, "SELECT count(*) FROM sqlite_master")):
        raise HistoryError("the file is the database of another program", where=str(path), help=_ELSEWHERE)
    if version < 0:
        raise HistoryError("the history was edited: it is of no version", where=str(path), help=_RESTORE)
    if version > VERSION:
        raise HistoryError(
            "the history was written by a newer quantmedic",
            where=(str(path), f"version {version} of its tables, this quantmedic reads up to {VERSION}"),
            help=f"update quantmedic, or {_ELSEWHERE}",
        )
    return version


def _one_number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _insert(connection: sqlite3.Connection, model: str, run: HistoryRun) -> None:
    added = connection.execute(
        "INSERT INTO run (model, time, label, verdict, quantized_sha256) VALUES (?, ?, ?, ?, ?)",
        (model, run.time, run.label, run.verdict, run.quantized_sha256),
    )
    connection.executemany(
        "INSERT INTO figure (run, place, name, unit, value, low, high, bound, better) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (added.lastrowid, place, _storable(f.name), _storable(f.unit), f.value, f.low, f.high, f.limit, f.better)
            for place, f in enumerate(run.figures)
        ],
    )


def _last_runs(connection: sqlite3.Connection, model: str, last: int | None) -> tuple[HistoryRun, ...]:
    rows = connection.execute(
        "SELECT number, time, label, verdict, quantized_sha256 FROM run WHERE model = ? ORDER BY number DESC LIMIT ?",
        (model, -1 if last is None else min(last, sys.maxsize)),  # an integer of SQLite, like any index
    ).fetchall()
    try:
        return tuple(
            HistoryRun(
                number=number,
                time=time,
                label=label,
                verdict=verdict,
                quantized_sha256=sha256,
                figures=_figures(connection, number),
            )
            for number, time, label, verdict, sha256 in reversed(rows)
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        where = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        raise HistoryError(
            "the history was edited: a run is not as it was written", where=where, help=_RESTORE
        ) from error


def _figures(connection: sqlite3.Connection, run: int) -> tuple[Figure, ...]:
    rows = connection.execute(
        "SELECT name, unit, value, low, high, bound, better FROM figure WHERE run = ? ORDER BY place", (run,)
    ).fetchall()
    return tuple(
        Figure(name=name, unit=unit, value=value, low=low, high=high, limit=limit, better=better)
        for name, unit, value, low, high, limit, better in rows
    )


def _models(connection: sqlite3.Connection, path: str | Path) -> dict[str, int]:
    if _version(connection, path) == 0:
        return {}
    rows = connection.execute("SELECT model, count(*) FROM run GROUP BY model ORDER BY max(number) DESC")
    return dict(rows)


def _choose_model(model: str | None, known: Mapping[str, int], path: str | Path) -> str:
    if not known:
        raise HistoryError(
            "the history holds no run yet", where=str(path), help="quantmedic check --record FILE adds one"
        )
    listed = [f"{visible(name)}  {count(runs, 'run')}" for name, runs in known.items()]
    if model is None and len(known) > 1:
        raise HistoryError("the history holds several models", where=listed, help="name one: --model NAME")
    if model is None:
        return next(iter(known))
    if model not in known:
        near = get_close_matches(model, known, n=1)
        raise HistoryError(
            f"the history holds no run of {visible(model, 80)!r}",
            where=listed,
            help=f"did you mean {visible(near[0])!r}?" if near else "name one of these",
        )
    return model


def _storable(text: str | None) -> str | None:
    """Text as UTF-8 can hold it: names of files may hold other bytes."""
    return None if text is None else whole(text)
