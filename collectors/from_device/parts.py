"""A tensor of which each run of a device left one part: the parts are one column, one after the other along axis 0."""

from collections.abc import Callable, Sequence

import numpy as np

from quantmedic.collectors.data.arrays import Array, ArrayInfo, Column, Rows
from quantmedic.collectors.data.batches import numbers_of
from quantmedic.engine.reading_limits import ARRAY_BYTES

Shape = tuple[int, ...]


def join_parts(
    file: str, name: str, shapes: Sequence[Shape], dtype: np.dtype[np.generic], load: Callable[[int], Array]
) -> Column:
    """A column of parts that differ in nothing but how many samples they hold.

    Args:
        file: Name of the file, for messages.
        name: Name of the tensor.
        shapes: Shape of each part; one without axes is one sample.
        dtype: Type of all.
        load: Reads a part by its place. What comes has the shape and type that were said.
    """
    counts = [shape[0] if shape else 1 for shape in shapes]
    ends = np.cumsum(counts)
    info = ArrayInfo(file, name, (int(ends[-1]), *shapes[0][1:]), dtype)
    width = int(np.prod(info.shape[1:], dtype=object)) * dtype.itemsize

    def take(rows: Rows) -> Array:
        numbers = numbers_of(rows)
        ARRAY_BYTES.check(len(numbers) * width, f"{file}  {name}")
        within = np.searchsorted(ends, numbers, side="right")
        parts = {k: np.atleast_1d(load(k)) for k in np.unique(within).tolist()}
        return np.concatenate([part[numbers[within == k] - (ends[k] - counts[k])] for k, part in parts.items()])

    return Column(info, lambda wanted: map(take, wanted))


def fit_together(shapes: Sequence[Shape], dtypes: Sequence[np.dtype[np.generic]]) -> bool:
    """Parts have one type, and one shape but for their samples."""
    return len(set(dtypes)) == 1 and len({(shape[1:], bool(shape)) for shape in shapes}) == 1
