"""ONNX pairs of the zoo as IRs: both keep the products on which quantizers stand."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, images, random, save_pair, static
from builders.openvino_models import openvino

pytestmark = pytest.mark.thorough


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, without the settings of the process that it makes."""
    openvino()
    for name in ("OMP_NUM_THREADS", "QUANTMEDIC_EXACT_KERNELS"):
        monkeypatch.setenv(name, "1")
    return importlib.import_module("openvino_pairs")


def net() -> onnx.ModelProto:
    """Two convolutions with a factor for each channel between them."""
    made = Net()
    x = made.conv(made.input("image", ["n", 3, 8, 8]), random(0, 4, 3, 3, 3), out="first")
    x = made.add("Mul", x, made.const("factor", np.float32([1, 2, 300, 4]).reshape(1, 4, 1, 1)), out="scaled")
    made.output(made.conv(x, random(1, 2, 4, 3, 3), out="second"))
    return made.model()


@pytest.mark.nightly
def test_a_factor_of_each_channel_is_left_where_it_is(tmp_path: Path, pairs: Any) -> None:
    """The conversion folds it into the weights of the float model alone, and the fault was in the other IR alone."""
    feed = images()
    for path in save_pair(tmp_path, net(), static(net(), {"image": feed}, tmp_path)):
        plain, kept = openvino().convert_model(path), pairs.converted(path)
        assert [port.any_name for port in kept.outputs] == [port.any_name for port in plain.outputs] == ["second"]
        assert "scaled" in {op.get_friendly_name() for op in kept.get_ordered_ops()}
        found = [
            openvino().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(feed)[0]
            for model in (plain, kept)
        ]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-2 * np.abs(found[0]).max())
