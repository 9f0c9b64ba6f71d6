"""Comparisons in every format: console, Markdown, page, JSON and graph, and as files."""

from collections.abc import Callable, Iterable, Mapping

from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.block_markdown import document_markdown
from quantmedic.reports.charts.comparison import compare_chart
from quantmedic.reports.machines.records import record_json
from quantmedic.reports.page.html import document_page
from quantmedic.reports.sections.comparison import compare_document, compare_summary
from quantmedic.reports.templating import svg
from quantmedic.reports.terminal.block_lines import answer_lines, document_lines
from quantmedic.reports.terminal.lines import Verbosity, terminal_text

COLOURS = {"healed": "1;32", "better": "1;32", "broken": "1;31", "worse": "1;31", "mixed": "1;33", "unchanged": "1"}


def render_comparison(
    record: ComparisonReport, *, verbosity: Verbosity = "normal", color: bool = False, ascii_only: bool = False
) -> str:
    """Text for the terminal, the answer first.

    Args:
        record: What to show.
        verbosity: ``quiet`` prints the answer alone, ``verbose`` every layer and every subject.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
    """
    document = compare_summary(record, verbose=verbosity == "verbose")
    lines, head = answer_lines(document), document.word.upper()
    if color:
        lines[0] = lines[0].replace(head, f"\x1b[{COLOURS.get(record.word, '1;33')}m{head}\x1b[0m", 1)
    if verbosity != "quiet":
        lines += document_lines(document)
    return terminal_text(lines, ascii_only=ascii_only)


def comparison_page(record: ComparisonReport) -> str:
    """``compare.html``."""
    return document_page(compare_document(record), record.quantmedic_version)


def comparison_markdown(record: ComparisonReport, *, picture: bool = False) -> str:
    """``compare.md``; with ``picture`` it shows the graph beside it."""
    return document_markdown(compare_document(record), pictures=picture)


#: The formats other than text, which depends on the terminal, as text of their own.
COMPARISON_TEXTS: Mapping[str, Callable[[ComparisonReport], str]] = {
    "html": comparison_page,
    "markdown": comparison_markdown,
    "json": record_json,
}
_WRITERS: Mapping[str, Callable[[ComparisonReport], dict[str, str]]] = {
    "html": lambda record: {"compare.html": comparison_page(record)},
    "markdown": lambda record: {
        "compare.md": comparison_markdown(record, picture=True),
        "compare.svg": svg(compare_chart(record)),
    },
    "json": lambda record: {"compare.json": record_json(record)},
    "text": lambda record: {"compare.txt": render_comparison(record)},
}


def comparison_files(record: ComparisonReport, formats: Iterable[str]) -> dict[str, bytes]:
    """Files of a comparison by name.

    Raises:
        QuantmedicError: A format is unknown.
    """
    files: dict[str, str] = {}
    for form in dict.fromkeys(formats):
        if form not in _WRITERS:
            raise QuantmedicError(f"unknown format {form!r}", help=f"known formats: {', '.join(_WRITERS)}")
        files |= _WRITERS[form](record)
    return {file: text.encode() for file, text in files.items()}
