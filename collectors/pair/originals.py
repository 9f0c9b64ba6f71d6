"""Weights and bias of an operator, and the float numbers that they stand for, in the same layout."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs

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


@dataclass(frozen=True)
class OperatorPair:
    """An operator of the quantized model beside the float operator that it stands for.

    Attributes:
        op: The quantized operator.
        graph: The quantized model.
        twin: Its float operator; None where it has none.
        float_graph: The float model.
    """

    op: Operator
    graph: Graph
    twin: Operator | None
    float_graph: Graph

    @classmethod
    def of(cls, op: Operator, models: PairedGraphs) -> "OperatorPair":
        """With the twin that was matched."""
        return cls(op, models.quantized, models.match.operators.get(op.index), models.float_graph)

    @cached_property
    def weight(self) -> Constant | None:
        """The stored weights."""
        return weight_of(self.op, self.graph)

    @cached_property
    def bias(self) -> Constant | None:
        """The stored bias."""
        return bias_of(self.op, self.graph)

    @cached_property
    def twin_weight(self) -> Constant | None:
        """The weights of the twin, in its own layout."""
        return weight_of(self.twin, self.float_graph) if self.twin is not None else None

    @cached_property
    def twin_bias(self) -> Constant | None:
        """The bias of the twin."""
        return bias_of(self.twin, self.float_graph) if self.twin is not None else None

    @cached_property
    def normalization(self) -> "Normalization | None":
        """The batch normalization that alone reads the twin's result."""
        return normalization_of(self.twin, self.float_graph) if self.twin is not None else None

    @cached_property
    def is_turned(self) -> bool:
        """One of the two holds its weights transposed."""
        return self.twin is not None and _is_transposed(self.op) != _is_transposed(self.twin)

    @cached_property
    def original(self) -> Original:
        """The twin's numbers; a normalization behind it is folded in where that comes closer to what is stored."""
        weight, stored = self.twin_weight, self.weight
        if weight is None:
            return Original()
        values = weight.values
        if self.is_turned and values is not None and values.ndim == 2:
            values = values.T
        plain = Original(weight.name, values, self.twin_bias.values if self.twin_bias is not None else None)
        if self.normalization is None or stored is None or stored.values is None or values is None:
            return plain
        folded = _fold_normalization(plain, self.normalization, output_axis(self.op))
        if folded is None or folded.weight is None or values.shape != stored.values.shape:
            return plain
        return min((plain, folded), key=lambda o: _squared_distance(o.weight, stored.values))

    def other_operands(self) -> Iterator[Operand]:
        """The constants besides weights and bias that are held as codes, where the float ones are known."""
        if self.twin is None or len(self.twin.inputs) != len(self.op.inputs):
            return
        for place, (name, own) in enumerate(zip(self.op.inputs, self.twin.inputs, strict=True)):
            stored, original = self.graph.constants.get(name), self.float_graph.constants.get(own)
            if stored is None or stored.quantizer is None or stored is self.weight or stored is self.bias:
                continue
            if original is None or original.values is None or stored.values is None:
                continue
            if original.values.shape == stored.values.shape:
                yield Operand(place, own, original.name, stored, stored.values, original.values)


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


def output_axis(op: Operator) -> int | None:
    """Axis of the output channels in the weights."""
    if op.op_type == "Conv":
        return 0
    if op.op_type == "ConvTranspose":
        return 1
    if op.op_type == "Gemm":
        return 0 if _is_transposed(op) else 1
    return -1 if op.op_type == "MatMul" else None


def _is_transposed(op: Operator) -> bool:
    return op.op_type == "Gemm" and bool(op.attributes.integer("transB"))


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
