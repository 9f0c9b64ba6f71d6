"""Calibration data that were not what the network was made for: the survey's group 4, and dummy data of group 6."""

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.field_patients import (
    MEAN,
    STD,
    accuracy,
    assert_healthy,
    body,
    constants,
    demo,
    diagnose,
    edit,
    first,
    images,
    labels,
    normalized,
    pixels,
    quantize,
    ranges,
    scale_channels,
    split,
    with_head,
    with_ranges,
)
from builders.onnx_models import Array, Net, random, run
from onnxruntime.quantization import QuantFormat, QuantType

from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

U8U8 = {
    "quant_format": QuantFormat.QOperator,
    "activation_type": QuantType.QUInt8,
    "weight_type": QuantType.QUInt8,
    "per_channel": False,
}


def calibrated_on(
    x: Array, folder: Path, model: onnx.ModelProto | None = None, *, attribution: bool = False, **options: object
) -> tuple[float, Diagnosis]:
    """Points of accuracy lost, and the diagnosis, of the demo calibrated on some images."""
    model = model or demo()
    _, validation = split(model)
    quantized = quantize(model, {"image": x}, folder, **options)
    lost = accuracy(model, validation) - accuracy(quantized, validation)
    return lost, diagnose(model, quantized, {"image": x}, validation, folder, attribution=attribution)


@pytest.mark.nightly
def test_the_right_images_are_healthy(tmp_path: Path) -> None:
    """The twin of all that follow."""
    lost, diagnosis = calibrated_on(images("representative"), tmp_path, attribution=True)
    assert lost < 0.02
    assert_healthy(diagnosis)


@pytest.mark.nightly
def test_one_image_again_and_again(tmp_path: Path) -> None:
    """tensorflow#44289: the generator takes next(iter(images)) in a loop, 22 136 copies of one image."""

    lost, diagnosis = calibrated_on(images("representative")[[30] * 400], tmp_path)
    assert lost > 0.05
    assert first(diagnosis) == "duplicate-samples"
    assert diagnosis.datasets[0].unique_share == 1 / 400


@pytest.mark.nightly
def test_normalized_twice(tmp_path: Path) -> None:
    """onnx2tf#610: the script divides by 255 what its loader had divided before."""
    lost, diagnosis = calibrated_on((images("representative") / 255 - MEAN) / STD, tmp_path)
    assert lost > 0.05
    assert first(diagnosis) == "preprocessing-mismatch"
    assert diagnosis.datasets[0].relation.kind == "normalized-twice"


def _with_preprocessing() -> onnx.ModelProto:
    """The demo that takes pixels, 0 … 255, and normalizes them itself."""
    model = demo()
    net = Net(17)
    x = net.add("Mul", "image", net.const("scale", 1 / (255 * STD)), out="scaled")
    net.add("Add", x, net.const("shift", -MEAN / STD), out="normalized")
    extra = net.model()
    for node in model.graph.node:
        node.input[:] = ["normalized" if name == "image" else name for name in node.input]
    nodes = [*extra.graph.node, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(extra.graph.initializer)
    return model


@pytest.mark.nightly
def test_normalization_that_the_network_does_itself(tmp_path: Path) -> None:
    """onnx2tf#610 again: the network normalizes, the script did so too, and the int8 output never changes."""
    model, calibration = _with_preprocessing(), {"image": pixels("representative")[:256].astype(np.float32) / 255}
    validation = {"image": pixels("validation")[:256].astype(np.float32), "labels": labels("validation")}
    quantized = quantize(model, calibration, tmp_path)
    diagnosis = diagnose(model, quantized, calibration, validation, tmp_path)
    assert accuracy(model, validation) - accuracy(quantized, validation) > 0.5
    assert diagnosis.model.dead_output is True
    assert first(diagnosis) == "preprocessing-mismatch"


@pytest.mark.nightly
def test_loader_from_before_normalize_was_added(tmp_path: Path) -> None:
    """fasterai#80: the calibration loader was built before Normalize joined the transforms."""
    lost, diagnosis = calibrated_on(pixels("representative")[:256].astype(np.float32) / 255, tmp_path)
    assert lost > 0.5
    assert first(diagnosis) == "preprocessing-mismatch"
    assert diagnosis.datasets[0].relation.kind == "partly-normalized"


@pytest.mark.nightly
def test_mean_subtracted_but_never_divided(tmp_path: Path) -> None:
    """onnxruntime-inference-examples#319: 70 % fall to 0.1 % (U8U8, per tensor); its reader never divides."""
    x = pixels("representative")[:256].astype(np.float32) - np.float32(255 * MEAN)
    lost, diagnosis = calibrated_on(x, tmp_path, **U8U8)
    assert lost > 0.5
    assert first(diagnosis) == "preprocessing-mismatch"
    assert diagnosis.datasets[0].relation.slope == pytest.approx(255 * STD, rel=1e-3)


@pytest.mark.nightly
@pytest.mark.source("mct-domain")
def test_calibrated_in_the_dark(tmp_path: Path) -> None:
    """ppq#411: calibrated on one set, analysed on another: noise over signal exceeds 1 from the third layer on."""
    lost, diagnosis = calibrated_on(normalized(pixels("representative")[:256] // 10), tmp_path)
    assert lost > 0.1
    assert first(diagnosis) == "domain-shift"


def trained_less(seed: int, weight: Array) -> Array:
    return weight * (1 + 0.1 * random(seed, *weight.shape))


def test_stale_calibration_cache(tmp_path: Path) -> None:
    """TensorRT#3137: the cache belongs to an earlier network, whose tensors have the same names and other ranges."""
    earlier = demo()
    for i, name in enumerate(n for n in constants(earlier) if n.endswith("weight")):
        edit(earlier, name, partial(trained_less, i))
    scale_channels(earlier, "stem.conv", "reduce.depthwise.conv", range(16), 0.1)
    scale_channels(earlier, "branches.fine.depthwise.conv", "branches.fine.pointwise.conv", range(32), 0.1, axis=1)
    cache = ranges(quantize(earlier, {"image": images("representative")}, tmp_path))
    assert accuracy(earlier, split(earlier)[1]) > 0.8, "it was a network that worked"
    lost, diagnosis = calibrated_on(images("representative"), tmp_path, **with_ranges(cache))
    assert lost > 0.1
    assert first(diagnosis) == "stale-calibration"


@pytest.mark.nightly
def test_dummy_data(tmp_path: Path) -> None:
    """neural-compressor#956: no quantized model meets the goal; the calibration loader was the dummy one."""
    x = np.random.default_rng(0).uniform(-128, 127, (256, 1, 28, 28)).astype(np.float32)
    lost, diagnosis = calibrated_on(x, tmp_path)
    assert lost > 0.5
    assert first(diagnosis) == "random-data"


@pytest.mark.nightly
def test_zeros_as_dummy_data(tmp_path: Path) -> None:
    """The same with a tensor of zeros."""
    lost, diagnosis = calibrated_on(np.zeros((256, 1, 28, 28), np.float32), tmp_path)
    assert lost > 0.05
    assert first(diagnosis) == "blank-samples"


@pytest.mark.nightly
def test_many_equal_confidences(tmp_path: Path) -> None:
    """MNN#237: the classes mostly agree, yet accuracy is gone, and many confidences are identical.

    A softmax does not see a constant added to all scores, a quantizer does.
    """
    model = demo()
    edit(model, "classifier.bias", lambda bias: bias + 1500)
    lost, diagnosis = calibrated_on(images("representative"), tmp_path, model)
    assert lost > 0.05
    assert first(diagnosis) == "coarse-output"
    assert diagnosis.outputs[0].tie_share > 0.1


FEATURES = "/Flatten_output_0"
SHOES_AND_BAGS = (5, 7, 8, 9)


def mixture_of_experts() -> onnx.ModelProto:
    """The demo's features, a router that tells shoes and bags from clothes, and an expert for each of the two."""
    net = body(demo(), FEATURES)
    trained = constants(demo())
    group = np.eye(2)[[int(k in SHOES_AND_BAGS) for k in range(10)]]
    group -= group.mean(0)
    net.const("router.weight", (trained["classifier.weight"].T @ group).astype(np.float32))
    net.const("router.bias", (trained["classifier.bias"] @ group).astype(np.float32))
    net.add("Gemm", FEATURES, "router.weight", "router.bias", out="router")
    net.add("ArgMax", "router", out="chosen", axis=1, keepdims=0)
    net.add("OneHot", "chosen", net.const("experts", np.array(2)), net.const("off_on", [0, 1]), out="gates", axis=-1)
    for e in range(2):
        gate = net.add("Gather", "gates", net.const(f"index{e}", np.array([e])), out=f"gate{e}", axis=1)
        x = net.add("Mul", FEATURES, gate, out=f"tokens{e}")
        x = net.add("MatMul", x, net.const(f"up{e}.weight", random(20 + e, 96, 64, scale=0.15)), out=f"up{e}")
        x = net.add("Relu", x, out=f"hidden{e}")
        net.add("MatMul", x, net.const(f"down{e}.weight", random(30 + e, 64, 48, scale=0.05)), out=f"expert{e}")
    net.add("Add", "expert0", "expert1", out="features")
    data = {"image": images("representative", 500)}
    return with_head(net, "features", data, labels("representative", 500), 0.02)


@pytest.mark.nightly
def test_expert_that_saw_no_tokens(tmp_path: Path) -> None:
    """llm-compressor#20: calibration routes nothing to an expert, so its ranges are made up."""
    model = mixture_of_experts()
    x = images("representative")
    clothes = x[run(model, {"image": x}, ["router"])["router"].argmax(1) == 0]
    lost, diagnosis = calibrated_on(clothes, tmp_path, model, attribution=True)
    assert lost > 0.1
    assert first(diagnosis) == "low-diversity"
    assert diagnosis.causes[0].absorbs, "the poor ranges of the expert follow from the data"


@pytest.mark.nightly
def test_experts_that_saw_tokens_are_healthy(tmp_path: Path) -> None:
    assert_healthy(calibrated_on(images("representative"), tmp_path, mixture_of_experts())[1])
