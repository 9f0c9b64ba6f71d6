"""Boxes beside scores in one output: every way of asking says that the scores are gone."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.detectors import Form, detector_pair
from builders.onnx_models import images, static
from builders.tiers import others_nightly
from click.testing import CliRunner, Result

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.demo.metric import objects_found
from quantmedic.reports.context import build_context
from quantmedic.reports.write import render_markdown

pytestmark = pytest.mark.thorough

ILL: tuple[Form, ...] = ("rows", "columns", "scales", "flat", "nested", "bins", "masks")


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, Path, Path]]:
    """By whether it is healthy: a detector that joins rows of boxes and scores."""
    return {healthy: detector_pair(tmp_path_factory.mktemp(str(healthy)), healthy=healthy) for healthy in (False, True)}


@pytest.mark.parametrize("form", others_nightly(ILL))
def test_erased_scores_are_a_high_cause_and_the_first(form: Form, tmp_path: Path) -> None:
    float_model, quantized, data = detector_pair(tmp_path, form)
    diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
    assert diagnosis.verdict == "degraded"
    assert (diagnosis.causes[0].cause, diagnosis.causes[0].severity) == ("unbalanced-concatenation", "high")
    assert diagnosis.model.harmed is True
    assert diagnosis.model.output_worst_sqnr_db == pytest.approx(0.0, abs=0.01)
    assert diagnosis.model.output_sqnr_db is not None and diagnosis.model.output_sqnr_db > 30
    assert any(row.degraded and row.born for row in diagnosis.layers if row.op_type == "Concat")


@pytest.mark.parametrize("form", others_nightly(("columns", "bins", "masks")))
def test_with_the_joint_in_float_nothing_is_said(form: Form, tmp_path: Path) -> None:
    float_model, quantized, data = detector_pair(tmp_path, form, healthy=True)
    diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
    assert (diagnosis.verdict, diagnosis.causes, diagnosis.model.degraded_layers) == ("healthy", (), 0)


def test_scores_that_no_concat_joins_to_boxes_are_judged_by_themselves(tmp_path: Path) -> None:
    """One grid for boxes in pixels and scores: the output as a whole is as noisy as that of the healthy twin."""
    levels = []
    for healthy in (False, True):
        (folder := tmp_path / str(healthy)).mkdir()
        float_model, quantized, data = detector_pair(folder, "scaled", healthy=healthy)
        diagnosis = quantmedic.diagnose(
            float_model, quantized, representative=str(data), validation=str(data), output=folder / "report"
        )
        (output,) = diagnosis.outputs
        assert [(part.tensor, part.columns) for part in output.columns.operands] == [(None, "0…3"), (None, "4…6")]
        levels.append((diagnosis.model.output_sqnr_db, output.columns.operands[1].sqnr_db))
        text = (folder / "report" / "report.md").read_text(encoding="utf-8")
        assert ("columns 4…6 of found keep 0.0 dB" in text) is not healthy
        if healthy:
            assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
            continue
        assert diagnosis.verdict == "degraded" and diagnosis.causes[0].severity == "high"
        assert set(diagnosis.causes[0].subjects) & {"found", "sizes"}, diagnosis.causes[0]
        assert output.columns.dead_places == "4…6"
        assert diagnosis.loss_budget.outputs[0].name == "found, columns 4…6"
    (ill, lost), (well, kept) = levels
    assert ill == pytest.approx(well, abs=0.5) and lost == pytest.approx(0.0, abs=0.01) and kept > 20


def test_rows_that_topk_selects_are_judged_by_their_scores(tmp_path: Path) -> None:
    """Two rows that change places are no noise: both models sort their scores, and only these are compared."""
    for healthy in (False, True):
        (folder := tmp_path / str(healthy)).mkdir()
        float_model, quantized, data = detector_pair(folder, "selected", healthy=healthy)
        diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
        (output,) = diagnosis.outputs
        assert output.columns.worst == "scores, column 4 (top_column)"
        serious = [cause.cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]
        assert serious == ([] if healthy else ["unbalanced-concatenation"])
        assert diagnosis.verdict == ("healthy" if healthy else "degraded")


def test_what_decodes_small_boxes_is_named_and_its_printed_names_heal(tmp_path: Path) -> None:
    """Corners on a grid over the whole picture: the joint stays in float already, the sizes of the boxes are gone."""
    float_model, quantized, data = detector_pair(tmp_path, "fine", healthy=True)
    diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
    assert diagnosis.outputs[0].columns.worst_sqnr_db < 20
    (cause,) = [cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]
    assert cause.cause == "quantized-decoder"
    assert {"shares", "expected", "low", "high", "size", "boxes", "scores", "found"} <= set(cause.subjects)
    assert not {"stem", "logits", "distances"} & set(cause.subjects), "layers with weights stay quantized"
    text = render_markdown(build_context(diagnosis, {}))
    printed = set(re.findall(r"nodes_to_exclude=\[  # changed by the remedy(.*?)\]", text, re.DOTALL))
    assert len(printed) == 1, "the prescription and the remedy say the same"
    names = ast.literal_eval(f"[{printed.pop()}]")
    assert set(cause.subjects) <= set(names)
    mended = static(
        onnx.load(str(float_model)), {"image": images(24)}, tmp_path, per_channel=True, nodes_to_exclude=names
    )
    onnx.save(mended, str(quantized))
    diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
    # The expectation over bins is a convolution, and now one of four in float.
    assert (diagnosis.verdict, [cause.cause for cause in diagnosis.causes]) == ("healthy", ["partly-quantized"])


def test_boxes_and_scores_in_two_outputs_are_healthy(tmp_path: Path) -> None:
    float_model, quantized, data = detector_pair(tmp_path, "apart")
    diagnosis = quantmedic.diagnose(float_model, quantized, representative=str(data), validation=str(data))
    assert diagnosis.verdict == "healthy" and [output.columns.dead for output in diagnosis.outputs] == [0, 0]


def test_check_names_the_columns_that_are_dead(pairs: dict[bool, tuple[Path, Path, Path]]) -> None:
    ill, healthy = (
        ask("check", *pairs[which][:2], "-r", pairs[which][2], "-v", pairs[which][2]) for which in (False, True)
    )
    assert ill.exit_code == 1 and "REGRESSION" in ill.stdout
    assert "columns 4…6 of found hold one value" in " ".join(ill.stdout.split())
    assert healthy.exit_code == 0 and "ACCEPT" in healthy.stdout


def test_a_budget_is_held_by_the_worst_column(pairs: dict[bool, tuple[Path, Path, Path]], tmp_path: Path) -> None:
    policy = tmp_path / "quantmedic.toml"
    policy.write_text('[check]\nfail_on = {severity = "never"}\n[[check.budget]]\nmetric = "sqnr_db"\nmin = 20\n')
    said = {which: ask("check", *pairs[which][:2], "-v", pairs[which][2], "--config", policy) for which in pairs}
    assert said[False].exit_code == 1 and said[True].exit_code == 0
    assert "0.0 dB of scores, columns 4…6 (scores_rows), required 20.0 dB" in " ".join(said[False].stdout.split())


def test_a_goal_of_the_fallback_holds_for_the_worst_column(pairs: dict[bool, tuple[Path, Path, Path]]) -> None:
    float_model, quantized, data = pairs[False]
    record = quantmedic.search("fallback", float_model, quantized, validation=str(data), min_sqnr_db=30.0, threads=1)
    assert record.check is not None and record.check.after is not None
    before, after = record.check.before, record.check.after
    assert (before.worst, round(before.sqnr_db, 2)) == ("columns 4…6 (scores_rows)", 0.0)
    assert before.whole_sqnr_db is not None and before.whole_sqnr_db > 30
    assert "found" in [layer.name for layer in record.layers]
    assert record.verdict == "met" and after.sqnr_db >= 30


def test_a_healthy_detector_needs_no_layer_in_float(pairs: dict[bool, tuple[Path, Path, Path]]) -> None:
    float_model, quantized, data = pairs[True]
    record = quantmedic.search("fallback", float_model, quantized, validation=str(data), min_sqnr_db=30.0, threads=1)
    assert record.verdict == "met" and record.layers == ()


def test_objects_are_found_by_class_score_and_place() -> None:
    labels = np.array([[[0, 0, 20, 20, 1], [50, 50, 90, 90, 0], [0, 0, 0, 0, -1]]], np.float32)
    right, elsewhere = [10, 10, 20, 20], [30, 10, 20, 20]
    rows = {
        "right": [*right, 0.1, 0.9],
        "another class": [*right, 0.9, 0.1],
        "too unsure": [*right, 0.0, 0.4],
        "another place": [*elsewhere, 0.1, 0.9],
    }
    found = {name: float(objects_found({"y": np.array([[row]], np.float32)}, labels)[0]) for name, row in rows.items()}
    assert found == {"right": 0.5, "another class": 0.0, "too unsure": 0.0, "another place": 0.0}


def test_page_and_console_count_the_layer(pairs: dict[bool, tuple[Path, Path, Path]], tmp_path: Path) -> None:
    done = ask("diagnose", *pairs[False][:2], "-r", pairs[False][2], "-v", pairs[False][2], "-o", tmp_path / "report")
    assert done.exit_code == 0, done.output
    page, text = ((tmp_path / "report" / name).read_text(encoding="utf-8") for name in ("index.html", "report.md"))
    assert "1 degraded" in page and "0 degraded" not in page
    assert "4…6" in text and "columns 4…6 (scores_rows)" in text
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in report["layers"] if row["degraded"]] == ["found"]
    assert "erased-concatenation-operand" in done.stdout
