"""A sensitivity record for the terminal: the leading layers of each mode."""

from collections.abc import Iterator

from quantmedic.engine.diagnosis.sensitivity import SensitivityRecord
from quantmedic.reports.sections.sensitivity import SensitivityContext, sensitivity_context
from quantmedic.reports.terminal.lines import terminal_text
from quantmedic.reports.text import visible

#: Runs of each mode that are shown unless all are asked for.
SHOWN = 10


def render_sensitivity(record: SensitivityRecord, *, verbose: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: the leading layers of each mode, or all."""
    context = sensitivity_context(record, len(record.units) if verbose else SHOWN)
    return terminal_text(_sensitivity_lines(context), ascii_only=ascii_only)


def _sensitivity_lines(context: SensitivityContext) -> Iterator[str]:
    yield f"SENSITIVITY  {context.title}"
    yield from (f"  {fact}" for fact in context.facts)
    yield from (f"  warning: {warning}" for warning in context.warnings)
    for table in context.tables:
        yield ""
        yield table.title
        drop = f"{context.loss} in {context.metric} [95 %]" if context.metric else ""
        yield f"    #  {'layer':<36} {'SQNR dB':>8} {table.share_title:>12} {'same class':>12}  {drop}".rstrip()
        for row in table.rows:
            where = f"{row.place:>5}  {visible(row.layer, 36):<36}"
            yield f"{where} {row.sqnr:>8} {row.share:>12} {row.agreement:>12}  {row.drop}".rstrip()
        if table.left_out:
            yield f"       {table.left_out} more: --verbose, or sensitivity.csv"
    yield ""
    yield "what these numbers hide: quantmedic explain sensitivity"
