"""What the structure of a head tells: an objectness in front of the scores, and boxes of queries."""

from pathlib import Path

import numpy as np
import pytest
from builders.onnx_models import Net, random
from onnx import helper

from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.types import static_shapes
from quantmedic.collectors.pair.detector_heads import are_queries, has_shared_sigmoid
from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.output_parts import joint_of


def anchored(shared: bool) -> Graph:
    """Cells ``[n, 16, 8]`` as YOLOv5 decodes them: one Sigmoid for boxes, objectness and three scores, or one each."""
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 4, 4]), random(1, 8, 3, 1, 1), out="raw")
    x = net.add("Reshape", x, net.const("sides", np.array([0, 8, 16], np.int64)), out="cells")
    x = net.add("Transpose", x, out="rows", perm=[0, 2, 1])
    sizes = net.const("sizes", np.array([2, 2, 4], np.int64))
    source = net.add("Sigmoid", x, out="all") if shared else x
    net.nodes.append(helper.make_node("Split", [source, sizes], ["middle", "size", "rest"], name="split", axis=2))
    middle = net.add("Mul", net.add("Add", "middle", net.const("corner", 3.0), out="at"), net.const("stride", 8.0),
                     out="centre")  # fmt: skip
    size = net.add("Mul", "size", net.const("anchor", 30.0), out="sides_of_box")
    rest = "rest" if shared else net.add("Sigmoid", "rest", out="scores")
    net.output(net.add("Concat", middle, size, rest, out="found", axis=2), shape=["n", 16, 8])
    return parse(Path("net.onnx"), net.model())


@pytest.mark.parametrize("shared", [True, False])
def test_a_sigmoid_of_boxes_and_scores_has_an_objectness(shared: bool) -> None:
    graph = anchored(shared)
    assert has_shared_sigmoid(graph, ["centre", "sides_of_box"], "rest" if shared else "scores") == shared


def test_a_column_of_a_sigmoid_is_a_score() -> None:
    model = anchored(True)
    assert [part.is_score for part in _joint(model)] == [False, False, True]


def _joint(graph: Graph) -> list:
    return list(joint_of(graph, static_shapes(graph.model), "found").parts)


@pytest.mark.parametrize("queries", [True, False])
def test_scores_of_a_product_are_those_of_queries(queries: bool) -> None:
    net = Net()
    x = net.input("image", ["n", 3, 4, 4])
    if queries:
        x = net.add("Reshape", x, net.const("sides", np.array([0, 16, 3], np.int64)), out="tokens")
        x = net.add("Add", net.add("MatMul", x, net.const("weight", random(1, 3, 5)), out="product"),
                    net.const("bias", np.ones(5)), out="logits")  # fmt: skip
    else:
        x = net.conv(x, random(1, 5, 3, 1, 1), random(2, 5), out="logits")
    net.output(net.add("Sigmoid", x, out="scores"), shape=["n", 16, 5] if queries else ["n", 5, 4, 4])
    assert are_queries(parse(Path("net.onnx"), net.model()), "scores") == queries
