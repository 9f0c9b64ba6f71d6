"""Blocks as lines of the terminal."""

from collections.abc import Iterator

from quantmedic.reports.blocks import Cell, Column, Inline, Span, Table, cell_text
from quantmedic.reports.terminal.lines import aligned_rows
from quantmedic.reports.text import visible

#: Columns that a name, and any other text, takes in a table.
NAME_WIDTH, TEXT_WIDTH = 40, 34


def render_table(table: Table) -> Iterator[str]:
    """The columns that the terminal has room for; a dash where nothing was measured."""
    shown = [place for place, column in enumerate(table.columns) if column.brief]
    columns = [table.columns[place] for place in shown]
    heads = [plain_text(column.head) for column in columns]
    cells = [[_short_cell(row[place], table.columns[place]) for place in shown] for row in table.rows]
    yield from aligned_rows([heads, *cells], [k for k, column in enumerate(columns) if not column.is_number])


def _short_cell(cell: Cell, column: Column) -> str:
    return visible(plain_cell(cell, column), NAME_WIDTH if column.look == "name" else TEXT_WIDTH)


def plain_cell(cell: Cell, column: Column) -> str:
    """What stands in a cell."""
    shown = cell_text(cell, column)
    return "-" if shown is None else plain_text(shown)


def plain_text(text: Inline) -> str:
    """Text without marks and hints."""
    if isinstance(text, str):
        return text
    if isinstance(text, Span):
        return "" if text.look == "hint" else f"; {text.text}" if text.look == "note" and text.text else text.text
    return "".join(map(plain_text, text))
