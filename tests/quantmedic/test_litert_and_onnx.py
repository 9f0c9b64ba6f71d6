"""One model, one fault, two formats: ONNX with onnxruntime's quantization and LiteRT with ai-edge-quantizer's.

Weights and data are the same; kernels, layouts, fused activations and the tools' grids are not. The first cause is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.litert_models import Twins, channels_last, quantized
from builders.onnx_models import Array, images, random, static
from builders.tiers import others_nightly
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

SAMPLES = 96


def network(*, spread: float = 1.0, branch: float = 1.0) -> Twins:
    """Two branches that meet in a concatenation, four more layers; the float outputs depend on neither number.

    Args:
        spread: How much larger two channels of ``wide`` are than the others, weights and results.
        branch: How much larger ``right`` is than ``left``.
    """
    twins = Twins()
    image = twins.input("image", 3, 8, 8)
    stem = twins.conv(image, random(1, 16, 3, 3, 3, scale=0.3), random(2, 16, scale=0.1), out="stem", act="relu")
    left = twins.conv(stem, random(3, 16, 16, 3, 3, scale=0.12), random(4, 16, scale=0.1), out="left", act="relu")
    weight, bias = random(5, 16, 16, 3, 3, scale=0.12), random(6, 16, scale=0.1)
    right = twins.conv(stem, weight * np.float32(branch), bias * np.float32(branch), out="right", act="relu")
    weight = random(7, 16, 32, 3, 3, scale=0.09)
    weight[:, 16:] /= branch
    joined = twins.concat(left, right, out="joined")
    merged = twins.conv(joined, weight, random(8, 16, scale=0.1), out="merge", act="relu")
    factors = np.where(np.arange(16) % 8 == 0, spread, 1).astype(np.float32)
    weight, bias = random(9, 16, 16, 3, 3, scale=0.12), random(10, 16, scale=0.1)
    wide = twins.conv(merged, weight * factors[:, None, None, None], bias * factors, out="wide", act="relu")
    weight = random(11, 16, 16, 3, 3, scale=0.12) / factors[None, :, None, None]
    last = twins.conv(wide, weight, random(12, 16, scale=0.1), out="last", act="relu")
    flat = twins.reshape(twins.pool(last, out="pooled"), 256, out="flat")
    twins.output(twins.dense(flat, random(13, 5, 256, scale=0.06), random(14, 5, scale=0.1), out="scores"))
    return twins


@dataclass(frozen=True)
class Fault:
    """What is wrong, the cause that both formats must name first, and its layers where they are few and certain.

    Branches of unlike ranges have weights of unlike ranges behind them, which make as much noise: of two ``causes``
    both formats name the same.
    """

    causes: str
    layers: frozenset[str] | None = None
    spread: float = 1.0
    branch: float = 1.0
    per_tensor: bool = False
    calibration: Callable[[Array], Array] = lambda x: x


FAULTS = {
    "one scale for unequal channels": Fault(
        "channel-range-imbalance", frozenset({"wide", "last"}), spread=300, per_tensor=True
    ),
    "unequal channels of an activation": Fault("channel-outliers", frozenset({"wide"}), spread=300),
    "a branch drowned by the other": Fault("unbalanced-concatenation channel-range-imbalance", branch=300),
    "calibrated on smaller values": Fault("preprocessing-mismatch", calibration=lambda x: x * np.float32(0.15)),
    "calibrated on blank samples": Fault("blank-samples", calibration=lambda x: np.full_like(x, 0.01)),
}


def both(folder: Path, fault: Fault) -> dict[str, Diagnosis]:
    """Diagnoses through ONNX and through LiteRT."""
    twins = network(spread=fault.spread, branch=fault.branch)
    float_onnx, float_lite = twins.save(folder)
    x, unseen = fault.calibration(images(SAMPLES, 1)), images(SAMPLES, 2)
    integers = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    model = static(twins.onnx(), {"image": x}, folder, per_channel=not fault.per_tensor, **integers)
    onnx.save(model, str(folder / "quantized.onnx"))
    content = quantized(float_lite.read_bytes(), "int8", {"image": channels_last(x)}, per_tensor=fault.per_tensor)
    (folder / "quantized.tflite").write_bytes(content)
    return {
        "onnx": quantmedic.diagnose(
            float_onnx, folder / "quantized.onnx", representative=x, validation=unseen, threads=1
        ),
        "litert": quantmedic.diagnose(
            float_lite,
            folder / "quantized.tflite",
            representative=channels_last(x),
            validation=channels_last(unseen),
            threads=1,
        ),
    }


@pytest.mark.parametrize("name", others_nightly(FAULTS))
def test_the_same_first_cause(tmp_path, name):
    fault = FAULTS[name]
    found = both(tmp_path, fault)
    assert len({diagnosis.causes[0].cause for diagnosis in found.values()}) == 1
    for diagnosis in found.values():
        first = diagnosis.causes[0]
        assert first.cause in fault.causes.split()
        if fault.layers is not None:
            assert {layer.float_name.split("/")[0] for layer in first.layers} == fault.layers


@pytest.mark.nightly
@pytest.mark.parametrize("per_tensor", [False, True])
def test_neither_finds_a_cause_without_a_fault(tmp_path, per_tensor):
    for diagnosis in both(tmp_path, Fault("", per_tensor=per_tensor)).values():
        assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
