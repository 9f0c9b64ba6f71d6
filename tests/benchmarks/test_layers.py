"""Which layer a name in a report means."""

import onnx
from onnx import TensorProto, helper
from zoo.protocol.layers import LayerNames


def model() -> onnx.ModelProto:
    """Conv, a fused ReLU, a second Conv that two operators read."""
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["a"], "conv1"),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "conv2"),
        helper.make_node("Relu", ["c"], ["d"], "relu2"),
        helper.make_node("Add", ["c", "d"], ["e"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("image", "e")]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [1], [1.0]) for name in ("w1", "w2")]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights))


def test_values_constants_and_fused_activations_are_their_layers() -> None:
    names = LayerNames(model())
    assert names.of(["conv1", "a", "b", "relu1", "w1"]) == ("conv1",)
    assert names.of(["w2", "d", "e", "image", "validation"]) == ("conv2", "relu2", "e", "image")
    assert names.meant(["relu1", "elsewhere"]) == ("conv1", "elsewhere")


def test_causes_come_before_lines_of_the_budget() -> None:
    report = {
        "causes": [{"subjects": ["representative", "d"]}, {"subjects": ["a"]}],
        "loss_budget": {"lines": [{"places": ["b", "c"]}, {"places": ["image", "x", "y", "e"]}]},
    }
    assert LayerNames(model()).named(report) == ("relu2", "conv1", "conv2", "image")
    assert LayerNames(model()).named({"causes": []}) == ()
