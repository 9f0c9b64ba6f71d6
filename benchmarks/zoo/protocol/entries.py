"""A case as a row, and what a run writes into the ledger and prints from it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import quantmedic

from ..asking import Answer
from ..cases import RECIPE_VERSION, Built
from ..fault import FAULTS
from ..paste_table import outcome
from .calibration import reliability, stated
from .layers import layer_names
from .ledger import Begun, Entry, LedgerError, Record, begin, commit_of
from .row import Row
from .scores import Share, assigned_shares
from .table import NOW, columns, render_columns

ROOT = Path(__file__).parents[3]
#: Packages whose versions a record keeps.
VERSIONS = ("numpy", "onnx", "onnxruntime")
#: Where records are checked in.
LEDGER = ROOT / "benchmarks" / "figures"


def row_of(built: Built, answer: Answer) -> Row:
    """The case in short."""
    faults = [FAULTS[kind] for kind in built.spec.kinds]
    before = built.before
    return Row(
        name=built.spec.name,
        network=built.spec.network,
        group=built.spec.group,
        family=built.spec.family,
        said=answer.said,
        expected=built.spec.expected,
        also=tuple(name for names in built.spec.also for name in names),
        places=layer_names(built).meant(built.places) if built.places else (),
        hurts=before is not None and before.hurts,
        proven_drop=before is not None and bool(before.proven_drop),
        harms=bool(faults) and all(fault.harms for fault in faults),
        gain_db=built.gain_db,
        strength=built.strength,
        recipe=built.recipe,
        peer=answer.peer,
        pasted=outcome(built, answer.pasted) if answer.pasted is not None else "",
        fixed=outcome(built, answer.fixed) if answer.fixed is not None else "",
    )


def open_entry(folder: Path, part: str, seed: int, settings: Mapping[str, Any]) -> Entry:
    """Begin the record of a run on a reporting seed.

    Raises:
        LedgerError: Its figures would belong to no commit.
    """
    imported = Path(quantmedic.__file__).resolve()
    if not imported.is_relative_to(ROOT):
        raise LedgerError(f"quantmedic comes from {imported.parent} and not from {ROOT}: set PYTHONPATH to the latter")
    commit = commit_of(ROOT, besides=folder)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return begin(folder, Begun(part, seed, RECIPE_VERSION, now, commit, settings))


def close_entry(entry: Entry, figures: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the record of a first run.

    Raises:
        LedgerError: The checkout changed meanwhile, so that networks were asked of different code.
    """
    commit = commit_of(ROOT, besides=entry.path.parent)
    if commit != entry.begun.commit:
        raise LedgerError(f"{ROOT} went from {entry.begun.commit} to {commit} during the run: go back and run it again")
    entry.finish(figures, rows)


def figures_of(rows: Sequence[Row], summary: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of a run, for its record."""
    assigned = assigned_shares(rows)
    return {
        "columns": {
            title: {key: [share.part, share.whole] for key, share in column.items()}
            for title, column in columns(rows).items()
        },
        "confidence": {NOW: _confidence(rows)},
        "assigned_median": float(np.median(assigned)) if assigned else None,
        "versions": {name: version(name) for name in VERSIONS},
        "summary": _without_reasons(summary),
    }


def _confidence(rows: Sequence[Row]) -> dict[str, Any]:
    """Reliability of the first cause, and of all serious ones."""
    found = {name: reliability(stated(rows, first=name == "first")) for name in ("first", "serious")}
    return {name: asdict(each) if each is not None else None for name, each in found.items()}


def _without_reasons(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary, where of cases that were not asked only those that broke are kept with their reason."""
    kept = dict(summary)
    left_out = kept.pop("left_out")
    kept["not_asked"] = Counter(case["status"] for case in left_out)
    return kept | {"broken": [case for case in left_out if case["status"] != "inapplicable"]}


def shares_of(record: Record) -> dict[str, dict[str, Share]]:
    """The columns of a record."""
    stored = record.figures["columns"] if record.figures is not None else {}
    return {title: {key: Share(*pair) for key, pair in column.items()} for title, column in stored.items()}


def describe(begun: Begun) -> str:
    """Which run it was."""
    asked = ", ".join(f"{key} {value}" for key, value in begun.settings.items() if value is not None)
    return f"{begun.name} of {begun.date}, commit {begun.commit[:12]}{f' ({asked})' if asked else ''}"


def render_entry(entry: Entry, rows: Sequence[Row]) -> str:
    """Whether a run was the first one of its seed, and the first one's figures beside its own."""
    text = [f"\nthe same seed was used before with other cases: {describe(other.begun)}" for other in entry.others]
    if entry.first is None:
        return "\n".join([*text, f"\nfirst run: {describe(entry.begun)}; its record is {entry.path}"])
    text.append(f"\nNOT A FIRST RUN. The first one was {describe(entry.first.begun)}; its record stays as it is.")
    if entry.first.figures is None:
        return "\n".join([*text, "It was broken off and has no figures. Only the same commit may continue it."])
    both = {NOW: columns(rows)[NOW], "first run": shares_of(entry.first)[NOW]}
    return "\n".join([*text, *render_columns(both)])
