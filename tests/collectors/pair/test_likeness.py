"""Whether weights have anything in common, where rounding left hardly anything of them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.originals import normalization_of
from quantmedic.engine.errors import ModelError

LAYERS = ("first", "second", "third")


def heavy_tailed(seed: int) -> NDArray[np.float32]:
    """Nearly all of these weights become 0 on a grid of two bits with one scale."""
    weights = np.random.default_rng(seed).normal(size=(256, 256)).astype(np.float32)
    weights[seed % 256, 0] = 7.0
    return weights


def float_net(seed: int) -> onnx.ModelProto:
    net = Net(25)
    x = net.input("x", ["n", 256])
    for number, name in enumerate(LAYERS):
        net.const(f"{name}.weight", heavy_tailed(seed + number))
        x = net.add("MatMul", x, f"{name}.weight", out=name, name=f"/{name}")
    net.output(x, shape=["n", 256])
    return net.model()


def two_bit_net(seed: int) -> onnx.ModelProto:
    """The same network with weights of two bits."""
    model = float_net(seed)
    graph = model.graph
    for number, name in enumerate(LAYERS):
        weight = heavy_tailed(seed + number)
        scale = np.abs(weight).max()
        codes = np.clip(np.rint(weight / scale), -2, 1).astype(int)
        assert (codes != 0).mean() < 0.02
        del graph.initializer[0]
        stored = helper.make_tensor(f"{name}.codes", TensorProto.INT2, weight.shape, codes.ravel().tolist())
        graph.initializer.append(stored)
        graph.initializer.append(helper.make_tensor(f"{name}.scale", TensorProto.FLOAT, [], [scale]))
        quantizer = helper.make_node("DequantizeLinear", [stored.name, f"{name}.scale"], [f"{name}.weight"])
        graph.node.insert(0, quantizer)
    return model


@pytest.mark.parametrize("seed, belongs", [(0, True), (100, False)])
def test_weights_of_two_bits_with_one_scale(seed: int, belongs: bool, tmp_path: Path) -> None:
    onnx.save(float_net(seed), str(tmp_path / "float.onnx"))
    onnx.save(two_bit_net(0), str(tmp_path / "int2.onnx"))
    if belongs:
        assert open_models(tmp_path / "float.onnx", tmp_path / "int2.onnx")
        return
    with pytest.raises(ModelError, match="do not belong together"):
        open_models(tmp_path / "float.onnx", tmp_path / "int2.onnx")


def test_a_layer_without_a_result_has_no_normalization_behind_it() -> None:
    model = float_net(0)
    del model.graph.node[-1].output[:]
    graph = parse(Path("float.onnx"), model)
    assert normalization_of(graph.operators[-1], graph) is None
