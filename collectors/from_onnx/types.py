"""Types and shapes of tensors that an ONNX model alone tells, by shape inference."""

import math

import onnx
import onnx.shape_inference

from quantmedic.collectors.from_onnx.onnx_graph import spec_of
from quantmedic.collectors.pair.graph import Shape, TensorSpec

#: Initializers up to this size may be shapes or axes that operators are given.
SMALL_CONSTANT = 1024


def static_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Shapes that hold for every batch; None for an axis that depends on the data."""
    return {name: spec.shape for name, spec in static_types(model).items() if spec.shape is not None}


def static_types(model: onnx.ModelProto, samples: int | None = None) -> dict[str, TensorSpec]:
    """Types and shapes of a model's tensors by name; empty where inference fails.

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
    return {value.name: spec_of(value) for value in (*inferred.input, *inferred.value_info, *inferred.output)}


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


def _fix_batch(graph: onnx.GraphProto, samples: int) -> None:
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        axes = value.type.tensor_type.shape.dim
        if value.name not in weights and axes and axes[0].dim_value <= 0:
            axes[0].dim_value = samples
