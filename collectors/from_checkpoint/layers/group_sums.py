"""Sums over groups of weights, in one pass over float and stored weights: compiled, or in numpy where numba is missing.

Sums run in float64. Where a value is not finite they are not either, which the caller sees and repairs.
"""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.layers.weight_fields import Floats, Grid, Integers, Values
from quantmedic.collectors.pair.weight_grids import MISPLACED_STEPS
from quantmedic.collectors.statistics.jit import is_switched_off


def numpy_sums(x: Values, y: Values, grid: Grid, starts: Integers, tops: Values) -> Floats:
    """``FIELDS`` of each group: ``[rows, groups, fields]``.

    Args:
        x: Float weights ``[rows, inputs]``, C-contiguous.
        y: Stored weights of the same shape.
        grid: Step and ends of each group; NaN where there is none, then nothing is counted against it.
        starts: First column of each group, and the number of columns; no group is empty.
        tops: Largest magnitude of each column so far, ``[inputs]``; raised in place.
    """
    first = starts[:-1]
    sizes = np.diff(starts)
    step, low, high = (np.repeat(part, sizes, axis=1) for part in grid)
    wide = x.astype(np.float64)
    d = y - wide
    on_grid = np.clip(x, low, high)
    np.maximum(tops, np.abs(x).max(axis=0), out=tops)
    sums = (d, d * d, wide * d, wide**2, wide, wide**3, wide**4)
    counts = (
        np.abs(y - on_grid) > MISPLACED_STEPS * step,
        np.abs(x - on_grid) > 0.5 * step,
        (y <= low).astype(np.float64) + (y >= high),
    )
    columns = [np.add.reduceat(part, first, axis=1) for part in sums]
    for part in (x, y):
        columns += [np.minimum.reduceat(part, first, axis=1), np.maximum.reduceat(part, first, axis=1)]
    columns.append(np.maximum.reduceat(np.abs(y - x), first, axis=1))
    columns += [np.add.reduceat(part.astype(np.float64), first, axis=1) for part in counts]
    return np.stack([column.astype(np.float64) for column in columns], axis=2)


def numpy_from_half(bits: NDArray[np.uint16]) -> Values:
    """Float16 numbers, given as their bits, as float32."""
    return bits.view(np.float16).astype(np.float32)


try:
    if is_switched_off():
        raise ImportError
    from quantmedic.collectors.from_checkpoint.layers.group_loops import from_half, group_sums
except ImportError:  # numba is missing or does not support this machine
    from_half, group_sums = numpy_from_half, numpy_sums

__all__ = ["from_half", "group_sums", "numpy_from_half", "numpy_sums"]
