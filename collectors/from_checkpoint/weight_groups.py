"""Facts of one quantized layer of a checkpoint: its float weights against the stored ones, a slice at a time.

A slice is some output channels with all their inputs. What grows with the layer are a few numbers per group and per
output channel; float weights are never held whole.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.group_sums import group_sums
from quantmedic.collectors.from_checkpoint.packed_weights import Block, PackedLayer, Reading, Unreadable
from quantmedic.collectors.from_checkpoint.weight_fields import FIELDS, Floats, Grid, Values
from quantmedic.collectors.pair.weight_grids import (
    ALIKE_ROUNDED,
    CERTAIN,
    COARSE_DB,
    DEAD,
    MIN_WEIGHTS,
    balanced,
    cosine,
    known_sqnr_db,
    outlier_ratios,
    power_of,
    similarity,
)
from quantmedic.engine.case.facts import QuantizerFacts, WeightFacts
from quantmedic.engine.formulas.tensors import ALIVE, error_facts

#: Weights of one slice: few enough that two of them as float32 stay small, and enough to be worth a call.
SLICE = 1 << 20
#: Groups under this share of the layer's root mean square are too quiet to be judged.
QUIET = 0.01
#: One weight takes the range of its group where it is so many times as large as the others usually are ...
OUTLIER_RATIO = 8.0
#: ... and the step is so many times as large, so that most of them are within half a step of 0.
OUTLIER_STEP = 2.0
#: Output channels on which other readings of the codes are tried.
PROBED = 64
#: Output channels from which gains of input channels are told; fewer would explain rounding noise as gains.
MIN_GAIN_ROWS, GAIN_ROWS = 32, 256
#: Gains count where they explain this share of what the weights differ by (1 - cosine²).
GAIN_EXPLAINS = 0.75
#: Rounds of least squares between the gains of rows and of columns.
_GAIN_ROUNDS = 5
#: Distinct values of a group tell a grid where they are at most half as many as its weights.
_DISTINCT_SHARE = 0.5
_GROUP_SIZES = (1024, 512, 256, 128, 64, 32, 16)
_GRID_ROWS = 32

F = {name: index for index, name in enumerate(FIELDS)}
Granularity = Literal["per_tensor", "per_channel", "per_block"]
#: Gives some output channels of the float weights, ``[rows, inputs]``.
Source = Callable[[slice], Values]
#: What the sums of a slice need: the rows, their stored values, and the groups.
Stored = Callable[[slice], "Part"]


@dataclass(frozen=True)
class Part:
    """Some output channels as stored, inputs sorted by group; ``grid`` is NaN where there are no even steps."""

    values: Values
    grid: Grid
    starts: NDArray[np.int64]
    order: NDArray[np.int64] | None = None
    scale: Values | None = None
    zero: Values | None = None


@dataclass
class _Sums:
    """Sums of one slice."""

    groups: Floats
    starts: NDArray[np.int64]
    tops: Values
    scale: Values | None
    zero: Values | None
    outliers: Floats | None
    nonfinite: int


@dataclass
class Gains:
    """What stored weights are multiplied with against the float ones: per input channel; per output on the fly."""

    columns: Values | None = None
    ratio: float | None = None


@dataclass
class Measured:
    """Facts of one layer, and what is worth a notice."""

    facts: WeightFacts
    notices: list[str] = field(default_factory=list)


def slices(rows: int, inputs: int, unit: int) -> Iterator[slice]:
    """Output channels in slices of about ``SLICE`` weights, multiples of ``unit``."""
    height = max(SLICE // max(inputs, 1) // unit, 1) * unit
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def measure_packed(layer: PackedLayer, source: Source, workers: Executor) -> Measured:
    """Facts of a layer whose codes are understood.

    Raises:
        Unreadable: Its codes turn out not to fit together.
        ModelError: A file cannot be read.
    """
    outputs, inputs = layer.shape
    gains = _gains(layer, source)
    totals = _Totals(inputs)
    stored = _stored_by(layer)
    spans = list(slices(outputs, inputs, layer.unit))
    # Without groups a channel is one, and its outliers are told as in other models.
    with_outliers = layer.groups == 1
    for sums in workers.map(lambda rows: _summed(rows, source, stored, gains, with_outliers), spans):
        totals.add(sums)
    granularity: Granularity = "per_channel" if totals.scales_differ else "per_tensor"
    if layer.groups > 1:
        granularity = "per_block"
    quantizer = QuantizerFacts(
        scale=totals.scale_max,
        scale_min=totals.scale_min,
        zero_point=int(totals.first_zero) if totals.first_zero is not None else None,
        bits=layer.bits,
        signed=layer.signed,
        symmetric=totals.zeros_are({0.0} if layer.signed else {2.0 ** (layer.bits - 1)}),
        granularity=granularity,
        axis=0 if granularity != "per_tensor" else None,
        dynamic=False,
        power_of_two=totals.power_of_two,
    )
    probe = slice(0, min(outputs, GAIN_ROWS))
    found = {
        **totals.facts(quantizer.scale),
        **_reading(layer, source),
        "similarity": totals.cosine if totals.cosine > CERTAIN else _similarity(layer, source, probe, totals.cosine),
        "format": layer.format,
        "quantizer": quantizer,
        "group_size": layer.group_size,
        "input_gain_ratio": gains.ratio,
    }
    found["found_as"] = "same" if found["similarity"] > ALIKE_ROUNDED else "other"
    if layer.low is None:
        found["rounding_mean_steps"] = None
    return Measured(WeightFacts(**found), totals.notices)


def measure_values(source: Source, stored: Source, shape: tuple[int, int], workers: Executor) -> Measured:
    """Facts of weights stored as real numbers: with a grid where the number of distinct values tells one."""
    outputs, inputs = shape
    bits, size = found_grid(stored, shape)
    count = -(-inputs // size) if size else 1
    starts = np.minimum(np.arange(count + 1, dtype=np.int64) * (size or inputs), inputs)

    def part(rows: slice) -> Part:
        nothing = np.full((rows.stop - rows.start, count), np.nan, np.float32)
        return Part(stored(rows), Grid(nothing, nothing, nothing), starts)

    totals = _Totals(inputs)
    spans = list(slices(outputs, inputs, 1))
    for sums in workers.map(lambda rows: _summed(rows, source, part, Gains(), count == 1), spans):
        totals.add(sums)
    granularity: Granularity = "per_block" if count > 1 else "per_channel"
    quantizer = QuantizerFacts(bits=bits, granularity=granularity) if bits is not None else QuantizerFacts()
    found = totals.facts(None)
    if bits is None:
        found |= dict.fromkeys(("groups", "dead_groups", "dead_group", "worst_group_sqnr_db", "worst_group"))
    # No step is known, so nothing can be told against it.
    found |= dict.fromkeys(("misplaced_share", "clipped_share", "end_share", "outlier_groups", "outlier_noise_share"))
    found |= {
        "similarity": totals.cosine,
        "format": "fake-quantized" if bits is not None else None,
        "quantizer": quantizer,
        "group_size": (size or inputs) if bits is not None else None,
    }
    return Measured(WeightFacts(**found), totals.notices)


def found_grid(stored: Source, shape: tuple[int, int]) -> tuple[int | None, int | None]:
    """Bits and group size (None: one per output channel) that the number of distinct values tells; None without."""
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


def _stored_by(layer: PackedLayer, reading: Reading | None = None) -> Stored:
    """Stored values of some rows, read in one way."""

    def part(rows: slice) -> Part:
        block = _without_empty(layer.read(rows, reading or layer.declared))
        if layer.low is None or layer.high is None:
            nothing = np.full_like(block.scale, np.nan)
            grid = Grid(nothing, nothing, nothing)
        else:
            with np.errstate(invalid="ignore", over="ignore"):  # scales may be no numbers
                ends = ((layer.low - block.zero) * block.scale, (layer.high - block.zero) * block.scale)
            grid = Grid(np.abs(block.scale), np.minimum(*ends), np.maximum(*ends))
        return Part(block.values(), grid, block.starts, block.order, block.scale, block.zero)

    return part


def _without_empty(block: Block) -> Block:
    """A block without groups that ``g_idx`` gives no input."""
    kept = np.diff(block.starts) > 0
    if kept.all():
        return block
    starts = np.append(block.starts[:-1][kept], block.starts[-1])
    return Block(block.codes, block.scale[:, kept], block.zero[:, kept], starts, block.order)


def _summed(rows: slice, source: Source, stored: Stored, gains: Gains, with_outliers: bool) -> _Sums:
    """Sums of one slice; values that are not finite count as 0 and are counted."""
    x, part = source(rows), stored(rows)
    y, order = part.values, part.order
    if x.shape != y.shape:
        raise Unreadable(f"float weights {list(x.shape)} against stored {list(y.shape)}")
    if gains.columns is not None:
        x = x * gains.columns
    if order is not None:
        x = np.ascontiguousarray(x[:, order])
    if gains.columns is not None:
        x *= _row_gains(x, y)
    tops = np.zeros(x.shape[1], np.float32)
    sums, bad = group_sums(x, y, part.grid, part.starts, tops), 0
    if not np.isfinite(sums[:, :, : F["low"]]).all():
        bad = int((~np.isfinite(x)).sum())
        x, y = (np.nan_to_num(a, nan=0.0, posinf=0.0, neginf=0.0) for a in (x, y))
        tops[:] = 0
        sums = group_sums(x, y, part.grid, part.starts, tops)
    if order is not None:
        restored = np.empty_like(tops)
        restored[order] = tops
        tops = restored
    outliers = None
    if with_outliers and x.shape[1] >= MIN_WEIGHTS:
        outliers = outlier_ratios(x[:, :, None])
    return _Sums(sums, part.starts, tops, part.scale, part.zero, outliers, bad)


def _row_gains(x: Values, y: Values) -> Values:
    """Least-squares factor of each row, ``[rows, 1]``; 1 where there is none."""
    power = power_of(x)
    product = np.einsum("ij,ij->i", x, y, dtype=np.float64)
    return np.divide(product, power, out=np.ones(len(x)), where=power > 0).astype(np.float32)[:, None]


def _probed(layer: PackedLayer, source: Source, rows: slice, reading: Reading) -> tuple[Values, Values]:
    """Float and stored weights of some rows, in the same order of inputs."""
    x, part = source(rows), _stored_by(layer, reading)(rows)
    if part.order is not None:
        x = np.ascontiguousarray(x[:, part.order])
    if x.shape != part.values.shape:
        raise Unreadable(f"float weights {list(x.shape)} against stored {list(part.values.shape)}")
    return tuple(np.nan_to_num(a, nan=0.0, posinf=0.0, neginf=0.0) for a in (x, part.values))  # type: ignore[return-value]


def _reading(layer: PackedLayer, source: Source) -> dict[str, Any]:
    """What the best other way to read the codes would gain; nothing where none is known."""
    if not layer.alternatives:
        return {}
    rows = slice(0, min(layer.shape[0], PROBED))
    now = _sqnr(*_probed(layer, source, rows, layer.declared))
    others = {name: _sqnr(*_probed(layer, source, rows, other)) for name, other in layer.alternatives.items()}
    known = {name: sqnr for name, sqnr in others.items() if sqnr is not None and math.isfinite(sqnr)}
    if now is None or not math.isfinite(now) or not known:
        return {}
    best = max(known, key=lambda name: known[name])
    return {"reading_gain_db": known[best] - now, "better_reading": best}


def _sqnr(x: Values, y: Values) -> float | None:
    return known_sqnr_db(float(power_of(x).sum()), float(power_of(y - x).sum()))


def _similarity(layer: PackedLayer, source: Source, rows: slice, plain: float) -> float:
    x, y = _probed(layer, source, rows, layer.declared)
    return max(plain, similarity(y[:, :, None], x[:, :, None]))


def _gains(layer: PackedLayer, source: Source) -> Gains:
    """Gains of input channels, where they (with gains of output channels) explain what stored weights differ by."""
    rows = slice(0, min(layer.shape[0], GAIN_ROWS))
    if rows.stop < MIN_GAIN_ROWS:
        return Gains()
    x, y = _probed(layer, source, rows, layer.declared)
    plain = cosine(y, x)
    if plain > CERTAIN and layer.bits <= 4:  # Nothing but rounding; of more bits less is left by rounding.
        return Gains(ratio=1.0)
    even = cosine(*(balanced(a[:, :, None]) for a in (y, x)))
    if even < ALIKE_ROUNDED or 1 - even**2 > (1 - GAIN_EXPLAINS) * (1 - plain**2):
        return Gains(ratio=1.0)
    columns = np.ones(x.shape[1], np.float32)
    for _ in range(_GAIN_ROUNDS):
        scaled = x * columns
        scaled *= _row_gains(scaled, y)
        columns = columns * _row_gains(np.ascontiguousarray(scaled.T), np.ascontiguousarray(y.T)).ravel()
    part_order = _stored_by(layer)(rows).order
    if part_order is not None:
        restored = np.empty_like(columns)
        restored[part_order] = columns
        columns = restored
    sizes = np.abs(columns[columns != 0])
    return Gains(columns, float(sizes.max() / sizes.min()) if sizes.size else None)


class _Totals:
    """Sums of all slices of one layer."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._tops = np.zeros(inputs, np.float32)
        self._rows: list[Floats] = []
        self._row_sizes: list[tuple[Floats, Floats, Floats]] = []
        self._power: list[Values] = []
        self._noise: list[Values] = []
        self._suspects: list[tuple[Floats, NDArray[np.int64], NDArray[np.int64]]] = []
        self._outliers: list[Floats] = []
        self._sizes = np.zeros(0, np.int64)
        self._seen = self._outlier_groups = self._nonfinite = 0
        self._outlier_noise = self._outlier_ratio = 0.0
        self._steps: float | None = 0.0
        self._zeros: set[float] = set()
        self.scale_max: float | None = None
        self.scale_min: float | None = None
        self.scales_differ = False
        self.power_of_two: bool | None = None
        self.first_zero: float | None = None

    def add(self, sums: _Sums) -> None:
        """Take in the next slice of output channels."""
        groups = sums.groups
        self._sizes = np.diff(sums.starts)
        np.maximum(self._tops, sums.tops, out=self._tops)
        channels = groups.sum(axis=1)
        channels[:, F["max"]] = groups[:, :, F["max"]].max(axis=1)
        channels[:, F["stored_low"]] = groups[:, :, F["stored_low"]].min(axis=1)
        channels[:, F["stored_high"]] = groups[:, :, F["stored_high"]].max(axis=1)
        low, high = groups[:, :, F["low"]], groups[:, :, F["high"]]
        silent = (groups[:, :, F["stored_low"]] == 0).all(axis=1) & (groups[:, :, F["stored_high"]] == 0).all(axis=1)
        self._rows.append(channels)
        self._row_sizes.append((low.min(axis=1), high.max(axis=1), silent.astype(np.float64)))
        power, noise = groups[:, :, F["power"]], groups[:, :, F["square"]]
        self._power.append(power.astype(np.float32))
        self._noise.append(noise.astype(np.float32))
        self._note_dead(groups, sums.scale)
        self._note_outliers(groups, sums.scale)
        self._note_grid(groups, sums)
        if sums.outliers is not None:
            self._outliers.append(sums.outliers)
        self._nonfinite += sums.nonfinite
        self._seen += len(groups)

    def _note_dead(self, groups: Floats, scale: Values | None) -> None:
        """Groups stored as one value although the float ones differ; whether they are loud is told at the end."""
        flat = groups[:, :, F["stored_low"]] == groups[:, :, F["stored_high"]]
        if scale is not None:
            flat |= ~np.isfinite(scale) | (scale == 0)
        flat &= (groups[:, :, F["low"]] < groups[:, :, F["high"]]) & (self._sizes > 1)
        rows, columns = np.nonzero(flat)
        if rows.size:
            mean = groups[rows, columns, F["power"]] / self._sizes[columns]
            self._suspects.append((mean, rows + self._seen, columns))

    def _note_outliers(self, groups: Floats, scale: Values | None) -> None:
        if scale is None or (self._sizes < MIN_WEIGHTS).any():
            return
        top = np.maximum(-groups[:, :, F["low"]], groups[:, :, F["high"]])
        rest = np.sqrt(np.maximum(groups[:, :, F["power"]] - top * top, 0.0) / (self._sizes - 1))
        taken = (top > OUTLIER_RATIO * rest) & (np.abs(scale) > OUTLIER_STEP * rest) & (rest > 1e-6 * top)
        if taken.any():
            self._outlier_groups += int(taken.sum())
            self._outlier_noise += float(groups[:, :, F["square"]][taken].sum())
            self._outlier_ratio = max(self._outlier_ratio, float((top[taken] / rest[taken]).max()))

    def _note_grid(self, groups: Floats, sums: _Sums) -> None:
        if sums.scale is None or sums.zero is None:
            self._steps = None
            return
        scale = sums.scale.astype(np.float64)
        sound = np.isfinite(scale) & (scale != 0)
        if sound.any():
            sizes = np.abs(scale[sound])
            low, high = float(sizes.min()), float(sizes.max())
            two = bool(np.all(np.frexp(sizes)[0] == 0.5))
            self.scale_min = low if self.scale_min is None else min(low, self.scale_min)
            self.scale_max = high if self.scale_max is None else max(high, self.scale_max)
            self.scales_differ = self.scale_min != self.scale_max
            self.power_of_two = two if self.power_of_two is None else two and self.power_of_two
        if self._steps is not None:
            self._steps += float((groups[:, :, F["sum"]][sound] / np.abs(scale[sound])).sum())
        if self.first_zero is None:
            self.first_zero = float(sums.zero.flat[0])
        self._zeros |= set(np.unique(sums.zero).tolist()) if len(self._zeros) < 2 else set()

    def zeros_are(self, wanted: set[float]) -> bool | None:
        """All zero points are the one that is wanted."""
        return self._zeros <= wanted if self._zeros else None

    @property
    def cosine(self) -> float:
        """Cosine of float and stored weights; 0 where one of them is all zeros."""
        total = np.concatenate(self._rows).sum(axis=0)
        power, cross, noise = (float(total[F[name]]) for name in ("power", "cross", "square"))
        norm = math.sqrt(power * max(power + 2 * cross + noise, 0.0))
        return (power + cross) / norm if norm > 0 else 0.0

    @property
    def notices(self) -> list[str]:
        return [f"{self._nonfinite} float weights are no finite numbers"] if self._nonfinite else []

    def facts(self, scale: float | None) -> dict[str, Any]:
        """Fields of ``WeightFacts``; ``scale`` is the largest step."""
        rows = np.concatenate(self._rows)
        low, high, silent = (np.concatenate(parts) for parts in zip(*self._row_sizes, strict=True))
        tops = np.maximum(-low, high)
        alive = tops > DEAD * tops.max()
        columns: dict[str, Any] = {name: rows[:, F[name]] for name in ("sum", "square", "cross", "power", "max")}
        columns["count"] = np.full(len(rows), self._inputs)
        total, count = rows.sum(axis=0), len(rows) * self._inputs
        found = {
            **_moments(total, count, float(tops.max())),
            **_stored_moments(total, count),
            "stored_min": float(rows[:, F["stored_low"]].min()),
            "stored_max": float(rows[:, F["stored_high"]].max()),
            "min": float(low.min()),
            "max": float(high.max()),
            "channels": len(rows),
            "output_axis": 0,
            "dead_channels": int((~alive).sum()),
            "rounding": error_facts(columns, scale, audible=ALIVE),
            "rounding_mean_steps": self._steps / count if self._steps is not None else None,
            "misplaced_share": float(total[F["misplaced"]]) / count,
            "clipped_share": float(total[F["clipped"]]) / count,
            "end_share": float(total[F["ends"]]) / count,
            "input_channel_range_ratio": _range_ratio(self._tops),
            "widest_input_channel": int(self._tops.argmax()),
        }
        if alive.any():
            noise, power = rows[alive, F["square"]], rows[alive, F["power"]]
            found["channel_range_ratio"] = float(tops[alive].max() / tops[alive].min())
            found["coarse_share"] = float((noise > 10 ** (-COARSE_DB / 10) * power).mean())
            found["erased_channels"] = int(silent[alive].sum())
        if self._outliers and alive.any():
            ratios = np.concatenate(self._outliers)
            found["outlier_ratio"] = float(ratios[alive].max())
            found["widest_outlier_ratio"] = float(ratios[alive][tops[alive].argmax()])
        return found | self._group_facts(float(total[F["power"]]) / count, float(total[F["square"]]))

    def _group_facts(self, mean_square: float, noise: float) -> dict[str, Any]:
        least = QUIET**2 * mean_square
        power, square = (np.concatenate(parts) for parts in (self._power, self._noise))
        loud = (power > least * self._sizes) & (power > 0)
        found: dict[str, Any] = {
            "groups": int(power.size),
            "outlier_groups": self._outlier_groups,
            "outlier_noise_share": self._outlier_noise / noise if noise > 0 else 0.0,
            "group_outlier_ratio": self._outlier_ratio or None,
        }
        if loud.any():
            ratio = np.where(loud, square / np.where(loud, power, 1.0), -1.0)
            worst = np.unravel_index(int(ratio.argmax()), ratio.shape)
            found["worst_group_sqnr_db"] = known_sqnr_db(float(power[worst]), float(square[worst]))
            found["worst_group"] = f"{worst[0]} / {worst[1]}"
        dead = [
            (int(row), int(column))
            for mean, rows, columns in self._suspects
            for row, column in zip(rows[mean > least], columns[mean > least], strict=True)
        ]
        return found | {
            "dead_groups": len(dead),
            "dead_group": f"{dead[0][0]} / {dead[0][1]}" if dead else None,
        }


def _moments(total: Floats, count: int, top: float) -> dict[str, Any]:
    """Mean, deviation and excess kurtosis from sums of powers."""
    mean, square, cube, fourth = (float(total[F[name]]) / count for name in ("total", "power", "cube", "fourth"))
    variance = max(square - mean * mean, 0.0)
    central = fourth - 4 * mean * cube + 6 * mean * mean * square - 3 * mean**4
    std = math.sqrt(variance)
    return {
        "mean": mean,
        "std": std,
        "absmax_over_std": top / std if std > 0 else None,
        "kurtosis": central / variance**2 - 3 if variance > 0 else None,
    }


def _stored_moments(total: Floats, count: int) -> dict[str, Any]:
    """Mean and deviation of y = x + d."""
    mean = float(total[F["total"]] + total[F["sum"]]) / count
    square = float(total[F["power"]] + 2 * total[F["cross"]] + total[F["square"]]) / count
    return {"stored_mean": mean, "stored_std": math.sqrt(max(square - mean * mean, 0.0))}


def _range_ratio(tops: Values) -> float | None:
    alive = tops > DEAD * tops.max()
    return float(tops[alive].max() / tops[alive].min()) if alive.sum() > 1 else None


def peer_facts(facts: Sequence[WeightFacts]) -> list[WeightFacts]:
    """The same with how far each layer is below those of its kind; unknown where there are fewer than 5."""
    kinds: dict[Any, list[float]] = {}
    for weight in facts:
        if (sqnr := _finite_sqnr(weight)) is not None:
            kinds.setdefault(_kind(weight), []).append(sqnr)
    return [_among(weight, kinds.get(_kind(weight), [])) for weight in facts]


#: Fewer layers have no usual error.
MIN_PEERS = 5
#: Deviation that is always taken for granted, in dB: layers of random weights agree to a hundredth.
LEAST_DEVIATION_DB = 0.1


def _among(weight: WeightFacts, levels: Sequence[float]) -> WeightFacts:
    own = _finite_sqnr(weight)
    if own is None or len(levels) < MIN_PEERS:
        return weight.model_copy(update={"peers": len(levels) or None})
    median = float(np.median(levels))
    deviation = max(float(np.median(np.abs(np.array(levels) - median))), LEAST_DEVIATION_DB)
    gap = median - own
    return weight.model_copy(update={"peers": len(levels), "peer_gap_db": gap, "peer_zscore": 0.6745 * gap / deviation})


def _kind(weight: WeightFacts) -> tuple[Any, ...]:
    return weight.format, weight.quantizer.bits, weight.quantizer.granularity


def _finite_sqnr(weight: WeightFacts) -> float | None:
    sqnr = weight.rounding.sqnr_db
    return sqnr if sqnr is not None and math.isfinite(sqnr) and weight.format is not None else None
