"""The loss budget in the terminal: in three lines, or all of it."""

from collections.abc import Iterator, Sequence

from quantmedic.engine.diagnosis.budget_lines import NAMED
from quantmedic.reports.sections.loss_budget import BudgetBox, BudgetRow
from quantmedic.reports.terminal.lines import Paint, wrap_line
from quantmedic.reports.text import name

TITLE, SHORT_LINES = "where the noise comes from", 3


def budget_lines(box: BudgetBox, paint: Paint) -> Iterator[str]:
    """Where the noise comes from, all of it."""
    yield ""
    yield paint(f"{TITLE} ({box.basis})", "bold")
    yield from wrap_line(" ".join(text for text in (box.lead, box.task) if text), indent=2, hang=0)
    for output in box.outputs if len(box.outputs) > 1 else ():
        yield from wrap_line(f"{output.name}: {output.sqnr}, {output.unsimulated} made by no quantizer", indent=4)
    for row in box.rows:
        yield from _budget_row(row, box)
    for text in (*box.families, *box.notes):
        yield from wrap_line(text, indent=2)
    yield ""


def short_budget_lines(box: BudgetBox) -> Sequence[str]:
    """Where most of the noise comes from, in three lines at most."""
    return wrap_line(f"{TITLE}: {box.summary}", most=SHORT_LINES)


def _budget_row(row: BudgetRow, box: BudgetBox) -> Iterator[str]:
    shares = f" (by output: {', '.join(row.shares)})" if row.shares else ""
    yield from wrap_line(f"{row.share:>6}  {row.words}{shares}", indent=2, hang=8)
    facts = [row.healed, row.nameless]
    facts += [f"alone {row.alone}, last {row.last}"] if row.alone else []
    facts += [f"{box.metric}: {row.lost}{f', {row.views}' if row.views else ''}"] if row.lost else []
    facts += [f"named by {', '.join(f'{one.code} {one.cause}'.strip() for one in row.causes)}"] if row.causes else []
    yield from wrap_line("; ".join(fact for fact in facts if fact), indent=10, hang=0)
    if row.anchor and len(row.layers) > NAMED:
        more = f" and {row.more} more in report.json" if row.more else ""
        yield from wrap_line(f"all of them: {', '.join(map(name, row.layers))}{more}", indent=10, hang=0)
