"""Metrics of class maps: mean intersection over union."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import OWN, PICK, Outputs, Reading, class_range_error, whole_labels
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError

Integers = NDArray[np.int64]
_IGNORED = 255


def overlap_rows(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (class, intersection, union) in pixels, of each class that a sample's label or prediction shows."""
    where, maps = reading.select(outputs)
    truth = whole_labels(_without_channel(labels), "class maps of whole numbers")
    if truth.ndim != 3:
        raise DataError(
            "miou needs a map of classes per sample",
            where=[f"labels  {labels.shape}", f"output  {where}  {maps.shape}"],
            help="give labels [samples, height, width] of class indices",
        )
    predicted, classes = _class_maps(where, maps, truth)
    counted = (truth >= 0) & (truth != reading.integer("ignore", _IGNORED))
    if classes is not None and np.any(truth[counted] >= classes):
        raise class_range_error(int(truth[counted].max()), where, classes)
    return Tally.of_samples(
        [_overlaps(own[use], label[use]) for own, label, use in zip(predicted, truth, counted, strict=True)], 3
    )


def _overlaps(predicted: Integers, truth: Integers) -> NDArray[np.float64]:
    size = int(max(predicted.max(initial=0), truth.max(initial=0))) + 1
    shared = np.bincount(truth[predicted == truth], minlength=size)
    either = np.bincount(predicted[predicted >= 0], minlength=size) + np.bincount(truth, minlength=size) - shared
    names = np.flatnonzero(either)
    return np.stack([names, shared[names], either[names]], axis=1).astype(np.float64)


def _class_maps(where: str, maps: Array, truth: Integers) -> tuple[Integers, int | None]:
    """Class of each pixel, -1 where its scores are not numbers, and the number of classes where that is known."""
    flat = _without_channel(maps)
    if flat.shape == truth.shape:
        return _whole_maps(where, flat), None
    layouts = {1: maps.shape[2:], -1: maps.shape[1:3]} if maps.ndim == 4 else {}
    axis = next((axis for axis, size in layouts.items() if size == truth.shape[1:]), 0)
    if not axis or len(maps) != len(truth):
        raise DataError(
            "labels and output have maps of different sizes",
            where=[f"labels  {truth.shape}", f"output  {where}  {maps.shape}"],
            help=f"bring the labels to the size of the output, or the output to theirs; {PICK}",
        )
    scores = np.moveaxis(maps, axis, 1)
    predicted = np.where(np.isnan(scores).any(axis=1), -1, scores.argmax(axis=1))
    return predicted.astype(np.int64), scores.shape[1]


def _whole_maps(where: str, maps: Array) -> Integers:
    finite = np.isfinite(maps)
    if not np.array_equal(maps[finite], np.floor(maps[finite])):
        raise DataError(
            "miou needs scores of at least two classes, or a map of whole class indices",
            where=f"output  {where}  {maps.shape}  {maps.dtype}",
            help=f"{OWN}, where one score per pixel has a threshold",
        )
    return np.where(finite, maps, -1).astype(np.int64)


def _without_channel(maps: Array) -> Array:
    """``[samples, height, width]`` of maps that have one channel."""
    if maps.ndim != 4 or 1 not in (maps.shape[1], maps.shape[3]):
        return maps
    return maps[:, 0] if maps.shape[1] == 1 else maps[..., 0]
