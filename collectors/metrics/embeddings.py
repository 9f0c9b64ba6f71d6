"""Metrics of embeddings: nearest-neighbour recall."""

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.classes import is_one_hot
from quantmedic.collectors.metrics.reading import PICK, Outputs, Reading, whole_labels
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError


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
