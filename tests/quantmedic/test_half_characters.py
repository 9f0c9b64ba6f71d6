"""Halves of characters, in a file and in names of files: text in every output, never an internal error."""

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough


def with_halves(value: Any) -> Any:
    """A record with half of a character in every name."""
    if isinstance(value, list):
        return [with_halves(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    named = {"name", "float_name", "quantized_name", "notices"}
    return {
        key: f"{inner}\ud800" if key in named and isinstance(inner, str) else with_halves(inner)
        for key, inner in value.items()
    }


@pytest.fixture(scope="module")
def folder(patient_case: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case with halves in its names, a baseline of it, and models under names that are no UTF-8."""
    folder = tmp_path_factory.mktemp("halves")
    shutil.copy(patient_case, folder / "sound.case")
    with zipfile.ZipFile(folder / "sound.case") as sound, zipfile.ZipFile(folder / "x.case", "w") as made:
        for name in sound.namelist():
            content = sound.read(name)
            if name == "case.json":
                record = json.loads(content)
                content = json.dumps(with_halves(record)).encode()
                assert content.count(b"ud800") > 100
            made.writestr(name, content)
    return folder


OUTPUTS = (
    "show x.case --table all",
    "diagnose x.case -o out --format html --format markdown --format json --format png",
    "check x.case -o out --format sarif --format junit --format markdown --format json",
    "check x.case --format junit -o out",
    "compare x.case sound.case -o out",
    "check x.case --write-baseline b.json",
    "check x.case --baseline b.json",
    "show x.case --csv layers.csv",
)


@pytest.mark.nightly
def test_halves_in_a_case_reach_every_output_as_text(folder: Path) -> None:
    for command in OUTPUTS:
        done = run_quantmedic(*command.split(), cwd=folder)
        assert done.returncode in (0, 1) and "internal error" not in done.stderr, (command, done.stderr)
    for path in [*folder.rglob("*.json"), *folder.rglob("*.sarif")]:
        text = path.read_text(encoding="utf-8")
        assert r"\\ud800" in text
        json.dumps(json.loads(text), ensure_ascii=False).encode()  # as other readers of JSON insist on it


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are Unicode there")
def test_names_of_files_that_are_no_text_reach_every_output(tmp_path: Path) -> None:
    (float_model, quantized), _ = patient()
    odd = tmp_path / "q\udcff.onnx"
    shutil.copy(quantized, odd)
    case = quantmedic.collect_static(float_model, odd)
    quantmedic.save_case(case, tmp_path / "a.case")
    for each in (case, quantmedic.load_case(tmp_path / "a.case")):
        quantmedic.write_report(
            quantmedic.judge(each), tmp_path / "out", formats=["html", "markdown", "json"], case=each
        )
        assert r"q\\udcff.onnx" in (tmp_path / "out" / "report.json").read_text()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are Unicode there")
def test_a_folder_of_samples_with_such_names_has_a_fingerprint(tmp_path: Path) -> None:
    for name in (b"a\xff.npy", b"b\xff.npy"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            np.save(file, np.zeros((2, 2), np.float32))
    inputs = [InputSpec("x", (None, 2, 2), np.dtype(np.float32))]
    data = open_dataset(tmp_path, inputs, preprocessing=Preprocessing(), role="validation")
    assert len(data.fingerprint() or "") == 64
