"""Prescriptions of NNCF for OpenVINO models: written for them, and run."""

from pathlib import Path

import numpy as np
import pytest
from builders.openvino_models import conv_net, images, openvino, save_openvino_pair

import quantmedic
from quantmedic.collectors.from_openvino.openvino_models import open_models

pytestmark = pytest.mark.nightly

X = images(40)


def calibrated_on(folder: Path, samples: np.ndarray) -> tuple[Path, Path]:
    """A pair whose quantized model NNCF made with these samples."""
    openvino()
    nncf = pytest.importorskip("nncf", reason="NNCF is not installed")
    dataset = nncf.Dataset([each[None] for each in samples])
    return save_openvino_pair(folder, quantized=nncf.quantize(conv_net(), dataset, subset_size=len(samples)))


def test_what_nncf_writes_is_read(tmp_path):
    """Depthwise convolutions get a grid for each channel of their input; names are those of the float model."""
    models = open_models(*calibrated_on(tmp_path, X[:32]))
    assert len(models.match.operators) == len(models.quantized.operators) == len(models.float_graph.operators)
    axes = {name: taps[0].quantizer.axis for name, taps in models.quantized.quantizers.items()}
    assert axes["relu"] == 1 and axes["image"] is None
    described = models.describe().facts
    assert described.toolchain.startswith("nncf ") and "rt_info nncf/version" in described.toolchain_marks


def test_a_stale_calibration_is_named_and_made_good(tmp_path):
    paths = calibrated_on(tmp_path, X[:32] / 255)
    found = quantmedic.diagnose(*paths, representative=X, validation=X, prove=True, threads=1)
    assert found.toolchain.name == "NNCF"
    assert "stale-calibration" in [cause.cause for cause in found.causes[:2]]
    assert 'openvino.Core().read_model("float.xml")' in str(found.prescription)
    assert "onnx.load" not in str(found.prescription)
    executed = found.prescription.executed
    assert executed is not None, found.warnings
    assert executed.trial.gain_db > 10
    assert any("ONNX translation" in warning for warning in found.warnings)


def test_a_fixed_model_is_written_with_its_weights(tmp_path):
    paths = calibrated_on(tmp_path, X[:32] / 255)
    (tmp_path / "out").mkdir()
    fixed = quantmedic.fix(*paths, representative=X, validation=X, threads=1, output=tmp_path / "out" / "fixed.xml")
    assert fixed.model == tmp_path / "out" / "fixed.xml"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fixed.bin", "fixed.xml"]
    assert open_models(paths[0], fixed.model).quantized.is_quantized


def test_data_that_were_prepared_otherwise_are_repaired_by_the_printed_text(tmp_path):
    """What the prescription does to the items of the dataset is run on items by input name."""
    paths = calibrated_on(tmp_path, X[:32] / 255)
    found = quantmedic.diagnose(*paths, representative=X / 255, validation=X, prove=True, threads=1)
    assert found.causes[0].cause == "preprocessing-mismatch"
    assert "def repaired(feeds)" in str(found.prescription)
    executed = found.prescription.executed
    assert executed is not None and executed.trial.failed is None, found.warnings
    assert executed.trial.gain_db > 10
    # The input of the depthwise convolution has a range for each channel: the copy gets those anew as well.
    edited = [row.trial for row in found.proof.trials if "preprocessing-mismatch" in row.causes]
    assert max(trial.gain_db for trial in edited) > executed.trial.gain_db - 3
