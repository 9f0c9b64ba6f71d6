"""Lists of unequal length: joined in one array, and taken apart."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array


def split_list(joined: Array, lengths: NDArray[np.int64]) -> list[Array]:
    """The pieces of a ragged list."""
    if lengths.sum() != len(joined):
        raise ValueError(f"{len(joined)} values for lists of {lengths.sum()}")
    return np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []
