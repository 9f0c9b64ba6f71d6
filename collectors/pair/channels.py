"""The channel axis of each tensor, from a table per operator, carried through Transpose and Reshape."""

from collections.abc import Mapping, Sequence

from quantmedic.collectors.pair.graph import Graph, Operator, Shape
from quantmedic.engine.operator_types import ARITHMETIC, RESHAPES

Shapes = Mapping[str, Shape]
#: Tensors with more channels are measured as a whole.
MAX_CHANNELS = 8192
_AXIS_ONE = frozenset({"Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization"})
_LAST_AXIS = frozenset({"Gemm", "MatMul", "LayerNormalization", "SkipLayerNormalization", "RMSNormalization"})
_POOLS = frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LRN", "Resize", "Upsample", "PRelu"}
)
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"})
_OPAQUE = frozenset({"Shape", "Size", "Gather", "ArgMax", "ArgMin", "TopK", "NonZero", "Einsum", "LSTM", "GRU", "RNN"})


def channel_axes(graph: Graph, shapes: Shapes, static: Shapes) -> dict[str, int]:
    """Axis of the channels of every measured root where it is known.

    Args:
        graph: The float model.
        shapes: Shapes of one real batch, by root.
        static: Shapes that hold for every batch; they help over tensors that are not measured.
    """
    known: Shapes = {**static, **shapes}
    axes: dict[str, int] = {}
    for op in graph.operators:
        _require_input(op, graph, axes, known)
    for op in reversed(graph.operators):
        _carry_back(op, graph, axes, known)
    for op in graph.operators:
        axis = _reduced_axis(op, graph, axes, known) if op.op_type in _REDUCTIONS else _output_axis(op, axes, known)
        if axis is None:
            continue
        for name in op.outputs:
            rank = len(known.get(name, ()))
            position = axis + rank if axis < 0 else axis
            if 0 <= position < rank:
                axes.setdefault(name, position)
    for name, axis in _columns_of_inputs(graph, known).items():
        axes.setdefault(name, axis)
    return {name: axis for name, axis in axes.items() if name in shapes and axis < len(shapes[name])}


def _require_input(op: Operator, graph: Graph, axes: dict[str, int], shapes: Shapes) -> None:
    if op.op_type not in ("Conv", "ConvTranspose") or not op.inputs or op.inputs[0] in graph.constants:
        return
    rank = len(shapes.get(op.inputs[0], ()))
    if not op.channels_last:
        axes.setdefault(op.inputs[0], 1)
    elif rank:
        axes.setdefault(op.inputs[0], rank - 1)


def _columns_of_inputs(graph: Graph, shapes: Shapes) -> dict[str, int]:
    """Axis of the columns of network inputs: what the first product or convolution takes apart, carried back to them.

    Tables reach it through operators that only move values, or as they are.
    """
    found: dict[str, int] = {}
    for op in reversed(graph.operators):
        if not op.inputs or op.inputs[0] in graph.constants:
            continue
        name, rank = op.inputs[0], len(shapes.get(op.inputs[0], ()))
        if op.op_type in ("Conv", "ConvTranspose"):
            axis: int | None = 1
        elif op.op_type in ("Gemm", "MatMul") and len(op.inputs) > 1 and op.inputs[1] in graph.constants:
            axis = rank - 1 if rank > 1 else None
        else:
            axis = _before_moving(op, found, shapes)
        if axis is not None and not op.channels_last and not op.attributes.integer("transA", 0):
            found[name] = axis
    return {name: found[name] for name in graph.inputs if name in found and found[name] > 0}


def _before_moving(op: Operator, found: Mapping[str, int], shapes: Shapes) -> int | None:
    """Where an axis of the result stands in what is moved; None where values are computed."""
    name, result = op.inputs[0], op.outputs[0]
    axis = found.get(result)
    if axis is None:
        return None
    if op.op_type == "Transpose":
        order = op.attributes.integers("perm") or ()
        return order[axis] if axis < len(order) else None
    if op.op_type in RESHAPES and name in shapes and result in shapes:
        return reshaped_axis(axis, shapes[result], shapes[name])
    return None


def _carry_back(op: Operator, graph: Graph, axes: dict[str, int], shapes: Shapes) -> None:
    """To what an operator computes on, where that is one tensor; a constant beside it, as of a mean, moves no axis."""
    axis = next((axes[name] for name in op.outputs if name in axes), None)
    values = [name for name in op.inputs if name not in graph.constants]
    if axis is None or not values:
        return
    ranks = {len(shapes[name]) for name in (values[0], op.outputs[0]) if name in shapes}
    if len(ranks) > 1 and op.channels_last:
        return
    if op.op_type == "Transpose":
        order = op.attributes.integers("perm") or ()
        if axis < len(order):
            axes.setdefault(values[0], order[axis])
        return
    is_alone = len(op.inputs) == 1 and op.op_type not in RESHAPES | _OPAQUE
    if is_alone or (len(values) == len(ranks) == 1 and op.op_type in ARITHMETIC):
        axes.setdefault(values[0], axis)


def _output_axis(op: Operator, axes: Mapping[str, int], shapes: Shapes) -> int | None:
    if op.op_type in _AXIS_ONE | _POOLS:
        return -1 if op.channels_last else 1
    if op.op_type in _LAST_AXIS:
        return -1
    source = next((name for name in op.inputs if name in axes), None)
    if source is None or op.op_type in _OPAQUE:
        return None
    axis = axes[source]
    if op.op_type == "Transpose":
        return transposed_axis(axis, op.attributes.integers("perm") or ())
    if op.op_type in RESHAPES:
        before, after = shapes.get(source), shapes.get(op.outputs[0])
        return reshaped_axis(axis, before, after) if before is not None and after is not None else None
    shape, result = shapes.get(source), shapes.get(op.outputs[0])
    return axis if shape and result and len(shape) == len(result) else None


def _reduced_axis(op: Operator, graph: Graph, axes: Mapping[str, int], shapes: Shapes) -> int | None:
    """Channel axis of the result of a reduction; None where the channels were reduced themselves."""
    axis, rank = axes.get(op.inputs[0]), len(shapes.get(op.inputs[0], ()))
    reduced = op.attributes.integers("axes")
    stored = graph.constants.get(op.inputs[1]) if len(op.inputs) > 1 else None
    if reduced is None and stored is not None and stored.integers is not None:
        reduced = tuple(stored.integers.ravel().tolist())
    if reduced is None:
        return None
    gone = {i % rank for i in reduced} if rank else set()
    if axis is None or axis in gone:
        return None
    return axis if op.attributes.integer("keepdims", 1) else axis - sum(i < axis for i in gone)


def transposed_axis(axis: int, order: Sequence[int]) -> int | None:
    """Position of an axis behind a permutation; None where the permutation does not name it."""
    return list(order).index(axis) if axis in order else None


def reshaped_axis(axis: int, before: Sequence[int | None], after: Sequence[int | None]) -> int | None:
    """Position of an axis behind a reshape; None where the reshape takes it apart or joins it with others.

    An axis is the same where it has its size, and as many elements stand before it as did.
    """
    if axis >= len(before):
        return None
    leading = _product(before[:axis])
    for position, size in enumerate(after):
        product = _product(after[:position])
        if product is None or leading is None:
            return None
        if product == leading and size is not None and size == before[axis]:
            return position
    return None


def _product(sizes: Sequence[int | None]) -> int | None:
    product = 1
    for size in sizes:
        if size is None:
            return None
        product *= size
    return product
