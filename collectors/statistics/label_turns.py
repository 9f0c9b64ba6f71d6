"""Labels of several numbers for a sample, read in another order: where the metric is far better so, they do not fit."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.metrics.labels import AS_GIVEN

Array = NDArray[Any]
#: So many labelled samples at least are read in all orders.
SAMPLES = 64


def turns_of(labels: Array) -> Iterator[tuple[str, Array]]:
    """The labels as they are, backwards along each axis, and with neighbours of the last axis exchanged in pairs.

    Exchanged are rows and columns of boxes, with a class before or behind them or none. Nothing where a sample has one
    number.

    Args:
        labels: ``[samples, ...]``.
    """
    if labels.ndim < 2 or labels.dtype.kind not in "fiu" or labels[0].size < 2:
        return
    yield AS_GIVEN, labels
    for axis in range(1, labels.ndim):
        if labels.shape[axis] > 1:
            yield f"backwards along axis {axis}", np.flip(labels, axis)
    columns = labels.shape[-1]
    for start in (0, 1):
        pairs = (columns - start) // 2
        if pairs < 2:
            continue
        order = np.arange(columns)
        order[start : start + 2 * pairs] = order[start : start + 2 * pairs].reshape(pairs, 2)[:, ::-1].reshape(-1)
        named = f"{start} and {start + 1}, {start + 2} and {start + 3}"
        yield f"with columns {named}{' and so on' if pairs > 2 else ''} exchanged", labels[..., order]
