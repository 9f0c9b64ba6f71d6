"""What a search has found in every format: console, Markdown, page, JSON, CSV and graph, and as files."""

import json
from collections.abc import Callable, Mapping, Sequence

from quantmedic.engine.contract.searches import (
    CalibrationsRecord,
    DebuggerRecord,
    FallbackRecord,
    SearchRecord,
    SensitivityRecord,
)
from quantmedic.engine.errors import QuantmedicError
from quantmedic.reports.block_markdown import document_markdown
from quantmedic.reports.blocks import Figure
from quantmedic.reports.machines.records import record_json
from quantmedic.reports.machines.spreadsheets import debugger_csv, sensitivity_csv
from quantmedic.reports.page.html import document_page
from quantmedic.reports.sections.prescription import layer_files
from quantmedic.reports.sections.search_view import BRIEF_ROWS, search_document
from quantmedic.reports.templating import svg
from quantmedic.reports.terminal.block_lines import answer_lines, document_lines
from quantmedic.reports.terminal.lines import terminal_text
from quantmedic.reports.text import inert_json

#: Rows of tables that hold all of them.
ALL_ROWS = 1 << 30


def render_search(record: SearchRecord, *, verbose: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: the leading layers, or all."""
    document = search_document(record, rows=ALL_ROWS if verbose else BRIEF_ROWS, brief=True)
    return terminal_text([*answer_lines(document), *document_lines(document)], ascii_only=ascii_only)


def search_markdown(record: SearchRecord) -> str:
    """A document for tickets and pull requests; it shows the graph beside it."""
    return document_markdown(search_document(record))


def search_page(record: SearchRecord) -> str:
    """A page that opens from a file, loads nothing and runs nothing."""
    return document_page(search_document(record, rows=ALL_ROWS))


def search_json(record: SearchRecord) -> str:
    """The record itself; of layers in float the verdict and the nodes to exclude, too."""
    if not isinstance(record, FallbackRecord):
        return record_json(record)
    derived = {"verdict": record.verdict, "nodes_to_exclude": record.nodes_to_exclude}
    return inert_json(json.dumps(json.loads(record_json(record)) | derived, indent=1))


def _search_csv(record: SearchRecord) -> dict[str, str]:
    if isinstance(record, SensitivityRecord):
        return {"sensitivity.csv": sensitivity_csv(record)}
    return {"layers.csv": debugger_csv(record)} if isinstance(record, DebuggerRecord) else {}


def _search_svg(record: SearchRecord) -> dict[str, str]:
    blocks = (block for section in search_document(record).sections for block in section.blocks)
    return {f"{block.chart.stem}.svg": svg(block.chart) for block in blocks if isinstance(block, Figure)}


#: Files by name of one format.
_WRITERS: Mapping[str, Callable[[SearchRecord, str], dict[str, str]]] = {
    "text": lambda record, stem: {f"{stem}.txt": render_search(record)},
    "markdown": lambda record, stem: {f"{stem}.md": search_markdown(record)},
    "html": lambda record, stem: {f"{stem}.html": search_page(record)},
    "json": lambda record, stem: {f"{stem}.json": search_json(record)},
    "csv": lambda record, stem: _search_csv(record),
    "svg": lambda record, stem: _search_svg(record),
}
#: What is written of each search unless formats are named.
DEFAULT_FORMATS: Mapping[type[SearchRecord], tuple[str, ...]] = {
    SensitivityRecord: ("json", "csv", "markdown", "svg"),
    FallbackRecord: ("text", "json"),
    CalibrationsRecord: ("markdown", "json", "text"),
    DebuggerRecord: ("html", "svg", "csv"),
}


def search_files(record: SearchRecord, formats: Sequence[str] | None = None) -> dict[str, bytes]:
    """Files by name, with what is to be pasted; in the formats that a search usually has where none is named.

    Raises:
        QuantmedicError: A format is unknown.
    """
    files: dict[str, str] = {}
    stem = type(record).__name__.removesuffix("Record").lower()
    for form in dict.fromkeys(formats or DEFAULT_FORMATS[type(record)]):
        if form not in _WRITERS:
            raise QuantmedicError(f"unknown format {form!r}", help=f"known formats: {', '.join(_WRITERS)}")
        files |= _WRITERS[form](record, stem)
    files |= _files_to_paste(record)
    return {name: text.encode() for name, text in files.items()}


def _files_to_paste(record: SearchRecord) -> dict[str, str]:
    """Configurations of toolchains, and the debugger's denylist."""
    if isinstance(record, DebuggerRecord):
        return {"denylist.json": denylist_json(record)}
    if isinstance(record, FallbackRecord) and record.prescription is not None and record.toolchain is not None:
        return dict(layer_files(record.prescription, record.toolchain, record.quantized_model))
    if isinstance(record, CalibrationsRecord):
        own = [record.configuration] if record.configuration is not None else []
        return {each.file: each.code for each in [*own, *(other.configuration for other in record.others)]}
    return {}


def denylist_json(record: DebuggerRecord) -> str:
    """``denylist.json``: what the debugger suspects, under the names of the options of LiteRT's debugger."""
    lists = {"denylisted_nodes": record.denylisted_nodes, "denylisted_ops": record.denylisted_ops}
    return inert_json(json.dumps(lists, indent=1))
