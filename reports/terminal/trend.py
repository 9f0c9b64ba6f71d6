"""Recorded checks of a model: plots for the terminal, Markdown, JSON and a page of its own."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quantmedic.engine.contract.check import Trend
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.gate.history import Series, series_of
from quantmedic.reports.charts.geometry import svg
from quantmedic.reports.charts.plot import Paint, plot_lines, sparkline
from quantmedic.reports.charts.trend import charted
from quantmedic.reports.machines.json import inert_json
from quantmedic.reports.sections.history import (
    CHARTS_ALONE,
    RUNS_ALONE,
    FigureLine,
    HistoryBox,
    figure_line,
    history_box,
    run_line,
    summary_of,
    verdict_look,
    verdict_text,
)
from quantmedic.reports.terminal.console import WIDTH, terminal_text
from quantmedic.reports.text import NOT_MEASURED, name, visible

FORMATS = ("html", "markdown", "json", "text")
#: Figures that get a plot of their own in the terminal, and runs that are listed there.
PLOTTED, LISTED = 4, 10
#: Columns of the table: names, lines, and what is told behind them.
NAME, SPARK, CHANGE = 26, 24, 58
COLOURS = {"bad": "31", "good": "32", "dim": "2", "bold": "1"}


def trend_files(trend: Trend, formats: Iterable[str]) -> dict[str, bytes]:
    """Files of a trend by name.

    Raises:
        QuantmedicError: A format is unknown, or there is no run.
    """
    files: dict[str, bytes] = {}
    for form in dict.fromkeys(formats):
        if form not in FORMATS:
            raise QuantmedicError(f"unknown format {form!r}", help=f"known formats: {', '.join(FORMATS)}")
        files |= {file: text.encode() for file, text in _files(trend, form)}
    return files


def render(trend: Trend, form: str, **options: Any) -> str:
    """One format as text; ``options`` are those of ``render_trend``."""
    match form:
        case "html":
            return render_html(trend)
        case "markdown":
            return render_markdown(trend)
        case "json":
            return render_json(trend)
    return render_trend(trend, **options)


def render_json(trend: Trend) -> str:
    """``trend.json``: the record itself; ASCII, safe inside markup and terminals; what is not finite becomes null."""
    return inert_json(trend.model_dump_json(indent=1, fallback=str))


def render_markdown(trend: Trend, *, pictures: bool = False) -> str:
    """``trend.md``; with ``pictures`` it shows the graphs beside it."""
    from quantmedic.reports.templating import markdown_environment

    return markdown_environment().get_template("trend.md").render(record=_box(trend), picture=pictures)


def render_html(trend: Trend) -> str:
    """``trend.html``: opens from a file, loads nothing, runs nothing."""
    from quantmedic.reports.page.html import INLINE_PALETTE
    from quantmedic.reports.templating import html_environment

    template = html_environment().get_template("trend.html")
    return template.render(record=_box(trend), palette=INLINE_PALETTE, script_hashes=[])


def render_trend(trend: Trend, *, width: int = WIDTH, color: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: a plot of each figure that matters most, one line for each of the others, the runs.

    Args:
        trend: The runs.
        width: Columns of the terminal.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
    """
    paint: Paint = _painted if color else lambda text, look: text
    return terminal_text(_lines(trend, max(width, 40), paint, ascii_only), ascii_only=ascii_only)


def _box(trend: Trend) -> HistoryBox:
    box = history_box(trend, CHARTS_ALONE, RUNS_ALONE)
    if box is None:
        raise QuantmedicError("there is no run to show", help="quantmedic check --record FILE adds one")
    return box


def _files(trend: Trend, form: str) -> Iterator[tuple[str, str]]:
    match form:
        case "html":
            yield "trend.html", render_html(trend)
        case "markdown":
            yield "trend.md", render_markdown(trend, pictures=True)
            yield from ((f"{chart.stem}.svg", svg(chart)) for chart in _box(trend).charts)
        case "json":
            yield "trend.json", render_json(trend)
        case "text":
            yield "trend.txt", render_trend(trend)


def _painted(text: str, look: str) -> str:
    return f"\x1b[{COLOURS[look]}m{text}\x1b[0m" if look in COLOURS and text.strip() else text


def _lines(trend: Trend, width: int, paint: Paint, ascii_only: bool) -> Iterator[str]:
    if not trend.runs:
        yield f"{name(trend.model)}: no run"
        return
    last = trend.runs[-1].verdict
    yield from _wrapped(f"{paint(verdict_text(last), verdict_look(last) or 'bold')}  {name(trend.model)}", width)
    yield from _wrapped(summary_of(trend), width)
    found = series_of(trend)
    plotted = charted(found, PLOTTED)
    for series in plotted:
        yield ""
        yield from _headline(figure_line(series, trend), width, paint)
        yield from plot_lines(trend, series, width=width, paint=paint, ascii_only=ascii_only)
    rest = [series for series in found if series not in plotted]
    if rest:
        yield ""
        yield from _table(rest, trend, width, paint, ascii_only)
    yield ""
    yield from _runs(trend, width, paint)


def _headline(line: FigureLine, width: int, paint: Paint) -> Iterator[str]:
    """What a plot shows, and where its figure stands."""
    title = f"{visible(line.name, width // 2)}{f'   {line.unit}' if line.unit else ''}"
    yield paint(title, "bold")
    now = f"now {line.last}{', ' if line.limit else ''}{_limit(line)}"
    span = f"first {line.first}, lowest {line.lowest}, highest {line.highest}"
    parts = [(now, "bad" if line.beyond else ""), (line.shift, line.look), (span, "dim")]
    yield from _flowing([(text, look) for text, look in parts if text], width, paint)


def _limit(line: FigureLine) -> str:
    return f"limit {line.limit}{': beyond it' if line.beyond else ''}" if line.limit else ""


def _flowing(parts: Sequence[tuple[str, str]], width: int, paint: Paint) -> Iterator[str]:
    """Parts beside each other, on the next line where they do not fit."""
    shown, taken = "", 0
    for text, look in parts:
        if shown and taken + 3 + len(text) > width - 2:
            yield f"  {shown}"
            shown, taken = "", 0
        shown, taken = f"{shown}   {paint(text, look)}" if shown else paint(text, look), taken + 3 + len(text)
    yield f"  {shown}"


def _table(found: Sequence[Series], trend: Trend, width: int, paint: Paint, ascii_only: bool) -> Iterator[str]:
    rows = [figure_line(series, trend) for series in found]
    spark = min(SPARK, len(trend.runs), max(width - NAME - CHANGE, 8))
    head = ("figure", "", "first", "now", "change")
    yield f"{head[0]:<{NAME}} {'':{spark}} {head[2]:>9} {head[3]:>9}  {head[4]}"
    for series, row in zip(found, rows, strict=True):
        unit = f", {visible(series.unit, 10)}" if series.unit else ""
        label = f"{visible(row.name, NAME - len(unit))}{unit}"
        drawn = sparkline(series, len(trend.runs), spark, ascii_only=ascii_only)
        now = "-" if row.last == NOT_MEASURED else row.last.partition(" ")[0]
        change = "   ".join(text for text in (paint(row.shift, row.look), _limit(row)) if text)
        yield f"{label:<{NAME}} {drawn:<{spark}} {row.first:>9} {now:>9}  {change}".rstrip()


def _runs(trend: Trend, width: int, paint: Paint) -> Iterator[str]:
    shown = trend.runs[-LISTED:]
    if len(trend.runs) > len(shown):
        yield f"last {len(shown)} of {len(trend.runs)} runs"
    digits = len(str(shown[-1].number))
    for run in shown:
        row = run_line(run)
        label = visible(row.label, max(width - digits - 39, 8))
        verdict = paint(f"{row.verdict:<17}", row.look)
        yield f"{row.number:>{digits}}  {row.time:<16}  {verdict}  {label}".rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
