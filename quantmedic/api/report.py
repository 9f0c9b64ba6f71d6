"""The report of a diagnosis, written to a folder."""

from collections.abc import Sequence
from pathlib import Path

from quantmedic.api.cases import CASE_FILE, save_case
from quantmedic.api.inspection import inspect_under
from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.rules.rulebase import RuleBase

FORMATS = ("html", "markdown", "json")


def write_report(
    diagnosis: Diagnosis,
    folder: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    rules: RuleBase | None = None,
    case: Case | Inspection | None = None,
) -> list[tuple[Path, int]]:
    """Write the report, and the case file beside it; returns (path, bytes) of every file.

    Without the case, the page can be read but has no tools: they show what only the case knows.

    Raises:
        OutputError: The folder cannot be written.
    """
    # A check imports this module and writes no report: it need not wait for jinja2 and markdown.
    from quantmedic.reports.write import write_report as _write

    target, base = Path(folder), rules or load_rulebase()
    opened = inspect_under(case, base) if case is not None else None
    written = [(file.path, file.size) for file in _write(diagnosis, load_manuals(base), target, formats, opened)]
    if opened is not None:
        save_case(opened.case, target / CASE_FILE)
        written.append((target / CASE_FILE, (target / CASE_FILE).stat().st_size))
    return written
