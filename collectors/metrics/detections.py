"""Metrics of boxes: which detections find which labelled boxes."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.box_labels import labelled_boxes
from quantmedic.collectors.metrics.box_readings import BoxReading, Found, box_overlaps, raw_boxes, told_kinds
from quantmedic.collectors.metrics.reading import NO_SUPPRESSION, Outputs, Reading
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.detection import OVERLAPS

Values = NDArray[np.float64]
#: Detections of one class and sample that count, the best ones (Lin et al. 2014).
_MOST = 100
_COLUMNS = 3


def detection_rows(reading: Reading, outputs: Outputs, labels: Array, boxes: BoxReading | None = None) -> Tally:
    """Rows (class, score, overlaps found as bits) of detections, and (class, 0, boxes) of labelled boxes.

    Labels are ``[samples, boxes, 5]``: two corners and the class, unless the reading of the boxes says otherwise; a
    negative class is padding. Detections with a score of 0 or less, or a negative class, are padding too.

    Args:
        reading: What the metric was told.
        outputs: Outputs of a batch.
        labels: Their labelled boxes.
        boxes: How the outputs are read as boxes, where more is known than what was told.
    """
    named = reading.select_several(outputs)
    boxes = boxes or told_reading(reading)
    truth = labelled_boxes(labels, boxes.labels)
    return Tally.of_samples(
        [
            sample_rows(boxes.detect(raw), own[own[:, 4] >= 0])
            for raw, own in zip(raw_boxes(boxes.columns, named, len(labels)), truth, strict=True)
        ],
        _COLUMNS,
    )


def told_reading(reading: Reading) -> BoxReading:
    """How boxes are read by the options alone: corners in the unit of the labels, without suppression, by default."""
    overlap = reading.real("nms", NO_SUPPRESSION)
    return BoxReading(
        order=reading.text("boxes", "xyxy"),
        kind=told_kinds(reading, "given")[0],
        overlap=None if overlap == NO_SUPPRESSION else overlap,
        confidence=reading.real("confidence", 0.0),
        labels=reading.layout() or "corners",
    )


def sample_rows(found: Found, truth: Values) -> Values:
    """The rows of one sample; NaN where a number of its detections is none.

    Args:
        found: Its detections.
        truth: Its labelled boxes: left, top, right, bottom and class, ``[boxes, 5]``.
    """
    boxes, scores, classes = found
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
