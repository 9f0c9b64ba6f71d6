"""What `fix` says of a model that was calibrated on samples that judge it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantmedic.engine.case.proof import ExecutionRecord, MetricTrial, TrialRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.terminal.fixed import calibration_lines


def diagnosis_with(reads: str, metric: MetricTrial | None) -> Diagnosis:
    trial = TrialRecord(key="k", kind="k", samples=256, gain_db=12.5, low_db=11.0, high_db=14.0, metric=metric)
    run = ExecutionRecord(toolchain="onnxruntime", choices=(), titles=(), code="", reads=reads, trial=trial)
    proof = SimpleNamespace(best=0, dataset="validation")
    fields: dict[str, Any] = {"proof": proof, "prescription": SimpleNamespace(executed=run)}
    return cast("Diagnosis", SimpleNamespace(**fields))


TOP1 = MetricTrial(
    name="top1", float_model=0.9, before=0.25, after=0.89, gain=0.64, low=0.6, high=0.68, left=0.01, left_low=-0.01,
    left_high=0.03,
)  # fmt: skip


def test_the_metric_of_samples_that_did_not_calibrate_is_told() -> None:
    counts, metric = calibration_lines(diagnosis_with("half of the validation samples", TOP1))
    assert "on the 256 samples that did not calibrate it, it gains +12.5 dB" in counts
    assert metric.split() == [
        "top-1",
        "of",
        "these",
        "25.00",
        "%",
        "→",
        "89.00",
        "%",
        "float",
        "90.00",
        "%",
        "gain",
        "+60.00",
        "points",
        "…",
        "+68.00",
        "points",
    ]


def test_without_labels_the_noise_is_told_alone() -> None:
    (line,) = calibration_lines(diagnosis_with("half of the validation samples", None))
    assert "+12.5 dB" in line


def test_nothing_is_told_where_other_samples_calibrated(subtests: pytest.Subtests) -> None:
    for metric in [TOP1, None]:
        with subtests.test(metric=metric):
            assert list(calibration_lines(diagnosis_with("the representative samples", metric))) == []
