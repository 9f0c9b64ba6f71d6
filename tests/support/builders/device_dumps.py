"""A pair of models and what devices compute of it: as it is, with one layer altered, or rounded otherwise."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import quantmedic
from builders.onnx_models import Array, Net, images, qdq, random
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.derive import derive

BASE = quantmedic.load_rulebase()
X = images(24)
BLOCKS, CHANNELS = 3, 6
LAYERS = [*(f"{kind}{i}" for i in range(BLOCKS) for kind in ("conv", "mix")), "fc"]
KINDS = ("scale", "bias", "channels", "zero")
#: What ends a layer where its own result is not read.
ENDS = {"fc": "scores"}


def float_net() -> onnx.ModelProto:
    """Blocks of Conv, Relu, a second Conv and an Add, then a Gemm: 3 x 8 x 8 images to 5 scores."""
    net = Net()
    x, channels = net.input("image", ["n", 3, 8, 8]), 3
    for i in range(BLOCKS):
        weight = random(10 + i, CHANNELS, channels, 3, 3, scale=1.3 * (channels * 9) ** -0.5)
        x = net.conv(x, weight, random(50 + i, CHANNELS, scale=0.1), out=f"conv{i}", pads=[1, 1, 1, 1])
        x = net.add("Relu", x, out=f"relu{i}")
        mixed = net.conv(
            x, random(110 + i, CHANNELS, CHANNELS, 1, 1, scale=0.4), random(150 + i, CHANNELS, scale=0.1), out=f"mix{i}"
        )
        x, channels = net.add("Add", x, mixed, out=f"sum{i}"), CHANNELS
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.const("fc.weight", random(5, CHANNELS, 5))
    net.const("fc.bias", random(6, 5, scale=0.1))
    net.output(net.add("Gemm", x, "fc.weight", "fc.bias", out="scores"), shape=["n", 5])
    return net.model()


FLOAT = float_net()
QUANTIZED = qdq(FLOAT, {"image": X})
CONSTANTS = {tensor.name for tensor in QUANTIZED.graph.initializer}


def tensors_of(model: onnx.ModelProto, feed: dict[str, Array]) -> dict[str, Array]:
    """What a device computes: all dequantized tensors, by kernels whose sums do not saturate."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    known = {value.name for value in exposed.graph.output}
    made = [n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] not in CONSTANTS]
    noisy = [n.output[0] for n in model.graph.node if n.output[0].removesuffix("_dq") != n.output[0]]
    names = [name for name in dict.fromkeys([*made, *noisy]) if name not in known and not name.endswith("_exact")]
    exposed.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    found = [*known, *names]
    values = ort.InferenceSession(exposed.SerializeToString(), options).run(found, feed)
    return dict(zip(found, values, strict=True))


def altered(layer: str, kind: str) -> onnx.ModelProto:
    """The quantized model with one constant of one layer changed."""
    model = onnx.ModelProto()
    model.CopyFrom(QUANTIZED)
    changes: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "scale": ("weight_q_scale", lambda a: (a * 1.25).astype(a.dtype)),
        "bias": ("bias_q_codes", lambda a: (-a).astype(a.dtype)),
        "channels": ("weight_q_codes", lambda a: np.roll(a, 1, axis=0)),
        "zero": ("weight_q_codes", lambda a: np.where(np.arange(len(a)).reshape(-1, *[1] * (a.ndim - 1)) < 2, 0, a)),
    }
    name, change = changes[kind]
    for tensor in model.graph.initializer:
        if tensor.name == f"{layer}.{name}":
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(change(array).astype(array.dtype), tensor.name))
            return model
    raise AssertionError(f"{layer} has no {name}")


def rounded_otherwise(seed: int) -> dict[str, Array]:
    """Tensors of a device whose codes are one more or less than here, each of three alike, and carried through."""
    rng, model = np.random.default_rng(seed), onnx.ModelProto()
    model.CopyFrom(QUANTIZED)
    scales = {t.name: numpy_helper.to_array(t) for t in QUANTIZED.graph.initializer}
    shapes = {name: values.shape for name, values in tensors_of(QUANTIZED, {"image": X}).items()}
    nodes, feed = [], {"image": X}
    for node in QUANTIZED.graph.node:
        name = node.output[0]
        if node.op_type != "DequantizeLinear" or node.input[0] in CONSTANTS or name == "image_dq":
            nodes.append(node)
            continue
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.output[0] = f"{name}_exact"
        nodes += [own, helper.make_node("Add", [own.output[0], f"{name}_noise"], [name])]
        noise = rng.integers(-1, 2, shapes[name]) * scales[node.input[1]]
        feed[f"{name}_noise"] = noise.astype(np.float32)
        model.graph.input.append(
            helper.make_tensor_value_info(f"{name}_noise", onnx.TensorProto.FLOAT, list(shapes[name]))
        )
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return tensors_of(model, feed)


def collected(paths: tuple[Path, Path], dump: object, **options: object) -> Case:
    given = {"validation": X, "threads": 1, "rules": BASE, "attribution": False} | options
    return quantmedic.collect(*paths, device_tensors=dump, **given)  # type: ignore[arg-type]


def facts_of(paths: tuple[Path, Path], dump: object, **options: object) -> CaseFacts:
    return derive(collected(paths, dump, **options), BASE)


def departing(facts: CaseFacts) -> list[tuple[str, ...]]:
    """For each layer that is named, those that compute its output."""
    return [layer.output.device.layers for layer in facts.layers if layer.device_departs]


def is_named(layer: str, found: list[tuple[str, ...]]) -> bool:
    """This layer is named, and no other."""
    return len(found) == 1 and ENDS.get(layer, layer) in found[0]


#: What a device computes that departs at ``mix1``.
DUMP = tensors_of(altered("mix1", "scale"), {"image": X})
