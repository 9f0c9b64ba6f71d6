"""Every snippet for onnxruntime heals a patient that has what it is for, with the settings in force around it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
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
    padded,
    prescribe_for,
    unchanged,
    unfolded,
    with_constant_nodes,
    with_giant,
)
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic

from quantmedic import collect, judge, load_rulebase
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.remedies import Snippet

pytestmark = pytest.mark.thorough

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


@cache
def times(factor: float) -> Callable[[Array], Array]:
    return lambda x: x * np.float32(factor)


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

    @property
    def made_of(self) -> tuple[Any, ...]:
        """What the models are made of: equal where two snippets are for the same patient."""
        return self.net, self.calibrated, self.reads, repr(self.options), self.dynamic, self.damage


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
    ("keep-layers-float", 0): Patient(**WIDE_CONV),
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
    ("replace-mask-constant", 0): Patient(padded, layers=("/pad",)),
    ("dynamic-quantization", 0): Patient(calibrated=times(50)),
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
    ("minimum-range", 0): Patient(calibrated=times(0)),
    ("one-preprocessing", 0): Patient(reads=times(0.01), cause="preprocessing-mismatch"),
    ("recalibrate-on-proper-data", 0): Patient(reads=times(0.01), cause="preprocessing-mismatch"),
    ("one-preprocessing", 1): Patient(calibrated=times(0.01)),
    ("recalibrate-on-proper-data", 1): Patient(calibrated=times(0.01)),
    ("calibrate-again", 0): Patient(calibrated=times(0.01)),
    ("refold-and-preprocess", 0): Patient(unfolded),
    ("fold-batch-norm", 0): Patient(unfolded),
    ("search-calibration-methods", 0): Patient(calibrated=times(50)),
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
        ("learned-rounding", "bias-correction-on"),
        "an edit of the quantized model: tests/trials has patients that it heals",
    ),
    "restore-float-bias": "dynamic quantization keeps biases in float",
    "scale-of-the-device": "heals what a device computes: the healthy model here gets another scale",
    "match-bias-scale": "heals kernels that ignore the scale of a bias, which newer releases of onnxruntime do not",
}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Two batches, the last of another size."""

    def __init__(self, x: Array) -> None:
        self.feeds = iter([{"image": x[:100]}, {"image": x[100:]}])

    def get_next(self) -> Any:
        return next(self.feeds, None)


#: Remedies and numbers of the toolchain's snippets that were marked as run.
KEYS = [
    (remedy.id, number)
    for remedy in BASE.remedies.values()
    for number, snippet in enumerate(each for each in remedy.snippets if each.toolchain == "onnxruntime")
    if snippet.mark == "run"
]


def test_every_snippet_has_a_patient() -> None:
    assert {key for key in KEYS if key not in PATIENTS and key[0] not in EXEMPT} == set()
    assert set(PATIENTS) <= set(KEYS)


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


Measured = tuple[CaseFacts, Diagnosis]


def measure(patient: Patient, folder: Path) -> Measured:
    sets = {"representative": {"image": patient.reads(inputs(0))}, "validation": {"image": inputs(1)}}
    case = collect(folder / "float.onnx", folder / "patient.onnx", attribution=False, **sets)
    return derive(case, BASE), judge(case)


def snippet_of(key: tuple[str, int]) -> Snippet:
    return [each for each in BASE.remedies[key[0]].snippets if each.toolchain == "onnxruntime"][key[1]]


def script(key: tuple[str, int], patient: Patient, measured: Measured) -> str:
    """What is prescribed where the rules advise this snippet for the patient."""
    return prescribe_for(*measured, BASE, key[0], snippet_of(key), patient.layers, patient.cause)


def execute(code: str, patient: Patient) -> None:
    exec(compile(code, "prescription.py", "exec"), {"reader": Reader(patient.reads(inputs(0)))})


def outputs(path: Path, x: Array) -> Array:
    return np.asarray(onnx_models.session(path).run(None, {"image": x})[0])


def noise(folder: Path, quantized: str) -> float:
    x = inputs(2)
    return float(np.square(outputs(folder / quantized, x) - outputs(folder / "float.onnx", x)).sum())


@pytest.mark.nightly
def test_every_snippet_heals_its_patient(
    subtests: pytest.Subtests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: dict[tuple[Any, ...], dict[tuple[str, int], Patient]] = {}
    for key, patient in PATIENTS.items():
        together.setdefault(patient.made_of, {})[key] = patient
    for place, group in enumerate(together.values()):
        folder = tmp_path / str(place)
        folder.mkdir()
        monkeypatch.chdir(folder)
        first = next(iter(group.values()))
        make_patient(first, folder)
        measured, before = measure(first, folder), noise(folder, "patient.onnx")
        for key, patient in group.items():
            with subtests.test(f"{key[0]}-{key[1]}"):
                (folder / "int8.onnx").unlink(missing_ok=True)
                code = script(key, patient, measured)
                execute(code, patient)
                assert noise(folder, "int8.onnx") <= patient.left * before, code


@pytest.mark.nightly
def test_what_heals_nothing_that_can_be_measured_here_runs(
    subtests: pytest.Subtests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for dynamic in (False, True):
        patient = Patient(**DYNAMIC) if dynamic else Patient()
        make_patient(patient, tmp_path)
        measured = measure(patient, tmp_path)
        for key in (key for key in KEYS if key not in PATIENTS and ("dynamic" in snippet_of(key).formats) == dynamic):
            with subtests.test(f"{key[0]}-{key[1]}"):
                code = script(key, patient, measured)
                written = Path("int8.onnx" if '"int8.onnx"' in code else "prepared.onnx")
                written.unlink(missing_ok=True)
                execute(code, patient)
                onnx.checker.check_model(str(written))


def test_sixteen_bits_take_a_model_out_of_the_operator_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [("activations-16-bit", place) for place in (0, 1)]
    patients = [replace(PATIENTS[key], options={"quant_format": QuantFormat.QOperator}) for key in keys]
    make_patient(patients[0], tmp_path)
    measured = measure(patients[0], tmp_path)
    monkeypatch.chdir(tmp_path)
    for key, patient in zip(keys, patients, strict=True):
        code = script(key, patient, measured)
        assert "quant_format=QuantFormat.QDQ,  # changed by the remedy: QOperator has no kernels of 16 bits" in code
        execute(code, patient)
        assert noise(tmp_path, "int8.onnx") < noise(tmp_path, "patient.onnx"), code
