"""A float model that ends on nothing but its own inputs."""

from pathlib import Path

import numpy as np
import onnx
from builders.onnx_models import conv_net, images, qdq

import quantmedic


def test_it_is_measured(tmp_path: Path) -> None:
    """A session that is asked for no output gives all of them."""
    model = conv_net()
    onnx.save(qdq(model, {"image": images()}), str(tmp_path / "int8.onnx"))
    del model.graph.output[:]
    model.graph.output.append(model.graph.input[0])
    onnx.save(model, str(tmp_path / "float.onnx"))
    np.savez(tmp_path / "x.npz", image=images(4))
    case = quantmedic.collect(tmp_path / "float.onnx", tmp_path / "int8.onnx", validation=tmp_path / "x.npz", threads=1)
    assert case.record.datasets["validation"].seen == 4
