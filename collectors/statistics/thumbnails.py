"""Samples made small: only those that are kept are touched."""

import math

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.thumbnails import SIDE, THUMBNAIL_DTYPE, TYPICAL, Table, Thumbnails, places_to_keep

Array = NDArray[np.generic]
COPIED = ("hash", "deviation", "saturated", "nonfinite")


def with_batch(known: Thumbnails, rows: NDArray[np.void], x: Array, axis: int) -> Thumbnails:
    """The thumbnails of a set with those that a batch of images adds.

    Args:
        known: What was kept before.
        rows: The sample table of the batch.
        x: Its images, ``[samples, channels, height, width]`` or ``[samples, height, width, channels]``.
        axis: Their channel axis, 1 or 3.
    """
    if _none_is_kept(known, rows):
        return known
    table = np.zeros(len(rows), THUMBNAIL_DTYPE)
    for column in COPIED:
        table[column] = rows[column]
    table, before = np.concatenate([known.table, table]), len(known.table)
    places = places_to_keep(table)
    pixels = []
    for place in places:
        if place < before:
            pixels.append(known.pixels[place])
            continue
        small, table["scale"][place] = shrunk(x[place - before], axis - 1)
        pixels.append(small)
    return Thumbnails(table[places], pixels)


def _none_is_kept(known: Thumbnails, rows: Table) -> bool:
    """A glance at a batch, most of which add nothing: none of its samples can be among those that are kept."""
    table = known.table
    if len(table) < TYPICAL or table["nonfinite"].any() or not table["deviation"].min() > 0:
        return False
    top = table["saturated"].max()
    rivals = rows[rows["saturated"] >= top]
    return bool(
        rows["hash"].min() > table["hash"][TYPICAL - 1]
        and not rows["nonfinite"].any()
        and rows["deviation"].min() > table["deviation"].min()
        and (rivals["saturated"] == top).all()
        and (rivals["hash"] > table["hash"][table["saturated"] == top].min()).all()
    )


def shrunk(image: Array, axis: int) -> tuple[NDArray[np.float16], float]:
    """An image as means over squares of whole pixels, so that no side exceeds ``SIDE``.

    Squares at the right and lower border may be cut off. A square with a non-finite value is not finite.

    Args:
        image: ``[channels, height, width]`` or ``[height, width, channels]``.
        axis: The channel axis, 0 or 2.

    Returns:
        ``[height, width, channels]`` and the power of two that it was divided by, so that it fits float16.
    """
    planes = np.moveaxis(image, axis, -1)
    step = -(-max(planes.shape[:2]) // SIDE)
    with np.errstate(invalid="ignore"):
        means = _means(_means(planes, 0, step), 1, step)
    largest = float(np.abs(means, where=np.isfinite(means), out=np.zeros_like(means)).max(initial=0.0))
    scale = math.ldexp(1.0, max(min(math.frexp(largest)[1], 126), -126)) if largest else 1.0
    return (means / scale).astype(np.float16), scale


def _means(x: Array, axis: int, step: int) -> NDArray[np.float64]:
    """Means of ``step`` neighbours along an axis; the last may be of fewer."""
    size = x.shape[axis]
    starts = np.arange(0, size, step)
    counts = np.minimum(starts + step, size) - starts
    sums: NDArray[np.float64] = np.add.reduceat(x, starts, axis=axis, dtype=np.float64)
    return sums / counts.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
