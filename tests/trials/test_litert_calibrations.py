"""The search for the best calibration of LiteRT files, each setting built by the text that is printed for it."""

from pathlib import Path

import numpy as np
import pytest
from builders.recordings import RECORDINGS

import quantmedic

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")

pytestmark = pytest.mark.thorough

DATA = RECORDINGS / "debugger"


@pytest.mark.nightly
@pytest.mark.source("horizon-calibration-search")
def test_settings_of_litert_are_searched(tmp_path: Path) -> None:
    (samples,) = np.load(DATA / "data.npz").values()
    half = len(samples) // 2
    record = quantmedic.search(
        "calibrations",
        DATA / "float.tflite",
        representative={"serving_default_keras_tensor:0": samples[:half]},
        validation={"serving_default_keras_tensor:0": samples[half:]},
        methods=("min-max",),
        samples=4,
        threads=1,
    )
    assert record.toolchain == "ai-edge-quantizer (LiteRT)"
    assert {row.choices["method"] for row in record.settings} == {"min-max"} and len(record.settings) > 2
    best = record.best
    assert best is not None and best.standing == "best"
    assert record.configuration is not None
    assert "qsv_utils.min_max_update" in record.configuration.code
    assert all(row.failed is None for row in record.settings)
