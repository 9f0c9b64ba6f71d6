"""Networks of random weights, which cost what trained ones cost: activations neither explode nor vanish."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
SEED = 11


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
