"""Writes the files of this folder with neural-compressor 2.3, onnx 1.16, onnxruntime 1.18, numpy 1.26: ``python record.py FOLDER``."""

import logging
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper as h
from onnx import numpy_helper as nh


def network() -> onnx.ModelProto:
    """Two convolutions and a matrix product; the channels of the first one differ by a factor of 40."""
    rng = np.random.default_rng(0)
    stem = rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32) * np.geomspace(0.05, 2, 8, dtype=np.float32)[:, None, None, None]
    body = rng.normal(0, 0.15, (8, 8, 3, 3)).astype(np.float32)
    head = rng.normal(0, 0.4, (8, 4)).astype(np.float32)
    nodes = [
        h.make_node("Conv", ["x", "stem_w"], ["a"], name="/stem/Conv", pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["a"], ["b"], name="/stem/Relu"),
        h.make_node("Conv", ["b", "body_w"], ["c"], name="/body/Conv", pads=[1, 1, 1, 1]),
        h.make_node("Add", ["c", "b"], ["d"], name="/body/Add"),
        h.make_node("GlobalAveragePool", ["d"], ["e"], name="/pool"),
        h.make_node("Reshape", ["e", "shape"], ["f"], name="/flat"),
        h.make_node("MatMul", ["f", "head_w"], ["y"], name="/head/MatMul"),
    ]
    weights = {"stem_w": stem, "body_w": body, "head_w": head, "shape": np.array([-1, 8], np.int64)}
    graph = h.make_graph(
        nodes, "small",
        [h.make_tensor_value_info("x", 1, ["N", 3, 8, 8])],
        [h.make_tensor_value_info("y", 1, ["N", 4])],
        [nh.from_array(value, name) for name, value in weights.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8)


class Loader:
    batch_size = 4

    def __iter__(self):
        rng = np.random.default_rng(1)
        for _ in range(4):
            yield rng.normal(0, 1, (4, 3, 8, 8)).astype(np.float32), np.zeros(4)


def main(folder: Path) -> None:
    from neural_compressor import PostTrainingQuantConfig, quantization, set_workspace
    set_workspace(str(folder / "workspace"))
    for fmt in sys.argv[2:] or ["QDQ"]:
        conf = PostTrainingQuantConfig(diagnosis=True, quant_format=fmt, op_type_dict={"Conv": {"weight": {"granularity": ["per_tensor"]}}})
        model = quantization.fit(network(), conf, calib_dataloader=Loader(), eval_func=lambda model: 1.0)
        model.save(str(folder / f"{fmt}.onnx"))

main(Path(sys.argv[1]))
