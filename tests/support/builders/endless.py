"""Models whose runs never end."""

import numpy as np
import onnx
from onnx import TensorProto, helper


def endless_model() -> onnx.ModelProto:
    """A loop without a trip count whose condition stays true; its input ``x`` is ``[n, 4]``."""
    scalar, rows = [], ["n", 4]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["going"]), helper.make_node("Add", ["value", "one"], ["more"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, scalar),
            helper.make_tensor_value_info("go", TensorProto.BOOL, scalar),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, rows),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, scalar),
            helper.make_tensor_value_info("more", TensorProto.FLOAT, rows),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)],
        "endless",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)],
        [
            onnx.numpy_helper.from_array(np.array(True), "true"),
            onnx.numpy_helper.from_array(np.ones(1, np.float32), "one"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
