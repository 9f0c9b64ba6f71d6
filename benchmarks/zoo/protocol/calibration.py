"""Whether stated confidences come true: the reliability table, and the expected calibration error."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .row import Row

BINS = 10
#: Draws of a perfectly calibrated expert, to tell what error so few cases show by chance.
DRAWS = 500
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """Confidences between two ends."""

    low: float
    high: float
    count: int
    stated: float
    right: float


@dataclass(frozen=True)
class Reliability:
    """Stated confidences against how often they were right.

    Attributes:
        bins: Of equal width, those without a case left out.
        error: Expected calibration error: the mean distance of a bin, weighted by its cases (Naeini et al. 2015).
        by_chance: The error that confidences show on average which are exactly right, with so many cases.
        brier: Mean squared distance of the confidence from 1 or 0 (Brier 1950).
    """

    count: int
    bins: tuple[Bin, ...]
    error: float
    by_chance: float
    brier: float


def stated(rows: Iterable[Row], *, first: bool) -> list[tuple[float, bool]]:
    """Confidences, and whether the cause is a true one.

    Args:
        rows: Harmless faults are left out: a cause of theirs is neither right nor wrong.
        first: Of the first cause; else of all causes of medium or high severity. Of healthy models only the latter
            count, since one of low severity claims no loss.
    """
    found = []
    for row in rows:
        if row.is_harmless:
            continue
        causes = row.said.serious if row.is_control or not first else row.said.causes
        found += [
            (cause.confidence, cause.name in row.true)
            for cause in (causes[:1] if first else causes)
            if cause.confidence is not None
        ]
    return found


def reliability(pairs: Sequence[tuple[float, bool]]) -> Reliability | None:
    """The table; None without any confidence."""
    if not pairs:
        return None
    confidence = np.array([pair[0] for pair in pairs], float)
    right = np.array([pair[1] for pair in pairs], bool)
    numbers = _bin_of(confidence)
    bins = [_bin(k, confidence[numbers == k], right[numbers == k]) for k in sorted(set(numbers.tolist()))]
    rng = np.random.default_rng(0)
    chance = [calibration_error(confidence, rng.random(len(confidence)) < confidence) for _ in range(DRAWS)]
    return Reliability(
        len(pairs),
        tuple(bins),
        calibration_error(confidence, right),
        float(np.mean(chance)),
        float(np.mean((confidence - right) ** 2)),
    )


def calibration_error(confidence: Floats, right: Bools) -> float:
    """Mean distance between what is stated and what comes true, over bins weighted by their cases."""
    distance = np.bincount(_bin_of(confidence), weights=confidence - right, minlength=BINS)
    return float(np.abs(distance).sum() / len(confidence))


def _bin_of(confidence: Floats) -> NDArray[np.intp]:
    return np.minimum((confidence * BINS).astype(np.intp), BINS - 1)


def _bin(k: int, confidence: Floats, right: Bools) -> Bin:
    return Bin(k / BINS, (k + 1) / BINS, len(right), float(confidence.mean()), float(right.mean()))


def render_reliability(title: str, found: Reliability) -> list[str]:
    """The table as text."""
    text = [
        f"\nconfidence of {title}: {found.count} stated, expected calibration error {found.error:.3f} "
        f"(by chance {found.by_chance:.3f}), Brier score {found.brier:.3f}",
        f"  {'between':>12s}{'causes':>8s}{'stated':>8s}{'right':>8s}",
    ]
    return text + [f"  {b.low:6.1f}-{b.high:.1f}{b.count:10d}{b.stated:8.2f}{b.right:8.2f}" for b in found.bins]
