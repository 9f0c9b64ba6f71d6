"""Distributions of flagged tensors with the ranges of their quantizers; drawn in ``templates/histogram.svg``."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.reports.charts.frame import LEFT, RIGHT, TOP, WIDTH, Plot, Tick, place_ticks, ticks
from quantmedic.reports.text import count, number, visible

HISTOGRAM_HEIGHT, HISTOGRAM_FOOT, HISTOGRAMS_SHOWN = 170.0, 52.0, 24


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram."""

    x: Annotated[float, "left end"]
    y: Annotated[float, "top"]
    width: Annotated[float, "width"]
    height: Annotated[float, "height"]
    outside: Annotated[bool, "beyond the range of the quantizer: these values are clipped"]
    tip: Annotated[str, "range and count, shown under the pointer"]


@dataclass(frozen=True, kw_only=True)
class HistogramChart(Plot):
    """Distribution of a flagged tensor with the range of its quantizer."""

    template = "histogram.svg"

    bars: Annotated[tuple[Bar, ...], "non-empty bins"]
    ticks: Annotated[tuple[Tick, ...], "marks of the horizontal axis"]
    counts: Annotated[tuple[Tick, ...], "marks of the vertical, logarithmic axis"]
    limits: Annotated[tuple[Tick, ...], "ends of the quantizer's range"]


def histogram_charts(histograms: Sequence[Histogram]) -> tuple[HistogramChart, ...]:
    """The first histograms, numbered: layer names make no file names."""
    return tuple(_histogram_chart(place, histogram) for place, histogram in enumerate(histograms[:HISTOGRAMS_SHOWN], 1))


def _histogram_chart(place: int, histogram: Histogram) -> HistogramChart:
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, TOP + HISTOGRAM_HEIGHT
    drawable = len(histogram.edges) == len(histogram.counts) + 1 and any(histogram.counts)
    ends = [*histogram.edges, *(limit for limit in (histogram.low, histogram.high) if limit is not None)]
    finite = [end for end in ends if math.isfinite(end)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    decades = max(1, math.ceil(math.log10(max(histogram.counts, default=1) or 1)))

    def x(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low or 1.0)
        return round(left + share * (right - left), 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * (math.log10(value) + 0.3) / (decades + 0.3), 1)

    title = f"{visible(histogram.layer, 56)} · {histogram.dataset}"
    return HistogramChart(
        stem=f"histogram-{place}",
        title=title,
        note="" if drawable else "not measured",
        width=WIDTH,
        height=bottom + HISTOGRAM_FOOT,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        bars=_histogram_bars(histogram, x, y, bottom) if drawable else (),
        ticks=place_ticks(ticks(low, high, 8), x),
        counts=tuple(Tick(y(10**e), f"1e{e}") for e in range(0, decades + 1, max(1, math.ceil(decades / 5)))),
        limits=tuple(
            Tick(x(limit), number(limit))
            for limit in (histogram.low, histogram.high)
            if limit is not None and math.isfinite(limit)
        ),
        summary=f"distribution of {title}, quantizer range {number(histogram.low)} to {number(histogram.high)}",
    )


def _histogram_bars(
    histogram: Histogram, x: Callable[[float], float], y: Callable[[float], float], bottom: float
) -> tuple[Bar, ...]:
    bars = []
    for start, end, size in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        if not size:
            continue
        outside = (histogram.low is not None and end <= histogram.low) or (
            histogram.high is not None and start >= histogram.high
        )
        bars.append(
            Bar(
                x=x(start),
                y=y(size),
                width=round(max(x(end) - x(start), 0.8), 1),
                height=round(bottom - y(size), 1),
                outside=outside,
                tip=f"{number(start)} … {number(end)}: {count(size, 'value')}",
            )
        )
    return tuple(bars)
