"""Sums that compare two versions of a network's output; they merge, so memory does not grow with the samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import AffineFacts, ComparisonFacts
from quantmedic.engine.case.gains import NOISELESS
from quantmedic.engine.case.output_facts import Ending, EndingFacts, ModelName
from quantmedic.engine.decibels import sqnr_db, to_decibels

Floats = NDArray[np.float64]
#: Columns of a table, each row being one column of the output: finite pairs (x, y), both means, the sums of squared
#: deviations and of their product, Σd², Σx², largest |d|, largest |x|, pairs left out for NaN or infinity; d = y - x.
FIELDS = (
    "count",
    "mean_x",
    "mean_y",
    "m2_x",
    "m2_y",
    "cross",
    "square",
    "power",
    "max",
    "peak",
    "nonfinite",
)
#: What is counted per sample: samples, those with a class in both, those of one class, those with a metric.
VOTES = ("samples", "classified", "same", "measured")
#: A column is judged by its own largest value, but never by less than this share of the output's.
QUIET = 0.01
#: The metric with labels in another order is kept under this and the order's name.
ORDER = "labels "


@dataclass
class Comparison:
    """What is known of pairs of outputs ``x`` (the standard) and ``y``.

    Attributes:
        table: ``[columns, FIELDS]``.
        votes: ``[VOTES]``.
        metric: Sum of the task metric of ``y`` over the samples that have one.
    """

    table: Floats
    votes: NDArray[np.int64]
    metric: float = 0.0

    @classmethod
    def empty(cls, columns: int) -> "Comparison":
        """Nothing seen yet."""
        return cls(np.zeros((columns, len(FIELDS))), np.zeros(len(VOTES), np.int64))

    def column(self, name: str) -> Floats:
        """One of ``FIELDS`` for all columns of the output."""
        column: Floats = self.table[:, FIELDS.index(name)]
        return column

    def vote(self, name: str) -> int:
        """One of ``VOTES``."""
        return int(self.votes[VOTES.index(name)])

    def merge(self, other: "Comparison") -> "Comparison":
        """What one pass over both parts' samples gives (Chan, Golub and LeVeque 1979)."""
        table = merge_rows(self.table, other.table)
        return Comparison(table, self.votes + other.votes, self.metric + other.metric)

    def with_metric(self, values: Floats) -> "Comparison":
        """The same with the task metric of ``y`` on these samples, one number for each; NaN where it has none."""
        votes, finite = self.votes.copy(), np.isfinite(values)
        votes[VOTES.index("measured")] += int(finite.sum())
        return Comparison(self.table, votes, self.metric + float(values[finite].sum()))

    @property
    def mean_metric(self) -> float | None:
        """Mean of the task metric of ``y``; None where it was not measured."""
        measured = self.vote("measured")
        return self.metric / measured if measured else None

    @property
    def whole(self) -> Floats:
        """The table's row for all columns of the output together."""
        row: Floats = self.table[0]
        for other in self.table[1:]:
            row = merge_rows(row, other)
        return row


def merge_rows(a: Floats, b: Floats) -> Floats:
    """Rows of two tables for the pairs of both together."""
    x, y = (dict(zip(FIELDS, np.moveaxis(table, -1, 0), strict=True)) for table in (a, b))
    count = x["count"] + y["count"]
    share = np.divide(y["count"], count, out=np.zeros(np.shape(count)), where=count > 0)
    step_x, step_y = y["mean_x"] - x["mean_x"], y["mean_y"] - x["mean_y"]
    apart = x["count"] * share
    merged = {name: x[name] + y[name] for name in FIELDS}
    merged |= {
        "mean_x": x["mean_x"] + step_x * share,
        "mean_y": x["mean_y"] + step_y * share,
        "m2_x": x["m2_x"] + y["m2_x"] + step_x * step_x * apart,
        "m2_y": x["m2_y"] + y["m2_y"] + step_y * step_y * apart,
        "cross": x["cross"] + y["cross"] + step_x * step_y * apart,
        "max": np.maximum(x["max"], y["max"]),
        "peak": np.maximum(x["peak"], y["peak"]),
    }
    return np.stack([merged[name] for name in FIELDS], axis=-1)


def comparison_facts(found: Sequence[Comparison]) -> ComparisonFacts:
    """The worst of all outputs that were compared; empty where none was."""
    seen = [comparison for comparison in found if comparison.column("count").sum() > 0]
    if not seen:
        return ComparisonFacts()
    classified = sum(comparison.vote("classified") for comparison in seen)
    return ComparisonFacts(
        samples=max(comparison.vote("samples") for comparison in seen),
        max_abs_difference=float(max(comparison.column("max").max() for comparison in seen)),
        relative_difference=max(_relative_difference(comparison) for comparison in seen),
        sqnr_db=min(sqnr_db(power, noise) for noise, power in map(noise_and_power, seen)),
        agreement=sum(comparison.vote("same") for comparison in seen) / classified if classified else None,
        nonfinite=int(sum(comparison.column("nonfinite").sum() for comparison in seen)),
    )


def _relative_difference(comparison: Comparison) -> float:
    """Largest |d| of a column / its largest |x|; a quiet column is held against a share of the loudest one's."""
    peak = comparison.column("peak")
    against = np.maximum(peak, QUIET * peak.max(initial=0.0))
    largest = comparison.column("max")
    ratios = np.divide(largest, against, out=np.where(largest > 0, np.inf, 0.0), where=against > 0)
    return float(ratios.max(initial=0.0))


def noise_and_power(comparison: Comparison) -> tuple[float, float]:
    """Σd² and Σx² over the whole output."""
    return float(comparison.column("square").sum()), float(comparison.column("power").sum())


def noise_ratio(found: Sequence[Comparison], against: Sequence[Comparison]) -> float | None:
    """Largest ratio over the outputs of mean d² to that of another comparison; None where one has no noise."""
    ratios = []
    for mine, theirs in zip(found, against, strict=True):
        count, other = mine.column("count").sum(), theirs.column("count").sum()
        noise, base = noise_and_power(mine)[0], noise_and_power(theirs)[0]
        if count > 0 and other > 0 and base > 0:
            ratios.append((noise / count) / (base / other))
        elif count > 0 and other > 0 and noise == 0:
            ratios.append(0.0)
    return max(ratios, default=None)


def affine_facts(comparison: Comparison | None) -> AffineFacts:
    """Least-squares line y ≈ slope · x + offset through all pairs; empty without pairs, or where x or y is constant."""
    if comparison is None:
        return AffineFacts()
    row: dict[str, float] = dict(zip(FIELDS, comparison.whole.tolist(), strict=True))
    if row["count"] < 2 or row["m2_x"] <= 0 or row["m2_y"] <= 0:
        return AffineFacts()
    slope = row["cross"] / row["m2_x"]
    offset = row["mean_y"] - slope * row["mean_x"]
    std = math.sqrt(row["m2_x"] / row["count"])
    apart = row["m2_x"] + row["m2_y"] - 2 * row["cross"] + row["count"] * (row["mean_y"] - row["mean_x"]) ** 2
    left = max(row["m2_y"] - slope * row["cross"], NOISELESS * apart)
    return AffineFacts(
        slope=slope,
        offset=offset,
        r2=min(row["cross"] ** 2 / (row["m2_x"] * row["m2_y"]), 1.0),
        slope_mismatch=max(abs(slope), 1 / abs(slope)) if slope else None,
        offset_over_std=abs(offset) / std,
        gain_db=to_decibels(apart / left) if apart > 0 else 0.0,
    )


def ending_facts(comparisons: Mapping[str, Comparison], position: int) -> EndingFacts:
    """Of the functions that one model may end with, the one after which least noise is left.

    Args:
        comparisons: Pairs of outputs by their key, from ``SetStatistics``.
        position: Which output.
    """
    plain = comparisons.get(f"output.{position}")
    before = _level_of(plain) if plain is not None else math.inf
    levels = {
        (function, model): _level_of(compared)
        for function in get_args(Ending)
        for model in get_args(ModelName)
        if (compared := comparisons.get(f"{function} {model}.{position}")) is not None
    }
    if not levels or not math.isfinite(before):
        return EndingFacts()
    (function, model), level = max(levels.items(), key=lambda found: found[1])
    return EndingFacts(function=function, of=model, sqnr_db=level, gain_db=level - before)


def is_of_ending(key: str) -> bool:
    """Whether a pair of outputs, by its key, was compared behind a function that one model may end with."""
    return key.partition(" ")[0] in get_args(Ending)


def _level_of(comparison: Comparison) -> float:
    noise, power = noise_and_power(comparison)
    return sqnr_db(power, noise)
