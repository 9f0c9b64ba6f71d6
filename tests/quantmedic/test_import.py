"""Importing as a user does: files alone, files into a measured case, and files beside models."""

import csv
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import own
from builders.recordings import RECORDINGS
from builders.report_pages import unpacked
from click.testing import CliRunner, Result
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.cli.terminal import size_text
from quantmedic.demo import patient
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.reports.sections.imports import _badness

CSV = (
    "op_name,tensor_idx,num_elements,stddev,mean_error,max_abs_error,mean_squared_error,scale,zero_point,tensor_name\n"
    "CONV_2D,7,100,0.1,0.0,0.5,4.0,0.5,-5,net/conv1\n"
    "ADD,9,100,0.1,0.0,0.5,0.0016,0.1,0,net/add\n"
)


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=True)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "debug.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


@pytest.mark.thorough
def test_files_alone_are_told_saved_and_judged(tmp_path: Path, table: Path) -> None:
    case = tmp_path / "imported.case"
    result = run("import", table, "-o", case)
    assert result.exit_code == 0, result.output
    assert "table of LiteRT's QuantizationDebugger (TensorFlow converter)" in result.output
    assert "missing: no settings" in result.output
    assert f"wrote {case} ({size_text(case.stat().st_size)})" in result.output
    result = run("diagnose", case, "-o", tmp_path / "report")
    assert result.exit_code == 0, result.output
    assert "FAULTY  debug.csv  only toolchain files were judged" in result.output
    assert "A016 reported-layer-error" in result.output
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [row["file"] for row in report["imports"]] == ["debug.csv"]
    assert report["layers"][0]["reported"]["rmse_over_scale"] == 4.0
    assert report["causes"][0]["layers"][0]["float_name"] == "net/conv1"
    for name in ("index.html", "report.md"):
        text = (tmp_path / "report" / name).read_text()
        assert "Files of the toolchain" in text
        assert "net/conv1" in text
        assert "faulty" in text.lower() and "DEGRADED" not in text, "whether accuracy is lost is not known"
        assert "recognized by its files" in text
    assert report["verdict"] == "degraded"


def test_silence_is_no_pass(tmp_path: Path) -> None:
    """Thresholds alone tell of no error: that nothing was found is no verdict of health."""
    path = tmp_path / "extra.json"
    path.write_text('{"ActivationSymmetric": true, "SmothQuant": true}')
    diagnosis = quantmedic.judge(quantmedic.import_files(path))
    assert diagnosis.verdict == "not-comparable"
    assert [cause.cause for cause in diagnosis.causes] == ["unknown-settings-keys"]
    assert {note.rule for note in diagnosis.not_judged} >= {"D001", "S001"}
    assert quantmedic.write_report(diagnosis, tmp_path / "report", case=quantmedic.import_files(path))


def test_what_cannot_be_imported_leaves_nothing(tmp_path: Path, table: Path) -> None:
    table.write_text(CSV[:-20] + "\nADD,1\n")
    result = run("import", table, "-o", tmp_path / "a.case")
    assert isinstance(result.exception, DataError)
    assert "debug.csv:3" in str(result.exception)
    assert not (tmp_path / "a.case").exists()


def test_two_cases_and_no_file(tmp_path: Path, table: Path) -> None:
    case = tmp_path / "a.case"
    quantmedic.save_case(quantmedic.import_files(table), case)
    with pytest.raises(DataError, match="one case"):
        quantmedic.import_files(case, case, table)
    with pytest.raises(DataError, match="no file of a toolchain"):
        quantmedic.import_files(case)


class Reader(CalibrationDataReader):
    """Batches of one array."""

    def __init__(self, images: Any) -> None:
        self.batches = iter(images.reshape(-1, 16, *images.shape[1:]))

    def get_next(self) -> Any:
        batch = next(self.batches, None)
        return None if batch is None else {"image": batch}


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """The healthy network quantized from a cache of ONNX Runtime that was written before images were normalized."""
    (float_model, _), options = patient(healthy=True)
    folder = tmp_path_factory.mktemp("stale")
    with np.load(options["representative"]) as stored:
        images = ((stored["image"][:64].astype(np.float32) / 255 - 0.286) / 0.353).astype(np.float32)
    cache, model = folder / "calibration.json", folder / "int8.onnx"
    quantize_static(own(float_model, folder), folder / "other.onnx", Reader(images * 0.2), calibration_cache_path=cache)
    quantize_static(own(float_model, folder), model, Reader(images), calibration_cache_path=cache)
    fresh = folder / "fresh.json"
    quantize_static(own(float_model, folder), folder / "fresh.onnx", Reader(images), calibration_cache_path=fresh)
    return model, cache, {**options, "samples": 64}


@pytest.fixture(scope="module")
def measured(stale: tuple[Path, Path, dict[str, Any]]) -> Case:
    model, cache, options = stale
    return quantmedic.collect(patient(healthy=True)[0][0], model, **options, settings_files=[cache])


@pytest.mark.nightly
def test_a_stale_cache_is_found(measured: Case) -> None:
    diagnosis = quantmedic.judge(measured)
    first = diagnosis.causes[0]
    assert first.cause == "stale-calibration" and {"D016", "D018"} <= set(first.rules)
    assert diagnosis.model.settings.calibration_method == "minmax"
    assert {row.fact: row.value for row in first.evidence}["recorded.origin"] == "calibration.json"
    assert not [notice for notice in diagnosis.warnings if "in this model" in notice]


@pytest.mark.nightly
def test_into_a_measured_case_afterwards_it_is_the_same(
    stale: tuple[Path, Path, dict[str, Any]], measured: Case, tmp_path: Path
) -> None:
    model, cache, options = stale
    plain = quantmedic.collect(patient(healthy=True)[0][0], model, **options)
    quantmedic.save_case(plain, tmp_path / "plain.case")
    result = run("import", tmp_path / "plain.case", cache, "-o", tmp_path / "merged.case")
    assert result.exit_code == 0, result.output
    merged = quantmedic.load_case(tmp_path / "merged.case").record
    assert merged.imports == measured.record.imports
    assert [t.recorded for t in merged.tensors] == [t.recorded for t in measured.record.tensors]
    assert merged.model.settings == measured.record.model.settings
    assert "D016" in {note.rule for note in quantmedic.judge(plain).not_applicable}
    fresh = quantmedic.judge(quantmedic.import_files(tmp_path / "plain.case", cache.with_name("fresh.json")))
    assert fresh.causes[0].cause == "stale-calibration"
    rules = {rule.rule for rule in fresh.causes[0].absorbs}
    assert "D017" in rules, "the thresholds that the samples give are not those of the model"
    assert "D016" not in rules


def test_a_damaged_file_is_refused_before_measuring(stale: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_bytes(stale[1].read_bytes()[:999])
    with pytest.raises(DataError, match="not JSON"):
        quantmedic.collect(
            patient(healthy=True)[0][0],
            stale[0],
            **stale[2],
            settings_files=[tmp_path / "cut.json"],
            progress=lambda *told: pytest.fail("it measured"),
        )


def test_static_check_takes_files_too(stale: tuple[Path, Path, dict[str, Any]]) -> None:
    case = quantmedic.collect_static(patient(healthy=True)[0][0], stale[0], settings_files=[stale[1]])
    assert case.record.imports[0].file == "calibration.json"
    assert any(tensor.recorded.high is not None for tensor in case.record.tensors)


RECORDED = RECORDINGS
HORIZON = """\
2025-02-20 01:32:30,300 file: hb_mapper.py func: hb_mapper line No: 80 Start hb_mapper....
2025-02-20 01:45:45,908 file: modelwise_search.py func: modelwise_search line No: 75 Select kl method.
===============================================================================================================
Node                              ON   Subgraph  Type              Cosine Similarity  Threshold  DataType
---------------------------------------------------------------------------------------------------------------
/stem/conv/Conv                   BPU  id(0)     HzSQuantizedConv  0.999263           2.02       int8
/reduce/depthwise/conv/Conv       BPU  id(0)     HzSQuantizedConv  0.998640           0.70       int8
2025-02-20 01:50:00,000 file: hb_mapper_makertbin.py func: hb_mapper_makertbin line No: 601 Convert to runtime bin \
file successfully!
"""


@pytest.mark.thorough
def test_thresholds_of_what_nodes_read_reach_the_tensors(
    stale: tuple[Path, Path, dict[str, Any]], measured: Case, tmp_path: Path
) -> None:
    """Horizon lists a threshold with the node that reads the tensor: here the second is far too small."""
    log, plain = tmp_path / "hb_mapper.log", tmp_path / "plain.case"
    log.write_text(HORIZON)
    record = measured.record
    tensors = tuple(t.model_copy(update={"recorded": RecordedFacts()}) for t in record.tensors)
    quantmedic.save_case(replace(measured, record=record.model_copy(update={"tensors": tensors, "imports": ()})), plain)
    assert run("import", plain, log, "-o", tmp_path / "merged.case").exit_code == 0
    merged = quantmedic.load_case(tmp_path / "merged.case")
    told = {t.name: (t.recorded.low, t.recorded.high) for t in merged.record.tensors if t.recorded.high is not None}
    assert told == {"image": (-2.02, 2.02), "/stem/act/Relu_output_0": (-0.7, 0.7)}
    static = quantmedic.collect_static(patient(healthy=True)[0][0], stale[0], settings_files=[log])
    assert [t.recorded for t in static.record.tensors if t.recorded.high] == [
        t.recorded for t in merged.record.tensors if t.recorded.high
    ]
    diagnosis = quantmedic.judge(merged)
    subjects = {
        cause.cause: {row.subject for row in cause.evidence if row.fact.startswith("recorded.")}
        for cause in diagnosis.causes
    }
    assert subjects["stale-calibration"] == {"/stem/conv/Conv"}, "the layer that writes it"
    # The first threshold fits the images, but the model does not hold it: a remark beside the cause that explains it.
    assert subjects["recorded-threshold-not-deployed"] == {"image"}
    assert sum(map(bool, subjects.values())) == 2
    assert {cause.severity for cause in diagnosis.causes[1:]} == {"low"}
    assert "loss-unseen-by-log" not in {cause.cause for cause in diagnosis.causes}, "layers were measured to be bad"


@pytest.mark.thorough
@pytest.mark.source("litert-import")
def test_recorded_table_of_the_debugger(tmp_path: Path) -> None:
    """What TensorFlow's QuantizationDebugger wrote of a model whose data reach beyond what was calibrated."""
    diagnosis = imported(tmp_path, RECORDED / "debugger" / "layers.csv")
    assert diagnosis["verdict"] == "degraded"
    (cause,) = diagnosis["causes"]
    assert cause["rules"] == ["A016"]
    names = [row["float_name"].rpartition(";")[2].split("/")[1] for row in cause["layers"]]
    assert names == ["stem_1", "sum_1", "gate_1"]
    assert diagnosis["imports"][0]["tells"] == [
        "thresholds of 10 tensors",
        "mse, rmse_over_scale, own_metrics of 10 layers",
    ]


@pytest.mark.thorough
@pytest.mark.source("litert-sorted")
def test_the_table_of_the_debugger_is_shown_with_its_figures(tmp_path: Path) -> None:
    table = RECORDED / "debugger" / "layers.csv"
    imported(tmp_path, table)
    shown = run("show", tmp_path / "a.case", "--csv", "-")
    theirs = list(csv.DictReader(table.read_text().splitlines()))
    for ours, row in zip(csv.DictReader(shown.stdout.splitlines()), theirs, strict=True):
        assert float(ours["reported.mse"]) == float(row["mean_squared_error"])
        steps = math.sqrt(float(row["mean_squared_error"])) / float(row["scale"])
        assert float(ours["reported.rmse_over_scale"]) == pytest.approx(steps)
        assert float(ours["output.recorded.scale"]) == float(row["scale"])
        assert int(ours["output.recorded.zero_point"]) == int(row["zero_point"])
        assert ours["reported.own_metrics"] == (
            f"mean_abs_error {row['mean_abs_error']} correlation {row['correlation']}"
        )
    printed = run("show", tmp_path / "a.case").output
    assert printed.startswith("10 layers, as the files of the toolchain list them")
    assert "  mean_abs_error 0.030710597, 1 more " in printed, "whole figures only"
    layer = [line.split() for line in run("show", tmp_path / "a.case", "--layer", "0").output.splitlines()]
    assert ["reported.own_metrics", "mean_abs_error", "0.030710597"] in layer
    assert ["correlation", "0.9987888439481012"] in layer
    by_error = run("show", tmp_path / "a.case", "--sort", "rmse_over_scale:desc").output
    assert by_error.startswith("10 layers, by figures in the toolchain's files: RMSE / scale, largest first")


@pytest.mark.thorough
def test_a_suggested_name_is_whole_and_can_be_pasted(tmp_path: Path) -> None:
    imported(tmp_path, RECORDED / "debugger" / "layers.csv")
    refused = run("show", tmp_path / "a.case", "--layer", "functional_1/act_1/Relu").exception
    assert isinstance(refused, QuantmedicError)
    (word,) = shlex.split((refused.help or "").removeprefix("did you mean ").removesuffix("?"))
    assert word == "functional_1/act_1/Relu;functional_1/sum_1/Add"
    assert run("show", tmp_path / "a.case", "--layer", word).output.startswith(f"{word}   ADD   A016")


def test_small_files_have_a_size() -> None:
    sizes = {1: "1 byte", 230: "230 bytes", 1500: "2 kB", 2_345_678: "2.3 MB"}
    assert {size: size_text(size) for size in sizes} == sizes


@pytest.mark.thorough
def test_recorded_files_of_neural_compressor(tmp_path: Path) -> None:
    """Its MSE sees no wrong scale and no wrong offset, so that small figures are no pass."""
    inc = RECORDED / "inc"
    files = ["diagnosis_2.3.log", "weights_table.csv", "inspect_saved/fp32/inspect_result.pkl"]
    diagnosis = imported(tmp_path, *(inc / name for name in files))
    assert diagnosis["verdict"] == "not-comparable"
    assert diagnosis["model"]["settings"]["dynamic"] is False
    stem = next(row["reported"] for row in diagnosis["layers"] if row["float_name"] == "/stem/Conv")
    assert stem["origin"] == "diagnosis_2.3.log, weights_table.csv, inspect_result.pkl"
    assert None not in (stem["normalized_mse"], stem["weight_normalized_mse"], stem["saved_sqnr_db"])
    assert not [text for text in diagnosis["warnings"] if "contradict" in text]
    table = (tmp_path / "report" / "report.md").read_text()
    assert f"unscaled {stem['saved_sqnr_db']:.1f} dB" in table, "the scaled figure alone would mislead"


@pytest.mark.thorough
@pytest.mark.source("insights-import")
@pytest.mark.source("insights-imported-tables")
def test_tables_of_neural_compressor_are_shown_like_measured_ones(tmp_path: Path) -> None:
    """The largest error first, with the moments of both models' weights."""
    tables = [RECORDED / "inc" / f"{name}_table.csv" for name in ("activations", "weights")]
    imported(tmp_path, *tables)
    for name, table in zip(("activations", "weights"), tables, strict=True):
        shown = run("show", tmp_path / "a.case", "--table", name, "--csv", "-")
        assert shown.exit_code == 0, shown.output
        ours = {row["name"]: row for row in csv.DictReader(shown.stdout.splitlines())}
        theirs = list(csv.DictReader(table.read_text().splitlines()))
        assert [row["OP name"] for row in theirs] == list(ours)[: len(theirs)], "the order of its table"
        for row in theirs:
            mine = [float(value) for key, value in ours[row["OP name"]].items() if key.startswith("reported") and value]
            for column in set(row) - {"OP name"}:
                near = [value for value in mine if value == pytest.approx(float(row[column]), rel=1e-4)]
                assert near, (row["OP name"], column)
    assert "normalized MSE" not in run("show", tmp_path / "a.case", "--layer", "nothing").output
    first = run("show", tmp_path / "a.case").output
    assert first.startswith("3 layers, as the files of the toolchain list them")
    assert "4.21e-6" in first and "1.75e-6" in first, "the main facts, too"
    page = unpacked((tmp_path / "report" / "index.html").read_text())
    assert "/head/MatMul" in page and "reported.weight_stored_min" in page, "a column of the page's table"


@pytest.mark.thorough
@pytest.mark.source("insights-imported-rules")
@pytest.mark.source("insights-fall-back-by-error")
@pytest.mark.parametrize(
    ("table", "layer", "good", "bad"),
    [
        # A tensor that was read wrongly, and weights whose range a few large ones set.
        ("activations", "/head/MatMul", "4.212893145449925e-06", "4.2e-03"),
        ("weights", "/body/Conv", "1.7540929143756835e-06,-0.58491325", "1.7540929143756835e-06,-60"),
    ],
)
def test_tables_of_neural_compressor_are_judged(tmp_path: Path, table: str, layer: str, good: str, bad: str) -> None:
    text = (RECORDED / "inc" / f"{table}_table.csv").read_text()
    files = [tmp_path / f"{name}_table.csv" for name in ("good", "bad")]
    files[0].write_text(text)
    files[1].write_text(text.replace(good, bad))
    assert imported(tmp_path, files[0])["verdict"] == "not-comparable"
    diagnosis = imported(tmp_path, files[1])
    assert diagnosis["verdict"] == "degraded"
    (cause,) = diagnosis["causes"]
    assert cause["rules"] == ["A016"]
    assert [row["float_name"] for row in cause["layers"]] == [layer]
    prescription = (tmp_path / "report" / "prescription.py").read_text()
    assert "op_name_dict" in prescription and layer in prescription and "fp32" in prescription


@pytest.mark.thorough
def test_good_figures_are_no_pass_and_an_error_is_told(tmp_path: Path) -> None:
    log = tmp_path / "hb_mapper.log"
    log.write_text(HORIZON)
    assert imported(tmp_path, log)["verdict"] == "not-comparable"
    log.write_text(HORIZON[: HORIZON.index("====")] + "2025-02-20 01:46:00,000 ERROR calibration data dir is empty\n")
    result = run("import", log, "-o", tmp_path / "a.case")
    assert "the conversion failed: calibration data dir is empty" in " ".join(result.output.split())
    failed = run("diagnose", RECORDED / "inc" / "float.onnx", "--log", log, "-o", tmp_path / "failed")
    assert "calibration data dir is empty" in failed.output
    assert "FAILED" in failed.output


def imported(tmp_path: Path, *files: Path) -> dict[str, Any]:
    """The report of files alone, by way of both commands."""
    result = run("import", *files, "-o", tmp_path / "a.case")
    assert result.exit_code == 0, result.output
    result = run("diagnose", tmp_path / "a.case", "-o", tmp_path / "report")
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads((tmp_path / "report" / "report.json").read_text())
    return report


def test_whatever_level_a_file_holds_has_a_place_in_the_order() -> None:
    found = [_badness(ReportedFacts(sqnr_db=level)) for level in (20.0, -1e30, None)]
    assert found == [0.01, math.inf, None]
