"""Non-maximum suppression: of boxes of one class that overlap, the best one stays."""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
#: Boxes that are compared with each other at a time.
_BLOCK = 256


def suppress(boxes: Values, scores: Values, classes: Values, overlap: float, most: int) -> NDArray[np.int64]:
    """Places of the boxes that stay, by falling score; of equal scores the earlier box is the better one.

    A box falls where a better one of its class that stays overlaps it by more than ``overlap`` (intersection over
    union). This is greedy suppression as torchvision's ``batched_nms`` has it. Boxes are taken block by block and the
    search ends once ``most`` stay, so that the long tail of poor scores costs nothing.

    Args:
        boxes: Corners, ``[boxes, 4]``.
        scores: ``[boxes]``.
        classes: ``[boxes]``.
        overlap: Overlap up to which boxes of a class stand beside each other.
        most: Boxes that stay at most.
    """
    order = np.argsort(-scores, kind="stable")
    kept = np.zeros(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        block = block[~_overlaps(boxes, classes, block, kept, overlap).any(axis=1)]
        kept = np.concatenate([kept, block[_first_ones(_overlaps(boxes, classes, block, block, overlap))]])
        if len(kept) >= most:
            break
    return kept[:most]


def _overlaps(
    boxes: Values, classes: Values, first: NDArray[np.int64], second: NDArray[np.int64], overlap: float
) -> NDArray[np.bool_]:
    """Which boxes of one list overlap which of the other too much, and are of its class; ``[first, second]``."""
    a, b = boxes[first, np.newaxis], boxes[np.newaxis, second]
    shared = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0).prod(axis=2)
    union = (a[..., 2:] - a[..., :2]).prod(axis=2) + (b[..., 2:] - b[..., :2]).prod(axis=2) - shared
    found: NDArray[np.bool_] = shared > overlap * union
    # Boxes without an area, whose union is none, overlap nothing.
    return found & (union > 0) & (classes[first, np.newaxis] == classes[np.newaxis, second])


def _first_ones(overlapping: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of boxes in order, those that no earlier one that stays overlaps."""
    stays = np.ones(len(overlapping), np.bool_)
    for i in range(len(stays)):
        if stays[i]:
            stays[i + 1 :] &= ~overlapping[i, i + 1 :]
    return stays
