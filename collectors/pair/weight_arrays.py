"""Float and stored weights of one operator as a reader looks at them: extremes and SQNR per channel, distributions."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.weight_grids import DEAD, power_of, rows_along
from quantmedic.engine.case.records import CHANNEL_BINS, WEIGHT_BINS, WEIGHT_CHANNELS, WeightArrays
from quantmedic.engine.decibels import sqnr_db

Values = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Weights that are put into bins at a time: what is made of them in float64 stays in the cache.
_PIECE = 1 << 16


def weight_arrays(source: Values, stored: Values, axis: int | None) -> WeightArrays | None:
    """Arrays of float and stored weights of one shape.

    Args:
        source: Float weights, at least one.
        stored: The same as the quantized model uses them.
        axis: Axis of the output channels; without one, all weights are one channel.

    Returns:
        The arrays; None where a weight is not finite.
    """
    x, y = (values.reshape(1, -1) if axis is None else rows_along(values, axis) for values in (source, stored))
    low, high, stored_low, stored_high = (
        end.astype(np.float64) for end in (x.min(axis=1), x.max(axis=1), y.min(axis=1), y.max(axis=1))
    )
    start, stop = float(np.minimum(low, stored_low).min()), float(np.maximum(high, stored_high).max())
    if not np.isfinite([start, stop]).all():
        return None
    if start == stop:
        start, stop = start - 0.5, stop + 0.5
    sqnr = _channel_sqnr(x, y, np.maximum(-low, high))
    # The worst first, dead channels last.
    worst = np.argsort(sqnr, kind="stable")[:WEIGHT_CHANNELS]
    return WeightArrays(
        index=worst,
        low=low[worst],
        high=high[worst],
        stored_low=stored_low[worst],
        stored_high=stored_high[worst],
        sqnr_db=sqnr[worst],
        start=start,
        stop=stop,
        floats=_bin_counts(x, start, stop),
        stored=_bin_counts(y, start, stop),
        heights=_channel_heights(x, worst, start, stop),
    )


def _channel_sqnr(x: Values, y: Values, tops: Floats) -> Floats:
    """dB per channel, as float32 holds it; NaN for dead channels, infinite without error."""
    alive = tops > DEAD * tops.max()
    levels = sqnr_db(power_of(x), power_of(y - x))
    return np.where(alive, levels, np.nan).astype(np.float32).astype(np.float64)


def _bin_counts(rows: Values, start: float, stop: float) -> NDArray[np.int64]:
    """Weights per bin; the last bin holds its upper end too."""
    found = np.zeros(WEIGHT_BINS, np.int64)
    flat = rows.reshape(-1)
    for begin in range(0, flat.size, _PIECE):
        places = _bins_of(flat[begin : begin + _PIECE], start, stop, WEIGHT_BINS)
        found += np.bincount(places, minlength=WEIGHT_BINS)
    return found


def _channel_heights(rows: Values, chosen: NDArray[np.int64], start: float, stop: float) -> NDArray[np.uint8]:
    """Histograms ``[chosen, CHANNEL_BINS]``, as parts of each channel's fullest bin; see ``WeightArrays.heights``."""
    found = np.zeros((len(chosen), CHANNEL_BINS), np.uint8)
    at_once = max(_PIECE // max(rows.shape[1], 1), 1)
    for begin in range(0, len(chosen), at_once):
        own = rows[chosen[begin : begin + at_once]]
        places = _bins_of(own, start, stop, CHANNEL_BINS) + np.arange(len(own))[:, None] * CHANNEL_BINS
        counts = np.bincount(places.ravel(), minlength=len(own) * CHANNEL_BINS).reshape(len(own), CHANNEL_BINS)
        found[begin : begin + at_once] = np.ceil(counts * 255.0 / counts.max(axis=1, keepdims=True))
    return found


def _bins_of(values: Values, start: float, stop: float, bins: int) -> NDArray[np.int64]:
    """The even bin of each value; the last holds its upper end too."""
    places: NDArray[np.int64] = ((values.astype(np.float64) - start) * (bins / (stop - start))).astype(np.int64)
    return np.minimum(places, bins - 1)
