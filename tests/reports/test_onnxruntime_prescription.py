"""The prescription for onnxruntime: the pasted file itself heals, in a process of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import onnx_models
from builders.tiers import others_nightly
from numpy.typing import NDArray
from onnxruntime.quantization import QuantFormat, QuantType

from quantmedic import collect, judge, load_rulebase
from quantmedic.demo import patient as demo_patient
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.toolchain import find_toolchain
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


def clipped_net(widest: float) -> onnx.ModelProto:
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
    net.output(x, shape=["n", 10])
    return net.model()


def samples(seed: int, count: int = 128) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype(np.float32)


def write_script(folder: Path, given: str) -> None:
    """``run.py``, which runs ``prescription.py`` with the names that the user gives and no others."""
    (folder / "run.py").write_text(f'import numpy as np\n{given}\nexec(open("prescription.py").read())\n')


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


@pytest.mark.parametrize("name", others_nightly(FAULTS))
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


@pytest.mark.nightly
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
