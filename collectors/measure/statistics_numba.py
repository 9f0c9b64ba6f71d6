"""The statistics of one tensor as compiled loops; ``statistics_numpy`` states the same in plain numpy.

A row is walked in chunks that stay in the first-level cache: each loop does one thing over one chunk, so that it
vectorizes, and a tensor is fetched from memory once for all of them. Sums run in float32 over one chunk and are added
into float64. The fast loops assume finite values of ordinary magnitude; whether they were is seen in the extremes that
they return, and a chunk for which it does not hold is done again, carefully, in float64.
"""

from typing import NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

from quantmedic.collectors.measure.compiled_cache import compiled
from quantmedic.collectors.measure.statistics_numpy import Deployed, Rounding
from quantmedic.engine.case.histogram import BINS, NONFINITE, SHIFT
from quantmedic.engine.case.statistics import BUCKETS, ERROR_COLUMNS, SHOWN_BUCKETS, TensorStatistics

Float32 = NDArray[np.float32]
CHUNK = 1024
#: Values from which four interleaved histograms are worth setting up.
MANY = 1 << 14
#: Bits of 1e-15 and 1e15: only between them do the squares of a chunk fit float32, with room for their sums.
_SMALLEST = int(np.float32(1e-15).view(np.int32))
_LARGEST = int(np.float32(1e15).view(np.int32))
_MAGNITUDE = np.int32(0x7FFFFFFF)
#: Types of deployed values that are read as they are; others are converted to float32 first.
_KINDS = {np.dtype(kind): i for i, kind in enumerate((np.float32, np.uint8, np.int8, np.uint16, np.int16))}
_NO_CODES = np.zeros((0, 0, 0), np.uint8)
_NO_CHANNELS = np.zeros(0, np.float32)
_NO_ROUNDING = Rounding(_NO_CHANNELS, _NO_CHANNELS, _NO_CHANNELS)


# Only what Python calls is a function of its own in the compiled code. All else is inlined: of two compiled copies of a
# loop the linker would take one in the run that compiles and the other in those that load it, and sums would differ in
# their last bits.
_entry = compiled()
_jit = compiled(forceinline=True)
# Sums may be reordered, else they do not vectorize; NaN and infinities keep their meaning, else they could be missed.
_sum = compiled(forceinline=True, fastmath={"reassoc", "nsz"})


class _Values(NamedTuple):
    """Columns of one tensor, ``[channels]`` each; the histogram is ``[BINS]``."""

    seen: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    histogram: NDArray[np.int64]


class _Errors(NamedTuple):
    """``ERROR_COLUMNS`` of one kind of error, in their order, ``[channels]`` each."""

    seen: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    sum: NDArray[np.float64]
    square: NDArray[np.float64]
    cross: NDArray[np.float64]
    power: NDArray[np.float64]
    max: NDArray[np.float64]


class _Columns(NamedTuple):
    """Everything that is known of one tensor; extremes of buckets are ``[BUCKETS]``, deployed values ``[BINS]``."""

    values: _Values
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    clipped: NDArray[np.int64]
    clipped_energy: NDArray[np.float64]
    rounding: _Errors
    accumulated: _Errors
    shown: NDArray[np.int64]

    @classmethod
    def of(cls, into: TensorStatistics) -> "_Columns":
        return cls(
            _Values(into.count, into.nonfinite, into.mean, into.m2, into.min, into.max, into.histogram),
            into.bucket_min,
            into.bucket_max,
            into.clipped,
            into.clipped_energy,
            _errors(into, "rounding"),
            _errors(into, "accumulated"),
            into.quantized_histogram,
        )


def observe(
    x: Float32,
    into: TensorStatistics,
    buckets: NDArray[np.int64],
    rounding: Rounding | None = None,
    deployed: Deployed | None = None,
) -> NDArray[np.float64]:
    """See ``reference.observe``; ``x`` and the deployed codes are C-contiguous."""
    codes, scale, zero = deployed or (_NO_CODES, _NO_CHANNELS, _NO_CHANNELS)
    if deployed is not None and codes.dtype not in _KINDS:
        codes = deployed.values()
    kind = -1 if deployed is None else _KINDS[codes.dtype]
    columns = into.prepared if isinstance(into.prepared, _Columns) else _Columns.of(into)
    into.prepared = columns
    ends = np.empty((2, len(buckets)))
    shown = (codes.reshape(-1).view(np.uint8), kind, scale, zero)
    _observe(x, buckets, ends, columns, rounding or _NO_ROUNDING, shown)
    return ends


def observe_error(x: Float32, y: Float32, into: TensorStatistics, kind: str) -> None:
    """See ``reference.observe_error``; both are C-contiguous."""
    _compare(x, y, _errors(into, kind))


def _errors(into: TensorStatistics, kind: str) -> _Errors:
    columns = into.errors[kind]
    return _Errors(*(columns[name] for name in ERROR_COLUMNS))


@intrinsic  # type: ignore[untyped-decorator]
def _bits(typing_context, value):  # type: ignore[no-untyped-def]
    """The bits of a float32 as int32: the largest of many floats vectorizes only over their bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.types.int32(numba.types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def _float(typing_context, bits):  # type: ignore[no-untyped-def]
    """The float32 of the given bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.types.float32(numba.types.int32), generate


@_sum
def _scan(x):
    """Smallest and largest value as ordered integers, and the sum."""
    low, high, total = np.int32(2147483647), np.int32(-2147483648), np.float32(0)
    for i in range(x.size):
        b = _bits(x[i])
        key = np.int32(b ^ np.int32(np.int32(b >> np.int32(31)) & _MAGNITUDE))
        low = min(low, key)
        high = max(high, key)
        total += x[i]
    return low, high, total


@_jit
def _bits_of_key(key):
    return np.int32(key ^ np.int32(np.int32(key >> np.int32(31)) & _MAGNITUDE))


@_jit
def _value(bits):
    return np.float64(_float(bits))


@_jit
def _is_plain(bits):
    """Squares of numbers up to this magnitude fit float32; infinities and NaN have larger bits."""
    return bits == 0 or _SMALLEST <= bits <= _LARGEST


@_jit
def _survey(x):
    """Bits of the smallest and the largest value, a number near the mean, and whether the fast loops will do."""
    low_key, high_key, total = _scan(x)
    low, high = _bits_of_key(low_key), _bits_of_key(high_key)
    return low, high, total / np.float32(x.size), _is_plain(max(low & _MAGNITUDE, high & _MAGNITUDE))


@_sum
def _deviations(x, shift):
    """Sums of differences from a number near the mean lose no digits."""
    total, square = np.float32(0), np.float32(0)
    for i in range(x.size):
        d = x[i] - shift
        total += d
        square += d * d
    return total, square


@_jit
def _moments(x, shift):
    """Mean, M2 and Σx² of a chunk."""
    total, square = _deviations(x, shift)
    near, d, d2 = np.float64(shift), np.float64(total), np.float64(square)
    return near + d / x.size, max(d2 - d * d / x.size, 0.0), d2 + 2 * near * d + x.size * near * near


@_jit
def _careful_moments(x):
    """Count, mean, M2, extremes and power of the finite values, in float64."""
    n, total, power, low, high = 0, 0.0, 0.0, np.inf, -np.inf
    for i in range(x.size):
        if np.isfinite(x[i]):
            v = np.float64(x[i])
            n += 1
            total += v
            power += v * v
            low = min(low, v)
            high = max(high, v)
    mean = total / n if n else 0.0
    m2 = 0.0
    for i in range(x.size):
        if np.isfinite(x[i]):
            m2 += (np.float64(x[i]) - mean) ** 2
    return n, mean, m2, low, high, power


@_jit
def _merged(n, mean, m2, more, its_mean, its_m2):
    """Count, mean and M2 of two sets together, the second not empty; see ``reference.merge_moments``."""
    delta, share = its_mean - mean, more / (n + more)
    return n + more, mean + delta * share, m2 + its_m2 + delta * delta * n * share


@_sum
def _differences(x, y):
    total, square, cross, top = np.float32(0), np.float32(0), np.float32(0), np.int32(0)
    for i in range(x.size):
        e = y[i] - x[i]
        total += e
        square += e * e
        cross += x[i] * e
        top = max(top, np.int32(_bits(e) & _MAGNITUDE))
    return total, square, cross, top


@_jit
def _careful_differences(x, y):
    """The same in float64 over finite pairs, with their number and power, and the number of non-finite ``y``."""
    n, bad, total, square, cross, power, top = 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(x.size):
        bad += not np.isfinite(y[i])
        if np.isfinite(x[i]) and np.isfinite(y[i]):
            v = np.float64(x[i])
            e = np.float64(y[i]) - v
            n += 1
            total += e
            square += e * e
            cross += v * e
            power += v * v
            top = max(top, abs(e))
    return n, bad, total, square, cross, power, top


@_jit
def _compared(x, y, plain, power):
    """Count, non-finite, Σd, Σd², Σx·d, Σx² and max|d| of ``y - x`` in a chunk.

    ``plain`` says that ``x`` suits the fast loop, ``power`` is then its Σx².
    """
    if plain:
        total, square, cross, top = _differences(x, y)
        if _is_plain(top):
            return x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _value(top)
    return _careful_differences(x, y)


@_sum
def _round_trip(x, scale, low, high):
    total, square, cross, top = np.float32(0), np.float32(0), np.float32(0), np.int32(0)
    clipped, energy = np.float32(0), np.float32(0)
    for i in range(x.size):
        code = np.rint(x[i] / scale)
        kept = min(max(code, low), high)
        e = kept * scale - x[i]
        outside = np.float32(1) if kept != code else np.float32(0)
        total += e
        square += e * e
        cross += x[i] * e
        top = max(top, np.int32(_bits(e) & _MAGNITUDE))
        clipped += outside
        energy += outside * e * e
    return total, square, cross, top, clipped, energy


@_jit
def _careful_round_trip(x, scale, low, high, y):
    """Count and energy of the clipped values, with float64 sums; the rounded chunk goes to ``y``."""
    clipped, energy = 0, 0.0
    for i in range(x.size):
        code = np.rint(x[i] / scale)
        kept = min(max(code, low), high)
        y[i] = kept * scale
        if np.isfinite(x[i]) and (code < low or code > high):
            clipped += 1
            energy += (np.float64(y[i]) - np.float64(x[i])) ** 2
    return clipped, energy


@_jit
def _dequantize(codes, scale, zero, y):
    for i in range(codes.size):
        y[i] = (np.float32(codes[i]) - zero) * scale


@_jit
def _deployed(codes, kind, start, n, scale, zero, y):
    """Real values of ``n`` deployed codes, which are handed over as bytes; floats are not copied."""
    if kind == 0:
        return codes[start * 4 : (start + n) * 4].view(np.float32)
    values = y[:n]
    if kind == 1:
        _dequantize(codes[start : start + n], scale, zero, values)
    elif kind == 2:
        _dequantize(codes[start : start + n].view(np.int8), scale, zero, values)
    elif kind == 3:
        _dequantize(codes[start * 2 : (start + n) * 2].view(np.uint16), scale, zero, values)
    else:
        _dequantize(codes[start * 2 : (start + n) * 2].view(np.int16), scale, zero, values)
    return values


@_jit
def _count(x, tables):
    """Four tables keep equal neighbours from waiting for each other."""
    bits = x.view(np.uint32)
    n = bits.size - bits.size % 4
    for i in range(0, n, 4):
        tables[0, bits[i] >> SHIFT] += 1
        tables[1, bits[i + 1] >> SHIFT] += 1
        tables[2, bits[i + 2] >> SHIFT] += 1
        tables[3, bits[i + 3] >> SHIFT] += 1
    for i in range(n, bits.size):
        tables[0, bits[i] >> SHIFT] += 1


@_jit
def _count_finite(x, histogram):
    bits = x.view(np.uint32)
    for i in range(bits.size):
        if np.isfinite(x[i]):
            histogram[bits[i] >> SHIFT] += 1


@_jit
def _count_shown(y, start, span, buckets, first, tables, histogram):
    """Values of the samples that are shown; each ``span`` values of a row belong to one bucket, from ``first`` on."""
    begin = 0
    while begin < y.size:
        sample = (start + begin) // span
        end = min(y.size, (sample + 1) * span - start)
        if buckets[first + sample] < SHOWN_BUCKETS:
            if len(tables):
                _count(y[begin:end], tables)
            else:
                _count_finite(y[begin:end], histogram)
        begin = end


@_jit
def _described(x):
    """Count, mean, M2, extremes and Σx² of the finite values of a chunk, and whether it suits the fast loops."""
    low, high, shift, plain = _survey(x)
    if not plain:
        return *_careful_moments(x), False
    mean, m2, power = _moments(x, shift)
    return x.size, mean, m2, _value(low), _value(high), power, True


@_jit
def _rounded(x, plain, power, scale, low, high, scratch):
    """What ``_compared`` tells of the round trip of a chunk through the codes, and count and energy of the clipped."""
    if plain:
        total, square, cross, top, outside, energy = _round_trip(x, scale, low, high)
        if _is_plain(top):
            error = x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _value(top)
            return error, np.int64(outside), np.float64(energy)
    y = scratch[: x.size]
    outside, energy = _careful_round_trip(x, scale, low, high, y)
    n, _, total, square, cross, power, top = _careful_differences(x, y)
    return (n, 0, total, square, cross, power, top), np.int64(outside), energy


@_jit
def _extend(bucket_min, bucket_max, bucket, ends, place, low, high):
    ends[0, place], ends[1, place] = min(ends[0, place], low), max(ends[1, place], high)
    if bucket >= 0:
        bucket_min[bucket] = min(bucket_min[bucket], low)
        bucket_max[bucket] = max(bucket_max[bucket], high)


@_jit
def _extend_gathered(bucket_min, bucket_max, buckets, ends, x):
    """Gathered rows hold several samples side by side, each with a bucket of its own."""
    groups = len(buckets)
    span = x.size // groups
    for g in range(groups):
        part = x[g * span : (g + 1) * span]
        low, high, _, plain = _survey(part)
        if plain:
            _extend(bucket_min, bucket_max, buckets[g], ends, g, _value(low), _value(high))
        else:
            _, _, _, smallest, largest, _ = _careful_moments(part)
            _extend(bucket_min, bucket_max, buckets[g], ends, g, smallest, largest)


@_jit
def _add(errors, c, n, nonfinite, total, square, cross, power, top):
    errors.seen[c] += n
    errors.nonfinite[c] += nonfinite
    errors.sum[c] += total
    errors.square[c] += square
    errors.cross[c] += cross
    errors.power[c] += power
    errors.max[c] = max(errors.max[c], top)


@_entry
def _observe(x, buckets, ends, into, rounding, deployed):
    outer, channels, inner = x.shape
    ends[0], ends[1] = np.inf, -np.inf
    codes, kind, code_scale, zero = deployed
    scale, low_code, high_code = rounding
    values, bucket_min, bucket_max, clipped, clipped_energy, rounded, accumulated, shown = into
    scratch = np.empty(CHUNK, np.float32)
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
                n, mean, m2, smallest, largest, power, plain = _described(chunk)
                low, high = min(low, smallest), max(high, largest)
                values.nonfinite[c] += chunk.size - n
                if n:
                    values.seen[c], values.mean[c], values.m2[c] = _merged(
                        values.seen[c], values.mean[c], values.m2[c], n, mean, m2
                    )
                if many and plain:
                    _count(chunk, tables)
                else:
                    _count_finite(chunk, values.histogram)
                if rounds:
                    error, outside, energy = _rounded(chunk, plain, power, scale[c], low_code[c], high_code[c], scratch)
                    _add(rounded, c, *error)
                    clipped[c] += outside
                    clipped_energy[c] += energy
                if compares:
                    place = (o * channels + c) * inner + start
                    y = _deployed(codes, kind, place, chunk.size, code_scale[c], zero[c], scratch)
                    _add(accumulated, c, *_compared(chunk, y, plain, power))
                    _count_shown(y, start, span, buckets, 0 if gathered else o, shown_tables, shown)
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
def _compare(x, y, errors):
    outer, channels, inner = x.shape
    for o in range(outer):
        for c in range(channels):
            for start in range(0, inner, CHUNK):
                a, b = x[o, c, start : start + CHUNK], y[o, c, start : start + CHUNK]
                _, _, _, _, _, power, plain = _described(a)
                _add(errors, c, *_compared(a, b, plain, power))


def sample_moments(x: Float32) -> tuple[Float32, Float32, Float32, NDArray[np.int64]]:
    """See ``reference.sample_moments``."""
    return _sample_moments(x, np.empty((3, len(x)), np.float32), np.zeros(len(x), np.int64))


@_entry
def _sample_moments(x, columns, nonfinite):
    for i in range(len(x)):
        row = x[i]
        n, mean, m2, top = 0, 0.0, 0.0, -np.inf
        for start in range(0, row.size, CHUNK):
            chunk = row[start : start + CHUNK]
            size, its_mean, its_m2, _, largest, _, _ = _described(chunk)
            nonfinite[i] += chunk.size - size
            top = max(top, largest)
            if size:
                n, mean, m2 = _merged(n, mean, m2, size, its_mean, its_m2)
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
    return columns[0], columns[1], columns[2], nonfinite


#: Slots of the table of distinct values: many more than values, so that nearly all are found at once.
_SLOTS = 1 << 14


def distinct(x: Float32, limit: int) -> Float32:
    """See ``reference.distinct``; of more values than ``limit`` (under ``_SLOTS``), those that are seen first."""
    assert limit < _SLOTS
    table, used = np.empty(_SLOTS, np.float32), np.zeros(_SLOTS, np.bool_)
    _distinct(x, limit, table, used)
    return np.sort(table[used])


@_entry
def _distinct(x, limit, table, used):
    """Open addressing over the bits of a value."""
    found = 0
    for i in range(x.size):
        value = x[i] + np.float32(0)
        if not np.isfinite(value):
            continue
        bits = np.uint32(_bits(value))
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
