"""Scalars that are fed in rows arrive where they are read."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from quantmedic.collectors.from_onnx.scalars import SCALAR, fill_rows, join_scalars
from quantmedic.collectors.from_onnx.session import make_session


def test_scalars_of_every_type_arrive_from_their_rows(subtests: pytest.Subtests) -> None:
    for opset, ir_version in ((9, 4), (11, 6), (13, 7), (17, 8)):
        with subtests.test(f"opset {opset}"):
            kinds = {"a": TensorProto.FLOAT, "b": TensorProto.BOOL, "c": TensorProto.UINT8, "d": TensorProto.FLOAT}
            nodes = [helper.make_node("Identity", [f"{SCALAR}{name}"], [name]) for name in kinds]
            nodes.append(helper.make_node("Add", ["x", f"{SCALAR}d"], ["sum"]))
            graph = helper.make_graph(
                nodes,
                "scalars",
                [
                    helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
                    *(helper.make_tensor_value_info(f"{SCALAR}{name}", kind, [1]) for name, kind in kinds.items()),
                ],
                [helper.make_tensor_value_info(name, kind, [1]) for name, kind in kinds.items()],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
            rows = join_scalars(model)
            assert model.graph.input[0].name == "x" and len(model.graph.input) == 1 + 3
            x = np.array([1.0, 2.0], np.float32)
            values = {f"{SCALAR}{name}": value for name, value in zip("abcd", (0.1, True, 200, -3.5), strict=True)}
            feed = fill_rows(rows, {"x": x, **values})
            session = make_session(model, Path("scalars"), 1, exposed=["sum"])
            found = dict(zip((*kinds, "sum"), session.run(None, feed), strict=True))
            assert found["a"] == np.float32(0.1) and found["b"].all() and found["c"] == 200
            np.testing.assert_array_equal(found["sum"], x - np.float32(3.5))


def test_a_model_without_scalars_stays_as_it_is() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", [value], [made]))
    before = model.SerializeToString()
    assert join_scalars(model) == {} and model.SerializeToString() == before
    assert fill_rows({}, {"x": np.zeros(2, np.float32)}).keys() == {"x"}
