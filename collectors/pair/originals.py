"""Weights and bias of an operator, and the float numbers that they stand for, in the same layout."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Graph, Operator

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Original:
    """The float numbers that an operator's weights and bias stand for, in the shapes that it stores them in.

    ``folded``: a normalization behind the twin is part of them.
    """

    name: str | None = None
    weight: Values | None = None
    bias: Values | None = None
    folded: bool = False


@dataclass(frozen=True)
class Normalization:
    """The batch normalization behind an operator, per channel.

    Attributes:
        gain: γ / √(variance + ε), which multiplies the weights.
        shift: What it adds.
        variance: As stored, without ε.
        epsilon: ε.
    """

    gain: Values
    shift: Values
    variance: Values
    epsilon: float


@dataclass(frozen=True)
class Operand:
    """A constant operand that is held as codes and is neither weights nor bias, such as the gain of a normalization.

    Attributes:
        place: Its place among the operator's inputs, and among those of the twin.
        float_name: The root of what the twin reads there.
        name: Name of the float constant.
        stored: As the quantized model holds it.
        stored_values: What its codes stand for.
        original_values: The float values, of equal shape.
    """

    place: int
    float_name: str
    name: str
    stored: Constant
    stored_values: Values
    original_values: Values


def weight_of(op: Operator, graph: Graph) -> Constant | None:
    """The weights of an operator: its first constant of rank 2 or more, if it is one with weights."""
    for name in op.inputs[1:] if op.op_type != "MatMul" else op.inputs:
        constant = graph.constants.get(name)
        if constant is None:
            continue
        if constant.values is None:
            return constant if constant.quantizer is not None else None
        if constant.values.ndim >= 2:
            return constant
    return None


def bias_of(op: Operator, graph: Graph) -> Constant | None:
    """The bias of an operator that has one built in."""
    if op.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(op.inputs) < 3:
        return None
    return graph.constants.get(op.inputs[2])


def other_operands(op: Operator, graph: Graph, twin: Operator | None, float_graph: Graph) -> Iterator[Operand]:
    """The constants of an operator besides weights and bias that are held as codes, where the float ones are known."""
    if twin is None or len(twin.inputs) != len(op.inputs):
        return
    known = (weight_of(op, graph), bias_of(op, graph))
    for place, (name, own) in enumerate(zip(op.inputs, twin.inputs, strict=True)):
        stored, original = graph.constants.get(name), float_graph.constants.get(own)
        if stored is None or stored.quantizer is None or any(stored is other for other in known):
            continue
        if original is None or original.values is None or stored.values is None:
            continue
        if original.values.shape == stored.values.shape:
            yield Operand(place, own, original.name, stored, stored.values, original.values)


def output_axis(op: Operator) -> int | None:
    """Axis of the output channels in the weights."""
    if op.op_type == "Conv":
        return 0
    if op.op_type == "ConvTranspose":
        return 1
    if op.op_type == "Gemm":
        return 0 if _is_transposed(op) else 1
    return -1 if op.op_type == "MatMul" else None


def original_of(op: Operator, graph: Graph, twin: Operator | None, float_graph: Graph) -> Original:
    """The twin's numbers; a normalization behind it is folded in where that comes closer to what is stored."""
    weight = weight_of(twin, float_graph) if twin is not None else None
    if twin is None or weight is None:
        return Original()
    bias = bias_of(twin, float_graph)
    values = _in_layout_of(weight.values, op, twin)
    plain = Original(weight.name, values, bias.values if bias is not None else None)
    stored, normalization = weight_of(op, graph), normalization_of(twin, float_graph)
    if normalization is None or stored is None or stored.values is None or values is None:
        return plain
    folded = _fold_normalization(plain, normalization, output_axis(op))
    if folded is None or folded.weight is None or values.shape != stored.values.shape:
        return plain
    return min((plain, folded), key=lambda o: _squared_distance(o.weight, stored.values))


def is_turned(op: Operator, twin: Operator) -> bool:
    """One of the two holds its weights transposed."""
    return _is_transposed(op) != _is_transposed(twin)


def _is_transposed(op: Operator) -> bool:
    return op.op_type == "Gemm" and bool(op.attributes.integer("transB"))


def _in_layout_of(values: Values | None, op: Operator, twin: Operator) -> Values | None:
    return values.T if is_turned(op, twin) and values is not None and values.ndim == 2 else values


def normalization_of(op: Operator, graph: Graph) -> Normalization | None:
    """The batch normalization that alone reads the operator's result."""
    readers = graph.consumers.get(op.outputs[0], []) if op.outputs else []
    if len(readers) != 1 or readers[0].op_type != "BatchNormalization" or len(readers[0].inputs) < 5:
        return None
    constants = [graph.constants.get(name) for name in readers[0].inputs[1:5]]
    values = [c.values for c in constants if c is not None and c.values is not None]
    if len(values) < 4 or op.outputs[0] in graph.output_roots:
        return None
    scale, offset, mean, variance = values
    epsilon = readers[0].attributes.number("epsilon", 1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = scale / np.sqrt(variance + epsilon)
    return Normalization(gain, offset - mean * gain, variance, epsilon)


def _fold_normalization(plain: Original, normalization: Normalization, axis: int | None) -> Original | None:
    """What weights and bias become where the normalization is folded into them."""
    weight, bias = plain.weight, plain.bias
    gain, shift = normalization.gain, normalization.shift
    if axis is None or weight is None or weight.shape[axis] != gain.size or not np.isfinite(gain).all():
        return None
    shape = [1] * weight.ndim
    shape[axis] = gain.size
    moved = shift if bias is None else np.asarray(bias * gain + shift, np.float32)
    return Original(plain.name, np.asarray(weight * gain.reshape(shape), np.float32), moved, folded=True)


def _squared_distance(a: Values | None, b: Values | None) -> float:
    return np.inf if a is None or b is None else float(((a.astype(np.float64) - b) ** 2).sum())
