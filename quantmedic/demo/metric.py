"""The task metric of the embedded detector."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Scores and overlaps (intersection over union) from which a detection finds an object.
SCORE, OVERLAP = 0.5, 0.5


def objects_found(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """Share of the labelled objects of each sample that a detection of their class and place finds.

    Args:
        outputs: One output ``[samples, cells, 4 + classes]``: centre, width and height of a box, and its scores.
        labels: ``[samples, objects, 5]``: left, top, right, bottom and class; a negative class is padding.
    """
    (found,) = outputs.values()
    boxes, scores = found[..., :4].astype(np.float64), found[..., 4:]
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    said = np.where(scores.max(axis=-1) > SCORE, scores.argmax(axis=-1), -1)
    wanted_low, wanted_high, kind = labels[:, :, np.newaxis, :2], labels[:, :, np.newaxis, 2:4], labels[..., 4]
    sides = np.minimum(high[:, np.newaxis], wanted_high) - np.maximum(low[:, np.newaxis], wanted_low)
    shared = np.maximum(sides, 0).prod(axis=-1)
    area = np.maximum(high - low, 0).prod(axis=-1)[:, np.newaxis] + (wanted_high - wanted_low).prod(axis=-1)
    hit = (shared > OVERLAP * (area - shared)) & (said[:, np.newaxis] == kind[..., np.newaxis])
    real = kind >= 0
    shares: Floats = (hit.any(axis=2) & real).sum(axis=1) / np.maximum(real.sum(axis=1), 1)
    return shares


objects_found.higher_is_better = True  # type: ignore[attr-defined]
