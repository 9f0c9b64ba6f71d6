"""What lets a report be trusted later: versions, options and hashes, and nothing of the machine that made it."""

import json

import numpy as np
import pytest

import quantmedic
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.reports.sections.run import run_lines

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def case() -> Case:
    models, options = patient()
    return quantmedic.collect(*models, samples=64, threads=1, **options)


def test_the_run_names_and_hashes_models_and_data(case: Case) -> None:
    diagnosis = quantmedic.judge(case)
    lines = dict(run_lines(diagnosis.run))
    assert lines["float model"] == "float.onnx" and len(lines["float model · sha256"]) == 64
    assert lines["data · validation · origin"] == "validation.npz"
    assert lines["data · validation · samples"] == "64" and lines["samples of each set at most"] == "64"
    assert lines["data · validation · sha256 of first inputs and labels, in any order"] == case.samples_sha256(
        "validation"
    )
    assert lines["seed"] == "0" and lines["metric"] == "top1" and lines["output that the metric reads"] == "the first"
    assert "preprocessing · validation · scale" in lines
    assert {"onnxruntime", "onnx", "numpy", "python"} <= set(lines)
    assert json.loads(json.dumps(diagnosis.model_dump(mode="json")["run"]))["data"]["validation"]["samples"] == 64


def test_the_hash_of_samples_knows_content_and_labels_not_their_order(case: Case) -> None:
    statistics = case.statistics["validation"]
    before, known = statistics.samples.copy(), case.samples_sha256("validation")
    statistics.samples = np.random.default_rng(0).permutation(before)
    assert case.samples_sha256("validation") == known
    for column in ("hash", "label"):
        statistics.samples = before.copy()
        statistics.samples[column][5] += 1
        assert case.samples_sha256("validation") != known
    statistics.samples = before[:-1]
    assert case.samples_sha256("validation") != known
    statistics.samples = before
