"""Quantizes a small network with ``diagnosis=True``: ``python record.py OUT`` in an environment of README.md."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def network() -> onnx.ModelProto:
    """Two convolutions and a matrix product; the channels of the first one differ by a factor of 40."""
    rng = np.random.default_rng(0)
    gains = np.geomspace(0.05, 2, 8, dtype=np.float32)[:, None, None, None]
    weights = {
        "stem_w": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32) * gains,
        "body_w": rng.normal(0, 0.15, (8, 8, 3, 3)).astype(np.float32),
        "head_w": rng.normal(0, 0.4, (8, 4)).astype(np.float32),
        "shape": np.array([-1, 8], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "stem_w"], ["a"], name="/stem/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="/stem/Relu"),
        helper.make_node("Conv", ["b", "body_w"], ["c"], name="/body/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"], name="/body/Add"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="/pool"),
        helper.make_node("Reshape", ["e", "shape"], ["f"], name="/flat"),
        helper.make_node("MatMul", ["f", "head_w"], ["y"], name="/head/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["N", 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class Loader:
    """Calibration samples; ``outlier`` is put into the first one."""

    batch_size = 4

    def __init__(self, batches: int = 4, batch_size: int = 4, outlier: float | None = None) -> None:
        self.batches, self.batch_size, self.outlier = batches, batch_size, outlier

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        rng = np.random.default_rng(1)
        for batch in range(self.batches):
            samples = rng.normal(0, 1, (self.batch_size, 3, 8, 8)).astype(np.float32)
            if self.outlier is not None and batch == 0:
                samples[0, 0, 0, 0] = self.outlier
            yield samples, np.zeros(self.batch_size)


def main(folder: Path) -> None:
    """Both models, and the workspace of the diagnosis."""
    from neural_compressor import PostTrainingQuantConfig, quantization, set_workspace

    set_workspace(str(folder / "nc_workspace"))
    onnx.save(network(), str(folder / "float.onnx"))
    conf = PostTrainingQuantConfig(
        diagnosis=True, quant_format="QDQ", op_type_dict={"Conv": {"weight": {"granularity": ["per_tensor"]}}}
    )
    model = quantization.fit(network(), conf, calib_dataloader=Loader(), eval_func=lambda model: 1.0)
    model.save(str(folder / "int8.onnx"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
