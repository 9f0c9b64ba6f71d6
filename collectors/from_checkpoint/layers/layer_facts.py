"""Facts of one quantized layer of a checkpoint: its float weights against the stored ones, a slice at a time.

What grows with the layer are a few numbers per group and per output channel; float weights are never held whole.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from quantmedic.collectors.from_checkpoint.layers.layer_probes import (
    GAIN_ROWS,
    better_reading,
    gains_of,
    probed_similarity,
)
from quantmedic.collectors.from_checkpoint.layers.layer_totals import Fields, LayerTotals
from quantmedic.collectors.from_checkpoint.layers.output_gains import ChannelGains, Gains
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Floats, Grid, Integers, Values
from quantmedic.collectors.from_checkpoint.layers.weight_slices import (
    Part,
    Sides,
    Source,
    common_gains,
    finite_or_zero,
    slices,
    sum_slice,
)
from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.collectors.pair.weight_grids import ALIKE_ROUNDED, CERTAIN, DEAD, cosine, known_sqnr_db, power_of
from quantmedic.engine.case.facts import QuantizerFacts, WeightFacts

#: Distinct values of a group tell a grid where they are at most half as many as its weights.
_DISTINCT_SHARE = 0.5
_GROUP_SIZES = (1024, 512, 256, 128, 64, 32, 16)
_GRID_ROWS = 32
#: Real numbers without a grid are at least as fine as this.
_BITS_WITHOUT_GRID = 16
#: Weights that are held against rounding at once, and what their output channels are a multiple of in all formats.
_HELD, _UNIT = 1 << 18, 32
#: Facts that need a step, which real numbers do not have.
_NEEDS_STEP = ("misplaced_share", "clipped_share", "end_share", "outlier_groups", "outlier_noise_share")
_NEEDS_GROUPS = (
    *("groups", "dead_groups", "dead_share", "dead_group", "worst_group_sqnr_db", "worst_group"),
    *("misscaled_groups", "misscaled_group", "group_gain", "broken_scales", "broken_scale"),
)

Granularity = Literal["per_tensor", "per_channel", "per_block"]
#: Of float8 E4M3: the largest number, and the first that is not subnormal; the highest bit is the sign.
_SIGN, _LARGEST, _NORMAL = 0x7F, 0x7E, 0x08
#: Of exponents of two: the largest, and the smallest that float32 holds without becoming subnormal.
_LARGEST_POWER, _NORMAL_POWER = 254, 1
#: An input channel is lost where the error of its weights has more than this share of their power.
_LOST = 0.5
#: Largest error of a scale in float16 or bfloat16 over the scale, and what float32 adds, in steps.
_SCALE_ERROR, _CLOSE = 2.0**-10, 0.01
#: Fewer output channels do not tell what is left of an input channel.
_MIN_ROWS = 32


@dataclass
class Measured:
    """Facts of one layer, what its channels are multiplied with, and what is worth a notice."""

    facts: WeightFacts
    gains: ChannelGains = field(default_factory=ChannelGains)
    notices: list[str] = field(default_factory=list)


def measure_packed(layer: PackedLayer, source: Source, workers: Executor) -> Measured:
    """Facts of a layer whose codes are understood.

    Raises:
        UnreadableLayerError: Its codes turn out not to fit together.
        ModelError: A file cannot be read.
    """
    plain = Sides.of_layer(layer, source)
    gains = gains_of(plain, layer.bits)
    sides = replace(plain, columns=gains.columns)
    totals = _sum_layer(sides, workers)
    quantizer = _packed_quantizer(layer, totals)
    similar = totals.cosine if totals.cosine > CERTAIN else probed_similarity(plain, totals.cosine)
    found = totals.facts(quantizer.scale) | _beside_rounding(sides, quantizer)
    found |= better_reading(layer, source)
    if layer.block_scales is not None:
        found |= {**end_shares(layer.block_scales), "lacks_global_scale": layer.lacks_global_scale}
    if not layer.even:
        found |= dict.fromkeys((*_NEEDS_STEP, "rounding_mean_steps", "grid_gain_db"))
    found |= {
        "found_as": "same" if similar > ALIKE_ROUNDED else "other",
        "format": layer.format,
        "quantizer": quantizer,
        "group_size": layer.group_size,
    }
    return _complete_facts(found, similar, totals, gains)


def _complete_facts(found: Fields, similar: float, totals: LayerTotals, gains: Gains) -> Measured:
    expected = found.get("grid_similarity")
    found |= {
        "similarity": similar,
        "similarity_kept": similar / expected if isinstance(expected, float) and expected > 0 else None,
        "input_gain_ratio": gains.ratio,
    }
    own = ChannelGains.of_sides(*totals.output_gains(), gains)
    return Measured(WeightFacts.model_validate(found), own, totals.notices)


def _sum_layer(sides: Sides, workers: Executor) -> LayerTotals:
    """Sums of all slices; without groups a channel is one group, and has outliers as in other models."""
    common = common_gains(sides.first_rows(GAIN_ROWS), sides) if sides.groups == 1 else None
    totals, spans = LayerTotals(sides.shape[1]), list(slices(*sides.shape, sides.unit))
    for sums in workers.map(lambda rows: sum_slice(rows, sides, common), spans):
        totals.add(sums)
    return totals


def _packed_quantizer(layer: PackedLayer, totals: LayerTotals) -> QuantizerFacts:
    granularity: Granularity = "per_channel" if totals.scales_differ else "per_tensor"
    if layer.groups > 1:
        granularity = "per_block"
    zero = totals.first_zero
    return QuantizerFacts(
        scale=totals.scale_max,
        zero_point=int(zero) if zero is not None and zero.is_integer() else None,
        bits=layer.bits,
        signed=layer.signed,
        symmetric=totals.zeros_are({0.0} if layer.signed else {2.0 ** (layer.bits - 1)}),
        granularity=granularity,
        axis=0 if granularity != "per_tensor" else None,
        dynamic=False,
        power_of_two=totals.power_of_two,
    )


def _beside_rounding(sides: Sides, quantizer: QuantizerFacts) -> Fields:
    """What rounding to nearest leaves of some output channels, and what is stored; nothing without a grid."""
    if quantizer.bits is None:
        return {}
    rows = sides.first_rows(min(GAIN_ROWS, max(_HELD // sides.shape[1] // _UNIT, 1) * _UNIT))
    x, part = sides.load(rows)
    y = finite_or_zero(part.values)
    x, _ = sides.balance(finite_or_zero(x), y)
    span = (float(x.min()), float(x.max())) if quantizer.granularity == "per_tensor" else None
    steps = Steps(quantizer.bits, part.starts, quantizer.symmetric is not False, span)
    return {**expected_rounding(x, y, steps), "moved_share": moved_share(x, y, part.grid, part.starts)}


def measure_values(source: Source, stored: Source, shape: tuple[int, int], workers: Executor) -> Measured:
    """Facts of weights stored as real numbers: with a grid where few distinct values show one."""
    inputs = shape[1]
    bits, size = found_grid(stored, shape)
    count = -(-inputs // size) if size else 1
    starts = np.minimum(np.arange(count + 1, dtype=np.int64) * (size or inputs), inputs)

    def part(rows: slice) -> Part:
        nothing = np.full((rows.stop - rows.start, count), np.nan, np.float32)
        return Part(stored(rows), Grid(nothing, nothing, nothing), starts)

    plain = Sides(source, part, shape, groups=count)
    gains = gains_of(plain, bits or _BITS_WITHOUT_GRID)
    sides = replace(plain, columns=gains.columns)
    totals = _sum_layer(sides, workers)
    granularity: Granularity = "per_block" if count > 1 else "per_channel"
    quantizer = QuantizerFacts(bits=bits, granularity=granularity) if bits is not None else QuantizerFacts()
    found = totals.facts(None) | _beside_rounding(sides, quantizer)
    if bits is None:
        found |= dict.fromkeys(_NEEDS_GROUPS)
    found |= dict.fromkeys(_NEEDS_STEP)
    found |= {
        "format": "fake-quantized" if bits is not None else None,
        "quantizer": quantizer,
        "group_size": (size or inputs) if bits is not None else None,
    }
    return _complete_facts(found, totals.cosine, totals, gains)


def found_grid(stored: Source, shape: tuple[int, int]) -> tuple[int | None, int | None]:
    """Bits and group size (None: one per output channel) by the distinct values; None where they show no grid."""
    outputs, inputs = shape
    rows = np.unique(np.linspace(0, outputs - 1, min(_GRID_ROWS, outputs)).astype(int))
    sample = np.concatenate([stored(slice(int(row), int(row) + 1)) for row in rows])
    best: tuple[int, int] | None = None
    for size in (inputs, *(size for size in _GROUP_SIZES if size < inputs and inputs % size == 0)):
        distinct = _most_distinct(sample.reshape(-1, size))
        bits = max(math.ceil(math.log2(distinct)), 1)
        if distinct > _DISTINCT_SHARE * size or bits > 8:
            continue
        if best is None or bits < best[0]:
            best = (bits, size)
    if best is None:
        return None, None
    return best[0], None if best[1] == inputs else best[1]


def _most_distinct(groups: Values) -> int:
    ordered = np.sort(groups, axis=1)
    return int(((ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1).max())


def end_shares(scales: Stored) -> dict[str, float]:
    """Facts: shares of the scales that are the largest number, one left out, and of those that are subnormal.

    A tensor's scale is chosen so that one block gets the largest number.
    """
    is_power = scales.dtype == "U8"
    largest, normal = (_LARGEST_POWER, _NORMAL_POWER) if is_power else (_LARGEST, _NORMAL)
    top = low = 0
    for rows in slices(scales.rows, scales.size // scales.rows, 1):
        codes = scales.load(rows).view(np.uint8) & np.uint8(0xFF if is_power else _SIGN)
        top += int((codes >= largest).sum())
        low += int(((codes < normal) & (codes > 0)).sum()) if not is_power else int((codes < normal).sum())
    return {"block_scale_top_share": max(top - 1, 0) / scales.size, "block_scale_low_share": low / scales.size}


@dataclass(frozen=True)
class Steps:
    """How the codes of a layer are laid out.

    Attributes:
        bits: Of a code.
        starts: First column of each group, and the number of columns.
        is_symmetric: Without zero points.
        span: Smallest and largest weight of the layer, where one scale serves all of it; else None.
    """

    bits: int
    starts: Integers
    is_symmetric: bool
    span: tuple[float, float] | None = None


def expected_rounding(x: Values, y: Values, steps: Steps) -> dict[str, float | None]:
    """Hold stored weights against what rounding to nearest would have stored: fields of ``WeightFacts``.

    Args:
        x: Float weights of some output channels ``[rows, inputs]``, with gains that were folded into the stored ones.
        y: The stored ones.
        steps: Their grid.
    """
    rounded = round_to_nearest(x, steps)
    return {
        "grid_similarity": cosine(rounded, x),
        "grid_gain_db": _rounding_gain_db(x, rounded, y),
        "lost_inputs": _rounding_loss(x, y),
    }


def _rounding_gain_db(x: Values, rounded: Values, y: Values) -> float | None:
    """How much more rounding leaves than is stored, in dB; None where either is exact."""
    power = float(power_of(x).sum())
    best, own = (known_sqnr_db(power, float(power_of(z - x).sum())) for z in (rounded, y))
    if best is None or own is None or not np.isfinite([best, own]).all():
        return None
    return best - own


def moved_share(x: Values, y: Values, grid: Grid, starts: Integers) -> float | None:
    """Share of the weights whose code is not the nearest one; None where a scale is no number, or 0.

    Scales were rounded to 16 bits when they were stored, and codes chosen before: what that moves does not count.

    Args:
        x: Float weights ``[rows, inputs]``, inputs in the order of the stored ones.
        y: The stored ones.
        grid: Step, lowest and highest number of each group, ``[rows, groups]``.
        starts: First column of each group, and the number of columns.
    """
    step, low, high = (np.repeat(part, np.diff(starts), axis=1) for part in (grid.step, grid.low, grid.high))
    if not (np.isfinite(step).all() and (step > 0).all()):
        return None
    nearest = np.clip(x, low, high)
    borne = 0.5 + _SCALE_ERROR * np.maximum(np.abs(x) / step, 1.0) + _CLOSE
    return float((np.abs(y - nearest) > borne * step).mean())


def round_to_nearest(x: Values, steps: Steps) -> Values:
    """The weights on a grid that reaches from their smallest to their largest, group by group."""
    sizes = np.diff(steps.starts)
    low, high = _span_of_groups(x, steps)
    top = 2**steps.bits - 1
    if steps.is_symmetric and steps.bits > 1:
        reach = np.maximum(-low, high)
        step, zero = reach / (2 ** (steps.bits - 1) - 1), np.full(reach.shape, 2.0 ** (steps.bits - 1))
    else:
        step = (high - low) / top
        zero = np.rint(np.divide(-low, step, out=np.zeros_like(low), where=step > 0))
    step, zero = (np.repeat(part, sizes, axis=1) for part in (step, zero))
    wanted = np.divide(x, step, out=np.zeros_like(step), where=step > 0)
    found: Values = ((np.clip(np.rint(wanted) + zero, 0, top) - zero) * step).astype(np.float32)
    return found


def _span_of_groups(x: Values, steps: Steps) -> tuple[Floats, Floats]:
    """Ends of each group, with 0 among them, ``[rows, groups]``."""
    shape = (len(x), len(steps.starts) - 1)
    if steps.span is not None:
        return np.full(shape, min(steps.span[0], 0.0)), np.full(shape, max(steps.span[1], 0.0))
    first = steps.starts[:-1]
    low, high = np.minimum.reduceat(x, first, axis=1), np.maximum.reduceat(x, first, axis=1)
    return np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)


def _rounding_loss(x: Values, y: Values) -> float | None:
    """Share of the input channels of which less than half is stored; None where there are few outputs."""
    if len(x) < _MIN_ROWS:
        return None
    tops = np.abs(x).max(axis=0)
    alive = tops > DEAD * tops.max()
    if not alive.any():
        return None
    power, noise = ((z.astype(np.float64) ** 2).sum(axis=0)[alive] for z in (x, y - x))
    return float((noise > _LOST * power).mean())
