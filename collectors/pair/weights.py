"""Facts of weights and biases: the float initializers against the codes that replace them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.measure.accumulate import as_rows, kernels
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.originals import (
    Original,
    bias_of,
    normalization_of,
    original_of,
    output_axis,
    weight_of,
)
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.weight_arrays import weight_arrays
from quantmedic.collectors.pair.weight_grids import (
    ALIKE,
    ALIKE_ROUNDED,
    COARSE_DB,
    DEAD,
    MIN_STRANGERS,
    MISPLACED_STEPS,
    STRANGER_SHARE,
    GridKind,
    best_noise,
    cosine,
    full_range,
    is_reordered,
    known_sqnr_db,
    noise_on,
    outlier_ratios,
    power_of,
    similarity,
)
from quantmedic.engine.case.facts import BiasFacts, ErrorFacts, QuantizerFacts, WeightFacts
from quantmedic.engine.case.records import SetStatistics, WeightArrays
from quantmedic.engine.decibels import sqnr_db, to_decibels
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.tensors import ALIVE
from quantmedic.engine.formulas.tensors import error_facts as _error_facts

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
#: Shorter channels are alike by chance.
MIN_ROW = 8
#: More rows are not searched for one another.
MAX_COMPARED_ROWS = 512
Values = NDArray[np.float32]
Floats = NDArray[np.float64]


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


class Weights(NamedTuple):
    """What is known of an operator's weights; ``arrays`` where float and stored weights can be laid side by side."""

    facts: WeightFacts
    arrays: WeightArrays | None = None


def weights(op: Operator, graph: Graph, twin: Operator | None, float_graph: Graph) -> Weights:
    """Facts and arrays of an operator's weights; empty where it has none."""
    stored = weight_of(op, graph)
    if stored is None:
        return Weights(WeightFacts())
    original = original_of(op, graph, twin, float_graph)
    shaped = original.weight if _same_shape(stored.values, original.weight) else None
    source = shaped if is_comparable(stored.values, shaped) else None
    values = source if source is not None else stored.values
    quantizer = quantizer_facts(stored.quantizer)
    if values is None or not values.size:
        return Weights(WeightFacts(name=stored.name, quantizer=quantizer))
    axis = output_axis(op)
    axis = axis % values.ndim if axis is not None else None
    found = {
        "name": original.name or stored.name,
        "quantizer": quantizer,
        "output_axis": axis,
        "max_code": _max_code(stored),
        **_distribution(values, axis),
        **_stored_moments(stored.values),
        **(_batch_norm(twin, float_graph) if original.folded else {}),
    }
    if stored.quantizer is None or stored.values is None or shaped is None or not np.isfinite(shaped).all():
        return Weights(WeightFacts(**found))
    if source is not None:
        found["rounding"] = error_facts(source, stored.values, axis, quantizer.scale)
        found |= _channel_errors(source, stored.values, axis)
        found["rounding_mean_steps"] = _mean_steps(source, stored.values, stored.quantizer)
    found |= _resemblance(stored, shaped, axis)
    found |= _predictions(stored, shaped, axis)
    if source is not None and found.get("predicted_best_sqnr_db") is not None:
        # Summed as the prediction is, so that an equal grid gains exactly nothing.
        now = known_sqnr_db(*(float(power_of(a.reshape(1, -1))[0]) for a in (source, stored.values - source)))
        found["predicted_best_gain_db"] = _difference(found["predicted_best_sqnr_db"], now)
    return Weights(WeightFacts(**found), weight_arrays(source, stored.values, axis) if source is not None else None)


def _max_code(stored: Constant) -> int | None:
    """Largest distance of a stored code from the zero point; None where zero points differ between channels."""
    if stored.codes is None or stored.quantizer is None or not stored.codes.size:
        return None
    zeros = np.unique(np.asarray(stored.quantizer.zero_point, np.int64))
    if len(zeros) != 1:
        return None
    return max(abs(int(code) - int(zeros[0])) for code in (stored.codes.min(), stored.codes.max()))


def _distribution(values: Values, axis: int | None) -> dict[str, Any]:
    """How the weights are spread, over all channels and within each."""
    top, std = float(np.abs(values).max()), float(values.std())
    centred = values - np.float32(values.mean(dtype=np.float64))
    centred *= centred
    variance = float(centred.mean(dtype=np.float64))
    fourth = float(power_of(centred.reshape(1, -1))[0]) / values.size
    found: dict[str, Any] = {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "std": std,
        "absmax_over_std": top / std if std > 0 else None,
        "kurtosis": fourth / variance**2 - 3 if variance > 0 else None,
    }
    if axis is None:
        return found
    rows = _rows(values, axis)
    tops = np.abs(rows).max(axis=1)
    alive = tops > DEAD * top
    if alive.any():
        found["channel_range_ratio"] = float(tops[alive].max() / tops[alive].min())
        if rows.shape[1] >= MIN_ROW and np.isfinite(rows).all():
            ratios = outlier_ratios(_matrix(values, axis)[alive])
            found["outlier_ratio"] = float(ratios.max())
            found["widest_outlier_ratio"] = float(ratios[tops[alive].argmax()])
    return found | {
        "channels": int(tops.size),
        "dead_channels": int((~alive).sum()),
        "input_channel_range_ratio": _input_range_ratio(_matrix(values, axis)),
    }


def _stored_moments(values: Values | None) -> dict[str, Any]:
    """How the weights are spread that the quantized model computes with."""
    if values is None or not values.size:
        return {}
    return {
        "stored_min": float(values.min()),
        "stored_max": float(values.max()),
        "stored_mean": float(values.mean()),
        "stored_std": float(values.std()),
    }


def _input_range_ratio(matrix: Values) -> float | None:
    """Widest over narrowest input channel of ``[outputs, inputs, taps]``; None where there is one."""
    tops = np.abs(matrix).max(axis=(0, 2))
    alive = tops > DEAD * tops.max()
    return float(tops[alive].max() / tops[alive].min()) if alive.sum() > 1 else None


def _batch_norm(twin: Operator | None, float_graph: Graph) -> dict[str, Any]:
    """What the normalization behind the float operator has multiplied its channels with."""
    normalization = normalization_of(twin, float_graph) if twin is not None else None
    if normalization is None or not normalization.gain.size or not np.isfinite(normalization.gain).all():
        return {}
    gains = np.abs(normalization.gain.astype(np.float64))
    variance = normalization.variance.astype(np.float64)
    top, middle = int(gains.argmax()), float(np.median(gains))
    return {
        "batch_norm_gain": float(gains[top]),
        "batch_norm_gain_ratio": float(gains[top] / middle) if middle > 0 else None,
        "batch_norm_variance_ratio": _variance_ratio(variance, top, normalization.epsilon),
    }


def _variance_ratio(variance: NDArray[np.float64], channel: int, epsilon: float) -> float | None:
    below = float(variance[channel]) + epsilon
    return float(np.median(variance)) / below if below > 0 else None


def _channel_errors(source: Values, stored: Values, axis: int | None) -> dict[str, Any]:
    """Errors of the single channels that are not dead, the quiet ones included."""
    if axis is None:
        return {}
    x, y = _rows(source, axis), _rows(stored, axis)
    tops = np.abs(x).max(axis=1)
    alive = tops > DEAD * tops.max()
    if not alive.any():
        return {}
    power, noise = power_of(x[alive]), power_of((y - x)[alive])
    levels = sqnr_db(power, noise)
    return {
        "coarse_share": float((levels < COARSE_DB).mean()),
        "erased_channels": int((~y[alive].any(axis=1)).sum()),
    }


def _mean_steps(source: Values, stored: Values, quantizer: Quantizer) -> float | None:
    """Mean error in steps of each weight's own scale."""
    step = quantizer.steps(source.shape)
    if not (step > 0).all() or not np.isfinite(step).all():
        return None
    return float(((stored.astype(np.float64) - source) / step).mean())


def _resemblance(stored: Constant, source: Values, axis: int | None) -> dict[str, Any]:
    """Whether the stored weights are a rounding of the float ones, or else what they are."""
    quantizer, values = stored.quantizer, stored.values
    assert quantizer is not None and values is not None  # asked for by the caller
    step = quantizer.steps(source.shape)
    # What lies beyond the grid is clipped, not misplaced.
    reachable = np.clip(source, *quantizer.ends(source.shape))
    misplaced = np.abs(values - reachable) > MISPLACED_STEPS * step
    if axis is None:
        return {"misplaced_share": float(misplaced.mean())}
    same = similarity(*(_matrix(a, axis) for a in (values, source)))
    return {
        "misplaced_share": float(misplaced.mean()),
        "similarity": same,
        "found_as": "same" if same > ALIKE_ROUNDED else _found_as(values, source, axis),
        "axis_gain_db": _axis_gain(stored, source, axis),
    }


def _found_as(stored: Values, source: Values, axis: int) -> str:
    if stored.shape[0] == stored.shape[1] and cosine(np.swapaxes(stored, 0, 1), source) > ALIKE_ROUNDED:
        return "transposed"
    mine, theirs = _rows(stored, axis), _rows(source, axis)
    few = mine.shape[0] <= MAX_COMPARED_ROWS and mine.shape[1] >= MIN_ROW
    return "reordered" if few and is_reordered(mine, theirs, ALIKE_ROUNDED) else "other"


def _axis_gain(stored: Constant, source: Values, axis: int) -> float | None:
    """dB that scales along another axis would gain; None where there is one scale, or one per block."""
    quantizer, values = stored.quantizer, stored.values
    if quantizer is None or values is None or quantizer.axis is None or quantizer.block_size or quantizer.dynamic:
        return None
    declared = quantizer.axis % source.ndim
    others = [
        replace(quantizer, axis=other).dequantize(stored.codes)
        for other in range(source.ndim)
        if other != declared and stored.codes is not None and source.shape[other] == quantizer.scale.size
    ]
    rows, now = _rows(source, axis), _rows(values, axis)
    noises = [power_of(_rows(other, axis) - rows) for other in others]
    if declared != axis:
        kind = GridKind(quantizer.bits, symmetric=True)
        noises.append(noise_on(rows, *full_range(rows, kind), kind))
    gains = [_gain(power_of(rows), power_of(now - rows), noise) for noise in noises]
    return max((gain for gain in gains if gain is not None), default=None)


def _gain(power: Floats, before: Floats, after: Floats) -> float | None:
    """dB gained by all channels together or by the worst that is not dead, whichever is larger."""
    alive = power > DEAD**2 * power.max()
    if not alive.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        together = before.sum() / after.sum()
        worst = (before[alive] / power[alive]).max() / (after[alive] / power[alive]).max()
    known = [to_decibels(float(ratio)) for ratio in (together, worst) if not np.isnan(ratio)]
    return max(known, default=None)


def _predictions(stored: Constant, source: Values, axis: int | None) -> dict[str, Any]:
    """What other grids would make of the float weights."""
    quantizer = stored.quantizer
    if quantizer is None or quantizer.dynamic:
        return {}
    found: dict[str, Any] = {}
    if axis is not None:
        even = GridKind(quantizer.bits, symmetric=True)
        found["predicted_per_channel_sqnr_db"] = _full_range_sqnr(_rows(source, axis), even)
    if quantizer.block_size:
        return found
    kind = GridKind(quantizer.bits, symmetric=_is_even(quantizer))
    rows = source.reshape(1, -1) if quantizer.axis is None else _rows(source, quantizer.axis % source.ndim)
    noise, power = best_noise(rows, kind), power_of(rows)
    found["predicted_best_sqnr_db"] = known_sqnr_db(float(power.sum()), float(noise.sum()))
    if axis is not None and quantizer.axis is not None and quantizer.axis % source.ndim == axis:
        tops = np.abs(rows).max(axis=1)
        alive = tops > DEAD * tops.max()
        levels = [known_sqnr_db(float(p), float(n)) for p, n in zip(power[alive], noise[alive], strict=True)]
        found["predicted_best_channel_sqnr_db"] = min((db for db in levels if db is not None), default=None)
    if quantizer.bits < 8:
        found["predicted_8bit_sqnr_db"] = _full_range_sqnr(rows, replace(kind, bits=8))
    return found


def _is_even(quantizer: Quantizer) -> bool:
    """Codes lie evenly around 0.0."""
    return bool(np.all(quantizer.zero_point == (0 if quantizer.signed else 2 ** (quantizer.bits - 1))))


def _full_range_sqnr(rows: Values, kind: GridKind) -> float | None:
    noise = noise_on(rows, *full_range(rows, kind), kind)
    return known_sqnr_db(float(power_of(rows).sum()), float(noise.sum()))


def _difference(a: float | None, b: float | None) -> float | None:
    """a - b; None where it is unknown or undefined."""
    return round(a - b, 6) if a is not None and b is not None and np.isfinite(b) else None


def _rows(values: Values, axis: int) -> Values:
    """One row per index of an axis."""
    return np.ascontiguousarray(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1))


def _matrix(values: Values, axis: int) -> Values:
    """``[outputs, inputs, taps]``."""
    moved = np.moveaxis(values, axis, 0)
    return moved.reshape(moved.shape[0], moved.shape[1] if moved.ndim > 1 else 1, -1)


def _same_shape(stored: Values | None, original: Values | None) -> bool:
    return stored is not None and original is not None and stored.shape == original.shape


def is_comparable(stored: Values | None, original: Values | None) -> bool:
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
    original = original_of(op, graph, twin, float_graph)
    twin_values = original.bias
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
    # LiteRT adds to 16-bit activations in 64 bits.
    largest = _INT32_MAX if stored.quantizer is None or stored.quantizer.bits <= 32 else _INT64_MAX
    over = codes > largest
    if stored.codes is not None:
        over = over | (np.abs(np.asarray(stored.codes, np.int64).ravel()) >= largest)
    return BiasFacts(
        max_code=float(codes.max()),
        max_code_per_channel=_max_code_per_channel(codes, op, weight),
        bits=0 if stored.quantizer is None else stored.quantizer.bits,
        max_error=rounding.max,
        max_error_steps=_largest_steps(floats, stored, step) if comparable else None,
        overflowing_channels=int(over.sum()) if stored.quantizer is not None else 0,
        overflowing_dead_channels=_overflowing_dead(op, over, original) if stored.quantizer is not None else 0,
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


def _overflowing_dead(op: Operator, over: NDArray[np.bool_], original: Original) -> int | None:
    """Channels beyond int32 whose float weights are dead; None where those are not known."""
    axis = output_axis(op)
    if axis is None or original.weight is None or original.weight.shape[axis] != over.size:
        return None
    tops = np.abs(_rows(original.weight, axis)).max(axis=1)
    return int((over & (tops <= DEAD * tops.max())).sum())


def _largest_steps(floats: Values, stored: Constant, step: NDArray[np.float64]) -> float | None:
    """Largest error of a stored bias in steps; None where it is not kept on a grid, or one step is 0."""
    if stored.quantizer is None or stored.values is None or not (step > 0).all():
        return None
    return float((np.abs(stored.values.astype(np.float64) - floats).ravel() / step).max())


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
