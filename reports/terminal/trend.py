"""Recorded checks of a model for the terminal: plots of the figures that matter most, and the runs."""

from collections.abc import Iterator, Sequence

from quantmedic.engine.contract.check import Trend
from quantmedic.engine.gate.history import Series, series_of
from quantmedic.reports.charts.trend import series_to_draw
from quantmedic.reports.sections.history import (
    FigureLine,
    figure_line,
    run_line,
    summary_of,
    verdict_look,
    verdict_text,
)
from quantmedic.reports.terminal.lines import WIDTH, Paint, terminal_text, wrap_line
from quantmedic.reports.terminal.plot import plot_lines, sparkline
from quantmedic.reports.text import NOT_MEASURED, name, visible

#: Figures that get a plot of their own in the terminal, and runs that are listed there.
PLOTTED, LISTED = 4, 10
#: Columns of the table: names, lines, and the change behind them.
NAME, SPARK, CHANGE = 26, 24, 58
COLOURS = {"bad": "31", "good": "32", "dim": "2", "bold": "1"}


def render_trend(trend: Trend, *, width: int = WIDTH, color: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: a plot of each figure that matters most, one line for each of the others, the runs.

    Args:
        trend: The runs.
        width: Columns of the terminal.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
    """
    paint: Paint = _paint_look if color else lambda text, look: text
    return terminal_text(_trend_lines(trend, max(width, 40), paint, ascii_only), ascii_only=ascii_only)


def _paint_look(text: str, look: str) -> str:
    return f"\x1b[{COLOURS[look]}m{text}\x1b[0m" if look in COLOURS and text.strip() else text


def _trend_lines(trend: Trend, width: int, paint: Paint, ascii_only: bool) -> Iterator[str]:
    if not trend.runs:
        yield f"{name(trend.model)}: no run"
        return
    last = trend.runs[-1].verdict
    yield from wrap_line(f"{paint(verdict_text(last), verdict_look(last) or 'bold')}  {name(trend.model)}", width=width)
    yield from wrap_line(summary_of(trend), width=width)
    found = series_of(trend)
    plotted = series_to_draw(found, PLOTTED)
    for series in plotted:
        yield ""
        yield from _figure_lines(figure_line(series, trend), width, paint)
        yield from plot_lines(trend, series, width=width, paint=paint, ascii_only=ascii_only)
    rest = [series for series in found if series not in plotted]
    if rest:
        yield ""
        yield from _figure_table(rest, trend, width, paint, ascii_only)
    yield ""
    yield from _run_rows(trend, width, paint)


def _figure_lines(line: FigureLine, width: int, paint: Paint) -> Iterator[str]:
    """What a plot shows, and where its figure stands."""
    title = f"{visible(line.name, width // 2)}{f'   {line.unit}' if line.unit else ''}"
    yield paint(title, "bold")
    now = f"now {line.last}{', ' if line.limit else ''}{_limit_text(line)}"
    span = f"first {line.first}, lowest {line.lowest}, highest {line.highest}"
    parts = [(now, "bad" if line.beyond else ""), (line.shift, line.look), (span, "dim")]
    yield from _joined_parts([(text, look) for text, look in parts if text], width, paint)


def _limit_text(line: FigureLine) -> str:
    return f"limit {line.limit}{': beyond it' if line.beyond else ''}" if line.limit else ""


def _joined_parts(parts: Sequence[tuple[str, str]], width: int, paint: Paint) -> Iterator[str]:
    """Parts beside each other, on the next line where they do not fit."""
    shown, taken = "", 0
    for text, look in parts:
        if shown and taken + 3 + len(text) > width - 2:
            yield f"  {shown}"
            shown, taken = "", 0
        shown, taken = f"{shown}   {paint(text, look)}" if shown else paint(text, look), taken + 3 + len(text)
    yield f"  {shown}"


def _figure_table(found: Sequence[Series], trend: Trend, width: int, paint: Paint, ascii_only: bool) -> Iterator[str]:
    rows = [figure_line(series, trend) for series in found]
    spark = min(SPARK, len(trend.runs), max(width - NAME - CHANGE, 8))
    head = ("figure", "", "first", "now", "change")
    yield f"{head[0]:<{NAME}} {'':{spark}} {head[2]:>9} {head[3]:>9}  {head[4]}"
    for series, row in zip(found, rows, strict=True):
        unit = f", {visible(series.unit, 10)}" if series.unit else ""
        label = f"{visible(row.name, NAME - len(unit))}{unit}"
        drawn = sparkline(series, len(trend.runs), spark, ascii_only=ascii_only)
        now = "-" if row.last == NOT_MEASURED else row.last.partition(" ")[0]
        change = "   ".join(text for text in (paint(row.shift, row.look), _limit_text(row)) if text)
        yield f"{label:<{NAME}} {drawn:<{spark}} {row.first:>9} {now:>9}  {change}".rstrip()


def _run_rows(trend: Trend, width: int, paint: Paint) -> Iterator[str]:
    shown = trend.runs[-LISTED:]
    if len(trend.runs) > len(shown):
        yield f"last {len(shown)} of {len(trend.runs)} runs"
    digits = len(str(shown[-1].number))
    for run in shown:
        row = run_line(run)
        label = visible(row.label, max(width - digits - 39, 8))
        verdict = paint(f"{row.verdict:<17}", row.look)
        yield f"{row.number:>{digits}}  {row.time:<16}  {verdict}  {label}".rstrip()
