"""The columns of one tensor's statistics, grouped as compiled loops take them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.statistics import ERROR_COLUMNS, TensorStatistics


class Values(NamedTuple):
    """Columns of one tensor, ``[channels]`` each; the histogram is ``[BINS]``."""

    seen: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    histogram: NDArray[np.int64]


class Errors(NamedTuple):
    """``ERROR_COLUMNS`` of one kind of error, in their order, ``[channels]`` each."""

    seen: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    sum: NDArray[np.float64]
    square: NDArray[np.float64]
    cross: NDArray[np.float64]
    power: NDArray[np.float64]
    max: NDArray[np.float64]


class Columns(NamedTuple):
    """Everything that is known of one tensor; extremes of buckets are ``[BUCKETS]``, deployed values ``[BINS]``."""

    values: Values
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    clipped: NDArray[np.int64]
    clipped_energy: NDArray[np.float64]
    rounding: Errors
    accumulated: Errors
    deployed_min: NDArray[np.float64]
    deployed_max: NDArray[np.float64]
    shown: NDArray[np.int64]

    @classmethod
    def of(cls, into: TensorStatistics) -> "Columns":
        """The columns of a tensor, which share their memory with its statistics."""
        return cls(
            Values(into.count, into.nonfinite, into.mean, into.m2, into.min, into.max, into.histogram),
            into.bucket_min,
            into.bucket_max,
            into.clipped,
            into.clipped_energy,
            errors_of(into, "rounding"),
            errors_of(into, "accumulated"),
            into.deployed_min,
            into.deployed_max,
            into.quantized_histogram,
        )


def errors_of(into: TensorStatistics, kind: str) -> Errors:
    """The columns of one kind of error."""
    columns = into.errors[kind]
    return Errors(*(columns[name] for name in ERROR_COLUMNS))
