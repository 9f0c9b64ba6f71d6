"""The reader over data as ``diagnose`` takes them, and the script that runs a prescription with it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, images, static
from onnxruntime.quantization import quantize_static

import quantmedic
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import DataError
from quantmedic.reports.sections.prescription_run import FILE, can_run, run_files

pytestmark = pytest.mark.thorough

PIXELS = np.clip(np.round(images(24) * 60 + 128), 0, 255).astype(np.uint8)


def as_network(pixels: np.ndarray) -> np.ndarray:
    return ((pixels.astype(np.float32) / 255 - 0.5) / 0.25).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float model, stored pixels, and a model that was calibrated on values that are 400 times as large."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_net(), "float.onnx")
    onnx.save(static(conv_net(), {"image": as_network(PIXELS) * 400}, tmp_path), "patient.onnx")
    np.savez("rep.npz", image=PIXELS)
    return tmp_path


def test_the_reader_gives_every_sample_as_the_network_takes_it_and_again(folder: Path) -> None:
    reader = quantmedic.calibration_reader("float.onnx", "rep.npz", scale=255.0, mean=(0.5,), std=(0.25,))
    for _ in range(2):
        feeds = [*iter(reader.get_next, None)]
        assert {name for feed in feeds for name in feed} == {"image"}
        assert np.allclose(np.concatenate([feed["image"] for feed in feeds]), as_network(PIXELS), atol=1e-5)
        reader.rewind()
    limited = quantmedic.calibration_reader("float.onnx", "rep.npz", scale=255.0, samples=8)
    assert sum(len(feed["image"]) for feed in iter(limited.get_next, None)) == 8
    quantize_static("float.onnx", "new.onnx", reader)
    assert Path("new.onnx").is_file()


def test_data_that_do_not_fit_are_refused(folder: Path) -> None:
    with pytest.raises(DataError):
        quantmedic.calibration_reader("float.onnx", np.zeros((4, 7), np.float32))
    with pytest.raises(DataError):
        quantmedic.calibration_reader("float.onnx", "rep.npz", scale=-1.0)


@pytest.fixture
def found(folder: Path) -> Diagnosis:
    prepared = {"scale": 255.0, "mean": (0.5,), "std": (0.25,)}
    both = dict.fromkeys(("representative", "validation"), Preprocessing(**prepared))
    return quantmedic.diagnose(
        "float.onnx", "patient.onnx", representative="rep.npz", validation="rep.npz", preprocessing=both,
        output="report", prove=False,
    )  # fmt: skip


def test_the_script_beside_a_prescription_runs_it_on_the_data(found: Diagnosis, folder: Path) -> None:
    assert found.verdict == "degraded" and (folder / "report" / FILE).is_file()
    command = [sys.executable, str(Path("report", FILE)), "float.onnx", "rep.npz", "made.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "wrote made.onnx"
    healed = quantmedic.diagnose("float.onnx", "made.onnx", validation=as_network(PIXELS))
    assert healed.verdict == "healthy"
    text = (folder / "report" / FILE).read_text()
    assert all(declared in text for declared in ("scale=255.0", "mean=(0.5,)", "std=(0.25,)"))
    assert str(folder) not in text, "a report names no folder of this machine"


def test_what_is_no_preprocessing_makes_no_script(found: Diagnosis) -> None:
    """A case may come from anywhere, and the script would run what it says."""
    assert can_run(found)
    for declared in (
        {"scale": "1); import os"},
        {"mean": ["x"]},
        {"layout": 'NHWC")'},
        {"other": 1.0},
        {"scale": float("nan")},
    ):
        hostile = found.model_copy(update={"run": {**found.run, "preprocessing": {"representative": declared}}})
        assert not can_run(hostile) and not list(run_files(hostile))
