"""Sums over groups of weights, in one pass over float and stored weights, by compiled loops.

Sums run in float64. Where a value is not finite they are not either, which the caller sees and repairs.
"""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.layers.weight_fields import FIELDS, Floats, Grid, Integers, Values
from quantmedic.collectors.pair.weight_grids import MISPLACED_STEPS
from quantmedic.collectors.statistics.compiled_cache import cached_njit

Bits = NDArray[np.uint16]
_FAR, _HALF = np.float32(MISPLACED_STEPS), np.float32(0.5)
_inner = cached_njit(forceinline=True, fastmath={"reassoc", "nsz"})
# Extremes vectorize only where NaN is not handled; the caller sees NaN in the sums.
_finite = cached_njit(forceinline=True, fastmath={"reassoc", "nsz", "nnan"})


@_inner
def _error_sums(x: Values, y: Values) -> tuple[float, ...]:
    total, square, cross, power = 0.0, 0.0, 0.0, 0.0
    for i in range(x.size):
        a = np.float64(x[i])
        d = np.float64(y[i]) - a
        total += d
        square += d * d
        cross += a * d
        power += a * a
    return total, square, cross, power


@_inner
def _power_sums(x: Values) -> tuple[float, ...]:
    total, cube, fourth = 0.0, 0.0, 0.0
    for i in range(x.size):
        a = np.float64(x[i])
        total += a
        cube += a * a * a
        fourth += (a * a) * (a * a)
    return total, cube, fourth


@_finite
def _group_extremes(x: Values, y: Values) -> tuple[np.float32, ...]:
    low, high, stored_low, stored_high, top = x[0], x[0], y[0], y[0], np.float32(0)
    for i in range(x.size):
        low = min(low, x[i])
        high = max(high, x[i])
        stored_low = min(stored_low, y[i])
        stored_high = max(stored_high, y[i])
        top = max(top, abs(y[i] - x[i]))
    return low, high, stored_low, stored_high, top


@_inner
def _grid_counts(x: Values, y: Values, step: np.float32, low: np.float32, high: np.float32) -> tuple[np.int32, ...]:
    far, half = step * _FAR, step * _HALF
    misplaced, clipped, ends = np.int32(0), np.int32(0), np.int32(0)
    for i in range(x.size):
        v = min(max(x[i], low), high)
        misplaced += np.int32(abs(y[i] - v) > far)
        clipped += np.int32(abs(x[i] - v) > half)
        ends += np.int32(y[i] <= low) + np.int32(y[i] >= high)
    return misplaced, clipped, ends


@_finite
def _raise_tops(tops: Values, x: Values) -> None:
    for i in range(x.size):
        tops[i] = max(tops[i], abs(x[i]))


@cached_njit()
def _fill_sums(
    x: Values, y: Values, step: Values, low: Values, high: Values, starts: Integers, tops: Values, found: Floats
) -> None:
    for r in range(x.shape[0]):
        _raise_tops(tops, x[r])
        for g in range(starts.size - 1):
            a, b = x[r, starts[g] : starts[g + 1]], y[r, starts[g] : starts[g + 1]]
            out = found[r, g]
            out[0], out[1], out[2], out[3] = _error_sums(a, b)
            out[4], out[5], out[6] = _power_sums(a)
            out[7], out[8], out[9], out[10], out[11] = _group_extremes(a, b)
            out[12], out[13], out[14] = _grid_counts(a, b, step[r, g], low[r, g], high[r, g])


def group_sums(x: Values, y: Values, grid: Grid, starts: Integers, tops: Values) -> Floats:
    """``FIELDS`` of each group: ``[rows, groups, fields]``.

    Args:
        x: Float weights ``[rows, inputs]``, C-contiguous.
        y: Stored weights of the same shape.
        grid: Step and ends of each group; NaN where there is none, then nothing is counted against it.
        starts: First column of each group, and the number of columns; no group is empty.
        tops: Largest magnitude of each column so far, ``[inputs]``; raised in place.
    """
    found = np.empty((len(x), len(starts) - 1, len(FIELDS)))
    _fill_sums(x, y, *grid, starts, tops, found)
    return found


@cached_njit()
def _fill_singles(half: Bits, found: NDArray[np.uint32]) -> None:
    for i in range(half.size):
        v = np.uint32(half[i])
        found[i] = ((v & np.uint32(0x7FFF)) << np.uint32(13)) | ((v & np.uint32(0x8000)) << np.uint32(16))


def from_half(bits: Bits) -> Values:
    """Finite float16 numbers, given as their bits, as float32: the exponent is moved, then its bias multiplied back."""
    found = np.empty(bits.shape, np.uint32)
    _fill_singles(bits.reshape(-1), found.reshape(-1))
    values = found.view(np.float32)
    values *= np.float32(2.0**112)
    return values
