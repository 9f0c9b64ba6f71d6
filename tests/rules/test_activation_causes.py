"""Real faulty networks: each holds one fault of the activations, the graph or the precision, and is diagnosed.

Every fault has a healthy twin, which differs in nothing else and must be silent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Array, Net, random, save_pair, static
from builders.tiers import others_nightly
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

SAMPLES = 128
SIGNED = {
    "activation_type": QuantType.QInt8,
    "weight_type": QuantType.QInt8,
    "extra_options": {"ActivationSymmetric": True},
}


@dataclass
class Fault:
    """A float model, the data, and how it is quantized; ``edit`` changes the quantized model."""

    model: onnx.ModelProto
    data: Array
    options: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    edit: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda model: model
    source: onnx.ModelProto | None = None

    def diagnose(self, folder: Path) -> Diagnosis:
        options = {"per_channel": True, **self.options}
        extra = dict(options.pop("extra_options", {}))
        if self.overrides:
            extra["TensorQuantOverrides"] = {name: [one] for name, one in self.overrides.items()}
        feed = {self.model.graph.input[0].name: self.data}
        quantized = static(self.source or self.model, feed, folder, extra_options=extra, **options)
        paths = save_pair(folder, self.model, self.edit(quantized))
        return quantmedic.diagnose(*paths, representative=feed, threads=1)


def found(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]


def cause(diagnosis: Diagnosis, name: str) -> CauseReport:
    return next(cause for cause in diagnosis.causes if cause.cause == name)


def tokens(net: Net, count: int = 16, width: int = 32) -> str:
    return net.input("x", ["n", count, width])


def dense(net: Net, x: str, weight: Array, out: str) -> str:
    net.const(f"{out}.weight", weight)
    return net.add("MatMul", x, f"{out}.weight", out=out)


def finish(net: Net, x: str, width: int = 32, wide: int = 8, rows: Array | None = None) -> onnx.ModelProto:
    """A dense layer to an output that is no list of classes."""
    weight = random(90, width, wide, scale=width**-0.5)
    net.output(dense(net, x, weight if rows is None else weight * rows[:, None], "y"), shape=["n", 16, wide])
    return net.model()


def channel_outliers(*, faulty: bool) -> Fault:
    """Two channels of 32 are a hundred times as large, and read with weights a hundred times smaller."""
    gain = np.ones(32, np.float32)
    gain[[3, 20]] = 100.0 if faulty else 1.0
    net = Net()
    h = dense(net, tokens(net), random(1, 32, 32, scale=0.2) * gain, "h")
    return Fault(finish(net, h, rows=1 / gain), random(5, SAMPLES, 16, 32))


def massive_activations(*, faulty: bool) -> Fault:
    """One channel of the first token is huge in every sample, and nearly unread."""
    offset, rows = np.zeros((16, 32), np.float32), np.ones(32, np.float32)
    if faulty:
        offset[0, 3], rows[3] = 3000.0, 1e-5
    net = Net()
    h = dense(net, tokens(net), random(1, 32, 32, scale=0.2), "h")
    h = net.add("Add", h, net.const("sink", offset), out="s")
    return Fault(finish(net, h, rows=rows), random(5, SAMPLES, 16, 32))


def single_outliers(*, faulty: bool) -> Fault:
    """One value of every 32nd sample is huge."""
    data = random(5, SAMPLES, 16, 32)
    if faulty:
        data[::32, 3, 5] = 400.0
    net = Net()
    h = dense(net, tokens(net), np.eye(32, dtype=np.float32), "h")
    return Fault(finish(net, h, rows=np.where(np.arange(32) == 5, 1e-3, 1).astype(np.float32)), data)


def pairs(spread: float, tail: float, top: float) -> Array:
    """Positive values with a long tail, alike in neighbouring channels."""
    common = np.repeat(np.exp(tail * random(5, SAMPLES, 16, 16)), 2, axis=2)
    return (common * np.exp(spread * random(6, SAMPLES, 16, 32))).clip(0, top)


def differences(net: Net, x: str) -> onnx.ModelProto:
    """A last layer that sees nothing but the differences of neighbouring channels."""
    weight = np.repeat(random(90, 16, 8, scale=0.2), 2, axis=0) * np.where(np.arange(32) % 2, -1, 1)[:, None]
    net.output(dense(net, x, weight.astype(np.float32), "y"), shape=["n", 16, 8])
    return net.model()


def symmetric_grid(*, faulty: bool) -> Fault:
    """Positive values with a long tail, on codes of either sign."""
    net = Net()
    h = dense(net, tokens(net), np.eye(32, dtype=np.float32), "h")
    return Fault(differences(net, net.add("Relu", h, out="r")), pairs(0.28, 1.6, 230), SIGNED if faulty else {})


def swish(*, faulty: bool, gate: str = "Sigmoid") -> Fault:
    """Half of the channels lie far below zero, where Swish is flat: rounded before it, they take the levels away."""
    offset = np.where(np.arange(32) % 2, -120.0 if faulty else 0.0, 0.0).astype(np.float32)
    net = Net()
    h = dense(net, tokens(net), random(1, 32, 32, scale=0.2), "h")
    h = net.add("Add", h, net.const("offset", offset), out="s")
    if gate == "Erf":
        root = net.add("Div", h, net.const("root", math.sqrt(2.0)), out="root_of")
        half = net.add("Add", net.add("Erf", root, out="erf"), net.const("one", 1.0), out="gate")
    else:
        half = net.add(gate, h, out="gate")
    return Fault(finish(net, net.add("Mul", h, half, out="swish")), random(5, SAMPLES, 16, 32))


def gelu(*, faulty: bool) -> Fault:
    return swish(faulty=faulty, gate="Erf")


def attention(net: Net, x: str, mask: Array | None = None) -> str:
    """Scores of 16 tokens, a softmax over them and the mixed values."""
    for i, name in enumerate(("q", "k")):
        dense(net, x, random(20 + i, 32, 32, scale=0.12), name)
    scores = net.add("MatMul", "q", net.add("Transpose", "k", out="kt", perm=[0, 2, 1]), out="dots")
    if mask is not None:
        scores = net.add("Add", scores, net.const("mask", mask), out="masked")
    return net.add("MatMul", net.add("Softmax", scores, out="shares", axis=-1), x, out="mixed")


def coarse_softmax(*, faulty: bool, scale: float = 0.1) -> Fault:
    net = Net()
    model = finish(net, attention(net, tokens(net)))
    fixed = {"shares": {"scale": np.array(scale, np.float32), "zero_point": np.array(0, np.uint8)}} if faulty else {}
    return Fault(model, random(5, SAMPLES, 16, 32), overrides=fixed)


def clipped_softmax(*, faulty: bool) -> Fault:
    return coarse_softmax(faulty=faulty, scale=0.0006)


def mask_constant(*, faulty: bool) -> Fault:
    """A causal mask of the most negative numbers, against one of -50."""
    net = Net()
    mask = np.triu(np.full((16, 16), -1e9 if faulty else -50.0, np.float32), 1)
    return Fault(finish(net, attention(net, tokens(net), mask)), random(5, SAMPLES, 16, 32))


def padded_pooling(*, faulty: bool) -> Fault:
    """A maximum over three tokens, whose Pad fills in the lowest float, against 0, which does behind a Relu."""
    net = Net()
    h = net.add("Relu", dense(net, tokens(net), random(30, 32, 32, scale=0.18), "h"), out="relu")
    fill = np.array(np.finfo(np.float32).min if faulty else 0, np.float32)
    h = net.add("Pad", h, net.const("pads", np.array([0, 0, 0, 0, 2, 0])), net.const("fill", fill), out="padded")
    h = net.add("Transpose", h, out="turned", perm=[0, 2, 1])
    h = net.add("MaxPool", h, out="pooled", kernel_shape=[3], strides=[1])
    return Fault(finish(net, net.add("Transpose", h, out="back", perm=[0, 2, 1])), random(5, SAMPLES, 16, 32))


def power_of_two(*, faulty: bool) -> Fault:
    """Values with a long tail that ends a little over a power of two."""
    net = Net()
    h = dense(net, tokens(net), np.eye(32, dtype=np.float32), "h")
    data = pairs(0.4, 1.5, 130) * np.sign(random(7, SAMPLES, 16, 1))
    return Fault(differences(net, h), data, SIGNED, edit=round_scales if faulty else lambda model: model)


def round_scales(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every activation scale becomes the next power of two."""
    weights = {n.input[1] for n in model.graph.node if n.op_type == "DequantizeLinear" and "weight" in n.input[0]}
    scales = {n.input[1] for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")} - weights
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            value = numpy_helper.to_array(tensor)
            rounded = np.exp2(np.ceil(np.log2(value))).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return model


def loud_samples(*, faulty: bool) -> Fault:
    """A quarter of the samples is sixty times as loud; the class does not depend on it."""
    data = random(5, SAMPLES * 2, 32)
    data[::4] *= 60.0 if faulty else 1.0
    net = Net()
    x = net.input("x", ["n", 32])
    h = dense(net, x, random(1, 32, 32, scale=0.2), "h")
    net.output(dense(net, net.add("Relu", h, out="r"), random(2, 32, 20), "y"), shape=["n", 20])
    return Fault(net.model(), data)


def relu6(*, faulty: bool) -> Fault:
    """The bound of the float model was left out before it was quantized."""

    def build(bounded: bool) -> onnx.ModelProto:
        net = Net()
        h = dense(net, tokens(net), random(1, 32, 32, scale=1.0), "h")
        ends = [net.const("low", 0.0), net.const("high", 6.0)] if bounded else []
        return finish(net, net.add("Clip" if bounded else "Relu", h, *ends, out="r"))

    return Fault(build(True), random(5, SAMPLES, 16, 32), source=build(not faulty))


def unbalanced_addition(*, faulty: bool) -> Fault:
    """A wide operand that the next layer does not look at, and a narrow one that it does."""
    along = np.full(32, 32**-0.5, np.float32)
    net = Net()
    x = tokens(net)
    wide = np.outer(random(3, 32, scale=0.2), along) * (200.0 if faulty else 2.0)
    dense(net, x, wide.astype(np.float32), "wide")
    dense(net, x, random(1, 32, 32, scale=0.15), "narrow")
    net.add("Add", "wide", "narrow", out="sum")
    weight = random(90, 32, 8, scale=0.2)
    weight -= np.outer(along, along @ weight)
    net.output(dense(net, "sum", weight, "y"), shape=["n", 16, 8])
    return Fault(net.model(), random(5, SAMPLES, 16, 32), {"nodes_to_exclude": ["y"]})


def first_layer(*, faulty: bool) -> Fault:
    """The first convolution takes the difference of neighbours whose common part is a hundred times as large."""
    net = Net()
    weight = random(201, 8, 3, 3, 3, scale=0.3)
    weight -= weight.mean(axis=(2, 3), keepdims=True)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), weight, out="conv0", pads=[0, 0, 0, 0])
    for i in range(1, 7):
        x = net.conv(net.add("Relu", x, out=f"r{i}"), random(i + 201, 8, 8, 1, 1, scale=0.6), out=f"conv{i}")
    net.output(x, shape=["n", 8, 6, 6])
    data = random(5, SAMPLES, 3, 8, 8) + np.float32(100.0 if faulty else 0.0)
    return Fault(net.model(), data)


def small_divisors(*, faulty: bool) -> Fault:
    """A divisor that is never zero, but whose smallest values are; a bound cuts off what is infinite then."""
    least = 0.002 if faulty else 1.0
    net = Net()
    h = dense(net, tokens(net), random(1, 32, 32, scale=0.2), "h")
    net.const("least", np.float32(least))
    divisor = net.add("Add", net.add("Abs", h, out="size"), "least", out="divisor")
    ends = [net.const("low", np.float32(0)), net.const("high", np.float32(1 / least))]
    inverse = net.add("Clip", net.add("Reciprocal", divisor, out="inverse"), *ends, out="bounded")
    return Fault(finish(net, net.add("Mul", h, inverse, out="sign")), random(5, SAMPLES, 16, 32))


def range_from_zero(*, faulty: bool) -> Fault:
    """A leaky ReLU with the range of a ReLU."""
    net = Net()
    h = dense(net, tokens(net), random(1, 32, 32, scale=0.2), "h")
    leaky = net.add("LeakyRelu", h, out="leaky", alpha=0.4)
    ends = {"rmin": np.float32(0), "rmax": np.float32(5)}
    return Fault(finish(net, leaky), random(5, SAMPLES, 16, 32), overrides={"leaky": ends} if faulty else {})


def relu_in_the_range(*, faulty: bool) -> Fault:
    """A ReLU that the quantizer drops, in front of a range that reaches below zero."""
    net = Net()
    h = net.add("Relu", dense(net, tokens(net), random(1, 32, 32, scale=0.2), "h"), out="r")
    ends = {"rmin": np.float32(-5 if faulty else 0), "rmax": np.float32(5)}
    return Fault(finish(net, h), random(5, SAMPLES, 16, 32), overrides={"r": ends})


def few_bits(bits: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A float model and its twin, whose activations have so few bits."""
    models = []
    for quantized in (False, True):
        net = Net(opset=21)
        x = tokens(net)
        zero = helper.make_tensor("zero", getattr(TensorProto, f"INT{bits}"), [], [0])
        for name, rows in (("h", 32), ("y", 8)):
            if quantized:
                x = net.quantize(x, 4.2 / 2 ** (bits - 1), zero)
                zero = helper.make_tensor("zero", zero.data_type, [], [0])
            x = dense(net, x, random(rows, 32, rows, scale=0.18), name)
        net.output("y", shape=["n", 16, 8])
        models.append(net.model())
    return models[0], models[1]


FAULTS: list[tuple[str, Callable[..., Fault]]] = [
    ("channel-outliers", channel_outliers),
    ("massive-activations", massive_activations),
    ("activation-outliers", single_outliers),
    ("asymmetric-data-on-symmetric-grid", symmetric_grid),
    ("decomposed-swish", swish),
    ("decomposed-swish", gelu),
    ("fixed-range-output", coarse_softmax),
    ("fixed-range-output", clipped_softmax),
    ("mask-constant", mask_constant),
    ("mask-constant", padded_pooling),
    ("power-of-two-waste", power_of_two),
    ("non-stationary-range", loud_samples),
    ("relu6-lost", relu6),
    ("unbalanced-addition", unbalanced_addition),
    ("first-layer-sensitive", first_layer),
    ("non-finite-values", small_divisors),
    ("negative-activations", range_from_zero),
    ("relu-lost", relu_in_the_range),
]


@pytest.mark.source("insights-wide-range")
@pytest.mark.parametrize("name, build", others_nightly(FAULTS, *FAULTS[::2]))
def test_fault_is_named_first_and_its_healthy_twin_is_silent(
    name: str, build: Callable[..., Fault], tmp_path: Path
) -> None:
    faulty, healthy = (build(faulty=side).diagnose(tmp_path) for side in (True, False))
    assert found(faulty)[:1] == [name], [(c.cause, c.message) for c in faulty.causes]
    assert found(healthy) == [], [(c.cause, c.message) for c in healthy.causes]
    assert healthy.verdict == "healthy"


def test_few_bits_are_named(tmp_path: Path) -> None:
    """Codes of four bits fit no array: their values are read behind the DequantizeLinear."""
    data = {"x": random(5, SAMPLES, 16, 32)}
    four = quantmedic.diagnose(*save_pair(tmp_path, *few_bits(4)), representative=data, threads=1, step_error=True)
    assert found(four) == ["too-few-activation-bits"], [(c.cause, c.message) for c in four.causes]
    assert found(quantmedic.diagnose(*save_pair(tmp_path, *few_bits(8)), representative=data, threads=1)) == []


def softplus(tmp_path: Path, widened: float) -> Diagnosis:
    """Softplus on a range that is ``widened`` times as wide as its values, read by differences alone."""
    data, net = pairs(0.05, 0.3, 20), Net()
    h = dense(net, tokens(net), np.eye(32, dtype=np.float32), "h")
    high = np.float32(np.log1p(np.exp(data.max())) * widened)
    overrides = {"s": {"rmin": np.float32(0), "rmax": high}}
    return Fault(differences(net, net.add("Softplus", h, out="s")), data, overrides=overrides).diagnose(tmp_path)


@pytest.mark.source("mct-error-method-unusual")
def test_unusual_values_are_a_hint_to_another_error_metric(tmp_path: Path) -> None:
    hint = cause(softplus(tmp_path, 1.3), "unusual-activation-values")
    assert (hint.rules, hint.severity) == (("A018",), "low")
    assert [advice.id for advice in hint.remedies] == ["search-calibration-methods"]
    assert "A018" not in {rule for each in softplus(tmp_path, 1.0).causes for rule in each.rules}
