"""What is kept of each sample for metrics of classes (top-k, F1), numbers, embeddings and class maps."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import OWN, PICK, Outputs, Reading, class_range_error, whole_labels
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError

Values = NDArray[np.float64]
Integers = NDArray[np.int64]
_IGNORED = 255


def top_k(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """1 where fewer than ``k`` classes beat the label's; of equal scores the lower class wins, as in argmax."""
    k = int(reading.metric[3:])
    where, scores = reading.select(outputs)
    _require_class_scores(reading.metric, k, where, scores)
    classes = class_indices(reading, where, scores, labels)[:, np.newaxis]
    own = np.take_along_axis(scores, classes, axis=1)
    earlier = np.arange(scores.shape[1]) < classes
    rank = ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    unordered = np.isnan(scores).any(axis=1)
    return Tally.of_numbers(np.where(unordered, 0.0, rank < k).astype(np.float64))


def macro_f1(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (class, twice the hits, labels and predictions) of the label's class and the predicted one."""
    where, scores = reading.select(outputs)
    _require_class_scores("f1", 1, where, scores)
    classes = class_indices(reading, where, scores, labels)
    found = []
    for label, own in zip(classes.tolist(), scores, strict=True):
        predicted = -1 if np.isnan(own).any() else int(own.argmax())
        if predicted == label:
            found.append(np.array([[label, 2.0, 2.0]]))
        else:
            named = [label] if predicted < 0 else [label, predicted]
            found.append(np.array([[name, 0.0, 1.0] for name in named]))
    return Tally.of_samples(found, 3)


def binary_f1(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (twice the hits of class 1, its labels and predictions)."""
    where, scores = reading.select(outputs)
    columns = scores.reshape(len(scores), -1) if scores.ndim and len(scores) else scores
    if columns.ndim != 2 or columns.shape[1] not in (1, 2):
        raise DataError(
            "f1-binary needs one score per sample, or one of each of two classes",
            where=f"output  {where}  {scores.shape}",
            help=f"of more classes give --metric f1; {PICK}",
        )
    truth = class_indices(reading, where, np.zeros((len(columns), 2)), labels) == 1
    positive = _above_threshold(reading, where, columns) if columns.shape[1] == 1 else columns.argmax(axis=1) == 1
    positive &= ~np.isnan(columns).any(axis=1)
    rows = np.stack([2.0 * (positive & truth), positive.astype(np.float64) + truth], axis=1)
    return Tally.of_rows(rows)


def _above_threshold(reading: Reading, where: str, columns: Array) -> NDArray[np.bool_]:
    scores = columns[:, 0]
    given = "threshold" in reading.options
    if not given and np.any((scores < 0) | (scores > 1)):
        raise DataError(
            "the scores of class 1 are no probabilities",
            where=f"output  {where}  from {np.nanmin(scores):.4g} to {np.nanmax(scores):.4g}",
            help="say from where on a sample is of class 1: --metric-option threshold=0",
        )
    return np.asarray(scores > reading.real("threshold", 0.5))


def _require_class_scores(metric: str, k: int, where: str, scores: Array) -> None:
    if scores.ndim != 2:
        raise DataError(
            f"{metric} needs one row of class scores per sample", where=f"output  {where}  {scores.shape}", help=PICK
        )
    if scores.shape[1] <= k:
        raise DataError(
            f"{metric} needs more than {k} class{'es' if k > 1 else ''}",
            where=f"output  {where}  {scores.shape}",
            help="give --metric top1" if scores.shape[1] > 1 else OWN,
        )


def class_indices(reading: Reading, where: str, scores: Array, labels: Array) -> NDArray[np.int64]:
    """Labels as indices into the classes: one number per sample, or one-hot rows.

    Raises:
        DataError: They are neither, or an index is no class.
    """
    if labels.shape == scores.shape and is_one_hot(labels):
        reading.note("the labels are one-hot rows: they were taken as the classes that they mark")
        return np.asarray(labels.argmax(axis=1), np.int64)
    if labels.size != len(scores) or len(labels) != len(scores):
        raise DataError(
            "labels are not one class index per sample",
            where=[f"labels  {labels.shape}", f"output  {where}  {scores.shape}"],
            help="give class indices, or one-hot rows with one column per class; of scores take argmax(axis=1)",
        )
    if labels.dtype.kind not in "fiub":
        raise DataError(
            "labels are words, and this metric needs class indices",
            where=f"labels  {labels.shape}  {labels.dtype}",
            help="number the classes in the order of the model's scores",
        )
    flat = labels.reshape(-1)
    wrong = ~((flat >= 0) & (flat < scores.shape[1]) & (flat == np.floor(flat)))
    if wrong.any():
        raise class_range_error(flat[wrong][0], where, scores.shape[1])
    return flat.astype(np.int64)


def is_one_hot(labels: Array) -> bool:
    """Rows of zeros with a single one each."""
    if labels.ndim != 2 or labels.shape[1] < 2 or not len(labels) or labels.dtype.kind not in "fiub":
        return False
    return bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def absolute_errors(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Mean absolute difference of each sample."""
    return Tally.of_numbers(np.abs(_errors_of_samples(reading, outputs, labels)).mean(axis=1))


def squared_errors(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Mean squared difference of each sample."""
    return Tally.of_numbers(np.square(_errors_of_samples(reading, outputs, labels)).mean(axis=1))


def _errors_of_samples(reading: Reading, outputs: Outputs, labels: Array) -> Array:
    """Output minus label in float64, ``[samples, numbers per sample]``."""
    where, values = reading.select(outputs)
    fits = values.ndim and labels.ndim and len(values) == len(labels) and values.size == labels.size
    if not fits or labels.dtype.kind not in "fiub":
        raise DataError(
            "labels do not have the shape of the output",
            where=[f"labels  {labels.shape}  {labels.dtype}", f"output  {where}  {values.shape}"],
            help=PICK.replace("another output", "the output"),
        )
    rows = (len(values), -1) if values.size else (len(values), 0)
    return values.reshape(rows).astype(np.float64) - labels.reshape(rows).astype(np.float64)


def neighbour_rows(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (label, embedding): nearest neighbours are known when all samples are."""
    where, vectors = reading.select(outputs)
    if is_one_hot(labels):
        reading.note("the labels are one-hot rows: they were taken as the classes that they mark")
        labels = labels.argmax(axis=1)
    if vectors.ndim < 2 or len(vectors) != len(labels) or max(vectors.shape[1:]) * len(vectors) != vectors.size:
        raise DataError(
            f"{reading.metric} needs one embedding per sample",
            where=[f"output  {where}  {vectors.shape}", f"labels  {labels.shape}"],
            help=PICK,
        )
    if labels.size != len(labels):
        raise DataError(
            f"{reading.metric} needs one label per sample: whoever or whatever it shows",
            where=f"labels  {labels.shape}",
            help="give one whole number per sample; samples of the same number belong together",
        )
    names = whole_labels(labels.reshape(-1), "one whole number per sample")
    rows = vectors.reshape(len(vectors), -1)
    return Tally.of_rows(np.concatenate([names[:, np.newaxis], rows], axis=1, dtype=np.float64))


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
