"""The prescription for onnxruntime: nothing in force is lost, and the pasted file itself heals."""

import contextlib
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import onnx_models
from numpy.typing import NDArray
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantmedic import collect, judge, load_rulebase
from quantmedic.demo import patient as demo_patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.options import Names, merge_all, write
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force
from quantmedic.reports.sections.prescription import prescription_files

pytestmark = pytest.mark.thorough

Array = NDArray[Any]
BASE = load_rulebase()
TOOLCHAIN = find_toolchain("onnxruntime", BASE.toolchains)
READER = """
from onnxruntime.quantization import CalibrationDataReader
class Inputs(CalibrationDataReader):
    def __init__(self):
        self.feeds = iter([{"image": np.load("images.npy")}])
    def get_next(self):
        return next(self.feeds, None)
reader = Inputs()
"""


def clipped_net(widest: float, *, softmax: bool = False) -> onnx.ModelProto:
    """Two convolutions, the first with one channel of wide weights that a Clip behind it keeps in range."""
    net = onnx_models.Net(17)
    wide = onnx_models.random(1, 16, 3, 3, 3, scale=0.3)
    wide[0] *= widest
    bias = onnx_models.random(2, 16, scale=0.1)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), wide, bias, out="conv", name="/conv", pads=[1, 1, 1, 1])
    net.const("low", np.float32(0))
    net.const("high", np.float32(6))
    x = net.add("Clip", x, "low", "high", out="clip", name="/clip")
    weight, bias = onnx_models.random(3, 16, 16, 3, 3, scale=0.1), onnx_models.random(4, 16, scale=0.1)
    x = net.add("Relu", net.conv(x, weight, bias, out="conv2", name="/conv2"), out="relu", name="/relu")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool", name="/pool"), out="flat", name="/flat")
    net.const("fc.weight", onnx_models.random(5, 16, 10))
    x = net.add("MatMul", x, "fc.weight", out="scores", name="/fc")
    net.output(net.add("Softmax", x, out="share", name="/softmax") if softmax else x, shape=["n", 10])
    return net.model()


def samples(seed: int, count: int = 128) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype(np.float32)


def write_script(folder: Path, given: str) -> None:
    """``run.py``, which runs ``prescription.py`` with the names that the user gives and no others."""
    (folder / "run.py").write_text(f'import numpy as np\n{given}\nexec(open("prescription.py").read())\n')


def run_script_here(folder: Path, given: str) -> None:
    """In this process, which has imported what a process of its own would import first."""
    write_script(folder, given)
    with contextlib.chdir(folder):
        runpy.run_path("run.py", run_name="__main__")


def run_script(folder: Path, given: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    write_script(folder, given)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "run.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def outputs(model: Path, x: Array) -> Array:
    return np.asarray(onnx_models.session(model).run(None, {"image": x})[0])


def noise(folder: Path, quantized: str, x: Array) -> float:
    reference = outputs(folder / "float.onnx", x)
    return float(np.square(reference - outputs(folder / quantized, x)).sum())


def stored_arrays(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.SerializeToString() for tensor in onnx.load(str(path)).graph.initializer}


SETTINGS: Mapping[str, dict[str, Any]] = {
    "default": {},
    "unsigned": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
    "per-channel": {"per_channel": True},
    "operators": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8},
    "operators-per-channel": {"quant_format": QuantFormat.QOperator, "per_channel": True},
    "reduced": {"reduce_range": True, "per_channel": True},
    "symmetric": {"extra_options": {"ActivationSymmetric": True}},
    "symmetric-unsigned": {
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
        "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True},
    },
    "asymmetric-weights": {"extra_options": {"WeightSymmetric": False}},
    "sixteen-bits": {"activation_type": QuantType.QUInt16, "per_channel": True},
    "four-bits": {"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt4},
    "float-convolution": {"nodes_to_exclude": ["/conv2", "/relu"]},
    "float-end": {"nodes_to_exclude": ["/fc", "/softmax"], "per_channel": True},
    "convolutions-only": {"op_types_to_quantize": ["Conv", "Clip"]},
    "wide-tensor": {"extra_options": {"TensorQuantOverrides": {"relu": [{"quant_type": QuantType.QUInt16}]}}},
    "wide-weight": {
        "weight_type": QuantType.QInt4,
        "extra_options": {"TensorQuantOverrides": {"conv.weight": [{"quant_type": QuantType.QInt8}]}},
    },
    "wide-channels": {
        "weight_type": QuantType.QInt4,
        "per_channel": True,
        "extra_options": {"TensorQuantOverrides": {"conv.weight": [{"quant_type": QuantType.QInt8, "axis": 0}]}},
    },
    "one-scale": {"per_channel": True, "extra_options": {"TensorQuantOverrides": {"conv.weight": [{}]}}},
    "convolutions-without-clip": {"op_types_to_quantize": ["Conv"]},
    "clips-without-convolutions": {"op_types_to_quantize": ["Clip", "MatMul"]},
    "symmetric-calibration": {"extra_options": {"CalibTensorRangeSymmetric": True}},
    "kept-activations": {"extra_options": {"QDQKeepRemovableActivations": True}},
    "quantizers-of-weights": {"extra_options": {"AddQDQPairToWeight": True}, "per_channel": True},
    "float-biases": {"extra_options": {"QuantizeBias": False}},
}


def measured(folder: Path, quantized: str, feed: dict[str, Any]) -> Case:
    """A case to read settings from, which the division of the loss says nothing about."""
    return collect(folder / "float.onnx", folder / quantized, validation=feed, attribution=False)


def quantize_again(folder: Path, form: str) -> str:
    """Quantizes ``float.onnx`` with the settings that ``patient.onnx`` shows, and gives the code that did it."""
    feed = {"image": samples(0, 16)}
    np.save(folder / "images.npy", feed["image"])
    shown = settings_in_force(derive(measured(folder, "patient.onnx", feed), BASE))
    call = write(form, TOOLCHAIN.forms[form], options_in_force(TOOLCHAIN, form, shown))
    (folder / "prescription.py").write_text(complete_code(call, "python", TOOLCHAIN))
    run_script_here(folder, READER)
    again = settings_in_force(derive(measured(folder, "int8.onnx", feed), BASE))
    assert again == shown
    return call


def operators(path: Path) -> list[str]:
    return sorted(node.op_type for node in onnx.load(str(path)).graph.node)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_in_force_give_the_same_model_again(name: str, tmp_path: Path) -> None:
    feed = {"image": samples(0, 16)}
    quantized = onnx_models.static(clipped_net(1.0, softmax=True), feed, tmp_path, **SETTINGS[name])
    onnx.save(quantized, str(tmp_path / "patient.onnx"))
    onnx.save(clipped_net(1.0, softmax=True), str(tmp_path / "float.onnx"))
    call = quantize_again(tmp_path, "quantize_static")
    assert stored_arrays(tmp_path / "int8.onnx") == stored_arrays(tmp_path / "patient.onnx"), call
    assert operators(tmp_path / "int8.onnx") == operators(tmp_path / "patient.onnx"), call


@pytest.mark.thorough
@pytest.mark.parametrize("name", SETTINGS)
def test_a_remedy_changes_its_own_setting_and_no_other(name: str, tmp_path: Path) -> None:
    feed, net = {"image": samples(0, 16)}, clipped_net(1.0, softmax=True)
    onnx.save(onnx_models.static(net, feed, tmp_path, **SETTINGS[name]), str(tmp_path / "patient.onnx"))
    onnx.save(clipped_net(1.0, softmax=True), str(tmp_path / "float.onnx"))
    np.save(tmp_path / "images.npy", feed["image"])
    before = settings_in_force(derive(measured(tmp_path, "patient.onnx", feed), BASE))
    kept = options_in_force(TOOLCHAIN, "quantize_static", before)
    call = write(
        "quantize_static",
        TOOLCHAIN.forms["quantize_static"],
        merge_all([{"nodes_to_exclude": Names(["/pool"])}, kept]),
    )
    (tmp_path / "prescription.py").write_text(complete_code(call, "python", TOOLCHAIN))
    run_script_here(tmp_path, READER)
    after = settings_in_force(derive(measured(tmp_path, "int8.onnx", feed), BASE))
    named = {"/pool"}.union(*before.float_layers.values())
    # What only moves values stays in float between two that do.
    assert named <= set().union(*after.float_layers.values()) <= named | {"/flat"}
    assert after.model_dump(exclude={"float_layers"}) == before.model_dump(exclude={"float_layers"}), call


DYNAMIC: Mapping[str, dict[str, Any]] = {
    "default": {},
    "per-channel": {"per_channel": True, "reduce_range": True},
    "unsigned": {"weight_type": QuantType.QUInt8},
    "products-only": {"op_types_to_quantize": ["MatMul"]},
    "float-convolution": {"nodes_to_exclude": ["/conv2"]},
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_quantization_gives_the_same_model_again(name: str, tmp_path: Path) -> None:
    onnx.save(clipped_net(1.0, softmax=True), str(tmp_path / "float.onnx"))
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "patient.onnx", **DYNAMIC[name])
    call = quantize_again(tmp_path, "quantize_dynamic")
    assert stored_arrays(tmp_path / "int8.onnx") == stored_arrays(tmp_path / "patient.onnx"), call


def test_a_model_that_was_prepared_before_is_prepared_again(tmp_path: Path) -> None:
    net = onnx_models.Net(17)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), onnx_models.random(1, 8, 3, 3, 3), out="conv", name="/conv")
    for name, values in (("scale", [2.0, 0.5] * 4), ("shift", [0.1] * 8), ("mean", [0.3] * 8), ("variance", [4.0] * 8)):
        net.const(name, np.array(values, np.float32))
    x = net.add("BatchNormalization", x, "scale", "shift", "mean", "variance", out="normal", name="/normal")
    x = net.add("GlobalAveragePool", net.add("Relu", x, out="relu", name="/relu"), out="pool", name="/pool")
    net.output(net.add("Flatten", x, out="scores", name="/flat"), shape=["n", 8])
    onnx.save(net.model(), str(tmp_path / "float.onnx"))
    quant_pre_process(str(tmp_path / "float.onnx"), str(tmp_path / "folded.onnx"), skip_symbolic_shape=True)
    folded = onnx.load(str(tmp_path / "folded.onnx"))
    quantized = onnx_models.static(folded, {"image": samples(0, 16)}, tmp_path, per_channel=True)
    onnx.save(quantized, str(tmp_path / "patient.onnx"))
    assert 'prepared("float.onnx")' in quantize_again(tmp_path, "quantize_static")
    assert stored_arrays(tmp_path / "int8.onnx") == stored_arrays(tmp_path / "patient.onnx")


@dataclass(frozen=True)
class Fault:
    """A mistake in the settings or the data of a quantization, its cause, and the setting that undoes it, if any."""

    cause: str
    changed: str
    widest: float = 1.0
    scale: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


FAULTS = {
    "per-tensor": Fault(
        "channel-range-imbalance",
        "per_channel=True,",
        widest=2000.0,
        options={"activation_type": QuantType.QUInt8, "nodes_to_exclude": ["/fc"]},
    ),
    "four-bits": Fault(
        "too-few-weight-bits",
        '"TensorQuantOverrides": {',
        widest=30.0,
        options={"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt4, "nodes_to_exclude": ["/fc"]},
    ),
    "small-ranges": Fault(
        "stale-calibration",
        "",
        scale=0.08,
        options={"activation_type": QuantType.QUInt8, "per_channel": True, "quant_format": QuantFormat.QOperator},
    ),
}


def write_prescription(diagnosis: Diagnosis, folder: Path) -> str:
    ((name, content),) = prescription_files(diagnosis)
    (folder / name).write_bytes(content)
    return content.decode()


@pytest.mark.parametrize("name", FAULTS)
def test_the_pasted_prescription_heals_and_keeps_what_is_in_force(name: str, tmp_path: Path) -> None:
    fault, given, judged = FAULTS[name], samples(0), samples(1)
    net = clipped_net(fault.widest)
    quantized = onnx_models.static(net, {"image": given * fault.scale}, tmp_path, **fault.options)
    onnx.save(quantized, str(tmp_path / "patient.onnx"))
    onnx.save(net, str(tmp_path / "float.onnx"))
    np.save(tmp_path / "images.npy", given)
    pair = tmp_path / "float.onnx", tmp_path / "patient.onnx"
    found = judge(collect(*pair, representative={"image": given}, validation={"image": judged}))
    code = write_prescription(found, tmp_path)
    assert found.causes[0].cause == fault.cause
    assert f"{fault.changed}  # changed by the remedy" in code or not fault.changed
    assert found.prescription is not None and set(found.prescription.given) == {"reader"}
    done = run_script(tmp_path, READER)
    assert done.returncode == 0, done.stderr
    assert noise(tmp_path, "int8.onnx", judged) < 0.2 * noise(tmp_path, "patient.onnx", judged)
    again = settings_in_force(derive(collect(pair[0], tmp_path / "int8.onnx", validation={"image": judged}), BASE))
    assert found.settings_in_force is not None
    kept = ("format", "activation_type", "symmetric_activations", "symmetric_weights", "float_layers")
    assert [getattr(again, key) for key in kept] == [getattr(found.settings_in_force, key) for key in kept]


def test_the_prescription_of_the_demo_heals_it(tmp_path: Path) -> None:
    (source, quantized), data = demo_patient()
    prepared = data["preprocessing"]["validation"]
    with np.load(data["validation"]) as stored:
        images, labels = stored["image"], stored["labels"]
    (mean,), (std,), scale = prepared.mean, prepared.std, prepared.scale
    judged = ((images / np.float64(scale) - mean) / std).astype(np.float32)
    found = judge(collect(source, quantized, **data))
    code = write_prescription(found, tmp_path)
    assert "per_channel=True,\n" in code and "reader = Feeds(repaired(" in code
    assert found.prescription is not None and set(found.prescription.given) == {"reader"}
    (tmp_path / "float.onnx").write_bytes(source.read_bytes())
    with np.load(data["representative"]) as stored:
        pixels = stored["image"]
    reference = (outputs(source, judged).argmax(axis=1) == labels).mean()
    assert reference - 0.01 > (outputs(quantized, judged).argmax(axis=1) == labels).mean()
    # The reader still has the mistake, or the user has mended it.
    for inputs in (data["preprocessing"]["representative"].apply(pixels), (pixels / np.float64(scale) - mean) / std):
        np.save(tmp_path / "images.npy", inputs.astype(np.float32))
        done = run_script(tmp_path, READER)
        assert done.returncode == 0, done.stderr
        top1 = (outputs(tmp_path / "int8.onnx", judged).argmax(axis=1) == labels).mean()
        assert top1 > reference - 0.01


def test_a_model_without_any_quantizer_shows_no_layers_to_keep_in_float(tmp_path: Path) -> None:
    onnx.save(clipped_net(1.0), str(tmp_path / "float.onnx"))
    onnx.save(clipped_net(1.0), str(tmp_path / "patient.onnx"))
    pair = tmp_path / "float.onnx", tmp_path / "patient.onnx"
    shown = settings_in_force(derive(collect(*pair, validation={"image": samples(1)}), BASE))
    assert not shown.float_layers and shown.weight_type is None


def test_a_setting_that_the_model_does_not_show_is_not_stated() -> None:
    assert not options_in_force(TOOLCHAIN, "quantize_static", SettingsInForce())
    assert options_in_force(TOOLCHAIN, "quantize_static", SettingsInForce(reduced_range=True)) == {"reduce_range": True}
