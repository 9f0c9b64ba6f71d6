"""Stored weights against the float ones: how far they are off, what they are, and what other grids would make."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.weight_grids import (
    ALIKE_ROUNDED,
    COARSE_DB,
    DEAD,
    MIN_ROW,
    MISPLACED_STEPS,
    GridKind,
    best_noise,
    cosine,
    full_range,
    is_reordered,
    known_sqnr_db,
    noise_on,
    output_matrix,
    power_of,
    rows_along,
    similarity,
)
from quantmedic.engine.decibels import sqnr_db, to_decibels

#: More rows are not searched for one another.
MAX_COMPARED_ROWS = 512
Values = NDArray[np.float32]
Floats = NDArray[np.float64]


def channel_errors(source: Values, stored: Values, axis: int | None) -> dict[str, float | None]:
    """Errors of the single channels that are not dead, the quiet ones included."""
    if axis is None:
        return {}
    x, y = rows_along(source, axis), rows_along(stored, axis)
    tops = np.abs(x).max(axis=1)
    alive = tops > DEAD * tops.max()
    if not alive.any():
        return {}
    power, noise = power_of(x[alive]), power_of((y - x)[alive])
    levels = sqnr_db(power, noise)
    return {
        "coarse_share": float((levels < COARSE_DB).mean()),
        "erased_channels": int((~y[alive].any(axis=1)).sum()),
    }


def mean_error_steps(source: Values, stored: Values, quantizer: Quantizer) -> float | None:
    """Mean error in steps of each weight's own scale."""
    step = quantizer.steps(source.shape)
    if not (step > 0).all() or not np.isfinite(step).all():
        return None
    return float(((stored.astype(np.float64) - source) / step).mean())


def resemblance(stored: Constant, source: Values, axis: int | None) -> dict[str, float | str | None]:
    """Whether the stored weights are a rounding of the float ones, or else what they are."""
    quantizer, values = stored.quantizer, stored.values
    assert quantizer is not None and values is not None  # asked for by the caller
    step = quantizer.steps(source.shape)
    # What lies beyond the grid is clipped, not misplaced.
    reachable = np.clip(source, *quantizer.ends(source.shape))
    misplaced = np.abs(values - reachable) > MISPLACED_STEPS * step
    if axis is None:
        return {"misplaced_share": float(misplaced.mean())}
    same = similarity(*(output_matrix(a, axis) for a in (values, source)))
    return {
        "misplaced_share": float(misplaced.mean()),
        "similarity": same,
        "found_as": "same" if same > ALIKE_ROUNDED else _known_form(values, source, axis),
        "axis_gain_db": _axis_gain_db(stored, source, axis),
    }


def _known_form(stored: Values, source: Values, axis: int) -> str:
    if stored.shape[0] == stored.shape[1] and cosine(np.swapaxes(stored, 0, 1), source) > ALIKE_ROUNDED:
        return "transposed"
    mine, theirs = rows_along(stored, axis), rows_along(source, axis)
    few = mine.shape[0] <= MAX_COMPARED_ROWS and mine.shape[1] >= MIN_ROW
    return "reordered" if few and is_reordered(mine, theirs, ALIKE_ROUNDED) else "other"


def _axis_gain_db(stored: Constant, source: Values, axis: int) -> float | None:
    """dB that scales along another axis would gain; None where there is one scale, or one per block."""
    quantizer, values = stored.quantizer, stored.values
    if quantizer is None or values is None or quantizer.axis is None or quantizer.block_size or quantizer.dynamic:
        return None
    declared = quantizer.axis % source.ndim
    others = [
        replace(quantizer, axis=other).dequantize(stored.codes)
        for other in range(source.ndim)
        if other != declared and stored.codes is not None and source.shape[other] == quantizer.scale.size
    ]
    rows, now = rows_along(source, axis), rows_along(values, axis)
    noises = [power_of(rows_along(other, axis) - rows) for other in others]
    if declared != axis:
        kind = GridKind(quantizer.bits, symmetric=True)
        noises.append(noise_on(rows, *full_range(rows, kind), kind))
    gains = [_noise_gain_db(power_of(rows), power_of(now - rows), noise) for noise in noises]
    return max((gain for gain in gains if gain is not None), default=None)


def _noise_gain_db(power: Floats, before: Floats, after: Floats) -> float | None:
    """dB gained by all channels together or by the worst that is not dead, whichever is larger."""
    alive = power > DEAD**2 * power.max()
    if not alive.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        together = before.sum() / after.sum()
        worst = (before[alive] / power[alive]).max() / (after[alive] / power[alive]).max()
    known = [to_decibels(float(ratio)) for ratio in (together, worst) if not np.isnan(ratio)]
    return max(known, default=None)


def grid_predictions(stored: Constant, source: Values, axis: int | None) -> dict[str, float | None]:
    """What other grids would make of the float weights."""
    quantizer = stored.quantizer
    if quantizer is None or quantizer.dynamic:
        return {}
    found: dict[str, float | None] = {}
    if axis is not None:
        even = GridKind(quantizer.bits, symmetric=True)
        found["predicted_per_channel_sqnr_db"] = _full_range_sqnr_db(rows_along(source, axis), even)
    if quantizer.block_size:
        return found
    kind = GridKind(quantizer.bits, symmetric=_is_even(quantizer))
    rows = source.reshape(1, -1) if quantizer.axis is None else rows_along(source, quantizer.axis % source.ndim)
    noise, power = best_noise(rows, kind), power_of(rows)
    found["predicted_best_sqnr_db"] = known_sqnr_db(float(power.sum()), float(noise.sum()))
    if axis is not None and quantizer.axis is not None and quantizer.axis % source.ndim == axis:
        tops = np.abs(rows).max(axis=1)
        alive = tops > DEAD * tops.max()
        levels = [known_sqnr_db(float(p), float(n)) for p, n in zip(power[alive], noise[alive], strict=True)]
        found["predicted_best_channel_sqnr_db"] = min((db for db in levels if db is not None), default=None)
    if quantizer.bits < 8:
        found["predicted_8bit_sqnr_db"] = _full_range_sqnr_db(rows, replace(kind, bits=8))
    return found


def _is_even(quantizer: Quantizer) -> bool:
    """Codes lie evenly around 0.0."""
    return bool(np.all(quantizer.zero_point == (0 if quantizer.signed else 2 ** (quantizer.bits - 1))))


def _full_range_sqnr_db(rows: Values, kind: GridKind) -> float | None:
    noise = noise_on(rows, *full_range(rows, kind), kind)
    return known_sqnr_db(float(power_of(rows).sum()), float(noise.sum()))
