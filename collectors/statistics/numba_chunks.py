"""What compiled loops do over one chunk of a row, in the first-level cache: each one thing, so that it vectorizes.

Sums run in float32 over one chunk. The fast loops assume finite values of ordinary magnitude; whether they were is seen
in the extremes that they return, and a chunk for which it does not hold is done again, carefully, in float64.

numba keeps the code of ``numba_loops`` until that file changes: touch it where only this one did.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

from quantmedic.collectors.statistics.compiled_cache import cached_njit
from quantmedic.engine.case.histogram import SHIFT
from quantmedic.engine.case.statistics import SHOWN_BUCKETS

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Integers = NDArray[np.int64]
#: Count, non-finite, Σd, Σd², Σx·d, Σx² and max|d| of a difference d of a chunk x.
Difference = tuple[float, float, float, float, float, float, float]
#: Bits of 1e-15 and 1e15: only between them do the squares of a chunk fit float32, with room for their sums.
_SMALLEST = int(np.float32(1e-15).view(np.int32))
_LARGEST = int(np.float32(1e15).view(np.int32))
_MAGNITUDE = np.int32(0x7FFFFFFF)

# All of these are inlined where they are called: see ``numba_loops``.
_jit = cached_njit(forceinline=True)
# Sums may be reordered, else they do not vectorize; NaN and infinities keep their meaning, else they could be missed.
_sum = cached_njit(forceinline=True, fastmath={"reassoc", "nsz"})

#: What decorates the code generators below: numba makes of each a function of one argument, and states no types.
_as_function: Callable[[Callable[..., object]], Callable[[Any], Any]] = intrinsic


@_as_function
def bits_of(typing_context: object, value: object) -> object:
    """The bits of a float32 as int32: the largest of many floats vectorizes only over their bits."""

    def generate(context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]) -> object:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.types.int32(numba.types.float32), generate


@_as_function
def float_of(typing_context: object, bits: object) -> object:
    """The float32 of the given bits."""

    def generate(context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]) -> object:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.types.float32(numba.types.int32), generate


@_as_function
def borrow(typing_context: object, array: Any) -> object:
    """An array whose owner nobody counts: its slices cost nothing, and it must not outlive the array."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: list[ir.Value]) -> object:
        borrowed = context.make_array(array)(context, builder, arguments[0])
        borrowed.meminfo = ir.Constant(borrowed.meminfo.type, None)
        return borrowed._getvalue()

    return array(array), generate


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
def finite_ends(x: Float32) -> tuple[float, float]:
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
def _chunk_moments(x: Float32, shift: np.float32) -> tuple[float, float, float]:
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
def merge_two(
    n: float, mean: float, m2: float, more: float, its_mean: float, its_m2: float
) -> tuple[float, float, float]:
    """Count, mean and M2 of two sets together, the second not empty (Chan, Golub and LeVeque 1979)."""
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
def _careful_differences(x: Float32, y: Float32) -> Difference:
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
def difference_of(x: Float32, y: Float32, plain: bool, power: float) -> Difference:
    """Count, non-finite, Σd, Σd², Σx·d, Σx² and max|d| of ``y - x`` in a chunk.

    ``plain`` says that ``x`` suits the fast loop, ``power`` is then its Σx².
    """
    if plain:
        total, square, cross, top = _differences(x, y)
        if _is_plain(top):
            return x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _float_value(top)
    careful: Difference = _careful_differences(x, y)
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


@_sum
def _code_differences(
    x: Float32, codes: NDArray[np.integer], scale: np.float32, zero: np.float32
) -> tuple[np.float32, np.float32, np.float32, np.int32, np.int32, np.int32]:
    """``_differences`` of what codes stand for, and the smallest and the largest code."""
    total, square, cross, top = np.float32(0), np.float32(0), np.float32(0), np.int32(0)
    low, high = np.int32(2147483647), np.int32(-2147483648)
    for i in range(x.size):
        code = np.int32(codes[i])
        e = (np.float32(code) - zero) * scale - x[i]
        total += e
        square += e * e
        cross += x[i] * e
        top = max(top, np.int32(bits_of(e) & _MAGNITUDE))
        low = min(low, code)
        high = max(high, code)
    return total, square, cross, top, low, high


@_jit
def _compare_codes(
    x: Float32,
    plain: bool,
    power: float,
    codes: NDArray[np.integer],
    scale: np.float32,
    zero: np.float32,
    scratch: Float32,
) -> tuple[Difference, float, float]:
    """``difference_of`` of what codes stand for, and the smallest and the largest finite one of these values."""
    if plain:
        total, square, cross, top, low, high = _code_differences(x, codes, scale, zero)
        if _is_plain(top):
            error = x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _float_value(top)
            a, b = (np.float32(low) - zero) * scale, (np.float32(high) - zero) * scale
            return error, np.float64(min(a, b)), np.float64(max(a, b))
    y = scratch[: x.size]
    _dequantize(codes, scale, zero, y)
    low_value, high_value = finite_ends(y)
    return _careful_differences(x, y), low_value, high_value


@_jit
def compare_shown(
    x: Float32,
    plain: bool,
    power: float,
    arrays: tuple[NDArray[np.generic], ...],
    kind: int,
    start: int,
    scale: np.float32,
    zero: np.float32,
    scratch: Float32,
) -> tuple[Difference, float, float]:
    """``_compare_codes`` with the deployed values from ``start`` on, of whichever type they are."""
    end = start + x.size
    if kind == 1:
        return _compare_codes(x, plain, power, arrays[1][start:end], scale, zero, scratch)
    if kind == 2:
        return _compare_codes(x, plain, power, arrays[2][start:end], scale, zero, scratch)
    if kind == 3:
        return _compare_codes(x, plain, power, arrays[3][start:end], scale, zero, scratch)
    if kind == 4:
        return _compare_codes(x, plain, power, arrays[4][start:end], scale, zero, scratch)
    y = arrays[0][start:end]
    low, high = finite_ends(y)
    return difference_of(x, y, plain, power), low, high


@_jit
def real_values(
    arrays: tuple[NDArray[Any], ...],
    kind: int,
    start: int,
    n: int,
    scale: np.float32,
    zero: np.float32,
    scratch: Float32,
) -> Float32:
    """``n`` deployed values; floats are not copied."""
    y = scratch[:n]
    if kind == 0:
        return arrays[0][start : start + n]
    if kind == 1:
        _dequantize(arrays[1][start : start + n], scale, zero, y)
    elif kind == 2:
        _dequantize(arrays[2][start : start + n], scale, zero, y)
    elif kind == 3:
        _dequantize(arrays[3][start : start + n], scale, zero, y)
    else:
        _dequantize(arrays[4][start : start + n], scale, zero, y)
    return y


@_jit
def _bin_of(value: np.float32) -> np.uint32:
    return np.uint32(bits_of(value)) >> np.uint32(SHIFT)


@_jit
def count(x: Float32, tables: NDArray[np.int32]) -> None:
    """Four tables keep equal neighbours from waiting for each other."""
    n = x.size - x.size % 4
    for i in range(0, n, 4):
        tables[0, _bin_of(x[i])] += 1
        tables[1, _bin_of(x[i + 1])] += 1
        tables[2, _bin_of(x[i + 2])] += 1
        tables[3, _bin_of(x[i + 3])] += 1
    for i in range(n, x.size):
        tables[0, _bin_of(x[i])] += 1


@_jit
def count_finite(x: Float32, histogram: Integers) -> None:
    for i in range(x.size):
        if np.isfinite(x[i]):
            histogram[_bin_of(x[i])] += 1


@_jit
def count_shown(
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
                count(y[begin:end], tables)
            else:
                count_finite(y[begin:end], histogram)
        begin = end


@_jit
def survey_finite(x: Float32) -> tuple[float, float, float, float, float, float, bool]:
    """Count, mean, M2, extremes and Σx² of the finite values of a chunk, and whether it suits the fast loops."""
    low, high, shift, plain = _survey(x)
    if not plain:
        return *_careful_moments(x), False
    mean, m2, power = _chunk_moments(x, shift)
    return x.size, mean, m2, _float_value(low), _float_value(high), power, True


@_jit
def rounding_of(
    x: Float32,
    plain: bool,
    power: float,
    scale: np.float32,
    low: np.float32,
    high: np.float32,
    scratch: Float32,
) -> tuple[Difference, np.int64, float]:
    """``difference_of`` of the round trip of a chunk through the codes, and count and energy of the clipped values."""
    if plain:
        total, square, cross, top, outside, energy = _round_trip(x, scale, low, high)
        if _is_plain(top):
            error = x.size, 0, np.float64(total), np.float64(square), np.float64(cross), power, _float_value(top)
            return error, np.int64(outside), np.float64(energy)
    y = scratch[: x.size]
    outside, energy = _careful_round_trip(x, scale, low, high, y)
    n, _, total, square, cross, power, top = _careful_differences(x, y)
    return (n, 0, total, square, cross, power, top), np.int64(outside), energy
