"""The histograms of a case, as tables of bins."""

from collections.abc import Iterator, Sequence

import numpy as np

from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.histogram import Bins, BinTable, shows_values
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import LATTICE_POINTS, SetStatistics, TensorStatistics
from quantmedic.engine.formulas.columns import Floats, owner_of_rows, per_tensor

#: Tensors whose histograms are worked on together: few enough for the processor's cache.
_TOGETHER = 128


def main_role(case: Case) -> Role:
    """The data set that the facts under ``data`` come from: validation where there is one."""
    return "validation" if "validation" in case.statistics else "representative"


def tensor_bins(case: Case, role: Role, index: int) -> Bins | None:
    """Histogram of a float tensor on one data set; None where nothing finite was seen."""
    statistics = case.statistics.get(role)
    if statistics is None or index not in statistics.histograms:
        return None
    bins = bins_of_view(statistics.tensor(index))
    points = input_points(case, role)
    if bins is None or points is None or index != case.record.input_tensor:
        return bins
    return bins.on_points({0: points})


def bins_of_view(view: TensorStatistics) -> Bins | None:
    """Histogram of a tensor over its bins alone; None where no finite value stands in it."""
    if not view.count.sum() or not shows_values(view.histogram):
        return None
    return Bins.of(view.histogram, float(view.min.min()), float(view.max.max()))


def bin_tables(case: Case, role: Role, indices: Sequence[int]) -> Iterator[tuple[list[int], BinTable]]:
    """Histograms of the given tensors, of which something finite was seen, some tensors at a time."""
    statistics = case.statistics[role]
    lowest, highest = extremes(statistics)
    points = input_points(case, role)
    for start in range(0, len(indices), _TOGETHER):
        part = list(indices[start : start + _TOGETHER])
        bins = BinTable.of_many([statistics.histograms[i] for i in part], lowest[part], highest[part])
        if points is not None and case.record.input_tensor in part:
            bins = bins.on_points({part.index(case.record.input_tensor): points})
        yield part, bins


def input_points(case: Case, role: Role) -> Floats | None:
    """The distinct values of an input that takes few, such as 8-bit images; None where there are many."""
    known = case.statistics[role].lattice
    if not known or not all(0 < len(values) <= LATTICE_POINTS for values in known):
        return None
    return np.unique(np.concatenate(known)).astype(np.float64)


def extremes(statistics: SetStatistics) -> tuple[Floats, Floats]:
    """Smallest and largest finite value of every tensor; infinite where none was seen."""
    columns, offsets = statistics.columns, statistics.offsets
    return per_tensor(np.minimum, columns["min"], offsets), per_tensor(np.maximum, columns["max"], offsets)


def moments(statistics: SetStatistics) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every tensor; nan where nothing finite was seen."""
    columns, offsets = statistics.columns, statistics.offsets
    count = per_tensor(np.add, columns["count"], offsets)
    with np.errstate(all="ignore"):
        mean = per_tensor(np.add, columns["count"] * columns["mean"], offsets) / count
        away = columns["mean"] - mean[owner_of_rows(offsets)]
        return mean, np.sqrt(per_tensor(np.add, columns["m2"] + columns["count"] * away * away, offsets) / count)


def seen_tensors(statistics: SetStatistics) -> list[int]:
    """Indices of the tensors of which something finite was seen."""
    count = per_tensor(np.add, statistics.columns["count"], statistics.offsets)
    return [
        i for i in np.flatnonzero(count > 0).tolist() if i in statistics.histograms and statistics.histograms[i].any()
    ]
