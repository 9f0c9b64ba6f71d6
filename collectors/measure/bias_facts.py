"""Facts of an operator's bias and of its other constants: float values against the codes that replace them."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.measure.weight_facts import rounding_facts
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.originals import Operand, OperatorPair, Original, output_axis
from quantmedic.collectors.pair.weight_grids import DEAD, rows_along
from quantmedic.engine.case.facts import BiasFacts, ConstantFacts, ErrorFacts

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
#: Steps that rounding, or rounding in another order, does not explain.
_MORE_THAN_ROUNDING = 1.5
#: With fewer bits, any error is near a multiple of their range by chance.
_FEWEST_BITS = 8
#: A bias in fewer is read on its own scale: no fused kernel adds it to its sums as it is.
_BIAS_BITS = 32
Values = NDArray[np.float32]


def bias_facts(pair: OperatorPair) -> BiasFacts:
    """Facts of an operator's bias; empty where it has none or its grid is unknown."""
    op, stored, weight = pair.op, pair.bias, pair.weight
    if stored is None or weight is None:
        return BiasFacts()
    twin_values = pair.original.bias
    comparable = twin_values is not None and stored.values is not None and twin_values.shape == stored.values.shape
    floats = twin_values if comparable else stored.values
    if floats is None:
        return BiasFacts()
    rounding, off = ErrorFacts(), None
    if comparable and stored.values is not None:
        off = float(np.abs(stored.values.astype(np.float64) - floats).max(initial=0.0))
        if stored.quantizer is not None:
            rounding = rounding_facts(floats, stored.values, None, None)
    plain = BiasFacts(
        name=pair.twin_bias.name if pair.twin_bias is not None else stored.name,
        rms=float(np.sqrt(np.mean(np.square(floats, dtype=np.float64)))) if floats.size else None,
        absmax=float(np.abs(floats).max()) if floats.size else None,
        bits=0 if stored.quantizer is None else stored.quantizer.bits,
        max_error=off,
        rounding=rounding,
    )
    step = _bias_step(op, pair.graph, weight, stored)
    if step is None:
        return plain
    with np.errstate(divide="ignore"):
        codes = np.abs(floats.ravel().astype(np.float64)) / step
    # LiteRT adds to 16-bit activations in 64 bits.
    largest = _INT32_MAX if stored.quantizer is None or stored.quantizer.bits <= 32 else _INT64_MAX
    over = codes > largest
    cut = None
    if stored.codes is not None:
        kept = np.asarray(stored.codes, np.int64).ravel()
        over = over | (np.abs(kept) >= largest)
        wanted = np.copysign(codes, floats.ravel())
        cut = cut_bits(wanted, kept) if comparable else None
        if comparable and cut is None:
            over = over | at_one_end(wanted, kept, step)
    beyond = over if cut is None else over | (codes > 2.0 ** (cut - 1))
    is_kept = stored.quantizer is not None
    found: dict[str, object] = {
        "max_code": float(codes.max()),
        "max_code_per_channel": _max_code_per_channel(codes, op, weight),
        "max_error_steps": _largest_error_steps(floats, stored, step) if comparable else None,
        "cut_bits": cut,
        "overflowing_channels": int(beyond.sum()) if is_kept else 0,
        "overflowing_dead_channels": _overflowing_dead_channels(op, over, pair.original) if is_kept else 0,
    }
    return plain.model_copy(update=found | _scale_facts(op, pair.graph, weight, stored))


def _scale_facts(op: Operator, graph: Graph, weight: Constant, bias: Constant) -> dict[str, float]:
    """How the scale of an integer bias departs from s_x · s_w, on which fused kernels read it.

    Empty where either is not known, the operator multiplies on its own (Gemm's alpha and beta), or no code is other
    than 0.
    """
    factors = [op.attributes.number(name, 1.0) for name in ("alpha", "beta")] if op.op_type == "Gemm" else []
    if bias.quantizer is None or bias.codes is None or bias.quantizer.bits < _BIAS_BITS or factors not in ([], [1, 1]):
        return {}
    product = _product_scale(op, graph, weight)
    codes = np.asarray(bias.codes, np.float64).ravel()
    own = np.asarray(bias.quantizer.scale, np.float64).ravel()
    if product is None or not {own.size, product.size} <= {1, codes.size} or np.any(bias.quantizer.zero_point):
        return {}
    own, product = np.broadcast_to(own, codes.shape), np.broadcast_to(product, codes.shape)
    heard = (codes != 0) & (own > 0) & (product > 0)
    if not heard.any() or not np.isfinite(own).all() or not np.isfinite(product).all():
        return {}
    ratios = own[heard] / product[heard]
    furthest = float(ratios[np.argmax(np.abs(np.log(ratios)))])
    found = {"scale_ratio": furthest, "scale_departure": abs(furthest - 1)}
    power, moved = float(((codes * own) ** 2).sum()), float((((codes * (own - product))[heard]) ** 2).sum())
    known = moved > 0 and power > 0
    return found | ({"misread_sqnr_db": 10 * float(np.log10(power / moved))} if known else {})


def _product_scale(op: Operator, graph: Graph, weight: Constant) -> NDArray[np.float64] | None:
    """s_x · s_w per output channel, with the grid that the operator itself reads; None where one is not known."""
    read = op.node.inputs[0] if op.node.inputs else ""
    activation, grid = graph.codes.get(graph.encoded.get(read, read)), weight.quantizer
    if activation is None or activation.dynamic or np.size(activation.scale) != 1:
        return None
    if grid is None or grid.dynamic or grid.block_size:
        return None
    axis, rank = output_axis(op), np.ndim(weight.values) if weight.values is not None else 0
    if grid.axis is not None and (axis is None or not rank or grid.axis % rank != axis % rank):
        return None
    return np.asarray(float(activation.scale) * np.asarray(grid.scale, np.float64)).ravel()


def constant_facts(pair: OperatorPair) -> ConstantFacts:
    """Facts of the operator's other constant that is furthest off; empty where it has none that can be compared."""
    found = [_facts_of_operand(operand) for operand in pair.other_operands()]
    return max(found, key=lambda f: (f.misplaced_steps or 0.0, f.max_error_steps or 0.0), default=ConstantFacts())


def _facts_of_operand(operand: Operand) -> ConstantFacts:
    """Errors in its own steps; unknown where a value is no number or a step is 0."""
    quantizer, stored = operand.stored.quantizer, operand.stored_values.astype(np.float64)
    floats = operand.original_values.astype(np.float64)
    if quantizer is None or not stored.size:
        return ConstantFacts(name=operand.name)
    steps, (low, high) = quantizer.steps(stored.shape), quantizer.ends(stored.shape)
    if not (steps > 0).all() or not np.isfinite(floats).all() or not np.isfinite(stored).all():
        return ConstantFacts(name=operand.name, bits=quantizer.bits)
    return ConstantFacts(
        name=operand.name,
        bits=quantizer.bits,
        max_error=float(np.abs(stored - floats).max()),
        max_error_steps=float((np.abs(stored - floats) / steps).max()),
        misplaced_steps=float((np.abs(stored - np.clip(floats, low, high)) / steps).max()),
        rounding=rounding_facts(operand.original_values, operand.stored_values, None, None),
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


def cut_bits(wanted: NDArray[np.float64], kept: NDArray[np.int64]) -> int | None:
    """Bits at whose ends codes were cut off or wrapped around, if that explains all that are off; the most of them."""
    if not np.isfinite(wanted).all():
        return None
    bound = _MORE_THAN_ROUNDING + np.abs(wanted) * 2.0**-22  # float32 holds no more of a large code
    off = np.abs(kept - wanted) > bound
    for bits in range(64, _FEWEST_BITS - 1, -1) if off.any() else ():
        half = 2.0 ** (bits - 1)
        cut, wrapped = np.clip(wanted, -half, half - 1), (wanted + half) % (2 * half) - half
        missed = np.minimum(np.abs(kept - cut), np.abs(kept - wrapped))
        if (missed[off] <= bound[off]).all():
            return bits
    return None


def at_one_end(wanted: NDArray[np.float64], kept: NDArray[np.int64], step: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Codes that were cut off at one value of all channels, whatever their steps, if that explains all that are off."""
    off = np.abs(kept - wanted) > _MORE_THAN_ROUNDING + np.abs(wanted) * 2.0**-22
    steps = np.broadcast_to(step, kept.shape)
    end = float((np.abs(kept) * steps).max(initial=0.0))
    stuck = np.abs(np.abs(kept) * steps - end) <= _MORE_THAN_ROUNDING * steps
    cut = stuck & (np.abs(wanted) > np.abs(kept)) & (np.sign(wanted) == np.sign(kept))
    several = off.sum() > 1 and end > 0
    return off & cut if several and bool(cut[off].all()) else np.zeros_like(off)


def _overflowing_dead_channels(op: Operator, over: NDArray[np.bool_], original: Original) -> int | None:
    """Channels beyond int32 whose float weights are dead; None where those are not known."""
    axis = output_axis(op)
    if axis is None or original.weight is None or original.weight.shape[axis] != over.size:
        return None
    tops = np.abs(rows_along(original.weight, axis)).max(axis=1)
    return int((over & (tops <= DEAD * tops.max())).sum())


def _largest_error_steps(floats: Values, stored: Constant, step: NDArray[np.float64]) -> float | None:
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
