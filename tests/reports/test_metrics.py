"""Figures for trackers of experiments: one flat object of finite numbers."""

import json
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from quantmedic.cli.main import cli
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.metrics import figures_of, render_metrics

#: What MLflow allows in the name of a metric.
NAME = re.compile(r"[\w. /-]+", re.ASCII)


def test_flat_names_and_finite_numbers(subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for name in ["diagnosis", "proven", "healthy", "hostile"]:
        with subtests.test(name=name):
            found = json.loads(render_metrics(request.getfixturevalue(name)))
            assert found and all(NAME.fullmatch(key) and key.startswith("quantmedic.") for key in found)
            assert all(type(value) is float and math.isfinite(value) for value in found.values())


def test_they_are_the_figures_of_the_diagnosis(diagnosis: Diagnosis) -> None:
    found = figures_of(diagnosis)
    assert found["quantmedic.drop"] == diagnosis.metrics.drop
    assert found["quantmedic.causes"] == len(diagnosis.causes)
    assert found["quantmedic.causes.high"] == sum(cause.severity == "high" for cause in diagnosis.causes)
    assert found["quantmedic.healthy"] == 0.0


def test_what_was_not_measured_or_is_infinite_is_left_out(diagnosis: Diagnosis) -> None:
    facts = diagnosis.model.model_copy(update={"output_sqnr_db": math.inf, "latency_ratio": None})
    found = figures_of(diagnosis.model_copy(update={"model": facts}))
    assert not {"quantmedic.sqnr_db", "quantmedic.latency_ratio"} & {*found}


def test_the_page_lists_every_name(diagnosis: Diagnosis) -> None:
    page = files("quantmedic.manuals").joinpath("general/other-tools.md").read_text(encoding="utf-8")
    words = re.findall(r"`(?:quantmedic)?\.([\w.]+)`", page)
    listed = {*words, *(f"causes.{word}" for word in words)}
    assert {name.removeprefix("quantmedic.") for name in figures_of(diagnosis)} <= listed


@pytest.mark.nightly
def test_commands_write_and_print_them(patient_case: Path, tmp_path: Path) -> None:
    formats = ["--format", "metrics", "--format", "model-explorer"]
    done = CliRunner().invoke(cli, ["diagnose", str(patient_case), "-q", *formats, "-o", str(tmp_path / "r")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "r" / "model-explorer.json").read_text())["results"]
    kept = json.loads((tmp_path / "r" / "metrics.json").read_text())
    printed = CliRunner().invoke(cli, ["check", str(patient_case), "--format", "metrics"])
    assert json.loads(printed.stdout) == kept
