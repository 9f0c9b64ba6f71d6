"""Batch norms that OpenVINO took apart, behind a convolution and a quantizer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.openvino_models import fake_quantize, openvino

from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.openvino_session import Session

pytestmark = pytest.mark.thorough

X = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)


def net(folder: Path, *, quantized: bool, shift: bool, channels: bool = True, between: bool = False) -> OpenVINOGraph:
    """A convolution, a quantizer, a factor of each channel, and what is added to each."""
    package = openvino()
    from openvino import opset13 as ops

    def each(seed: int) -> Any:
        side = 4 if channels else 1
        return ops.constant(np.random.default_rng(seed).normal(size=(1, side, 1, 1)).astype(np.float32))

    image = ops.parameter([-1, 3, 8, 8], np.float32, name="image")
    weights = ops.constant(np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32))
    y: Any = ops.convolution(image, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    y = ops.tanh(y) if between else y
    y = fake_quantize(y, -12.8, 12.7) if quantized else y
    y = ops.multiply(y, each(2))
    y = ops.add(y, each(3)) if shift else y
    package.save_model(package.Model([ops.result(y)], [image], "net"), folder / "net.xml", compress_to_fp16=False)
    return graph_of(read_ir(folder / "net.xml"))


@pytest.mark.parametrize("quantized", [True, False])
def test_a_factor_and_a_shift_of_each_channel_are_a_batch_norm(tmp_path, quantized):
    for shift in (True, False):
        graph = net(tmp_path, quantized=quantized, shift=shift)
        assert [op.op_type for op in graph.operators] == ["Conv", "BatchNormalization"]
        expected = Session(graph, [], 1).run([X])[0][0]
        (found,) = run(make_session(graph.model, graph.path, 1), graph.outputs, {"image": X}, graph.path)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_other_factors_stay_products(tmp_path):
    for other in ({"channels": False}, {"between": True}):
        kinds = {op.op_type for op in net(tmp_path, quantized=True, shift=True, **other).operators}
        assert "BatchNormalization" not in kinds and {"Mul", "Add"} <= kinds, other
