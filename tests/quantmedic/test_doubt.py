"""Data that are none of the network's leave it open what quantization costs: never healthy, never accepted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import run_quantmedic
from builders.contradictions import contradictions
from builders.mild_patients import CLASSES, options, pair, samples
from builders.onnx_models import Net, random, save_pair, static
from builders.tiers import others_nightly

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.terminal.console import render_console, warning_lines

pytestmark = pytest.mark.thorough

SAMPLES = 400


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sound pair."""
    return pair(tmp_path_factory.mktemp("sound"), 1.0)


def diagnosed(models: tuple[Path, Path], **changes: Any) -> Diagnosis:
    return quantmedic.diagnose(*models, **(options(SAMPLES) | changes))


def random_labels(classes: int) -> np.ndarray:
    return np.random.default_rng(11).integers(0, classes, SAMPLES)


def test_a_sound_pair_is_healthy(models: tuple[Path, Path]) -> None:
    found = diagnosed(models)
    assert found.verdict == "healthy" and found.metrics.label_fault == "none"
    assert found.metrics.kappa is not None and found.metrics.kappa > 0.6


def test_random_labels_leave_it_open(models: tuple[Path, Path]) -> None:
    found = diagnosed(models, labels=random_labels(2))
    assert (found.verdict, found.causes[0].rules, found.causes[0].severity) == ("undecided", ("S018",), "high")
    assert found.undecided is not None and found.undecided.doubt is not None
    assert contradictions(found) == []
    console = " ".join(render_console(found).split())
    assert (
        "hardly does better than a guess" in console and "do this first: Prepare the samples as in training" in console
    )


def test_a_cause_of_several_rules_has_the_name_of_the_one_that_found_it(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    """On the console, the page, in Markdown and report.json; pages of the manual tell what it shares with others."""
    found = diagnosed(models, labels=random_labels(CLASSES))
    assert (found.causes[0].cause, found.causes[0].name) == ("labels-do-not-fit", "float-model-at-chance")
    console = render_console(found, verbosity="verbose")
    assert "S018 float-model-at-chance" in console and "labels-do-not-fit" not in console
    assert all("labels-do-not-fit" not in line for line in warning_lines(found))
    quantmedic.write_report(found, tmp_path, formats=["html", "markdown", "json"])
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    page = (tmp_path / "index.html").read_text(encoding="utf-8").partition('id="manual"')[0]
    for text in (markdown, page):
        assert "float-model-at-chance" in text and "labels-do-not-fit" not in text
    (first, *_) = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["causes"]
    assert first["name"] == "float-model-at-chance"


def test_a_model_that_is_right_a_little_more_often_than_a_guess_is_not_healthy(models: tuple[Path, Path]) -> None:
    """Labels of which one in eight is right: some 34 % where a guess is right on 25 %."""
    right = options(SAMPLES)["labels"]
    labels = np.where(np.arange(SAMPLES) % 8 == 0, right, random_labels(CLASSES))
    found = diagnosed(models, labels=labels)
    assert found.metrics.label_fault == "weak" and found.metrics.drop is not None
    assert found.verdict == "undecided"
    assert contradictions(found) == []
    known = diagnosed(models, labels=labels, expected_float_metric=found.metrics.float_value)
    assert known.verdict == "healthy" and known.metrics.label_fault == "none"


@pytest.mark.nightly
def test_a_gate_does_not_accept_on_such_data_and_other_commands_are_done(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    """Nor is it a regression: other data have to be given."""
    given = options(SAMPLES)
    np.savez(tmp_path / "rep.npz", x=given["representative"])
    np.savez(tmp_path / "val.npz", x=given["validation"], labels=random_labels(CLASSES))
    data = ("-r", tmp_path / "rep.npz", "-v", tmp_path / "val.npz")
    done = run_quantmedic("diagnose", *models, *data, "-o", tmp_path / "report")
    assert "UNDECIDED" in done.stdout and done.returncode == 0, done.stdout + done.stderr
    assert run_quantmedic("diagnose", tmp_path / "report", "-o", tmp_path / "again").returncode == 0
    checked = run_quantmedic("check", tmp_path / "report")
    assert checked.returncode == 3 and "INSUFFICIENT_DATA" in checked.stdout


def test_exchanged_sets_leave_it_open_before_any_remedy(models: tuple[Path, Path]) -> None:
    """By the ranges, which end at the values of what calibrated the model, or by labels that the wrong set has."""
    given = options(SAMPLES)
    swapped = {"representative": given["validation"], "validation": given["representative"]}
    labelled = {"x": given["validation"], "labels": given["labels"]}
    for sets in (swapped, swapped | {"representative": labelled}):
        found = quantmedic.diagnose(*models, **sets)
        assert (found.verdict, found.causes[0].rules) == ("undecided", ("S058",))
        assert "do this first: Give the samples that calibrated the model" in " ".join(render_console(found).split())
        assert contradictions(found) == []


def broken(given: dict[str, Any], what: str) -> dict[str, Any]:
    if what == "labels":
        return given | {"labels": random_labels(CLASSES)}
    inputs = given[what].copy()
    inputs[7, 3] = np.nan
    return given | {what: inputs}


@pytest.mark.parametrize(("what", "rule"), [("labels", "S018"), ("validation", "S028"), ("representative", "S004")])
def test_broken_data_come_before_what_heals_the_network(what: str, rule: str, tmp_path: Path) -> None:
    """The ranges are far too narrow, and a prescription that was run heals that."""
    given = options(SAMPLES)
    found = quantmedic.diagnose(*pair(tmp_path, 0.1), **broken(given, what), prove=True)
    assert found.prescription is not None and found.prescription.grade == "executed"
    quantmedic.write_report(found, tmp_path, formats=["markdown"])
    head = (tmp_path / "report.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert f"\nWhy: {rule} " in head, head


def test_calibration_samples_that_judge_are_told_before_any_step_by_all_inputs(tmp_path: Path) -> None:
    """A mask that is the same in all samples does not make them the same."""
    net = Net()
    masked = net.add("Mul", net.input("mask", ["n", 1]), net.input("features", ["n", 16]), out="masked")
    net.output(net.add("MatMul", masked, net.const("w", random(1, 16, 4)), out="scores"), shape=["n", 4])
    x, ones = samples(5, 64)[0], np.ones((64, 1), np.float32)
    calibrating = {"mask": ones, "features": x}
    paths = save_pair(tmp_path, net.model(), static(net.model(), calibrating, tmp_path))
    for judging, shared in ((x + np.float32(0.25), 0), (np.concatenate([x[:20], x[20:] + 1]), 20), (x, 64)):
        given = {"representative": calibrating, "validation": {"mask": ones, "features": judging}}
        found = quantmedic.diagnose(*paths, **given)
        told = [text for text in found.warnings if "are in the representative set, too" in text]
        assert [text.split()[0] for text in told] == [str(shared)] * bool(shared)
        assert not shared or f"warning: {told[0][:60]}" in render_console(found).partition("do this first")[0]
        assert all(data.unique_share == 1.0 for data in found.datasets)


@pytest.mark.parametrize("metric", others_nightly([None, "mae"]))
def test_samples_of_another_scale_leave_it_open_without_classes(models: tuple[Path, Path], metric: str | None) -> None:
    """Both models agree on them, and a metric of errors does not show that they mean nothing to either."""
    given = options(SAMPLES, labels=False)
    small: dict[str, Any] = {role: np.float32(0.2) * inputs for role, inputs in given.items()}
    if metric is not None:
        targets = np.random.default_rng(5).normal(size=(SAMPLES, CLASSES)).astype(np.float32)
        small |= {"labels": targets, "metric": metric}
    found = quantmedic.diagnose(*models, **small)
    assert (found.verdict, found.causes[0].rules) == ("undecided", ("S047",))
    assert contradictions(found) == []
    assert quantmedic.diagnose(*models, **given).verdict == "healthy"
