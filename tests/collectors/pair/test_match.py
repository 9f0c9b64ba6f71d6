"""Which tensor of the quantized model is which of the float model, when no name helps and when names mislead."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    Net,
    Recipe,
    attention_net,
    branch_net,
    conv_net,
    deep_net,
    images,
    pyramid_net,
    qdq,
    random,
    renamed,
    residual_net,
    shuffled,
    token_net,
    two_way_net,
    without_relu,
)
from onnx import helper

from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.match import Match, match

TOKENS = np.random.default_rng(0).integers(0, 20, (6, 6))
IMAGE = {"image": images(4)}
MODELS = {
    "plain": (conv_net(), IMAGE),
    "deep": (deep_net(4, 5), IMAGE),
    "repeated blocks": (residual_net(), IMAGE),
    "repeated blocks with shared weights": (residual_net(4, shared=True), IMAGE),
    "parallel branches": (branch_net(), IMAGE),
    "many parallel branches": (branch_net(6), IMAGE),
    "several inputs and outputs": (two_way_net(), {"a": random(1, 5, 4), "b": random(2, 5, 6)}),
    "integer inputs": (token_net(), {"ids": TOKENS}),
    "attention": (attention_net(), {"x": random(1, 3, 5, 8)}),
    "pyramid": (pyramid_net(), IMAGE),
}


def graph_of(model: onnx.ModelProto) -> Graph:
    return parse(Path("model.onnx"), model)


def matched(float_model: onnx.ModelProto, quantized: onnx.ModelProto) -> Match:
    return match(graph_of(float_model), graph_of(quantized))


def truth(float_model: onnx.ModelProto, names: dict[str, str]) -> dict[str, str]:
    """The twin of every root, known because the quantized model was made from the float one."""
    outputs = {value.name for value in float_model.graph.output}
    tensors = [v.name for v in float_model.graph.input] + [n for node in float_model.graph.node for n in node.output]
    return {names[f"{name}_raw" if name in outputs else name]: name for name in tensors}


def test_every_tensor_finds_its_twin_by_name_and_without():
    broken = []
    for name, (float_model, feed) in MODELS.items():
        quantized = qdq(float_model, feed)
        names = {tensor: tensor for node in quantized.graph.node for tensor in (*node.input, *node.output)}
        if matched(float_model, quantized).tensors != truth(float_model, names):
            broken.append((name, "by name"))
        for recipe in (Recipe(), Recipe(weights="float", per_channel=True)):
            quantized, names = renamed(qdq(float_model, feed, recipe))
            result = matched(float_model, quantized)
            twins = {twin.index for twin in result.operators.values()}
            if result.tensors != truth(float_model, names) or result.unmatched or len(twins) != len(result.operators):
                broken.append((name, recipe))
            if "shared" in name or name == "pyramid":
                continue  # what lies where is all that tells their parts apart
            if matched(float_model, shuffled(quantized, 1)).tensors != truth(float_model, names):
                broken.append((name, "in another order"))
    assert not broken


def test_operators_that_differ_in_their_attributes_alone():
    """Three poolings of one tensor, stored in the opposite order."""
    float_model, feed = MODELS["pyramid"]
    quantized, names = renamed(qdq(float_model, feed))
    nodes = list(quantized.graph.node)
    pools = [node for node in nodes if node.op_type == "MaxPool"]
    others = [node for node in nodes if node.op_type != "MaxPool"]
    del quantized.graph.node[:]
    quantized.graph.node.extend([*others, *reversed(pools)])
    assert matched(float_model, quantized).tensors == truth(float_model, names)


def test_misleading_names_do_not_pair_other_layers():
    """Exporters that number their tensors: the quantized graph's t1 is the float graph's t0."""
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    for i in range(4):
        x = net.conv(x, random(i, 3, 3, 3, 3, scale=0.25), out=f"t{i}", pads=[1, 1, 1, 1])
    net.output(x)
    float_model = net.model()
    quantized = qdq(float_model, IMAGE)
    shift = {"t0": "t1", "t1": "t2", "t2": "other"}
    quantized, _ = renamed(quantized, shift)
    expected = {"image": "image", "t1": "t0", "t2": "t1", "other": "t2", "t3_raw": "t3"}
    assert matched(float_model, quantized).tensors == expected


def test_exchanged_names_of_two_branches():
    float_model = branch_net()
    exchange = {"c0": "c1", "c1": "c0", "r0": "r1", "r1": "r0"}
    quantized, _ = renamed(qdq(float_model, IMAGE), exchange)
    tensors = matched(float_model, quantized).tensors
    assert {name: tensors[name] for name in exchange} == exchange


# --- operators that one side lacks -------------------------------------------------------------------------------


def normalized(gain: tuple[float, float], *, folded: bool) -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, Conv; ``folded``: the normalization is part of the weights."""
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    weight, rng = random(1, 4, 3, 3, 3, scale=0.3), np.random.default_rng(1)
    gamma, beta, mean = (rng.uniform(*limits, 4).astype(np.float32) for limits in (gain, (-1, 1), (-0.1, 0.1)))
    if folded:
        factor = (gamma / np.sqrt(1 + 1e-5)).astype(np.float32)
        x = net.conv(x, weight * factor[:, None, None, None], beta - mean * factor, out="normed", pads=[1, 1, 1, 1])
    else:
        x = net.conv(x, weight, out="conv", pads=[1, 1, 1, 1])
        for name, array in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", np.ones(4, np.float32))):
            net.const(name, array)
        x = net.add("BatchNormalization", x, "gamma", "beta", "mean", "var", out="normed")
    net.output(net.conv(net.add("Relu", x, out="relu"), random(5, 2, 4, 1, 1), out="scores"))
    return net.model()


def test_folded_normalization():
    quantized, names = renamed(qdq(normalized((0.3, 3), folded=True), IMAGE))
    result = matched(normalized((0.3, 3), folded=False), quantized)
    assert result.tensors == {
        "image": "image",
        names["normed"]: "normed",
        names["relu"]: "relu",
        names["scores_raw"]: "scores",
    }


@pytest.mark.parametrize("fold", [False, True])
def test_activation_fused_into_the_quantizer(fold):
    """The quantized Conv stands for Conv and Relu, so its tensor is the one behind the Relu."""
    float_model = normalized((0.3, 3), folded=not fold)
    quantized, names = renamed(without_relu(qdq(normalized((0.3, 3), folded=True), IMAGE)))
    result = matched(float_model, quantized)
    assert result.tensors[names["scores_raw"]] == "scores"
    assert result.tensors[names["normed"]] == "relu"


@pytest.mark.parametrize("fused", ["quantized", "float"])
def test_matmul_and_add_against_gemm(fused):
    def dense(gemm: bool) -> onnx.ModelProto:
        net = Net()
        x = net.input("x", ["n", 6])
        for i, (rows, columns) in enumerate(((6, 8), (8, 8), (8, 3))):
            net.const(f"w{i}", random(i, rows, columns))
            net.const(f"b{i}", random(i + 9, columns))
            if gemm:
                x = net.add("Gemm", x, f"w{i}", f"b{i}", out=f"h{i}")
            else:
                x = net.add("Add", net.add("MatMul", x, f"w{i}", out=f"m{i}"), f"b{i}", out=f"h{i}")
            x = net.add("Relu", x, out=f"r{i}") if i < 2 else x
        net.output(x)
        return net.model()

    float_model = dense(fused == "float")
    quantized, names = renamed(qdq(dense(fused == "quantized"), {"x": random(3, 5, 6)}))
    tensors = matched(float_model, quantized).tensors
    expected = {names[n]: n for n in ("x", "h0", "r0", "h1", "r1")} | {names["h2_raw"]: "h2"}
    assert {name: tensors.get(name) for name in expected} == expected


def test_an_operator_more_on_the_quantized_side_is_unmatched():
    float_model = conv_net()
    quantized = qdq(float_model, IMAGE)
    node = next(n for n in quantized.graph.node if n.op_type == "Flatten")
    extra = helper.make_node("Tanh", [node.input[0]], ["squashed"], name="extra")
    node.input[0] = "squashed"
    quantized.graph.node.insert(list(quantized.graph.node).index(node), extra)
    quantized, names = renamed(quantized)
    with_new_ends(quantized, {"scores": "result"})
    result = matched(float_model, quantized)
    kinds = {op.name: op.op_type for op in graph_of(quantized).operators}
    assert "Tanh" in {kinds[name] for name in result.unmatched}
    assert {"conv1", "relu1", "conv2", "relu2", "pool"} <= {op.name for op in result.operators.values()}
    assert result.tensors[names["scores_raw"]] == "scores"


def test_a_quantizer_named_after_the_activation_stands_for_it():
    """What reads the tensor does not tell: the float HardSwish was written out in other operators."""
    nets = []
    for written_out in (False, True):
        net = Net()
        x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 1, 1), out="conv")
        if written_out:
            x = net.quantize(x, 0.02, np.uint8(0), out="act")
            x = net.add("Mul", x, net.add("HardSigmoid", x, out="gate", alpha=1 / 6), out="product")
        else:
            x = net.add("HardSwish", net.add("Relu", x, out="act"), out="swish")
        net.output(net.conv(x, random(2, 2, 4, 1, 1), out="y"))
        nets.append(net.model())
    assert matched(*nets).tensors["conv"] == "act"


# --- ends ----------------------------------------------------------------------------------------------------------


def with_new_ends(model: onnx.ModelProto, new: dict[str, str]) -> None:
    """Give inputs and outputs of a model other names."""
    for value in (*model.graph.input, *model.graph.output):
        value.name = new.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]


def test_renamed_inputs_and_outputs_are_paired_by_position():
    float_model, feed = MODELS["several inputs and outputs"]
    quantized, names = renamed(qdq(float_model, feed))
    new = {"a": "left", "b": "right", "first": "one", "second": "two"}
    with_new_ends(quantized, new)
    expected = {new.get(mine, mine): theirs for mine, theirs in truth(float_model, names).items()}
    assert matched(float_model, quantized).tensors == expected


def test_outputs_in_another_order_are_paired_by_name():
    float_model, feed = MODELS["several inputs and outputs"]
    quantized = qdq(float_model, feed)
    outputs = list(quantized.graph.output)
    del quantized.graph.output[:]
    quantized.graph.output.extend(reversed(outputs))
    quantized, names = renamed(quantized)
    assert matched(float_model, quantized).tensors == truth(float_model, names)


def test_models_that_have_nothing_in_common():
    net = Net()
    x = net.add(
        "LSTM", net.input("image", ["n", 3, 8]), net.const("w", random(1, 1, 8, 8)), "r", out="y", hidden_size=2
    )
    net.const("r", random(2, 1, 8, 2))
    net.output(x)
    assert not matched(conv_net(), net.model()).operators
