"""Gains of input channels that AWQ takes out of the weights: a multiplication in front of the product gives them back.

NVIDIA ModelOpt divides the float weights by a vector before it quantizes them, and multiplies what the layer reads by
it (``pre_quant_scale``). Both together are the layer, so that its weights are held against the float ones as one.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_onnx.graph import OnnxGraph
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Operator

#: Part of the name of the multiplication, or of its vector.
_MARK = "pre_quant_scale"
Values = NDArray[np.float32]


def join_input_gains(graph: OnnxGraph) -> None:
    """Move such gains into the weights behind them; the multiplication is no operator of its own then."""
    joined: set[int] = set()
    for op in graph.operators:
        gains = _gains_of(op, graph)
        readers = [reader for reader in graph.operators if op.outputs[0] in reader.inputs] if gains is not None else []
        if gains is None or not readers or not all(_can_take(reader, op, gains, graph) for reader in readers):
            continue
        for name in dict.fromkeys(reader.inputs[1] for reader in readers):
            graph.constants[name] = _with_gains(graph.constants[name], gains)
            graph.input_gains[graph.constants[name].name] = gains
        source = next(name for name in op.inputs if name not in graph.constants)
        graph.roots[op.outputs[0]] = source
        for reader in readers:
            reader.inputs[0] = source
        joined.add(id(op))
    if joined:
        graph.operators = [op for op in graph.operators if id(op) not in joined]


def _gains_of(op: Operator, graph: OnnxGraph) -> Values | None:
    if op.op_type != "Mul" or not any(_MARK in name for name in (op.name, *op.node.inputs)):
        return None
    constants = [own for name in op.inputs if (own := graph.constants.get(name)) is not None]
    values = constants[0].values if len(constants) == 1 else None
    if values is None or not values.ndim or values.size != values.shape[-1] or op.outputs[0] in graph.outputs:
        return None
    return values.reshape(-1) if (values > 0).all() and np.isfinite(values).all() else None


def _can_take(reader: Operator, op: Operator, gains: Values, graph: OnnxGraph) -> bool:
    """A product with stored weights ``[inputs, outputs]`` that no other operator reads without these gains."""
    if reader.op_type != "MatMul" or reader.inputs[0] != op.outputs[0] or len(reader.inputs) != 2:
        return False
    weight = graph.constants.get(reader.inputs[1])
    if weight is None or weight.values is None or weight.values.ndim != 2 or weight.values.shape[0] != gains.size:
        return False
    others = [each for each in graph.operators if reader.inputs[1] in each.inputs]
    return weight.quantizer is not None and all(each.inputs[0] == op.outputs[0] for each in others)


def _with_gains(weight: Constant, gains: Values) -> Constant:
    """The weights times the gain of each input channel: the same codes, on a grid with one scale per weight."""
    assert weight.quantizer is not None and weight.values is not None  # asked for by the caller
    values = np.asarray(weight.values * gains[:, None], np.float32)
    return replace(weight, values=values, quantizer=weight.quantizer.with_factors(gains[:, None], values.shape))
