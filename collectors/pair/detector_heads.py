"""Heads of detectors, recognized by structure: what the columns of an output are, and what decodes them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from quantmedic.collectors.pair.graph import COMPUTE, Graph, Operator

#: What neighbouring columns of a detector's output hold.
Kind = Literal["boxes", "objectness", "scores", "classes", "masks"]
#: Columns of a box.
BOX = 4
#: Operators of which only the first input holds values; the others are positions and shapes.
_MOVES = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Expand", "Tile", "Pad", "Resize"),
        *("Slice", "Split", "Gather", "GatherElements", "GatherND", "TopK"),
    }
)
_SELECTS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum"})
#: A decoder of more operators is none.
MAX_TAIL = 256


class Part(NamedTuple):
    """Neighbouring columns of an output that come from one operand.

    Attributes:
        start: First column.
        stop: Column behind the last.
        tensor: The operand, by its name in the float model.
        is_score: It ends in a Sigmoid or Softmax.
        kind: What it holds in the head of a detector.
    """

    start: int
    stop: int
    tensor: str
    is_score: bool
    kind: Kind | None = None


def kinds_of(graph: Graph, parts: Sequence[Part], prototypes: Collection[int]) -> list[Kind | None]:
    """What each part of an output holds; None for all where this is no head of a detector.

    A head is four columns that are no scores, in one part or several, and scores behind them: of a Sigmoid or Softmax,
    or those that TopK selected. A single score in front of others is the objectness, a single column behind selected
    scores the class. As many columns as another output has maps are coefficients of masks.

    Args:
        graph: The float model.
        parts: What the output is joined of.
        prototypes: Channels of the other outputs that are maps.
    """
    nothing: list[Kind | None] = [None] * len(parts)
    first = next((k + 1 for k, part in enumerate(parts) if part.stop == BOX), 0)
    rest = parts[first:]
    if not first or not rest or any(part.is_score for part in parts[:first]):
        return nothing
    boxes: list[Kind | None] = ["boxes"] * first
    if [part.stop - part.start for part in rest] == [1, 1] and _is_selected(graph, rest[0].tensor):
        return [*boxes, "scores", "classes"]
    found: list[Kind | None] = []
    for k, part in enumerate(rest):
        width, is_followed = part.stop - part.start, any(later.is_score for later in rest[k + 1 :])
        if part.is_score:
            found.append("objectness" if width == 1 and is_followed else "scores")
        else:
            found.append("masks" if width in prototypes else None)
    return [*boxes, *found] if found[0] in ("objectness", "scores") else nothing


def _is_selected(graph: Graph, name: str) -> bool:
    """A tensor holds values that TopK selected, in their order."""
    op = graph.producers.get(name)
    while op is not None and op.op_type in _SELECTS:
        op = graph.producers.get(op.inputs[0])
    return op is not None and op.op_type == "TopK"


def has_shared_sigmoid(graph: Graph, boxes: Sequence[str], scores: str) -> bool:
    """Boxes and scores are columns of one Sigmoid: then the objectness stands in front, as YOLOv2 to YOLOv7 have it.

    Heads without an objectness take it of the scores alone.

    Args:
        graph: The float model.
        boxes: What the columns of the boxes are joined of.
        scores: The tensor of the scores.
    """
    op = _before_moves(graph, scores)
    if op is None or op.op_type != "Sigmoid":
        return False
    return any(producer is op for _, producer in _walk_back(graph, boxes, _is_layer))


def are_queries(graph: Graph, scores: str) -> bool:
    """Scores are of a product of matrices, as those of a transformer's queries, not of the cells of a map.

    Queries are trained to find each object once: their boxes are not suppressed (Carion et al. 2020).
    """
    first = next((op for _, op in _walk_back(graph, [scores], _is_layer) if _is_layer(op)), None)
    return first is not None and first.op_type in _PRODUCTS


def _before_moves(graph: Graph, name: str) -> Operator | None:
    """The operator that computes the values of which a tensor holds all or some."""
    op = graph.producers.get(name)
    while op is not None and op.op_type in _MOVES and op.op_type != "Resize":
        op = graph.producers.get(op.inputs[0])
    return op


def decoder_of(graph: Graph, output: str) -> tuple[str, ...]:
    """Names of the operators between the last layers with weights and an output, in their order.

    The expectation over the bins of a box's side (DFL), a convolution or product with 0, 1, 2 …, belongs to them.
    Empty where there are none, or very many.
    """

    def is_end(op: Operator) -> bool:
        return _is_layer(op) and not _counts_bins(graph, op)

    before = list(_walk_back(graph, [output], is_end))
    if len(before) > MAX_TAIL:
        return ()
    made = {name for name, op in before if is_end(op)}
    found = {op.index: op for _, op in before if not is_end(op)}
    names = []
    for index in sorted(found):
        # What is made of shapes alone, such as the places of the cells, decodes nothing.
        if made & set(_activations_of(found[index], graph)):
            made.update(found[index].outputs)
            names.append(found[index].name)
    return tuple(names)


def _walk_back(
    graph: Graph, tensors: Sequence[str], is_end: Callable[[Operator], bool]
) -> Iterator[tuple[str, Operator]]:
    """Tensors before these, with the operators that write them, up to such as end the way; no more than a few."""
    wanted, seen = [*tensors], set[str]()
    while wanted and len(seen) <= MAX_TAIL:
        name = wanted.pop()
        op = graph.producers.get(name)
        if op is None or name in seen:
            continue
        seen.add(name)
        yield name, op
        if not is_end(op):
            wanted += _activations_of(op, graph)


def _is_layer(op: Operator) -> bool:
    return op.op_type in COMPUTE


def _activations_of(op: Operator, graph: Graph) -> list[str]:
    """The activations that an operator computes with; none where it reads a shape alone."""
    if op.op_type in ("Shape", "Size"):
        return []
    read = op.inputs[:1] if op.op_type in _MOVES else op.inputs
    return [name for name in read if name not in graph.constants]


def _counts_bins(graph: Graph, op: Operator) -> bool:
    """The weights of a layer are 0, 1, 2 … of one result, or of several that are alike."""
    constants = [constant for name in op.inputs if (constant := graph.constants.get(name)) is not None]
    values = constants[0].values if len(constants) == 1 else None
    if values is None or values.size < 2:
        return False
    bins = np.squeeze(values)
    return bins.ndim == 1 and bool(np.array_equal(bins, np.arange(bins.size, dtype=bins.dtype)))
