"""Integer kernels that cannot saturate give the outputs of the graph as it is written, on every processor."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.from_onnx.onnx_session import make_session
from quantmedic.collectors.measure.host import EXACT_KERNELS

NAME = Path("saturating.onnx")


def saturating_product() -> object:
    """u8 × s8 with all codes at their ends: sums of two products do not fit 16 bits."""
    codes = numpy_helper.from_array(np.full((64, 16), 127, np.int8), "codes")
    scales = [numpy_helper.from_array(np.float32(value), name) for name, value in (("a", 1 / 255), ("w", 1 / 127))]
    zeros = [numpy_helper.from_array(np.uint8(0), "zero"), numpy_helper.from_array(np.int8(0), "none")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "a", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "a", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["codes", "w", "none"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "saturating",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [codes, *scales, *zeros],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_sums_do_not_saturate_where_exact_kernels_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXACT_KERNELS, "1")
    feed = {"x": np.ones((3, 64), np.float32)}
    (found,) = make_session(saturating_product(), NAME, 1).run(None, feed)
    np.testing.assert_allclose(found, np.full((3, 16), 64.0), rtol=1e-3)
