"""Encodings that give a bias fewer than 32 bits, while the quantized model has it in 32 or in float."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, random, save_pair, static
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.engine.case.facts import BiasFacts
from quantmedic.engine.case.records import Case

pytestmark = pytest.mark.thorough

DATA = random(3, 32, 3, 8, 8)
#: One value is far larger than the others, as behind a folded batch norm.
UNEVEN = np.float32([-16.0, 0.01, -0.02, 0.03, 0.01, -0.01, 0.02, 0.05])
EVEN = np.float32([1.0, -0.9, 0.8, -1.1, 1.2, -0.7, 0.9, 1.0])


def network(bias: NDArray[np.float32]) -> onnx.ModelProto:
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 8, 3, 3, 3, scale=0.3), bias, out="conv")
    x = net.add("Flatten", net.add("GlobalAveragePool", net.add("Relu", x, out="act"), out="pooled"), out="flat")
    net.output(net.add("MatMul", x, net.const("w", random(9, 8, 5)), out="scores"))
    return net.model()


def encodings(folder: Path, bits: int, scales: list[float]) -> Path:
    entry = {"bw": bits, "dtype": "INT", "is_sym": True, "offset": [-(2 ** (bits - 1))] * len(scales)}
    own = {"activation_encodings": [], "param_encodings": [{"name": "conv.bias", "scale": scales, **entry}]}
    path = folder / "model.encodings"
    path.write_text(json.dumps({"version": "1.0.0", **own}))
    return path


def collected(folder: Path, bias: NDArray[np.float32], file: Path | None, **options: Any) -> Case:
    model = network(bias)
    paths = save_pair(folder, model, static(model, {"image": DATA}, folder, **options))
    return quantmedic.collect_static(*paths, settings_files=[file] if file is not None else [])


def bias_of(case: Case) -> BiasFacts:
    return next(op.bias for op in case.record.operators if op.name == "conv")


def named(case: Case) -> tuple[str, ...]:
    return next((cause.subjects for cause in quantmedic.judge(case).causes if "W022" in cause.rules), ())


@pytest.mark.parametrize("options", [{}, {"extra_options": {"QuantizeBias": False}}], ids=["32-bit", "float"])
def test_eight_bits_for_a_bias_larger_than_the_output(tmp_path: Path, options: dict[str, Any]) -> None:
    """Most of what the largest one adds is cut off by the ReLU, and the others drown on its grid."""
    step = float(np.abs(UNEVEN).max() / 127)
    case = collected(tmp_path, UNEVEN, encodings(tmp_path, 8, [step]), **options)
    bias, output = bias_of(case), next(t for t in case.record.tensors if t.float_name == "act").quantizer.scale
    assert (bias.name, bias.recorded_bits) == ("conv.bias", 8)
    assert bias.recorded_step == pytest.approx(step) and bias.absmax == pytest.approx(np.abs(UNEVEN).max())
    assert bias.recorded_steps == pytest.approx(step / output)
    assert named(case) == ("conv",)
    assert "8 bits" in quantmedic.judge(case).causes[0].message
    assert not [notice for notice in case.record.notices if "conv.bias" in notice], "a bias in the file is no stranger"


def test_outputs_of_sixteen_bits_show_the_steps_of_any_bias(tmp_path: Path) -> None:
    kind = {"activation_type": QuantType.QUInt16, "per_channel": True}
    assert named(collected(tmp_path, EVEN, encodings(tmp_path, 8, [0.009]), **kind)) == ("conv",)
    assert named(collected(tmp_path, EVEN, encodings(tmp_path, 32, [1e-9]), **kind)) == ()


def test_what_keeps_the_bias_is_no_finding(tmp_path: Path) -> None:
    """All bits, a scale for each channel, or steps that are fine enough; without encodings nothing is known."""
    for bits, scales in ((32, [1e-6]), (8, [0.01] * 8), (8, [0.009])):
        assert named(collected(tmp_path, EVEN, encodings(tmp_path, bits, scales))) == ()
    bias = bias_of(collected(tmp_path, UNEVEN, None))
    assert (bias.recorded_bits, bias.recorded_steps) == (None, None)
