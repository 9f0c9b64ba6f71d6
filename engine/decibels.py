"""Decibels: the one formula of a level, for numbers and for columns of them.

Powers are sums or means of squares, so a ratio of powers r has the level 10 · log10(r).
"""

from typing import overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Half the step is a quarter of the noise: 20 · log10(2).
DB_PER_BIT = 6.02


@overload
def to_decibels(ratio: float) -> float: ...


@overload
def to_decibels(ratio: Floats) -> Floats: ...


def to_decibels(ratio: float | Floats) -> float | Floats:
    """Level of a ratio of powers: -inf for 0 and below, inf for inf, NaN for NaN."""
    with np.errstate(divide="ignore"):
        level = 10.0 * np.log10(np.maximum(ratio, 0.0))
    return level if isinstance(ratio, np.ndarray) else float(level)


@overload
def sqnr_db(signal: float, noise: float) -> float: ...


@overload
def sqnr_db(signal: Floats, noise: Floats) -> Floats: ...


def sqnr_db(signal: float | Floats, noise: float | Floats) -> float | Floats:
    """Signal-to-quantization-noise ratio of two powers.

    Without noise it is inf, whatever the signal; with noise and no signal -inf; NaN where a power is NaN or both are
    infinite.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        level = to_decibels(np.asarray(signal, np.float64) / np.asarray(noise, np.float64))
    found = np.where(np.less_equal(noise, 0.0) & ~np.isnan(signal), np.inf, level)
    return found if found.ndim else float(found)


def sqnr_of_nmse(nmse: float | None) -> float | None:
    """SQNR of a noise-to-signal ratio: inf for no noise, None where the ratio is unknown or undefined (NaN)."""
    return None if nmse is None or np.isnan(nmse) else -to_decibels(nmse)
