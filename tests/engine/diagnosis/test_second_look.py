"""A fault that another one hides is listed with what its repair adds, and no healthy part is."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Array, Net, images, random, static
from onnx import numpy_helper

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.terminal.console import render_console

pytestmark = [pytest.mark.thorough, pytest.mark.attributed]
OF_DATA = {"too-few-samples", "domain-shift", "preprocessing-mismatch", "over-clipped-activations"}


def network() -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    for number, (into, out) in enumerate(((3, 16), (16, 16), (16, 16)), 1):
        weight, bias = random(number, out, into, 3, 3, scale=0.25), random(10 + number, out, scale=0.1)
        x = net.add("Relu", net.conv(x, weight, bias, out=f"conv{number}"), out=f"relu{number}")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.output(net.add("MatMul", x, net.const("last", random(7, 16, 5, scale=0.4)), out="scores"))
    return net.model()


def diagnosed(folder: Path, calibration: Array, *, is_coarse: bool) -> Diagnosis:
    """The network calibrated on these images; where it is coarse, the weights of its last layer have three values."""
    model = network()
    quantized = static(model, {"image": calibration}, folder)
    if is_coarse:
        (codes,) = (each for each in quantized.graph.initializer if each.name == "last_quantized")
        values = numpy_helper.to_array(codes).astype(np.int16)
        coarse = np.clip(np.rint(values / 90) * 90, -127, 127).astype(numpy_helper.to_array(codes).dtype)
        codes.CopyFrom(numpy_helper.from_array(coarse, codes.name))
    paths = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, str(paths[0]))
    onnx.save(quantized, str(paths[1]))
    data: dict[str, Any] = {"representative": {"image": calibration}, "validation": {"image": images(128, 7)}}
    return quantmedic.diagnose(*paths, **data)


def test_a_hidden_fault_is_listed_behind_the_one_that_hides_it(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, images(64) * np.float32(0.7), is_coarse=True)
    hidden = {cause.cause: cause for cause in found.causes if cause.behind is not None}
    assert found.causes[0].cause in ("last-layer-bitwidth", "too-few-weight-bits", "foreign-weights")
    assert OF_DATA & hidden.keys(), [cause.cause for cause in found.causes]
    for cause in hidden.values():
        assert (cause.behind, cause.severity) == (found.causes[0].cause, "low")
        assert cause.predicted_gain_db is not None and cause.predicted_gain_db > 3
    assert "hidden behind " in render_console(found)


def test_one_prescription_heals_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What heals the first fault leaves the second one, which costs more than half of the noise that is left then."""
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE")
    found = diagnosed(tmp_path, images(64) * np.float32(0.7), is_coarse=True)
    assert found.prescription is not None and found.prescription.executed is not None and found.proof is not None
    best = found.prescription.executed.trial
    first = next(run.trial for run in found.proof.executions if run.trial.proven)
    assert len(found.prescription.steps) == 2 and best.proven
    assert (best.gain_db or 0.0) > (first.gain_db or 0.0) + 3
    assert OF_DATA & {name for step in found.prescription.steps for name in step.causes}


def test_nothing_hides_behind_a_single_fault(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, images(128), is_coarse=True)
    assert found.causes[0].behind is None and not [cause.cause for cause in found.causes if cause.behind is not None]
