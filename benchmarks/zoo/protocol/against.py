"""The same cases asked of another version of quantmedic: a checkout elsewhere, in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

from ..cases import Built
from .layers import LayerNames
from .ledger import LedgerError, commit_of
from .row import Said, budget_of, causes_of

BENCHMARKS = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("other.py")


def said_of(report: dict[str, Any], names: LayerNames) -> Said:
    """What ``report.json`` says, of any version."""
    budget, undecided = report.get("loss_budget"), report.get("undecided")
    return Said(
        report["verdict"],
        causes_of(report["causes"]),
        names.named(report),
        budget_of(budget) if budget else None,
        undecided_db=undecided["gain_db"] if undecided else None,
    )


def layer_names(built: Built) -> LayerNames:
    """Names of the float model that the reader has."""
    return LayerNames(onnx.load(str(built.folder / "float.onnx"), load_external_data=False))


def ask_other(cases: list[Built], checkout: Path, prove: float | None) -> dict[str, Said]:
    """What the version of a checkout says of cases that were built by this one, after as much time for trials.

    Answers are kept beside the cases by commit, and used again where the checkout holds no other changes.
    """
    try:
        commit = commit_of(checkout)[:12]
    except LedgerError:
        commit = ""
    known = (
        {built.spec.name: built.folder / f"against-{commit}-{prove or 0:g}.json" for built in cases} if commit else {}
    )
    answers = {name: json.loads(path.read_text()) for name, path in known.items() if path.is_file()}
    for answer in _run([built for built in cases if built.spec.name not in answers], checkout, prove):
        answers[answer["name"]] = answer
        if commit and "report" in answer:
            known[answer["name"]].write_text(json.dumps(answer))
    return {built.spec.name: _said(built, answers.get(built.spec.name)) for built in cases}


def _said(built: Built, answer: dict[str, Any] | None) -> Said:
    if answer is None:
        return Said("", error="the other version ended without an answer")
    return said_of(answer["report"], layer_names(built)) if "report" in answer else Said("", error=answer["error"])


def _run(cases: list[Built], checkout: Path, prove: float | None) -> Iterable[dict[str, Any]]:
    if not cases:
        return []
    asked = [
        {
            "name": built.spec.name,
            "folder": str(built.folder.resolve()),
            "options": built.told_metric | ({} if prove is None or built.is_harmless else {"prove": prove}),
        }
        for built in cases
    ]
    with tempfile.TemporaryDirectory() as temporary:
        written = Path(temporary) / "answers.jsonl"
        path = os.pathsep.join([str(checkout.resolve()), str(BENCHMARKS)])
        subprocess.run(
            [sys.executable, "-P", str(SCRIPT), str(written)],
            input=json.dumps(asked),
            text=True,
            check=False,
            cwd=temporary,
            env={**os.environ, "PYTHONPATH": path},
        )
        return list(map(json.loads, written.read_text().splitlines())) if written.is_file() else []
