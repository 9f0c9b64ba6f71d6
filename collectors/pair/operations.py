"""What operators cost: multiply-adds and weights, from the shapes of the float model."""

import math
from dataclasses import dataclass

from quantmedic.collectors.pair.graph import COMPUTE, Graph, Operator
from quantmedic.collectors.pair.originals import output_axis, weight_of
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs


@dataclass(frozen=True)
class Size:
    """Size of one operator.

    Attributes:
        operations: Multiply-adds of one sample, 0 for operators without products; None where shapes depend on the
            data, or the operator is recurrent.
        weights: Number of weights.
        bits: Bits of a stored weight; 32 where weights are not quantized.
    """

    operations: int | None
    weights: int
    bits: int

    @property
    def bytes_as_float(self) -> int:
        """Bytes that the weights take more as float32."""
        return self.weights * (32 - self.bits) // 8


def sizes_of(models: PairedGraphs) -> list[Size]:
    """Sizes of the operators of the quantized model, in their order."""
    return [_size_of(op, models) for op in models.quantized.operators]


def operations_of(models: PairedGraphs) -> list[int | None]:
    """Multiply-adds of one sample, of every operator of the quantized model; None where they are not known."""
    return [_operations_of(op, models) for op in models.quantized.operators]


def _operations_of(op: Operator, models: PairedGraphs) -> int | None:
    twin = models.match.operators.get(op.index)
    if twin is not None:
        return _operations(twin, models)
    return 0 if op.op_type not in COMPUTE else None


def _size_of(op: Operator, models: PairedGraphs) -> Size:
    stored = weight_of(op, models.quantized)
    quantizer = stored.quantizer if stored is not None else None
    count = 0
    if stored is not None and stored.values is not None and quantizer is not None:
        count = stored.values.size
    return Size(_operations_of(op, models), count, quantizer.bits if quantizer is not None else 32)


def _operations(op: Operator, models: PairedGraphs) -> int | None:
    if op.op_type not in COMPUTE:
        return 0
    graph = models.float_graph
    weight = weight_of(op, graph)
    if op.op_type == "MatMul" and weight is None:
        read = models.shapes.get(op.inputs[0])
        return _times(_elements(op.outputs[0], models), read[-1] if read else None)
    if op.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or weight is None or weight.values is None:
        return None
    shape = weight.values.shape
    if op.op_type == "ConvTranspose":
        return _times(_elements(_variable_input(op, graph), models), weight.values.size // shape[0])
    axis = output_axis(op)
    return _times(_elements(op.outputs[0], models), weight.values.size // shape[axis if axis is not None else 0])


def _variable_input(op: Operator, graph: Graph) -> str:
    """The first input that is no constant."""
    return next((name for name in op.inputs if name not in graph.constants), op.inputs[0])


def _elements(tensor: str, models: PairedGraphs) -> int | None:
    """Values of one sample, which the first axis counts."""
    shape = models.shapes.get(tensor)
    if not shape:
        return None
    known = [size for size in shape[1:] if size is not None]
    return math.prod(known) if len(known) == len(shape) - 1 else None


def _times(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a * b
