"""Two diagnoses side by side for the terminal, the answer first."""

import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.sections.changes import CauseLine, LayerGroup
from quantmedic.reports.sections.comparison import CompareContext, Row, compare_context
from quantmedic.reports.terminal.lines import WIDTH, Verbosity, terminal_text, wrap_line
from quantmedic.reports.text import visible

#: Layers each way and subjects of a cause that are shown unless all are asked for.
SHOWN, SUBJECTS_SHOWN = 5, 3
LABEL, COLUMN = 18, 24
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
    most = None if verbosity == "verbose" else SHOWN
    context = compare_context(record, most, None if verbosity == "verbose" else SUBJECTS_SHOWN)
    return terminal_text(_comparison_lines(context, record.word, verbosity, color), ascii_only=ascii_only)


def _comparison_lines(context: CompareContext, word: str, verbosity: Verbosity, color: bool) -> Iterator[str]:
    first, *rest = wrap_line(f"{context.word.upper()}  {context.answer}")
    head = context.word.upper()
    yield first.replace(head, f"\x1b[{COLOURS.get(word, '1;33')}m{head}\x1b[0m", 1) if color else first
    yield from rest
    if verbosity == "quiet":
        return
    for notice in context.notices:
        yield from wrap_line(f"notice: {notice}", indent=2)
    yield ""
    yield from _side_table(context)
    for group in context.groups:
        if group.quiet and verbosity != "verbose":
            continue
        yield ""
        yield f"{group.title} ({len(group.causes)})"
        for cause in group.causes:
            yield from _cause_lines(cause)
    yield ""
    yield from wrap_line(f"{context.matched}{f'; {context.measured} in dB' if context.layers else ''}")
    for layers in context.layers:
        yield from _layer_lines(layers)
    yield ""
    yield from _change_lines(context)


def _side_table(context: CompareContext) -> Iterator[str]:
    yield _side_columns("", context.before_name, context.after_name, "change")
    for row in context.rows:
        yield from _side_lines(row)


def _side_columns(label: str, before: str, after: str, change: str) -> str:
    cells = (visible(before, COLUMN - 2), visible(after, COLUMN - 2))
    return f"{visible(label, LABEL - 1):<{LABEL}}{cells[0]:<{COLUMN}}{cells[1]:<{COLUMN}}{change}".rstrip()


def _side_lines(row: Row) -> Iterator[str]:
    """A row whose columns go on below themselves."""
    cells = ((row.label, LABEL - 1), (row.before, COLUMN - 2), (row.after, COLUMN - 2))
    columns = [_wrap_cell(visible(text), room) for text, room in cells]
    columns.append(_wrap_cell(row.change, WIDTH - LABEL - 2 * COLUMN))
    for parts in zip_longest(*columns, fillvalue=""):
        yield _side_columns(*parts)


def _wrap_cell(text: str, room: int) -> list[str]:
    """Lines of whole words; longer ones are shortened where they are written."""
    return textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)


def _cause_lines(cause: CauseLine) -> Iterator[str]:
    yield from wrap_line(f"{cause.code} {cause.cause}   {cause.severity}   {cause.found}", indent=2)
    if cause.fact:
        yield from wrap_line(f"{cause.fact}  {cause.before} → {cause.after}   threshold {cause.limit}", indent=5)
    if cause.note:
        yield from wrap_line(cause.note, indent=5)
    if len(cause.subjects) < 2:
        return
    for subject in cause.subjects:
        values = f"{subject.before} → {subject.after}" if cause.fact else ""
        yield f"       {visible(subject.subject, 46):<46} {subject.status:<12} {values}".rstrip()
    if cause.more:
        yield f"       {cause.more} more (--verbose)"


def _layer_lines(group: LayerGroup) -> Iterator[str]:
    yield f"  {group.title}"
    for row in group.rows:
        where = f"{row.index:>6}  {visible(row.layer, 40):<40} {visible(row.op_type, 12):<12}"
        text = f"{where} {row.before:>6} → {row.after:>6} {row.gain:>6}  {row.note}".rstrip()
        yield from [text] if len(text) <= WIDTH else [text.removesuffix(row.note).rstrip(), f"{'':8}{row.note}"]
    if group.left_out:
        yield f"        {group.left_out} more (--verbose)"


def _change_lines(context: CompareContext) -> Iterator[str]:
    if not context.changes:
        yield "no setting that is measured was changed"
    else:
        yield f"changed ({len(context.changes)})"
    for line in context.changes:
        example = f" ({line.example})" if line.example else ""
        yield from wrap_line(f"{line.setting}, {line.where}{example}: {line.before} → {line.after}", indent=2)
    for text in context.tried:
        yield from wrap_line(f"as asked for: {text}", indent=2)
