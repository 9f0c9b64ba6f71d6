"""Patterns in the graph around a tensor: squares, gates, masks of a Softmax, lost bounds."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.engine.case.records import GateRecord, GateStep
from quantmedic.engine.operator_types import ARITHMETIC, LAYOUTS, RESAMPLING

#: Functions of one tensor that saturate: one of them makes a gate of a product.
SATURATING = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Clip"})
_UNARY = SATURATING | {"Relu", "Softplus"}
#: Operators that only move values.
_MOVES = LAYOUTS | {"Cast", "Slice"}
#: Operators that put constants among the values of a tensor, and their first input that may be such.
_FILLING = {"Pad": 2, "ScatterND": 2, "ScatterElements": 2, "Where": 1, "Concat": 0, "Max": 0, "Min": 0}
#: Operators that square their input.
_SQUARES = frozenset({"ReduceSumSquare", "ReduceL2"})
#: Operators between a product and the tensor that its two factors are functions of, at most.
_STEPS = 6
#: A bound that is missed by less than this share of itself is kept.
_BOUND = 0.05


@dataclass(frozen=True)
class Bounds:
    """Ends of a Clip; infinite where it has none."""

    low: float
    high: float


def feeds_softmax(root: str, graph: Graph) -> bool:
    """A Softmax reads this tensor, directly or through operators that only move values."""
    frontier = [root]
    while frontier:
        readers = graph.consumers.get(frontier.pop(), [])
        if any(op.op_type in ("Softmax", "LogSoftmax") for op in readers):
            return True
        frontier += [name for op in readers if op.op_type in _MOVES for name in op.outputs]
    return False


def fills_of(root: str, graph: Graph) -> tuple[float, ...]:
    """The smallest and the largest of the constants that what writes a tensor puts among its values; none: ()."""
    writer = graph.producers.get(root)
    while writer is not None and writer.op_type in _MOVES | RESAMPLING - {"Pad"} and writer.inputs:
        writer = graph.producers.get(writer.inputs[0])
    if writer is None or writer.op_type not in _FILLING:
        return ()
    constants = (graph.constants.get(name) for name in writer.node.inputs[_FILLING[writer.op_type] :])
    found = [c.values for c in constants if c is not None and c.values is not None and c.values.size]
    ends = [float(end) for values in found for end in (values.min(), values.max()) if np.isfinite(end)]
    return (min(ends), max(ends)) if ends else ()


def squared_tensors(graph: Graph) -> frozenset[str]:
    """Roots that an operator squares."""
    found = set()
    for op in graph.operators:
        powers = graph.constants.get(op.inputs[1]) if op.op_type == "Pow" and len(op.inputs) > 1 else None
        exponents = None if powers is None else powers.integers if powers.values is None else powers.values
        by_two = exponents is not None and bool(np.all(exponents == 2))
        itself = op.op_type == "Mul" and len(op.inputs) == 2 and op.inputs[0] == op.inputs[1]
        if by_two or itself or op.op_type in _SQUARES:
            found.add(op.inputs[0])
    return frozenset(found)


def gate_of(root: str, models: PairedGraphs, index: Mapping[str, int]) -> GateRecord | None:
    """The gate that a tensor is: a product of two functions of one tensor, one of which saturates; None for others."""
    graph = models.quantized
    product = graph.producers.get(root)
    if product is None or product.op_type != "Mul" or len(product.inputs) != 2:
        return None
    ways = [_ways(name, graph) for name in product.inputs]
    common = [name for name in ways[0] if name in ways[1] and name in index]
    for name in common:
        chains = [way[name] for way in ways]
        if any(op.op_type in SATURATING for chain in chains for op in chain):
            first, second = (tuple(_gate_step(op, graph) for op in chain) for chain in chains)
            twins = [models.match.operators.get(op.index) or op for chain in chains for op in chain]
            names = tuple(dict.fromkeys(op.name for op in twins))
            return GateRecord(source=index[name], factors=(first, second), names=names)
    return None


def _ways(name: str, graph: Graph) -> dict[str, list[Operator]]:
    """Tensors that this one is a function of alone, nearest first, with the operators between in their order."""
    ways: dict[str, list[Operator]] = {name: []}
    chain: list[Operator] = []
    for _ in range(_STEPS):
        op = graph.producers.get(name)
        if op is None or not _is_step(op, graph):
            break
        chain = [op, *chain]
        name = next(n for n in op.inputs if n not in graph.constants)
        ways[name] = chain
    return ways


def _is_step(op: Operator, graph: Graph) -> bool:
    """A function of one tensor whose parameters are single known numbers."""
    known = [graph.constants[name].values for name in op.inputs if name in graph.constants]
    single = all(values is not None and values.size == 1 for values in known)
    variable = len(op.inputs) - len(known)
    return single and variable == 1 and (op.op_type in _UNARY or (op.op_type in ARITHMETIC and len(known) == 1))


def _gate_step(op: Operator, graph: Graph) -> GateStep:
    constants = _step_constants(op, graph)
    reverse = op.op_type in ("Sub", "Div") and op.inputs[0] in graph.constants
    return GateStep(op_type=op.op_type, constants=constants, reverse=reverse, grid=_grid_ends(op.outputs[0], graph))


def _step_constants(op: Operator, graph: Graph) -> tuple[float, ...]:
    if op.op_type == "Clip":
        bounds = clip_bounds(op, graph)
        return (bounds.low, bounds.high) if bounds is not None else (-np.inf, np.inf)
    if op.op_type == "HardSigmoid":
        return op.attributes.number("alpha", 0.2), op.attributes.number("beta", 0.5)
    found = [graph.constants[name].values for name in op.inputs if name in graph.constants]
    return tuple(float(values.item()) for values in found if values is not None)


def _grid_ends(root: str, graph: Graph) -> tuple[float, float, float] | None:
    """Low end, high end and step of a tensor's quantizer; None where it is not rounded to one grid."""
    quantizer = _quantizer_of(root, graph)
    if quantizer is None or quantizer.scale.size != 1 or not np.isfinite(quantizer.scale).all():
        return None
    step, zero = float(quantizer.scale.item()), int(quantizer.zero_point.item())
    return step * (quantizer.qmin - zero), step * (quantizer.qmax - zero), step


def _quantizer_of(root: str, graph: Graph) -> Quantizer | None:
    return next((tap.quantizer for tap in graph.quantizers.get(root, []) if tap.quantizer is not None), None)


def clip_bounds(op: Operator, graph: Graph) -> Bounds | None:
    """Ends of a Clip, or of the one that an operator has built in; None where they are not known."""
    if op.bounds is not None:
        return Bounds(*op.bounds)
    if len(op.inputs) == 1:
        return Bounds(op.attributes.number("min", -np.inf), op.attributes.number("max", np.inf))
    ends = [-np.inf, np.inf]
    for place, name in enumerate(op.node.inputs[1:3]):
        constant = graph.constants.get(graph.root(name)) if name else None
        if name and (constant is None or constant.values is None or constant.values.size != 1):
            return None
        if constant is not None and constant.values is not None:
            ends[place] = float(constant.values.item())
    return Bounds(*ends)


def _is_bounded(op: Operator) -> bool:
    """The operator is a Clip, or has one built in."""
    return op.op_type == "Clip" or op.bounds is not None


def float_clip(twin: str, models: PairedGraphs) -> Bounds | None:
    """Ends of the Clip that writes a tensor of the float model; None without one, or without an upper end."""
    op = models.float_graph.producers.get(twin)
    bounds = clip_bounds(op, models.float_graph) if op is not None and _is_bounded(op) else None
    return bounds if bounds is not None and np.isfinite(bounds.high) else None


def is_clip_lost(root: str, bounds: Bounds, graph: Graph) -> bool:
    """Neither a Clip nor the range of a quantizer holds this tensor of the quantized model within the bounds."""
    limit = bounds.high + _BOUND * abs(bounds.high)
    op = graph.producers.get(root)
    if op is not None and _is_bounded(op):
        own = clip_bounds(op, graph)
        return own is not None and own.high > limit
    quantizer = _quantizer_of(root, graph)
    if quantizer is None or quantizer.dynamic:
        return True
    return bool(np.max(quantizer.scale * (quantizer.qmax - quantizer.zero_point)) > limit)


def is_floor_lost(root: str, twin: str, models: PairedGraphs) -> bool | None:
    """A ReLU or Clip of the float model bounds a tensor from below, and nothing of the quantized model does.

    Quantizers drop a ReLU where their range begins at zero. If it is moved later, negative values pass.

    Returns:
        None where the float tensor has no such bound, or where it is not known how the quantized one is rounded.
    """
    floor, graph = _floor_of(twin, models.float_graph), models.quantized
    quantizer = _quantizer_of(root, graph)
    if floor is None or quantizer is None or quantizer.dynamic:
        return None
    own = _floor_of(root, graph)
    low, high = (np.asarray(quantizer.scale * (q - quantizer.zero_point)) for q in (quantizer.qmin, quantizer.qmax))
    slack = _BOUND * float(np.max(high - low))
    return bool(np.min(low) < floor - slack) and (own is None or own < floor - slack)


def _floor_of(tensor: str, graph: Graph) -> float | None:
    """Lower end of the ReLU or Clip that writes a tensor."""
    op = graph.producers.get(tensor)
    if op is None:
        return None
    if op.op_type == "Relu":
        return 0.0
    bounds = clip_bounds(op, graph) if _is_bounded(op) else None
    return bounds.low if bounds is not None and np.isfinite(bounds.low) else None
