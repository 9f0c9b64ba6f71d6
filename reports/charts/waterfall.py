"""The waterfall of the noise: from that of the quantized model down to nothing; drawn in ``templates/waterfall.svg``.

One bar per piece. Each begins where the one above it ends, so that all of them together are the whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from quantmedic.reports.charts.frame import Drawing, Tick, ticks
from quantmedic.reports.text import decibels, visible

STEM, TITLE = "loss-budget", "Where the noise comes from"
WATERFALL_WIDTH, PLOT_LEFT, PLOT_RIGHT = 920.0, 452.0, 790.0
TOP, ROW, BAR = 60.0, 40.0, 18.0
#: Characters that fit beside the bars.
WHAT_LIMIT, HOW_LIMIT = 66, 84


@dataclass(frozen=True)
class Piece:
    """A piece of the noise."""

    look: Annotated[str, "line, rest or unsimulated"]
    what: Annotated[str, "what makes it"]
    how: Annotated[str, "how, and what takes it away; may be empty"]
    share: Annotated[float, "share of the noise; negative where it makes up for others"]
    text: Annotated[str, "the share as text"]
    layer: Annotated[str, "its layer; empty where there is none"]
    is_input: Annotated[bool, "it is a network input"]


@dataclass(frozen=True)
class WaterfallBar:
    """One piece, placed."""

    look: Annotated[str, "whole, line, makes-up, rest or unsimulated: its colour"]
    x: Annotated[float, "left end"]
    y: Annotated[float, "top"]
    width: Annotated[float, "width"]
    end: Annotated[float, "where the next bar begins"]
    what: Annotated[str, "what makes the noise"]
    how: Annotated[str, "how, and what takes it away; may be empty"]
    text: Annotated[str, "the share"]
    tip: Annotated[str, "all of it, shown under the pointer"]
    href: Annotated[str, "where a click leads in a page with layers; empty where nowhere"]


@dataclass(frozen=True, kw_only=True)
class WaterfallChart(Drawing):
    """The noise of one output, piece by piece."""

    template = "waterfall.svg"

    top: Annotated[float, "top of the plot"]
    row: Annotated[float, "height of a row"]
    bar: Annotated[float, "height of a bar"]
    basis: Annotated[str, "samples and runs"]
    zero: Annotated[float, "position of no noise"]
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
    starts = _starts(pieces)
    low, high = min(0.0, *starts), max(1.0, *starts)

    def x(value: float) -> float:
        return round(PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (value - low) / (high - low), 1)

    whole = WaterfallBar(
        "whole", x(0), TOP, round(x(1) - x(0), 1), x(1), f"{visible(output, WHAT_LIMIT)} of the quantized model", "",
        f"100 %, SQNR {decibels(sqnr)}", f"all of the noise: {decibels(sqnr)}", "",
    )  # fmt: skip
    bars = [whole]
    for place, (piece, start) in enumerate(zip(pieces, starts, strict=False), 1):
        ends = x(start), x(start - piece.share)
        look = "makes-up" if piece.look == "line" and piece.share < 0 else piece.look
        how = f": {piece.how}" if piece.how else ""
        bars.append(
            WaterfallBar(
                look=look,
                x=min(ends),
                y=TOP + ROW * place,
                width=round(max(abs(ends[1] - ends[0]), 1.0), 1),
                end=ends[1],
                what=visible(piece.what, WHAT_LIMIT),
                how=visible(piece.how, HOW_LIMIT),
                text=piece.text,
                tip=f"{piece.text} {piece.what}{how}",
                href=_href(piece),
            )
        )
    bottom = TOP + ROW * len(bars)
    title = f"{TITLE} · {visible(output, WHAT_LIMIT)}"
    return WaterfallChart(
        stem=STEM,
        title=title,
        width=WATERFALL_WIDTH,
        height=bottom + 26,
        left=PLOT_LEFT,
        right=PLOT_RIGHT,
        top=TOP - 8,
        bottom=bottom,
        row=ROW,
        bar=BAR,
        basis=basis,
        zero=x(0),
        ticks=tuple(Tick(x(value), f"{round(100 * value)} %") for value, _ in ticks(low, high, 5)),
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


def _href(piece: Piece) -> str:
    if piece.layer:
        return f"#layer={quote(piece.layer, safe='')}"
    return "#data" if piece.is_input else ""


def _sentence(pieces: Iterable[Piece]) -> str:
    return "; ".join(f"{piece.text} {piece.what}" for piece in pieces)
