"""Comparisons as files, and as text of one format."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.block_markdown import document_markdown
from quantmedic.reports.charts.comparison import compare_chart
from quantmedic.reports.machines.records import record_json
from quantmedic.reports.page.html import document_page
from quantmedic.reports.sections.comparison import compare_document
from quantmedic.reports.templating import svg
from quantmedic.reports.terminal.compare import render_comparison

FORMATS = ("html", "markdown", "json", "text")
Record = TypeVar("Record")
#: Files by name of one format of a record.
Writer = Callable[[Record], dict[str, str]]


def comparison_page(record: ComparisonReport) -> str:
    """``compare.html``."""
    return document_page(compare_document(record), record.quantmedic_version)


def comparison_markdown(record: ComparisonReport, *, picture: bool = False) -> str:
    """``compare.md``; with ``picture`` it shows the graph beside it."""
    return document_markdown(compare_document(record), pictures=picture)


COMPARISON_WRITERS: Mapping[str, Writer[ComparisonReport]] = {
    "html": lambda record: {"compare.html": comparison_page(record)},
    "markdown": lambda record: {
        "compare.md": comparison_markdown(record, picture=True),
        "compare.svg": svg(compare_chart(record)),
    },
    "json": lambda record: {"compare.json": record_json(record)},
    "text": lambda record: {"compare.txt": render_comparison(record)},
}
#: The formats other than text, which depends on the terminal, as text of their own.
COMPARISON_TEXTS: Mapping[str, Callable[[ComparisonReport], str]] = {
    "html": comparison_page,
    "markdown": comparison_markdown,
    "json": record_json,
}


def comparison_files(record: ComparisonReport, formats: Iterable[str]) -> dict[str, bytes]:
    """Files of a comparison by name.

    Raises:
        QuantmedicError: A format is unknown.
    """
    return _files_of(record, formats, COMPARISON_WRITERS)


def _files_of(record: Record, formats: Iterable[str], writers: Mapping[str, Writer[Record]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for form in dict.fromkeys(formats):
        if form not in writers:
            raise QuantmedicError(f"unknown format {form!r}", help=f"known formats: {', '.join(FORMATS)}")
        files |= {file: text.encode() for file, text in writers[form](record).items()}
    return files
