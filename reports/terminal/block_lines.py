"""Blocks as lines of the terminal."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from quantmedic.reports.blocks import (
    Beside,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Heading,
    Inline,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Tabs,
    Tool,
    capitalized,
    cell_text,
)
from quantmedic.reports.terminal.lines import WIDTH, aligned_rows, wrap_line
from quantmedic.reports.text import visible

#: Columns that a name takes in a table; and what other words keep where a table is too wide.
NAME_WIDTH, LEAST_WIDTH = 40, 12
#: Lines of a change that are printed, and letters of each.
CODE_LINES, CODE_WIDTH = 24, 400


def answer_lines(document: Document) -> list[str]:
    """What a report of its own begins with: the answer, or what it is about."""
    said = document.facts[0] if document.word else document.title
    return wrap_line(f"{(document.word or document.kind).upper()}  {said}")


def document_lines(document: Document) -> Iterator[str]:
    """What stands below that."""
    facts = document.facts[1:] if document.word else document.facts
    for said in (*facts, *(f"notice: {notice}" for notice in document.notices)):
        yield from wrap_line(said, indent=2)
    for section in document.sections:
        yield from section_lines(section)
    yield from ["", f"{document.reading}: quantmedic explain {document.page}"]


def section_lines(section: Section) -> Iterator[str]:
    """A section below an empty line."""
    yield ""
    if section.title:
        is_code = any(isinstance(block, Code) for block in section.blocks)
        yield from wrap_line(f"{plain_text(capitalized(section.title))}{':' if is_code else ''}")
    yield from block_lines(section.blocks)


def block_lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Blocks one below the other; graphs, and what only a page has room for, are left out."""
    for block in blocks:
        match block:
            case Paragraph():
                yield from wrap_line(plain_text(block.text))
            case Bullets():
                for place, item in enumerate(block.items, 1):
                    yield from wrap_line(f"{f'{place}. ' if block.ordered else ''}{plain_text(item)}", indent=1)
            case Heading():
                yield from [""] if block.level == 3 else []
                yield from wrap_line(plain_text(capitalized(block.text)))
            case Facts():
                for label, text in block.rows:
                    yield from wrap_line(f"{label}: {plain_text(text)}", indent=2)
            case Code():
                yield from (f"  {visible(line)}".rstrip() for line in block.text.splitlines() if not block.file)
            case Tabs():
                yield from _first_way(block)
            case Table():
                yield from render_table(block)
            case Details():
                yield from wrap_line(plain_text(capitalized(block.summary)))
                yield from block_lines(block.blocks)
            case Panel() | Tool():
                yield from block_lines(block.blocks)
            case Beside():
                yield from block_lines(inner for part in block.parts for inner in part)


def _first_way(tabs: Tabs) -> Iterator[str]:
    """What to copy, whole or not at all: what was cut would be copied and fail."""
    way, blocks = tabs.ways[0]
    lines = [line for block in blocks if isinstance(block, Code) for line in block.text.splitlines()]
    if len(lines) > CODE_LINES or max(map(len, lines), default=0) > CODE_WIDTH:
        yield f"  with {way}: the change is long, copy it from report.md or index.html"
        return
    yield f"  with {way}:"
    yield from block_lines(blocks)


def render_table(table: Table, width: int = WIDTH) -> Iterator[str]:
    """The columns that ``width`` has room for; words go on below themselves where a table is too wide."""
    shown = [place for place, column in enumerate(table.columns) if column.brief]
    columns = [table.columns[place] for place in shown]
    heads = [plain_text(column.head) for column in columns]
    cells = [[_short_cell(row[place], table.columns[place]) for place in shown] for row in table.rows]
    rooms = _rooms([heads, *cells], columns, width)
    lines = [line for row in [heads, *cells] for line in zip_longest(*map(_wrap_cell, row, rooms), fillvalue="")]
    yield from aligned_rows(lines, [place for place, column in enumerate(columns) if not column.is_number])


def _rooms(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    """Width of each column: as wide as its cells, less in the widest ones where all do not fit, whole words if may be.

    Cells with numbers, and whole ones, are never broken, only their heads.
    """
    texts = [list(column) for column in zip(*rows, strict=True)]
    numbers = [
        max(map(len, cells[1:]), default=0) if c.is_number or c.look == "whole" else 0
        for cells, c in zip(texts, columns, strict=True)
    ]
    words = [max((len(word) for text in cells for word in text.split()), default=0) for cells in texts]
    rooms = [max(map(len, cells)) for cells in texts]
    rooms = _shrunk(rooms, [max(w, n) for w, n in zip(words, numbers, strict=True)], width)
    return _shrunk(rooms, [max(LEAST_WIDTH, n) for n in numbers], width)


def _shrunk(rooms: list[int], least: Sequence[int], width: int) -> list[int]:
    """Less and less of the widest column that is wider than it has to be, until all columns fit."""
    rooms = list(rooms)
    while sum(rooms) + 2 * len(rooms) - 2 > width:
        free = [place for place, room in enumerate(rooms) if room > least[place]]
        if not free:
            break
        rooms[max(free, key=lambda place: rooms[place])] -= 1
    return rooms


def _wrap_cell(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, max(room, 1), break_on_hyphens=False) or [""]


def _short_cell(cell: Cell, column: Column) -> str:
    text = plain_cell(cell, column)
    return visible(text, NAME_WIDTH) if column.look == "name" else visible(text)


def plain_cell(cell: Cell, column: Column) -> str:
    """What stands in a cell."""
    shown = cell_text(cell, column)
    return "-" if shown is None else plain_text(shown)


def plain_text(text: Inline) -> str:
    """Text without marks and hints."""
    if isinstance(text, str):
        return text
    if isinstance(text, Span):
        return (
            ""
            if text.look == "hint"
            else f"; {text.text}"
            if text.look in ("note", "point") and text.text
            else text.text
        )
    return "".join(map(plain_text, text))
