"""Biases that were not multiplied with the weights of their outputs."""

import numpy as np
from numpy.typing import NDArray

#: Channels count from this gain on, and where the bias is not next to nothing beside the others.
_GAIN, _LEAST_BIAS = 1.1, 1e-3
#: Most of these channels have to show it.
_SHARE, _LEAST_CHANNELS = 0.5, 4
Floats = NDArray[np.float64]


def is_left_unscaled(before: Floats, after: Floats, gains: Floats) -> bool:
    """The bias stayed as it was, or nearly so, where weights were multiplied by gains of their outputs.

    Gains are known up to a factor in common, and so is what the bias was multiplied with.
    """
    if before.shape != gains.shape or after.shape != gains.shape:
        return False
    counted = (np.abs(before) > _LEAST_BIAS * np.sqrt(np.mean(np.square(before)))) & (gains > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved, wanted = np.log(after / before), np.log(gains)
    counted &= np.isfinite(moved) & np.isfinite(wanted)
    if not counted.any():
        return False
    moved, wanted = moved[counted], wanted[counted]
    wanted = wanted - np.median(wanted)
    loud = np.abs(wanted) > np.log(_GAIN)
    if loud.sum() < _LEAST_CHANNELS:
        return False
    moved = moved - np.median(moved)
    return bool((np.abs(moved - wanted) > np.abs(wanted) / 2)[loud].mean() > _SHARE)
