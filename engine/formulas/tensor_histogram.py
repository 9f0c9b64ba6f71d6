"""The histogram of one tensor as a report shows it, with the ranges that calibration methods would choose."""

import numpy as np
from pydantic import Field

from quantmedic.engine.case.facts import QuantizerFacts, Role, TensorFacts
from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.methods import method_grids, method_sqnrs_db
from quantmedic.engine.formulas.stored_bins import main_role, tensor_bins
from quantmedic.engine.formulas.tensors import grid_of, is_signed_grid
from quantmedic.engine.json_record import Contract

#: Bins of a histogram that a report shows.
DISPLAY_BINS = 64


class MethodRow(Contract):
    """The range that a calibration method would choose, and what it would leave of the signal."""

    method: str = Field(description="in force, min-max, percentile-…, mse (least squares) or kl (divergence)")
    low: float
    high: float
    sqnr_db: float = Field(description="predicted rounding SQNR of the tensor in dB; inf for no noise")


class Histogram(Contract):
    """Distribution of a flagged tensor, at most 64 bins, with the range of its quantizer."""

    layer: str
    dataset: Role
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    low: float | None
    high: float | None
    methods: tuple[MethodRow, ...] = Field(default=(), description="ranges by calibration method, best first")


def display_histogram(case: Case, tensor: TensorFacts) -> Histogram | None:
    """At most 64 even bins of a tensor's values, for the report; counts are spread evenly within stored bins."""
    index = next((i for i, t in enumerate(case.record.tensors) if t.name == tensor.name), None)
    role = main_role(case)
    bins = tensor_bins(case, role, index) if index is not None else None
    if bins is None or bins.high[-1] <= bins.low[0]:
        return None
    edges = np.linspace(bins.low[0], bins.high[-1], DISPLAY_BINS + 1)
    below = bins.total * (1.0 - bins.repeat(len(edges)).shares_above(edges))
    below[0] = 0.0
    counts = np.diff(np.round(below)).astype(int)
    return Histogram(
        layer=tensor.producer_name or tensor.float_name or "?",
        dataset=role,
        edges=tuple(float(e) for e in edges),
        counts=tuple(int(c) for c in np.maximum(counts, 0)),
        low=tensor.quantizer.low,
        high=tensor.quantizer.high,
        methods=_method_rows(bins, tensor.quantizer),
    )


def _method_rows(bins: Bins, quantizer: QuantizerFacts) -> tuple[MethodRow, ...]:
    """What calibration methods would make of a tensor with a fixed grid, the best first."""
    own = grid_of(quantizer)
    if own is None or quantizer.bits is None:
        return ()
    grids = {"in force": own, **method_grids(bins, quantizer.bits, symmetric=is_signed_grid(quantizer))}
    found = method_sqnrs_db(bins, grids)
    return tuple(
        MethodRow(method=name, low=grids[name].low, high=grids[name].high, sqnr_db=found[name])
        for name in sorted(grids, key=lambda name: -found[name])
    )
