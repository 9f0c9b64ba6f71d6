"""PyTorch modules through the public API and the command line: a calibration mistake is named, proven and reported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import quantmedic
from quantmedic.cli.main import main

pytestmark = pytest.mark.thorough

MODULE = '''
import warnings

warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(16, 6)

    def forward(self, image):
        x = torch.relu(self.norm(self.first(image)))
        y = nn.functional.silu(self.second(x) + x)
        return self.last(torch.cat([x, y], 1).mean((2, 3)))


def images():
    coarse = torch.randint(0, 256, (96, 3, 3, 3), generator=torch.Generator().manual_seed(3)).float()
    return nn.functional.interpolate(coarse, size=12, mode="bilinear").round() / 255


def float_model():
    torch.manual_seed(0)
    network = Net().eval()
    network.norm.running_mean.normal_(0, 0.3)
    network.norm.running_var.uniform_(0.5, 2)
    with torch.no_grad():  # class scores far enough apart to count
        network.last.bias -= network(images()).mean(0)
        network.last.weight *= 20
        network.last.bias *= 20
    return network


def quantized_model(factor=255):
    prepared = quantize_fx.prepare_fx(float_model(), get_default_qconfig_mapping("qnnpack"), (images()[:1],))
    with torch.no_grad():
        prepared(images() * factor)
    return quantize_fx.convert_to_reference_fx(prepared)


def calibration():
    for batch in images().split(32):
        yield [batch * 255]


def validation():
    labels = float_model()(images()).argmax(1)
    yield from zip(images().split(32), labels.split(32))


def clear_cases():
    """Images that the float network is sure of: no rounding to eight bits turns its mind."""
    best, second = float_model()(images()).topk(2, 1).values.T
    yield images()[best - second > (best - second).median()]


def broken():
    raise RuntimeError("no such checkpoint")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules")
    (path / "torch_patients.py").write_text(MODULE)
    return path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quantmedic", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.nightly
def test_a_calibration_mistake_is_named_and_proven_on_the_command_line(folder: Path) -> None:
    models = ("torch_patients:float_model", "torch_patients:quantized_model")
    data = ("-r", "torch_patients:calibration", "-v", "torch_patients:validation")
    done = run(folder, "diagnose", *models, *data, "--prove", "--budget", "40s", "--verbose", "-o", "report")
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report/report.json").read_text())
    assert report["verdict"] == "degraded"
    first = report["causes"][0]
    assert first["cause"] == "preprocessing-mismatch" and first["proven"]
    assert first["measured_gain_db"] > 10
    assert "classes of torch.ao" in done.stdout  # the prescription is for the toolchain that made the model
    assert "torch QDQ" in done.stdout


def test_ranges_of_other_inputs_are_told_by_their_factor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The representative inputs are right, and the observers saw others."""
    monkeypatch.syspath_prepend(str(folder))
    import torch_patients

    network, quantized = torch_patients.float_model(), torch_patients.quantized_model(0.1)
    images = torch_patients.images().numpy()
    diagnosis = quantmedic.diagnose(network, quantized, representative=images, validation=torch_patients.validation)
    first = diagnosis.causes[0]
    assert (first.cause, first.rules[0], first.remedies[0].id) == (
        "stale-calibration",
        "D018",
        "calibrate-again",
    )
    assert "(range 1 / 10)" in first.message


def test_healthy_modules_are_healthy_and_untouched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    import torch
    import torch_patients

    network, quantized = torch_patients.float_model(), torch_patients.quantized_model(factor=1)
    tensors = {name: own for name, own in quantized.state_dict().items() if isinstance(own, torch.Tensor)}
    before = {name: own.clone() for name, own in tensors.items()}
    diagnosis = quantmedic.diagnose(network, quantized, validation=torch_patients.clear_cases)
    assert diagnosis.verdict == "healthy"
    assert {layer.name for layer in diagnosis.layers} >= {"first", "second", "last"}
    assert all(torch.equal(before[name], own) for name, own in tensors.items())


def test_fallback_and_sensitivity_take_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    import torch_patients

    models = torch_patients.float_model(), torch_patients.quantized_model(factor=1)
    record = quantmedic.search("sensitivity", *models, validation=torch_patients.validation, modes=("one",))
    assert {unit.name for unit in record.units} >= {"first", "second", "last"}
    reached = record.simulated.sqnr_db
    assert reached is not None
    found = quantmedic.search("fallback", *models, validation=torch_patients.validation, min_sqnr_db=reached + 3)
    assert found.found and 0 < len(found.layers) < len(found.units)
    assert found.check is not None and found.check.failed is None


def test_what_is_no_module_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: one of its own would import torch each time."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for model, told in (
        ("torch_patients:broken", "no such checkpoint"),
        ("torch_patients:images", "no torch.nn.Module"),
        ("torch_patients:missing", "has no such function"),
        ("float.onnx", "one model is a file"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["diagnose", model, "torch_patients:quantized_model", "-v", "torch_patients:validation", "-o", "none"])
        said = capsys.readouterr().err
        assert left.value.code == 2
        assert told in said and "Traceback" not in said
        assert not (folder / "none").exists()
