"""The terminal report: the same story in a hundred columns of plain text, on one screen or whole."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.sections.tables import layer_table
from quantmedic.reports.terminal.block_lines import NAME_WIDTH, block_lines, render_table, section_lines
from quantmedic.reports.terminal.lines import Paint, Verbosity, paint_style, plain, terminal_text, wrap_line
from quantmedic.reports.terminal.summary import NAME_LIMIT, brings, rules_text, summary_lines, verdict_lines
from quantmedic.reports.text import visible

#: Parts of a report behind the causes that stand on the console, too.
PARTS = ("proof", "prescription", "advice", "compared", "files", "not-judged")


def render_console(
    diagnosis: Diagnosis,
    *,
    verbosity: Verbosity = "normal",
    color: bool = False,
    ascii_only: bool = False,
    written: Path | None = None,
) -> str:
    """Text for the terminal, the same bytes for the same diagnosis.

    Args:
        diagnosis: What to show.
        verbosity: ``quiet`` prints verdict and drop alone, ``normal`` what fits on one screen, ``verbose`` every
            layer and every subject.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
        written: Page of the report, or its folder where no page is among its formats; None: nothing is written.
    """
    context, paint = build_context(diagnosis, {}), paint_style if color else plain
    if verbosity == "quiet":
        lines: Iterable[str] = verdict_lines(context, paint)
    elif verbosity == "normal":
        lines = summary_lines(context, diagnosis, paint, written)
    else:
        lines = _report_lines(diagnosis, context, paint)
    return terminal_text(lines, ascii_only=ascii_only)


def warning_lines(diagnosis: Diagnosis) -> list[str]:
    """One line per cause of medium or high severity: what is wrong, and its manual page."""
    return [
        f"WARNING {visible(cause.rules[0] if cause.rules else '?')} {visible(cause.shown)}: "
        f"{visible(cause.message.strip(), 300)}; quantmedic explain {visible(cause.rules[0] if cause.rules else '?')}"
        for cause in diagnosis.causes
        if cause.is_serious
    ]


def _report_lines(diagnosis: Diagnosis, context: ReportContext, paint: Paint) -> Iterator[str]:
    yield from verdict_lines(context, paint)
    yield from wrap_line(context.drop_text)
    if context.first is not None and (context.causes or context.tried):
        yield from wrap_line(f"{context.first.label}: {context.first.named}{brings(context.first.gain)}")
    for notice in context.warnings:
        yield from wrap_line(f"warning: {notice}", indent=2)
    budget = context.budget.section if context.budget is not None else None
    for section in filter(None, [budget, *context.opening, context.urgent]):
        yield from section_lines(section)
    for card in context.causes:
        yield ""
        yield paint(f"{card.rank}  {card.code} {visible(card.name, NAME_LIMIT)}", "bold")
        severity, *others = (chip.text for chip in card.chips)
        first, *rest = wrap_line("; ".join([severity, *others]), indent=3, hang=0)
        yield first.replace(severity, paint(severity, severity), 1)
        yield from rest
        yield from block_lines(card.blocks)
    parts = {part.anchor: part for part in context.parts}
    for anchor in PARTS:
        if anchor in parts:
            yield from section_lines(parts[anchor])
    yield ""
    yield paint(rules_text(diagnosis), "bold")
    if diagnosis.layers:
        yield ""
        yield from render_table(layer_table(diagnosis))
        if any(len(visible(row.float_name or row.name)) > NAME_WIDTH for row in diagnosis.layers):
            yield "  whole names, and all facts of a layer: quantmedic show CASE --layer #"
