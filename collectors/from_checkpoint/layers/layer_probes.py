"""Computed from a few output channels of a layer: other readings of its codes, and gains of its channels."""

import math

import numpy as np

from quantmedic.collectors.from_checkpoint.layers.output_gains import ALIKE_CHANNEL, LOUD, QUIET, Gains
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Values
from quantmedic.collectors.from_checkpoint.layers.weight_slices import Sides, Source, finite_or_zero, row_gains
from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer
from quantmedic.collectors.pair.weight_grids import (
    ALIKE_ROUNDED,
    CERTAIN,
    balance_gains,
    cosine,
    known_sqnr_db,
    power_of,
    similarity,
)

#: Output channels on which other readings of the codes are tried.
PROBED = 64
#: Output channels from which gains of input channels are computed; with fewer, rounding noise would look like gains.
MIN_GAIN_ROWS, GAIN_ROWS = 32, 256
#: Of numbers that were not rounded to codes a few are enough: a router has no more outputs than experts.
_MIN_EXACT_ROWS, MOST_CODE_BITS = 4, 8
#: Gains count where they explain this share of what the weights differ by (1 - cosine²).
GAIN_EXPLAINS = 0.75
#: Rounds of least squares between the gains of rows and of columns.
_GAIN_ROUNDS = 5
#: Another round is not worth it where the last one has changed no gain by more than this share of it.
_SETTLED = 0.002
#: Gains are above the noise of rounding where their variance is this many times as large as rounding makes it, and no
#: less than this.
_NOISE_RATIO, _LEAST_VARIANCE = 4.0, 0.01**2


def better_reading(layer: PackedLayer, source: Source) -> dict[str, object]:
    """Fields of ``WeightFacts``: the best of the other ways to read the codes, whether it gains or loses, if known."""
    if not layer.alternatives:
        return {}
    now = _sqnr_of(Sides.of_layer(layer, source))
    others = {name: _sqnr_of(Sides.of_layer(layer, source, other)) for name, other in layer.alternatives.items()}
    known = {name: sqnr for name, sqnr in others.items() if sqnr is not None and math.isfinite(sqnr)}
    if now is None or not math.isfinite(now) or not known:
        return {}
    best = max(known, key=lambda name: known[name])
    return {"reading_gain_db": known[best] - now, "better_reading": best}


def _sqnr_of(sides: Sides) -> float | None:
    x, y = sides.load_finite(sides.first_rows(PROBED))
    return known_sqnr_db(float(power_of(x).sum()), float(power_of(y - x).sum()))


def probed_similarity(sides: Sides, plain: float) -> float:
    """Cosine of stored and float weights with their gains taken out, of some rows; at least ``plain``."""
    x, y = sides.load_finite(sides.first_rows(GAIN_ROWS))
    return max(plain, similarity(y[:, :, None], x[:, :, None]))


def gains_of(sides: Sides, bits: int) -> Gains:
    """``channel_gains`` of a layer whose weights are on a grid of so many bits."""
    x, part = sides.load(sides.first_rows(GAIN_ROWS))
    return channel_gains(finite_or_zero(x), finite_or_zero(part.values), bits).in_order(part.order)


def channel_gains(x: Values, y: Values, bits: int) -> Gains:
    """Gains of input channels, where they (with gains of output channels) explain what stored weights differ by.

    Args:
        x: Float weights of some output channels, ``[rows, inputs]``.
        y: The stored ones.
        bits: Bits of their codes.
    """
    if len(x) < (MIN_GAIN_ROWS if bits <= MOST_CODE_BITS else _MIN_EXACT_ROWS):
        return Gains()
    columns, alike = _column_gains(x, y)
    sizes = np.abs(columns[columns != 0])
    if sizes.size and (_explain_most(x, y, bits) or _some_stand_out(columns, alike)):
        return Gains(columns, float(sizes.max() / sizes.min()), alike=alike)
    return Gains(ratio=1.0, slight=columns if _are_above_noise(columns, alike, len(x)) else None, alike=alike)


def _explain_most(x: Values, y: Values, bits: int) -> bool:
    """Gains of rows and columns explain most of what the weights differ by."""
    plain = cosine(y, x)
    if plain > CERTAIN and bits <= 4:  # Nothing but rounding; of more bits less is left by rounding.
        return False
    even = cosine(*(balance_gains(a[:, :, None]) for a in (y, x)))
    return even >= ALIKE_ROUNDED and 1 - even**2 <= (1 - GAIN_EXPLAINS) * (1 - plain**2)


def _some_stand_out(columns: Values, alike: Values) -> bool:
    """Some channel has a gain of its own, and is the float one but for it."""
    known = np.log(columns[(alike > ALIKE_CHANNEL) & (columns > 0)])
    own = known - np.median(known) if known.size else known
    return bool((own > np.log(LOUD)).any() or (own < np.log(QUIET)).any())


def _are_above_noise(columns: Values, alike: Values, rows: int) -> bool:
    """The gains of channels that are alike differ by more than rounding makes them."""
    kept = (alike > ALIKE_CHANNEL) & (columns > 0)
    if kept.sum() < MIN_GAIN_ROWS:
        return False
    noise = float(np.mean((1 / alike[kept] ** 2 - 1) / rows))
    return float(np.log(columns[kept]).var()) > max(_NOISE_RATIO * noise, _LEAST_VARIANCE)


def _column_gains(x: Values, y: Values) -> tuple[Values, Values]:
    """Gains of input channels beside those of output channels, and the cosines that they leave."""
    columns = np.ones(x.shape[1], np.float32)
    turned = np.ascontiguousarray(y.T)
    for _ in range(_GAIN_ROUNDS):
        scaled = x * columns
        scaled *= row_gains(scaled, y)
        across = np.ascontiguousarray(scaled.T)
        change = row_gains(across, turned).ravel()
        columns = columns * change
        if np.abs(change - np.median(change)).max() < _SETTLED:
            break
    product = np.einsum("ij,ij->i", across, turned, dtype=np.float64)
    norms = np.sqrt(power_of(across) * power_of(turned))
    alike = np.divide(product, norms, out=np.zeros(len(norms)), where=norms > 0)
    return columns, alike.astype(np.float32)
