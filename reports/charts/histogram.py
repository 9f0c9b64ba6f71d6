"""Distributions of flagged tensors with the ranges of their quantizers; drawn as pictures of causes are."""

import math
from collections.abc import Callable, Sequence

from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.reports.charts.cause import FOOT, Bar, Distribution
from quantmedic.reports.charts.frame import LEFT, RIGHT, TOP, WIDTH, Tick, place_ticks, ticks
from quantmedic.reports.text import count, number, visible

HISTOGRAM_HEIGHT, HISTOGRAMS_SHOWN = 170.0, 24


def histogram_charts(histograms: Sequence[Histogram]) -> tuple[Distribution, ...]:
    """The first histograms, numbered: layer names make no file names."""
    return tuple(_histogram_chart(place, histogram) for place, histogram in enumerate(histograms[:HISTOGRAMS_SHOWN], 1))


def _histogram_chart(place: int, histogram: Histogram) -> Distribution:
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
    return Distribution(
        stem=f"histogram-{place}",
        title=title,
        note="" if drawable else "not measured",
        height=bottom + FOOT,
        bottom=bottom,
        bars=_histogram_bars(histogram, x, y, bottom) if drawable else (),
        marks=place_ticks(ticks(low, high, 8), x),
        ticks=tuple(Tick(y(10**e), f"1e{e}") for e in range(0, decades + 1, max(1, math.ceil(decades / 5)))),
        axis="value of the float tensor; dashed: range of the quantizer",
        upward="values (log scale)",
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
                width=round(max(x(end) - x(start), 0.8), 1),
                height=round(bottom - y(size), 1),
                flagged=outside,
                tip=f"{number(start)} … {number(end)}: {count(size, 'value')}",
            )
        )
    return tuple(bars)
