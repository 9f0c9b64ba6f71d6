"""``--prove`` and ``--write-fixed`` as a newcomer types them."""

import json
import subprocess
from pathlib import Path

import onnxruntime as ort
import pytest
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_quantmedic("demo", *arguments)


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("proven")
    return folder, run("--prove", "--verbose", "--write-fixed", folder / "fixed.onnx", "-o", folder / "report")


@pytest.mark.nightly
def test_the_mistake_is_proven_and_repaired(proven):
    folder, done = proven
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report" / "report.json").read_text())
    first = report["causes"][0]
    assert first["cause"] == "preprocessing-mismatch"
    assert first["proven"]
    assert first["measured_gain_metric"] > 0.7
    assert "do this first" in done.stdout
    assert "What was tried" in done.stdout
    assert "degraded → healthy" in done.stdout
    assert (folder / "report" / "prescription.py").is_file()


@pytest.mark.nightly
def test_the_repaired_model_is_whole(proven):
    folder, _ = proven
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["fixed.onnx"]
    inputs = ort.InferenceSession(str(folder / "fixed.onnx")).get_inputs()
    assert [value.name for value in inputs] == ["image"]


@pytest.mark.nightly
def test_nothing_is_repaired_of_a_healthy_model(tmp_path):
    done = run("--healthy", "--write-fixed", tmp_path / "fixed.onnx", "-o", tmp_path / "report", "-q")
    assert done.returncode == 0
    assert "nothing to repair" in done.stdout
    assert not (tmp_path / "fixed.onnx").exists()


def test_what_cannot_be_is_said_before_anything_is_measured(tmp_path):
    for arguments, said in (
        (("--no-prove", "--budget", "5m"), "the time for --prove; leave out --no-prove"),
        (("--prove", "--budget", "soon"), "'soon' is not a valid duration, e.g. 90s or 5m"),
        (("--prove", "--budget", "0s"), "'0s' is not a valid duration"),
        (("--write-fixed", patient()[0][1]), "the repaired model would replace one of yours"),
        (("--write-fixed", "/dev/null/fixed.onnx"), "the output folder is a file"),
    ):
        done = run(*arguments, "-o", tmp_path / "report")
        assert done.returncode == 2
        assert said in done.stderr and "Traceback" not in done.stderr
        assert not (tmp_path / "report").exists()
    for seconds in (0, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="give seconds above 0"):
            quantmedic.diagnose("float.onnx", "int8.onnx", validation="val.npz", prove=seconds)


@pytest.mark.nightly
def test_a_budget_for_nothing_leaves_the_diagnosis(tmp_path):
    done = run("--prove", "--budget", "0.001", "-o", tmp_path / "report", "-q")
    assert done.returncode == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["proof"] is None
    assert any("too short for any trial" in warning for warning in report["warnings"])


@pytest.mark.nightly
def test_what_leads_is_proven_without_being_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE")
    assert run("-o", tmp_path / "report").returncode == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["prescription"]["grade"] == "executed"
    assert report["proof"]["best"] is not None
    assert run("--no-prove", "-o", tmp_path / "report").returncode == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["proof"] is None
    assert report["prescription"]["grade"] == "simulated"
