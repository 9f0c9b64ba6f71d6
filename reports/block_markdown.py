"""Blocks as Markdown, and what Markdown has to be kept from."""

import re
from collections.abc import Iterable
from urllib.parse import quote

from quantmedic.reports.blocks import (
    EMBEDDED,
    Beside,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Figure,
    Heading,
    Inline,
    Panel,
    Paragraph,
    Pictures,
    Section,
    Span,
    Table,
    Tabs,
    Tool,
    capitalized,
    cell_text,
)
from quantmedic.reports.charts.frame import Drawing
from quantmedic.reports.text import capital, visible

PLAIN_CODE = re.compile(r"[\w./:\[\](){}=+,#%@\- ]+", re.ASCII)
#: What hosts of repositories link by themselves: people, issues and addresses.
REFERENCE = re.compile(r"@(?=\w)|#(?=\d)|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)
MARKUP = re.compile(r"([\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_]))")
MARKS = {"strong": "**", "flag": "**", "struck": "~~"}


class Safe(str):
    """Markdown that is written as it is."""


#: Where the graphs of a report lie beside it.
GRAPHS = "graphs/"


def document_markdown(document: Document, *, pictures: bool = True) -> str:
    """A document of its own; with ``pictures`` it shows the graphs beside it."""
    word = f"{document.word.upper()}: " if document.word else f"{capital(document.kind)} of "
    parts = [f"# {_escaped_markdown(word + document.title)}"]
    parts += ["\n".join(f"- {_escaped_markdown(fact)}" for fact in document.facts)]
    parts += [f"> notice: {_escaped_markdown(notice)}" for notice in document.notices]
    parts += [section_markdown(section, "" if pictures else None).rstrip() for section in document.sections]
    parts.append(f"{capital(document.reading)}: `quantmedic explain {document.page}`")
    return "\n\n".join(parts) + "\n"


def section_markdown(section: Section, graphs: str | None = GRAPHS) -> Safe:
    """A part of a report; ``graphs``: folder of its graphs, None where they are not at hand."""
    head = f"## {inline_markdown(capitalized(section.title))}\n\n" if section.title else ""
    return Safe(f"{head}{blocks_markdown(section.blocks, graphs)}\n")


def blocks_markdown(blocks: Iterable[Block], graphs: str | None = GRAPHS) -> Safe:
    """Blocks one below the other."""
    return Safe("\n\n".join(text for block in blocks if (text := _block_markdown(block, graphs))))


def _block_markdown(block: Block, graphs: str | None) -> str:
    match block:
        case Paragraph():
            return inline_markdown(block.text).rstrip()
        case Bullets():
            marks = [f"{place}." if block.ordered else "-" for place in range(1, len(block.items) + 1)]
            return "\n".join(f"{m} {inline_markdown(item)}" for m, item in zip(marks, block.items, strict=True))
        case Heading():
            return f"{'#' * block.level} {inline_markdown(capitalized(block.text))}"
        case Code():
            return code_fence(block.text)
        case Table():
            return _table_markdown(block)
        case Figure():
            return figure_markdown(block.chart, graphs) if graphs is not None else ""
        case Details():
            return f"{inline_markdown(capitalized(block.summary))}:\n\n{blocks_markdown(block.blocks, graphs)}"
        case Facts():
            return "\n".join(f"- {label}: {inline_markdown(text)}" for label, text in block.rows)
        case Tabs():
            shown, others = (block.ways[:1], block.ways[1:]) if block.first_is_own else (block.ways, ())
            ways = [f"{_escaped_markdown(way)}:\n\n{blocks_markdown(inner, graphs)}" for way, inner in shown]
            named = ", ".join(_escaped_markdown(way) for way, _ in others)
            return "\n\n".join([*ways, *([f"In [index.html](index.html) also for {named}."] if named else [])])
        case Panel() | Tool():
            return blocks_markdown(block.blocks, graphs)
        case Beside():
            return blocks_markdown((inner for part in block.parts for inner in part), graphs)
        case Pictures():
            return f"![{_escaped_markdown(block.alt)}]({quote(block.file)})"
    return ""


def _table_markdown(table: Table) -> str:
    heads = [inline_markdown(column.head) for column in table.columns]
    rules = ["--:" if column.is_number else "---" for column in table.columns]
    rows = [
        " | ".join(_cell_markdown(cell, column) for cell, column in zip(row, table.columns, strict=True))
        for row in table.rows
    ]
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|", *(f"| {row} |" for row in rows)])


def _cell_markdown(cell: Cell, column: Column) -> str:
    shown = cell_text(cell, column)
    if shown is None:
        return "–"
    return code_span(shown) if column.look == "name" and isinstance(shown, str) else inline_markdown(shown).rstrip()


def figure_markdown(chart: Drawing, graphs: str = GRAPHS) -> Safe:
    """A graph beside the report with its words, or why there is none."""
    if chart.note:
        return Safe(f"{_escaped_markdown(chart.title)}: {_escaped_markdown(chart.note)}.")
    picture = f"![{_escaped_markdown(chart.summary)}]({graphs}{quote(chart.stem)}.svg)"
    return Safe(f"{picture}\n\n{_escaped_markdown(chart.words)}" if chart.words else picture)


def inline_markdown(text: Inline) -> Safe:
    """Text with its marks and links; what leads to a place of the page is plain here."""
    if isinstance(text, str):
        return text if isinstance(text, Safe) else _escaped_markdown(text)
    if not isinstance(text, Span):
        return Safe("".join(map(inline_markdown, text)))
    if not text.text or text.look == "hint":
        return Safe("")
    shown = code_span(text.text) if text.look in ("code", "name") else _escaped_markdown(text.text)
    if text.target and not text.target.startswith("#"):
        target = f"manual/{text.target.removeprefix(EMBEDDED)}" if text.target.startswith(EMBEDDED) else text.target
        return Safe(f"[{shown}]({quote(target)}{'.md' if target.startswith('manual/') else ''})")
    if text.look.startswith("chip"):
        return Safe(f"({shown})")
    if text.look == "point":
        return Safe(f"\n   - {shown}")
    mark = MARKS.get(text.look, "")
    return Safe(f"; {shown}" if text.look == "note" else f"{mark}{shown}{mark}")


def _escaped_markdown(value: str) -> Safe:
    """Text that Markdown shows literally, on one line, also inside a table cell, and that nobody is notified of."""
    text = visible(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Safe(REFERENCE.sub(r"\g<0>&#8203;", MARKUP.sub(r"\\\1", text)))


def code_span(value: str) -> Safe:
    """A name as code where that needs no escaping, else as escaped text."""
    return Safe(f"`{value}`") if PLAIN_CODE.fullmatch(value) and value.strip() else _escaped_markdown(value)


def code_fence(value: str) -> Safe:
    """Text as a fenced block whose fence does not occur in it."""
    longest = max((len(run) for run in re.findall(r"`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = [fence, *(visible(line) for line in value.splitlines()), fence]
    return Safe("\n".join(lines))
