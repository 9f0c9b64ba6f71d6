"""Variants of a quantized model, for the terminal."""

from collections.abc import Iterator, Sequence

from quantmedic.engine.case.proof import TrialRecord
from quantmedic.reports.sections.proof import metric_text, trial_gain_text
from quantmedic.reports.terminal.lines import aligned_rows, terminal_text, wrap_line
from quantmedic.reports.text import count, decibels, metric_label, metric_value, percent, visible

NAME_LIMIT = 40
#: Columns that stand to the left.
LEFT = (0,)


def render_what_if(rows: Sequence[TrialRecord], *, ascii_only: bool = False) -> str:
    """Text for the terminal."""
    return terminal_text(_lines(rows), ascii_only=ascii_only)


def _lines(rows: Sequence[TrialRecord]) -> Iterator[str]:
    first, measured = rows[0], [row for row in rows if row.failed is None]
    yield f"WHAT IF  {count(len(rows), 'variant')} on the same {count(first.samples, 'sample')}"
    yield ""
    yield from (f"  {line}" for line in aligned_rows([_head(first), *(_cells(row, first) for row in measured)], LEFT))
    yield ""
    for row in rows:
        if row.failed is not None:
            yield from wrap_line(f"{visible(row.key, NAME_LIMIT)} failed: {visible(row.failed)}", 2)
    if first.metric is not None:
        value = metric_value(first.metric.float_model, first.metric.name)
        yield f"  the float model has {metric_label(first.metric.name)} {value}"
    yield from wrap_line(
        f"gains are over {visible(first.key, NAME_LIMIT)!r}, with 95 % intervals; one that holds 0 may be chance", 2
    )


def _head(first: TrialRecord) -> list[str]:
    head = ["", "output SQNR", "gain", "seconds"]
    head += ["same class"] if first.agreement_after is not None else []
    return head + (
        [metric_label(first.metric.name), f"gain in {metric_label(first.metric.name)}"]
        if first.metric is not None
        else []
    )


def _cells(row: TrialRecord, first: TrialRecord) -> list[str]:
    is_first = row is first
    cells = [visible(row.key, NAME_LIMIT), decibels(row.sqnr_after), "" if is_first else trial_gain_text(row)]
    cells.append("" if row.seconds is None else f"{row.seconds:.1f}")
    cells += [percent(row.agreement_after)] if first.agreement_after is not None else []
    if first.metric is None or row.metric is None:
        return cells
    return [*cells, metric_value(row.metric.after, row.metric.name), "" if is_first else metric_text(row.metric)]
