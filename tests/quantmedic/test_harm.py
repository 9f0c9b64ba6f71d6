"""What is proven, what the network withstands, what is not decided: of one fault, by its strength and the samples."""

import json
from pathlib import Path

import onnx
import pytest
from builders.contradictions import contradictions
from builders.mild_patients import options, pair

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.terminal.console import render_console

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[float, tuple[Path, Path]]:
    return {wide: pair(tmp_path_factory.mktemp("pair"), wide) for wide in (1.0, 8.0, 40.0)}


_CASES: dict[tuple[Path, int, bool], Case] = {}


def measured(models: tuple[Path, Path], labelled: int, *, labels: bool = True) -> Case:
    key = models[1], labelled, labels
    if key not in _CASES:
        _CASES[key] = quantmedic.collect(*models, **options(labelled, labels=labels))
    return _CASES[key]


def diagnosed(models: tuple[Path, Path], labelled: int, *, labels: bool = True) -> Diagnosis:
    return quantmedic.judge(measured(models, labelled, labels=labels))


@pytest.mark.parametrize(
    ("wide", "labelled", "verdict", "harm"),
    [
        pytest.param(1.0, 100, "healthy", [], id="nothing is to be had, whatever few samples leave open"),
        pytest.param(8.0, 4000, "healthy", [("low", "assumed")], id="the interval excludes a loss that matters"),
        pytest.param(8.0, 100, "undecided", [("low", "assumed")], id="the interval holds both"),
        pytest.param(40.0, 100, "degraded", [("high", "proven")], id="the loss is proven"),
    ],
)
def test_a_fault_is_judged_by_what_it_costs(
    pairs: dict[float, tuple[Path, Path]], wide: float, labelled: int, verdict: str, harm: list[tuple[str, str]]
) -> None:
    found = diagnosed(pairs[wide], labelled)
    assert found.verdict == verdict
    assert [(cause.severity, cause.harm) for cause in found.causes[:1]] == harm
    assert all(cause.cause == "stale-calibration" for cause in found.causes[:1])
    assert contradictions(found) == []
    assert (found.undecided is not None) is (verdict == "undecided")


@pytest.mark.nightly
def test_the_samples_that_decide_are_named_and_decide(pairs: dict[float, tuple[Path, Path]]) -> None:
    found = diagnosed(pairs[8.0], 100)
    assert found.undecided is not None and found.undecided.needed is not None and found.metrics.samples == 100
    assert found.undecided.needed > 100 and found.undecided.gain_db > 6
    console = " ".join(render_console(found).split())
    assert "UNDECIDED" in console and "labelled samples decide (now 100)" in console
    assert "still to be gained: " in console and "prescription" in console
    assert diagnosed(pairs[8.0], found.undecided.needed).verdict == "healthy"


def with_narrower_input(models: tuple[Path, Path], by: float, folder: Path) -> tuple[Path, Path]:
    """The same, with a range of the input that is narrower by this: those behind it stay too wide.

    The bias follows: its scale is that of the input times that of the weight.
    """
    model = onnx.load(models[1])
    factors = {"features_scale": 1 / by, "bias_quantized_scale": 1 / by, "bias_quantized": by}
    for each in model.graph.initializer:
        if each.name in factors:
            value = onnx.numpy_helper.to_array(each)
            changed = (value * factors[each.name]).astype(value.dtype)
            each.CopyFrom(onnx.numpy_helper.from_array(changed, each.name))
    onnx.save(model, folder / "own.onnx")
    return models[0], folder / "own.onnx"


@pytest.mark.nightly
def test_without_a_metric_one_with_labels_would_decide(pairs: dict[float, tuple[Path, Path]], tmp_path: Path) -> None:
    found = diagnosed(with_narrower_input(pair(tmp_path, 12.0), 6.0, tmp_path), 100, labels=False)
    assert found.verdict == "undecided" and found.undecided is not None and found.undecided.metric is None
    assert "no task metric was measured" in " ".join(render_console(found).split())
    assert contradictions(found) == []
    # Of so many samples, hardly an answer changed: no metric of answers can lose what matters.
    mild = with_narrower_input(pairs[8.0], 4.0, tmp_path)
    assert diagnosed(mild, 4000, labels=False).verdict == "healthy"


def test_without_labels_a_range_of_the_input_that_does_not_fit_leaves_it_open(
    pairs: dict[float, tuple[Path, Path]],
) -> None:
    """Either the calibration or the samples are of another kind; labels show that the samples are right."""
    found = diagnosed(pairs[8.0], 4000, labels=False)
    assert found.verdict == "undecided" and found.causes[0].rules == ("S047",)
    assert found.undecided is not None and found.undecided.doubt is not None
    assert contradictions(found) == []


def test_what_is_withstood_takes_one_line_and_is_folded(pairs: dict[float, tuple[Path, Path]], tmp_path: Path) -> None:
    found = diagnosed(pairs[8.0], 4000)
    (told,) = [text for text in render_console(found).splitlines() if "input-range-of-other-data" in text]
    assert told.startswith("low ") and ", no accuracy cost yet, predicted +" in told
    assert "do this first" not in render_console(found).lower() and found.prescription is None
    quantmedic.write_report(found, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<details id="assumed"><summary>input-range-of-other-data, predicted +' in page
    assert "1 cause adds noise but costs no accuracy yet; repairing it would gain" in page
    assert "low · no accuracy cost yet" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_what_was_supposed_is_no_evidence(pairs: dict[float, tuple[Path, Path]]) -> None:
    found = diagnosed(pairs[8.0], 100)
    assert found.model.harmed is False
    assert "model.harmed" not in {row.fact for cause in found.causes for row in cause.evidence}


def test_undecided_fails_a_gate_only_where_the_policy_asks(
    pairs: dict[float, tuple[Path, Path]], tmp_path: Path
) -> None:
    path = tmp_path / "quantmedic.toml"
    for policy, code, word in (
        ("", 0, "ACCEPT"),
        ('[check]\nverdicts = {undecided = "fail"}\n', 3, "INSUFFICIENT_DATA"),
    ):
        path.write_text(policy, encoding="utf-8")
        found = quantmedic.check(measured(pairs[8.0], 100), policy=path)
        assert (found.verdict, found.gate) == ("undecided", word)
        assert found.check is not None and found.check.exit_code == code
        assert contradictions(found) == []
        assert not any(finding.gated for finding in found.check.findings)


def test_report_json_holds_what_is_open(pairs: dict[float, tuple[Path, Path]]) -> None:
    report = json.loads(render_json(diagnosed(pairs[8.0], 100)))
    assert report["verdict"] == "undecided" and report["undecided"]["limit"] == 0.015
    assert [cause["harm"] for cause in report["causes"]] == ["assumed"]
