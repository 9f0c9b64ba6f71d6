"""The JSON report and its schema."""

import json
from collections.abc import Callable
from importlib.resources import files

import pytest

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.json import render_json, render_schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")


@pytest.mark.thorough
def test_the_schema_file_is_the_generated_one() -> None:
    stored = files("quantmedic.manuals").joinpath("report.schema.json").read_text(encoding="utf-8")
    command = "python -c \"from quantmedic.reports.machines.json import render_schema; print(render_schema(), end='')\""
    assert stored == render_schema(), f"write it anew: {command} > manuals/report.schema.json"


@pytest.mark.thorough
def test_a_dump_is_valid_and_stable(subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for name in ["diagnosis", "proven", "healthy", "hostile", "hostile_proven"]:
        with subtests.test(name=name):
            diagnosis: Diagnosis = request.getfixturevalue(name)
            text = render_json(diagnosis)
            assert text == render_json(diagnosis)
            jsonschema.Draft202012Validator(json.loads(render_schema())).validate(json.loads(text))


def test_a_report_reads_as_it_did(healthy: Diagnosis, golden: Callable[[str, str], None]) -> None:
    golden("report-healthy.json", render_json(healthy))


def test_what_json_cannot_say_is_null(diagnosis: Diagnosis) -> None:
    text = render_json(diagnosis)
    assert "Infinity" not in text and "NaN" not in text
    thresholds = {entry["name"]: entry["value"] for entry in json.loads(text)["thresholds"]}
    assert thresholds["quantize_error_mse"] is None
    assert thresholds["quantize_error_cosine"] == 0.99


def test_keys_follow_the_contract_and_causes_keep_their_rank(diagnosis: Diagnosis) -> None:
    report = json.loads(render_json(diagnosis))
    assert list(report) == list(type(diagnosis).model_fields)
    assert [cause["cause"] for cause in report["causes"]] == [cause.cause for cause in diagnosis.causes]


def test_the_proof_and_the_prescription_are_part_of_the_contract(proven: Diagnosis) -> None:
    report = json.loads(render_json(proven))
    assert report["proof"]["explained"] == 0.98
    assert [row["trial"]["failed"] is None for row in report["proof"]["trials"]] == [True, True, False, True]
    assert report["proof"]["trials"][2]["trial"]["gain_db"] is None, "what has no result is null, not 0"
    assert report["toolchain"]["name"] == "onnxruntime"
    assert [step["mark"] for step in report["prescription"]["steps"]] == ["documentation", None]
    assert "per_channel=True" in report["prescription"]["configurations"][0]["code"]
