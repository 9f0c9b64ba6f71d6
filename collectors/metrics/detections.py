"""Metrics of boxes: which detections find which labelled boxes."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import OWN, Outputs, Reading, shapes_of
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError
from quantmedic.engine.metrics.detection import OVERLAPS

Values = NDArray[np.float64]
#: Detections of one class and sample that count, the best ones (Lin et al. 2014).
_MOST = 100
_COLUMNS = 3
_LAYOUTS = (
    "name boxes [samples, boxes, 4], scores [samples, boxes] and classes [samples, boxes], --metric-output "
    "boxes,scores,classes; or boxes and scores [samples, boxes, classes]; or one output [samples, boxes, 6] of "
    f"corners, score and class; else {OWN}"
)


class _Found(NamedTuple):
    """Detections: corners ``[samples, boxes, 4]``, scores and classes ``[samples, boxes]``."""

    boxes: Values
    scores: Values
    classes: Values


def detection_rows(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (class, score, overlaps found as bits) of detections, and (class, 0, boxes) of labelled boxes.

    Labels are ``[samples, boxes, 5]``: two corners and the class; a negative class is padding. Detections with a score
    of 0 or less, or a negative class, are padding too.
    """
    named = reading.select_several(outputs)
    found = _detections(named, len(labels))
    truth = _labelled_boxes(labels)
    boxes = _corners(found.boxes, reading.text("boxes", "xyxy"))
    return Tally.of_samples(
        [
            _sample_rows(boxes[i], found.scores[i], found.classes[i], truth[i][truth[i][:, 4] >= 0])
            for i in range(len(labels))
        ],
        _COLUMNS,
    )


def _sample_rows(boxes: Values, scores: Values, classes: Values, truth: Values) -> Values:
    if np.isnan(boxes).any() or np.isnan(scores).any() or np.isnan(classes).any():
        return np.full((1, _COLUMNS), np.nan)
    real = (scores > 0) & (classes >= 0)
    boxes, scores, classes = boxes[real], scores[real], classes[real]
    rows = []
    for name in np.unique(np.concatenate([classes, truth[:, 4]])):
        labelled = truth[truth[:, 4] == name, :4]
        own = np.flatnonzero(classes == name)
        own = own[np.argsort(-scores[own], kind="stable")][:_MOST]
        if len(labelled):
            rows.append(np.array([[name, 0.0, len(labelled)]]))
        marks = overlaps_found(boxes[own], labelled)
        rows.append(np.stack([np.full(len(own), name), scores[own], marks], axis=1))
    return np.concatenate([np.zeros((0, _COLUMNS)), *rows])


def overlaps_found(boxes: Values, labelled: Values) -> Values:
    """For detections by falling score, the overlaps of ``OVERLAPS`` at which each finds a labelled box, as bits.

    At each overlap a detection takes the labelled box that it overlaps most, of those that no better one took; this is
    how COCOeval of pycocotools matches boxes that are no crowd (Lin et al. 2014).
    """
    overlap = box_overlaps(boxes, labelled)
    needed = np.minimum(OVERLAPS, 1 - 1e-10)
    taken = np.zeros((len(OVERLAPS), len(labelled)), np.bool_)
    every, marks = np.arange(len(OVERLAPS)), np.zeros(len(boxes))
    if not len(labelled):
        return marks
    for i, own in enumerate(overlap):
        free = np.where(taken, -1.0, own)
        best = len(labelled) - 1 - free[:, ::-1].argmax(axis=1)  # of equal overlaps the last one, as COCOeval does
        hit = free[every, best] >= needed
        taken[every[hit], best[hit]] = True
        marks[i] = (hit << every).sum()
    return marks


def box_overlaps(first: Values, second: Values) -> Values:
    """Intersection over union of every box of one list with every one of the other, given by corners."""
    low = np.maximum(first[:, np.newaxis, :2], second[np.newaxis, :, :2])
    high = np.minimum(first[:, np.newaxis, 2:], second[np.newaxis, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(own[:, 2:] - own[:, :2], axis=1) for own in (first, second)]
    union = areas[0][:, np.newaxis] + areas[1][np.newaxis] - shared
    overlaps: Values = np.divide(shared, union, out=np.zeros_like(shared), where=(shared > 0) & (union > 0))
    return overlaps


def _corners(boxes: Values, order: str) -> Values:
    """Boxes as left, top, right, bottom."""
    first, second = boxes[..., :2], boxes[..., 2:]
    match order:
        case "yxyx":
            return boxes[..., [1, 0, 3, 2]]
        case "xywh":
            return np.concatenate([first, first + second], axis=-1)
        case "cxcywh":
            return np.concatenate([first - second / 2, first + second / 2], axis=-1)
    return boxes


def _labelled_boxes(labels: Array) -> Values:
    if labels.dtype.kind not in "fiub" or labels.ndim != 3 or labels.shape[2] != 5:
        raise DataError(
            "labels are not boxes",
            where=f"labels  {labels.shape}  {labels.dtype}",
            help="give [samples, boxes, 5]: left, top, right, bottom and class; fill up with boxes of class -1",
        )
    boxes = labels.astype(np.float64)
    real = boxes[boxes[..., 4] >= 0]
    if np.any(real[:, 2:4] < real[:, :2]):
        wrong = real[(real[:, 2:4] < real[:, :2]).any(axis=1)][0]
        raise DataError(
            "a labelled box ends before it begins",
            where=f"box  {', '.join(f'{number:g}' for number in wrong[:4])}",
            help="give left, top, right, bottom: of a corner and the sides add the corner to the sides",
        )
    return boxes


def _detections(named: Mapping[str, Array], samples: int) -> _Found:
    """Boxes, scores and classes among the outputs that were named, or among all."""
    fitting = {name: array for name, array in named.items() if array.ndim in (2, 3) and len(array) == samples}
    whole = [array for array in fitting.values() if array.ndim == 3 and array.shape[2] == 6]
    if len(whole) == 1:
        rows = whole[0].astype(np.float64)
        return _Found(rows[..., :4], rows[..., 4], rows[..., 5])
    boxes = [name for name, array in fitting.items() if array.ndim == 3 and array.shape[2] == 4]
    # Scores of four classes look like boxes: the first of the two is taken for the boxes.
    if not boxes:
        raise _layout_error(named)
    corners = fitting.pop(boxes[0]).astype(np.float64)
    rest = {name: array for name, array in fitting.items() if array.shape[1] == corners.shape[1]}
    by_class = [array for array in rest.values() if array.ndim == 3]
    if len(by_class) == 1:
        return _best_classes(corners, by_class[0].astype(np.float64))
    lists = {name: array.astype(np.float64) for name, array in rest.items() if array.ndim == 2}
    if len(lists) != 2:
        raise _layout_error(named)
    scores, classes = _scores_and_classes(lists, named)
    return _Found(corners, scores, classes)


def _best_classes(boxes: Values, scores: Values) -> _Found:
    """Every box with its best class."""
    finite = np.where(np.isnan(scores), -np.inf, scores)
    best = np.where(np.isnan(scores).any(axis=2), np.nan, finite.max(axis=2))
    return _Found(boxes, best, finite.argmax(axis=2).astype(np.float64))


def _scores_and_classes(lists: Mapping[str, Values], named: Mapping[str, Array]) -> tuple[Values, Values]:
    """Which of two lists holds the classes: integers, or else the one whose name says so."""
    first, second = lists
    integers = [name for name in lists if named[name].dtype.kind in "iu"]
    called = [name for name in lists if any(word in name.lower() for word in ("class", "label", "categor"))]
    for classes in (integers, called):
        if len(classes) == 1:
            return lists[second if classes[0] == first else first], lists[classes[0]]
    return lists[first], lists[second]


def _layout_error(named: Mapping[str, Array]) -> DataError:
    return DataError("boxes, scores and classes were not found in the outputs", where=shapes_of(named), help=_LAYOUTS)
