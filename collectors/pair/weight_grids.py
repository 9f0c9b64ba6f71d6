"""What another grid would make of weights, and whether stored weights are what the float ones become on a grid.

Weights come as ``[groups, weights]``, float32: one row for each group of weights that share a scale, or for each
channel. Everything is computed on all weights; nothing is sampled.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.decibels import sqnr_db

Values = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Shares of the full range that are tried as ranges, from the widest down.
SHARES = np.arange(20, 0, -1) / 20
#: The search ends where clipping has made every group this many times as noisy as it was at its best.
PAST_THE_BEST = 2.0
#: Weights that are worked on together: few enough for the processor's cache.
_BLOCK = 65_536
#: Share of a channel's largest weights that is left out when the size of the others is measured.
_TAIL = 0.01
#: Fewer weights do not show how large the weights of a channel usually are.
MIN_WEIGHTS = 8
#: Shorter channels are alike by chance.
MIN_ROW = 8
#: Weights with a larger cosine are alike: gains per channel need not be taken out.
CERTAIN = 0.99
#: Rounds in which the gains of rows and columns are taken out of a matrix.
_BALANCING = 20
#: Channels under this share of the tensor's largest magnitude count as dead.
DEAD = 1e-6
#: Weights less similar than this (cosine) were not made from one another; 2-bit weights still reach 0.9.
ALIKE = 0.5
#: Two models are strangers where so many layers, and this share of all that can be compared, are not alike.
MIN_STRANGERS, STRANGER_SHARE = 2, 0.8
#: Stored weights with a smaller cosine are no rounding of the float ones, except at very few bits.
ALIKE_ROUNDED = 0.8
#: Steps between a weight and its float value that no rounding explains; learned rounding goes up to 1 step.
MISPLACED_STEPS = 1.5
#: Channels whose weights keep less than this count as coarse, in dB.
COARSE_DB = 10.0


@dataclass(frozen=True)
class GridKind:
    """How codes are spread: so many bits, evenly around 0.0 or from the lowest value to the highest."""

    bits: int
    symmetric: bool


def full_range(rows: Values, kind: GridKind) -> tuple[Floats, Floats]:
    """Ends of the range that covers every value and 0.0, per row."""
    low = np.minimum(rows.min(axis=1), 0.0).astype(np.float64)
    high = np.maximum(rows.max(axis=1), 0.0).astype(np.float64)
    if kind.symmetric:
        high = np.maximum(-low, high)
        low = -high
    return low, high


def full_steps(rows: Values, kind: GridKind) -> Floats:
    """Step of each row on a grid over its full range."""
    low, high = full_range(rows, kind)
    return (high - low) / _codes(kind)


def _codes(kind: GridKind) -> float:
    return 2.0**kind.bits - (2.0 if kind.symmetric else 1.0)


def noise_on(rows: Values, low: Floats, high: Floats, kind: GridKind) -> Floats:
    """Sum of the squared errors of each row on a grid over ``[low, high]``; a range of nothing erases its row."""
    codes = _codes(kind)
    step = (high - low) / codes
    zero = np.rint(np.divide(-low, step, out=np.zeros_like(step), where=step > 0))
    found = np.zeros(len(rows))
    for part, columns in cache_blocks(rows):
        width = step[part, None].astype(np.float32)
        below, above = (-zero[part, None]).astype(np.float32), (codes - zero[part, None]).astype(np.float32)
        x = rows[part, columns]
        y = np.divide(x, width, out=np.zeros_like(x), where=width > 0)
        np.rint(y, out=y)
        np.clip(y, below, above, out=y)
        y *= width
        y -= x
        found[part] += np.einsum("ij,ij->i", y, y, dtype=np.float64)
    return found


def best_noise(rows: Values, kind: GridKind) -> Floats:
    """Least sum of squared errors of each row over ranges that are a share of the full one."""
    low, high = full_range(rows, kind)
    best = noise_on(rows, low, high, kind)
    for share in SHARES[1:]:
        now = noise_on(rows, share * low, share * high, kind)
        best = np.minimum(best, now)
        if np.all((now > PAST_THE_BEST * best) | (best == 0)):
            break
    return best


def rows_along(values: Values, axis: int) -> Values:
    """One row per index of an axis."""
    return np.ascontiguousarray(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1))


def output_matrix(values: Values, axis: int) -> Values:
    """The weights as ``[outputs, inputs, taps]``, with the outputs along an axis."""
    moved = np.moveaxis(values, axis, 0)
    return moved.reshape(moved.shape[0], moved.shape[1] if moved.ndim > 1 else 1, -1)


def power_of(rows: Values) -> Floats:
    """Sum of squares of each row."""
    powers: Floats = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return powers


def known_sqnr_db(power: float, noise: float) -> float | None:
    """SQNR in dB, inf without noise; None where there is no signal or the noise is no number."""
    return sqnr_db(power, noise) if power > 0 and np.isfinite(noise) else None


def outlier_ratios(matrix: Values, gains: Values | None = None) -> Floats:
    """Largest magnitude of each output over the root mean square without its largest 1 % (at least one).

    What is common to all weights of an input channel is divided out first. 0 where the rest of a row is all zeros.

    Args:
        matrix: ``[outputs, inputs, taps]``.
        gains: ``input_gains`` of the layer where these are some of its outputs; those of ``matrix`` by default.
    """
    common = input_gains(matrix) if gains is None else gains
    rows = (matrix / common).reshape(len(matrix), -1)
    rows *= rows
    size = rows.shape[1]
    kept = size - max(int(np.ceil(_TAIL * size)), 1)
    rows.partition(kept, axis=1)
    rest = rows[:, :kept].mean(axis=1, dtype=np.float64)
    top = rows[:, kept:].max(axis=1)
    ratios: Floats = np.sqrt(np.divide(top, rest, out=np.zeros(len(rows)), where=rest > 0))
    return ratios


def input_gains(matrix: Values) -> Values:
    """Median magnitude of the weights of each input channel, dead ones apart; 1 where they are few, or mostly zeros.

    Takes ``[outputs, inputs, taps]`` and gives ``[1, inputs, 1]``, or ``[1, 1, 1]`` where all are 1.
    """
    if matrix.shape[0] * matrix.shape[2] < MIN_WEIGHTS:
        return np.ones((1, 1, 1), np.float32)
    columns = np.abs(np.moveaxis(matrix, 1, 0)).reshape(matrix.shape[1], -1)
    middle = columns.shape[1] // 2
    columns.partition(middle, axis=1)
    gains = columns[:, middle].reshape(1, -1, 1)
    if not (gains > 0).all():
        return np.ones((1, 1, 1), np.float32)
    # What lies in a dead channel is nothing beside the others, however uneven it is.
    kept: Values = np.maximum(gains, np.float32(DEAD) * gains.max())
    return kept


def cosine(a: Values, b: Values) -> float:
    """Cosine of two arrays of one shape; 0 where one of them is all zeros."""
    x, y = a.reshape(1, -1), b.reshape(1, -1)
    norm = float(np.sqrt(power_of(x)[0] * power_of(y)[0]))
    product = float(np.einsum("ij,ij->i", x, y, dtype=np.float64)[0])
    return product / norm if norm > 0 and np.isfinite(norm) else 0.0


def similarity(stored: Values, original: Values) -> float:
    """Cosine of two arrays ``[outputs, inputs, taps]``, blind to a gain per output and per input channel.

    Equalization and folded normalizations change such gains and leave the function alone. The gains are found by
    giving rows and columns the same norm in turn (Sinkhorn and Knopp 1967).
    """
    plain = cosine(stored, original)
    return plain if plain > CERTAIN else max(plain, cosine(balance_gains(stored), balance_gains(original)))


def balance_gains(values: Values) -> Values:
    """The weights with all outputs and all inputs as large as one another."""
    power = np.einsum("oit,oit->oi", values, values, dtype=np.float64)
    rows, columns = np.ones(len(power)), np.ones(power.shape[1])
    for _ in range(_BALANCING):
        rows = _inverse(power @ columns)
        columns = _inverse(power.T @ rows)
    # Gains of dead channels are outside of float32, and what they give is not.
    balanced: Values = (values * np.sqrt(np.outer(rows, columns))[:, :, None]).astype(np.float32)
    return balanced


def _inverse(values: Floats) -> Floats:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def is_reordered(stored: Values, original: Values, alike: float) -> bool:
    """Nearly every row of the stored weights is a row of the original ones, ``[rows, weights]`` both."""
    a, b = (_unit_rows(rows) for rows in (stored, original))
    return bool(np.median((a @ b.T).max(axis=1)) > alike)


def _unit_rows(rows: Values) -> Floats:
    wide = rows.astype(np.float64)
    norm = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    unit: Floats = np.divide(wide, norm, out=np.zeros_like(wide), where=norm > 0)
    return unit


def cache_blocks(rows: NDArray[Any]) -> Iterator[tuple[slice, slice]]:
    """Parts of a table that fit the processor's cache."""
    width = min(rows.shape[1], _BLOCK)
    height = max(_BLOCK // max(width, 1), 1)
    for top in range(0, len(rows), height):
        for left in range(0, rows.shape[1], max(width, 1)):
            yield slice(top, top + height), slice(left, left + width)
