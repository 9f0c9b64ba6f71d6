"""Networks that the benchmarks run on: the shapes of well-known ones with random weights, quantized by onnxruntime.

Random weights cost what trained ones cost; scales are chosen so that activations neither explode nor vanish. Batch
normalization is folded, as every exporter does it before quantization.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
SEED = 11
#: Distinct samples; longer data sets repeat them at slightly changed contrast.
DISTINCT = 64
CALIBRATION_SAMPLES = 8


@dataclass
class Builder:
    """Nodes and weights of a network in the making; methods return the name of the tensor that they add."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, value: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def conv(
        self, x: str, before: int, after: int, size: int, stride: int = 1, groups: int = 1, gain: float = 2
    ) -> str:
        fan = before // groups * size * size
        w = self.rng.standard_normal((after, before // groups, size, size)) * np.sqrt(gain / fan)
        b = self.rng.standard_normal(after) * 0.05
        names = [self.constant(v.astype(np.float32)) for v in (w, b)]
        pad = size // 2
        return self.add("Conv", x, *names, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)

    def relu6(self, x: str) -> str:
        return self.add("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))

    def linear(self, x: str, before: int, after: int, gain: float = 1) -> str:
        w = (self.rng.standard_normal((before, after)) * np.sqrt(gain / before)).astype(np.float32)
        bias = (self.rng.standard_normal(after) * 0.02).astype(np.float32)
        return self.add("Add", self.add("MatMul", x, self.constant(w)), self.constant(bias))

    def norm(self, x: str, width: int) -> str:
        names = [self.constant(v) for v in (np.ones(width, np.float32), np.zeros(width, np.float32))]
        return self.add("LayerNormalization", x, *names, axis=-1)

    def classifier(self, x: str, before: int, classes: int) -> str:
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        w = (self.rng.standard_normal((classes, before)) / np.sqrt(before)).astype(np.float32)
        return self.add("Gemm", flat, self.constant(w), self.constant(np.zeros(classes, np.float32)), transB=1)

    def model(self, value: onnx.ValueInfoProto, output: str, shape: list[Any]) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "output"
        assert self.nodes[-1].name == output
        result = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "network", [value], [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _image(size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, size, size])


def resnet50(size: int = 224) -> onnx.ModelProto:
    """53 convolutions in 16 bottleneck blocks, 4.1 G multiply-adds at 224²."""
    net = Builder()
    before = 64
    x = net.relu(net.conv("image", 3, before, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.relu(net.conv(x, before, width, 1))
            y = net.relu(net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, width * 4, 1, gain=0.2)
            if not block:
                x = net.conv(x, before, width * 4, 1, stride, gain=1)
            before = width * 4
            x = net.relu(net.add("Add", y, x))
    return net.model(_image(size), net.classifier(x, before, 1000), ["N", 1000])


def mobilenet_v2(size: int = 224) -> onnx.ModelProto:
    """17 inverted residual blocks with depthwise convolutions, 0.3 G multiply-adds at 224²."""
    net = Builder()
    x = net.relu6(net.conv("image", 3, 32, 3, 2))
    before = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, after, blocks, first_stride in stages:
        for block in range(blocks):
            stride = first_stride if not block else 1
            wide = before * expansion
            y = net.relu6(net.conv(x, before, wide, 1)) if expansion > 1 else x
            y = net.relu6(net.conv(y, wide, wide, 3, stride, groups=wide))
            y = net.conv(y, wide, after, 1, gain=1)
            x = net.add("Add", x, y) if stride == 1 and before == after else y
            before = after
    x = net.relu6(net.conv(x, before, 1280, 1))
    return net.model(_image(size), net.classifier(x, 1280, 1000), ["N", 1000])


def chain(layers: int, width: int, side: int) -> onnx.ModelProto:
    """Depthwise convolutions and activations in turn: ``layers`` operators of ``width`` channels."""
    net = Builder()
    x = "image"
    for layer in range(layers):
        x = net.relu(x) if layer % 2 else net.conv(x, width, width, 3, groups=width)
    value = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", width, side, side])
    return net.model(value, x, ["N", width, side, side])


def branches(layers: int, width: int, side: int) -> onnx.ModelProto:
    """Residual blocks (convolution, ReLU, convolution, sum, ReLU) and a classifier: about ``layers`` operators."""
    net = Builder()
    x = "image"
    for _ in range(max(1, (layers - 3) // 5)):
        y = net.relu(net.conv(x, width, width, 3, groups=width))
        x = net.relu(net.add("Add", net.conv(y, width, width, 1, gain=0.1), x))
    value = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", width, side, side])
    return net.model(value, net.classifier(x, width, 10), ["N", 10])


def with_qdq(model: onnx.ModelProto, scale: float = 0.05, weight_scale: float = 0.02) -> onnx.ModelProto:
    """A network with a uint8 pair on every tensor, int8 weights and int32 biases, all on fixed grids."""
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    graph = quantized.graph
    constants: dict[str, Any] = {"step": np.float32(scale), "middle": np.uint8(128)}
    constants |= {"weight_step": np.float32(weight_scale), "weight_zero": np.int8(0)}
    constants |= {"bias_step": np.float32(scale * weight_scale), "bias_zero": np.int32(0)}
    grids = {1: ("weight", np.int8), 2: ("bias", np.int32)}
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes, final = [], graph.output[0].name

    def pair(x: str, out: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("QuantizeLinear", [x, "step", "middle"], [f"{x}_codes"], name=f"{x}_q"),
            helper.make_node("DequantizeLinear", [f"{x}_codes", "step", "middle"], [out], name=f"{x}_dq"),
        ]

    nodes += pair("image", "image_real")
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name not in weights:
                node.input[i] = f"{name}_real"
            else:
                kind, dtype = grids[i]
                stored = [f"{name}_codes", f"{kind}_step", f"{kind}_zero"]
                low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
                steps = np.rint(numpy_helper.to_array(weights[name]).astype(np.float64) / constants[stored[1]])
                constants[stored[0]] = np.clip(steps, low, high).astype(dtype)
                nodes.append(helper.make_node("DequantizeLinear", stored, [f"{name}_real"], name=f"{name}_dq"))
                node.input[i] = f"{name}_real"
        out = node.output[0]
        if out == final:
            node.output[0] = f"{out}_float"
            nodes += [node, *pair(f"{out}_float", final)]
        else:
            nodes += [node, *pair(out, f"{out}_real")]
    graph.ClearField("node")
    graph.node.extend(nodes)
    graph.ClearField("initializer")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    return quantized


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
}


def samples(count: int) -> Iterator[Array]:
    """Seeded samples one by one: 8-bit images, normalized.

    After ``DISTINCT`` of them they come again, moved a little further each time, so that no two are the same.
    """
    base = _distinct()
    for i in range(count):
        yield np.roll(base[i % len(base)], i // len(base), axis=-1)


def data_file(network: str, count: int, folder: Path) -> Path:
    """An .npy file of samples, made once."""
    path = folder / f"{network}.{count}.npy"
    if not path.exists():
        first = next(samples(1))
        unfinished = folder / "unfinished.npy"
        array = np.lib.format.open_memmap(unfinished, "w+", first.dtype, (count, *first.shape))
        for i, sample in enumerate(samples(count)):
            array[i] = sample
        array.flush()
        unfinished.rename(path)
    return path


def _distinct() -> Array:
    rng = np.random.default_rng(SEED)
    coarse = rng.random((DISTINCT, 3, 14, 14)).repeat(16, axis=2).repeat(16, axis=3)
    pixels = np.rint(255 * (0.8 * coarse + 0.2 * rng.random(coarse.shape)))
    mean, std = (np.array(v).reshape(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return ((pixels / 255 - mean) / std).astype(np.float32)


def build(network: str, folder: Path) -> tuple[Path, Path]:
    """Float and QDQ int8 file of a network, made once; per-channel weights, MinMax calibration.

    Returns:
        Paths of the float and of the quantized model.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = samples(CALIBRATION_SAMPLES)

        def get_next(self) -> dict[str, Array] | None:
            sample = next(self.left, None)
            return None if sample is None else {"image": sample[np.newaxis]}

    paths = folder / f"{network}.onnx", folder / f"{network}.int8.onnx"
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(NETWORKS[network](), str(paths[0]))
    unfinished = folder / f"{network}.unfinished.onnx"
    quantize_static(str(paths[0]), str(unfinished), Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    unfinished.rename(paths[1])
    return paths
