"""Relu and Clip that OpenVINO dropped when it converted a model, for the FakeQuantize behind them cuts off as much.

What the float model has between an operator and the twin of what reads a FakeQuantize was there in the quantized model
too, if nothing between the same two operators does it now and the range of the FakeQuantize lies within its bounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.match import Match, kind_of
from quantmedic.collectors.pair.patterns import clip_bounds
from quantmedic.collectors.pair.quantizer import Quantizer

#: Share of a step by which a range may lie beyond a bound that was dropped: the conversion compares in float32.
_BEYOND = 1e-2


class Bound(NamedTuple):
    """A Relu or Clip.

    Attributes:
        op_type: Which of them.
        low: Lowest value that it lets through.
        high: Highest value that it lets through.
    """

    op_type: str
    low: float
    high: float

    @property
    def ends(self) -> tuple[float, ...]:
        """What its node reads besides the tensor."""
        return () if self.op_type == "Relu" else (self.low, self.high)

    def is_within(self, quantizer: Quantizer) -> bool:
        """A quantizer, of which every range lies within these bounds, cuts off as much."""
        lowest, highest = (quantizer.scale * (code - quantizer.zero_point) for code in (quantizer.qmin, quantizer.qmax))
        slack = _BEYOND * quantizer.scale
        return bool((lowest >= self.low - slack).all() and (highest <= self.high + slack).all())


#: What stood in front of FakeQuantize, in order, by the tensors that these write.
Dropped = Mapping[str, Sequence[Bound]]


def dropped_bounds(float_graph: Graph, quantized: Graph, matched: Match) -> dict[str, tuple[Bound, ...]]:
    """What the float model has in front of tensors that the quantized model rounds, and the quantized one has not.

    Args:
        float_graph: The float model.
        quantized: The model with quantizers.
        matched: Their twins.

    Returns:
        Relu and Clip whose bounds hold the range of the quantizer behind them, by the tensor that this writes.
    """
    kept = kept_operators(quantized, matched)
    found: dict[str, set[tuple[Bound, ...]]] = {}
    for values, twins in _readings(float_graph, quantized, matched):
        root, codes = quantized.root(values), quantized.encoded.get(values)
        own = next((tap.quantizer for tap in quantized.quantizers.get(root, []) if tap.tensor == codes), None)
        if own is None or root not in matched.tensors:
            continue
        start = base_of(matched.tensors[root], float_graph, kept)
        before = (_bounds_before(twin, float_graph, kept) for twin in twins)
        bounds = next((each for each, first in before if first == start), ())
        found.setdefault(values, set()).add(bounds if all(bound.is_within(own) for bound in bounds) else ())
    # Where the readers differ, what some of them read was not bounded.
    return {values: next(iter(each)) for values, each in found.items() if len(each) == 1 and each != {()}}


def _readings(float_graph: Graph, quantized: Graph, matched: Match) -> Iterator[tuple[str, Sequence[str]]]:
    """What the quantized model's operators read, and what it returns, each with what the twin of its reader reads."""
    for op in quantized.operators:
        twin = matched.operators.get(op.index)
        yield from ((values, twin.inputs) for values in op.node.inputs if twin is not None)
    for theirs, mine in matched.outputs:
        yield quantized.outputs[mine], [float_graph.output_roots[theirs]]


def _bounds_before(tensor: str, graph: Graph, kept: set[int]) -> tuple[tuple[Bound, ...], str]:
    """Relu and Clip in front of a tensor which have no twin, in order, and what the first of them reads."""
    found: list[Bound] = []
    while (op := graph.producers.get(tensor)) is not None and op.index not in kept:
        bound = _bound_of(op, graph)
        if bound is None:
            break
        found.insert(0, bound)
        tensor = op.inputs[0]
    return tuple(found), tensor


def kept_operators(quantized: Graph, matched: Match) -> set[int]:
    """Operators of the float model that the quantized model has as such, and not only what bears their name."""
    mine = {op.index: op for op in quantized.operators}
    return {twin.index for index, twin in matched.operators.items() if kind_of(mine[index]) == kind_of(twin)}


def base_of(tensor: str, graph: Graph, kept: set[int]) -> str:
    """What the first of the Relu and Clip in front of a tensor reads that have no twin; itself without them."""
    return _bounds_before(tensor, graph, kept)[1]


def _bound_of(op: Operator, graph: Graph) -> Bound | None:
    if op.op_type == "Relu":
        return Bound("Relu", 0.0, np.inf)
    ends = clip_bounds(op, graph) if op.op_type == "Clip" else None
    return None if ends is None else Bound("Clip", ends.low, ends.high)
