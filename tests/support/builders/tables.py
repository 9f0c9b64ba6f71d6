"""Tables of reports as people read them."""

from collections.abc import Sequence

from quantmedic.reports.blocks import Block, Section, Table, all_blocks
from quantmedic.reports.context import ReportContext
from quantmedic.reports.terminal.block_lines import plain_cell


def part_of(context: ReportContext, anchor: str) -> Section:
    """A section of a report."""
    return next(part for part in context.parts if part.anchor == anchor)


def tables_of(blocks: Sequence[Block]) -> list[Table]:
    """All tables within blocks."""
    return [block for block in all_blocks(blocks) if isinstance(block, Table)]


def shown(table: Table) -> list[tuple[str, ...]]:
    """The cells of a table as text; a dash where nothing was measured."""
    return [tuple(map(plain_cell, row, table.columns)) for row in table.rows]


def column(table: Table, head: str) -> list[str]:
    """The cells of one column."""
    place = [column.head for column in table.columns].index(head)
    return [row[place] for row in shown(table)]
