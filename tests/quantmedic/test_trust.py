"""What lets a report be trusted later: versions, options and hashes, and nothing of the machine that made it."""

import getpass
import json
import os
import platform
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import quantmedic
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.reports.sections.run import run_lines

pytestmark = pytest.mark.thorough

CANARY = "canary-folder-4711"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and data in a folder with a telling name."""
    place = tmp_path_factory.mktemp("trust") / CANARY
    (float_model, quantized), options = patient()
    place.mkdir()
    for path in (float_model, quantized, options["representative"], options["validation"]):
        shutil.copy(path, place)
    return place


@pytest.fixture(scope="module")
def case(folder: Path) -> Case:
    (float_model, quantized), options = patient()
    for role in ("representative", "validation"):
        options[role] = folder / options[role].name
    return quantmedic.collect(folder / float_model.name, folder / quantized.name, samples=64, threads=1, **options)


def test_nothing_of_the_machine_is_in_any_file(case: Case, folder: Path) -> None:
    report = folder / "report"
    quantmedic.write_report(quantmedic.judge(case), report, case=case)
    written = [path for path in report.rglob("*.*") if path.suffix in (".html", ".md", ".json")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in written}
    texts["case.json"] = zipfile.ZipFile(report / "quantmedic.case").read("case.json").decode()
    assert {"index.html", "report.md", "report.json"} <= set(texts)
    secrets = {CANARY, str(Path.home()), os.getcwd(), platform.node()} | {f"/{getpass.getuser()}/"}
    for name, text in texts.items():
        for secret in secrets - {"", "/"}:
            assert secret not in text, f"{name} tells {secret}"


def test_the_run_names_and_hashes_models_and_data(case: Case) -> None:
    diagnosis = quantmedic.judge(case)
    lines = dict(run_lines(diagnosis.run))
    assert lines["float model"] == "float.onnx" and len(lines["float model · sha256"]) == 64
    assert lines["data · validation · origin"] == "validation.npz"
    assert lines["data · validation · samples"] == "64" and lines["samples of each set at most"] == "64"
    assert lines["data · validation · sha256 of first inputs and labels, in any order"] == case.samples_sha256(
        "validation"
    )
    assert lines["seed"] == "0" and lines["metric"] == "top1" and lines["output that the metric reads"] == "the first"
    assert "preprocessing · validation · scale" in lines
    assert {"onnxruntime", "onnx", "numpy", "python"} <= set(lines)
    assert json.loads(json.dumps(diagnosis.model_dump(mode="json")["run"]))["data"]["validation"]["samples"] == 64


def test_the_hash_of_samples_knows_content_and_labels_not_their_order(case: Case) -> None:
    statistics = case.statistics["validation"]
    before, known = statistics.samples.copy(), case.samples_sha256("validation")
    statistics.samples = np.random.default_rng(0).permutation(before)
    assert case.samples_sha256("validation") == known
    for column in ("hash", "label"):
        statistics.samples = before.copy()
        statistics.samples[column][5] += 1
        assert case.samples_sha256("validation") != known
    statistics.samples = before[:-1]
    assert case.samples_sha256("validation") != known
    statistics.samples = before
