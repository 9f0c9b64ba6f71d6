"""The search for the best calibration through API and command line: found, printed, refused."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builders.commands import run_quantmedic
from builders.onnx_models import conv_net, images, qdq, save_pair

import quantmedic
from quantmedic.api.rulebase import load_rulebase
from quantmedic.cli.search import search as command
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.demo import patient
from quantmedic.engine.contract.searches import CalibrationsRecord
from quantmedic.engine.errors import DataError, ModelError, RuleError
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.reports.search_formats import render_search, search_markdown
from quantmedic.trials.calibration_search import settings_of

TWO = ("min-max", "entropy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, its quantized twin, and data with and without labels."""
    folder = tmp_path_factory.mktemp("calibrations")
    model = conv_net()
    save_pair(folder, model, qdq(model, {"image": images()}))
    pixels = images(96)
    np.savez(folder / "rep.npz", image=pixels[:32])
    np.savez(folder / "val.npz", image=pixels[32:])
    np.savez(folder / "labelled.npz", image=pixels[32:], labels=np.arange(64) % 3)
    return folder


@pytest.fixture(scope="module")
def record(folder: Path) -> CalibrationsRecord:
    data: dict[str, Any] = {"representative": folder / "rep.npz", "validation": folder / "val.npz"}
    return quantmedic.search("calibrations", folder / "float.onnx", methods=TWO, threads=1, **data)


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_quantmedic("search", "calibrations", *arguments, "--threads", 1, cwd=cwd)


@pytest.mark.thorough
def test_sessions_of_the_toolchain_warn_of_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They would write past Python, with escape sequences, of a name that the model's author chose."""
    model = onnx.load(str(folder / "float.onnx"))
    for weight in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    onnx.save(model, str(folder / "warned.onnx"))
    data: dict[str, Any] = {"representative": folder / "rep.npz", "validation": folder / "val.npz"}
    quantmedic.search("calibrations", folder / "warned.onnx", methods=["min-max"], threads=1, **data)
    assert "\x1b" not in capfd.readouterr().err


@pytest.mark.thorough
def test_the_text_of_the_winner_states_its_choices(record: CalibrationsRecord) -> None:
    assert len(record.settings) == 8
    best = record.best
    assert best is not None and record.settings[0] == best and best.standing == "best"
    assert record.validation_samples == 64 and record.configuration is not None
    assert f"CalibrationMethod.{'MinMax' if best.choices['method'] == 'min-max' else 'Entropy'}" in (
        record.configuration.code
    )
    assert f"per_channel={best.choices['weights'] == 'per-channel'}" in record.configuration.code
    assert record.given == {"reader": "the calibration data reader that you quantize with"}


@pytest.mark.thorough
@pytest.mark.source("horizon-percentile-trend")
def test_console_says_winner_options_and_what_was_not_judged(record: CalibrationsRecord) -> None:
    text = render_search(record)
    words = " ".join(text.split())
    assert "8 settings of ONNX Runtime" in text
    assert "calibrated on 32 samples of rep.npz" in text
    assert "by the SQNR at the output in dB, median over samples: there are no labels" in words
    assert "Its model was made by the text below, run as printed" in words
    assert "The same for Horizon OpenExplorer, hb_mapper" in text and "calibration_type: max" in text
    assert "Not judged: Sony MCT: it takes torch models" in text
    before_code = text.split("For ONNX Runtime:")[0]
    assert all(len(line) <= 100 for line in before_code.splitlines())
    for row in record.settings:
        assert row.choices["method"] in search_markdown(record)


@pytest.mark.thorough
@pytest.mark.source("horizon-calibration-search")
def test_horizon_gets_the_same_choices(record: CalibrationsRecord) -> None:
    forms = {other.form: other for other in record.others}
    assert set(forms) == {"hb_mapper", "quant_config"}
    assert record.best is not None
    mapper = yaml.safe_load(forms["hb_mapper"].configuration.code)["calibration_parameters"]
    assert mapper["calibration_type"] == ("max" if record.best.choices["method"] == "min-max" else "kl")
    assert ("optimization" in mapper) == (record.best.choices["activations"] == "asymmetric")
    config = json.loads(forms["quant_config"].configuration.code)["model_config"]["activation"]
    assert config["asymmetric"] == (record.best.choices["activations"] == "asymmetric")
    always = record.best.choices["weights"] == "per-channel"
    assert forms["hb_mapper"].lacking == (() if always else ("weights per-tensor",))
    assert any("weights always have a scale per channel" in note for note in forms["hb_mapper"].notes)


@pytest.mark.source("horizon-percentile-values")
def test_the_percentiles_of_the_guide_are_tried_and_printed_as_its_options() -> None:
    toolchains = load_rulebase().toolchains
    methods = [f"percentile {value:g}" for value in (99.999, 99.995, 99.99, 99.95, 99.9)]
    searched = settings_of(find_toolchain("ort", toolchains), methods)
    assert list(dict.fromkeys(setting.choices["method"] for setting in searched)) == methods
    horizon = settings_of(find_toolchain("horizon", toolchains), methods)
    printed = [each.configuration.code for each in horizon if each.form == "hb_mapper"]
    wanted = (0.99999, 0.99995, 0.9999, 0.9995, 0.999)
    assert {yaml.safe_load(code)["calibration_parameters"]["max_percentile"] for code in printed} == set(wanted)


@pytest.mark.nightly
def test_the_healthy_patient_by_its_metric(tmp_path: Path) -> None:
    (source, _), options = patient(healthy=True)
    record = quantmedic.search("calibrations", source, threads=1, methods=["min-max", "percentile 99.99"], **options)
    assert record.labelled_by == "top1"
    assert record.best is not None and record.best.metric is not None and record.float_metric is not None
    assert record.best.metric.value > record.float_metric - 0.03
    known = [row for row in record.settings if row.standing in ("best", "as-good")]
    assert all(row.behind is None or row.behind.low <= 0 for row in known)


@pytest.mark.thorough
def test_the_command_writes_all_files(folder: Path, tmp_path: Path) -> None:
    done = run("float.onnx", "-r", "rep.npz", "-v", "labelled.npz", "--methods", "min-max", "-o", tmp_path, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "judged on 64 samples of labelled.npz, by top-1" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "calibrations.txt", "calibrations.md", "calibrations.json", "prescription.py", "hb_mapper.yaml",
        "quant_config.json",
    }  # fmt: skip
    stored = CalibrationsRecord.model_validate_json((tmp_path / "calibrations.json").read_text())
    assert stored.configuration is not None
    for pasted in (stored.configuration, *(other.configuration for other in stored.others)):
        assert (tmp_path / pasted.file).read_text() == pasted.code


def test_a_missing_set_names_its_option(folder: Path) -> None:
    with pytest.raises(DataError) as error:
        quantmedic.search("calibrations", folder / "float.onnx", representative=None, validation=folder / "val.npz")
    assert "no calibration data was given" in str(error.value)
    with pytest.raises(DataError) as error:
        quantmedic.search("calibrations", folder / "float.onnx", representative=folder / "rep.npz", validation=None)
    assert "took no part in calibration" in str(error.value)


def test_what_cannot_be_searched_says_what_can(folder: Path) -> None:
    data: dict[str, Any] = {"representative": folder / "rep.npz", "validation": folder / "val.npz"}
    with pytest.raises(ModelError, match="the model is quantized already"):
        quantmedic.search("calibrations", folder / "quantized.onnx", **data)
    with pytest.raises(ModelError) as error:
        quantmedic.search("calibrations", folder / "float.onnx", toolchain="horizon", **data)
    assert "it searches those of ONNX Runtime, and prints" in str(error.value)
    assert "as options of Horizon OpenExplorer too, of no other toolchain" in str(error.value)
    with pytest.raises(RuleError) as rule:
        quantmedic.search("calibrations", folder / "float.onnx", methods=["percentile 99.98"], **data)
    assert "did you mean 'percentile 99.9" in str(rule.value)
    with pytest.raises(DataError, match="a metric needs labels"):
        quantmedic.search("calibrations", folder / "float.onnx", metric="top1", **data)


def test_the_option_names_what_can_be_searched() -> None:
    assert command.help is not None
    toolchains = load_rulebase().toolchains
    searched = [each for each in toolchains if any(ways.framework for ways in each.calibrations.values())]
    named = re.findall(r"(\w+) for ", command.help.partition("serves best (")[2].partition(")")[0])
    assert sorted(find_toolchain(name, toolchains).title for name in named) == sorted(each.title for each in searched)


@pytest.mark.thorough
def test_the_printed_reader_has_to_prepare_samples_as_here(folder: Path) -> None:
    found = quantmedic.search(
        "calibrations",
        folder / "float.onnx",
        representative=folder / "rep.npz",
        validation=folder / "val.npz",
        preprocessing={"representative": Preprocessing(scale=255, mean=(0.286, 0.3, 0.2), std=(0.353,))},
        methods=["min-max"],
        threads=1,
    )
    assert "scale=255" in found.given["reader"] and "std=0.353" in found.given["reader"]
    assert "mean=0.286,0.3,0.2" in found.given["reader"]
    words = " ".join(render_search(found).split())
    assert f"note: reader: {found.given['reader']}" in words


@pytest.mark.thorough
def test_judging_on_the_samples_that_calibrate_is_warned_of(folder: Path) -> None:
    path = folder / "rep.npz"
    found = quantmedic.search(
        "calibrations", folder / "float.onnx", representative=path, validation=path, methods=["min-max"], threads=1
    )
    assert any("judged on the samples that calibrated" in warning for warning in found.warnings)


def test_values_that_are_not_finite_are_refused(folder: Path) -> None:
    pixels = np.load(folder / "val.npz")["image"].copy()
    pixels[3] = np.nan
    with pytest.raises(ModelError, match="gives NaN or infinite values at output"):
        quantmedic.search(
            "calibrations", folder / "float.onnx", representative=folder / "rep.npz", validation=pixels, threads=1
        )
