"""The histogram of one tensor as a report shows it."""

import numpy as np

from quantmedic.engine.case.facts import Role, TensorFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.stored_bins import main_role, tensor_bins
from quantmedic.engine.json_record import Contract

#: Bins of a histogram that a report shows.
DISPLAY_BINS = 64


class Histogram(Contract):
    """Distribution of a flagged tensor, at most 64 bins, with the range of its quantizer."""

    layer: str
    dataset: Role
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    low: float | None
    high: float | None


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
    )
