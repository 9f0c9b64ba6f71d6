"""The statistics of one tensor as compiled loops; ``reference`` states the same in plain numpy.

Each loop does one thing over one contiguous row, so that it vectorizes. Non-finite values are found by their bits and
compacted away first: the float loops may then assume finite values and reorder sums. Sums run in float32 over at most
``CHUNK`` values and are added into float64.
"""

import os
import tempfile
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case import TensorStatistics
from quantmedic.engine.histogram import BINS, SHIFT

Float32 = NDArray[np.float32]
CHUNK = 2048
SMALL = 1 << 16
#: Bits of 1e-15 and 1e15: only between them do the squares of a row fit float32, with room for their sums.
_SMALLEST = int(np.float32(1e-15).view(np.int32))
_LARGEST = int(np.float32(1e15).view(np.int32))
_EXPONENT = 0x7F800000
_REORDER = {"reassoc", "contract", "arcp", "nsz", "nnan", "ninf"}


def _cache_folder() -> str:
    """Where compiled code is kept between runs.

    Never beside the source: files that pip does not know would survive an uninstall and hide the next install.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    folder = Path(root) / "quantmedic" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return os.path.join(tempfile.gettempdir(), f"quantmedic-kernels-{os.getpid()}")


# numba looks the folder up once per function, when it is decorated.
_user_choice = numba.config.CACHE_DIR  # type: ignore[attr-defined]
numba.config.CACHE_DIR = _user_choice or _cache_folder()  # type: ignore[attr-defined]
_jit = numba.njit(cache=True, nogil=True)
_sum = numba.njit(cache=True, nogil=True, fastmath=_REORDER, inline="never")


def observe_values(x: Float32, into: TensorStatistics, buckets: NDArray[np.int64]) -> None:
    """See ``reference.observe_values``; ``x`` is C-contiguous ``[outer, channels, inner]``."""
    _values(
        x,
        x.view(np.int32),
        buckets,
        into.count,
        into.nonfinite,
        into.mean,
        into.m2,
        into.min,
        into.max,
        into.histogram,
        into.bucket_min,
        into.bucket_max,
    )


def observe_error(x: Float32, y: Float32, into: TensorStatistics, kind: str) -> None:
    """See ``reference.observe_error``."""
    e = into.errors[kind]
    _errors(
        x,
        y,
        x.view(np.int32),
        y.view(np.int32),
        e["count"],
        e["nonfinite"],
        e["sum"],
        e["square"],
        e["cross"],
        e["power"],
        e["max"],
    )


def observe_rounding(x: Float32, scale: Float32, low: Float32, high: Float32, into: TensorStatistics) -> None:
    """See ``reference.observe_rounding``."""
    e = into.errors["rounding"]
    _rounding(
        x,
        x.view(np.int32),
        scale,
        low,
        high,
        e["count"],
        e["sum"],
        e["square"],
        e["cross"],
        e["power"],
        e["max"],
        into.clipped,
        into.clipped_energy,
    )


@_jit
def _scan(bits):
    """Smallest and largest value as ordered integers, and the largest magnitude's bits."""
    low, high, top = np.int32(2147483647), np.int32(-2147483648), np.int32(0)
    for i in range(bits.size):
        b = bits[i]
        key = b ^ ((b >> 31) & np.int32(0x7FFFFFFF))
        low = min(low, key)
        high = max(high, key)
        top = max(top, b & np.int32(0x7FFFFFFF))
    return low, high, top


@_jit
def _value_of_key(key):
    bits = np.empty(1, np.int32)
    bits[0] = key ^ ((key >> 31) & np.int32(0x7FFFFFFF))
    return np.float64(bits.view(np.float32)[0])


@_jit
def _compact(x, bits, kept):
    """Copy the finite values of a row into ``kept``; returns how many."""
    n = 0
    for i in range(x.size):
        if (bits[i] & np.int32(0x7FFFFFFF)) < _EXPONENT:
            kept[n] = x[i]
            n += 1
    return n


@_sum
def _chunk_moments(x, shift):
    total, square = np.float32(0), np.float32(0)
    for i in range(x.size):
        d = x[i] - shift
        total += d
        square += d * d
    return total, square


@_jit
def _first_mean(row):
    """A number near the mean: sums of differences from it lose no digits, whatever the first value is."""
    n = min(row.size, 64)
    total = 0.0
    for i in range(n):
        total += row[i]
    return np.float32(total / n)


@_jit
def _is_wide(top):
    """The largest magnitude of a row, as bits, asks for sums in float64."""
    return top > _LARGEST or 0 < top < _SMALLEST


@_jit
def _moments(x, shift, wide):
    total, square = 0.0, 0.0
    if wide:
        for i in range(x.size):
            d = np.float64(x[i]) - np.float64(shift)
            total += d
            square += d * d
        return total, square
    for start in range(0, x.size, CHUNK):
        part, part2 = _chunk_moments(x[start : start + CHUNK], shift)
        total += part
        square += part2
    return total, square


@_jit
def _largest(bits, n):
    """Largest magnitude of the first ``n`` floats, by their bits: a float maximum does not vectorize."""
    top = np.int32(0)
    for i in range(n):
        top = max(top, bits[i] & np.int32(0x7FFFFFFF))
    return top


@_sum
def _chunk_differences(x, y, d):
    total, square, cross, power = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for i in range(x.size):
        e = y[i] - x[i]
        d[i] = e
        total += e
        square += e * e
        cross += x[i] * e
        power += x[i] * x[i]
    return total, square, cross, power


@_jit
def _wide_differences(x, y):
    """The same in float64, one by one."""
    total, square, cross, power, top = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(x.size):
        e = np.float64(y[i]) - np.float64(x[i])
        total += e
        square += e * e
        cross += np.float64(x[i]) * e
        power += np.float64(x[i]) * np.float64(x[i])
        top = max(top, abs(e))
    return total, square, cross, power, top


@_jit
def _differences(x, y, d, d_bits):
    """Sums over a row; ``d`` is scratch of ``CHUNK`` floats and ``d_bits`` the same memory as integers."""
    total, square, cross, power, top = 0.0, 0.0, 0.0, 0.0, np.int32(0)
    for start in range(0, x.size, CHUNK):
        a = x[start : start + CHUNK]
        s, s2, sx, p = _chunk_differences(a, y[start : start + CHUNK], d)
        total += s
        square += s2
        cross += sx
        power += p
        top = max(top, _largest(d_bits, a.size))
    return total, square, cross, power, _value_of_key(top)


@_sum
def _chunk_round_trip(x, scale, inverse, low, high, d):
    total, square, cross, power = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    clipped, energy = np.float32(0), np.float32(0)
    for i in range(x.size):
        code = np.rint(x[i] * inverse)
        kept = min(max(code, low), high)
        e = kept * scale - x[i]
        d[i] = e
        outside = np.float32(1) if kept != code else np.float32(0)
        total += e
        square += e * e
        cross += x[i] * e
        power += x[i] * x[i]
        clipped += outside
        energy += outside * e * e
    return total, square, cross, power, clipped, energy


@_jit
def _wide_round_trip(x, scale, low, high, kept):
    """The same in float64: the rounded row goes to ``kept``, then both are compared."""
    clipped, energy = 0.0, 0.0
    for i in range(x.size):
        code = np.rint(np.float64(x[i]) / np.float64(scale))
        inside = min(max(code, np.float64(low)), np.float64(high))
        kept[i] = np.float32(inside * np.float64(scale))
        if inside != code:
            e = np.float64(kept[i]) - np.float64(x[i])
            clipped += 1.0
            energy += e * e
    total, square, cross, power, top = _wide_differences(x, kept)
    return total, square, cross, power, top, clipped, energy


@_jit
def _round_trip(x, scale, low, high, d, d_bits):
    """Sums of the rounding error of a row, and the count and energy of what lies outside the codes."""
    inverse = np.float32(1) / scale
    total, square, cross, power, top = 0.0, 0.0, 0.0, 0.0, np.int32(0)
    clipped, energy = 0.0, 0.0
    for start in range(0, x.size, CHUNK):
        a = x[start : start + CHUNK]
        s, s2, sx, p, n, e = _chunk_round_trip(a, scale, inverse, low, high, d)
        total += s
        square += s2
        cross += sx
        power += p
        clipped += n
        energy += e
        top = max(top, _largest(d_bits, a.size))
    return total, square, cross, power, _value_of_key(top), clipped, energy


@_jit
def _count_bits(bits, tables):
    n = bits.size - bits.size % 4
    for i in range(0, n, 4):
        tables[0, np.uint32(bits[i]) >> SHIFT] += 1
        tables[1, np.uint32(bits[i + 1]) >> SHIFT] += 1
        tables[2, np.uint32(bits[i + 2]) >> SHIFT] += 1
        tables[3, np.uint32(bits[i + 3]) >> SHIFT] += 1
    for i in range(n, bits.size):
        tables[0, np.uint32(bits[i]) >> SHIFT] += 1


@_jit
def _values(x, bits, buckets, count, nonfinite, mean, m2, low, high, histogram, bucket_min, bucket_max):
    outer, channels, inner = x.shape
    kept = np.empty(inner, np.float32)
    # Four tables keep equal neighbours from waiting for each other; for little data their set-up would cost more.
    many = outer * channels * inner > SMALL
    tables = np.zeros((4, BINS), np.int64) if many else np.zeros((4, 1), np.int64)
    # Gathered rows hold several samples side by side: one outer row, a bucket for each sample.
    if inner == 0:
        return
    groups = buckets.size if outer == 1 and buckets.size > 1 else 1
    span = inner // groups
    for o in range(outer):
        for c in range(channels):
            row, row_bits = x[o, c], bits[o, c]
            lo, hi, top = _scan(row_bits)
            if top >= _EXPONENT:
                n = _compact(row, row_bits, kept)
                nonfinite[c] += inner - n
                if n == 0:
                    continue
                row = kept[:n]
                row_bits = row.view(np.int32)
                lo, hi, top = _scan(row_bits)
            n = row.size
            if many:
                _count_bits(row_bits, tables)
            else:
                for i in range(n):
                    histogram[np.uint32(row_bits[i]) >> SHIFT] += 1
            shift = _first_mean(row)
            total, square = _moments(row, shift, _is_wide(top))
            row_mean = shift + total / n
            row_m2 = max(square - total * total / n, 0.0)
            seen = count[c]
            delta = row_mean - mean[c]
            m2[c] += row_m2 + delta * delta * seen * n / (seen + n)
            mean[c] += delta * n / (seen + n)
            count[c] = seen + n
            smallest, largest = _value_of_key(lo), _value_of_key(hi)
            low[c] = min(low[c], smallest)
            high[c] = max(high[c], largest)
            if groups > 1:
                for g in range(groups):
                    _bucket_part(
                        x[o, c, g * span : (g + 1) * span],
                        bits[o, c, g * span : (g + 1) * span],
                        buckets[g],
                        bucket_min,
                        bucket_max,
                    )
            elif buckets[o] >= 0:
                bucket_min[buckets[o]] = min(bucket_min[buckets[o]], smallest)
                bucket_max[buckets[o]] = max(bucket_max[buckets[o]], largest)
    for b in range(BINS if many else 0):
        histogram[b] += tables[0, b] + tables[1, b] + tables[2, b] + tables[3, b]


@_jit
def _bucket_part(row, bits, bucket, bucket_min, bucket_max):
    if bucket < 0:
        return
    for i in range(row.size):
        if (bits[i] & np.int32(0x7FFFFFFF)) < _EXPONENT:
            bucket_min[bucket] = min(bucket_min[bucket], np.float64(row[i]))
            bucket_max[bucket] = max(bucket_max[bucket], np.float64(row[i]))


@_jit
def _errors(x, y, x_bits, y_bits, count, nonfinite, total, square, cross, power, top):
    outer, channels, inner = x.shape
    kept_x, kept_y = np.empty(inner, np.float32), np.empty(inner, np.float32)
    d = np.empty(CHUNK, np.float32)
    d_bits = d.view(np.int32)
    for o in range(outer):
        for c in range(channels):
            a, b = x[o, c], y[o, c]
            top_x, top_y = _scan(x_bits[o, c])[2], _scan(y_bits[o, c])[2]
            if top_x >= _EXPONENT or top_y >= _EXPONENT:
                n = 0
                for i in range(inner):
                    fine_y = (y_bits[o, c, i] & np.int32(0x7FFFFFFF)) < _EXPONENT
                    nonfinite[c] += not fine_y
                    if fine_y and (x_bits[o, c, i] & np.int32(0x7FFFFFFF)) < _EXPONENT:
                        kept_x[n] = a[i]
                        kept_y[n] = b[i]
                        n += 1
                a, b = kept_x[:n], kept_y[:n]
                top_x, top_y = _largest(a.view(np.int32), n), _largest(b.view(np.int32), n)
            if _is_wide(max(top_x, top_y)):
                s, s2, sx, p, t = _wide_differences(a, b)
            else:
                s, s2, sx, p, t = _differences(a, b, d, d_bits)
            count[c] += a.size
            total[c] += s
            square[c] += s2
            cross[c] += sx
            power[c] += p
            top[c] = max(top[c], t)


@_jit
def _rounding(x, bits, scale, low, high, count, total, square, cross, power, top, clipped, energy):
    outer, channels, inner = x.shape
    kept = np.empty(inner, np.float32)
    rounded = np.empty(inner, np.float32)
    d = np.empty(CHUNK, np.float32)
    d_bits = d.view(np.int32)
    for o in range(outer):
        for c in range(channels):
            row = x[o, c]
            largest = _scan(bits[o, c])[2]
            if largest >= _EXPONENT:
                row = kept[: _compact(row, bits[o, c], kept)]
                largest = _largest(row.view(np.int32), row.size)
            if _is_wide(largest):
                s, s2, sx, p, t, n, e = _wide_round_trip(row, scale[c], low[c], high[c], rounded[: row.size])
            else:
                s, s2, sx, p, t, n, e = _round_trip(row, scale[c], low[c], high[c], d, d_bits)
            count[c] += row.size
            total[c] += s
            square[c] += s2
            cross[c] += sx
            power[c] += p
            top[c] = max(top[c], t)
            clipped[c] += np.int64(n)
            energy[c] += e


numba.config.CACHE_DIR = _user_choice  # type: ignore[attr-defined]
