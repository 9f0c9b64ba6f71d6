"""The distinct values of an array, found by a compiled loop."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.statistics.compiled_cache import cached_njit
from quantmedic.collectors.statistics.float_bits import bits_of

Float32 = NDArray[np.float32]
#: Slots of the table of distinct values: many more than values, so that nearly all are found at once.
_SLOTS = 1 << 14


def distinct(x: Float32, limit: int) -> Float32:
    """See ``numpy_loops.distinct``; of more than ``limit`` values, those that are seen first."""
    assert limit < _SLOTS
    table, used = np.empty(_SLOTS, np.float32), np.zeros(_SLOTS, np.bool_)
    _fill(x, limit, table, used)
    return np.sort(table[used])


@cached_njit()
def _fill(x: Float32, limit: int, table: Float32, used: NDArray[np.bool_]) -> None:
    """Open addressing over the bits of a value."""
    found = 0
    for i in range(x.size):
        value = x[i] + np.float32(0)
        if not np.isfinite(value):
            continue
        bits = np.uint32(bits_of(value))
        mixed = np.uint32((bits ^ (bits >> np.uint32(15))) * np.uint32(2246822507))
        slot = np.uint64(mixed >> np.uint32(18))
        while used[slot] and table[slot] != value:
            slot = (slot + np.uint64(1)) & np.uint64(_SLOTS - 1)
        if used[slot]:
            continue
        used[slot], table[slot] = True, value
        found += 1
        if found == limit:
            return
