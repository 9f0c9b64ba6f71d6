"""Threads of 2024 to 2026 in which somebody lost accuracy, rebuilt: the cause that was found there is named first."""

from pathlib import Path

import onnx
import pytest
from builders.field_patients import accuracy, assert_healthy, demo, diagnose, first, mobilenet, named_layers, split
from builders.onnx_models import dynamic

from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough


def dynamically(model: onnx.ModelProto, folder: Path) -> tuple[float, Diagnosis]:
    """Points of accuracy lost by onnxruntime's dynamic quantization, one scale for each weight, and the diagnosis."""
    representative, validation = split(model)
    quantized = dynamic(model, folder)
    lost = accuracy(model, validation) - accuracy(quantized, validation)
    return lost, diagnose(model, quantized, representative, validation, folder)


def test_depthwise_weights_quantized_dynamically(tmp_path: Path) -> None:
    """ability-draft-plus#80: 99.47 % fall to 0.09 %, and one scale for each depthwise weight is the reason."""
    lost, diagnosis = dynamically(mobilenet(60, chains=2), tmp_path)
    assert lost > 0.5
    assert [cause.cause for cause in diagnosis.causes] == ["channel-range-imbalance"]
    layers = named_layers(diagnosis, "channel-range-imbalance")
    assert sorted(layers) == ["/head/depthwise/conv/Conv", "/reduce/depthwise/conv/Conv"]


def test_a_trained_network_quantized_dynamically_is_healthy(tmp_path: Path) -> None:
    """The same network as it was trained."""
    lost, diagnosis = dynamically(demo(), tmp_path)
    assert lost < 0.02 and first(diagnosis) is None
    assert_healthy(diagnosis)
