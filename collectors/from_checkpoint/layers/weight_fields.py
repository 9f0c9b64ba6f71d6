"""What is summed over groups of weights, and the grids that they are held against."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: What is kept of each group of float weights x and stored weights y, d = y - x, in this order.
FIELDS = (
    "sum",  # Σ d
    "square",  # Σ d²
    "cross",  # Σ x·d
    "power",  # Σ x²
    "total",  # Σ x
    "cube",  # Σ x³
    "fourth",  # Σ x⁴
    "low",  # min x
    "high",  # max x
    "stored_low",  # min y
    "stored_high",  # max y
    "max",  # max |d|
    "misplaced",  # weights stored further from their place on the grid than rounding explains
    "clipped",  # weights beyond the grid by more than half a step
    "ends",  # weights stored as the lowest or highest code
)


class Grid(NamedTuple):
    """Step and ends of each group, ``[rows, groups]`` float32."""

    step: Values
    low: Values
    high: Values
