"""The same integers, other results: the survey's group 5, and float models that are not what was trained."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.field_patients import (
    accuracy,
    assert_healthy,
    demo,
    diagnose,
    edit,
    first,
    images,
    labels,
    quantize,
    rules,
    serious,
    split,
    with_head,
    with_ranges,
)
from builders.onnx_models import Array, Net, random, run
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import evaluate

pytestmark = pytest.mark.thorough

U8S8 = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}


# --- integers that saturate ------------------------------------------------------------------------------------------


def saturating_layers(folder: Path, **options: object) -> list[str]:
    """Layers that R001 names on a CPU without VNNI whose integer kernels are noisier than the same codes in float.

    Most CPUs that run this have VNNI, so what they would measure is put in; all about weights and kernels is real.
    """
    model = demo()
    representative, _ = split(model, 64)
    paths = folder / "float.onnx", folder / "quantized.onnx"
    quantized = quantize(model, representative, folder, **options)
    for path, stored in zip(paths, (model, quantized), strict=True):
        onnx.save(stored, str(path))
    facts = derive(quantmedic.collect(*paths, representative=representative, threads=1), rules())
    old_cpu = {"cpu_vnni": False, "integer_kernel_noise": 50.0, "exact_kernel_noise": 0.1, "harmed": True}
    facts = facts.model_copy(update={"model": facts.model.model_copy(update=old_cpu)})
    (result,) = [result for result in evaluate(rules(), facts) if result.rule.cause == "u8s8-saturation"]
    return [finding.layer for finding in result.findings if finding.layer]


@pytest.mark.nightly
def test_full_range_weights_without_vnni(tmp_path: Path) -> None:
    """onnxruntime#5849, #6004, #14642, FBGEMM#125, pytorch#103646: U8S8 sums of two products leave 16 bits."""
    assert len(saturating_layers(tmp_path, **U8S8)) == 13
    assert saturating_layers(tmp_path, **U8S8, reduce_range=True) == [], "a reduced range cannot saturate"


def test_overflow_fix_for_the_first_layer_only(tmp_path: Path) -> None:
    """openvino#25342: with NNCF's OverflowFix.FIRST_LAYER all the other layers still saturate."""
    first_layer = {"stem.conv.weight": [{"quant_type": QuantType.QInt8, "reduce_range": True}]}
    layers = saturating_layers(tmp_path, **U8S8, extra_options={"TensorQuantOverrides": first_layer})
    assert len(layers) == 12
    assert "/stem/conv/Conv" not in layers


# --- a runtime that computes something else --------------------------------------------------------------------------


def linear(folder: Path, *, alpha: float = 1.0, bias_scale: float = 1.0) -> tuple[Path, Path]:
    """Three linear layers, quantized by onnxruntime; the bias of the second one is stored on another scale."""
    net = Net()
    x = net.input("x", ["n", 32])
    for k, (rows, columns) in enumerate([(32, 64), (64, 64), (64, 10)], 1):
        weight, bias = net.const(f"w{k}", 0.3 * random(k, rows, columns)), net.const(f"b{k}", random(10 + k, columns))
        x = net.add("Gemm", x, weight, bias, out=f"h{k}", name=f"fc{k}", alpha=alpha if k == 2 else 1.0)
        x = net.add("Relu", x, out=f"r{k}") if k < 3 else x
    net.output(x, shape=["n", 10])
    model = net.model()
    quantized = quantize(model, {"x": random(0, 128, 32)}, folder)
    edit(quantized, "b2_quantized", lambda codes: np.rint(codes / bias_scale).astype(codes.dtype))
    edit(quantized, "b2_quantized_scale", lambda scale: (scale * bias_scale).astype(scale.dtype))
    paths = folder / "float.onnx", folder / "quantized.onnx"
    for path, stored in zip(paths, (model, quantized), strict=True):
        onnx.save(stored, str(path))
    return paths


def causes_of(paths: tuple[Path, Path]) -> list[tuple[str, tuple[str, ...]]]:
    diagnosis = quantmedic.diagnose(*paths, representative=random(0, 128, 32), validation=random(5, 128, 32))
    return [(cause.cause, cause.subjects) for cause in diagnosis.causes]


def test_a_bias_whose_scale_the_fused_kernel_ignores(tmp_path: Path) -> None:
    """onnxruntime#24711: 1.32 reads the codes of a bias in QDQ on input scale × weight scale as well."""
    first, *names_of_the_same = causes_of(linear(tmp_path, bias_scale=8.0))
    assert first == ("bias-scale-mismatch", ("fc2",)) and {places for _, places in names_of_the_same} <= {("fc2",)}
    assert causes_of(linear(tmp_path)) == []


#: Judges float.onnx and quantized.onnx where it runs, with the onnxruntime that comes first.
JUDGE = """
import sys, numpy as np, onnxruntime, quantmedic
data = np.load("data.npz")
found = quantmedic.diagnose("float.onnx", "quantized.onnx", representative=data["rep"], validation=data["val"])
print(onnxruntime.__version__, *[f"{cause.cause} {','.join(cause.subjects)}" for cause in found.causes], sep="|")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("release", ["1.20.1", "1.22.1"])
def test_a_factor_that_the_fused_kernel_of_an_old_release_loses(tmp_path: Path, release: str) -> None:
    """onnxruntime#28130: alpha of a Gemm in QDQ, 33 dB by the file and 11 dB as computed; right in 1.32."""
    paths = linear(tmp_path, alpha=2.0)
    assert causes_of(paths) == []
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--target", "old"]
    if subprocess.run([*pip, f"onnxruntime=={release}"], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("the old release is not to be had here")
    np.savez(tmp_path / "data.npz", rep=random(0, 128, 32), val=random(5, 128, 32))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "old"), *sys.path])}
    judge = [sys.executable, "-c", JUDGE]
    done = subprocess.run(judge, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{release}|runtime-changes-result fc2"


# --- a device that computes something else ---------------------------------------------------------------------------


def on_device(folder: Path, **options: object) -> tuple[float, Diagnosis]:
    """Points that the device loses, and the diagnosis of a sound simulation beside the outputs of that device."""
    model = demo()
    representative, validation = split(model)
    simulated = quantize(model, representative, folder, per_channel=True)
    device = quantize(model, representative, folder, **options)
    outputs = run(device, {"image": validation["image"]})
    lost = accuracy(simulated, validation) - accuracy(device, validation)
    return lost, diagnose(model, simulated, representative, validation, folder, device_outputs=outputs)


@pytest.mark.nightly
def test_encoding_that_the_device_made_up(tmp_path: Path) -> None:
    """aimet#3268, #2930, #4071, #670, rknn-toolkit2#573: fine in simulation, wrong on the board.

    An encoding that was not exported is filled in from a few inputs of the device's own choice.
    """
    guessed = with_ranges({"/residual/Add_output_0": (-0.5, 0.5)}, per_channel=True)
    lost, diagnosis = on_device(tmp_path, **guessed)
    assert lost > 0.05
    assert first(diagnosis) == "simulator-differs-from-device"
    assert "R015" in diagnosis.causes[0].rules and diagnosis.causes[0].severity == "high"
    assert diagnosis.model.device.metric_loss == pytest.approx(lost, abs=1e-6)


@pytest.mark.nightly
def test_device_with_one_scale_for_each_weight(tmp_path: Path) -> None:
    """aimet#2474: each depthwise convolution loses precision on the DSP, which has one scale per tensor."""
    lost, diagnosis = on_device(tmp_path, per_channel=False, reduce_range=True)
    assert lost < 0.05, "the mild case: the predictions stand, the numbers do not"
    assert first(diagnosis) == "simulator-differs-from-device"


# --- float16 and what is not finite ----------------------------------------------------------------------------------


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float16 between its input and its output."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    name, end = result.graph.input[0].name, result.graph.output[0].name
    for tensor in result.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float16), tensor.name))
    for node in result.graph.node:
        node.input[:] = [f"{name}_half" if x == name else x for x in node.input]
        node.output[:] = [f"{end}_half" if x == end else x for x in node.output]
    result.graph.node.insert(0, helper.make_node("Cast", [name], [f"{name}_half"], to=TensorProto.FLOAT16))
    result.graph.node.append(helper.make_node("Cast", [f"{end}_half"], [end], to=TensorProto.FLOAT))
    return result


def normalizing() -> onnx.ModelProto:
    """A layer normalization in pieces, as exporters before opset 17 write it, over 32 features, one of them massive."""
    net = Net()
    x = net.add("Flatten", net.input("image", ["n", 1, 28, 28]), out="pixels")
    weight = np.random.default_rng(1).standard_normal((784, 32)).astype(np.float32) / 28
    bias = np.zeros(32, np.float32)
    bias[4] = 400
    x = net.add("MatMul", x, net.const("in.weight", weight), out="product")
    x = net.add("Add", net.add("Relu", x, out="positive"), net.const("in.bias", bias), out="stream")
    x = net.add("Sub", x, net.add("ReduceMean", x, out="mean", axes=[1]), out="centred")
    square = net.add("Pow", x, net.const("two", 2), out="square")
    spread = net.add("ReduceMean", square, out="variance", axes=[1])
    deviation = net.add("Sqrt", net.add("Add", spread, net.const("epsilon", 1e-3), out="safe"), out="deviation")
    x = net.add("Div", x, deviation, out="unit")
    x = net.add("Mul", x, net.const("gamma", 41), out="features")
    return with_head(net, x, {"image": images("representative", 500)}, labels("representative", 500))


def test_square_that_leaves_float16(tmp_path: Path) -> None:
    """TensorRT#2466, #2564, onnxruntime#13639, rf-detr#176: the Pow of a layer norm overflows in float16.

    That infinity appears is what is seen, the range of float16 is why: both may lead.
    """
    model = normalizing()
    representative, validation = split(model)
    assert accuracy(model, validation) > 0.6
    assert "fp16-overflow" in serious(diagnose(model, half(model), representative, validation, tmp_path))[:2]


def masked_rows(value: float) -> onnx.ModelProto:
    """Attention of 7 rows of pixels; where a row is all black, its whole line of scores is masked."""
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    x = net.add("Reshape", x, net.const("as_rows", np.array([0, 7, 112])), out="rows")
    weight = np.random.default_rng(1).standard_normal((112, 16)).astype(np.float32) / 10
    x = net.add("MatMul", x, net.const("in.weight", weight), out="tokens")
    scores = net.add("MatMul", x, net.add("Transpose", x, out="columns", perm=[0, 2, 1]), out="scores")
    brightest = net.add("ReduceMax", "rows", out="brightest", axes=[2], keepdims=1)
    black = net.add("Less", brightest, net.const("dark", -0.8), out="black")
    mask = net.add("Where", black, net.const("minus", value), net.const("zero", 0), out="mask")
    x = net.add("Softmax", net.add("Add", scores, mask, out="masked"), out="shares", axis=-1)
    x = net.add("Flatten", net.add("MatMul", x, "tokens", out="mixed"), out="features")
    return with_head(net, x, {"image": images("representative", 500)}, labels("representative", 500))


def test_mask_that_turns_into_minus_infinity(tmp_path: Path) -> None:
    """Of the same reports: finfo.min becomes -inf in float16, and a line of which all is masked becomes NaN."""
    model = masked_rows(float(np.finfo(np.float32).min))
    with np.errstate(over="ignore"):
        smaller = half(model)
    representative, validation = split(model)
    assert not np.isfinite(run(smaller, {"image": validation["image"]})["logits"]).all()
    diagnosis = diagnose(model, smaller, representative, validation, tmp_path)
    assert first(diagnosis) in ("non-finite-values", "fp16-overflow")


# --- float models in training mode -----------------------------------------------------------------------------------


def dropout(training: bool) -> onnx.ModelProto:
    """The demo with a dropout before its classifier."""
    model = demo()
    (classifier,) = [node for node in model.graph.node if node.op_type == "Gemm"]
    features, classifier.input[0] = classifier.input[0], "dropped"
    node = helper.make_node("Dropout", [features, "drop_ratio", "training"], ["dropped"], name="dropout")
    model.graph.node.insert(len(model.graph.node) - 1, node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "drop_ratio"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(training), "training"))
    return model


@pytest.mark.nightly
def test_dropout_left_in_training_mode(tmp_path: Path) -> None:
    """ao#2980, MQBench#83: what train() and eval() switch was not switched; the float model rolls dice."""
    model = dropout(training=True)
    representative, validation = split(model)
    quantized = quantize(dropout(training=False), representative, tmp_path, per_channel=True)
    assert first(diagnose(model, quantized, representative, validation, tmp_path)) == "nondeterministic-float-model"


@pytest.mark.nightly
def test_evaluation_mode_and_a_framework_and_a_device_that_agree_are_healthy(tmp_path: Path) -> None:
    model = dropout(training=False)
    representative, validation = split(model)
    quantized = quantize(model, representative, tmp_path, per_channel=True)
    feed = {"image": validation["image"]}
    others = {"reference_outputs": run(demo(), feed)["logits"], "device_outputs": run(quantized, feed)}
    assert_healthy(diagnose(model, quantized, representative, validation, tmp_path, **others))


@pytest.mark.nightly
def test_batch_norm_of_another_epsilon(tmp_path: Path) -> None:
    """ao#2980: rewriting the graph changed the epsilon of a batch norm; the export departs from the framework's model.

    Folded with another epsilon, each channel has a scale that is a little off.
    """
    exported = demo()
    variance = np.random.default_rng(0).uniform(1e-3, 1e-1, 96)
    factor = np.sqrt((variance + 1e-5) / (variance + 1e-3)).astype(np.float32)

    def rescale(x: Array) -> Array:
        return (x.T * factor).T

    edit(exported, "head.pointwise.conv.weight", rescale)
    edit(exported, "head.pointwise.conv.bias", rescale)
    representative, validation = split(exported)
    outputs = run(demo(), {"image": validation["image"]})["logits"]
    quantized = quantize(exported, representative, tmp_path, per_channel=True)
    diagnosis = diagnose(exported, quantized, representative, validation, tmp_path, reference_outputs=outputs)
    assert first(diagnosis) == "float-export-differs"
