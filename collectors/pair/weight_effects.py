"""What the error of stored weights does to each output channel, from what is known of the float inputs."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.likeness import is_comparable
from quantmedic.collectors.pair.originals import OperatorPair, output_axis
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.engine.case.records import CaseRecord
from quantmedic.engine.case.statistics import SetStatistics

Floats = NDArray[np.float64]


def fill_weight_errors(statistics: SetStatistics, record: CaseRecord, models: PairedGraphs) -> None:
    """Write ``WEIGHT_COLUMNS``: for every output channel, the error d = ΔW · x + Δb that weights and bias make.

    ``weights.sum`` holds n · E[d] with E[d] = Σ ΔW · E[x] + Δb, exact but for zero padding, and ``weights.square``
    n · Σ ΔW² · E[x²], which is E[d²] where rounding errors have random signs; n is the number of values of x per
    channel. Channels of an operator whose input or weights are not known stay at 0.
    """
    for op in models.quantized.operators:
        known = record.operators[op.index]
        source, target = (next(iter(tensors), None) for tensors in (known.inputs, known.outputs))
        if source is None or target is None or known.weight.name is None:
            continue
        pair = OperatorPair.of(op, models)
        error = _weight_error(pair)
        if error is None:
            continue
        inputs, outputs = (statistics.rows(i) for i in (source, target))
        count, mean, m2 = (statistics.columns[name][inputs] for name in ("count", "mean", "m2"))
        reached = _per_output(error, mean, m2 / np.maximum(count, 1) + mean * mean, outputs.stop - outputs.start)
        if reached is None or not (count > 0).all():
            continue
        n = int(count.min())
        statistics.columns["weights.count"][outputs] = n
        statistics.columns["weights.sum"][outputs] = n * (reached[0] + _bias_error(pair))
        statistics.columns["weights.square"][outputs] = n * reached[1]


def _weight_error(pair: OperatorPair) -> Floats | None:
    """Stored - float weights as ``[outputs, inputs of a group, taps]``; None where they cannot be compared."""
    op, axis, stored = pair.op, output_axis(pair.op), pair.weight
    if op.op_type not in ("Conv", "Gemm", "MatMul") or axis is None or stored is None or stored.values is None:
        return None
    original = pair.original.weight
    if original is None or not is_comparable(stored.values, original) or _scales_its_product(op):
        return None
    if op.op_type != "Conv" and stored.values.ndim != 2:
        return None
    error = stored.values.astype(np.float64) - original
    rows = error if axis == 0 else error.T
    return rows.reshape(rows.shape[0], rows.shape[1], -1)


def _bias_error(pair: OperatorPair) -> Floats:
    """Stored - float bias per channel; 0 where there is none, or none that can be compared."""
    stored, original = pair.bias, pair.original.bias
    if stored is None or stored.values is None or original is None or stored.values.shape != original.shape:
        return np.zeros(1)
    return stored.values.astype(np.float64).ravel() - original.ravel()


def _scales_its_product(op: Operator) -> bool:
    """A Gemm that turns its input or multiplies the product, or a MatMul whose weights come first."""
    return op.attributes.number("alpha", 1.0) != 1.0 or bool(op.attributes.integer("transA"))


def _per_output(error: Floats, mean: Floats, power: Floats, outputs: int) -> tuple[Floats, Floats] | None:
    """Σ ΔW · E[x] and Σ ΔW² · E[x²] of each output; None where the channels do not fit the weights."""
    if len(error) != outputs or not error.shape[1] or len(mean) % error.shape[1]:
        return None
    groups = len(mean) // error.shape[1]
    if outputs % groups:
        return None
    owner = np.arange(outputs) * groups // outputs
    means, powers = (values.reshape(groups, -1)[owner] for values in (mean, power))
    return (error.sum(axis=2) * means).sum(axis=1), ((error * error).sum(axis=2) * powers).sum(axis=1)
