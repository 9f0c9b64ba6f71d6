"""The statistics of one tensor as compiled loops; ``builders.plain_loops`` of the tests states the same in numpy.

A row is walked in chunks that stay in the first-level cache: each loop does one thing over one chunk, so that it
vectorizes, and a tensor is fetched from memory once for all of them. Sums of chunks (``numba_chunks``) are added into
float64. Arrays are borrowed before they are cut up: numba would count the owners of every slice.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.quantizer import Deployed, Rounding
from quantmedic.collectors.statistics.compiled_cache import cached_njit
from quantmedic.collectors.statistics.numba_chunks import (
    Difference,
    bits_of,
    borrow,
    compare_shown,
    count,
    count_finite,
    count_shown,
    difference_of,
    finite_ends,
    merge_two,
    real_values,
    rounding_of,
    survey_finite,
)
from quantmedic.engine.case.histogram import BINS, NONFINITE
from quantmedic.engine.case.statistics import BUCKETS, ERROR_COLUMNS, SHOWN_BUCKETS, TensorStatistics

Float32 = NDArray[np.float32]
#: Slots of the table of distinct values: many more than values, so that nearly all are found at once.
_SLOTS = 1 << 14
__all__ = ["distinct", "observe", "observe_error", "sample_moments"]

Float64 = NDArray[np.float64]
Integers = NDArray[np.int64]
CHUNK = 1024
#: Values from which four interleaved histograms are worth setting up.
MANY = 1 << 14
#: Types of deployed values that are read as they are; others are converted to float32 first.
_KINDS = {np.dtype(kind): i for i, kind in enumerate((np.float32, np.uint8, np.int8, np.uint16, np.int16))}
_NO_ARRAYS = tuple(np.zeros(0, kind) for kind in _KINDS)
_NO_CHANNELS = np.zeros(0, np.float32)
#: Flat values of each type, which of the types they have (-1: none), and scale and zero point by channel.
_Shown = tuple[tuple[NDArray[np.generic], ...], int, Float32, Float32]
_NOTHING_SHOWN: _Shown = (_NO_ARRAYS, -1, _NO_CHANNELS, _NO_CHANNELS)
_NO_ROUNDING = Rounding(_NO_CHANNELS, _NO_CHANNELS, _NO_CHANNELS)


# Only what Python calls is a function of its own in the compiled code. All else is inlined: of two compiled copies of a
# loop the linker would take one in the run that compiles and the other in those that load it, and sums would differ in
# their last bits.
_entry = cached_njit()
_jit = cached_njit(forceinline=True)


class Values(NamedTuple):
    """Columns of one tensor, ``[channels]`` each; the histogram is ``[BINS]``."""

    seen: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    histogram: NDArray[np.int64]


class Errors(NamedTuple):
    """``ERROR_COLUMNS`` of one kind of error, in their order, ``[channels]`` each."""

    seen: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    sum: NDArray[np.float64]
    square: NDArray[np.float64]
    cross: NDArray[np.float64]
    power: NDArray[np.float64]
    max: NDArray[np.float64]


class Columns(NamedTuple):
    """Everything that is known of one tensor; extremes of buckets are ``[BUCKETS]``, deployed values ``[BINS]``."""

    values: Values
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    clipped: NDArray[np.int64]
    clipped_energy: NDArray[np.float64]
    rounding: Errors
    accumulated: Errors
    deployed_min: NDArray[np.float64]
    deployed_max: NDArray[np.float64]
    shown: NDArray[np.int64]

    @classmethod
    def of(cls, into: TensorStatistics) -> "Columns":
        """The columns of a tensor, which share their memory with its statistics."""
        return cls(
            Values(into.count, into.nonfinite, into.mean, into.m2, into.min, into.max, into.histogram),
            into.bucket_min,
            into.bucket_max,
            into.clipped,
            into.clipped_energy,
            errors_of(into, "rounding"),
            errors_of(into, "accumulated"),
            into.deployed_min,
            into.deployed_max,
            into.quantized_histogram,
        )


def errors_of(into: TensorStatistics, kind: str) -> Errors:
    """The columns of one kind of error."""
    columns = into.errors[kind]
    return Errors(*(columns[name] for name in ERROR_COLUMNS))


def distinct(x: Float32, limit: int) -> Float32:
    """Sorted distinct finite values; of more than ``limit``, those that are seen first. 0.0 and -0.0 are one value."""
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


def observe(
    x: Float32,
    into: TensorStatistics,
    buckets: NDArray[np.int64],
    rounding: Rounding | None = None,
    deployed: Deployed | None = None,
) -> NDArray[np.float64]:
    """Add everything that a batch tells of one tensor.

    Args:
        x: Values of the float model, ``[outer, channels, inner]``, C-contiguous.
        into: Statistics of the tensor, changed in place.
        buckets: Bucket of the sample that each outer index belongs to, shape ``[outer]``; -1 for none. With one outer
            index and several buckets, the inner axis holds as many samples side by side.
        rounding: The tensor's grid, where it has a fixed one: adds the error ``rounding``, and what is clipped.
        deployed: The same tensor of the quantized model, where it is seen, C-contiguous: adds the error
            ``accumulated``, extremes, and a histogram of the first ``SHOWN_BUCKETS`` buckets and of values without one.

    Returns:
        Smallest and largest finite value of everything that has a bucket of its own, shape ``[2, len(buckets)]``.
    """
    columns = into.prepared if isinstance(into.prepared, Columns) else Columns.of(into)
    into.prepared = columns
    ends = np.empty((2, len(buckets)))
    _observe(x, buckets, ends, columns, rounding or _NO_ROUNDING, _shown_of(deployed), np.empty(CHUNK, np.float32))
    return ends


def _shown_of(deployed: Deployed | None) -> _Shown:
    """Deployed values as compiled loops take them: those of one type are filled, all others empty."""
    if deployed is None:
        return _NOTHING_SHOWN
    codes, scale, zero = deployed
    kind = _KINDS.get(codes.dtype, 0)
    values = codes if codes.dtype in _KINDS else deployed.values()
    arrays = (*_NO_ARRAYS[:kind], values.reshape(-1), *_NO_ARRAYS[kind + 1 :])
    return arrays, kind, scale, zero


def observe_error(x: Float32, y: Float32, into: TensorStatistics, kind: str) -> None:
    """Add the difference ``y - x`` of two tensors ``[outer, channels, inner]``, C-contiguous, finite pairs only."""
    _compare(x, y, errors_of(into, kind))


@_jit
def _extend(
    bucket_min: Float64, bucket_max: Float64, bucket: int, ends: Float64, place: int, low: float, high: float
) -> None:
    ends[0, place], ends[1, place] = min(ends[0, place], low), max(ends[1, place], high)
    if bucket >= 0:
        bucket_min[bucket] = min(bucket_min[bucket], low)
        bucket_max[bucket] = max(bucket_max[bucket], high)


@_jit
def _extend_gathered(bucket_min: Float64, bucket_max: Float64, buckets: Integers, ends: Float64, x: Float32) -> None:
    """Gathered rows hold several samples side by side, each with a bucket of its own."""
    groups = len(buckets)
    span = x.size // groups
    for g in range(groups):
        part = x[g * span : (g + 1) * span]
        low, high = finite_ends(part)
        _extend(bucket_min, bucket_max, buckets[g], ends, g, low, high)


@_jit
def _add(errors: Errors, c: int, error: Difference) -> None:
    n, nonfinite, total, square, cross, power, top = error
    errors.seen[c] += n
    errors.nonfinite[c] += nonfinite
    errors.sum[c] += total
    errors.square[c] += square
    errors.cross[c] += cross
    errors.power[c] += power
    errors.max[c] = max(errors.max[c], top)


@_entry
def _observe(
    x: Float32,
    buckets: Integers,
    ends: Float64,
    into: Columns,
    rounding: Rounding,
    deployed: _Shown,
    scratch: Float32,
) -> None:
    outer, channels, inner = x.shape
    ends[0], ends[1] = np.inf, -np.inf
    x = borrow(x)
    (a0, a1, a2, a3, a4), kind, code_scale, zero = deployed
    arrays = (borrow(a0), borrow(a1), borrow(a2), borrow(a3), borrow(a4))
    scale, low_code, high_code = rounding
    values, bucket_min, bucket_max, clipped, clipped_energy, rounded, accumulated, deployed_min, deployed_max, shown = (
        into
    )
    scratch = borrow(scratch)
    tables = np.zeros((4 if x.size > MANY else 0, BINS), np.int32)
    many, rounds, compares = len(tables) > 0, scale.size > 0, kind >= 0
    gathered = outer == 1 and len(buckets) > 1
    span = inner // len(buckets) if gathered else inner
    # Few of the values are shown, so that it takes more of them for tables to be worth it.
    shown_tables = np.zeros((4 if compares and x.size > BUCKETS // SHOWN_BUCKETS * MANY else 0, BINS), np.int32)
    for o in range(outer):
        for c in range(channels):
            low, high = np.inf, -np.inf
            for start in range(0, inner, CHUNK):
                chunk = x[o, c, start : start + CHUNK]
                n, mean, m2, smallest, largest, power, plain = survey_finite(chunk)
                low, high = min(low, smallest), max(high, largest)
                values.nonfinite[c] += chunk.size - n
                if n:
                    values.seen[c], values.mean[c], values.m2[c] = merge_two(
                        values.seen[c], values.mean[c], values.m2[c], n, mean, m2
                    )
                if many and plain:
                    count(chunk, tables)
                else:
                    count_finite(chunk, values.histogram)
                if rounds:
                    error, outside, energy = rounding_of(
                        chunk, plain, power, scale[c], low_code[c], high_code[c], scratch
                    )
                    _add(rounded, c, error)
                    clipped[c] += outside
                    clipped_energy[c] += energy
                if compares:
                    place = (o * channels + c) * inner + start
                    error, lowest, highest = compare_shown(
                        chunk, plain, power, arrays, kind, place, code_scale[c], zero[c], scratch
                    )
                    _add(accumulated, c, error)
                    deployed_min[c], deployed_max[c] = min(deployed_min[c], lowest), max(deployed_max[c], highest)
                    if gathered or buckets[o] < SHOWN_BUCKETS:
                        y = real_values(arrays, kind, place, chunk.size, code_scale[c], zero[c], scratch)
                        count_shown(y, start, span, buckets, 0 if gathered else o, shown_tables, shown)
            values.min[c], values.max[c] = min(values.min[c], low), max(values.max[c], high)
            if gathered:
                _extend_gathered(bucket_min, bucket_max, buckets, ends, x[o, c])
            else:
                _extend(bucket_min, bucket_max, buckets[o], ends, o, low, high)
    for b in range(BINS if many else 0):
        values.histogram[b] += tables[0, b] + tables[1, b] + tables[2, b] + tables[3, b]
    for b in range(BINS if len(shown_tables) else 0):
        if b % (BINS // 2) < NONFINITE:
            shown[b] += shown_tables[0, b] + shown_tables[1, b] + shown_tables[2, b] + shown_tables[3, b]


@_entry
def _compare(x: Float32, y: Float32, errors: Errors) -> None:
    outer, channels, inner = x.shape
    x, y = borrow(x), borrow(y)
    for o in range(outer):
        for c in range(channels):
            for start in range(0, inner, CHUNK):
                a, b = x[o, c, start : start + CHUNK], y[o, c, start : start + CHUNK]
                _, _, _, _, _, power, plain = survey_finite(a)
                _add(errors, c, difference_of(a, b, plain, power))


def sample_moments(x: Float32) -> tuple[Float32, Float32, Float32, NDArray[np.int64]]:
    """Per sample of ``[samples, values]``: mean, deviation, share of values at the maximum, non-finite values.

    Non-finite values count as zeros in the first three.
    """
    columns, nonfinite = np.empty((3, len(x)), np.float32), np.zeros(len(x), np.int64)
    _fill_sample_moments(x, columns, nonfinite)
    return columns[0], columns[1], columns[2], nonfinite


@_entry
def _fill_sample_moments(x: Float32, columns: Float32, nonfinite: Integers) -> None:
    x = borrow(x)
    for i in range(len(x)):
        row = x[i]
        n, mean, m2, top = 0, 0.0, 0.0, -np.inf
        for start in range(0, row.size, CHUNK):
            chunk = row[start : start + CHUNK]
            size, its_mean, its_m2, _, largest, _, _ = survey_finite(chunk)
            nonfinite[i] += chunk.size - size
            top = max(top, largest)
            if size:
                n, mean, m2 = merge_two(n, mean, m2, size, its_mean, its_m2)
        zeros = row.size - n
        if zeros:
            m2 += mean * mean * n * zeros / row.size
            mean *= n / row.size
            top = max(top, 0.0)
        columns[0, i], columns[1, i] = mean, np.sqrt(m2 / row.size)
        at_top = zeros if top == 0 else 0
        for j in range(row.size):
            at_top += row[j] == top
        columns[2, i] = at_top / row.size
