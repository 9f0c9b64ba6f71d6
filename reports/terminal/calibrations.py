"""A search for the best calibration, for the terminal."""

from collections.abc import Iterator

from quantmedic.engine.contract.calibrations import CalibrationsRecord
from quantmedic.reports.sections.calibrations import Block, CalibrationsContext, SettingLine, calibrations_context
from quantmedic.reports.terminal.lines import aligned_rows, terminal_text, wrap_line
from quantmedic.reports.text import visible


def render_calibrations(record: CalibrationsRecord, *, ascii_only: bool = False) -> str:
    """Text for the terminal."""
    return terminal_text(_lines(calibrations_context(record)), ascii_only=ascii_only)


def _lines(context: CalibrationsContext) -> Iterator[str]:
    yield f"CALIBRATIONS  {context.title}"
    for fact in context.facts:
        yield from wrap_line(fact, indent=2)
    yield ""
    yield from _table(context)
    for failure in context.failures:
        yield from wrap_line(failure, indent=1)
    yield ""
    for said in context.conclusion:
        yield from wrap_line(said)
    for block in context.blocks:
        yield ""
        yield from _block_lines(block)
    yield ""
    yield from wrap_line(f"cost: {context.cost}")
    for reason in context.unjudged:
        yield from wrap_line(f"not judged: {reason}")
    yield ""
    yield "how the race goes, and how to read this: quantmedic explain calibration-search"


def _table(context: CalibrationsContext) -> Iterator[str]:
    unit, change = context.units
    labelled = (f"{context.labelled}{unit}",) if context.labelled else ()
    sqnr = "dB" if context.labelled else "SQNR dB"
    head = ("#", "", *context.kinds, *labelled, sqnr, f"behind, {change}", "n")
    rows = [head, *(_cells(row, context) for row in context.rows)]
    yield from aligned_rows(rows, range(1, len(head) - 1))
    for mark, meaning in context.legend:
        yield from wrap_line(f"{mark} {meaning}", indent=1)
    for said in context.reading:
        yield from wrap_line(said, indent=1)


def _cells(row: SettingLine, context: CalibrationsContext) -> tuple[str, ...]:
    labelled = (row.metric,) if context.labelled else ()
    return (row.rank, row.mark, *row.choices, *labelled, row.sqnr, row.behind, row.samples)


def _block_lines(block: Block) -> Iterator[str]:
    yield from wrap_line(f"{block.title}:")
    yield from (f"  {visible(line)}".rstrip() for line in block.code.splitlines())
    for note in block.notes:
        yield from wrap_line(f"note: {visible(note, 300)}", indent=2)
