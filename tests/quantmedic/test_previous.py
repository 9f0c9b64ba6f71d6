"""--previous on real models: a remedy that does not matter, the right one, and what cannot be compared."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import own
from click.testing import CliRunner
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, quantize_static

import quantmedic
from quantmedic.api.options import RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.cli.main import cli
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import CaseError
from quantmedic.engine.rules.rulebase import RuleBase

pytestmark = pytest.mark.thorough

MEAN, STD = 0.286, 0.353


class Reader(CalibrationDataReader):
    def __init__(self, images: np.ndarray) -> None:
        self._batches = iter([{"image": images[i : i + 32]} for i in range(0, len(images), 32)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


@pytest.fixture(scope="module")
def rules() -> RuleBase:
    """Without the rules that tell by the inputs alone that the model was calibrated on others, or that it cuts them."""
    return rules_in_force(RuleOptions(ignore=("D013", "D018", "A002")))


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """Images as the demo's faulty pipeline calibrates: scaled, but not normalized."""
    _, options = patient()
    return np.load(options["representative"])["image"].astype(np.float32) / 255


@pytest.fixture(scope="module")
def quantized(pixels: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo's network calibrated by percentiles, by extremes, and by extremes of normalized images."""
    folder = tmp_path_factory.mktemp("models")
    (model, _), _ = patient()
    percentile = {"calibrate_method": CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 99.9}}
    for name, images, options in (
        ("percentile", pixels, percentile),
        ("extremes", pixels, {}),
        ("normalized", (pixels - MEAN) / STD, {}),
    ):
        quantize_static(
            str(own(model, folder)), str(folder / f"{name}.onnx"), Reader(images), per_channel=True, **options
        )
    return {path.stem: path for path in folder.glob("*.onnx")}


@pytest.fixture(scope="module")
def cases(quantized: dict[str, Path]) -> dict[str, Case]:
    """Measured on validation data alone, so that nothing tells of the calibration."""
    (model, _), options = patient()
    data = {"validation": options["validation"], "preprocessing": options["preprocessing"]}
    return {name: quantmedic.collect(model, path, **data) for name, path in quantized.items()}


def judge(cases: dict[str, Case], rules: RuleBase, then: str, now: str) -> Diagnosis:
    return quantmedic.judge(cases[now], rules, previous=cases[then])


@pytest.mark.nightly
@pytest.mark.source("xquant-general-measures")
def test_remedy_that_does_not_matter_is_named_and_ranked_down(cases: dict[str, Case], rules: RuleBase) -> None:
    """Wider ranges while the calibration images lack their normalization: nothing is won."""
    alone = quantmedic.judge(cases["extremes"], rules)
    assert alone.causes[0].cause == "over-clipped-activations"
    assert alone.advice_place == "folded"
    found = judge(cases, rules, "percentile", "extremes")
    assert found.previous is not None
    assert found.previous.effect.same_data
    assert abs(found.previous.effect.gain_db) < 1
    (row,) = [row for row in found.previous.tried if row.cause == "over-clipped-activations"]
    assert (row.remedy, row.helped) == ("widen-activation-range", False)
    ranges = {changed.setting: changed.count for changed in found.previous.changed}
    assert ranges["range"] > 10
    (cause,) = [cause for cause in found.causes if cause.cause == "over-clipped-activations"]
    assert [one.remedy for one in cause.tried] == ["widen-activation-range"]
    assert found.causes[-1].tried, "what was tried without effect comes last"
    assert found.advice[0] == "preprocessing", "which is where the fault is"
    assert found.advice_place == "first"


@pytest.mark.nightly
def test_narrower_ranges_are_not_taken_for_the_remedy_that_widens(cases: dict[str, Case], rules: RuleBase) -> None:
    found = judge(cases, rules, "extremes", "percentile")
    assert found.previous is not None
    assert {changed.setting for changed in found.previous.changed} >= {"range"}
    assert found.previous.tried == ()
    assert found.causes[0].tried == ()


def test_right_remedy_helped(cases: dict[str, Case], rules: RuleBase) -> None:
    found = judge(cases, rules, "percentile", "normalized")
    assert found.verdict == "healthy"
    assert found.previous is not None
    effect = found.previous.effect
    assert (effect.helped, effect.gain_db > 20) == (True, True)
    assert effect.drop < effect.drop_before_low
    assert {row.helped for row in found.previous.tried if row.remedy == "widen-activation-range"} == {True}


@pytest.mark.nightly
def test_same_fault_in_other_samples(
    quantized: dict[str, Path], pixels: np.ndarray, rules: RuleBase, tmp_path: Path
) -> None:
    """Calibrated again on other images that lack the normalization, too."""
    (model, _), options = patient()
    names = ("first", "second")
    halves = {"first": pixels[:80], "second": pixels[80:]}
    found = {}
    for name in names:
        quantize_static(
            str(own(model, tmp_path)), str(tmp_path / f"{name}.onnx"), Reader(halves[name]), per_channel=True
        )
        data = options | {
            "representative": {"image": halves[name]},
            "preprocessing": {"validation": options["preprocessing"]["validation"]},
        }
        found[name] = quantmedic.collect(model, tmp_path / f"{name}.onnx", **data)
    diagnosis = quantmedic.judge(found["second"], rules, previous=found["first"])
    assert diagnosis.previous is not None
    (row,) = [row for row in diagnosis.previous.tried if row.remedy == "recalibrate-on-proper-data"][:1]
    assert (row.cause, row.helped, row.everywhere) == ("preprocessing-mismatch", False, True)
    (changed,) = [c for c in diagnosis.previous.changed if c.setting == "share of the same samples"]
    assert changed.examples[0].after < 0.1
    cause = next(cause for cause in diagnosis.causes if cause.cause == "preprocessing-mismatch")
    assert cause.remedies[-1].id == "recalibrate-on-proper-data"


@pytest.mark.nightly
def test_validation_on_other_samples_compares_no_noise(quantized: dict[str, Path], cases: dict[str, Case]) -> None:
    (model, _), options = patient()
    half = {name: array[:256] for name, array in np.load(options["validation"]).items()}
    case = quantmedic.collect(model, quantized["normalized"], validation=half, preprocessing=options["preprocessing"])
    found = quantmedic.judge(case, previous=cases["percentile"])
    assert found.previous is not None
    effect = found.previous.effect
    assert (effect.same_data, effect.gain_db, effect.helped) == (False, None, True)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def test_command_line_and_every_format(cases: dict[str, Case], quantized: dict[str, Path], tmp_path: Path) -> None:
    (model, _), options = patient()
    quantmedic.save_case(cases["percentile"], tmp_path / "before.case")
    quantmedic.save_case(cases["normalized"], tmp_path / "now.case")
    again = call("diagnose", tmp_path / "now.case", "--previous", tmp_path / "before.case", "-o", tmp_path / "again")
    assert again.exit_code == 0, again.output
    assert re.search(r"since the previous case: helped \(\+2\d\.\d dB\)", again.output)
    np.savez(tmp_path / "val.npz", **np.load(options["validation"]))
    first = call(
        "diagnose", model, quantized["normalized"], "-v", tmp_path / "val.npz", "-p", "scale=255", "-p", f"mean={MEAN}",
        "-p", f"std={STD}", "--previous", tmp_path / "before.case", "-o", tmp_path / "first",
    )  # fmt: skip
    assert first.exit_code == 0, first.output
    for folder in ("first", "again"):
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert report["previous"]["effect"]["helped"] is True
        assert "Since the previous case: helped (+2" in (tmp_path / folder / "report.md").read_text()
        assert "Since the previous case: helped (+2" in (tmp_path / folder / "index.html").read_text()


@pytest.mark.nightly
def test_case_of_another_float_model_is_refused(
    cases: dict[str, Case], quantized: dict[str, Path], tmp_path: Path
) -> None:
    (model, _), options = patient()
    other = onnx.load(model)
    other.graph.node[0].name = "renamed"
    onnx.save(other, tmp_path / "other.onnx")
    quantmedic.save_case(cases["percentile"], tmp_path / "before.case")
    with pytest.raises(CaseError) as caught:
        quantmedic.diagnose(
            tmp_path / "other.onnx",
            quantized["normalized"],
            validation=options["validation"],
            preprocessing=options["preprocessing"],
            previous=tmp_path / "before.case",
        )
    text = str(caught.value)
    assert "the previous case belongs to another float model" in text
    assert "present: other.onnx, " in text and "previous: float.onnx, " in text
    assert "only in the present: renamed" in text
    assert "help: measure both against the same float file" in text


def test_without_the_file_the_command_fails_before_it_measures(tmp_path: Path) -> None:
    (model, int8), options = patient()
    done = call("diagnose", model, int8, "-v", options["validation"], "--previous", tmp_path / "no.case")
    assert isinstance(done.exception, CaseError)
    assert "no.case" in str(done.exception)
