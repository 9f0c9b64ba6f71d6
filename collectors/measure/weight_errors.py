"""Stored weights against the float ones: how far they are off, what they are, and what other grids would make."""

import math
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
    cache_blocks,
    cosine,
    full_range,
    full_steps,
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
#: Codes of more bits are not counted.
MOST_COUNTED_BITS = 16
#: Learned rounding moves a weight by up to a step; computed in floating point.
ONE_STEP = 1.001
#: Scales follow the channels of an axis where so many of them, and this share, do within this part of their size.
MIN_FOLLOWED, FOLLOWED, SAME_SCALE = 4, 0.9, 0.02
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
    return {"coarse_share": float((levels < COARSE_DB).mean())}


def common_shift(source: Values, stored: Values, quantizer: Quantizer) -> dict[str, float | None]:
    """Mean error in steps of each weight's own scale, and how much of the squared error it makes."""
    step = quantizer.steps(source.shape)
    if not (step > 0).all() or not np.isfinite(step).all():
        return {"rounding_mean_steps": None, "shift_error_share": None}
    error = (stored.astype(np.float64) - source) / step
    mean, power = float(error.mean()), _power(error) / error.size
    return {"rounding_mean_steps": mean, "shift_error_share": mean**2 / power if power > 0 else None}


def resemblance(stored: Constant, source: Values, axis: int | None) -> dict[str, float | str | None]:
    """Whether the stored weights are a rounding of the float ones, or else what they are."""
    quantizer, values = stored.quantizer, stored.values
    assert quantizer is not None and values is not None  # asked for by the caller
    step = quantizer.steps(source.shape)
    # What lies beyond the grid is clipped, not misplaced.
    off = np.abs(values - np.clip(source, *quantizer.ends(source.shape)))
    far = off > MISPLACED_STEPS * step
    if far.any() and (bits := code_facts(stored, source).get("effective_bits", quantizer.bits)) < quantizer.bits:
        far &= _codes_away(values, source, step) > 1
        step = step * 2.0 ** (quantizer.bits - bits)
    error, misplaced = (values - source).astype(np.float64), float(far.mean())
    made, power = _power(error[far]), _power(error)
    found: dict[str, float | str | None] = {
        "misplaced_share": misplaced,
        "misplaced_error_share": made / power if power > 0 else 0.0,
    }
    if axis is None:
        return found
    same = similarity(*(output_matrix(a, axis) for a in (values, source)))
    return {
        **found,
        "disordered_share": _disordered_share(values, source, axis, step) if misplaced else 0.0,
        "gain_error_share": _gain_error_share(values, source, axis),
        "similarity": same,
        "found_as": "same" if same > ALIKE_ROUNDED else _known_form(values, source, axis),
        "axis_gain_db": _axis_gain_db(stored, source, axis),
        "scale_axis": scale_axis(stored, source, axis),
    }


def _codes_away(values: Values, source: Values, step: Values) -> NDArray[np.int64]:
    """How many of the codes in use lie between the code of each weight and the one nearest to its float value.

    Few codes may lie unevenly, as powers of two do.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a step of 0 holds nothing but zeros
        codes, wanted = np.nan_to_num(np.rint(values / step)), np.nan_to_num(source / step)
    used = np.unique(codes)
    nearest = np.searchsorted((used[1:] + used[:-1]) / 2, wanted)
    return np.abs(nearest - np.searchsorted(used, codes))


def difference_of_floats(values: Values, source: Values, axis: int | None) -> dict[str, float | None]:
    """How far weights that are stored as floats are from the float model's; nothing where they are the same."""
    noise, power = _power((values - source).astype(np.float64)), _power(source.astype(np.float64))
    level = known_sqnr_db(power, noise) if noise > 0 else None
    if level is None or not np.isfinite(level):
        return {}
    gains = _gain_error_share(values, source, axis) if axis is not None else None
    return {"unrounded_sqnr_db": level, "unrounded_gain_share": gains}


def _power(errors: Floats) -> float:
    """Sum of squares; BLAS would have its threads wait for the next call, which costs more than the sum."""
    flat = errors.ravel()
    return float(np.einsum("i,i->", flat, flat))


def _disordered_share(stored: Values, source: Values, axis: int, step: NDArray[np.generic]) -> float | None:
    """Share of neighbours in the order of the float weights of a channel that are stored the other way round.

    Neighbours of equal float values have no order. None where channels are of one weight.
    """
    rows = [rows_along(a, axis)[:MAX_COMPARED_ROWS] for a in (source, stored, np.broadcast_to(step, source.shape))]
    order = np.argsort(rows[0], axis=1)
    x, y, width = (np.take_along_axis(row, order, axis=1) for row in rows)
    apart = np.diff(x, axis=1) > 0
    fallen = np.diff(y, axis=1) < -np.minimum(width[:, 1:], width[:, :-1]) * ONE_STEP
    return float((fallen & apart).sum() / apart.sum()) if apart.any() else None


def _gain_error_share(stored: Values, source: Values, axis: int) -> float | None:
    """Share of the squared error that goes where every output channel is multiplied by its best factor."""
    x, y = rows_along(source, axis), rows_along(stored, axis)
    power, along = power_of(x), np.einsum("ij,ij->i", x, y - x, dtype=np.float64)
    explained = np.divide(along**2, power, out=np.zeros_like(power), where=power > 0)
    noise = power_of(y - x).sum()
    return float(explained.sum() / noise) if noise > 0 else None


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
    if declared != axis or scale_axis(stored, source, axis) is not None:
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


def scale_axis(stored: Constant, source: Values, axis: int | None) -> int | None:
    """Another axis than that of the output channels whose largest magnitudes the scales follow; None without one.

    Scales that were taken from another layout are often fewer or more than the channels there: as many are compared
    as both have.
    """
    quantizer = stored.quantizer
    if axis is None or quantizer is None or quantizer.axis is None or quantizer.block_size or quantizer.dynamic:
        return None
    scale = np.asarray(quantizer.scale, np.float64).ravel()
    if _follows(scale, rows_along(source, axis)):
        return None
    others = [other for other in range(source.ndim) if other != axis]
    return next((other for other in others if _follows(scale, rows_along(source, other))), None)


def _follows(scale: Floats, rows: Values) -> bool:
    """Nine of ten scales are the same multiple of the largest magnitude of their rows, and these differ."""
    size = min(len(scale), len(rows))
    scale, tops = scale[:size], np.abs(rows[:size]).max(axis=1).astype(np.float64)
    if size < MIN_FOLLOWED or not (scale > 0).all() or not (tops > 0).all() or np.log(tops).std() < 2 * SAME_SCALE:
        return False
    ratio = scale / tops
    return bool((np.abs(ratio / np.median(ratio) - 1) < SAME_SCALE).mean() >= FOLLOWED)


def code_facts(stored: Constant, source: Values) -> dict[str, float]:
    """How many codes the stored weights use, and how many bits that takes where the float weights would use more."""
    quantizer, codes = stored.quantizer, stored.codes
    if quantizer is None or codes is None or not codes.size or quantizer.block_size or quantizer.dynamic:
        return {}
    if quantizer.bits > MOST_COUNTED_BITS:
        return {}
    rows = _rows_of_scales(source, quantizer)
    kind = GridKind(quantizer.bits, symmetric=_is_even(quantizer))
    used = _distinct(codes.reshape(1, -1), np.ones(1), quantizer.bits)
    usable = _distinct(rows, full_steps(rows, kind), quantizer.bits)
    lost = 2 * used <= usable and _is_a_grid(stored, used)
    return {"distinct_codes": used, "effective_bits": math.ceil(math.log2(used)) if lost else quantizer.bits}


def _is_a_grid(stored: Constant, used: int) -> bool:
    """Codes lie apart, or end where those of fewer bits do; the range is too wide where they do neither."""
    assert stored.quantizer is not None and stored.codes is not None  # asked for by the caller
    low, high = int(stored.codes.min()), int(stored.codes.max())
    zeros = np.unique(np.asarray(stored.quantizer.zero_point, np.int64)).tolist()
    ends = [2**bits - end for bits in range(stored.quantizer.bits) for end in (0, 1)]
    return 2 * used <= high - low + 1 or len(zeros) > 1 or max(high - zeros[0], zeros[0] - low) in ends


def _distinct(rows: NDArray[np.generic], step: Floats, bits: int) -> int:
    """Number of different codes of so many bits that values have on grids of a step per row."""
    found = np.zeros(2 ** (bits + 1) + 1, bool)
    for part, columns in cache_blocks(rows):
        width = step[part, None].astype(np.float32)
        values = rows[part, columns].astype(np.float32)
        codes = np.rint(np.divide(values, width, out=np.zeros_like(values), where=width > 0))
        place = np.clip(codes, -(2.0**bits), 2.0**bits).astype(np.int64) + 2**bits
        found |= np.bincount(place.ravel(), minlength=len(found)) > 0
    return int(found.sum())


def grid_predictions(stored: Constant, source: Values, axis: int | None) -> dict[str, float | None]:
    """What other grids would make of the float weights."""
    quantizer = stored.quantizer
    if quantizer is None or quantizer.dynamic:
        return {}
    found: dict[str, float | None] = {}
    if axis is not None:
        even = GridKind(quantizer.bits, symmetric=True)
        found["predicted_per_channel_sqnr_db"] = _full_range_sqnr_db(rows_along(source, axis), even)
    kind = GridKind(quantizer.bits, symmetric=_is_even(quantizer))
    rows = _rows_of_scales(source, quantizer)
    noise, power = best_noise(rows, kind), power_of(rows)
    found["predicted_best_sqnr_db"] = known_sqnr_db(float(power.sum()), float(noise.sum()))
    along = None if quantizer.axis is None or quantizer.block_size else quantizer.axis % source.ndim
    if axis is not None and along == axis:
        tops = np.abs(rows).max(axis=1)
        known = (tops > DEAD * tops.max()) & (power > 0) & np.isfinite(noise)
        worst = float(sqnr_db(power[known], noise[known]).min()) if known.any() else None
        found["predicted_best_channel_sqnr_db"] = worst
    codes = code_facts(stored, source)
    found |= codes
    if min(codes.get("effective_bits", 8), quantizer.bits) < 8:
        found["predicted_8bit_sqnr_db"] = _full_range_sqnr_db(rows, replace(kind, bits=8))
    return found


def _rows_of_scales(source: Values, quantizer: Quantizer) -> Values:
    """A row for each scale, with the values that share it; a last block that is not full is filled with zeros."""
    if quantizer.axis is None:
        return source.reshape(1, -1)
    axis = quantizer.axis % source.ndim
    if not quantizer.block_size:
        return rows_along(source, axis)
    along = np.moveaxis(source, axis, -1)
    missing = -along.shape[-1] % quantizer.block_size
    filled = np.pad(along, [*[(0, 0)] * (along.ndim - 1), (0, missing)])
    return np.ascontiguousarray(filled.reshape(-1, quantizer.block_size))


def _is_even(quantizer: Quantizer) -> bool:
    """Codes lie evenly around 0.0."""
    return bool(np.all(quantizer.zero_point == (0 if quantizer.signed else 2 ** (quantizer.bits - 1))))


def _full_range_sqnr_db(rows: Values, kind: GridKind) -> float | None:
    noise = noise_on(rows, *full_range(rows, kind), kind)
    return known_sqnr_db(float(power_of(rows).sum()), float(noise.sum()))
