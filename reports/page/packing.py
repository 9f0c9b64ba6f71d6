"""Numbers as text of few characters, for the page's data; ``browser/packed.js`` reads them.

Every number takes a fixed number of characters, digits to base 83, so that a layer's distributions take hundreds of
bytes instead of thousands. The digits are ASCII without what markup, JSON or a path gives a meaning to.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#()*+,-.:;=?@[]^_|~$"
BASE = len(DIGITS)
#: Steps per octave of a count: 0.35 % off at most, so that counts to a hundred are exact.
COUNT_STEPS = 100
#: Steps of the mantissa and lowest exponent of a real number, of ``EXPONENTS`` ones: 0.03 % off at most.
REAL_STEPS, LOWEST, EXPONENTS = 2200, -64, 128
#: Levels in steps of 0.05 dB from -100 dB on; two codes past them for infinity and for what is not measured.
LEVEL_STEPS, LOWEST_DB, HIGHEST_DB = 20, -100, 240
_DIGITS = np.frombuffer(DIGITS.encode(), np.uint8)
#: Every number of two digits.
_PAIRS = np.stack([np.repeat(_DIGITS, BASE), np.tile(_DIGITS, BASE)], axis=1)


def pack_counts(counts: ArrayLike) -> str:
    """Counts, two characters each."""
    values = np.asarray(counts, np.float64)
    return _digits_text(np.where(values > 0, 1 + np.round(np.log2(np.maximum(values, 1)) * COUNT_STEPS), 0), 2)


def pack_reals(values: ArrayLike) -> str:
    """Finite real numbers to three digits, three characters each; the tiniest become 0, the hugest the largest."""
    numbers = np.asarray(values, np.float64)
    mantissa, exponent = np.frexp(np.abs(numbers))
    # frexp's mantissa lies in [½, 1); one that rounds up to 1 belongs to the next exponent, and the sum carries over.
    steps = np.round((2 * mantissa - 1) * REAL_STEPS) + (exponent - 1 - LOWEST) * REAL_STEPS
    steps = np.minimum(steps, EXPONENTS * REAL_STEPS - 1)
    half = EXPONENTS * REAL_STEPS
    return _digits_text(np.where((numbers == 0) | (steps < 0), 0, 1 + steps + np.where(numbers < 0, half, 0)), 3)


def pack_levels(levels: Sequence[float | None]) -> str:
    """Levels in dB, two characters each; None and infinity are kept."""
    values = np.array([np.nan if level is None else level for level in levels], np.float64)
    top = (HIGHEST_DB - LOWEST_DB) * LEVEL_STEPS
    known = np.where(np.isfinite(values), values, 0.0)
    codes = np.clip(np.round((known - LOWEST_DB) * LEVEL_STEPS), 0, top)
    codes = np.where(values == np.inf, top + 1, np.where(np.isnan(values), top + 2, codes))
    return _digits_text(np.where(values == -np.inf, 0, codes), 2)


def pack_heights(heights: ArrayLike) -> str:
    """Heights from 0 to 255, one character each, to 1.2 % of the whole; only 0 becomes 0."""
    codes = np.ceil(np.asarray(heights, np.float64) / 255 * (BASE - 1)).astype(np.int64)
    return _DIGITS[codes].tobytes().decode("ascii")


def pack_places(places: ArrayLike) -> str:
    """Numbers of channels, three characters each."""
    return _digits_text(np.asarray(places), 3)


def _digits_text(codes: NDArray[np.generic], width: int) -> str:
    """Codes of two digits, or of three."""
    rest = codes.astype(np.int64)
    if width == 2:
        return _PAIRS[rest].tobytes().decode("ascii")
    first, rest = np.divmod(rest, BASE * BASE)
    return np.concatenate([_DIGITS[first][:, None], _PAIRS[rest]], axis=1).tobytes().decode("ascii")
