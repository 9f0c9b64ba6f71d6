"""Quantizing again with nothing changed: what that recovers alone is credited to no remedy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import images, random, residual_net, run, save_pair, static, with_weights

import quantmedic
from quantmedic.engine.case.proof import ExecutionRecord, ProofRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.sections.prescription import execution_text
from quantmedic.reports.sections.proof import execution_lines

pytestmark = pytest.mark.thorough

AGAIN = "requantize-this-model"


@dataclass(frozen=True)
class Found:
    """A pair diagnosed with its proof, and the file that was written as prescribed."""

    paths: tuple[Path, Path]
    fixed: Path
    proof: ProofRecord
    diagnosis: Diagnosis

    @property
    def baseline(self) -> ExecutionRecord:
        assert self.proof.baseline is not None
        return self.proof.executions[self.proof.baseline]

    @property
    def best(self) -> ExecutionRecord:
        assert self.proof.best is not None
        return self.proof.executions[self.proof.best]

    @property
    def remedies(self) -> list[str]:
        assert self.diagnosis.prescription is not None
        return [step.remedy for step in self.diagnosis.prescription.steps]


def older(model: onnx.ModelProto) -> onnx.ModelProto:
    """An earlier checkpoint: every weight is a little different."""
    return with_weights(model, lambda w: w + random(w.size, *w.shape, scale=0.1 * float(w.std())))


def outlying(w: np.ndarray) -> np.ndarray:
    """One channel is much larger than the others: one scale for all of them is coarse."""
    return w * np.array([30.0, *[1.0] * (len(w) - 1)], np.float32).reshape(-1, 1, 1, 1)


JUDGED = images(96, 8)


def diagnosed(folder: Path, float_model: onnx.ModelProto, quantized: onnx.ModelProto) -> Found:
    pair, fixed = save_pair(folder, float_model, quantized), folder / "fixed.onnx"
    data = {"representative": {"image": images(64)}, "validation": {"image": JUDGED}}
    case = quantmedic.collect(*pair, prove=600, threads=1, write_fixed=fixed, **data)
    assert case.record.proof is not None
    return Found(pair, fixed, case.record.proof, quantmedic.judge(case))


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Quantized from an older checkpoint than the float model at hand."""
    folder, model = tmp_path_factory.mktemp("stale"), residual_net()
    return diagnosed(folder, model, static(older(model), {"image": images(64)}, folder))


@pytest.fixture(scope="module")
def coarse_and_stale(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The same, and one scale for all channels of weights that differ much."""
    folder, model = tmp_path_factory.mktemp("both"), with_weights(residual_net(), outlying)
    return diagnosed(folder, model, static(older(model), {"image": images(64)}, folder))


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Only that: the model is what its toolchain makes of these data."""
    folder, model = tmp_path_factory.mktemp("coarse"), with_weights(residual_net(), outlying)
    return diagnosed(folder, model, static(model, {"image": images(64)}, folder))


@pytest.fixture(scope="module")
def old_ranges(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Calibrated on inputs a tenth as large as the representative ones are now."""
    folder, model = tmp_path_factory.mktemp("ranges"), residual_net()
    return diagnosed(folder, model, static(model, {"image": images(64) / 10}, folder))


@pytest.mark.nightly
def test_of_a_stale_model_quantizing_again_leads(stale: Found) -> None:
    assert stale.proof.best == stale.proof.baseline == 0
    assert len(stale.proof.executions) == 1
    assert stale.baseline.trial.proven and stale.baseline.own is None
    assert stale.baseline.trial.gain_db > 10
    assert stale.remedies == [AGAIN]
    given = stale.diagnosis.prescription
    assert given is not None and given.grade == "executed"
    said = execution_text(given, stale.diagnosis)
    assert "was made with one that files do not keep" in said


@pytest.mark.nightly
def test_a_remedy_is_credited_with_what_it_adds_to_quantizing_again(coarse_and_stale: Found) -> None:
    found = coarse_and_stale
    assert found.proof.best != found.proof.baseline == 0
    again, best = found.baseline.trial, found.best
    assert again.proven and again.gain_db > 10
    assert best.own is not None and best.own.proven and best.own.after == (again.key,)
    assert best.trial.gain_db == pytest.approx(again.gain_db + best.own.gain_db, abs=1e-6)
    assert best.own.sqnr_before == again.sqnr_after
    assert best.credit == best.own
    given, lines = found.diagnosis.prescription, execution_lines(found.diagnosis)
    assert given is not None
    assert "Of this, quantizing again with nothing changed recovers" in execution_text(given, found.diagnosis)
    assert lines[0].reason == "" and lines[0].remedy.startswith("control: ") and lines[0].verdict == "proven"
    assert all("beyond quantizing again alone: " in line.reason for line in lines[1:])


def test_where_the_same_model_comes_out_a_remedy_keeps_all_of_its_gain(coarse: Found) -> None:
    again, best = coarse.baseline.trial, coarse.best
    assert again.gain_db == pytest.approx(0, abs=1e-9) and not again.proven
    assert execution_lines(coarse.diagnosis)[0].verdict == "as expected, no gain"
    assert coarse.proof.best != coarse.proof.baseline
    assert best.credit == best.trial
    assert best.own is not None and best.own.gain_db == pytest.approx(best.trial.gain_db, abs=1e-9)
    given = coarse.diagnosis.prescription
    assert given is not None
    assert "Quantizing again with nothing changed recovers none of it." in execution_text(given, coarse.diagnosis)


@pytest.mark.nightly
def test_a_cause_that_advises_it_is_proven_by_it(old_ranges: Found) -> None:
    assert old_ranges.proof.best == old_ranges.proof.baseline == 0
    assert old_ranges.baseline.choices == ("stale-calibration:calibrate-again",)
    first = old_ranges.diagnosis.causes[0]
    assert first.cause == "stale-calibration" and first.proven


@pytest.mark.nightly
def test_what_is_prescribed_is_measured_on_all_samples(coarse_and_stale: Found) -> None:
    """The half that is judged alone would show another number than the file that is written."""
    found = coarse_and_stale
    assert found.diagnosis.prescription is not None and found.diagnosis.prescription.executed is not None
    trial = found.diagnosis.prescription.executed.trial
    assert (found.proof.judged, trial.samples) == (48, 96)
    float_out, before, after = (
        run(onnx.load(str(path)), {"image": JUDGED})["scores"] for path in (*found.paths, found.fixed)
    )
    gain = 10 * np.log10(np.square(before - float_out).sum() / np.square(after - float_out).sum())
    assert trial.gain_db == pytest.approx(gain, abs=0.01)
    assert trial.low_db < gain < trial.high_db
    assert "on all 96 samples" in execution_text(found.diagnosis.prescription, found.diagnosis)
