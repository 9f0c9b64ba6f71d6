"""Whether the weights of two models have anything in common."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.originals import OperatorPair, output_axis
from quantmedic.collectors.pair.weight_grids import ALIKE, MIN_ROW, MIN_STRANGERS, STRANGER_SHARE
from quantmedic.engine.errors import ModelError

Values = NDArray[np.float32]


def is_comparable(stored: Values | None, original: Values | None) -> bool:
    """Both are known and of one shape, and neither is the other on another scale."""
    if stored is None or original is None or stored.shape != original.shape:
        return False
    power = float((original.astype(np.float64) ** 2).sum())
    scale = float((stored.astype(np.float64) * original).sum())
    return power == 0 or 0.5 < scale / power < 2.0


def refuse_other_weights(float_graph: Graph, quantized: Graph, twins: Mapping[int, Operator]) -> None:
    """Refuse two models of one kind whose weights have nothing in common.

    Args:
        float_graph: The float model.
        quantized: The quantized model.
        twins: Float operator of each matched quantized operator, by its index.

    Raises:
        ModelError: Nearly all layers that can be compared hold other weights.
    """
    found = {
        f"{twin.name} and {op.name}": alike
        for op in quantized.operators
        if (twin := twins.get(op.index)) is not None
        and (alike := weight_likeness(OperatorPair(op, quantized, twin, float_graph))) is not None
    }
    strangers = [names for names, alike in found.items() if alike < ALIKE]
    if len(strangers) < MIN_STRANGERS or len(strangers) < STRANGER_SHARE * len(found):
        return
    raise ModelError(
        "the weights of the two models do not belong together",
        where=[
            f"float     {float_graph.path}",
            f"quantized {quantized.path}",
            f"{len(strangers)} of {len(found)} layers hold other weights, first {strangers[0]}",
        ],
        help="is the quantized model made from this float model, and from the same training?",
    )


def weight_likeness(pair: OperatorPair) -> float | None:
    """Similarity of an operator's weights to its twin's, blind to a gain per channel; None where not comparable.

    Of two bits with one scale little is left of most weights: what the twin's become on the same grid counts too.
    """
    stored, original, axis = pair.weight, pair.twin_weight, output_axis(pair.op)
    if axis is None or stored is None or stored.values is None or original is None or original.values is None:
        return None
    if stored.values.size != original.values.size:
        return 0.0
    source = pair.original.weight
    if source is None or source.shape != stored.values.shape:
        return None
    rows = [np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1).astype(np.float64) for a in (stored.values, source)]
    cosines = [_cosines(*(a.reshape(1, -1) for a in rows))]
    if rows[0].shape[1] >= MIN_ROW:
        cosines.append(_cosines(*rows))
    if stored.quantizer is not None and not stored.quantizer.dynamic:
        rounded = stored.quantizer.dequantize(stored.quantizer.encode(source))
        cosines.append(_cosines(*(a.astype(np.float64).reshape(1, -1) for a in (stored.values, rounded))))
    known = [float(np.median(c)) for c in cosines if c.size]
    return max(known) if known else None


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Magnitude of the cosine of each pair of rows that has one."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        known = np.isfinite(norms) & (norms > 0)
        return np.asarray(np.abs((a * b).sum(axis=1)[known] / norms[known]), np.float64)
