"""Mean average precision of boxes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.counts import Estimate

Floats = NDArray[np.float64]
#: Overlaps from which on a box counts as found, and recalls at which the precision is read (Lin et al. 2014).
OVERLAPS = tuple(0.5 + 0.05 * i for i in range(10))
_RECALLS = np.linspace(0.0, 1.0, 101)
#: Below this mAP of the float model labels or preprocessing may be wrong: half of what SSDlite320, the weakest detector
#: that torchvision publishes, has on COCO (21.3 %).
LITTLE = 0.1
#: Metrics of boxes.
BOX_METRICS = ("map", "map50")
#: Numbers that one block of choices may hold.
_BLOCK = 4_000_000


class _ClassBoxes(NamedTuple):
    """Detections of one class by falling score: their samples, and at which overlaps each found a box."""

    owners: NDArray[np.int64]
    found: NDArray[np.bool_]
    labelled: Floats


def mean_average_precision(overlaps: Sequence[int]) -> Callable[[Tally], Estimate]:
    """COCO's mean average precision (Lin et al. 2014), as pycocotools computes it for boxes of all sizes.

    Rows are (class, score, overlaps found as bits) for a detection, whose score is positive, and (class, 0, boxes) for
    the labelled boxes of a class. The average precision is the mean over 101 recalls of the best precision at that
    recall or above; its mean is taken over the overlaps and the classes that have labelled boxes.

    Args:
        overlaps: Places in ``OVERLAPS`` of those that count.
    """

    def prepare(tally: Tally) -> Estimate:
        classes = _by_class(tally, overlaps)
        widest = max((len(own.owners) for own in classes), default=1)

        def estimate(times: Floats) -> Floats:
            step = max(_BLOCK // max(widest, 1), 1)
            return np.concatenate([_mean(classes, times[i : i + step]) for i in range(0, len(times), step)])

        return estimate

    return prepare


def _by_class(tally: Tally, overlaps: Sequence[int]) -> list[_ClassBoxes]:
    classes, scores, marks = tally.values.T
    owners, labels = tally.owners, scores == 0
    found = []
    for name in np.unique(classes[labels]):
        own = np.flatnonzero((classes == name) & ~labels)
        own = own[np.argsort(-scores[own], kind="stable")]
        boxes = (classes == name) & labels
        labelled = np.bincount(owners[boxes], marks[boxes], len(tally)).astype(np.float64)
        bits = marks[own].astype(np.int64)
        hits = np.array([bits >> place & 1 for place in overlaps], np.bool_).reshape(len(overlaps), len(own))
        # Behind the last that found a box, no recall is reached any more.
        last = int(np.flatnonzero(hits.any(axis=0)).max(initial=-1)) + 1
        own, hits = own[:last], hits[:, :last]
        found.append(_ClassBoxes(owners[own], hits, labelled))
    return found


def _mean(classes: Sequence[_ClassBoxes], times: Floats) -> Floats:
    """Of the classes that have labelled boxes in a choice of samples; NaN where none has."""
    total, present = np.zeros(len(times)), np.zeros(len(times))
    for own in classes:
        labelled = times @ own.labelled
        known = labelled > 0
        weights = times[:, own.owners]
        seen = np.cumsum(weights, axis=1)
        precision = [_average(weights[:, hits], seen[:, hits], labelled) for hits in own.found]
        total += np.where(known, np.mean(precision, axis=0), 0.0)
        present += known
    mean: Floats = np.divide(total, present, out=np.full(len(times), np.nan), where=present > 0)
    return mean


def _average(hits: Floats, seen: Floats, labelled: Floats) -> Floats:
    """Average precision of one class at one overlap, by choice.

    Args:
        hits: How often each detection that found a box counts, ``[choices, hits]``, by falling score.
        seen: How many detections there are up to that one.
        labelled: Labelled boxes, ``[choices]``.
    """
    if not hits.shape[1]:
        return np.zeros(len(hits))
    found = np.cumsum(hits, axis=1)
    precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    read = _recalls_reached(found / np.maximum(labelled, 1)[:, np.newaxis])
    average: Floats = (best * np.diff(read, axis=1, prepend=0)).sum(axis=1) / len(_RECALLS)
    return average


def _recalls_reached(recall: Floats) -> Floats:
    """How many of the 101 recalls are no larger; what rounding decides is looked up."""
    last = np.minimum((100 * recall + 1e-9).astype(np.int64), len(_RECALLS) - 1)
    return last + (_RECALLS[last] <= recall)
