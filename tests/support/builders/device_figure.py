"""Trained networks on a device that computes one layer otherwise, or rounds all codes in another way."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from zoo.networks import known_network

from builders.field_patients import DEMO, images, quantize
from builders.onnx_models import Array

SAMPLES, CALIBRATION = 16, 64
#: Ways in which a device may round a value to a code; near ties, noise decides.
MODES = ("half away", "half up", "near ties", "toward zero", "floor")
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
#: What may be wrong with a layer that has weights, and with any: which operand, codes or scale of it, and the change.
_OF_WEIGHTS: dict[str, tuple[int, int, Callable[[Array], Array]]] = {
    "scale": (1, 1, lambda a: a * np.float32(1.25)),
    "channels": (1, 0, lambda a: np.roll(a, 1, axis=0)),
    "zero": (1, 0, lambda a: np.where(np.arange(len(a)).reshape(-1, *[1] * (a.ndim - 1)) % 4, a, 0)),
    "negated bias": (2, 0, lambda a: -a),
}
_OF_ANY = {"gain": ("Mul", 1.25), "offset": ("Add", 0.5), "clipped": ("Min", 0.25)}


@dataclass(frozen=True)
class Patient:
    """A float model, what is deployed of it, and the samples that the device is fed with."""

    path: Path
    deployed: onnx.ModelProto
    feed: dict[str, Array]

    @property
    def layers(self) -> list[onnx.NodeProto]:
        """Its operators, without quantizers."""
        return [node for node in self.deployed.graph.node if node.op_type not in _QUANTIZERS]

    @cached_property
    def outputs(self) -> dict[str, Array]:
        """What each layer writes, before it is rounded."""
        return _run(self, self.deployed, [node.output[0] for node in self.layers])

    def constant_of(self, node: onnx.NodeProto, place: int) -> tuple[str, str] | None:
        """Names of the codes and of the scale that a layer reads there; None without."""
        held = {tensor.name for tensor in self.deployed.graph.initializer}
        name = node.input[place] if place < len(node.input) else ""
        found = (n for n in self.deployed.graph.node if n.op_type == "DequantizeLinear" and n.output[0] == name)
        return next(((n.input[0], n.input[1]) for n in found if n.input[0] in held), None)


@cache
def patient(name: str) -> Patient:
    """The network of the demo, or one of the zoo, quantized by onnxruntime with the samples that belong to it."""
    if name == "demo":
        return Patient(
            DEMO / "float.onnx", onnx.load(str(DEMO / "int8_healthy.onnx")), {"image": images("validation", SAMPLES)}
        )
    network = known_network(name)
    pixels = {role: network.images(role)[0] for role in ("representative", "validation")}
    prepare = network.preprocessing.apply
    with tempfile.TemporaryDirectory() as folder:
        feed = {"image": prepare(pixels["representative"][:CALIBRATION])}
        quantized = quantize(network.model(), feed, Path(folder), per_channel=True)
    return Patient(network.path, quantized, {"image": prepare(pixels["validation"][:SAMPLES])})


def altered(own: Patient, seed: int) -> tuple[str, str, dict[str, Array]]:
    """A random layer, what is wrong with it on the device, and what the device computes."""
    rng, model = np.random.default_rng(seed), onnx.ModelProto()
    model.CopyFrom(own.deployed)
    layer = rng.choice(np.array([node.name for node in own.layers]))
    node = next(node for node in model.graph.node if node.name == layer)
    weights, bias = own.constant_of(node, 1), own.constant_of(node, 2)
    is_layer = node.op_type in ("Conv", "Gemm", "MatMul") and weights is not None
    kinds = [kind for kind in _OF_WEIGHTS if is_layer and (kind != "negated bias" or bias is not None)]
    kind = str(rng.choice([*kinds, *_OF_ANY]))
    if kind in _OF_ANY:
        _change_output(own, model, node, *_OF_ANY[kind])
    else:
        place, part, change = _OF_WEIGHTS[kind]
        _change_constant(model, (own.constant_of(node, place) or ("", ""))[part], change)
    return str(layer), kind, tensors_of(own, model)


def _change_constant(model: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(change(values).astype(values.dtype), name))


def _change_output(own: Patient, model: onnx.ModelProto, node: onnx.NodeProto, operator: str, amount: float) -> None:
    """An operator behind a layer, before it is quantized; offsets and limits in parts of its largest value."""
    largest = float(np.abs(own.outputs[node.output[0]]).max())
    value = np.float32(amount if operator == "Mul" else amount * largest)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), "amount"))
    changed = helper.make_node(operator, [f"{node.output[0]}_unchanged", "amount"], [node.output[0]])
    place = list(model.graph.node).index(node) + 1
    node.output[0] += "_unchanged"
    model.graph.node.insert(place, changed)


def rounded_otherwise(own: Patient, seed: int) -> tuple[str, dict[str, Array]]:
    """A way to round, and the tensors of a device that rounds all activations so, carried through."""
    rng, model, mode = np.random.default_rng(seed), onnx.ModelProto(), MODES[seed % len(MODES)]
    model.CopyFrom(own.deployed)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        is_activation = node.op_type == "QuantizeLinear" and node.input[0] not in kinds
        nodes += _rounded(node, mode, kinds[node.input[2]], rng) if is_activation else [node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    limits = {"half": 0.5, "least_INT8": -128, "most_INT8": 127, "least_UINT8": 0, "most_UINT8": 255}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in limits.items()
    )
    return mode, tensors_of(own, model)


def _rounded(node: onnx.NodeProto, mode: str, kind: int, rng: np.random.Generator) -> list[onnx.NodeProto]:
    """The operators of one quantizer."""
    (x, scale, zero), (out,) = node.input, node.output
    made: list[onnx.NodeProto] = []

    def add(operator: str, *inputs: str, **attributes: float) -> str:
        name = f"{out}.{len(made)}"
        made.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    q = add("Div", x, scale)
    if mode == "near ties":
        width = float(rng.uniform(0.02, 0.2))
        noise = add("RandomUniformLike", q, low=-width, high=width, seed=float(rng.integers(1 << 20)))
        code = add("Round", add("Add", q, noise))
    elif mode in ("half away", "toward zero"):
        size = add("Abs", q)
        code = add("Mul", add("Sign", q), add("Floor", add("Add", size, "half") if mode == "half away" else size))
    else:
        code = add("Floor", add("Add", q, "half") if mode == "half up" else q)
    code = add("Add", code, add("Cast", zero, to=TensorProto.FLOAT))
    name = TensorProto.DataType.Name(kind)
    made.append(helper.make_node("Cast", [add("Clip", code, f"least_{name}", f"most_{name}")], [out], to=kind))
    return made


def tensors_of(own: Patient, model: onnx.ModelProto) -> dict[str, Array]:
    """All dequantized activations, by kernels whose sums do not saturate."""
    constants = {tensor.name for tensor in model.graph.initializer}
    quantized = {n.output[0] for n in model.graph.node if n.op_type != "QuantizeLinear" or n.input[0] not in constants}
    names = [n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in quantized]
    return _run(own, model, [name for name in names if name not in {value.name for value in model.graph.output}])


def _run(own: Patient, model: onnx.ModelProto, names: list[str]) -> dict[str, Array]:
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    exposed.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(exposed.SerializeToString(), options)
    found = [value.name for value in session.get_outputs()]
    return dict(zip(found, session.run(found, own.feed), strict=True))
