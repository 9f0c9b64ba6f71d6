"""Writes the models of this folder with NVIDIA ModelOpt: pip install 'nvidia-modelopt[onnx]', then run this here.

32 planes of 4 x 4, four classes that each light up planes of their own; the last layer is fitted by least squares.
Made with nvidia-modelopt 0.47.0 on a CPU.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
BLOCKS = {"block_size": 16, "nodes_to_exclude": ["/fc2/MatMul"]}
#: Arguments of ``quantize`` by the name of the file.
MODES = {
    "int8": {"quantize_mode": "int8", "calibration_method": "max"},
    "fp8": {"quantize_mode": "fp8", "calibration_method": "max"},
    "int4": {"quantize_mode": "int4", "calibration_method": "rtn_dq", **BLOCKS},
    "int4_awq": {"quantize_mode": "int4", "calibration_method": "awq_lite", **BLOCKS},
}


def samples(count, seed):
    """Images and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    images = rng.normal(size=(count, 32, 4, 4))
    for plane in range(8):
        images[np.arange(count), labels * 8 + plane] += 0.6
    return images.astype(np.float32), labels


def weights():
    """The constants, the last one fitted to samples."""
    rng = np.random.default_rng(1)
    found = {
        "w0": rng.normal(0, (2 / 32) ** 0.5, (32, 32, 1, 1)),
        "b0": rng.normal(0, 0.1, 32),
        "w1": rng.normal(0, (2 / 32) ** 0.5, (32, 32)),
    }
    found = {name: value.astype(np.float32) for name, value in found.items()}
    images, labels = samples(512, 2)
    maps = np.einsum("ncxy,oc->noxy", images, found["w0"][:, :, 0, 0]) + found["b0"][:, None, None]
    features = np.maximum(np.maximum(maps, 0).mean(axis=(2, 3)) @ found["w1"], 0)
    found["w2"] = np.linalg.lstsq(features, np.eye(4)[labels], rcond=None)[0].astype(np.float32)
    return found


def float_model():
    """Conv, Relu, pooling and two products."""
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "w0", "b0"], ["c0"], name="/conv/Conv"),
        node("Relu", ["c0"], ["r0"], name="/conv/Relu"),
        node("GlobalAveragePool", ["r0"], ["g"], name="/pool"),
        node("Flatten", ["g"], ["f"], name="/flatten"),
        node("MatMul", ["f", "w1"], ["m1"], name="/fc1/MatMul"),
        node("Relu", ["m1"], ["r1"], name="/fc1/Relu"),
        node("MatMul", ["r1", "w2"], ["scores"], name="/fc2/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 32, 4, 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in weights().items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


if __name__ == "__main__":
    from modelopt.onnx.quantization import quantize

    onnx.save(float_model(), HERE / "float.onnx")
    for mode, options in MODES.items():
        quantize(
            str(HERE / "float.onnx"),
            calibration_data={"image": samples(64, 3)[0]},
            calibration_eps=["cpu"],
            high_precision_dtype="fp32",
            output_path=str(HERE / f"{mode}.onnx"),
            **options,
        )
