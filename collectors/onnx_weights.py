"""Facts of weights and biases: the float initializers against the codes that replace them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.accumulate import as_rows, kernels
from quantmedic.collectors.onnx_constants import Constant
from quantmedic.collectors.onnx_graph import Graph, Operator
from quantmedic.collectors.onnx_originals import bias_of, original_of, output_axis, weight_of
from quantmedic.collectors.onnx_quantizer import Quantizer
from quantmedic.engine.case import SetStatistics
from quantmedic.engine.errors import ModelError
from quantmedic.engine.facts import BiasFacts, ErrorFacts, QuantizerFacts, WeightFacts
from quantmedic.engine.tensors import ALIVE
from quantmedic.engine.tensors import error_facts as _error_facts

#: Channels under this share of the tensor's largest magnitude count as dead.
DEAD = 1e-6
_INT32_MAX = 2**31 - 1
#: Weights less similar than this (cosine) were not made from one another; 2-bit weights still reach 0.9.
ALIKE = 0.5
#: Two models are strangers where so many layers, and this share of all that can be compared, are not alike.
MIN_STRANGERS, STRANGER_SHARE = 2, 0.8
#: Shorter channels are alike by chance.
MIN_ROW = 8


def quantizer_facts(quantizer: Quantizer | None) -> QuantizerFacts:
    """Facts of one quantizer; empty where there is none."""
    if quantizer is None:
        return QuantizerFacts()
    if quantizer.dynamic:
        return QuantizerFacts(bits=quantizer.bits, signed=quantizer.signed, dynamic=True, granularity="per_tensor")
    scale = np.atleast_1d(np.asarray(quantizer.scale, np.float64)).ravel()
    zero = int(np.atleast_1d(quantizer.zero_point).ravel()[0])
    per_tensor = scale.size == 1
    middle = 0 if quantizer.signed else 2 ** (quantizer.bits - 1)
    return QuantizerFacts(
        scale=float(scale.max()),
        scale_min=float(scale.min()),
        zero_point=zero,
        bits=quantizer.bits,
        signed=quantizer.signed,
        symmetric=bool(np.all(quantizer.zero_point == middle)) or (not quantizer.signed and zero == 0),
        granularity="per_tensor" if per_tensor else "per_block" if quantizer.block_size else "per_channel",
        axis=quantizer.axis,
        low=float(scale[0] * (quantizer.qmin - zero)) if per_tensor else None,
        high=float(scale[0] * (quantizer.qmax - zero)) if per_tensor else None,
        dynamic=False,
        power_of_two=bool(np.all(np.frexp(scale)[0] == 0.5)),
    )


def error_facts(x: NDArray[np.float32], y: NDArray[np.float32], axis: int | None, scale: float | None) -> ErrorFacts:
    """Error of ``y`` against ``x`` (equal shapes), with the worst channel along ``axis``."""
    if not x.size:
        return ErrorFacts()
    a, b = ((v.reshape(1, 1, -1) if axis is None else as_rows(v, axis)) for v in (x, y))
    into = SetStatistics.empty([a.shape[1]]).tensor(0)
    kernels.observe_error(a, b, into, "rounding")
    return _error_facts(into.errors["rounding"], scale, audible=ALIVE)


def weight_facts(op: Operator, graph: Graph, twin: Operator | None, float_graph: Graph) -> WeightFacts:
    """Facts of an operator's weights; empty where it has none."""
    stored = weight_of(op, graph)
    if stored is None:
        return WeightFacts()
    original = original_of(op, graph, twin, float_graph)
    source = original.weight if _comparable(stored.values, original.weight) else None
    values = source if source is not None else stored.values
    quantizer = quantizer_facts(stored.quantizer)
    if values is None or not values.size:
        return WeightFacts(name=stored.name, quantizer=quantizer)
    axis = output_axis(op)
    axis = axis % values.ndim if axis is not None else None
    tops = np.abs(values).max(axis=tuple(i for i in range(values.ndim) if i != axis)) if axis is not None else None
    top = float(np.abs(values).max())
    std = float(values.std())
    alive = tops[tops > DEAD * top] if tops is not None else None
    rounding = ErrorFacts()
    if source is not None and stored.values is not None and stored.quantizer is not None:
        rounding = error_facts(source, stored.values, axis, quantizer.scale)
    return WeightFacts(
        name=original.name or stored.name,
        channels=int(tops.size) if tops is not None else None,
        quantizer=quantizer,
        min=float(values.min()),
        max=float(values.max()),
        mean=float(values.mean()),
        std=std,
        absmax_over_std=top / std if std > 0 else None,
        channel_range_ratio=float(alive.max() / alive.min()) if alive is not None and alive.size else None,
        dead_channels=int((tops <= DEAD * top).sum()) if tops is not None else None,
        rounding=rounding,
    )


def _comparable(stored: NDArray[np.float32] | None, original: NDArray[np.float32] | None) -> bool:
    """Both are known and of one shape, and neither is the other on another scale."""
    if stored is None or original is None or stored.shape != original.shape:
        return False
    power = float((original.astype(np.float64) ** 2).sum())
    scale = float((stored.astype(np.float64) * original).sum())
    return power == 0 or 0.5 < scale / power < 2.0


def bias_facts(op: Operator, graph: Graph, twin: Operator | None, float_graph: Graph) -> BiasFacts:
    """Facts of an operator's bias; empty where it has none or its grid is unknown."""
    stored, weight = bias_of(op, graph), weight_of(op, graph)
    if stored is None or weight is None:
        return BiasFacts()
    twin_values = original_of(op, graph, twin, float_graph).bias
    comparable = twin_values is not None and stored.values is not None and twin_values.shape == stored.values.shape
    floats = twin_values if comparable else stored.values
    if floats is None:
        return BiasFacts()
    rounding = ErrorFacts()
    if comparable and stored.quantizer is not None and stored.values is not None:
        rounding = error_facts(floats, stored.values, None, None)
    step = _bias_step(op, graph, weight, stored)
    if step is None:
        return BiasFacts(bits=0 if stored.quantizer is None else stored.quantizer.bits, rounding=rounding)
    with np.errstate(divide="ignore"):
        codes = np.abs(floats.ravel().astype(np.float64)) / step
    over = codes > _INT32_MAX
    if stored.codes is not None:
        over = over | (np.abs(np.asarray(stored.codes, np.int64).ravel()) >= _INT32_MAX)
    return BiasFacts(
        max_code=float(codes.max()),
        max_code_per_channel=_max_code_per_channel(codes, op, weight),
        bits=0 if stored.quantizer is None else stored.quantizer.bits,
        max_error=rounding.max,
        overflowing_channels=int(over.sum()) if stored.quantizer is not None else 0,
        rounding=rounding,
    )


def _max_code_per_channel(codes: NDArray[np.float64], op: Operator, weight: Constant) -> float | None:
    """Largest of the bias codes (per channel, on the present step) on the steps of per-channel weights."""
    axis, quantizer = output_axis(op), weight.quantizer
    if axis is None or quantizer is None or weight.values is None or np.size(quantizer.scale) != 1:
        return None
    tops = np.abs(np.moveaxis(weight.values, axis, 0).reshape(weight.values.shape[axis], -1)).max(axis=1)
    if tops.size != codes.size or not tops.any():
        return None
    steps = np.maximum(tops, DEAD * tops.max()) / (2 ** (quantizer.bits - 1) - 1)
    return float((codes * float(np.max(quantizer.scale)) / steps).max())


def _bias_step(op: Operator, graph: Graph, weight: Constant, bias: Constant) -> NDArray[np.float64] | None:
    """s_x · s_w per channel, or the scale that the bias is stored with."""
    if bias.quantizer is not None:
        return np.asarray(bias.quantizer.scale, np.float64).reshape(-1)
    taps = graph.quantizers.get(op.inputs[0], [])
    if not taps or taps[0].quantizer is None or taps[0].quantizer.dynamic or weight.quantizer is None:
        return None
    return np.asarray(taps[0].quantizer.scale * weight.quantizer.scale, np.float64).reshape(-1)


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
        and (alike := weight_likeness(op, quantized, twin, float_graph)) is not None
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


def weight_likeness(op: Operator, graph: Graph, twin: Operator, float_graph: Graph) -> float | None:
    """Similarity of an operator's weights to its twin's, blind to a gain per channel; None where not comparable."""
    stored, original = weight_of(op, graph), weight_of(twin, float_graph)
    axis = output_axis(op)
    if axis is None or stored is None or stored.values is None or original is None or original.values is None:
        return None
    if stored.values.size != original.values.size:
        return 0.0
    source = original_of(op, graph, twin, float_graph).weight
    if source is None or source.shape != stored.values.shape:
        return None
    rows = [np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1).astype(np.float64) for a in (stored.values, source)]
    cosines = [_cosines(*(a.reshape(1, -1) for a in rows))]
    if rows[0].shape[1] >= MIN_ROW:
        cosines.append(_cosines(*rows))
    known = [float(np.median(c)) for c in cosines if c.size]
    return max(known) if known else None


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Magnitude of the cosine of each pair of rows that has one."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        known = np.isfinite(norms) & (norms > 0)
        return np.abs((a * b).sum(axis=1)[known] / norms[known])
