"""Metrics of class scores and class labels: top-k and F1."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import OWN, PICK, Outputs, Reading, class_range_error
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError

Values = NDArray[np.float64]


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
