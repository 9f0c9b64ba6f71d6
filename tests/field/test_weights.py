"""Weights that one scale, or one int32 bias, cannot hold: the survey's group 2."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.field_patients import (
    CHAINS,
    accuracy,
    append,
    append_depthwise,
    assert_healthy,
    constants,
    demo,
    diagnose,
    edit,
    first,
    judged,
    labels,
    mobilenet,
    named_layers,
    pixels,
    quantize,
    scale_channels,
    serious,
    split,
    with_head,
)
from builders.onnx_models import Array, Feed, Net, Recipe, qdq, random

pytestmark = pytest.mark.thorough


def with_constant_channels(value: float, weight: float, n: int = 4) -> onnx.ModelProto:
    """The demo with channels whose weights are next to nothing and whose bias is a constant that is needed.

    The pointwise layer behind them gives back what they add, so the float function stays. This is what folding leaves
    of channels that batch norm shut.

    Args:
        value: The bias of these channels in the stem.
        weight: Largest of their weights.
    """
    model = demo()
    layer, depthwise, pointwise = CHAINS[0]
    append(model, f"{layer}.weight", random(4, n, 1, 3, 3).clip(-1, 1) * weight)
    append(model, f"{layer}.bias", np.full(n, value))
    centre = np.zeros((n, 1, 3, 3))
    centre[:, :, 1, 1] = 1 / value
    append_depthwise(model, depthwise, centre, np.zeros(n))
    mixed = random(5, 32, n, 1, 1)
    append(model, f"{pointwise}.weight", mixed, 1)
    swish_of_one = 1 / (1 + np.exp(-1.0))
    edit(model, f"{pointwise}.bias", lambda bias: bias - swish_of_one * mixed.sum((1, 2, 3)))
    return model


UNPROTECTED = {"per_channel": True, "extra_options": {"QDQDisableWeightAdjustForInt32Bias": True}}


@pytest.mark.nightly
def test_depthwise_weights_on_one_scale(tmp_path: Path) -> None:
    """pytorch#90289: MobileNetV3 falls from 0.75 to 0.41 with one scale for each weight tensor.

    As it was trained it is healthy on one scale: see ``test_the_right_images_are_healthy``.
    """
    lost, diagnosis = judged(mobilenet(30), tmp_path)
    assert lost > 0.05
    assert first(diagnosis) == "channel-range-imbalance"
    assert named_layers(diagnosis, "channel-range-imbalance") == ["/reduce/depthwise/conv/Conv"]


@pytest.mark.nightly
def test_depthwise_weights_on_a_scale_for_each_channel_are_healthy(tmp_path: Path) -> None:
    lost, diagnosis = judged(mobilenet(60), tmp_path, per_channel=True)
    assert lost < 0.02
    assert_healthy(diagnosis)


@pytest.mark.nightly
def test_every_depthwise_layer_at_chance(tmp_path: Path) -> None:
    """armnn#344: MobileNet at 0.001 with one scale for each layer; every such layer is named."""
    lost, diagnosis = judged(mobilenet(60, chains=2), tmp_path)
    assert lost > 0.5
    assert first(diagnosis) == "channel-range-imbalance"
    layers = named_layers(diagnosis, "channel-range-imbalance")
    assert sorted(layers) == ["/head/depthwise/conv/Conv", "/reduce/depthwise/conv/Conv"]


@pytest.mark.nightly
def test_quiet_channel_that_the_next_weights_amplify(tmp_path: Path) -> None:
    """pytorch#90289: with a scale for each weight channel 0.67 of 0.75 are left, as the activation has one scale.

    The channel lies in the output of the first layer, so to leave that in float is an answer, too. So is that what
    comes behind amplifies what is small in it.
    """
    model = demo()
    scale_channels(model, "stem.conv", "reduce.depthwise.conv", [8, 9], 1 / 100)
    lost, diagnosis = judged(model, tmp_path, attribution=True, per_channel=True)
    assert lost > 0.2
    names = ("channel-outliers", "channel-range-imbalance", "first-layer-sensitive", "error-amplifier")
    assert first(diagnosis) in names


@pytest.mark.nightly
def test_per_channel_weights_that_make_it_worse(tmp_path: Path) -> None:
    """onnxruntime#11415: per_channel=True is worse, as the bias of a channel of tiny scale leaves int32."""
    model = with_constant_channels(2.0, 3e-6)
    lost, diagnosis = judged(model, tmp_path, attribution=True, **UNPROTECTED)
    assert lost > 0.5
    assert serious(diagnosis) == ["bias-overflow"]
    assert named_layers(diagnosis, "bias-overflow") == ["/stem/conv/Conv"]
    assert not any("per-channel" in remedy.id for remedy in diagnosis.causes[0].remedies)


@pytest.mark.nightly
def test_tiny_channels_are_healthy_where_the_scale_is_widened_until_the_bias_fits(tmp_path: Path) -> None:
    lost, diagnosis = judged(with_constant_channels(2.0, 3e-6), tmp_path, per_channel=True)
    assert lost < 0.02
    assert_healthy(diagnosis)


def put(model: onnx.ModelProto, channels: slice, values: Mapping[str, Any]) -> None:
    """Overwrite what some channels hold."""

    def change(x: Array, value: Any) -> Array:
        x[channels] = value
        return x

    for name, value in values.items():
        edit(model, name, partial(change, value=value))


@pytest.mark.nightly
def test_scales_at_the_floor(tmp_path: Path) -> None:
    """aimet#4054: exported scales are 1.19e-07 in several channels; beside them no bias of 4 fits into int32.

    Weights under 1e-9 are zeros there. That the channels are dead is the root, that their bias overflows is what it
    does.
    """
    model, floor = with_constant_channels(4.0, 1e-9), 1.19e-7
    representative, validation = split(model)
    quantized = quantize(model, representative, tmp_path, **UNPROTECTED)
    step = constants(quantized)["image_scale"] * np.float32(floor)
    code = np.clip(np.rint(4 / np.float64(step)), -(2**31), 2**31 - 1)
    parts = {"weight_scale": floor, "weight_quantized": 0, "bias_quantized_scale": step, "bias_quantized": code}
    put(quantized, slice(16, 20), {f"stem.conv.{name}": value for name, value in parts.items()})
    diagnosis = diagnose(model, quantized, representative, validation, tmp_path, attribution=True)
    assert accuracy(model, validation) - accuracy(quantized, validation) > 0.1
    assert first(diagnosis) in ("dead-channels", "bias-overflow")
    told = {cause.cause for cause in diagnosis.causes} | {e.name for c in diagnosis.causes for e in c.absorbs}
    assert {"dead-channels", "bias-overflow"} <= told


def _pixel_net() -> tuple[onnx.ModelProto, Feed, Feed]:
    """Half pixels in, step 0.5; four channels of weights up to 1e-7 carry a bias of 5 that the next layer needs."""
    tiny = np.zeros((4, 1, 3, 3), np.float32)
    tiny[:, :, 1, 1] = 7.843e-10 * 127
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    weight = np.concatenate([random(1, 12, 1, 3, 3, scale=0.004), tiny])
    bias = np.concatenate([random(2, 12, scale=0.1), np.full(4, 5.0, np.float32)])
    x = net.add("Relu", net.conv(x, weight, bias, out="first", strides=[2, 2]), out="relu1")
    mixed = random(3, 24, 16, 1, 1, scale=0.3)
    x = net.conv(x, mixed, random(4, 24, scale=0.1) - 5 * mixed[:, 12:, 0, 0].sum(1), out="second")
    x = net.add("AveragePool", net.add("Relu", x, out="relu2"), out="pool", kernel_shape=[3, 3], strides=[3, 3])
    net.add("Flatten", x, out="features")
    feeds = {
        role: {"image": pixels(role).astype(np.float32) / 2, "labels": labels(role, len(pixels(role)))}
        for role in ("representative", "validation")
    }
    data = {"image": feeds["representative"]["image"]}
    model = with_head(net, "features", data, feeds["representative"]["labels"], 0.01)
    return model, data, feeds["validation"]


def test_bias_code_beyond_int32(tmp_path: Path) -> None:
    """onnxruntime#21000: input step 0.5, weight step 7.843e-10, bias 5.0; what is left of the bias is 0.842."""
    model, representative, validation = _pixel_net()
    quantized = qdq(model, representative, Recipe(per_channel=True))
    diagnosis = diagnose(model, quantized, representative, validation, tmp_path)
    assert accuracy(model, validation) - accuracy(quantized, validation) > 0.2
    assert first(diagnosis) == "bias-overflow"
    measured = {row.fact: row.value for row in diagnosis.causes[0].evidence}
    assert measured["bias.overflowing_channels"] == 4
    stored = constants(quantized)
    left = stored["first.bias_q_codes"][12:] * stored["first.bias_q_scale"][12:].astype(np.float64)
    assert left == pytest.approx(0.842, abs=0.001)


def test_scale_one_for_dead_weights_is_healthy(tmp_path: Path) -> None:
    """The remedy: zeros on a sensible scale, with which the bias fits."""
    model, representative, validation = _pixel_net()
    quantized = qdq(model, representative, Recipe(per_channel=True))
    parts = {"weight_q_codes": 0, "weight_q_scale": 0.001, "bias_q_scale": 0.0005, "bias_q_codes": 10_000}
    put(quantized, slice(12, 16), {f"first.{name}": value for name, value in parts.items()})
    assert_healthy(diagnose(model, quantized, representative, validation, tmp_path))
