"""The statistics of one tensor as compiled loops; ``numpy_loops`` states the same in plain numpy.

A row is walked in chunks that stay in the first-level cache: each loop does one thing over one chunk, so that it
vectorizes, and a tensor is fetched from memory once for all of them. Sums run in float32 over one chunk and are added
into float64. The fast loops assume finite values of ordinary magnitude; whether they were is seen in the extremes that
they return, and a chunk for which it does not hold is done again, carefully, in float64.
"""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.statistics.compiled_cache import cached_njit
from quantmedic.collectors.statistics.distinct_values import distinct
from quantmedic.collectors.statistics.float_bits import bits_of, float_of
from quantmedic.collectors.statistics.numpy_loops import Deployed, Rounding
from quantmedic.collectors.statistics.tensor_columns import Columns, Errors, errors_of
from quantmedic.engine.case.histogram import BINS, NONFINITE, SHIFT
from quantmedic.engine.case.statistics import BUCKETS, SHOWN_BUCKETS, TensorStatistics

__all__ = ["distinct", "observe", "observe_error", "sample_moments"]

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Integers = NDArray[np.int64]
#: Count, non-finite, Σd, Σd², Σx·d, Σx² and max|d| of a difference d of a chunk x.
_Difference = tuple[float, float, float, float, float, float, float]
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
_entry = cached_njit()
_jit = cached_njit(forceinline=True)
# Sums may be reordered, else they do not vectorize; NaN and infinities keep their meaning, else they could be missed.
_sum = cached_njit(forceinline=True, fastmath={"reassoc", "nsz"})


def observe(
    x: Float32,
    into: TensorStatistics,
    buckets: NDArray[np.int64],
    rounding: Rounding | None = None,
    deployed: Deployed | None = None,
) -> NDArray[np.float64]:
    """See ``numpy_loops.observe``; ``x`` and the deployed codes are C-contiguous."""
    codes, scale, zero = deployed or (_NO_CODES, _NO_CHANNELS, _NO_CHANNELS)
    if deployed is not None and codes.dtype not in _KINDS:
        codes = deployed.values()
    kind = -1 if deployed is None else _KINDS[codes.dtype]
    columns = into.prepared if isinstance(into.prepared, Columns) else Columns.of(into)
    into.prepared = columns
    ends = np.empty((2, len(buckets)))
    shown = (codes.reshape(-1).view(np.uint8), kind, scale, zero)
    _observe(x, buckets, ends, columns, rounding or _NO_ROUNDING, shown)
    return ends


def observe_error(x: Float32, y: Float32, into: TensorStatistics, kind: str) -> None:
    """See ``numpy_loops.observe_error``; both are C-contiguous."""
    _compare(x, y, errors_of(into, kind))


@_sum
def _scan(x: Float32) -> tuple[np.int32, np.int32, np.float32]:
    """Smallest and largest value as ordered integers, and the sum."""
    low, high, total = np.int32(2147483647), np.int32(-2147483648), np.float32(0)
    for i in range(x.size):
        b = bits_of(x[i])
        key = np.int32(b ^ np.int32(np.int32(b >> np.int32(31)) & _MAGNITUDE))
        low = min(low, key)
        high = max(high, key)
        total += x[i]
    return low, high, total


@_jit
def _bits_of_key(key: np.int32) -> np.int32:
    return np.int32(key ^ np.int32(np.int32(key >> np.int32(31)) & _MAGNITUDE))


@_jit
def _float_value(bits: np.int32) -> np.float64:
    return np.float64(float_of(bits))


@_jit
def _is_plain(bits: np.int32) -> bool:
    """Squares of numbers up to this magnitude fit float32; infinities and NaN have larger bits."""
    return bool(bits == 0 or _SMALLEST <= bits <= _LARGEST)


@_jit
def _survey(x: Float32) -> tuple[np.int32, np.int32, np.float32, bool]:
    """Bits of the smallest and the largest value, a number near the mean, and whether the fast loops will do."""
    low_key, high_key, total = _scan(x)
    low, high = _bits_of_key(low_key), _bits_of_key(high_key)
    return low, high, total / np.float32(x.size), _is_plain(max(low & _MAGNITUDE, high & _MAGNITUDE))


@_jit
def _finite_ends(x: Float32) -> tuple[float, float]:
    """Smallest and largest finite value of a chunk."""
    low, high, _, plain = _survey(x)
    if plain:
        return _float_value(low), _float_value(high)
    _, _, _, smallest, largest, _ = _careful_moments(x)
    return smallest, largest


@_sum
def _deviations(x: Float32, shift: np.float32) -> tuple[np.float32, np.float32]:
    """Sums of differences from a number near the mean lose no digits."""
    total, square = np.float32(0), np.float32(0)
    for i in range(x.size):
        d = x[i] - shift
        total += d
        square += d * d
    return total, square


@_jit
def _moments(x: Float32, shift: np.float32) -> tuple[float, float, float]:
    """Mean, M2 and Σx² of a chunk."""
    total, square = _deviations(x, shift)
    near, d, d2 = np.float64(shift), np.float64(total), np.float64(square)
    return near + d / x.size, max(d2 - d * d / x.size, 0.0), d2 + 2 * near * d + x.size * near * near


@_jit
def _careful_moments(x: Float32) -> tuple[int, float, float, float, float, float]:
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
def _merge_two(
    n: float, mean: float, m2: float, more: float, its_mean: float, its_m2: float
) -> tuple[float, float, float]:
    """Count, mean and M2 of two sets together, the second not empty; see ``numpy_loops.merge_moments``."""
    delta, share = its_mean - mean, more / (n + more)
    return n + more, mean + delta * share, m2 + its_m2 + delta * delta * n * share


@_sum
def _differences(x: Float32, y: Float32) -> tuple[np.float32, np.float32, np.float32, np.int32]:
    total, square, cross, top = np.float32(0), np.float32(0), np.float32(0), np.int32(0)
    for i in range(x.size):
        e = y[i] - x[i]
        total += e
        square += e * e
        cross += x[i] * e
        top = max(top, np.int32(bits_of(e) & _MAGNITUDE))
    return total, square, cross, top


@_jit
def _careful_differences(x: Float32, y: Float32) -> _Difference:
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
def _difference_of(x: Float32, y: Float32, plain: bool, power: float) -> _Difference:
    """Count, non-finite, Σd, Σd², Σx·d, Σx² and max|d| of ``y - x`` in a chunk.

    ``plain`` says that ``x`` suits the fast loop, ``power`` is then its Σx².
    """
    if plain:
        total, square, cross, top = _differences(x, y)
        if _is_plain(top):
            return x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _float_value(top)
    careful: _Difference = _careful_differences(x, y)
    return careful


@_sum
def _round_trip(
    x: Float32, scale: np.float32, low: np.float32, high: np.float32
) -> tuple[np.float32, np.float32, np.float32, np.int32, np.float32, np.float32]:
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
        top = max(top, np.int32(bits_of(e) & _MAGNITUDE))
        clipped += outside
        energy += outside * e * e
    return total, square, cross, top, clipped, energy


@_jit
def _careful_round_trip(
    x: Float32, scale: np.float32, low: np.float32, high: np.float32, y: Float32
) -> tuple[int, float]:
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
def _dequantize(codes: NDArray[np.integer], scale: np.float32, zero: np.float32, y: Float32) -> None:
    for i in range(codes.size):
        y[i] = (np.float32(codes[i]) - zero) * scale


@_jit
def _real_values(
    codes: NDArray[np.uint8], kind: int, start: int, n: int, scale: np.float32, zero: np.float32, y: Float32
) -> Float32:
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
def _count(x: Float32, tables: NDArray[np.int32]) -> None:
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
def _count_finite(x: Float32, histogram: Integers) -> None:
    bits = x.view(np.uint32)
    for i in range(bits.size):
        if np.isfinite(x[i]):
            histogram[bits[i] >> SHIFT] += 1


@_jit
def _count_shown(
    y: Float32,
    start: int,
    span: int,
    buckets: Integers,
    first: int,
    tables: NDArray[np.int32],
    histogram: Integers,
) -> None:
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
def _survey_finite(x: Float32) -> tuple[float, float, float, float, float, float, bool]:
    """Count, mean, M2, extremes and Σx² of the finite values of a chunk, and whether it suits the fast loops."""
    low, high, shift, plain = _survey(x)
    if not plain:
        return *_careful_moments(x), False
    mean, m2, power = _moments(x, shift)
    return x.size, mean, m2, _float_value(low), _float_value(high), power, True


@_jit
def _rounding_of(
    x: Float32,
    plain: bool,
    power: float,
    scale: np.float32,
    low: np.float32,
    high: np.float32,
    scratch: Float32,
) -> tuple[_Difference, np.int64, float]:
    """``_difference_of`` of the round trip of a chunk through the codes, and count and energy of the clipped values."""
    if plain:
        total, square, cross, top, outside, energy = _round_trip(x, scale, low, high)
        if _is_plain(top):
            error = x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _float_value(top)
            return error, np.int64(outside), np.float64(energy)
    y = scratch[: x.size]
    outside, energy = _careful_round_trip(x, scale, low, high, y)
    n, _, total, square, cross, power, top = _careful_differences(x, y)
    return (n, 0, total, square, cross, power, top), np.int64(outside), energy


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
        low, high = _finite_ends(part)
        _extend(bucket_min, bucket_max, buckets[g], ends, g, low, high)


@_jit
def _add(
    errors: Errors,
    c: int,
    n: float,
    nonfinite: float,
    total: float,
    square: float,
    cross: float,
    power: float,
    top: float,
) -> None:
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
    deployed: tuple[NDArray[np.uint8], int, Float32, Float32],
) -> None:
    outer, channels, inner = x.shape
    ends[0], ends[1] = np.inf, -np.inf
    codes, kind, code_scale, zero = deployed
    scale, low_code, high_code = rounding
    values, bucket_min, bucket_max, clipped, clipped_energy, rounded, accumulated, deployed_min, deployed_max, shown = (
        into
    )
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
                n, mean, m2, smallest, largest, power, plain = _survey_finite(chunk)
                low, high = min(low, smallest), max(high, largest)
                values.nonfinite[c] += chunk.size - n
                if n:
                    values.seen[c], values.mean[c], values.m2[c] = _merge_two(
                        values.seen[c], values.mean[c], values.m2[c], n, mean, m2
                    )
                if many and plain:
                    _count(chunk, tables)
                else:
                    _count_finite(chunk, values.histogram)
                if rounds:
                    error, outside, energy = _rounding_of(
                        chunk, plain, power, scale[c], low_code[c], high_code[c], scratch
                    )
                    _add(rounded, c, *error)
                    clipped[c] += outside
                    clipped_energy[c] += energy
                if compares:
                    place = (o * channels + c) * inner + start
                    y = _real_values(codes, kind, place, chunk.size, code_scale[c], zero[c], scratch)
                    _add(accumulated, c, *_difference_of(chunk, y, plain, power))
                    lowest, highest = _finite_ends(y)
                    deployed_min[c], deployed_max[c] = min(deployed_min[c], lowest), max(deployed_max[c], highest)
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
def _compare(x: Float32, y: Float32, errors: Errors) -> None:
    outer, channels, inner = x.shape
    for o in range(outer):
        for c in range(channels):
            for start in range(0, inner, CHUNK):
                a, b = x[o, c, start : start + CHUNK], y[o, c, start : start + CHUNK]
                _, _, _, _, _, power, plain = _survey_finite(a)
                _add(errors, c, *_difference_of(a, b, plain, power))


def sample_moments(x: Float32) -> tuple[Float32, Float32, Float32, NDArray[np.int64]]:
    """See ``numpy_loops.sample_moments``."""
    columns, nonfinite = np.empty((3, len(x)), np.float32), np.zeros(len(x), np.int64)
    _fill_sample_moments(x, columns, nonfinite)
    return columns[0], columns[1], columns[2], nonfinite


@_entry
def _fill_sample_moments(x: Float32, columns: Float32, nonfinite: Integers) -> None:
    for i in range(len(x)):
        row = x[i]
        n, mean, m2, top = 0, 0.0, 0.0, -np.inf
        for start in range(0, row.size, CHUNK):
            chunk = row[start : start + CHUNK]
            size, its_mean, its_m2, _, largest, _, _ = _survey_finite(chunk)
            nonfinite[i] += chunk.size - size
            top = max(top, largest)
            if size:
                n, mean, m2 = _merge_two(n, mean, m2, size, its_mean, its_m2)
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
