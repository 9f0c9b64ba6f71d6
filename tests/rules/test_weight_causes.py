"""Networks with one fault in their weights, quantized by onnxruntime and diagnosed: is the fault named?

Every fault keeps the function of the float network. Activations have 16 bits unless the fault concerns them, so that
the weights alone are to blame.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, codes_of, random, run, save_pair, static
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.engine.case.facts import CaseFacts, LayerFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

Array = NDArray[Any]
DATA = np.abs(random(3, 32, 8, 8, 8))
WIDE = {"activation_type": QuantType.QUInt16}


@dataclass
class Weights:
    """Three convolutions with ReLU between them, 8 to 16 to 16 to 6 channels."""

    a: Array = field(default_factory=lambda: random(1, 16, 8, 3, 3, scale=0.15))
    b: Array = field(default_factory=lambda: random(2, 16, 16, 3, 3, scale=0.12))
    c: Array = field(default_factory=lambda: random(4, 6, 16, 1, 1, scale=0.3))
    bias: Array = field(default_factory=lambda: random(5, 16, scale=0.2))

    def scaled_between_a_and_b(self, gains: Array) -> "Weights":
        """The same function, with the channels between the first two layers ``gains`` times as large."""
        gains = gains.astype(np.float32)
        first = gains[:, None, None, None]
        return Weights(self.a * first, self.b / gains[None, :, None, None], self.c, self.bias * gains)


def network(weights: Weights, normalization: dict[str, Array] | None = None) -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 8, 8, 8])
    x = net.conv(x, weights.a, weights.bias, out="a", pads=[1, 1, 1, 1])
    if normalization is not None:
        names = [net.const(f"a.{name}", value) for name, value in normalization.items()]
        x = net.add("BatchNormalization", x, *names, out="a.normed", epsilon=1e-9)
    x = net.add("Relu", x, out="a.relu")
    x = net.conv(x, weights.b, random(6, 16, scale=0.1), out="b", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="b.relu")
    net.output(net.conv(x, weights.c, out="c"))
    return net.model()


@dataclass(frozen=True)
class Patient:
    """What a fault did, as measured and as diagnosed."""

    case: Case
    facts: CaseFacts
    diagnosis: Diagnosis

    def layer(self, name: str) -> LayerFacts:
        (found,) = (layer for layer in self.facts.layers if layer.name == name)
        return found

    @property
    def causes(self) -> list[str]:
        """Causes of high or medium severity, best first."""
        return [cause.cause for cause in self.diagnosis.causes if cause.severity in ("high", "medium")]

    def rules(self, cause: str) -> tuple[str, ...]:
        return next(found.rules for found in self.diagnosis.causes if found.cause == cause)


@pytest.fixture
def diagnose(tmp_path):
    """Quantize with onnxruntime, change the file, and diagnose it on the calibration data."""
    rules = quantmedic.load_rulebase()

    def diagnosed(
        model: onnx.ModelProto,
        change: Callable[[onnx.ModelProto], None] = lambda quantized: None,
        source: onnx.ModelProto | None = None,
        **options: Any,
    ) -> Patient:
        quantized = static(source or model, {"image": DATA}, tmp_path, **(WIDE | options))
        change(quantized)
        case = quantmedic.collect(*save_pair(Path(tmp_path), model, quantized), validation=DATA, threads=1)
        return Patient(case, derive(case, rules), quantmedic.judge(case, rules))

    return diagnosed


def initializer(model: onnx.ModelProto, name: str) -> Array:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    return numpy_helper.to_array(found)


def replace(model: onnx.ModelProto, name: str, value: Array) -> None:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    found.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def restore(model: onnx.ModelProto, layer: str, weight: Array, scale: Array) -> None:
    """Store a layer's weights anew on a symmetric int8 grid."""
    replace(model, f"{layer}.weight_scale", np.asarray(scale, np.float32))
    replace(model, f"{layer}.weight_quantized", codes_of(weight, scale, np.int8(0)))


def scales_along_the_inputs(model: onnx.ModelProto, layer: str) -> None:
    """Move the declared axis of a layer's weight scales to the input channels."""
    (node,) = (n for n in model.graph.node if f"{layer}.weight_quantized" in n.input)
    (axis,) = (a for a in node.attribute if a.name == "axis")
    axis.i = 1


def cut_activations(quantized: onnx.ModelProto) -> None:
    for name in ("a.relu_scale", "b.relu_scale"):
        replace(quantized, name, initializer(quantized, name) / np.float32(20))


# --- healthy networks ------------------------------------------------------------------------------------------------


def test_healthy_networks_are_clean(diagnose, subtests):
    for options in ({}, {"per_channel": True}, {"weight_type": QuantType.QUInt8, "activation_type": QuantType.QUInt8}):
        with subtests.test(options=options):
            patient = diagnose(network(Weights()), **options)
            assert patient.facts.model.harmed is False
            assert patient.causes == []
            for layer in patient.facts.layers:
                if layer.weight.name is not None:
                    assert (layer.weight.misplaced_share, layer.weight.found_as) == (0.0, "same")
                    assert layer.weight.similarity > 0.999


@pytest.mark.nightly
@pytest.mark.source("insights-channel-layouts")
def test_moderate_imbalance_is_clean(diagnose):
    """Channels that differ eightfold cost something, but nothing that the output feels.

    Nor are weights blamed for the noise of two activations that are cut off.
    """
    model = network(Weights().scaled_between_a_and_b(np.geomspace(1, 1 / 8, 16)))
    patient = diagnose(model, activation_type=QuantType.QUInt8)
    assert patient.facts.model.harmed is False
    assert patient.causes == []
    patient = diagnose(model, cut_activations, activation_type=QuantType.QUInt8)
    assert patient.facts.model.harmed
    # The biases lie on the steps from before, which is a remark of its own.
    rules = {rule for cause in patient.diagnosis.causes for rule in cause.rules} - {"W020"}
    assert not [rule for rule in rules if rule.startswith("W")]


# --- ranges ----------------------------------------------------------------------------------------------------------


def uneven_outputs() -> onnx.ModelProto:
    """Output channels of the first layer differ 200 times, and a product behind it makes up for that."""
    weights, gains = Weights(), np.geomspace(1, 1 / 200, 16).astype(np.float32)
    net = Net()
    x = net.input("image", ["n", 8, 8, 8])
    x = net.conv(x, weights.a * gains[:, None, None, None], weights.bias * gains, out="a", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="a.relu")
    x = net.add("Mul", x, net.const("undo", 1 / gains[None, :, None, None]), out="a.even")
    x = net.conv(x, weights.b, random(6, 16, scale=0.1), out="b", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="b.relu")
    net.output(net.conv(x, weights.c, out="c"))
    return net.model()


@pytest.mark.source("insights-per-channel")
def test_per_channel_weights_come_first(diagnose):
    """First of the remedies and of the prescription, in the words of the toolchain."""
    case = diagnose(uneven_outputs()).case
    for toolchain, option in {"onnxruntime": "per_channel=True", "inc": '"granularity": ["per_channel"]'}.items():
        diagnosis = quantmedic.judge(case, toolchain=toolchain)
        (cause,) = (found for found in diagnosis.causes if found.cause == "channel-range-imbalance")
        assert cause.remedies[0].id == "per-channel-weights"
        (configuration,) = diagnosis.prescription.configurations
        assert option in configuration.code
        assert diagnosis.prescription.steps[0].remedy == "per-channel-weights"


@pytest.mark.source("insights-per-channel")
def test_per_channel_weights_in_force_are_not_advised(diagnose):
    """The same network with a scale per channel, harmed by something else."""
    case = diagnose(uneven_outputs(), cut_activations, per_channel=True, activation_type=QuantType.QUInt8).case
    for toolchain in ("onnxruntime", "inc"):
        diagnosis = quantmedic.judge(case, toolchain=toolchain)
        assert diagnosis.verdict == "degraded"
        advised = [advice.id for cause in diagnosis.causes for advice in cause.remedies]
        assert advised and "per-channel-weights" not in advised
        assert "per-channel-weights" not in [step.remedy for step in diagnosis.prescription.steps]


@pytest.mark.source("insights-channel-layouts")
def test_imbalanced_channels(diagnose):
    """With one scale; of input channels, where granularity is no matter; and half of them very quiet, 60 dB."""
    patient = diagnose(network(Weights().scaled_between_a_and_b(np.geomspace(1, 1 / 200, 16))))
    assert patient.causes == ["channel-range-imbalance"]
    assert patient.rules("channel-range-imbalance") == ("W001", "W013")
    one = np.where(np.arange(16) == 3, 1 / 300, 1.0)
    patient = diagnose(network(Weights().scaled_between_a_and_b(one)), per_channel=True)
    assert patient.causes == ["channel-range-imbalance"]
    assert patient.rules("channel-range-imbalance") == ("W013",)
    layer = patient.layer("b")
    assert layer.weight.rounding.sqnr_db > 35 > 0 > layer.weight_error.sqnr_db
    half = np.where(np.arange(16) % 2, 1 / 1000, 1.0)
    patient = diagnose(network(Weights().scaled_between_a_and_b(half)))
    weight = patient.layer("a").weight
    assert weight.rounding.sqnr_db > 30
    assert weight.coarse_share == 0.5
    assert patient.causes[0] == "channel-range-imbalance"
    assert "W001" in patient.rules("channel-range-imbalance")


@pytest.mark.source("insights-huge-weights")
def test_one_huge_weight(diagnose):
    weights = Weights()
    weights.b[2, 5, 1, 1] = 18
    patient = diagnose(network(weights))
    assert patient.causes == ["heavy-tailed-weights"]
    assert patient.layer("b").weight.outlier_ratio > 100
    assert patient.layer("b").weight.kurtosis > 100


@pytest.mark.source("insights-wide-range")
def test_range_far_beyond_the_weights(diagnose):
    weights = Weights()

    def widen(quantized: onnx.ModelProto) -> None:
        restore(quantized, "b", weights.b, np.float32(np.abs(weights.b).max() / 127 * 20))

    patient = diagnose(network(weights), widen)
    assert patient.causes == ["poor-threshold"]
    cause = patient.diagnosis.causes[0]
    assert cause.rules == ("W010",)
    healthy = diagnose(network(weights)).facts.model.output_sqnr_db
    assert cause.predicted_gain_db == pytest.approx(healthy - patient.facts.model.output_sqnr_db, abs=2)


def test_scales_of_many_channels_raised(diagnose):
    """Half of the scales suit the widest bias, not their weights; the loud channels are fine."""
    gains = np.where(np.arange(16) % 2, 1 / 80, 1.0)
    weights = Weights().scaled_between_a_and_b(gains)

    def raise_scales(quantized: onnx.ModelProto) -> None:
        top = np.abs(weights.a).max(axis=(1, 2, 3)).max()
        restore(quantized, "a", weights.a, np.full(16, top / 127, np.float32))

    patient = diagnose(network(weights), raise_scales, per_channel=True)
    assert "W010" in patient.rules("poor-threshold")
    assert "a" in next(c.subjects for c in patient.diagnosis.causes if c.cause == "poor-threshold")


# --- bits ------------------------------------------------------------------------------------------------------------


def test_few_bits(diagnose):
    """Two of them are the codes -1, 0 and 1, as int4 stores them."""
    weights = Weights()

    def cut(quantized: onnx.ModelProto) -> None:
        for layer, values in (("a", weights.a), ("b", weights.b), ("c", weights.c)):
            scale = np.float32(0.7 * np.abs(values).max())
            codes = np.clip(np.rint(values / scale), -1, 1)
            replace(quantized, f"{layer}.weight_scale", scale)
            (found,) = (t for t in quantized.graph.initializer if t.name == f"{layer}.weight_quantized")
            found.CopyFrom(onnx.helper.make_tensor(found.name, found.data_type, found.dims, codes.astype(int).ravel()))

    for per_channel in (False, True):
        four = diagnose(network(weights), weight_type=QuantType.QInt4, per_channel=per_channel)
        assert four.causes == ["too-few-weight-bits"]
    assert diagnose(network(weights), cut, weight_type=QuantType.QInt4).causes[0] == "too-few-weight-bits"


# --- weights that are not the float ones -----------------------------------------------------------------------------


def imbalanced_outputs(narrowest: float) -> Weights:
    """Output channels of the second layer differ, and the third makes up for it."""
    gains = np.geomspace(1, narrowest, 16).astype(np.float32)
    weights = Weights()
    return Weights(weights.a, weights.b * gains[:, None, None, None], weights.c / gains[None, :, None, None])


def test_scales_read_along_the_wrong_axis(diagnose):
    model = network(imbalanced_outputs(1 / 8))
    patient = diagnose(model, lambda quantized: scales_along_the_inputs(quantized, "b"), per_channel=True)
    assert patient.causes == ["wrong-channel-axis"]
    weight = patient.layer("b").weight
    assert (weight.quantizer.axis, weight.output_axis) == (1, 0)
    assert weight.axis_gain_db > 30


def test_scales_made_along_the_input_channels(diagnose):
    weights = imbalanced_outputs(1 / 60)

    def requantize(quantized: onnx.ModelProto) -> None:
        scales_along_the_inputs(quantized, "b")
        scale = np.abs(weights.b).max(axis=(0, 2, 3)).astype(np.float32) / np.float32(127)
        replace(quantized, "b.weight_scale", scale)
        replace(quantized, "b.weight_quantized", codes_of(weights.b, scale, np.int8(0), axis=1))

    patient = diagnose(network(weights), requantize, per_channel=True)
    assert patient.causes == ["wrong-channel-axis"]


def overwritten(codes: Array) -> Array:
    changed = codes.copy()
    changed[5] = np.random.default_rng(0).integers(-127, 127, codes[5].shape)
    return changed


CHANGED: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "transposed": ("transposed", lambda codes: np.swapaxes(codes, 0, 1)),
    "reordered": ("reordered", lambda codes: codes[::-1]),
    "overwritten": ("same", overwritten),
}


@pytest.mark.nightly
def test_weights_that_are_not_those_of_the_float_model(diagnose, subtests):
    """Changed on the way, or those of another training."""
    for name, (found_as, change) in CHANGED.items():
        with subtests.test(name):
            patient = diagnose(
                network(Weights()),
                lambda own: replace(own, "b.weight_quantized", change(initializer(own, "b.weight_quantized"))),  # noqa: B023
            )
            assert patient.causes == ["foreign-weights"]
            assert patient.layer("b").weight.found_as == found_as
    patient = diagnose(network(Weights()), source=network(Weights(b=random(77, 16, 16, 3, 3, scale=0.12))))
    assert patient.causes == ["foreign-weights"]
    assert patient.layer("b").weight.found_as == "other"


def test_equalized_weights_are_no_strangers(diagnose):
    """The quantized model was equalized first: gains per channel moved, the function did not."""
    float_model = network(Weights().scaled_between_a_and_b(np.geomspace(1, 1 / 50, 16)))
    patient = diagnose(float_model, source=network(Weights()))
    assert patient.facts.model.harmed is False
    for name in ("a", "b"):
        assert patient.layer(name).weight.found_as == "same"


# --- constants -------------------------------------------------------------------------------------------------------


def test_truncated_weights_shift_the_output(diagnose):
    weights = Weights()

    def truncate(quantized: onnx.ModelProto) -> None:
        for layer, values in (("a", weights.a), ("b", weights.b), ("c", weights.c)):
            codes = np.floor(values / initializer(quantized, f"{layer}.weight_scale"))
            replace(quantized, f"{layer}.weight_quantized", codes.astype(np.int8))

    patient = diagnose(network(weights), truncate)
    assert patient.causes == ["weight-induced-bias-shift"]
    assert patient.rules("weight-induced-bias-shift") == ("W007",)
    assert patient.layer("a").weight.rounding_mean_steps == pytest.approx(-0.5, abs=0.05)


def changed_bias(layer: str, by: Callable[[Array], Array]) -> Callable[[onnx.ModelProto], None]:
    def change(quantized: onnx.ModelProto) -> None:
        codes, scale = (initializer(quantized, f"{layer}.bias_quantized{end}") for end in ("", "_scale"))
        moved = codes.astype(np.float64) + by(codes) / scale.astype(np.float64)
        replace(quantized, f"{layer}.bias_quantized", np.rint(moved).astype(np.int32))

    return change


def test_bias_corrected_with_the_wrong_mean(diagnose):
    patient = diagnose(network(Weights()), changed_bias("b", lambda codes: np.full(codes.shape, 0.15)))
    assert patient.causes == ["weight-induced-bias-shift"]
    assert patient.rules("weight-induced-bias-shift") == ("W012",)
    assert patient.diagnosis.causes[0].predicted_gain_db > 15


@pytest.mark.nightly
def test_a_good_bias_correction_is_not_blamed(diagnose):
    """The truncated weights of the second layer shift it; the bias takes that back."""
    weights = Weights()
    model = network(weights)

    def truncate(quantized: onnx.ModelProto) -> None:
        codes = np.floor(weights.b / initializer(quantized, "b.weight_scale"))
        replace(quantized, "b.weight_quantized", codes.astype(np.int8))

    def truncate_and_correct(quantized: onnx.ModelProto) -> None:
        truncate(quantized)
        error = codes_to_weights(quantized, "b") - weights.b
        mean = every(model, "a.relu").mean(axis=(0, 2, 3))
        shift = (error.sum(axis=(2, 3)) * mean).sum(axis=1)
        changed_bias("b", lambda codes: -shift)(quantized)

    before, after = diagnose(model, truncate), diagnose(model, truncate_and_correct)
    assert after.layer("b").bias.max_error_steps > 1.5
    assert before.layer("b").weight_error.shift_share > 0.25 > after.layer("b").weight_error.shift_share
    assert after.facts.model.output_sqnr_db > before.facts.model.output_sqnr_db + 3
    assert after.causes == []


def codes_to_weights(quantized: onnx.ModelProto, layer: str) -> Array:
    scale = initializer(quantized, f"{layer}.weight_scale").astype(np.float64)
    return initializer(quantized, f"{layer}.weight_quantized") * scale


def every(model: onnx.ModelProto, name: str) -> Array:
    return run(model, {"image": DATA}, [name])[name].astype(np.float64)


# --- batch norms and dead channels -----------------------------------------------------------------------------------


def normalization(variance: Array) -> dict[str, Array]:
    ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
    return {"gamma": ones, "beta": zeros, "mean": zeros, "variance": variance.astype(np.float32)}


def folded(weights: Weights, norm: dict[str, Array]) -> onnx.ModelProto:
    gain = (norm["gamma"] / np.sqrt(norm["variance"] + 1e-9)).astype(np.float32)
    scaled = Weights(weights.a * gain[:, None, None, None], weights.b, weights.c, weights.bias * gain)
    return network(scaled)


def vanishing(channel: int = 4, variance: float = 1e-4) -> Array:
    values = np.ones(16)
    values[channel] = variance
    return values


def test_vanishing_variance_is_folded_into_the_weights(diagnose):
    weights, norm = Weights(), normalization(vanishing())
    weights.b[:, 4] /= 100
    patient = diagnose(network(weights, norm), source=folded(weights, norm))
    assert patient.causes == ["batch-norm-blow-up"]
    assert patient.diagnosis.causes[0].subjects == ("a",)
    assert patient.layer("a").weight.batch_norm_gain == pytest.approx(100, rel=1e-3)
    assert patient.layer("a").weight.batch_norm_variance_ratio == pytest.approx(1e4, rel=1e-2)


def test_batch_norm_that_was_left_in_the_graph(diagnose):
    """The quiet channel is on the grid of the loud ones before it is normalized."""
    variance = 1e-2
    weights, norm = Weights(), normalization(vanishing(variance=variance))
    for array in (weights.a, weights.bias):
        array[4] *= np.sqrt(variance)
    weights.b[:, 4] *= 3
    patient = diagnose(network(weights, norm), activation_type=QuantType.QUInt8, per_channel=True)
    assert patient.facts.model.harmed
    assert patient.causes[0] == "batch-norm-not-folded"
    assert patient.diagnosis.causes[0].subjects == ("a.normed",)


@pytest.mark.nightly
def test_batch_norms_of_usual_variances_are_clean(diagnose):
    """Folded, and left in the graph."""
    norm = normalization(np.random.default_rng(0).uniform(0.3, 3, 16))
    patient = diagnose(network(Weights(), norm), source=folded(Weights(), norm))
    assert patient.causes == []
    assert patient.layer("a").weight.batch_norm_gain_ratio < 4
    patient = diagnose(network(Weights(), norm), activation_type=QuantType.QUInt8, per_channel=True)
    assert "a.normed" in [layer.name for layer in patient.facts.layers]
    assert patient.causes == []


def floored(quantized: onnx.ModelProto) -> None:
    """The dead channel's scale falls to a floor, and its bias is cut off at the end of int32."""
    scale, bias_scale, codes = (
        initializer(quantized, name).copy() for name in ("a.weight_scale", "a.bias_quantized_scale", "a.bias_quantized")
    )
    value = codes[6] * float(bias_scale[6])
    bias_scale[6] *= 1.19e-10 / scale[6]
    scale[6] = 1.19e-10
    codes[6] = min(value / float(bias_scale[6]), 2**31 - 1)
    for name, array in (("a.weight_scale", scale), ("a.bias_quantized_scale", bias_scale), ("a.bias_quantized", codes)):
        replace(quantized, name, array)


@pytest.mark.source("insights-dead-channels")
def test_dead_channel(diagnose):
    weights = Weights()
    weights.a[6], weights.bias[6] = 0, 3
    patient = diagnose(network(weights), per_channel=True)
    assert patient.layer("a").weight.dead_channels == 1
    assert patient.causes == []
    patient = diagnose(network(weights), floored, per_channel=True)
    assert patient.layer("a").weight.dead_channels == 1
    assert patient.causes == ["dead-channels"]
    assert "W002" in [explained.rule for explained in patient.diagnosis.causes[0].absorbs]
    assert patient.layer("a").bias.overflowing_dead_channels == 1
