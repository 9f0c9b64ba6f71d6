"""How neighbouring pixels of images relate, one row of sums per image: what a wrong layout or resize leaves behind."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.statistics import SPATIAL

Array = NDArray[np.generic]
Sums = NDArray[np.float64]
#: Colour planes that an image can have.
IMAGE_CHANNELS = (1, 3, 4)
#: Rows of pixels, from the middle of an image, that are measured: large images cost no more than small ones.
MEASURED_ROWS = 32
#: Second differences need three pixels side by side.
_LEAST = 3


def is_image(shape: tuple[int, ...], axis: int) -> bool:
    """Samples are images: four axes, and 1, 3 or 4 channels, first or last."""
    if len(shape) != 4 or axis not in (1, 3) or shape[axis] not in IMAGE_CHANNELS:
        return False
    return min(size for i, size in enumerate(shape) if i not in (0, axis)) >= _LEAST


def spatial_sums(x: Array, axis: int) -> Sums:
    """Sums of a batch of images, one row per image with the columns ``SPATIAL``.

    Args:
        x: Images, ``[samples, channels, height, width]`` or ``[samples, height, width, channels]``.
        axis: Their channel axis, 1 or 3.

    Returns:
        Per image: 1, the variance within a channel, the mean squared first and second difference of neighbours to the
        right and below; then the mean squared first difference in other layouts (`_other_layouts`), twice, 0 with one
        channel. All 0 for an image with a non-finite value.
    """
    n, channels = len(x), x.shape[axis]
    flat = np.ascontiguousarray(x).reshape(n, -1)
    stored = x if axis == 1 else x.transpose(0, 3, 1, 2)
    sums = np.zeros((n, len(SPATIAL)))
    finite = np.isfinite(flat).all(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        sums[:, 0] = 1.0
        sums[:, 1:4] = _neighbours(_middle(stored))
        if channels > 1:
            sums[:, 4:6] = _other_layouts(stored, flat, axis)
    return np.where(finite, sums, 0.0)


def _other_layouts(stored: Array, flat: Array, axis: int) -> Sums:
    """Mean squared first differences where each image is smoothest: of those read anew, and of all.

    The numbers may have been stored by planes, by pixels or by lines, and read as if they had been stored as the
    network wants them. Or they were read right, were moved to the network's layout by a mere change of shape, and so
    mix the channels: then each channel is normalized first, and the difference is scaled to the variance as stored.

    Args:
        stored: Images as planes, ``[samples, channels, height, width]``.
        flat: Their numbers as they lie in memory, ``[samples, values]``.
        axis: Channel axis of the images, 1 or 3.
    """
    n, channels, height, width = stored.shape
    as_planes = flat.reshape(stored.shape)
    as_pixels = flat.reshape(n, height, width, channels).transpose(0, 3, 1, 2)
    as_lines = flat.reshape(n, height, channels, width).transpose(0, 2, 1, 3)
    ways = (_neighbours(_middle(x), second=False) for x in (as_pixels if axis == 1 else as_planes, as_lines))
    reread = np.minimum(*(way[:, 1] for way in ways))
    deviation = stored.std(axis=(2, 3), keepdims=True, dtype=np.float64)
    centre, divisor = stored.mean(axis=(2, 3), keepdims=True, dtype=np.float64), np.where(deviation > 0, deviation, 1.0)
    alike = (stored - centre.astype(np.float32)) / divisor.astype(np.float32)
    if axis == 1:
        moved = alike.transpose(0, 2, 3, 1).reshape(stored.shape)
    else:
        moved = alike.reshape(n, height, width, channels).transpose(0, 3, 1, 2)
    mixed = _neighbours(_middle(moved), second=False)[:, 1] * np.square(deviation).mean(axis=(1, 2, 3))
    return np.stack([reread, np.minimum(reread, mixed)], axis=1)


def _middle(planes: Array) -> Sums:
    """The measured rows of ``[samples, channels, height, width]``."""
    start = max(planes.shape[2] - MEASURED_ROWS, 0) // 2
    return np.ascontiguousarray(planes[:, :, start : start + MEASURED_ROWS], np.float64)


def _neighbours(x: Sums, *, second: bool = True) -> Sums:
    """Variance within a channel, mean squared first differences to the right and below, and second ones if asked."""
    right, down = np.diff(x, axis=3), np.diff(x, axis=2)
    columns = [_mean_square(x - x.mean(axis=(2, 3), keepdims=True)), (_mean_square(right) + _mean_square(down)) / 2.0]
    if second:
        columns.append((_mean_square(np.diff(right, axis=3)) + _mean_square(np.diff(down, axis=2))) / 2.0)
    return np.stack(columns, axis=1)


def _mean_square(x: Sums) -> Sums:
    """Mean square of each sample; each is summed by itself, so that batches make no difference."""
    rows = x.reshape(len(x), -1)
    squares: Sums = np.einsum("ij,ij->i", rows, rows)
    return squares / rows.shape[1]
