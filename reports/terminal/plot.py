"""A figure over the runs, drawn with characters: braille dots where the terminal has them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quantmedic.engine.contract.check import Trend
from quantmedic.engine.gate.history import Series
from quantmedic.reports.charts.trend import MARKED, extent, figure_value, links, stretches
from quantmedic.reports.terminal.lines import Paint

#: Dots of one braille character, by column and row.
BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-=*#"
#: Columns for the numbers at the vertical axis, and at most for each run.
AXIS, WIDEST = 9, 8
ROWS, PLAIN_ROWS = 5, 8
#: The gravest verdict first: it shows where several runs share a column.
GRAVITY = ("×", "!", "?", "·")


@dataclass
class _Canvas:
    """Dots in cells, with characters where there are none."""

    columns: int
    rows: int
    across: int
    down: int
    dots: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=dict)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    flagged: set[tuple[int, int]] = field(default_factory=set)

    def dot(self, x: int, y: int) -> tuple[int, int]:
        """Set a dot; returns its cell."""
        cell = (x // self.across, y // self.down)
        self.dots.setdefault(cell, set()).add((x % self.across, y % self.down))
        return cell

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Dots from one to the other."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            share = step / steps
            self.dot(*(round(a + share * (b - a)) for a, b in zip(start, end, strict=True)))


def plot_lines(trend: Trend, series: Series, *, width: int, paint: Paint, ascii_only: bool) -> list[str]:
    """The plot of one figure: rows with their axis, then the verdict of each run."""
    canvas = _canvas(len(trend.runs), width, ascii_only)
    low, high = extent(series)

    def x(place: float) -> int:
        return min(
            int((place + 0.5) / len(trend.runs) * canvas.columns * canvas.across), canvas.columns * canvas.across
        )

    def y(value: float) -> int:
        share = (min(max(value, low), high) - low) / (high - low)
        return round((1 - share) * (canvas.rows * canvas.down - 1))

    spots = [(x(place), y(f.value)) for (place, _), f in zip(series.runs, series.figures, strict=True)]
    for first, second in links(series):
        canvas.line(spots[first], spots[second])
    _draw_limits(canvas, series, x, y, ascii_only)
    _draw_intervals(canvas, series, x, y, len(trend.runs), ascii_only)
    for spot, figure in zip(spots, series.figures, strict=True):
        if not math.isfinite(figure.value):
            canvas.texts[spot[0] // canvas.across, spot[1] // canvas.down] = "i" if ascii_only else "∞"
            continue
        cell = canvas.dot(*spot)
        if figure.is_beyond_limit:
            canvas.flagged.add(cell)
        if ascii_only or canvas.columns >= 2 * len(trend.runs):
            canvas.texts[cell] = "*" if ascii_only else "•"
            del canvas.dots[cell]
    return [*_plot_rows(canvas, series, y, paint, ascii_only), _verdict_row(trend, canvas, x, paint, ascii_only)]


def sparkline(series: Series, runs: int, width: int, *, ascii_only: bool) -> str:
    """The figure in one line, blank for runs that lack it; where several share a column, the worst of them."""
    levels = PLAIN_BLOCKS if ascii_only else BLOCKS
    low, high = extent(series)
    values = {place: figure.value for (place, _), figure in zip(series.runs, series.figures, strict=True)}
    worst = max if series.better == "lower" else min
    size = math.ceil(runs / width)
    columns = ([values[at] for at in range(start, start + size) if at in values] for start in range(0, runs, size))
    heights = (min(max(worst(column), low), high) if column else None for column in columns)
    return "".join(
        " " if at is None else levels[_block_level((at - low) / (high - low), len(levels))] for at in heights
    )


def mark(verdict: str, *, ascii_only: bool = False) -> str:
    """The mark of a verdict."""
    found = MARKED.get(verdict, "·")
    return {"×": "x", "·": "."}.get(found, found) if ascii_only else found


def _block_level(share: float, levels: int) -> int:
    return min(int(share * levels), levels - 1)


def _canvas(runs: int, width: int, ascii_only: bool) -> _Canvas:
    room = width - AXIS - 2
    columns = runs * min(room // runs, WIDEST) if runs <= room else room  # the same room for each run where it can be
    return _Canvas(columns, PLAIN_ROWS, 1, 1) if ascii_only else _Canvas(columns, ROWS, 2, 4)


def _draw_limits(
    canvas: _Canvas, series: Series, x: Callable[[float], int], y: Callable[[float], int], ascii_only: bool
) -> None:
    for first, last, limit in stretches(series):
        row = y(limit) // canvas.down
        for column in range(x(first - 0.5) // canvas.across, x(last + 0.5) // canvas.across):
            canvas.texts[column, row] = "-" if ascii_only else "╌"


def _draw_intervals(
    canvas: _Canvas, series: Series, x: Callable[[float], int], y: Callable[[float], int], runs: int, ascii_only: bool
) -> None:
    """Only where runs are apart: else they would fill the plot."""
    if canvas.columns < 2 * runs:
        return
    for (place, _), figure in zip(series.runs, series.figures, strict=True):
        if figure.low is None or figure.high is None:
            continue
        for row in range(y(figure.high) // canvas.down, y(figure.low) // canvas.down + 1):
            canvas.texts[x(place) // canvas.across, row] = "|" if ascii_only else "│"


def _plot_rows(canvas: _Canvas, series: Series, y: Callable[[float], int], paint: Paint, ascii_only: bool) -> list[str]:
    values = [figure.value for figure in series.figures if math.isfinite(figure.value)]
    limit = series.figures[-1].limit
    marked = [*([min(values), max(values)] if values else []), *([limit] if limit is not None else [])]
    labels = {y(value) // canvas.down: value for value in marked if math.isfinite(value)}
    edge = "|" if ascii_only else "┤"
    rows = []
    for row in range(canvas.rows):
        label = figure_value(labels[row], series.unit) if row in labels else ""
        cells = (_plot_cell(canvas, (column, row), paint) for column in range(canvas.columns))
        rows.append(f"{label:>{AXIS}} {edge if label else '|' if ascii_only else '│'}{''.join(cells)}".rstrip())
    return rows


def _plot_cell(canvas: _Canvas, cell: tuple[int, int], paint: Paint) -> str:
    dots = canvas.dots.get(cell)
    if dots and canvas.texts.get(cell) not in ("*", "•", "i", "∞"):
        text = "." if canvas.down == 1 else chr(0x2800 + sum(BRAILLE[x][y] for x, y in dots))
        return paint(text, "bad") if cell in canvas.flagged else text
    text = canvas.texts.get(cell, " ")
    return paint(text, "bad") if cell in canvas.flagged else paint(text, "dim") if text in "╌-│|" else text


def _verdict_row(trend: Trend, canvas: _Canvas, x: Callable[[float], int], paint: Paint, ascii_only: bool) -> str:
    found: dict[int, str] = {}
    for place, run in enumerate(trend.runs):
        column, shown = x(place) // canvas.across, mark(run.verdict)
        found[column] = min(found.get(column, shown), shown, key=GRAVITY.index)
    plain = {"×": "x", "·": "."}
    texts: Sequence[str] = [
        paint(plain.get(text, text) if ascii_only else text, "bad" if text == "×" else "dim") if text else " "
        for text in (found.get(column, "") for column in range(canvas.columns))
    ]
    return f"{'':{AXIS}}  {''.join(texts)}".rstrip()
