"""The search for the best calibration of PyTorch modules, with the real toolkit."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

import quantmedic  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]


@pytest.mark.source("mct-error-method", "horizon-calibration-search")
def test_error_methods_are_searched(net: Any, batches: list[Any]) -> None:
    seen, judged = torch.cat(batches[:2]).numpy(), torch.cat(batches[2:]).numpy()
    record = quantmedic.search(
        "calibrations", net, representative=seen, validation=judged, methods=("min-max", "mse"), threads=1
    )
    assert record.toolchain == "Sony MCT"
    assert {tuple(row.choices.values()) for row in record.settings} == {
        (method, activations)
        for method in ("min-max", "mse")
        for activations in ("as the platform has them", "negative values shifted")
    }
    best = record.best
    assert best is not None and all(row.failed is None for row in record.settings)
    assert record.configuration is not None
    word = {"min-max": "NOCLIPPING", "mse": "MSE"}[best.choices["method"]]
    assert f"activation_error_method=mct.core.QuantizationErrorMethod.{word}" in record.configuration.code
    assert best.sqnr_db is not None
