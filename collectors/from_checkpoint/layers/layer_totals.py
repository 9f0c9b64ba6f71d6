"""The sums of all slices of one layer, and the facts that follow from them."""

import math

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.layers.weight_fields import Floats, Values
from quantmedic.collectors.from_checkpoint.layers.weight_slices import F, SliceSums
from quantmedic.collectors.pair.weight_grids import COARSE_DB, DEAD, MIN_WEIGHTS, known_sqnr_db
from quantmedic.engine.formulas.error_facts import ALIVE, error_facts

#: Groups under this share of the layer's root mean square are too quiet to be judged.
QUIET = 0.01
#: A weight is an outlier of its group where it is this many times the root mean square of the others ...
OUTLIER_RATIO = 8.0
#: ... and the step is this many times as large, so that most of them are within half a step of 0.
OUTLIER_STEP = 2.0
#: A group has another scale than its channel where the gain of the one over that of the other is above or below this,
#: and the group is the float one but for it; fewer weights may be like others by chance.
_LOUD_GROUP, _QUIET_GROUP, _ALIKE_GROUP, _MIN_GROUP = 1.5, 0.5, 0.95, 16
#: Fields of ``WeightFacts`` by name; the record checks their types when it is made.
Fields = dict[str, object]


class LayerTotals:
    """Sums of all slices of one layer."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._tops = np.zeros(inputs, np.float32)
        self._rows: list[Floats] = []
        self._gains: list[Floats] = []
        self._row_sizes: list[tuple[Floats, Floats]] = []
        self._power: list[Values] = []
        self._noise: list[Values] = []
        self._suspects: list[tuple[Floats, NDArray[np.int64], NDArray[np.int64]]] = []
        self._outliers: list[Floats] = []
        self._broken: tuple[int, str] = (0, "")
        self._misscaled = 0
        self._worst_gain: tuple[float, str] = (1.0, "")
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

    def add(self, sums: SliceSums) -> None:
        """Take in the next slice of output channels."""
        groups = sums.groups
        self._sizes = np.diff(sums.starts)
        np.maximum(self._tops, sums.tops, out=self._tops)
        channels = groups.sum(axis=1)
        channels[:, F["max"]] = groups[:, :, F["max"]].max(axis=1)
        channels[:, F["stored_low"]] = groups[:, :, F["stored_low"]].min(axis=1)
        channels[:, F["stored_high"]] = groups[:, :, F["stored_high"]].max(axis=1)
        low, high = groups[:, :, F["low"]], groups[:, :, F["high"]]
        self._rows.append(channels)
        self._gains.append(np.ones(len(groups)) if sums.gains is None else sums.gains.ravel().astype(np.float64))
        self._row_sizes.append((low.min(axis=1), high.max(axis=1)))
        power, noise = groups[:, :, F["power"]], groups[:, :, F["square"]]
        self._power.append(power.astype(np.float32))
        self._noise.append(noise.astype(np.float32))
        self._note_broken(sums.scale)
        self._note_dead(groups, sums.scale)
        self._note_outliers(groups, sums.scale)
        self._note_gains(groups)
        self._note_grid(groups, sums)
        if sums.outliers is not None:
            self._outliers.append(sums.outliers)
        self._nonfinite += sums.nonfinite
        self._seen += len(groups)

    def _note_broken(self, scale: Values | None) -> None:
        """Count groups whose scale is no number."""
        if scale is None:
            return
        rows, columns = np.nonzero(~np.isfinite(scale))
        if rows.size:
            number, first = self._broken
            self._broken = (number + rows.size, first or f"{rows[0] + self._seen} / {columns[0]}")

    def _note_dead(self, groups: Floats, scale: Values | None) -> None:
        """Note groups stored as one value although the float ones differ; quiet ones are left out at the end."""
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

    def _note_gains(self, groups: Floats) -> None:
        """Note groups that are the float ones times a factor that the rest of their channel has not."""
        if groups.shape[1] < 2 or (self._sizes < _MIN_GROUP).any():
            return
        power, cross, noise = (groups[:, :, F[name]] for name in ("power", "cross", "square"))
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = 1 + cross / power
            alike = (power + cross) / np.sqrt(power * (power + 2 * cross + noise))
            own = gains / np.median(gains, axis=1, keepdims=True)
            # Of 2 bits, groups are of many scales by rounding alone.
            sure = (alike > _ALIKE_GROUP) & (np.median(alike, axis=1, keepdims=True) > _ALIKE_GROUP)
        loud = ((own > _LOUD_GROUP) | (own < _QUIET_GROUP)) & sure & (own > 0) & np.isfinite(own)
        rows, columns = np.nonzero(loud)
        if not rows.size:
            return
        worst = int(np.abs(np.log(own[rows, columns])).argmax())
        self._misscaled += rows.size
        found = float(own[rows[worst], columns[worst]])
        if abs(math.log(found)) > abs(math.log(self._worst_gain[0])):
            self._worst_gain = (found, f"{rows[worst] + self._seen} / {columns[worst]}")

    def _note_grid(self, groups: Floats, sums: SliceSums) -> None:
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

    def output_gains(self) -> tuple[Floats, Floats]:
        """What each output channel is multiplied with, by least squares, and the cosine that is left beside it."""
        rows = np.concatenate(self._rows)
        power, cross, noise = (rows[:, F[name]] for name in ("power", "cross", "square"))
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = np.concatenate(self._gains) * (1 + cross / power)
            alike = (power + cross) / np.sqrt(power * (power + 2 * cross + noise))
        return gains, np.abs(alike)

    @property
    def notices(self) -> list[str]:
        return [f"{self._nonfinite} float weights are no finite numbers"] if self._nonfinite else []

    def facts(self, scale: float | None) -> Fields:
        """Fields of ``WeightFacts``; ``scale`` is the largest step."""
        rows = np.concatenate(self._rows)
        low, high = (np.concatenate(parts) for parts in zip(*self._row_sizes, strict=True))
        tops = np.maximum(-low, high)
        alive = tops > DEAD * tops.max()
        columns = {name: rows[:, F[name]] for name in ("sum", "square", "cross", "power", "max")}
        columns["count"] = np.full(len(rows), self._inputs)
        total, count = rows.sum(axis=0), len(rows) * self._inputs
        found: Fields = {
            **_float_moments(total, count, float(tops.max())),
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
        if self._outliers and alive.any():
            ratios = np.concatenate(self._outliers)
            found["outlier_ratio"] = float(ratios[alive].max())
            found["widest_outlier_ratio"] = float(ratios[alive][tops[alive].argmax()])
        return found | self._group_facts(float(total[F["power"]]) / count, float(total[F["square"]]))

    def _group_facts(self, mean_square: float, noise: float) -> Fields:
        least = QUIET**2 * mean_square
        power, square = (np.concatenate(parts) for parts in (self._power, self._noise))
        loud = (power > least * self._sizes) & (power > 0)
        found: Fields = {
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
            "dead_share": len(dead) / power.size if power.size else None,
            "broken_scales": self._broken[0],
            "broken_scale": self._broken[1] or None,
            "misscaled_groups": self._misscaled,
            "misscaled_group": self._worst_gain[1] or None,
            "group_gain": self._worst_gain[0],
            "dead_group": f"{dead[0][0]} / {dead[0][1]}" if dead else None,
        }


def _float_moments(total: Floats, count: int, top: float) -> Fields:
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


def _stored_moments(total: Floats, count: int) -> Fields:
    """Mean and deviation of y = x + d."""
    mean = float(total[F["total"]] + total[F["sum"]]) / count
    square = float(total[F["power"]] + 2 * total[F["cross"]] + total[F["square"]]) / count
    return {"stored_mean": mean, "stored_std": math.sqrt(max(square - mean * mean, 0.0))}


def _range_ratio(tops: Values) -> float | None:
    alive = tops > DEAD * tops.max()
    return float(tops[alive].max() / tops[alive].min()) if alive.sum() > 1 else None
