"""``quantmedic fix``: a model that measures better, or the reason why there is none."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough

DEMO = Path(str(patient()[0][0])).parent
PIXELS = ("-p", "scale=255", "-p", "validation.mean=0.286", "-p", "validation.std=0.353")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_quantmedic("fix", *arguments)


def test_the_prescription_is_carried_out_and_the_model_measured(tmp_path: Path) -> None:
    fixed, report = tmp_path / "fixed.onnx", tmp_path / "repair"
    data = ("-r", DEMO / "representative.npz", "-v", DEMO / "validation.npz", *PIXELS)
    data += ("-p", "representative.mean=0", "-p", "representative.std=1", "--samples", 128)
    done = run(DEMO / "float.onnx", DEMO / "int8.onnx", *data, "-o", fixed, "--report", report)
    assert done.returncode == 0, done.stderr
    assert "degraded → healthy" in done.stdout
    assert "made by its toolchain, as the prescription says" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fixed.onnx", "repair"]
    assert json.loads((report / "before" / "report.json").read_text())["prescription"]["grade"] == "executed"
    assert json.loads((report / "after" / "report.json").read_text())["verdict"] == "healthy"
    assert json.loads((report / "compare.json").read_text())["word"] == "healed"


@pytest.mark.nightly
def test_what_no_repair_changes_is_told_with_what_to_do(tmp_path: Path) -> None:
    """One validation sample that is no number: neither more samples nor more time would decide."""
    with np.load(DEMO / "validation.npz") as archive:
        images, labels = archive["image"][:64].astype(np.float32), archive["labels"][:64]
    images[5, 0, 3, 3] = np.nan
    np.savez(tmp_path / "validation.npz", image=images, labels=labels)
    data = ("-r", DEMO / "representative.npz", "-v", tmp_path / "validation.npz", *PIXELS)
    data += ("-p", "representative.mean=0", "-p", "representative.std=1", "--report", tmp_path / "repair")
    done = run(DEMO / "float.onnx", DEMO / "int8.onnx", *data, "-o", tmp_path / "fixed.onnx")
    assert done.returncode == 1 and not (tmp_path / "fixed.onnx").exists()
    said = " ".join(done.stdout.split())
    assert "help: 1 of 64 samples of the validation set contain NaN or infinity: sample 5, counted from 0" in said
    assert "put the named validation samples right, or leave them out, and judge again" in said
    assert "larger --budget" not in said
    report = json.loads((tmp_path / "repair" / "before" / "report.json").read_text())
    assert report["causes"][0]["rules"] == ["S028"] and report["causes"][0]["absorbs"] == []
    assert "preprocessing-mismatch" in [cause["cause"] for cause in report["causes"]], "no sample hides other causes"


@pytest.mark.nightly
def test_a_healthy_model_is_left_alone(tmp_path: Path) -> None:
    data = ("-r", DEMO / "representative_healthy.npz", "-v", DEMO / "validation.npz", *PIXELS)
    data += ("-p", "representative.mean=0.286", "-p", "representative.std=0.353")
    done = run(DEMO / "float.onnx", DEMO / "int8_healthy.onnx", *data, "-o", tmp_path / "fixed.onnx")
    assert done.returncode == 0, done.stderr
    assert "nothing was written: int8_healthy.onnx is healthy: there is nothing to repair" in done.stdout
    assert "help:" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_users_is_never_replaced() -> None:
    before = (DEMO / "int8.onnx").read_bytes()
    done = run(DEMO / "float.onnx", DEMO / "int8.onnx", "-v", DEMO / "validation.npz", "-o", DEMO / "int8.onnx")
    assert done.returncode == 2
    assert "the output would replace what is read" in done.stderr
    assert (DEMO / "int8.onnx").read_bytes() == before


@pytest.mark.nightly
def test_without_representative_data_a_copy_is_edited(tmp_path: Path) -> None:
    (source, quantized), data = patient()
    alone = {key: value for key, value in data.items() if key != "representative"}
    found = quantmedic.fix(source, quantized, tmp_path / "fixed.onnx", threads=1, **alone)
    assert found.grade == "edited" and found.model == tmp_path / "fixed.onnx"
    assert repr(found) == f"<Fixed int8.onnx: degraded -> healthy; edited: {tmp_path / 'fixed.onnx'}>"
    assert found.after is not None and found.after.verdict == "healthy"


def test_what_cannot_be_proven_is_not_written_and_what_lacks_is_said(tmp_path: Path) -> None:
    (source, quantized), data = patient()
    found = quantmedic.fix(source, quantized, tmp_path / "fixed.onnx", prove=1e-3, threads=1, **data)
    assert found.model is None and found.refused is not None
    assert repr(found) == f"<Fixed int8.onnx: degraded; refused: {found.refused}>"
    assert "budget" in found.refused
    assert not list(tmp_path.iterdir())
