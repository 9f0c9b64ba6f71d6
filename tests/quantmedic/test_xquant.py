"""The drop-in for MCT's XQuant: results, files and messages, on measured cases."""

import json
import logging
import math
import re
import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import quantmedic
from quantmedic import xquant
from quantmedic.engine.case.facts import CaseFacts, ErrorFacts, OperandFacts, TensorFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import ErrorRow, LayerRow
from quantmedic.engine.errors import OutputError
from quantmedic.engine.formulas.derive import derive
from quantmedic.reports import xquant as words
from quantmedic.xquant import XQuantConfig

pytestmark = pytest.mark.thorough

GRAPHS = {f"quant_loss_{metric}_{suffix}" for metric in ("mse", "cs", "sqnr") for suffix in ("repr", "val")}


@pytest.fixture(scope="module")
def case(patient_case: Path) -> Case:
    return quantmedic.load_case(patient_case)


def written(case: Case, config: XQuantConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both results of a case, as the drop-in writes them."""
    base = xquant._configured_rules(config)
    diagnosis = quantmedic.judge(case, base)
    found = {suffix: words.similarity(diagnosis, role) for suffix, role in words.SETS.items()}
    with xquant._report_log(Path(config.report_dir)) as logger:
        return xquant.Results(quantmedic.inspect(case, base), diagnosis, found, config, logger).write({})


@pytest.mark.source(
    "xquant-errors-per-layer", "xquant-causes", "xquant-report-dir", "xquant-manual-page", "xquant-flow"
)
def test_results_and_files(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, xquant.LOGGER_NAME)
    measured, troubles = written(case, XQuantConfig(str(tmp_path)))
    assert set(measured) == {
        *(f"{kind}_similarity_metrics_{suffix}" for kind in ("output", "intermediate") for suffix in ("repr", "val")),
        "quantmedic",
    }
    assert measured["quantmedic"] == json.loads((tmp_path / "report.json").read_text())
    rows = {row["quantized_name"]: row for row in measured["quantmedic"]["layers"]}
    assert set(measured["intermediate_similarity_metrics_val"]) == set(rows)
    for suffix, role in words.SETS.items():
        for layer, values in measured[f"intermediate_similarity_metrics_{suffix}"].items():
            errors = rows[layer][role]["accumulated"]
            assert values == {
                "mse": pytest.approx(errors["mse"]),
                "cs": pytest.approx(errors["cosine"]),
                "sqnr": pytest.approx(10 ** (errors["sqnr_db"] / 10)),
            }
    assert (
        measured["output_similarity_metrics_val"] == measured["intermediate_similarity_metrics_val"]["/classifier/Gemm"]
    )
    del measured["quantmedic"]
    assert json.loads((tmp_path / "quant_report.json").read_text()) == measured
    assert json.loads((tmp_path / "troubleshoot_report.json").read_text()) == troubles
    assert [cause["cause"] for cause in troubles["causes"]] == ["preprocessing-mismatch"]
    assert {path.stem for path in tmp_path.glob("quant_loss_*.png")} == GRAPHS
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("quant_loss_*.png"))
    assert (tmp_path / "index.html").is_file() and (tmp_path / "manual" / "D005.html").is_file()
    (log,) = tmp_path.glob("logs_*/mct_log.log")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in log.read_text().splitlines() if line in told] == told and "D005" in told[0]


@pytest.mark.nightly
@pytest.mark.source("xquant-degraded-layers", "xquant-threshold-each")
def test_degraded_layers_are_told_with_their_values(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, xquant.LOGGER_NAME)
    limits = {"mse": math.inf, "cs": 0.5, "sqnr": -1.0}
    measured, _ = written(case, XQuantConfig(str(tmp_path), threshold_quantize_error=limits))
    told = [record.getMessage() for record in caplog.records]
    layers = measured["intermediate_similarity_metrics_val"]
    bad = [f"cs[{name}]={values['cs']}" for name, values in layers.items() if values["cs"] <= 0.5]
    assert bad and [line for line in told if line.startswith(("cs[", "mse[", "sqnr["))] == bad
    assert told.index(words.DEGRADED) == told.index(bad[0]) - 1


@pytest.mark.nightly
def test_most_layers_degraded_is_judged(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, xquant.LOGGER_NAME)
    _, troubles = written(case, XQuantConfig(str(tmp_path), threshold_quantize_error={"cs": 1.0}))
    told = [record.getMessage() for record in caplog.records]
    assert any(re.match(r"(\d+) of \1 layers are degraded: causes that concern the whole model", line) for line in told)
    assert troubles["causes"]
    skipped = "XQuantConfig.threshold_quantize_error['mse'] is not defined. Skipping detection degrade layers by 'mse'"
    assert skipped in told
    assert {path.stem for path in tmp_path.glob("quant_loss_*.png")} == {"quant_loss_cs_repr", "quant_loss_cs_val"}


@pytest.mark.nightly
def test_a_healthy_network_is_clean(healthy_case: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, troubles = written(quantmedic.load_case(healthy_case), XQuantConfig(str(tmp_path)))
    assert troubles == {}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_graphs_without_the_package_that_makes_pictures(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    caplog.set_level(logging.WARNING, logger=xquant.LOGGER_NAME)
    written(case, XQuantConfig(str(tmp_path)))
    assert {path.stem for path in tmp_path.glob("quant_loss_*.svg")} == GRAPHS
    assert not list(tmp_path.glob("*.png"))
    assert any("pip install 'quantmedic[png]'" in record.getMessage() for record in caplog.records)


def test_handlers_stay_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger(xquant.LOGGER_NAME)
    before = list(logger.handlers)
    with pytest.raises(KeyError), xquant._report_log(tmp_path) as inside:
        inside.warning("told")
        assert len(logger.handlers) > len(before)
        raise KeyError
    assert logger.handlers == before
    (log,) = tmp_path.glob("logs_*/mct_log.log")
    assert log.read_text() == "told\n"


def test_a_quiet_application_gets_its_log_all_the_same(tmp_path: Path) -> None:
    root, logger = logging.getLogger(), logging.getLogger(xquant.LOGGER_NAME)
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with xquant._report_log(tmp_path) as inside:
            inside.warning("told")
        assert logger.level == logging.NOTSET
    finally:
        root.setLevel(level)
    (log,) = tmp_path.glob("logs_*/mct_log.log")
    assert log.read_text() == "told\n"


def test_the_folder_of_the_report_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a part of the path is a file"), xquant._report_log(tmp_path / "file"):
        raise AssertionError("not reached")


def test_configuration_is_that_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [field.name for field in fields(XQuantConfig)] == [
        "report_dir",
        "custom_similarity_metrics",
        "quantize_reported_dir",
        "threshold_quantize_error",
        "is_detect_under_threshold_quantize_error",
        "threshold_degrade_layer_ratio",
        "threshold_zscore_outlier_removal",
        "threshold_ratio_unbalanced_concatenation",
        "threshold_bitwidth_mixed_precision_with_model_output_loss_objective",
        "skip_judging_above_degrade_ratio",  # the one field of our own
    ]
    monkeypatch.delitem(sys.modules, "model_compression_toolkit.logger", raising=False)
    first, second = XQuantConfig("a"), XQuantConfig("b")
    assert first.quantize_reported_dir is None
    assert first.threshold_quantize_error == {"mse": 0.1, "cs": 0.1, "sqnr": 0.1}
    assert first.is_detect_under_threshold_quantize_error == {"mse": False, "cs": True, "sqnr": True}
    first.threshold_quantize_error["mse"] = 5.0
    assert second.threshold_quantize_error["mse"] == 0.1
    toolkit = types.ModuleType("model_compression_toolkit.logger")
    toolkit.Logger = types.SimpleNamespace(LOG_PATH="log/logs_1")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, toolkit.__name__, toolkit)
    assert XQuantConfig("a").quantize_reported_dir == "log/logs_1"
    assert XQuantConfig("a", quantize_reported_dir="mine").quantize_reported_dir == "mine"


@pytest.mark.source("xquant-zscore", "xquant-concatenation-ratio", "xquant-last-layer-bits", "xquant-degraded-layers")
def test_thresholds_reach_the_rules() -> None:
    ours = quantmedic.load_rulebase()
    untouched = xquant._configured_rules(XQuantConfig("a"))
    assert {name: t.value for name, t in untouched.thresholds.items()} == {
        name: t.value for name, t in ours.thresholds.items()
    }
    base = xquant._configured_rules(
        XQuantConfig(
            "a",
            threshold_quantize_error={"mse": 0.1, "cs": 0.9, "sqnr": 100.0, "own": 3.0},
            is_detect_under_threshold_quantize_error={"cs": False, "sqnr": True},
            threshold_zscore_outlier_removal=7,
            threshold_ratio_unbalanced_concatenation=9.0,
            threshold_bitwidth_mixed_precision_with_model_output_loss_objective=4,
        )
    )
    assert base.threshold("quantize_error_sqnr_db") == pytest.approx(20)
    assert base.threshold("quantize_error_cosine") == ours.threshold("quantize_error_cosine")
    assert base.threshold("quantize_error_mse") == math.inf
    assert base.threshold("activation_zscore") == 7
    assert base.threshold("unbalanced_concatenation_ratio") == 9
    assert base.threshold("last_layer_bits") == 4


def cause(name: str, *subjects: str, severity: str = "medium") -> CauseReport:
    return CauseReport(
        cause=name,
        rules=("X001",),
        severity=severity,  # type: ignore[arg-type]
        confidence=0.7,
        subjects=subjects,
        layers=(),
        message="what was measured",
        evidence=(),
        remedies=(),
        manual="manual/X001",
    )


def row(name: str, **values: Any) -> LayerRow:
    nothing = ErrorRow(rounding=ErrorFacts(), accumulated=ErrorFacts())
    empty: dict[str, Any] = dict.fromkeys(LayerRow.model_fields.keys() - {"findings"})
    known = {"index": 0, "name": name, "op_type": "Conv", "representative": nothing, "validation": nothing}
    return LayerRow(**(empty | known | values))


@pytest.fixture
def judged(case: Case) -> Diagnosis:
    causes = (
        cause("last-layer-bitwidth", "fc"),
        cause("unbalanced-concatenation", "cat[1]"),
        cause("activation-outliers", "conv1"),
        cause("negative-activations", "act", "gelu"),
        cause("channel-outliers", "conv1"),
        cause("poor-threshold", "conv1", severity="low"),
    )
    rows = (row("act", op_type="Silu"), row("gelu", op_type="Gelu"), row("fc", weight_bits=2, bits=8))
    return quantmedic.judge(case).model_copy(update={"causes": causes, "layers": rows})


@pytest.mark.source(
    "xquant-warning-concatenation",
    "xquant-warning-outliers",
    "xquant-warning-negative",
    "xquant-warning-last-layer",
    "xquant-console",
)
def test_what_the_original_knows_is_said_in_its_words(judged: Diagnosis) -> None:
    operands = [
        OperandFacts(layer="cat", index=0, tensor="wide", width=640.0, range_ratio=1.0),
        OperandFacts(layer="cat", index=1, tensor="narrow", width=10.0, range_ratio=64.0),
        OperandFacts(layer="other", index=0, tensor="narrow", width=1.0, range_ratio=99.0),
    ]
    tensors = [TensorFacts(float_name="wide", producer_name="conv_w"), TensorFacts(float_name="narrow")]
    facts = CaseFacts(operands=tuple(operands), tensors=tuple(tensors))
    images = {"conv1": "report/outlier_histgrams/conv1.png"}
    found = words.judgements(judged, facts, images, {"act": "SiLU"}, "report")
    assert [judgement.cause for judgement in found] == [*(c.cause for c in judged.causes[:4]), ""]
    lines = dict(zip((c.cause for c in judged.causes), (judgement.lines for judgement in found), strict=False))
    own = "what was measured; see report/manual/X001.html"
    assert lines["last-layer-bitwidth"] == (
        "the quantization bitwidth of the last layer is an extremely small number. "
        "Refer to the troubleshooting manual of 'Mixed Precision with model output loss objective'.",
        "bidwidth of fc:2(Weight), 8(Activation)",
        f"X001 last-layer-bitwidth (fc): {own}",
    )
    assert lines["unbalanced-concatenation"] == (
        "There are unbalanced range layers concatnated. "
        "Refer to the troubleshooting manual of 'Unbalanced \"concatenation\"'.",
        "first layer:narrow, second layer:conv_w, if you add a scaling operation, "
        "recommended scaling:first layer * 64.0",
        f"X001 unbalanced-concatenation (cat[1]): {own}",
    )
    assert lines["activation-outliers"] == (
        "There are output values \u200b\u200bthat deviate significantly from the average. Refer to the following "
        "images and the TroubleShooting Documentation (MCT XQuant Extension Tool) of 'Outlier Removal'.",
        "report/outlier_histgrams/conv1.png",
        f"X001 activation-outliers (conv1): {own}",
    )
    assert lines["negative-activations"] == (
        "There are activations that contain negative values. "
        'Refer to the troubleshooting manual of "Shift Negative Activation".',
        "act=SiLU",
        "gelu=Gelu",
        f"X001 negative-activations (act, gelu): {own}",
    )
    assert lines["channel-outliers"] == (f"X001 channel-outliers (conv1): {own}",)
    result = words.troubleshooting(found, judged)
    assert list(result) == [
        "outlier_removal",
        "shift_negative_activation",
        "unbalanced_concatenation",
        "mixed_precision_with_model_output_loss_objective",
        "causes",
    ]
    assert result["outlier_removal"] == [("conv1", "report/outlier_histgrams/conv1.png")]
    assert result["shift_negative_activation"] == ["act", "gelu"]
    assert result["unbalanced_concatenation"] == [("narrow", "conv_w", "first layer * 64.0")]
    assert result["mixed_precision_with_model_output_loss_objective"] == ["fc"]
    assert [entry["cause"] for entry in result["causes"]] == [c.cause for c in judged.causes[:-1]]


def test_a_swish_on_a_symmetric_grid_is_a_negative_activation(judged: Diagnosis) -> None:
    causes = (cause("asymmetric-data-on-symmetric-grid", "fc", "act"), cause("negative-activations", "gelu"))
    rows = (row("act", op_type="Swish", quantized_name="act_q"), row("gelu", op_type="Gelu"), row("fc"))
    diagnosis = judged.model_copy(update={"causes": causes, "layers": rows})
    found = words.judgements(diagnosis, CaseFacts(), {}, {"act_q": "SiLU"}, "report")
    assert words.troubleshooting(found, diagnosis)["shift_negative_activation"] == ["act_q", "gelu"]
    lines = [line for judgement in found for line in judgement.lines]
    assert lines[:2] == [words.HEADS["negative-activations"], "act_q=SiLU"]
    assert lines.count(words.HEADS["negative-activations"]) == 1 and "gelu=Gelu" in lines
    other = diagnosis.model_copy(update={"causes": (cause("asymmetric-data-on-symmetric-grid", "fc"),)})
    (alone,) = words.judgements(other, CaseFacts(), {}, {}, "report")
    assert len(alone.lines) == 1 and not alone.found


def test_what_was_not_measured_is_no_number_and_never_degraded(judged: Diagnosis) -> None:
    exact = ErrorFacts(mse=0.0, nmse=0.0, cosine=1.0)
    errors = ErrorRow(rounding=ErrorFacts(), accumulated=exact)
    rows = (row("a", representative=errors, validation=errors), row("b", representative=errors), row("c"))
    diagnosis = judged.model_copy(update={"layers": rows, "outputs": ()})
    found = words.similarity(diagnosis, "validation")
    assert list(found.layers) == ["a", "b"]
    assert found.layers["a"] == {"mse": 0.0, "cs": 1.0, "sqnr": math.inf}
    assert all(math.isnan(value) for value in (*found.layers["b"].values(), *found.output.values()))
    assert words.degraded_layers(found.layers, "mse", 0.0, below=False) == ["a"]
    assert words.degraded_layers(found.layers, "sqnr", math.inf, below=True) == ["a"]
    assert words.as_json(found.layers["b"]).count("null") == 3
    chart = words.error_graph(diagnosis, found, "sqnr", "val", 0.1, True)
    assert [point.layer for point in chart.points] == ["a"]


@pytest.mark.source("xquant-graphs", "xquant-graph-marks")
def test_in_a_graph_worse_is_up_and_the_degraded_are_circled(judged: Diagnosis) -> None:
    layers = {name: {"mse": value, "cs": 1 - value} for name, value in {"a": 0.001, "b": 0.1, "c": 10.0}.items()}
    for metric, limit, below in (("mse", 0.1, False), ("cs", 0.9, True)):
        found = words.Similarity({}, layers)
        chart = words.error_graph(judged, found, metric, "repr", limit, below)
        assert chart.stem == f"quant_loss_{metric}_repr"
        up = [point.y for point in chart.points]
        assert up == sorted(up, reverse=True)
        assert [point.flagged for point in chart.points] == [False, True, True]
        assert [name.text for name in chart.names if name.flagged] == ["b", "c"]
        assert chart.limit == up[1]
        assert words.picture(chart)[1].startswith(b"\x89PNG")


def test_histograms_are_called_as_their_layers(judged: Diagnosis, case: Case) -> None:
    facts = derive(case, quantmedic.load_rulebase())
    shown = next(h for tensor in facts.tensors if (h := quantmedic.api.judging.display_histogram(case, tensor)))
    names = ("conv1", "../conv1", "..\\conv1", "层", "conv1")
    histograms = tuple(shown.model_copy(update={"layer": name}) for name in names)
    found = words.outlier_graphs(judged.model_copy(update={"histograms": histograms}))
    assert list(found) == ["conv1", "../conv1", "..\\conv1", "层"]
    stems = [stem for stem, _ in found.values()]
    assert stems[0] == "conv1" and len(set(stems)) == 4
    assert all(re.fullmatch(r"\w[\w.-]*", stem, re.ASCII) for stem in stems)
