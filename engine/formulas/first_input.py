"""What a data set shows of the first input and of the features behind it: moments, grids of values, covariance."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import LATTICE_POINTS, SetStatistics, TensorStatistics
from quantmedic.engine.formulas.columns import Floats

#: (step, lowest point, steps spanned) of an even grid.
Lattice = tuple[float, float, int]
#: Mean and standard deviation per channel.
ChannelMoments = tuple[Floats, Floats]
#: Steps that a lattice spans from the pixel 0 to 255.
FULL_SPAN = 255


def lattices_of(statistics: SetStatistics) -> list[Lattice]:
    """The even grids of the first input's channels; none where a channel is on no such grid."""
    found = [lattice_of(values) for values in statistics.lattice]
    known = [lattice for lattice in found if lattice is not None]
    return known if len(known) == len(found) else []


def lattice_of(values: NDArray[np.float32]) -> Lattice | None:
    """The even grid of at most 256 points that distinct values lie on, else None."""
    if not 8 <= values.size <= LATTICE_POINTS:
        return None
    points = values.astype(np.float64)
    gaps = np.diff(points)
    span = round(float((points[-1] - points[0]) / gaps.min()))
    if span >= LATTICE_POINTS:
        return None
    step = float((points[-1] - points[0]) / span)
    away = (points - points[0]) / step
    return (step, float(points[0]), span) if np.abs(away - np.round(away)).max() < 0.02 else None


def are_pixels(lattices: Iterable[Lattice], step: float) -> bool:
    """All channels lie on the grid of the pixels 0 … 255 times ``step``."""
    return all(
        abs(mine / step - 1) < 0.005 and low / step > -0.5 and low / step + span < FULL_SPAN + 0.5
        for mine, low, span in lattices
    )


def feature_covariance(statistics: SetStatistics | None) -> Floats | None:
    """Covariance of the projected features of the float network; None for fewer than two samples or above float64."""
    if statistics is None or statistics.feature_count < 2:
        return None
    mean = statistics.feature_sum / statistics.feature_count
    with np.errstate(over="ignore", invalid="ignore"):
        covariance: Floats = statistics.feature_outer / statistics.feature_count - np.outer(mean, mean)
    return covariance if np.isfinite(covariance).all() else None


def trace_of(covariance: Floats | None) -> float | None:
    """Summed variance, which rounding may take below zero; None where it is unknown."""
    return None if covariance is None else max(float(np.trace(covariance)), 0.0)


def first_input(case: Case, statistics: SetStatistics) -> TensorStatistics:
    """What was measured of the first input, which the case has."""
    assert case.record.input_tensor is not None
    return statistics.tensor(case.record.input_tensor)


def channel_moments(view: TensorStatistics) -> ChannelMoments:
    """Mean and deviation of the channels of a tensor; both 0 of one of which nothing was seen."""
    return view.mean.astype(np.float64), np.sqrt(np.maximum(view.m2, 0.0) / np.maximum(view.count, 1))


def input_std(case: Case, statistics: SetStatistics) -> float:
    """Standard deviation of the first input over all channels."""
    view = first_input(case, statistics)
    count = max(int(view.count.sum()), 1)
    mean = float((view.count * view.mean).sum()) / count
    # Rounding may take it below zero.
    return math.sqrt(max(float((view.m2 + view.count * (view.mean - mean) ** 2).sum()), 0.0) / count)
