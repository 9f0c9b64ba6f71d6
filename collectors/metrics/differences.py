"""Metrics of numbers: mean absolute and root mean square error."""

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import PICK, Outputs, Reading
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError


def absolute_errors(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Mean absolute difference of each sample."""
    return Tally.of_numbers(np.abs(_differences(reading, outputs, labels)).mean(axis=1))


def squared_errors(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Mean squared difference of each sample."""
    return Tally.of_numbers(np.square(_differences(reading, outputs, labels)).mean(axis=1))


def _differences(reading: Reading, outputs: Outputs, labels: Array) -> Array:
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
