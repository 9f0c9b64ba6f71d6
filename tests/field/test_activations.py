"""Activations that do not fit their grid: the survey's group 3."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.field_patients import (
    accuracy,
    assert_healthy,
    diagnose,
    first,
    images,
    judged,
    labels,
    named_layers,
    quantize,
    ranges,
    serious,
    split,
    with_head,
    with_ranges,
    without_quantizers,
)
from builders.onnx_models import Array, Net, random, run

from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

TOKENS, WIDTH = 16, 32


def test_swish_needs_the_layer_in_front_in_float(tmp_path: Path) -> None:
    """The page of A010: its pieces in float alone change nothing, for Conv quantizes what it writes."""
    net = Net(20)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 8, 3, 3, 3, scale=0.3), random(2, 8), out="expand")
    x = net.add("Relu", x, out="relu")
    x = net.conv(x, -np.abs(random(7, 8, 8, 1, 1, scale=4.0)), np.full(8, 3, np.float32), out="front", name="front")
    gate = net.add("HardSigmoid", x, out="gate", name="gate", alpha=1 / 6, beta=0.5)
    x = net.add("Mul", x, gate, out="swish", name="swish")
    net.output(net.conv(x, random(3, 4, 8, 3, 3, scale=0.1), random(4, 4), out="scores"), shape=["n", 4, 4, 4])
    model, feed = net.model(), {"image": random(5, 64, 3, 8, 8)}
    wanted = run(model, feed)["scores"]

    def noise(*excluded: str) -> float:
        found = run(quantize(model, feed, tmp_path, nodes_to_exclude=list(excluded)), feed)["scores"]
        return float(((found - wanted) ** 2).mean())

    assert noise("gate", "swish") > 0.9 * noise(), "the pieces alone"
    assert noise("front", "gate", "swish") < 0.5 * noise()


def tokens(net: Net, width: int, *, bias: Array | None = None) -> str:
    """16 patches of 7 x 7 pixels, each mapped to ``width`` channels: (n, 16, width)."""
    x = net.input("image", ["n", 1, 28, 28])
    weight = random(1, width, 1, 7, 7, scale=1 / 7)
    bias = random(2, width, scale=0.1) if bias is None else bias
    x = net.conv(x, weight, bias.astype(np.float32), out="patches", strides=[7, 7])
    x = net.add("Reshape", x, net.const("as_tokens", np.array([0, width, TOKENS])), out="rows")
    return net.add("Transpose", x, out="embedded", perm=[0, 2, 1])


def linear(net: Net, x: str, seed: int, inputs: int, outputs: int, *, out: str, gain: float = 1.0) -> str:
    weight = random(seed, inputs, outputs, scale=gain / math.sqrt(inputs))
    x = net.add("MatMul", x, net.const(f"{out}.weight", weight), out=f"{out}_product")
    return net.add("Add", x, net.const(f"{out}.bias", random(seed + 500, outputs, scale=0.1)), out=out)


def gelu(net: Net, x: str, *, out: str) -> str:
    half = net.add("Mul", x, net.const(f"{out}_inverse", 1 / math.sqrt(2)), out=f"{out}_scaled")
    share = net.add("Add", net.add("Erf", half, out=f"{out}_erf"), net.const(f"{out}_one", 1), out=f"{out}_shifted")
    x = net.add("Mul", x, share, out=f"{out}_twice")
    return net.add("Mul", x, net.const(f"{out}_half", 0.5), out=out)


def classifier(net: Net, x: str) -> onnx.ModelProto:
    """Flattened tokens and a fitted last layer."""
    net.add("Flatten", x, out="features")
    return with_head(net, "features", {"image": images("representative", 500)}, labels("representative", 500), 0.1)


# --- a vision transformer --------------------------------------------------------------------------------------------


def transformer(massive: float) -> onnx.ModelProto:
    """A small vision transformer; one channel of its residual stream is ``massive``, as in trained ones.

    Layer normalization divides by the massive channel and its gamma gives the other channels their size back.
    """
    net = Net()
    bias = random(2, WIDTH, scale=0.1)
    bias[5] += massive
    x = tokens(net, WIDTH, bias=bias)
    for i in range(2):
        y = norm(net, x, massive, out=f"norm{i}a")
        x = net.add("Add", x, attention(net, y, i), out=f"sum{i}a")
        y = norm(net, x, massive, out=f"norm{i}b")
        y = gelu(net, linear(net, y, 100 * i + 20, WIDTH, 2 * WIDTH, out=f"fc{i}a"), out=f"gelu{i}")
        x = net.add("Add", x, linear(net, y, 100 * i + 30, 2 * WIDTH, WIDTH, out=f"fc{i}b"), out=f"sum{i}b")
    return classifier(net, norm(net, x, massive, out="norm"))


def norm(net: Net, x: str, massive: float, *, out: str) -> str:
    gamma = np.full(WIDTH, max(1.0, 0.5 * massive / math.sqrt(WIDTH)), np.float32)
    gamma[5] = min(1.0, 1.0 / math.sqrt(WIDTH))
    beta = random(7, WIDTH, scale=0.1)
    return net.add("LayerNormalization", x, net.const(f"{out}.gamma", gamma), net.const(f"{out}.beta", beta), out=out)


def attention(net: Net, x: str, i: int) -> str:
    q, k, v = (linear(net, x, 100 * i + 10 + j, WIDTH, WIDTH, out=f"{name}{i}") for j, name in enumerate("qkv"))
    k = net.add("Transpose", k, out=f"kt{i}", perm=[0, 2, 1])
    x = net.add("Mul", net.add("MatMul", q, k, out=f"dots{i}"), net.const(f"scale{i}", WIDTH**-0.5), out=f"scores{i}")
    x = net.add("MatMul", net.add("Softmax", x, out=f"shares{i}", axis=-1), v, out=f"mixed{i}")
    return linear(net, x, 100 * i + 15, WIDTH, WIDTH, out=f"proj{i}")


# --- perceptrons over tokens -----------------------------------------------------------------------------------------


def swish(net: Net, x: str, *, out: str) -> str:
    return net.add("Mul", x, net.add("Sigmoid", x, out=f"{out}_sigmoid"), out=out)


def rare(net: Net, x: str, seed: int, inputs: int, outputs: int, *, out: str, channel: int, share: float) -> str:
    """A ReLU layer of which one channel is above 0 for a small share of the tokens only."""
    weight = random(seed, inputs, outputs, scale=inputs**-0.5)
    bias = random(seed + 500, outputs, scale=0.1)
    body = Net(net.opset, list(net.nodes), dict(net.constants), list(net.inputs))
    body.output(x)
    seen = run(body.model(), {"image": images("representative")})[x] @ weight[:, channel]
    bias[channel] = -np.quantile(seen, 1 - share)
    x = net.add("MatMul", x, net.const(f"{out}.weight", weight), out=f"{out}_product")
    x = net.add("Add", x, net.const(f"{out}.bias", bias), out=f"{out}_sum")
    return net.add("Relu", x, out=out)


def gelu_network(outlier: float) -> onnx.ModelProto:
    """A rare feature is ``outlier`` times as large in the GELU of the second layer; the layer behind undoes it."""
    net = Net()
    x = rare(net, tokens(net, WIDTH), 31, WIDTH, 64, out="rare", channel=7, share=0.004)
    weight = random(32, 64, 64, scale=1 / 8)
    weight[:, 7] = 0
    weight[7, 7] = outlier
    x = net.add("MatMul", x, net.const("hidden.weight", weight), out="hidden_product")
    x = gelu(net, net.add("Add", x, net.const("hidden.bias", random(33, 64, scale=0.1)), out="hidden"), out="gelu")
    weight = random(34, 64, WIDTH, scale=1 / 8)
    weight[7] /= outlier
    x = net.add("MatMul", x, net.const("mixed.weight", weight), out="mixed")
    return classifier(net, net.add("Relu", x, out="mixed_relu"))


def hidden_convolution(weight: Array, bias: Array, after: Array) -> onnx.ModelProto:
    """Patches, a 1 x 1 convolution ``hidden``, its swish, and another one with ReLU under the fitted layer."""
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    x = net.conv(x, random(1, WIDTH, 1, 7, 7, scale=1 / 7), random(2, WIDTH, scale=0.1), out="patches", strides=[7, 7])
    net.conv(x, weight[:, :, None, None], bias.astype(np.float32), out="hidden")
    x = net.conv(swish(net, "hidden", out="active"), after[:, :, None, None], random(42, WIDTH, scale=0.1), out="mixed")
    return classifier(net, net.add("Relu", x, out="mixed_relu"))


def shut() -> onnx.ModelProto:
    """A swish layer; 40 of its 64 channels are shut for nearly all tokens, and reach down to about -500."""
    weight = random(31, 64, WIDTH, scale=WIDTH**-0.5)
    bias = random(32, 64, scale=0.1)
    weight[:40] *= 500 / 8
    bias[:40] = -500 / 2
    after = random(41, WIDTH, 64, scale=1 / 8)
    return hidden_convolution(weight, bias, after)


def quiet_negatives(loud: float) -> onnx.ModelProto:
    """A swish of which a quarter of the channels is loud; the others say what they have to say below 0."""
    weight = random(31, 64, WIDTH, scale=WIDTH**-0.5)
    weight[:16] *= loud
    after = random(41, WIDTH, 64, scale=1 / 8)
    after[:, :16] /= loud
    return hidden_convolution(weight, np.full(64, -1.5), after)


def gated_product(massive: float) -> onnx.ModelProto:
    """The MLP of a large language model: swish(gate) times up, then down; the first token blows up one channel.

    Its position embedding lies along the columns of that channel, as the attention sinks of such models do.
    """
    net = Net()
    x = tokens(net, WIDTH)
    place = np.zeros((1, TOKENS, WIDTH), np.float32)
    place[0, 0, 3] = 8
    x = net.add("Add", x, net.const("places", place), out="placed")
    for name, seed in (("gate", 31), ("up", 32)):
        weight = random(seed, WIDTH, 64, scale=WIDTH**-0.5)
        weight[3] *= 0.1
        weight[:, 9] = 0
        weight[3, 9] = math.sqrt(massive) / 8
        net.add("MatMul", x, net.const(f"{name}.weight", weight), out=name)
    x = net.add("Mul", swish(net, "gate", out="swish"), "up", out="product")
    weight = random(34, 64, WIDTH, scale=1 / 8)
    weight[9] /= max(massive, 1)
    x = net.add("MatMul", x, net.const("down.weight", weight), out="down")
    return classifier(net, net.add("Relu", x, out="down_relu"))


QKV = (("q", 3.0), ("k", 3.0), ("v", 1.0))


def masked(value: float) -> onnx.ModelProto:
    """Attention over 16 tokens of which the last two are padding: ``value`` is added to their scores."""
    net = Net()
    x = tokens(net, WIDTH)
    q, k, v = (linear(net, x, 10 + j, WIDTH, WIDTH, out=name, gain=g) for j, (name, g) in enumerate(QKV))
    x = net.add("MatMul", q, net.add("Transpose", k, out="kt", perm=[0, 2, 1]), out="dots")
    x = net.add("Mul", x, net.const("scale", WIDTH**-0.5), out="scores")
    mask = np.zeros((1, 1, TOKENS), np.float32)
    mask[..., -2:] = value
    x = net.add("Softmax", net.add("Add", x, net.const("mask", mask), out="masked"), out="shares", axis=-1)
    x = linear(net, net.add("MatMul", x, v, out="attended"), 15, WIDTH, WIDTH, out="proj")
    return classifier(net, net.add("Relu", x, out="proj_relu"))


def sparse_maps() -> onnx.ModelProto:
    """Feature maps in which few places fire, averaged over all places: the averages are much smaller than the maps."""
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    weight = random(1, 64, 1, 5, 5, scale=1 / 5)
    weight -= weight.mean((1, 2, 3), keepdims=True)
    x = net.conv(x, weight, np.full(64, -1.5, np.float32), out="filters", strides=[2, 2])
    x = net.add("GlobalAveragePool", net.add("Relu", x, out="maps"), out="pool")
    net.add("Flatten", x, out="features")
    return with_head(net, "features", {"image": images("representative", 500)}, labels("representative", 500))


MASSIVE = {"massive-activations", "channel-outliers", "unbalanced-addition"}


@pytest.mark.nightly
def test_residual_stream_with_a_massive_channel(tmp_path: Path) -> None:
    """TinyNeuralNetwork#204: a ViT at 0 %; with the residual sums in float 78.5 of 81.4 % come back.

    The channel is massive, and the sum of the stream and a branch is unbalanced: both are right.
    """
    lost, diagnosis = judged(transformer(400), tmp_path, attribution=True, per_channel=True)
    assert lost > 0.05
    assert first(diagnosis) in MASSIVE


@pytest.mark.nightly
def test_residual_sums_in_float_are_healthy(tmp_path: Path) -> None:
    """The remedy of that report: sums and the normalizations that read them stay in float."""
    model = transformer(200)
    stream = [n.name for n in model.graph.node if n.op_type == "LayerNormalization" or n.name.startswith("sum")]
    lost, diagnosis = judged(
        model, tmp_path, per_channel=True, nodes_to_exclude=[*stream, "patches", "rows", "embedded"]
    )
    assert lost < 0.02
    assert_healthy(diagnosis)


@pytest.mark.nightly
def test_outliers_and_not_the_gelu(tmp_path: Path) -> None:
    """mct-model-optimization#1337: the user of a TinyViT blames GELU's negative tail, the maintainer finds outliers."""
    lost, diagnosis = judged(gelu_network(1000), tmp_path, attribution=True, per_channel=True)
    assert lost > 0.2
    assert first(diagnosis) == "activation-outliers"
    assert any(name.startswith("gelu") for name in named_layers(diagnosis, "activation-outliers"))
    assert "negative-activations" not in serious(diagnosis)


def _fused(model: onnx.ModelProto, folder: Path) -> tuple[float, Diagnosis]:
    """The same with swish as one operator: no quantizer before or within it."""
    representative, validation = split(model)
    quantized = quantize(model, representative, folder, per_channel=True)
    without_quantizers(quantized, "hidden", "active_sigmoid")
    lost = accuracy(model, validation) - accuracy(quantized, validation)
    return lost, diagnose(model, quantized, representative, validation, folder, attribution=True)


def test_swish_taken_apart_by_quantizers(tmp_path: Path) -> None:
    """mct-model-optimization#771: EfficientNet at 47 of 78 %, x and sigmoid(x) are quantized one by one.

    x reaches far below 0, where swish is flat; its quantizer spends the levels there.
    """
    lost, diagnosis = judged(shut(), tmp_path, attribution=True, per_channel=True)
    assert lost > 0.05
    assert first(diagnosis) == "decomposed-swish"


def test_fused_swish_is_healthy(tmp_path: Path) -> None:
    lost, diagnosis = _fused(shut(), tmp_path)
    assert lost < 0.02
    assert_healthy(diagnosis)


def test_negative_tail_on_a_coarse_grid(tmp_path: Path) -> None:
    """yolov5#10164: with SiLU int8 loses accuracy, with ReLU it does not.

    A quarter of the channels is loud; all that the others say lies within -0.28 … 0, which is under one level.
    """
    lost, diagnosis = _fused(quiet_negatives(25), tmp_path)
    assert lost > 0.05
    assert first(diagnosis) in ("negative-activations", "channel-outliers")


def test_down_projection_of_a_gated_mlp(tmp_path: Path) -> None:
    """smoothquant#42 and vllm#1112: the product before down_proj collapses in static W8A8."""
    lost, diagnosis = judged(gated_product(2000), tmp_path, per_channel=True)
    assert lost > 0.3
    assert first(diagnosis) in ("massive-activations", "channel-outliers")
    assert "product" in named_layers(diagnosis, diagnosis.causes[0].cause)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_attention_mask(tmp_path: Path) -> None:
    """Olive#1597: the mask is finfo.min, and nothing of the scores survives beside it; in float it is no cause."""
    model = masked(float(np.finfo(np.float32).min))
    lost, diagnosis = judged(model, tmp_path, per_channel=True)
    assert lost > 0.2
    assert first(diagnosis) == "mask-constant"
    assert_healthy(judged(model, tmp_path, per_channel=True, nodes_to_exclude=["scores", "masked", "shares"])[1])


def test_mask_that_the_softmax_needs_is_healthy(tmp_path: Path) -> None:
    assert_healthy(judged(masked(-20), tmp_path, per_channel=True)[1])


def test_average_on_the_grid_of_its_input(tmp_path: Path) -> None:
    """models#10809: the debugger flags the global average pooling of MoViNet; the int8 mean takes its input's scale.

    Either name is right: the operator is sensitive, and its range is poor.
    """
    model = sparse_maps()
    representative, _ = split(model)
    of_input = ranges(quantize(model, representative, tmp_path))["maps"]
    _, diagnosis = judged(model, tmp_path, **with_ranges({"pool": of_input}, per_channel=True))
    assert diagnosis.model.output_agreement is not None and diagnosis.model.output_agreement < 0.9
    assert first(diagnosis) in ("sensitive-operator", "poor-threshold")
    assert "pool" in named_layers(diagnosis, diagnosis.causes[0].cause)
