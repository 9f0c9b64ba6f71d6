"""Arithmetic on columns of many tensors, and on numbers that may be missing: NaN in a column, None alone."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from quantmedic.engine.case.facts import Facts
from quantmedic.engine.case.statistics import Column

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
#: Fields of facts by their name, by the place of the layer that has them.
FieldsByPlace = Mapping[int, Mapping[str, object]]


def per_tensor(reduce: np.ufunc, column: Column, offsets: Integers) -> Column:
    """A column reduced over the channels of every tensor; NaN, or 0 of a count, for a tensor without channels."""
    filled = offsets[:-1] < offsets[1:]
    reduced = np.full(len(filled), np.nan if column.dtype.kind == "f" else 0, column.dtype)
    if filled.any():
        reduced[filled] = reduce.reduceat(column, offsets[:-1][filled])
    return reduced


def facts_by_tensor(fields: Mapping[str, Column]) -> Iterator[dict[str, Any]]:
    """Columns as one mapping per tensor; NaN becomes None."""
    columns = [[None if v != v else v for v in column.tolist()] for column in fields.values()]
    for values in zip(*columns, strict=True):
        yield dict(zip(fields, values, strict=True))


def recorded_fields(record: BaseModel, facts: type[Facts]) -> dict[str, Any]:
    """What a record of the case holds under the names of facts: it is these facts as it stands."""
    return {name: getattr(record, name) for name in facts.model_fields if name in type(record).model_fields}


def owner_of_rows(offsets: Integers) -> Integers:
    """The tensor that each row belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def medians_by_tensor(values: Floats, owner: Integers, channels: Integers) -> Floats:
    """Median of the values of each tensor with more than one channel; ``owner`` is in ascending order."""
    medians = np.full(len(channels), np.nan)
    size = np.bincount(owner, minlength=len(channels))
    start = np.cumsum(size) - size
    judged = np.flatnonzero((size > 0) & (channels > 1))
    if not judged.size:
        return medians
    ordered = values[np.lexsort((values, owner))]
    first, n = start[judged], size[judged]
    medians[judged] = (ordered[first + (n - 1) // 2] + ordered[first + n // 2]) / 2
    return medians


def nan_for_none(values: Iterable[float | None]) -> Floats:
    """A column with NaN for None."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, None where either is unknown or b is not positive."""
    return None if a is None or b is None or b <= 0 else a / b


def bits_between(bulk: float | None, reach: float | None) -> float | None:
    """Bits that a range spends beyond the bulk of the values."""
    return None if reach is None or bulk is None or reach <= 0 or bulk <= 0 else math.log2(reach / bulk)
