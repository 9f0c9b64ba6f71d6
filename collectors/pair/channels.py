"""The channel axis of each tensor, from a table per operator, carried through Transpose and Reshape."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import onnx
import onnx.shape_inference

from quantmedic.collectors.from_litert.functions import DOMAIN as CHANNELS_LAST
from quantmedic.collectors.pair.axes import reshaped_axis, transposed_axis
from quantmedic.collectors.pair.graph import Graph, Operator

Shapes = Mapping[str, tuple[int | None, ...]]
#: More channels than this are not measured one by one.
MAX_CHANNELS = 8192
#: Initializers up to this size may be shapes or axes that operators are given.
SMALL_CONSTANT = 1024
_AXIS_ONE = frozenset({"Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization"})
_LAST_AXIS = frozenset({"Gemm", "MatMul", "LayerNormalization", "SkipLayerNormalization", "RMSNormalization"})
_POOLS = frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LRN", "Resize", "Upsample", "PRelu"}
)
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"})
_OPAQUE = frozenset({"Shape", "Size", "Gather", "ArgMax", "ArgMin", "TopK", "NonZero", "Einsum", "LSTM", "GRU", "RNN"})


def channel_axes(graph: Graph, shapes: Shapes, static: Shapes | None = None) -> dict[str, int]:
    """Axis of the channels of every measured root where it is known.

    Args:
        graph: The float model.
        shapes: Shapes of one real batch, by root.
        static: What ``static_shapes`` says of the graph; it helps over tensors that are not measured.
    """
    known: Shapes = {**(static_shapes(graph) if static is None else static), **shapes}
    axes: dict[str, int] = {}
    for op in graph.operators:
        _require_input(op, graph, axes, known)
    for op in reversed(graph.operators):
        _carry_back(op, axes, known)
    for op in graph.operators:
        axis = _reduced_axis(op, graph, axes, known) if op.op_type in _REDUCTIONS else _output_axis(op, axes, known)
        if axis is None:
            continue
        for name in op.outputs:
            rank = len(known.get(name, ()))
            position = axis + rank if axis < 0 else axis
            if 0 <= position < rank:
                axes.setdefault(name, position)
    return {name: axis for name, axis in axes.items() if name in shapes and axis < len(shapes[name])}


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large initializers as mere inputs: shapes do not depend on them, time and memory do."""
    graph = model.graph
    small = [t for t in graph.initializer if math.prod(t.dims) <= SMALL_CONSTANT]
    kept = {t.name for t in small} | {value.name for value in graph.input}
    weights = [
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer if t.name not in kept
    ]
    skeleton = onnx.helper.make_graph(
        graph.node, graph.name, [*graph.input, *weights], graph.output, small, value_info=graph.value_info
    )
    return onnx.helper.make_model(
        skeleton, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions
    )


def static_shapes(graph: Graph) -> dict[str, tuple[int | None, ...]]:
    """Shapes that hold for every batch, by shape inference; None for an axis that depends on the data."""
    return {name: found.shape for name, found in static_types(graph.model).items() if found.shape is not None}


class StaticType(NamedTuple):
    """What type inference tells of a tensor: its type in ONNX's numbers, and its shape where the rank is known."""

    kind: int
    shape: tuple[int | None, ...] | None


def static_types(model: onnx.ModelProto, samples: int | None = None) -> dict[str, StaticType]:
    """Types and shapes of a model's tensors by inference; empty where that fails.

    Args:
        model: The model.
        samples: Samples of a batch, for inputs whose first axis is left open: shapes that are computed from it become
            known. None leaves it open.
    """
    skeleton = without_weights(model)
    if samples is not None:
        _fix_batch(skeleton.graph, samples)
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=samples is not None).graph
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):  # The runtime says what is wrong.
        return {}
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {value.name: _static_type(value.type.tensor_type) for value in values}


def _fix_batch(graph: onnx.GraphProto, samples: int) -> None:
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        axes = value.type.tensor_type.shape.dim
        if value.name not in weights and axes and axes[0].dim_value <= 0:
            axes[0].dim_value = samples


def _static_type(tensor: onnx.TypeProto.Tensor) -> StaticType:
    known = tensor.HasField("shape")
    shape = tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim) if known else None
    return StaticType(tensor.elem_type, shape)


def _require_input(op: Operator, graph: Graph, axes: dict[str, int], shapes: Shapes) -> None:
    if op.op_type not in ("Conv", "ConvTranspose") or not op.inputs or op.inputs[0] in graph.constants:
        return
    rank = len(shapes.get(op.inputs[0], ()))
    if op.node.domain != CHANNELS_LAST:
        axes.setdefault(op.inputs[0], 1)
    elif rank:
        axes.setdefault(op.inputs[0], rank - 1)


def _carry_back(op: Operator, axes: dict[str, int], shapes: Shapes) -> None:
    axis = next((axes[name] for name in op.outputs if name in axes), None)
    if axis is None or not op.inputs:
        return
    ranks = {len(shapes[name]) for name in (op.inputs[0], op.outputs[0]) if name in shapes}
    if len(ranks) > 1 and op.node.domain == CHANNELS_LAST:
        return
    if op.op_type == "Transpose":
        order = _permutation(op)
        if order and axis < len(order):
            axes.setdefault(op.inputs[0], order[axis])
    elif len(op.inputs) == 1 and op.op_type not in _RESHAPES | _OPAQUE:
        axes.setdefault(op.inputs[0], axis)


def _output_axis(op: Operator, axes: Mapping[str, int], shapes: Shapes) -> int | None:
    if op.op_type in _AXIS_ONE | _POOLS:
        return -1 if op.node.domain == CHANNELS_LAST else 1
    if op.op_type in _LAST_AXIS:
        return -1
    source = next((name for name in op.inputs if name in axes), None)
    if source is None or op.op_type in _OPAQUE:
        return None
    axis = axes[source]
    if op.op_type == "Transpose":
        return transposed_axis(axis, _permutation(op))
    if op.op_type in _RESHAPES:
        before, after = shapes.get(source), shapes.get(op.outputs[0])
        return reshaped_axis(axis, before, after) if before is not None and after is not None else None
    shape, result = shapes.get(source), shapes.get(op.outputs[0])
    return axis if shape and result and len(shape) == len(result) else None


def _reduced_axis(op: Operator, graph: Graph, axes: Mapping[str, int], shapes: Shapes) -> int | None:
    """Where the channels are once other axes were reduced; None where they were reduced themselves."""
    axis, rank = axes.get(op.inputs[0]), len(shapes.get(op.inputs[0], ()))
    attribute = op.attributes.get("axes")
    stored = graph.constants.get(op.inputs[1]) if len(op.inputs) > 1 else None
    if attribute is not None:
        reduced = list(attribute.ints)
    elif stored is not None and stored.integers is not None:
        reduced = stored.integers.ravel().tolist()
    else:
        return None
    gone = {i % rank for i in reduced} if rank else set()
    if axis is None or axis in gone:
        return None
    kept = op.attributes["keepdims"].i if "keepdims" in op.attributes else 1
    return axis if kept else axis - sum(i < axis for i in gone)


def _permutation(op: Operator) -> list[int]:
    attribute = op.attributes.get("perm")
    return list(onnx.helper.get_attribute_value(attribute)) if attribute is not None else []
