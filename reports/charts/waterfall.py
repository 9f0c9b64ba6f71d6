"""The waterfall of the noise, or of a loss: from the quantized model down to nothing; in ``templates/waterfall.svg``.

One bar per piece. Each begins where the one above it ends, so that all of them together are the whole.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from quantmedic.reports.charts.frame import Drawing, Tick, ticks
from quantmedic.reports.text import decibels, visible

STEM, TITLE = "loss-budget", "Where the noise comes from"
TASK_STEM = "task-loss"
ROW, BAR = 40.0, 18.0
#: Size of the title, which is bold.
TITLE_SIZE = 14.5
#: Room at both edges.
EDGE = 14.0
WHAT_SIZE, WHAT_LINE, HOW_SIZE, HOW_LINE = 11.5, 14.0, 9.5, 12.0
#: Shares of the font size, as DejaVu Sans has them, which is wider than most fonts.
_WIDTHS = {
    0.32: "ijlI.,:;'|! fr()[]/\\t",
    0.42: '-"{}*sz',
    0.64: "abcdeghknopquvxy0123456789_+=<>?$FJLEPSTYZcs",
    0.8: "ABCDGHKNOQRUVXw&#~^",
    1.0: "mMW%@…→",
}
_WIDTH = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
#: Parts of a text that stay together: words, and pieces of names with what separates them.
_PART = re.compile(r"\s+|[^\s/._:]*[/._:]+|[^\s/._:]+")


@dataclass(frozen=True)
class Layout:
    """Where things stand: labels beside their bars, or above them."""

    width: Annotated[float, "of the drawing"]
    left: Annotated[float, "left end of the plot"]
    right: Annotated[float, "right end of the plot; figures stand at its right"]
    heads: Annotated[float, "base line of the heads of plot and figures"]
    top: Annotated[float, "top of the first row"]
    label: Annotated[float, "left end of the labels"]
    room: Annotated[float, "width of the labels"]
    lines: Annotated[int, "lines that each of both parts of a label may take"]
    ticks: Annotated[int, "about so many marks of the axis"]
    above: Annotated[bool, "labels stand above their bars"]


BROAD = Layout(
    width=920.0, left=452.0, right=790.0, heads=33.0, top=60.0, label=14.0, room=424.0, lines=2, ticks=5, above=False
)
#: As wide as the card of a page on a telephone.
SLIM = Layout(
    width=340.0, left=14.0, right=200.0, heads=54.0, top=76.0, label=20.0, room=306.0, lines=3, ticks=3, above=True
)


@dataclass(frozen=True)
class Piece:
    """A piece of the noise."""

    look: Annotated[str, "line, rest, unsimulated or interaction"]
    what: Annotated[str, "what makes it"]
    how: Annotated[str, "how, and what takes it away; may be empty"]
    share: Annotated[float, "share of the noise; negative where it makes up for others"]
    text: Annotated[str, "the share as text"]
    href: Annotated[str, "where a click leads in a page with layers; empty where nowhere"]


@dataclass(frozen=True)
class TextLine:
    """A line of a label."""

    y: Annotated[float, "base line"]
    text: Annotated[str, "the text"]


@dataclass(frozen=True)
class WaterfallBar:
    """One piece, placed."""

    look: Annotated[str, "whole, line, makes-up, rest, unsimulated or interaction: its colour"]
    row: Annotated[float, "top of its row"]
    x: Annotated[float, "left end"]
    y: Annotated[float, "top"]
    width: Annotated[float, "width"]
    end: Annotated[float, "where the next bar begins"]
    height: Annotated[float, "of its row"]
    what: Annotated[tuple[TextLine, ...], "what makes the noise"]
    how: Annotated[tuple[TextLine, ...], "how, and what takes it away; may be empty"]
    text: Annotated[str, "the share"]
    tip: Annotated[str, "all of it, shown under the pointer"]
    href: Annotated[str, "where a click leads in a page with layers; empty where nowhere"]


@dataclass(frozen=True, kw_only=True)
class WaterfallChart(Drawing):
    """The noise of one output, or what the task loses, piece by piece."""

    template = "waterfall.svg"

    heads: Annotated[float, "base line of the heads of plot and figures"]
    label: Annotated[float, "left end of the labels"]
    leads: Annotated[bool, "a line leads from the end of each bar to the next one"]
    axis: Annotated[str, "what the horizontal axis shows"]
    column: Annotated[str, "head of the figures at the right"]

    top: Annotated[float, "top of the plot"]
    bar: Annotated[float, "height of a bar"]
    basis: Annotated[str, "samples and runs"]
    zero: Annotated[float, "position of nothing"]
    ticks: Annotated[tuple[Tick, ...], "marks of the horizontal axis, in percent"]
    bars: Annotated[tuple[WaterfallBar, ...], "the whole, then every piece"]
    description: Annotated[str, "every bar in words"]


def waterfall_chart(pieces: Sequence[Piece], *, output: str, sqnr: float, basis: str) -> WaterfallChart:
    """Place the bars.

    Args:
        pieces: In the order in which they are taken away; their shares sum up to 1.
        output: Name of the output.
        sqnr: Its SQNR in dB.
        basis: Samples and runs.
    """
    whole = Piece("rest", f"{output} of the quantized model", "", 1.0, f"100 %, SQNR {decibels(sqnr)}", "")
    heads = _Heads(STEM, f"{TITLE} · {visible(output)}", "share of the noise", "share")
    words = "Each bar begins where the one above it ends."
    return _both(pieces, whole, heads, basis, f"all of the noise: {decibels(sqnr)}", words)


def loss_waterfall(pieces: Sequence[Piece], *, measure: str, lost: str, basis: str) -> WaterfallChart:
    """Place the bars of what the task loses.

    Args:
        pieces: In the order in which they are taken away; their shares sum up to 1.
        measure: What is lost, such as the name of the metric.
        lost: How much of it the quantized model loses.
        basis: Samples and runs.
    """
    whole = Piece("rest", f"{measure} that the quantized model loses", "", 1.0, lost, "")
    heads = _Heads(TASK_STEM, f"Where {measure} is lost", "share of the loss", "lost")
    words = (
        f"What each of these pieces takes of the {measure} that is lost. Noise and loss need not go together: a loud "
        "piece may change no answer."
    )
    return _both(pieces, whole, heads, basis, f"all of the loss: {lost}", words)


@dataclass(frozen=True)
class _Heads:
    stem: str
    title: str
    axis: str
    column: str


def _both(pieces: Sequence[Piece], whole: Piece, heads: _Heads, basis: str, tip: str, words: str) -> WaterfallChart:
    """Labels beside the bars, and the same above them for narrow screens."""
    broad, slim = (_waterfall(pieces, whole, heads, basis, tip, layout) for layout in (BROAD, SLIM))
    return replace(broad, slim=slim, words=words)


def _waterfall(
    pieces: Sequence[Piece], whole: Piece, heads: _Heads, basis: str, tip: str, layout: Layout
) -> WaterfallChart:
    starts = _starts(pieces)
    low, high = min(0.0, *starts), max(1.0, *starts)

    def x(value: float) -> float:
        return round(layout.left + (layout.right - layout.left) * (value - low) / (high - low), 1)

    bars = [_bar(whole, "whole", layout.top, (x(1), x(0)), tip, layout)]
    for piece, start in zip(pieces, starts, strict=False):
        look = "makes-up" if piece.look == "line" and piece.share < 0 else piece.look
        ends = x(start), x(start - piece.share)
        tip = f"{piece.text} {piece.what}{f': {piece.how}' if piece.how else ''}"
        bars.append(_bar(piece, look, bars[-1].row + bars[-1].height, ends, tip, layout))
    bars[0] = replace(bars[0], end=x(1))
    bottom = bars[-1].row + bars[-1].height
    (title,) = text_lines(heads.title, TITLE_SIZE, layout.width - 2 * EDGE, 1)
    return WaterfallChart(
        stem=heads.stem,
        heads=layout.heads,
        label=layout.label,
        leads=not layout.above,
        axis=heads.axis,
        column=heads.column,
        title=title,
        width=layout.width,
        height=bottom + 26,
        left=layout.left,
        right=layout.right,
        top=layout.top - 8,
        bottom=bottom,
        bar=BAR,
        basis=basis,
        zero=x(0),
        ticks=tuple(Tick(x(value), f"{round(100 * value)} %") for value, _ in ticks(low, high, layout.ticks)),
        bars=tuple(bars),
        summary=f"{title}: {_sentence(pieces[:3])}",
        description=_sentence(pieces),
    )


def _starts(pieces: Iterable[Piece]) -> list[float]:
    """Noise that is left before each piece, and after the last."""
    left = [1.0]
    for piece in pieces:
        left.append(left[-1] - piece.share)
    return left


def _bar(piece: Piece, look: str, row: float, ends: tuple[float, float], tip: str, layout: Layout) -> WaterfallBar:
    what = text_lines(piece.what, WHAT_SIZE, layout.room, layout.lines)
    how = text_lines(piece.how, HOW_SIZE, layout.room, layout.lines)
    first = row + (8.0 if layout.above or how or len(what) > 1 else 13.0)
    below = first + WHAT_LINE * len(what)
    end = below + HOW_LINE * len(how)
    y = end - 6.0 if layout.above else row
    return WaterfallBar(
        look=look,
        row=row,
        x=min(ends),
        y=y,
        width=round(max(abs(ends[1] - ends[0]), 1.0), 1),
        end=ends[1],
        height=y + BAR + 16.0 - row if layout.above else max(ROW, end - row + 6.0),
        what=tuple(TextLine(first + WHAT_LINE * place, text) for place, text in enumerate(what)),
        how=tuple(TextLine(below + HOW_LINE * place, text) for place, text in enumerate(how)),
        text=piece.text,
        tip=tip,
        href=piece.href,
    )


def _sentence(pieces: Iterable[Piece]) -> str:
    return "; ".join(f"{piece.text} {piece.what}" for piece in pieces)


def text_width(text: str, size: float) -> float:
    """Width at a font size, rather too much than too little."""
    return size * sum(_WIDTH.get(letter) or _other_width(letter) for letter in text)


def text_lines(text: str, size: float, room: float, most: int) -> list[str]:
    """Lines that fit; what does not fit into so many ends in dots. None for no text."""
    lines: list[str] = []
    for part in _parts(text, size, room):
        if lines and text_width((lines[-1] + part).rstrip(), size) <= room:
            lines[-1] += part
        elif part.strip():
            lines.append(part)
    lines = [line.rstrip() for line in lines]
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    while last and text_width(f"{last}…", size) > room:
        last = last[:-1]
    return [*lines[: most - 1], f"{last}…"]


def _parts(text: str, size: float, room: float) -> list[str]:
    """Parts that stay together; one that is wider than the room falls into its letters."""
    found: list[str] = []
    for part in _PART.findall(text):
        found += [part] if text_width(part, size) <= room else list(part)
    return found


def _other_width(letter: str) -> float:
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" or not letter.isascii() else 0.64
