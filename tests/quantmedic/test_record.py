"""Outputs that one installation records, and another one compares with its own."""

import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, qdq, random
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.collect import collect as record
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import evaluate

X = random(3, 24, 3, 8, 8)


def pair(folder: Path) -> list[str]:
    net = Net()
    net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), random(2, 4), out="scores")
    net.output("scores", shape=["n", 4, None, None])
    paths = [str(folder / name) for name in ("float.onnx", "int8.onnx")]
    for path, model in zip(paths, (net.model(), qdq(net.model(), {"image": X})), strict=True):
        onnx.save(model, path)
    np.savez(folder / "val.npz", image=X)
    return paths


def recorded(folder: Path, paths: list[str]) -> Path:
    told = CliRunner().invoke(
        record, [*paths, "-v", str(folder / "val.npz"), "--outputs-only", str(folder / "here.npz")]
    )
    assert told.exit_code == 0, told.output
    assert told.output.startswith("24 samples by onnxruntime ")
    return folder / "here.npz"


def altered(file: Path, scale: float, sqnr_db: float) -> Path:
    """The recording of an installation that computes something else."""
    with np.load(file) as archive:
        outputs = {"scores": archive["scores"] * scale}
    with zipfile.ZipFile(file) as archive:
        told, hashes = json.loads(archive.read("recording.json")), archive.read("recording.hashes")
    other = file.with_name("there.npz")
    np.savez(other, **outputs)
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr("recording.json", json.dumps(told | {"runtime": "onnxruntime 0.9", "sqnr_db": sqnr_db}))
        archive.writestr("recording.hashes", hashes)
    return other


def device_of(folder: Path, paths: list[str], file: Path) -> tuple[object, list[str]]:
    case = quantmedic.collect(*paths, validation=folder / "val.npz", device_outputs=file, attribution=False)
    base = quantmedic.load_rulebase()
    facts = derive(case, base)
    return facts.model.device, [result.rule.id for result in evaluate(base, facts) if result.findings]


def test_the_same_installation_agrees_with_itself(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    device, rules = device_of(tmp_path, paths, recorded(tmp_path, paths))
    assert device.noise_ratio == 0 and device.samples == 24
    assert device.recorded_sqnr_db > 20
    assert not {"R002", "R009"} & set(rules)


@pytest.mark.parametrize(("sqnr_db", "rule"), [(6.0, "R010"), (90.0, "R009")])
def test_the_worse_installation_is_named(tmp_path: Path, sqnr_db: float, rule: str) -> None:
    paths = pair(tmp_path)
    device, rules = device_of(tmp_path, paths, altered(recorded(tmp_path, paths), 1.5, sqnr_db))
    assert device.runtime == "onnxruntime 0.9" and device.recorded_sqnr_db == sqnr_db
    assert {"R002", "R009", "R010"} & set(rules) == {rule}


def test_outputs_of_other_samples_and_of_another_file_are_refused(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    file = recorded(tmp_path, paths)
    np.savez(tmp_path / "val.npz", image=X[::-1])
    with pytest.raises(DataError, match="recorded of other samples"):
        device_of(tmp_path, paths, file)
    model = onnx.load(paths[1])
    model.doc_string = "another one"
    onnx.save(model, paths[1])
    with pytest.raises(DataError, match="recorded of another quantized model"):
        device_of(tmp_path, paths, file)


def test_a_damaged_description_is_said(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    many = {"runtime": "", "processor": "", "quantized_sha256": None, "sqnr_db": None, "samples": 10**24}
    for content in ("", "[]", "{", '{"samples": 0}', "[" * 100_000, json.dumps(many)):
        file = tmp_path / "broken.npz"
        np.savez(file, scores=X)
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("recording.json", content)
        with pytest.raises(QuantmedicError, match=r"outputs is damaged|has too many samples"):
            device_of(tmp_path, paths, file)


def test_nothing_is_recorded_without_samples(tmp_path: Path) -> None:
    told = CliRunner().invoke(record, [*pair(tmp_path), "--outputs-only", str(tmp_path / "here.npz")])
    assert isinstance(told.exception, DataError) and "outputs of what" in str(told.exception)
    assert not (tmp_path / "here.npz").exists()


def test_one_file_twice_is_no_pair(tmp_path: Path) -> None:
    """By its content, under whatever names."""
    float_model, _ = pair(tmp_path)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(Path(float_model).read_bytes())
    told = CliRunner().invoke(
        record, [float_model, str(copy), "-v", str(tmp_path / "val.npz"), "--outputs-only", str(tmp_path / "here.npz")]
    )
    assert isinstance(told.exception, DataError) and "both are the same file" in str(told.exception)
    assert not (tmp_path / "here.npz").exists()
