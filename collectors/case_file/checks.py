"""What a case file must hold so that its parts fit each other."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.histogram import shows_values
from quantmedic.engine.case.records import CaseRecord
from quantmedic.engine.case.statistics import (
    BUCKETS,
    ERROR_COLUMNS,
    ERROR_KINDS,
    FEATURES,
    ROW_COLUMNS,
    SLOTS,
    SPATIAL,
    WEIGHT_COLUMNS,
    SetStatistics,
)
from quantmedic.engine.limits import CASE_BYTES

#: Of a code.
MAX_BITS = 64


def check_rows(rows: int, path: Path) -> None:
    """Refuse more channels than a case has room for: columns that an older file lacks are made for each."""
    if rows < 0:
        raise ValueError(f"{rows} channels")
    CASE_BYTES.check(8 * rows * len({**ROW_COLUMNS, **WEIGHT_COLUMNS}), path)


def check_record(record: CaseRecord, statistics: Mapping[Role, SetStatistics]) -> None:
    """Every data set has its statistics, and every index of a tensor or operator stands for one."""
    seed = record.run.get("seed", 0)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"the seed {str(seed)[:50]!r} is none")
    bits = [tensor.quantizer.bits for tensor in record.tensors]
    if any(own is not None and not 0 <= own <= MAX_BITS for own in bits):
        raise ValueError(f"codes of less than no bits, or of more than {MAX_BITS}")
    if record.datasets.keys() != statistics.keys():
        raise ValueError(f"data sets {sorted(record.datasets)} with statistics of {sorted(statistics)}")
    used = [record.input_tensor, *(output.tensor for output in record.outputs)]
    used += [index for op in record.operators for index in (*op.inputs, *op.outputs)]
    used += [tensor.gate.source for tensor in record.tensors if tensor.gate is not None]
    used += [found.tensor for found in record.device.tensors] if record.device is not None else []
    operators = [source for op in record.operators for source in op.sources]
    if (budget := record.loss_budget) is not None:
        sources = [source for piece in budget.pieces for source in piece.sources]
        used += [index for source in sources for index in source.tensors]
        used += [departure.tensor for departure in budget.departures or ()]
        operators += [index for source in sources for index in source.operators]
        _check_indices("output", [part.output for part in budget.outputs], len(record.outputs))
    _check_float_operators(record)
    _check_indices("tensor", [index for index in used if index is not None], len(record.tensors))
    _check_indices("operator", operators, len(record.operators))


def _check_float_operators(record: CaseRecord) -> None:
    own = record.float_operators
    _check_indices("operator", [op.twin for op in own if op.twin is not None], len(record.operators))
    _check_indices("float operator", [place for op in own for place in op.reads if place != -1], len(own))


def _check_indices(what: str, indices: Iterable[int], count: int) -> None:
    for index in indices:
        if not 0 <= index < count:
            raise ValueError(f"{what} {index} of {count}")


def check_shapes(s: SetStatistics, record: CaseRecord) -> None:
    """Every array is as long as the tensors of the record ask for."""
    if s.channels.tolist() != [tensor.channels for tensor in record.tensors]:
        raise ValueError("the statistics are those of other tensors")
    tensors, rows = len(s.channels), int(s.channels.sum())
    types = {name: dtype for name, (dtype, _) in ROW_COLUMNS.items()} | dict(WEIGHT_COLUMNS)
    types |= {f"{kind}.{name}": dtype for kind in ERROR_KINDS for name, dtype in ERROR_COLUMNS.items()}
    if types.keys() != s.columns.keys():
        raise ValueError(f"columns missing or unknown: {', '.join(sorted(types.keys() ^ s.columns.keys()))}")
    if any(np.issubdtype(types[name], np.integer) and own.dtype.kind != "i" for name, own in s.columns.items()):
        raise ValueError("a column of counts holds no integers")
    if any(codes.dtype != np.bool_ for codes in s.codes):
        raise ValueError("the codes of the outputs are used, or not")
    expected: list[tuple[tuple[int, ...], list[Array]]] = [
        ((rows,), list(s.columns.values())),
        ((tensors,), [s.tensor_samples, s.sample_width, s.sample_count]),
        ((tensors, BUCKETS), [s.bucket_min, s.bucket_max]),
        ((tensors, SLOTS), [s.slot_min, s.slot_max]),
        ((FEATURES,), [s.feature_sum, s.flipped_sum]),
        ((FEATURES, FEATURES), [s.feature_outer]),
        ((BUCKETS, len(SPATIAL)), [s.spatial]),
    ]
    for shape, arrays in expected:
        if any(array.shape != shape or array.dtype.kind not in "fi" for array in arrays):
            raise ValueError(f"an array of shape {shape} is of another shape or type")
    if any(not 0 <= index < tensors for index in (*s.histograms, *s.quantized_histograms)):
        raise ValueError("a histogram belongs to no tensor")
    _check_counted(s)
    if s.samples.ndim != 1:
        raise ValueError(f"the table of samples has {s.samples.ndim} dimensions")
    numbers: list[Array] = [s.feature_sum, s.feature_outer, s.flipped_sum, *s.lattice]
    if not all(np.isfinite(array).all() for array in numbers):
        raise ValueError("features or distinct values of the samples are no numbers")
    if any((np.diff(points) <= 0).any() for points in s.lattice):
        raise ValueError("distinct values of the samples are not distinct, or in no order")


def _check_counted(s: SetStatistics) -> None:
    """Finite values that were counted have extremes, and stand in the histogram, where there is one."""
    counted = s.columns["count"] > 0
    if not all(np.isfinite(s.columns[name][counted]).all() for name in ("min", "max")):
        raise ValueError("values were counted that have no extremes")
    owners = np.repeat(np.arange(len(s.channels)), s.channels)
    if not all(shows_values(s.histograms[index]) for index in {*owners[counted].tolist()} & {*s.histograms}):
        raise ValueError("values were counted that the histogram does not show")
