"""Threads of 2024 to 2026 in which somebody lost accuracy, rebuilt: the cause that was found there is named first."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.detectors import detector_pair
from builders.field_patients import (
    accuracy,
    assert_healthy,
    constants,
    demo,
    device_tensors,
    diagnose,
    edit,
    first,
    images,
    labels,
    mobilenet,
    named_layers,
    pixels,
    quantize,
    serious,
    set_constant,
    split,
    with_head,
)
from builders.onnx_models import Array, Feed, Net, dynamic, random, run
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.collectors.measure.host import has_vnni
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent

#: Every thread that is no language model, and where it is rebuilt: a test of this folder, or one elsewhere behind its
#: file. ``none`` says why it is not.
THREADS = {
    "ability-draft-plus#80": "test_depthwise_weights_quantized_dynamically",
    "fasterai#55": "test_extremes_set_the_step_of_a_symmetric_grid",
    "DeepStream-Yolo#690": "test_calibrator_that_reads_an_offset_too_far",
    "moonshine#73": "test_audio_of_sixteen_bits_in_eight",
    "onnxruntime#16105": "test_sums_of_two_products_saturate",
    "aimet#3978": "test_a_mean_squared_error_that_grew_with_the_output",
    "ultralytics#25020": "none: what TensorRT rounds in front of a sigmoid cannot be built with onnxruntime",
    "ultralytics#25306": "test_decoder_of_a_detector_in_eight_bits",
    "yolo26n_esp#1": "test_eight_bits_between_convolutions_of_sixteen",
    "aimet#4050": "tests/rules/test_bias_bits.py test_eight_bits_for_a_bias_larger_than_the_output",
    "executorch#21773": "test_zero_points_of_another_width",
    "pytorch/ao#2138": "test_observers_that_go_on_where_nothing_is_rounded",
    "onnxruntime#24711": "test_a_bias_whose_scale_the_fused_kernel_ignores",
    "onnxruntime#26324": "test_rows_of_a_kernel_for_newer_processors",
    "onnxruntime#28130": "test_a_factor_that_the_fused_kernel_of_an_old_release_loses",
    "rknn_model_zoo#450": "tests/rules/test_fusion_causes.py test_a_second_reader_blocks_the_fusion",
    "coremltools#2777": "test_weights_that_were_divided_and_not_compressed",
    "onnxsim#1119": "test_an_override_that_matches_nothing",
}


def test_every_thread_has_its_place() -> None:
    assert len(THREADS) == 18
    for thread, place in THREADS.items():
        if place.startswith("none: "):
            continue
        file, _, name = place.rpartition(" ")
        files = [HERE.parents[1] / file] if file else HERE.glob("test_*.py")
        assert any(f"def {name}(" in path.read_text(encoding="utf-8") for path in files), thread


def judged(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    representative: Feed,
    validation: Feed,
    folder: Path,
    *,
    attribution: bool = False,
) -> tuple[float, Diagnosis]:
    """Points of accuracy lost, and the diagnosis."""
    lost = accuracy(model, validation) - accuracy(quantized, validation)
    return lost, diagnose(model, quantized, representative, validation, folder, attribution=attribution)


# --- quantized at run time -------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_depthwise_weights_quantized_dynamically(tmp_path: Path) -> None:
    """ability-draft-plus#80: 99.47 % fall to 0.09 %, and one scale for each depthwise weight is the reason."""
    model = mobilenet(60, chains=2)
    lost, diagnosis = judged(model, dynamic(model, tmp_path), *split(model, 128), tmp_path, attribution=True)
    assert lost > 0.5
    assert [cause.cause for cause in diagnosis.causes] == ["channel-range-imbalance"]
    layers = named_layers(diagnosis, "channel-range-imbalance")
    assert sorted(layers) == ["/head/depthwise/conv/Conv", "/reduce/depthwise/conv/Conv"]


@pytest.mark.nightly
def test_a_trained_network_quantized_dynamically_is_healthy(tmp_path: Path) -> None:
    """The same network as it was trained."""
    model = demo()
    lost, diagnosis = judged(model, dynamic(model, tmp_path), *split(model), tmp_path)
    assert lost < 0.02 and first(diagnosis) is None
    assert_healthy(diagnosis)


def recordings(n: int, seed: int, length: int = 2048) -> Feed:
    """Sounds of 16 bits: a click at full scale, and a quiet tone behind it whose pitch is the class."""
    rng = np.random.default_rng(seed)
    pitch, loudness = rng.integers(0, 8, n), 10 ** rng.uniform(-3.2, -2.2, n)
    phase = rng.uniform(0, 6, (n, 1))
    wave = np.sin(2 * np.pi * 0.02 * 1.35 ** pitch[:, None] * np.arange(length) + phase)
    sound = loudness[:, None] * wave + 2e-4 * rng.standard_normal((n, length))
    for own, start in zip(sound, rng.integers(0, 64, n), strict=True):
        own[start : start + 48] += rng.choice([-0.9, 0.9]) * np.hanning(48)
    return {"audio": (np.round(sound * 32767) / 32767).astype(np.float32)[:, None], "labels": pitch.astype(np.int64)}


def listener() -> onnx.ModelProto:
    """A convolution of band filters on the samples, tanh against clicks, a second one, and a fitted layer."""
    net = Net()
    x = net.input("audio", ["n", 1, 2048])
    filters, taps = np.arange(32)[:, None], np.arange(127)
    angle = 0.02 * 1.35 ** (filters / 4) * taps + (filters % 2) * np.pi / 2
    weight = 2 * np.cos(angle) * np.hanning(127)
    x = net.conv(x, weight[:, None].astype(np.float32), out="first", strides=[64])
    x = net.add("Abs", net.add("Tanh", x, out="tanh"), out="strength")
    x = net.conv(x, random(3, 48, 32, 1, scale=0.3), random(4, 48, scale=0.1), out="second")
    x = net.add("GlobalAveragePool", net.add("Relu", x, out="relu"), out="pool")
    net.add("Flatten", x, out="features")
    heard = recordings(600, 1)
    return with_head(net, "features", {"audio": heard["audio"]}, heard["labels"], 0.003)


@pytest.mark.nightly
def test_audio_of_sixteen_bits_in_eight(tmp_path: Path) -> None:
    """moonshine#73: the first convolution reads 16-bit audio, dynamic quantization gives it 8 bits."""
    model = listener()
    representative, validation = {"audio": recordings(128, 3)["audio"]}, recordings(256, 2)
    lost, diagnosis = judged(model, dynamic(model, tmp_path), representative, validation, tmp_path, attribution=True)
    assert lost > 0.1
    assert serious(diagnosis) == ["coarse-run-time-grid"]
    assert named_layers(diagnosis, "coarse-run-time-grid") == ["first"]
    mended = dynamic(model, tmp_path, nodes_to_exclude=["first"])
    assert abs(accuracy(model, validation) - accuracy(mended, validation)) < 0.02


# --- what was calibrated on, and what a figure means -----------------------------------------------------------------

#: What is taken from the channels of a picture, in levels of 255.
OFFSETS = (123.675, 116.28, 103.53)


def coloured(role: str, offsets: tuple[float, float, float] = OFFSETS, n: int = 256) -> Array:
    """The demo's pictures in three channels that differ, as DeepStream-Yolo's calibrator prepares them."""
    x = pixels(role)[:n].astype(np.float32) / 255
    channels = np.concatenate([0.9 - 0.8 * x, x, np.roll(x, 2, axis=3) * 0.6 + 0.3], axis=1)
    return (channels - np.array(offsets, np.float32)[None, :, None, None] / 255).astype(np.float32)


def test_calibrator_that_reads_an_offset_too_far(tmp_path: Path) -> None:
    """DeepStream-Yolo#690: offsets[3] for offsets[2], so the third channel is shifted by whatever lies there."""
    net = Net()
    x = net.input("image", ["n", 3, 28, 28])
    x = net.conv(x, random(1, 32, 3, 5, 5, scale=0.2), random(2, 32, scale=0.1), out="first", strides=[2, 2])
    weight, bias = random(3, 48, 32, 3, 3, scale=0.06), random(4, 48, scale=0.1)
    x = net.conv(net.add("Relu", x, out="relu"), weight, bias, out="second", strides=[2, 2])
    net.add("Flatten", net.add("Relu", x, out="relu_2"), out="features")
    seen = {"image": coloured("representative", n=500)}
    model = with_head(net, "features", seen, labels("representative", 500), 0.1)
    shifted = {"image": coloured("representative", (*OFFSETS[:2], 20000.0))}
    validation = {"image": coloured("validation"), "labels": labels("validation")}
    quantized = quantize(model, shifted, tmp_path, per_channel=True)
    lost, diagnosis = judged(model, quantized, shifted, validation, tmp_path)
    assert lost > 0.03
    assert diagnosis.causes[0].cause == "preprocessing-mismatch" and diagnosis.causes[0].severity == "high"


@pytest.mark.nightly
def test_a_mean_squared_error_that_grew_with_the_output(tmp_path: Path) -> None:
    """aimet#3978: the error of the last layer is alarming, and nothing is lost: its outputs are that large."""
    model = demo()
    for name in ("classifier.weight", "classifier.bias"):
        edit(model, name, lambda x: x * 300)
    quantized = quantize(model, split(model)[0], tmp_path, per_channel=True)
    feed = {"image": images("validation")}
    assert ((run(model, feed)["logits"] - run(quantized, feed)["logits"]) ** 2).mean() > 1000
    lost, diagnosis = judged(model, quantized, *split(model), tmp_path)
    assert lost < 0.01
    assert_healthy(diagnosis)


# --- bits -------------------------------------------------------------------------------------------------------------


def swish(net: Net, x: str, *, out: str) -> str:
    return net.add("Mul", x, net.add("Sigmoid", x, out=f"{out}_sigmoid"), out=out)


def uneven() -> onnx.ModelProto:
    """Convolutions with swish between; channels of the first differ in size, and the second undoes that."""
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    x = net.conv(x, random(1, 32, 1, 7, 7, scale=1 / 7), random(2, 32, scale=0.1), out="patches", strides=[7, 7])
    gain = np.exp(np.random.default_rng(9).normal(0, 1.5, 64)).astype(np.float32)
    weight = random(31, 64, 32, scale=32**-0.5) * gain[:, None]
    net.conv(x, weight[:, :, None, None], random(32, 64, scale=0.1) * gain, out="hidden")
    weight = random(41, 32, 64, scale=1 / 8) / gain[None]
    x = net.conv(swish(net, "hidden", out="act1"), weight[:, :, None, None], random(42, 32, scale=0.1), out="mixed")
    net.add("Flatten", swish(net, x, out="act2"), out="features")
    seen = {"image": images("representative", 500)}
    return with_head(net, "features", seen, labels("representative", 500), 0.02)


def test_eight_bits_between_convolutions_of_sixteen(tmp_path: Path) -> None:
    """yolo26n_esp#1: convolutions got 16 bits, and no accuracy came back: swish between them kept its 8.

    That channels of this tensor differ in size is what 16 bits would hold, and stands before it.
    """
    model = uneven()
    representative, validation = split(model)

    def sixteen(*narrow: str) -> onnx.ModelProto:
        overrides = {name: [{"quant_type": QuantType.QInt8}] for name in narrow}
        options = {"TensorQuantOverrides": overrides, "UseQDQContribOps": True}
        wide = {"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt16, "per_channel": True}
        return quantize(model, representative, tmp_path, extra_options=options, **wide)

    lost, diagnosis = judged(model, sixteen("act1", "act2"), representative, validation, tmp_path, attribution=True)
    assert lost > 0.1 > 0.02 > accuracy(model, validation) - accuracy(sixteen(), validation)
    told = {cause.cause: cause for cause in diagnosis.causes}
    assert first(diagnosis) == "channel-outliers"
    assert told["narrow-between-wide"].subjects == told["channel-outliers"].subjects == ("act1",)


@pytest.mark.skipif(has_vnni() is not False, reason="sums of two products do not saturate here")
def test_sums_of_two_products_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#16105: uint8 inputs near 255 times int8 weights near 127, two at a time in 16 bits."""
    monkeypatch.delenv("QUANTMEDIC_EXACT_KERNELS")
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    places = np.random.default_rng(3).random((32, 1, 7, 7)) < 0.5
    weight = np.where(places, 0.1, 0.02) + 0.004 * random(1, 32, 1, 7, 7)
    x = net.conv(x, weight.astype(np.float32), np.full(32, -1.0, np.float32), out="patches", strides=[7, 7])
    net.add("Flatten", net.add("Relu", x, out="relu"), out="features")
    bright = {role: 1 - pixels(role).astype(np.float32) / 255 for role in ("representative", "validation")}
    seen = {"image": bright["representative"][:500]}
    model = with_head(net, "features", seen, labels("representative", 500), 0.001)
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantized = quantize(model, seen, tmp_path, **types)
    validation = {"image": bright["validation"][:256], "labels": labels("validation")}
    lost, diagnosis = judged(model, quantized, seen, validation, tmp_path)
    assert lost > 0.1
    assert serious(diagnosis) == ["u8s8-saturation"]


# --- the head of a detector ------------------------------------------------------------------------------------------


def test_decoder_of_a_detector_in_eight_bits(tmp_path: Path) -> None:
    """ultralytics#25306: what decodes the boxes, the DFL among it, is quantized; exporters leave all of it in float.

    The DFL alone is held well by 8 bits here. Corners on a grid over the whole picture are not.
    """
    float_model, quantized, data = detector_pair(tmp_path, "fine", healthy=True)
    diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
    assert serious(diagnosis) == ["quantized-decoder"]
    assert {"shares", "expected", "size", "scores"} <= set(diagnosis.causes[0].subjects)


# --- what a tool or a device made of it ------------------------------------------------------------------------------


@pytest.mark.nightly
def test_weights_that_were_divided_and_not_compressed(tmp_path: Path) -> None:
    """coremltools#2777: weights are divided by a scale for each channel, and compression is declined afterwards.

    Groups of 16 do not divide 40 channels; the log says "skipped", and the divided weights stay.
    """
    model, declined = demo(), ("branches.fine.pointwise.conv", "branches.coarse.pointwise.conv")
    nodes = [f"/{name.replace('.', '/')}/Conv" for name in declined]
    quantized = quantize(model, split(model)[0], tmp_path, per_channel=True, nodes_to_exclude=nodes)
    for name in declined:
        assert len(constants(model)[f"{name}.weight"]) % 16
        edit(quantized, f"{name}.weight", lambda w: w / np.abs(w).max(axis=(1, 2, 3), keepdims=True))
    lost, diagnosis = judged(model, quantized, *split(model), tmp_path, attribution=True)
    assert lost > 0.05
    assert first(diagnosis) == "foreign-weights"
    assert diagnosis.causes[0].rules == ("W023",)
    assert sorted(named_layers(diagnosis, "foreign-weights")) == sorted(nodes)


@pytest.mark.nightly
def test_an_override_that_matches_nothing(tmp_path: Path) -> None:
    """onnxsim#1119: what is asked of one layer is passed over in silence; the harm that it was to mend stays first."""
    model, asked = mobilenet(60), {"nodes_to_exclude": ["reduce.depthwise.conv"]}
    quantized = quantize(model, split(model)[0], tmp_path, **asked)
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"calibrate_method": "MinMax", "quant_format": "QDQ", **asked}), encoding="utf-8")
    diagnosis = diagnose(model, quantized, *split(model), tmp_path, settings_files=[file])
    told = [cause.cause for cause in diagnosis.causes]
    assert told[0] == "channel-range-imbalance" and "override-without-effect" in told


def on_device(change: str, folder: Path) -> Diagnosis:
    """The demo, quantized with zero points for its weights, beside tensors of a device that computes something else."""
    model = demo()
    representative, validation = split(model, 64)
    types = {"weight_type": QuantType.QUInt8, "activation_type": QuantType.QUInt8, "per_channel": True}
    quantized = quantize(model, representative, folder, extra_options={"WeightSymmetric": False}, **types)
    device = onnx.ModelProto()
    device.CopyFrom(quantized)
    if change == "zero points":
        # Two int32 are read as one int64 of which the low half is kept, and behind the last lies what is not known.
        name = "head.pointwise.conv.weight_zero_point"
        points = constants(quantized)[name]
        set_constant(device, name, np.concatenate([points[::2], np.zeros_like(points[1::2])]).astype(points.dtype))
    else:
        edit(device, "stem.conv.weight_quantized", lambda w: np.concatenate([w[:8], np.roll(w[8:], 1, axis=0)]))
    tensors = device_tensors(device, {"image": validation["image"]})
    return diagnose(model, quantized, representative, validation, folder, device_tensors=tensors)


def test_zero_points_of_another_width(tmp_path: Path) -> None:
    """executorch#21773: the kernel reads int32 zero points as int64."""
    diagnosis = on_device("zero points", tmp_path)
    assert first(diagnosis) == "device-departs"
    assert diagnosis.causes[0].subjects == ("/head/pointwise/conv/Conv",)


def test_rows_of_a_kernel_for_newer_processors(tmp_path: Path) -> None:
    """onnxruntime#26324: the first QLinearConv is wrong where AMX computes it; tensors of that machine tell which."""
    diagnosis = on_device("rows", tmp_path)
    assert first(diagnosis) == "device-departs"
    assert diagnosis.causes[0].subjects == ("/stem/conv/Conv",)
