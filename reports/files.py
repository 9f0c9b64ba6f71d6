"""Comparisons, searches and sensitivity records as files, and as text of one format."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from quantmedic.engine.contract.calibrations import CalibrationsRecord
from quantmedic.engine.diagnosis.sensitivity import SensitivityRecord
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.formulas.debugger import DebuggerRecord
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.charts.comparison import compare_chart
from quantmedic.reports.charts.debugger import debugger_chart
from quantmedic.reports.charts.sensitivity import sensitivity_chart
from quantmedic.reports.machines.records import (
    calibrations_json,
    comparison_json,
    denylist_json,
    sensitivity_json,
)
from quantmedic.reports.machines.spreadsheets import debugger_csv, sensitivity_csv
from quantmedic.reports.markdown import calibrations_markdown, comparison_markdown, sensitivity_markdown
from quantmedic.reports.page.debugger import debugger_page
from quantmedic.reports.page.records import comparison_page
from quantmedic.reports.templating import svg
from quantmedic.reports.terminal.calibrations import render_calibrations
from quantmedic.reports.terminal.compare import render_comparison

FORMATS = ("html", "markdown", "json", "text")
Record = TypeVar("Record")
#: Files by name of one format of a record.
Writer = Callable[[Record], dict[str, str]]

COMPARISON_WRITERS: Mapping[str, Writer[ComparisonReport]] = {
    "html": lambda record: {"compare.html": comparison_page(record)},
    "markdown": lambda record: {
        "compare.md": comparison_markdown(record, picture=True),
        "compare.svg": svg(compare_chart(record)),
    },
    "json": lambda record: {"compare.json": comparison_json(record)},
    "text": lambda record: {"compare.txt": render_comparison(record)},
}
CALIBRATIONS_WRITERS: Mapping[str, Writer[CalibrationsRecord]] = {
    "markdown": lambda record: {"calibrations.md": calibrations_markdown(record)},
    "json": lambda record: {"calibrations.json": calibrations_json(record)},
    "text": lambda record: {"calibrations.txt": render_calibrations(record)},
}
#: The formats other than text, which depends on the terminal, as text of their own.
COMPARISON_TEXTS: Mapping[str, Callable[[ComparisonReport], str]] = {
    "html": comparison_page,
    "markdown": comparison_markdown,
    "json": comparison_json,
}


def comparison_files(record: ComparisonReport, formats: Iterable[str]) -> dict[str, bytes]:
    """Files of a comparison by name.

    Raises:
        QuantmedicError: A format is unknown.
    """
    return _files_of(record, formats, COMPARISON_WRITERS)


def sensitivity_files(record: SensitivityRecord) -> dict[str, bytes]:
    """All files of a sensitivity record by name."""
    return {
        "sensitivity.json": sensitivity_json(record).encode(),
        "sensitivity.csv": sensitivity_csv(record).encode(),
        "sensitivity.md": sensitivity_markdown(record).encode(),
        "sensitivity.svg": svg(sensitivity_chart(record)).encode(),
    }


def debugger_files(record: DebuggerRecord) -> dict[str, bytes]:
    """All files of the debugger's table by name."""
    return {
        "debugger.html": debugger_page(record).encode(),
        "debugger.svg": svg(debugger_chart(record)).encode(),
        "layers.csv": debugger_csv(record).encode(),
        "denylist.json": denylist_json(record).encode(),
    }


def calibrations_files(record: CalibrationsRecord, formats: Iterable[str]) -> dict[str, bytes]:
    """Files of a search for the best calibration by name, with what is to be pasted.

    Raises:
        QuantmedicError: A format is unknown.
    """
    own = [record.configuration] if record.configuration is not None else []
    pasted = {each.file: each.code.encode() for each in (*own, *(other.configuration for other in record.others))}
    return _files_of(record, formats, CALIBRATIONS_WRITERS) | pasted


def _files_of(record: Record, formats: Iterable[str], writers: Mapping[str, Writer[Record]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for form in dict.fromkeys(formats):
        if form not in writers:
            raise QuantmedicError(f"unknown format {form!r}", help=f"known formats: {', '.join(FORMATS)}")
        files |= {file: text.encode() for file, text in writers[form](record).items()}
    return files
