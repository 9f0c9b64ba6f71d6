"""``quantmedic compare`` on real cases: the demo's patient, its healthy twin, and the command itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.demo import patient
from quantmedic.engine.errors import CaseError

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def files(patient_case: Path, healthy_case: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The patient, its twin, and the twin without its calibration data."""
    models, options = patient(healthy=True)
    validation = {"validation": options["preprocessing"]["validation"]}
    bare = tmp_path_factory.mktemp("cases") / "bare.case"
    case = quantmedic.collect(*models, validation=options["validation"], preprocessing=validation)
    quantmedic.save_case(case, bare)
    return {"sick": str(patient_case), "well": str(healthy_case), "bare": str(bare)}


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["compare", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.source("insights-workflow")
def test_the_patient_healed(files: dict[str, str]) -> None:
    result = run(files["sick"], files["well"])
    assert result.exit_code == 0
    assert result.output.startswith("HEALED  top-1 10.35 → 90.23 %, +79.88 points (")
    for part in ("D005", "preprocessing-scale-mismatch", "relation.scale_mismatch", "2.83"):
        assert part in result.output
    assert "27 layers better" in result.output and "26 activations" in result.output


@pytest.mark.nightly
def test_swapped_it_broke(files: dict[str, str]) -> None:
    record = quantmedic.compare(files["well"], files["sick"])
    assert record == quantmedic.compare(quantmedic.load_case(files["well"]), quantmedic.load_case(files["sick"]))
    assert record.word == "broken"
    assert [(cause.cause, cause.status) for cause in record.causes] == [("preprocessing-mismatch", "new")]
    assert record.metric is not None and record.metric.paired and record.metric.high < 0
    assert all(layer.gain_db is not None and layer.gain_db < 0 for layer in record.layers)


def test_the_same_case_twice(files: dict[str, str]) -> None:
    result = run(files["sick"], files["sick"])
    assert result.output.startswith("UNCHANGED  top-1 10.35 % in both; output -1.3 dB in both; causes as before\n")
    assert "notice" not in result.output and "D005" not in result.output


@pytest.mark.nightly
def test_what_one_case_cannot_judge_has_not_healed(files: dict[str, str]) -> None:
    record = quantmedic.compare(files["sick"], files["bare"])
    known = {cause.cause: cause.status for cause in record.causes}
    assert record.word == "healed", "the metric is proven"
    assert known["preprocessing-mismatch"] == "not-judged", "the cause is not known"
    assert known.keys() == {"preprocessing-mismatch"}
    assert not [tried for tried in record.tried if tried.cause == "preprocessing-mismatch"]
    text = run(files["sick"], files["bare"]).output
    assert "only the first case has a representative set" in text


@pytest.mark.nightly
def test_formats_without_a_folder_are_printed(files: dict[str, str]) -> None:
    found = json.loads(run(files["sick"], files["well"], "--format", "json").output)
    assert found["word"] == "healed" and len(found["layers"]) == 27
    assert run(files["sick"], files["well"], "--format", "markdown").output.startswith("# HEALED: int8.onnx")
    assert run(files["sick"], files["well"], "--format", "html").output.startswith("<!DOCTYPE html>")


def test_a_folder_gets_the_files(files: dict[str, str], tmp_path: Path) -> None:
    result = run(files["sick"], files["well"], "-q", "-o", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "compare.html",
        "compare.md",
        "compare.svg",
        "compare.json",
    }
    for path in (tmp_path / "out").iterdir():
        text = path.read_text()
        assert str(Path(files["sick"]).parent) not in text and f"{Path.home()}/" not in text, path.name
    assert result.output.startswith("HEALED") and result.output.splitlines()[1].startswith("wrote ")
    run(files["sick"], files["well"], "-o", tmp_path / "one", "--format", "json")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"compare.json"}


@pytest.mark.nightly
def test_both_are_judged_by_the_rules_given(files: dict[str, str]) -> None:
    strict = run(files["sick"], files["well"], "--threshold", "previous_effect_db=100", "--format", "json").output
    assert json.loads(strict)["outputs"][0]["direction"] == "same"


def test_what_cannot_be_compared_is_an_error(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "no.case").write_text("no case")
    with pytest.raises(CaseError):
        quantmedic.compare(files["sick"], tmp_path / "no.case")
    assert run(files["sick"], files["well"], "--format", "json", "--format", "html").exit_code == 2
    assert run(files["sick"]).exit_code == 2
