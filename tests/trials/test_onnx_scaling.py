"""Equalized and smoothed float models compute what they computed before, and quantize better."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, images, random, run
from builders.properties import examples
from builders.repair_patients import mobile_net, token_model
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.engine.errors import ModelError
from quantmedic.trials.from_onnx.equalize import equalize_model
from quantmedic.trials.from_onnx.smooth import smooth_model

ACTIVATIONS = ("none", "Relu", "LeakyRelu", "PRelu", "Clip", "Clip-low", "MaxPool", "AveragePool", "BatchNormalization")
LAYERS = ("Conv", "depthwise", "grouped", "ConvTranspose")
ENDS = ("flatten-gemm", "pool-matmul", "mean-gemm", "reshape-matmul")


def graph_of(model: onnx.ModelProto) -> OnnxGraph:
    return parse(Path("float.onnx"), model)


def spread_weights(rng: np.random.Generator, *shape: int, axis: int = 0) -> np.ndarray:
    """Weights whose channels differ by factors of up to a thousand."""
    gains = np.exp(rng.uniform(-3.5, 3.5, shape[axis])).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return (rng.standard_normal(shape) * gains).astype(np.float32)


def add_layer(net: Net, x: str, kind: str, channels: int, rng: np.random.Generator, out: str) -> tuple[str, int]:
    bias = rng.standard_normal(6).astype(np.float32) if rng.random() < 0.7 else None
    pads = {"pads": [1, 1, 1, 1]}
    match kind:
        case "Conv":
            return net.conv(x, spread_weights(rng, 6, channels, 3, 3), bias, out=out, **pads), 6
        case "depthwise":
            bias = None if bias is None else bias[:channels]
            weight = spread_weights(rng, channels, 1, 3, 3)
            return net.conv(x, weight, bias, out=out, group=channels, **pads), channels
        case "grouped":
            return net.conv(x, spread_weights(rng, 6, channels // 3, 1, 1), bias, out=out, group=3), 6
    names = [net.const(f"{out}.weight", spread_weights(rng, channels, 6, 3, 3, axis=1))]
    if bias is not None:
        names.append(net.const(f"{out}.bias", bias))
    return net.add("ConvTranspose", x, *names, out=out, **pads), 6


def add_activation(net: Net, x: str, kind: str, channels: int, rng: np.random.Generator, out: str) -> str:
    match kind:
        case "none":
            return x
        case "PRelu":
            return net.add("PRelu", x, net.const(f"{out}.slope", np.float32(rng.random((channels, 1, 1)))), out=out)
        case "Clip":
            return net.add("Clip", x, net.const(f"{out}.low", 0.0), net.const(f"{out}.high", 6.0), out=out)
        case "Clip-low":
            return net.add("Clip", x, net.const(f"{out}.low", -1.5), out=out)
        case "MaxPool" | "AveragePool":
            return net.add(kind, x, out=out, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        case "BatchNormalization":
            rows = [rng.random(channels) + 0.1 for _ in range(4)]
            names = [net.const(f"{out}.{k}", row.astype(np.float32)) for k, row in enumerate(rows)]
            return net.add("BatchNormalization", x, *names, out=out)
    return net.add(kind, x, out=out)


def add_end(net: Net, x: str, kind: str, channels: int, rng: np.random.Generator) -> str:
    if kind == "flatten-gemm":
        x = net.add("Flatten", x, out="flat")
        net.const("fc.weight", spread_weights(rng, 5, channels * 16))
        return net.add("Gemm", x, "fc.weight", out="scores", transB=1)
    if kind == "mean-gemm":
        x = net.add("ReduceMean", x, out="mean", axes=[2, 3], keepdims=0)
        net.const("fc.weight", spread_weights(rng, channels, 5))
        return net.add("Gemm", x, "fc.weight", net.const("fc.bias", np.float32(rng.standard_normal(5))), out="scores")
    x = net.add("GlobalAveragePool", x, out="pool")
    if kind == "pool-matmul":
        x = net.add("Flatten", x, out="flat")
    else:
        x = net.add("Reshape", x, net.const("shape", np.array([0, -1], np.int64)), out="flat")
    x = net.add("MatMul", x, net.const("hidden.weight", spread_weights(rng, channels, 8, axis=1)), out="hidden")
    x = net.add(
        "Relu",
        net.add("Add", net.const("hidden.bias", np.float32(rng.standard_normal(8))), x, out="shifted"),
        out="act",
    )
    return net.add("MatMul", x, net.const("fc.weight", rng.standard_normal((8, 5)).astype(np.float32)), out="scores")


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    net = Net()
    x, channels = net.input("image", ["n", 3, 4, 4]), 3
    for i in range(draw(st.integers(2, 4))):
        x, channels = add_layer(net, x, draw(st.sampled_from(LAYERS)), channels, rng, f"layer{i}")
        x = add_activation(net, x, draw(st.sampled_from(ACTIVATIONS)), channels, rng, f"act{i}")
    net.output(add_end(net, x, draw(st.sampled_from(ENDS)), channels, rng), shape=["n", 5])
    return net.model()


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, data: np.ndarray) -> None:
    onnx.checker.check_model(after)
    (wanted,), (found,) = (run(model, {"image": data}).values() for model in (before, after))
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(np.abs(wanted).max()))


@pytest.mark.thorough
@given(model=networks())
@examples(40)
def test_equalizing_preserves_the_function(model: onnx.ModelProto) -> None:
    try:
        equalized = equalize_model(graph_of(model))
    except ModelError:
        return
    assert_same(model, equalized.model, random(1, 8, 3, 4, 4))
    assert all(np.isfinite(pair.spread_after) for pair in equalized.pairs)


@pytest.mark.thorough
@given(model=networks(), alpha=st.floats(0.0, 1.0), insert=st.booleans())
@examples(40)
def test_smoothing_preserves_the_function(model: onnx.ModelProto, alpha: float, insert: bool) -> None:
    data = random(1, 8, 3, 4, 4)
    try:
        smoothed = smooth_model(graph_of(model), [Batch({"image": data})], alpha=alpha, insert=insert, threads=1)
    except ModelError:
        return
    assert_same(model, smoothed.model, data)


def test_equalizing_evens_out_depthwise_channels() -> None:
    """That this heals such a network is shown by the printed script."""
    for activation in ("Relu", "LeakyRelu"):
        model = mobile_net(activation)
        equalized = equalize_model(graph_of(model))
        assert [pair.writers + pair.readers for pair in equalized.pairs] == [
            ("expand", "depthwise"),
            ("depthwise", "project"),
            ("project", "scores"),
        ]
        assert equalized.pairs[0].spread_before > 100 > 10 * equalized.pairs[0].spread_after
        # Names stay, so that settings by name hold.
        assert [node.name for node in equalized.model.graph.node] == [node.name for node in model.graph.node]
        assert {t.name for t in equalized.model.graph.initializer} == {t.name for t in model.graph.initializer}


def test_what_cannot_be_scaled_is_left_alone() -> None:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    shared = net.const("shared", random(1, 3, 3, 1, 1))
    x = net.add("Relu", net.add("Conv", x, shared, out="first"), out="act")
    net.output(net.add("Conv", x, shared, out="second"), shape=["n", 3, 8, 8])
    model = net.model()
    assert_same(model, equalize_model(graph_of(model)).model, images())
    lone = Net()
    lone.output(lone.conv(lone.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 1, 1), out="scores"))
    barred = [barred_net(barrier) for barrier in ("Sigmoid", "Softmax", "Exp")]  # they are not homogeneous
    for alone in (lone.model(), *barred):
        with pytest.raises(ModelError, match="no layers that could be equalized"):
            equalize_model(graph_of(alone))


def barred_net(barrier: str) -> onnx.ModelProto:
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 1, 1), out="first")
    net.output(net.conv(net.add(barrier, x, out="act"), random(2, 4, 4, 1, 1), out="second"), shape=["n", 2, 8, 8])
    return net.model()


def test_smoothing_evens_out_channels() -> None:
    smoothed = smooth_model(graph_of(token_model()), [Batch({"image": random(9, 64, 6, 32)})], alpha=0.5, threads=1)
    found = {each.tensor: each for each in smoothed.inputs}
    assert set(found["norm"].readers) == {"upper", "gated"}
    assert found["norm"].spread_before > 50 > 5 * found["norm"].spread_after
    gain = next(numpy_helper.to_array(t) for t in smoothed.model.graph.initializer if t.name == "gain")
    assert gain.max() < 50


def test_a_factor_that_nothing_takes_up_becomes_a_mul_only_where_asked() -> None:
    model, batches = barred_net("Sigmoid"), [Batch({"image": images()})]
    with pytest.raises(ModelError, match="no activation that could be smoothed"):
        smooth_model(graph_of(model), batches, alpha=0.5, threads=1)
    smoothed = smooth_model(graph_of(model), batches, alpha=0.5, insert=True, threads=1)
    assert [each.tensor for each in smoothed.inputs if each.inserted] == ["image", "act"]
    assert [node.op_type for node in smoothed.model.graph.node].count("Mul") == 2
    assert_same(model, smoothed.model, images())
