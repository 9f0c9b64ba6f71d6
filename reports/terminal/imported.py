"""What an import read, for the terminal."""

from collections.abc import Iterator

from quantmedic.engine.case.records import CaseRecord
from quantmedic.reports.sections.imports import lacking
from quantmedic.reports.terminal.lines import wrap_line
from quantmedic.reports.text import visible


def import_lines(record: CaseRecord) -> Iterator[str]:
    """File by file, then what to mind and what is missing."""
    for row in record.imports:
        yield from wrap_line(f"{visible(row.file, 120)}: {visible(row.format)} ({visible(row.toolchain)})")
        for text in row.tells or ("nothing that is known",):
            yield from wrap_line(visible(text, 400), indent=2)
        if row.unknown:
            yield from wrap_line(f"unknown keys: {', '.join(visible(text, 200) for text in row.unknown)}", indent=2)
    for notice in record.notices:
        yield from wrap_line(f"warning: {visible(notice, 600)}")
    for text in lacking(record.imports):
        yield from wrap_line(f"missing: {text}")
