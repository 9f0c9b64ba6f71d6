"""Small ONNX models built node by node, and their quantized counterparts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Feed = Mapping[str, Array]
MICROSOFT = "com.microsoft"


@dataclass
class Net:
    """A model in the making: every method that adds something returns the name of its tensor."""

    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)

    def input(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | str] | None = None) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def const(self, name: str, value: Any) -> str:
        """An initializer; Python numbers and lists become float32, and a ``TensorProto`` stays what it is."""
        self.constants[name] = value if isinstance(value, np.ndarray | np.generic | TensorProto) else np.float32(value)
        return name

    def add(self, op: str, *inputs: str, out: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output, named after it."""
        self.nodes.append(
            helper.make_node(op, list(inputs), [out], name=attributes.pop("name", out), domain=domain, **attributes)
        )
        return out

    def conv(self, x: str, weight: Array, bias: Array | None = None, *, out: str, **attributes: Any) -> str:
        names = [self.const(f"{out}.weight", weight)]
        if bias is not None:
            names.append(self.const(f"{out}.bias", bias))
        return self.add("Conv", x, *names, out=out, **attributes)

    def quantize(
        self, x: str, scale: Any, zero: Any, *, out: str = "", domain: str = "", dequantize: bool = True, **axis: Any
    ) -> str:
        """Q and DQ of a tensor; ``zero`` decides the type of the codes, None leaves the zero point out."""
        codes = f"{out or x}_codes"
        parameters = [self.const(f"{codes}_scale", np.float32(scale))]
        if zero is not None:
            parameters.append(self.const(f"{codes}_zero", zero))
        self.add("QuantizeLinear", x, *parameters, out=codes, domain=domain, **axis)
        if not dequantize:
            return codes
        target = out or f"{x}_dq"
        return self.add(
            "DequantizeLinear", codes, *parameters, out=target, name=f"{target}_DequantizeLinear", domain=domain, **axis
        )

    def stored(self, name: str, codes: Any, scale: Any, zero: Any = None, *, domain: str = "", **axis: Any) -> str:
        """A constant that is kept as codes and dequantized."""
        parameters = [self.const(f"{name}_scale", np.float32(scale))]
        if zero is not None:
            parameters.append(self.const(f"{name}_zero", zero))
        self.const(f"{name}_codes", codes)
        return self.add("DequantizeLinear", f"{name}_codes", *parameters, out=name, domain=domain, **axis)

    def model(self) -> onnx.ModelProto:
        tensors = [
            value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
            for name, value in self.constants.items()
        ]
        for name, tensor in zip(self.constants, tensors, strict=True):
            tensor.name = name
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, tensors)
        domains = {node.domain for node in self.nodes} - {""}
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions, producer_name="tests")
        model.ir_version = max(8 if self.functions else 7, helper.find_min_ir_version_for(imports[:1]))
        return model

    def save(self, path: Path) -> Path:
        onnx.save(self.model(), str(path))
        return path


def random(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# --- float models ----------------------------------------------------------------------------------------------------


def conv_net(opset: int = 17, batch: int | str = "n") -> onnx.ModelProto:
    """Conv, Relu, Conv, Relu, GlobalAveragePool, Flatten, Gemm: 3 x 8 x 8 images to 5 scores."""
    net = Net(opset)
    x = net.input("image", [batch, 3, 8, 8])
    x = net.conv(x, random(1, 4, 3, 3, 3, scale=0.3), random(2, 4, scale=0.1), out="conv1", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="relu1")
    x = net.conv(x, random(3, 6, 4, 3, 3, scale=0.3), random(4, 6, scale=0.1), out="conv2", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="relu2")
    x = net.add("GlobalAveragePool", x, out="pool")
    x = net.add("Flatten", x, out="flat")
    net.const("fc.weight", random(5, 6, 5))
    net.const("fc.bias", random(6, 5, scale=0.1))
    net.output(net.add("Gemm", x, "fc.weight", "fc.bias", out="scores"), shape=[batch, 5])
    return net.model()


def images(n: int = 12, seed: int = 7) -> Array:
    return random(seed, n, 3, 8, 8)


# --- quantized models ------------------------------------------------------------------------------------------------

#: Operators whose result is left alone because the quantizer stands behind the activation that follows.
_BEFORE_ACTIVATION = ("Relu", "Clip")
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Recipe:
    """How ``qdq`` quantizes.

    ``weights``: ``codes`` stores integers, ``float`` puts Q and DQ behind the float initializer.
    ``zero_point``: False leaves the input out (uint8 codes; the data must not be negative).
    ``skip``: tensors that get no quantizer.
    """

    activation: type = np.uint8
    weight: type = np.int8
    per_channel: bool = False
    weights: str = "codes"
    zero_point: bool = True
    domain: str = ""
    opset: int | None = None
    outputs: bool = True
    skip: tuple[str, ...] = ()


def qdq(model: onnx.ModelProto, feed: Feed, recipe: Recipe = Recipe()) -> onnx.ModelProto:  # noqa: B008
    """The model with min-max quantizers after its inputs and operators and on its weights."""
    values = every_tensor(model, feed)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    net = Net(recipe.opset or model.opset_import[0].version)
    net.inputs, net.constants = list(model.graph.input), dict(constants)
    finals = {value.name for value in model.graph.output}
    activated = {
        node.input[0] for node in model.graph.node if node.op_type in _BEFORE_ACTIVATION and node.input[0] in values
    }
    current: dict[str, str] = {}
    scales: dict[str, float] = {}

    def observe(name: str) -> None:
        if name in activated - finals or name in recipe.skip or values[name].dtype != np.float32:
            return
        if name in finals and not recipe.outputs:
            return
        scale, zero = grid(values[name], recipe.activation)
        target = name if name in finals else f"{name}_dq"
        source = f"{name}_raw" if name in finals else name
        scales[target] = scale
        net.quantize(source, scale, zero if recipe.zero_point else None, out=target, domain=recipe.domain)
        current[name] = target

    for value in model.graph.input:
        observe(value.name)
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [current.get(name, name) for name in node.input]
        if node.op_type in _WEIGHTED and len(node.input) > 1 and node.input[1] in constants:
            _store_weights(net, copy, constants, scales.get(copy.input[0]), recipe)
        net.nodes.append(copy)
        for position, name in enumerate(node.output):
            wrapped = name in finals and recipe.outputs and name not in recipe.skip
            if wrapped and values[name].dtype == np.float32:
                copy.output[position] = f"{name}_raw"
            observe(name)
    net.outputs = list(model.graph.output)
    return net.model()


def _store_weights(
    net: Net, node: onnx.NodeProto, constants: Mapping[str, Array], step: float | None, recipe: Recipe
) -> None:
    name = node.input[1]
    weight = constants[name]
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    axis = 0 if node.op_type == "Conv" or transposed else 1
    scale = weight_scale(weight, axis if recipe.per_channel else None, recipe.weight)
    along = {"axis": axis} if recipe.per_channel else {}
    zero = np.zeros(scale.shape, recipe.weight)
    net.constants.pop(name, None)
    if recipe.weights == "float":
        net.const(name, weight)
        node.input[1] = net.quantize(name, scale, zero, domain=recipe.domain, **along)
        return
    node.input[1] = net.stored(f"{name}_q", codes_of(weight, scale, zero, axis), scale, zero, domain=recipe.domain, **along)
    if len(node.input) > 2 and step is not None:
        bias = constants[node.input[2]]
        bias_scale = np.float32(step) * scale
        net.constants.pop(node.input[2])
        stored = np.rint(bias / bias_scale).astype(np.int32)
        node.input[2] = net.stored(
            f"{node.input[2]}_q", stored, bias_scale, domain=recipe.domain, **({"axis": 0} if recipe.per_channel else {})
        )


def grid(x: Array, kind: type, low: float | None = None, high: float | None = None) -> tuple[np.float32, Any]:
    """Scale and zero point of a min-max quantizer; signed types are symmetric."""
    info = np.iinfo(kind)
    low = min(float(x.min()) if low is None else low, 0.0)
    high = max(float(x.max()) if high is None else high, 0.0)
    if info.min < 0:
        return np.float32(max(-low, high) / info.max or 1.0), kind(0)
    scale = np.float32((high - low) / info.max or 1.0)
    return scale, kind(np.rint(-low / scale))


def weight_scale(weight: Array, axis: int | None, kind: type = np.int8) -> Array:
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    return np.asarray(np.abs(weight).max(axis=others) / np.iinfo(kind).max, np.float32)


def _along(parameter: Array, axis: int, rank: int) -> Array:
    shape = [1] * rank
    shape[axis] = -1
    return parameter.reshape(shape) if parameter.ndim else parameter


def codes_of(x: Array, scale: Any, zero: Any, axis: int = 0) -> Array:
    """What QuantizeLinear makes of an array."""
    zero = np.asarray(zero)
    info = np.iinfo(zero.dtype)
    steps = np.rint(x / _along(np.asarray(scale), axis, x.ndim)) + _along(zero.astype(np.float64), axis, x.ndim)
    return np.clip(steps, info.min, info.max).astype(zero.dtype)


def real_of(codes: Array, scale: Any, zero: Any, axis: int = 0) -> Array:
    """What DequantizeLinear makes of codes, in float64."""
    zero = _along(np.asarray(zero).astype(np.float64), axis, codes.ndim)
    return (codes.astype(np.float64) - zero) * _along(np.asarray(scale, np.float64), axis, codes.ndim)


def renamed(model: onnx.ModelProto, pattern: str = "t{}") -> onnx.ModelProto:
    """The model with new names for all nodes, inner tensors and constants; inputs and outputs keep theirs."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return name if name in kept else names.setdefault(name, pattern.format(len(names)))

    for tensor in result.graph.initializer:
        tensor.name = new(tensor.name)
    for number, node in enumerate(result.graph.node):
        node.name = f"n{number}"
        node.input[:] = [new(name) if name else "" for name in node.input]
        node.output[:] = [new(name) if name else "" for name in node.output]
    del result.graph.value_info[:]
    return result


# --- running ---------------------------------------------------------------------------------------------------------


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, feed: Feed, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Outputs by name; ``names`` are exposed first, all at once."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    present = {value.name for value in (*model.graph.output, *model.graph.input)}
    exposed.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names or () if name not in present
    )
    wanted = [name for name in names if name not in feed] if names else [value.name for value in model.graph.output]
    found = dict(zip(wanted, session(exposed).run(wanted, dict(feed)), strict=True))
    return found | {name: feed[name] for name in names or () if name in feed}


def every_tensor(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
    """All activations of a model, its inputs included."""
    return run(model, feed, [*feed, *(name for node in model.graph.node for name in node.output if name)])
