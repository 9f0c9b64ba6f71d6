"""Every snippet for onnxruntime heals a patient that has what it is for, with the settings in force around it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import onnx_models
from builders.onnx_patients import (
    Array,
    dead_channel,
    edit_weights,
    heavy_tail,
    inputs,
    joined,
    network,
    prescribe,
    unchanged,
    unfolded,
    with_constant_nodes,
    with_giant,
)
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic

from quantmedic import collect, load_rulebase

BASE = load_rulebase()
EVERY = ("image", "/conv", "/conv2", "/pool", "/fc")


def rounded_away(model: onnx.ModelProto) -> None:
    """The lower three bits of the first weights are lost."""
    edit_weights(model, lambda name, x: x & -32, "conv.weight_quantized")


def shifted_biases(model: onnx.ModelProto) -> None:
    edit_weights(model, lambda name, x: x + 3000, "conv2.bias_quantized")


def power_of_two_steps(model: onnx.ModelProto) -> None:
    """Steps of activations are rounded up to far too large powers of two."""
    edit_weights(
        model, lambda name, x: 2.0 ** np.ceil(np.log2(x) + 4), "clip_scale", "relu_scale", "pool_scale", "image_sc"
    )


@dataclass(frozen=True)
class Patient:
    """A quantized network with a fault.

    Attributes:
        net: The float network.
        layers: Findings name these.
        calibrated: What the quantizer read, made of what the reader yields.
        reads: What the user's reader yields, made of proper inputs.
        options: Of quantize_static, or of quantize_dynamic.
        dynamic: Quantized by quantize_dynamic.
        damage: Done to the quantized model.
        cause: Found.
        left: Share of the noise that may be left.
    """

    net: Callable[[], onnx.ModelProto] = network
    layers: tuple[str, ...] = ("/conv",)
    calibrated: Callable[[Array], Array] = unchanged
    reads: Callable[[Array], Array] = unchanged
    options: dict[str, Any] = field(default_factory=dict)
    dynamic: bool = False
    damage: Callable[[onnx.ModelProto], None] | None = None
    cause: str = "any-cause"
    left: float = 0.2


CLIPPED = {"calibrate_method": CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 60.0}}
FOUR_BITS = {"weight_type": QuantType.QInt4, "activation_type": QuantType.QInt16}
OVERFLOW = {"per_channel": True, "extra_options": {"QDQDisableWeightAdjustForInt32Bias": True}}
WIDE_PRODUCT = {"net": lambda: network("fc"), "layers": ("/fc",)}
WIDE_CONV = {"net": lambda: network("conv")}
PRECISE_WEIGHTS = {"weight_type": QuantType.QInt16, "per_channel": True}
DYNAMIC = {"net": lambda: network("fc"), "layers": ("/fc",), "dynamic": True}
PATIENTS: dict[tuple[str, int], Patient] = {
    ("limit-activation-range", 0): Patient(calibrated=with_giant, reads=with_giant, layers=EVERY, left=0.5),
    ("limit-activation-range", 1): Patient(calibrated=with_giant, reads=with_giant, layers=EVERY),
    ("widen-activation-range", 0): Patient(options=CLIPPED, layers=EVERY),
    ("widen-activation-range", 1): Patient(options=CLIPPED, layers=EVERY),
    ("per-channel-weights", 0): Patient(
        **WIDE_CONV, options={"per_channel": True, "extra_options": {"TensorQuantOverrides": {"conv.weight": [{}]}}}
    ),
    ("per-channel-weights", 1): Patient(**WIDE_CONV, options={"activation_type": QuantType.QUInt8}),
    ("per-channel-weights", 2): Patient(**WIDE_PRODUCT, left=0.5),
    ("per-channel-weights", 3): Patient(**DYNAMIC),
    ("per-channel-weights-after-raising-opset", 0): Patient(
        lambda: with_constant_nodes(network("conv", opset=12)), options={"activation_type": QuantType.QUInt8}
    ),
    ("per-tensor-for-named-weights", 0): Patient(dead_channel, options=OVERFLOW),
    ("protect-int32-bias", 0): Patient(dead_channel, options=OVERFLOW),
    ("protect-int32-bias", 1): Patient(dead_channel, options=OVERFLOW),
    ("fix-weight-axis", 0): Patient(
        lambda: network("columns"),
        layers=("/fc",),
        options={
            "per_channel": True,
            "activation_type": QuantType.QInt16,
            "nodes_to_exclude": ["/conv", "/clip", "/conv2", "/relu", "/even", "/softmax"],
            "extra_options": {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}},
        },
        left=0.5,
    ),
    ("more-weight-bits", 0): Patient(options=FOUR_BITS, layers=EVERY),
    ("bit-width-override", 0): Patient(options=FOUR_BITS, layers=EVERY),
    ("asymmetric-activations", 0): Patient(options={"extra_options": {"ActivationSymmetric": True}}, left=0.7),
    ("unsigned-activations", 0): Patient(options={"extra_options": {"ActivationSymmetric": True}}, left=0.7),
    ("activations-16-bit", 0): Patient(layers=(*EVERY, "/flat", "/softmax"), options=PRECISE_WEIGHTS),
    ("activations-16-bit", 1): Patient(options=PRECISE_WEIGHTS),
    ("keep-layers-float", 0): Patient(**WIDE_CONV, options={"activation_type": QuantType.QUInt8}),
    ("keep-layers-float", 1): Patient(**DYNAMIC),
    ("keep-group-float", 0): Patient(**WIDE_CONV),
    ("keep-group-float", 1): Patient(**DYNAMIC),
    ("keep-decoder-float", 0): Patient(**WIDE_CONV),
    ("keep-decoder-float", 1): Patient(**DYNAMIC),
    ("keep-operator-types-float", 0): Patient(**WIDE_CONV),
    ("keep-operator-types-float", 1): Patient(**DYNAMIC),
    ("float-tail", 0): Patient(**WIDE_PRODUCT, left=0.5),
    ("float-tail", 1): Patient(**DYNAMIC),
    ("float-first-layers", 0): Patient(**WIDE_CONV),
    ("float-first-layers", 1): Patient(**DYNAMIC),
    ("balance-concatenation", 0): Patient(lambda: joined("Concat"), layers=("/joint",), options={"per_channel": True}),
    ("balance-addition", 0): Patient(lambda: joined("Add"), layers=("/joint",), options={"per_channel": True}),
    ("dynamic-quantization", 0): Patient(calibrated=lambda x: x * np.float32(50)),
    ("fixed-softmax-scale", 0): Patient(
        layers=("/softmax",),
        options={
            **PRECISE_WEIGHTS,
            "activation_type": QuantType.QUInt16,
            "extra_options": {
                "TensorQuantOverrides": {
                    "share": [{"quant_type": QuantType.QUInt8, "rmin": np.float32(0), "rmax": np.float32(20)}]
                }
            },
        },
    ),
    ("minimum-range", 0): Patient(calibrated=lambda x: x * np.float32(0)),
    ("one-preprocessing", 0): Patient(reads=lambda x: x * np.float32(0.01), cause="preprocessing-mismatch"),
    ("recalibrate-on-proper-data", 0): Patient(reads=lambda x: x * np.float32(0.01), cause="preprocessing-mismatch"),
    ("one-preprocessing", 1): Patient(calibrated=lambda x: x * np.float32(0.01)),
    ("recalibrate-on-proper-data", 1): Patient(calibrated=lambda x: x * np.float32(0.01)),
    ("calibrate-again", 0): Patient(calibrated=lambda x: x * np.float32(0.01)),
    ("refold-and-preprocess", 0): Patient(unfolded),
    ("fold-batch-norm", 0): Patient(unfolded),
    ("search-calibration-methods", 0): Patient(calibrated=lambda x: x * np.float32(50)),
    ("uniform-thresholds", 0): Patient(damage=power_of_two_steps),
    ("weight-threshold-search", 0): Patient(heavy_tail, options=FOUR_BITS, layers=("/conv", "/conv2", "/fc"), left=0.7),
    ("requantize-this-model", 0): Patient(damage=rounded_away),
    ("restore-float-bias", 0): Patient(damage=shifted_biases),
    ("requantize-this-model", 1): Patient(dynamic=True, damage=rounded_away),
}
#: Snippets that heal nothing that can be measured here, and why.
EXEMPT = {
    "reduce-range": "heals sums that saturate, on processors that this test does not run on",
    "raise-opset": "makes others possible: weights per channel, 16 bits",
    "one-scale-per-tensor": "for a quantization that failed: there is no patient",
    "prepare-float-model": "for a quantization that failed: there is no patient",
    **dict.fromkeys(
        ("learned-rounding", "smooth-quant", "cross-layer-equalization", "bias-correction-on"),
        "an edit of the float model: tests/trials has patients that it heals",
    ),
    "restore-float-bias": "dynamic quantization keeps biases in float",
    "match-bias-scale": "heals kernels that ignore the scale of a bias, which newer releases of onnxruntime do not",
}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Two batches, the last of another size."""

    def __init__(self, x: Array) -> None:
        self.feeds = iter([{"image": x[:100]}, {"image": x[100:]}])

    def get_next(self) -> Any:
        return next(self.feeds, None)


def keys() -> list[tuple[str, int]]:
    """Remedies and numbers of the toolchain's snippets that were marked as run."""
    found = []
    for remedy in BASE.remedies.values():
        own = [snippet for snippet in remedy.snippets if snippet.toolchain == "onnxruntime"]
        found += [(remedy.id, number) for number, snippet in enumerate(own) if snippet.mark == "run"]
    return found


def test_every_snippet_has_a_patient() -> None:
    assert {key for key in keys() if key not in PATIENTS and key[0] not in EXEMPT} == set()
    assert set(PATIENTS) <= set(keys())


def make_patient(patient: Patient, folder: Path) -> None:
    model = patient.net()
    onnx.save(model, str(folder / "float.onnx"))
    if patient.dynamic:
        quantize_dynamic(folder / "float.onnx", folder / "patient.onnx", **patient.options)
        made = onnx.load(str(folder / "patient.onnx"))
    else:
        feed = {"image": patient.calibrated(patient.reads(inputs(0)))}
        made = onnx_models.static(model, feed, folder, **patient.options)
    if patient.damage is not None:
        patient.damage(made)
    onnx.save(made, str(folder / "patient.onnx"))


def script(key: tuple[str, int], patient: Patient, folder: Path) -> str:
    """What is prescribed where the rules advise this snippet for the patient."""
    remedy = BASE.remedies[key[0]]
    own = [snippet for snippet in remedy.snippets if snippet.toolchain == "onnxruntime"][key[1]]
    sets = {"representative": {"image": patient.reads(inputs(0))}, "validation": {"image": inputs(1)}}
    case = collect(folder / "float.onnx", folder / "patient.onnx", attribution=False, **sets)
    return prescribe(case, BASE, remedy.id, own, patient.layers, patient.cause)


def outputs(path: Path, x: Array) -> Array:
    return np.asarray(onnx_models.session(path).run(None, {"image": x})[0])


def noise(folder: Path, quantized: str) -> float:
    x = inputs(2)
    return float(np.square(outputs(folder / quantized, x) - outputs(folder / "float.onnx", x)).sum())


@pytest.mark.thorough
@pytest.mark.parametrize("key", [pytest.param(key, id=f"{key[0]}-{key[1]}") for key in PATIENTS])
def test_a_snippet_heals_its_patient(key: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = PATIENTS[key]
    make_patient(patient, tmp_path)
    code = script(key, patient, tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "prescription.py", "exec"), {"reader": Reader(patient.reads(inputs(0)))})
    assert noise(tmp_path, "int8.onnx") <= patient.left * noise(tmp_path, "patient.onnx"), code


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0, 1])
def test_sixteen_bits_take_a_model_out_of_the_operator_form(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("activations-16-bit", place)
    usual = PATIENTS[key]
    patient = replace(usual, options={"quant_format": QuantFormat.QOperator})
    make_patient(patient, tmp_path)
    code = script(key, patient, tmp_path)
    assert "quant_format=QuantFormat.QDQ,  # changed by the remedy: QOperator has no kernels of 16 bits" in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "prescription.py", "exec"), {"reader": Reader(patient.reads(inputs(0)))})
    assert noise(tmp_path, "int8.onnx") < noise(tmp_path, "patient.onnx"), code
