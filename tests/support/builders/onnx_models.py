"""Small ONNX models built node by node, and their quantized counterparts."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

from quantmedic.collectors.from_onnx.onnx_session import make_session

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


def images(n: int = 12, seed: int = 7) -> Array:
    return random(seed, n, 3, 8, 8)


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


def deep_net(width: int = 32, depth: int = 6) -> onnx.ModelProto:
    """Convolutions and activations, long enough for integer and simulated arithmetic to part."""
    net = Net()
    x, channels = net.input("image", ["n", 3, 8, 8]), 3
    for i in range(depth):
        weight = random(10 + i, width, channels, 3, 3, scale=1.3 * (channels * 9) ** -0.5)
        x = net.conv(x, weight, random(50 + i, width, scale=0.1), out=f"conv{i}", pads=[1, 1, 1, 1])
        x, channels = net.add("Relu", x, out=f"relu{i}"), width
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.const("fc.weight", random(5, width, 5))
    net.output(net.add("MatMul", x, "fc.weight", out="scores"))
    return net.model()


def residual_net(blocks: int = 3, *, shared: bool = False) -> onnx.ModelProto:
    """Equal blocks, each with a sum; ``shared`` gives all of them the same weights."""
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    x = net.conv(x, random(0, 4, 3, 3, 3, scale=0.3), out="stem", pads=[1, 1, 1, 1])
    for i in range(blocks):
        a, b = (random(1 if shared else 10 * i + k, 4, 4, 3, 3, scale=0.2) for k in (1, 2))
        y = net.add("Relu", net.conv(x, a, out=f"a{i}", pads=[1, 1, 1, 1]), out=f"r{i}")
        x = net.add("Add", x, net.conv(y, b, out=f"b{i}", pads=[1, 1, 1, 1]), out=f"sum{i}")
    net.output(net.conv(x, random(99, 2, 4, 1, 1), out="scores"))
    return net.model()


def branch_net(branches: int = 3) -> onnx.ModelProto:
    """Branches of equal shape and different weights, joined by Concat."""
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    ends = [net.conv(x, random(i, 4, 3, 3, 3, scale=0.3), random(40 + i, 4), out=f"c{i}") for i in range(branches)]
    x = net.add("Concat", *(net.add("Relu", end, out=f"r{i}") for i, end in enumerate(ends)), out="cat", axis=1)
    net.output(net.conv(x, random(9, 2, 4 * branches, 1, 1), out="scores"))
    return net.model()


def pyramid_net() -> onnx.ModelProto:
    """Three poolings of one tensor that differ in nothing but their attributes."""
    net = Net()
    x = net.add("Relu", net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), out="conv"), out="relu")
    pools = [
        net.add("MaxPool", x, out=f"pool{k}", kernel_shape=[k, k], pads=[k // 2] * 4, strides=[1, 1]) for k in (3, 5, 7)
    ]
    net.output(net.conv(net.add("Concat", x, *pools, out="cat", axis=1), random(5, 2, 16, 1, 1), out="scores"))
    return net.model()


def two_way_net() -> onnx.ModelProto:
    """Two inputs, two outputs, and a sum between."""
    net = Net()
    for name, seed, width in (("a", 1, 4), ("b", 2, 6)):
        net.const(f"w{name}", random(seed, width, 5))
        net.add("MatMul", net.input(name, ["n", width]), f"w{name}", out=f"m{name}")
    x = net.add("Relu", net.add("Add", "ma", "mb", out="sum"), out="relu")
    for name, seed, width in (("first", 3, 3), ("second", 4, 7)):
        net.const(f"{name}.weight", random(seed, 5, width))
        net.output(net.add("MatMul", x, f"{name}.weight", out=name))
    return net.model()


def token_net() -> onnx.ModelProto:
    """Integer inputs, an embedding, and two dense layers as MatMul and Add."""
    net = Net()
    net.const("table", random(1, 20, 8))
    x = net.add("Gather", "table", net.input("ids", ["n", 6], TensorProto.INT64), out="embedded")
    net.const("w1", random(2, 8, 16, scale=0.3))
    net.const("b1", random(3, 16))
    x = net.add("Relu", net.add("Add", net.add("MatMul", x, "w1", out="m1"), "b1", out="h1"), out="r1")
    net.const("w2", random(4, 16, 4, scale=0.3))
    net.output(net.add("MatMul", x, "w2", out="scores"))
    return net.model()


def attention_net() -> onnx.ModelProto:
    """Attention over a dynamic number of steps: its scores have as many columns as there are steps."""
    net = Net()
    x = net.input("x", ["n", "t", 8])
    for i, name in enumerate("qk"):
        net.const(f"w{name}", random(i, 8, 8, scale=0.3))
        net.add("MatMul", x, f"w{name}", out=name)
    scores = net.add("MatMul", "q", net.add("Transpose", "k", out="kt", perm=[0, 2, 1]), out="dots")
    x = net.add("MatMul", net.add("Softmax", scores, out="shares", axis=-1), x, out="mixed")
    net.const("wo", random(3, 8, 3))
    net.output(net.add("MatMul", x, "wo", out="y"))
    return net.model()


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


def qdq(model: onnx.ModelProto, feed: Feed, recipe: Recipe = Recipe()) -> onnx.ModelProto:
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
        scale, zero = grid(values[name], recipe.activation, None if recipe.zero_point else 0.0)
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
    codes = codes_of(weight, scale, zero, axis)
    node.input[1] = net.stored(f"{name}_q", codes, scale, zero, domain=recipe.domain, **along)
    if len(node.input) > 2 and step is not None:
        along = {"axis": 0} if recipe.per_channel else {}
        bias, bias_scale = constants[node.input[2]], np.float32(step) * scale
        net.constants.pop(node.input[2])
        stored = codes_of(bias, bias_scale, np.int32(0))
        node.input[2] = net.stored(f"{node.input[2]}_q", stored, bias_scale, domain=recipe.domain, **along)


class _Reader(CalibrationDataReader):
    def __init__(self, feed: Feed) -> None:
        self._batches = iter([dict(feed)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def static(model: onnx.ModelProto, feed: Feed, folder: Path, **options: Any) -> onnx.ModelProto:
    """What onnxruntime's static quantization makes of a model."""
    onnx.save(model, str(folder / "before.onnx"))
    quantize_static(folder / "before.onnx", folder / "after.onnx", _Reader(feed), **options)
    return onnx.load(str(folder / "after.onnx"))


def dynamic(model: onnx.ModelProto, folder: Path, **options: Any) -> onnx.ModelProto:
    """What onnxruntime's dynamic quantization makes of a model."""
    onnx.save(model, str(folder / "before.onnx"))
    quantize_dynamic(folder / "before.onnx", folder / "after.onnx", **options)
    return onnx.load(str(folder / "after.onnx"))


def without_relu(model: onnx.ModelProto) -> onnx.ModelProto:
    """The quantized model with its activations left to the quantizers behind them."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    skipped = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Relu"}
    kept = [node for node in result.graph.node if node.op_type != "Relu"]
    for node in kept:
        node.input[:] = [skipped.get(name, name) for name in node.input]
    del result.graph.node[:]
    result.graph.node.extend(kept)
    return result


def with_weights(model: onnx.ModelProto, change: Callable[[Array], Array]) -> onnx.ModelProto:
    """The same network with other weights of convolutions."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for tensor in found.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 4:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(array)), tensor.name))
    return found


def save_pair(folder: Path, float_model: onnx.ModelProto, quantized: onnx.ModelProto) -> tuple[Path, Path]:
    """Both models as files ``float.onnx`` and ``quantized.onnx``."""
    paths = folder / "float.onnx", folder / "quantized.onnx"
    for path, model in zip(paths, (float_model, quantized), strict=True):
        onnx.save(model, str(path))
    return paths


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


def renamed(model: onnx.ModelProto, names: Mapping[str, str] | None = None) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model with new names, and the new name of every tensor; inputs and outputs keep theirs.

    Args:
        names: New names of some tensors, all others keep theirs; None renames everything.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    mapping = {"": ""} | {name: name for name in kept} | dict(names or {})

    def new(name: str) -> str:
        return mapping.setdefault(name, name if names is not None else f"t{len(mapping)}")

    for number, node in enumerate(result.graph.node):
        node.name = f"n{number}"
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
    for tensor in result.graph.initializer:
        tensor.name = new(tensor.name)
    del result.graph.value_info[:]
    return result, mapping


def shuffled(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The same graph with its nodes in another order that respects what they read."""
    rng = np.random.default_rng(seed)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    waiting = list(model.graph.node)
    ready = {"", *(t.name for t in model.graph.initializer), *(v.name for v in model.graph.input)}
    del result.graph.node[:]
    while waiting:
        free = [node for node in waiting if ready.issuperset(node.input)]
        node = free[rng.integers(len(free))]
        waiting.remove(node)
        ready.update(node.output)
        result.graph.node.append(node)
    return result


def section(model: onnx.ModelProto, start: str, end: str) -> onnx.ModelProto:
    """The part of a model that computes ``end`` from the float tensor ``start``."""
    producers = {name: node for node in model.graph.node for name in node.output}
    needed: list[onnx.NodeProto] = []
    frontier = [end]
    while frontier:
        name = frontier.pop()
        node = producers.get(name)
        if name != start and node is not None and node not in needed:
            needed.append(node)
            frontier.extend(node.input)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for field_ in ("node", "input", "output"):
        del getattr(result.graph, field_)[:]
    result.graph.node.extend(node for node in model.graph.node if node in needed)
    result.graph.input.append(helper.make_tensor_value_info(start, TensorProto.FLOAT, None))
    result.graph.output.append(helper.make_empty_tensor_value_info(end))
    return result


# --- running ---------------------------------------------------------------------------------------------------------


def session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """What quantmedic holds the deployed model for: integer kernels whose sums do not saturate, on every processor."""
    if isinstance(model, Path):
        return make_session(onnx.load(model), model, 1)
    return make_session(model, Path("model.onnx"), 1)


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


def own(model: Path, folder: Path) -> Path:
    """A copy to quantize: onnxruntime's quantizer writes beside what it reads, where other tests read and write too."""
    (folder / "own").mkdir(exist_ok=True)
    return Path(shutil.copy(model, folder / "own"))
