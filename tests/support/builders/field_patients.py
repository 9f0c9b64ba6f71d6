"""Small networks that work, the ways in which the field broke them, and what the expert says of each.

The images are those of the embedded demo (Fashion-MNIST, 28 x 28), the labels of the calibration images are what the
demo network reads there. Networks with random weights get a last layer fitted by least squares, so they do something
that quantization can spoil.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantmedic
from builders.onnx_models import Array, Feed, Net, random, run
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rulebase import RuleBase

DEMO = Path(quantmedic.__file__).parent / "demo"
MEAN, STD = 0.286, 0.353
CLASSES = 10


# --- data ------------------------------------------------------------------------------------------------------------


@cache
def pixels(role: str) -> NDArray[np.uint8]:
    """The demo's images, 0 … 255: 500 representative ones or 512 for validation."""
    name = {"representative": "representative_healthy", "validation": "validation"}[role]
    with np.load(DEMO / f"{name}.npz") as stored:
        return np.asarray(stored["image"])


def normalized(x: Array) -> Array:
    """Pixels as the demo network wants them."""
    return ((x.astype(np.float32) / 255 - MEAN) / STD).astype(np.float32)


@cache
def images(role: str, n: int = 256) -> Array:
    return normalized(pixels(role)[:n])


@cache
def labels(role: str, n: int = 256) -> Array:
    """Class numbers: the true ones for validation, what the demo network says for the representative images."""
    if role == "validation":
        with np.load(DEMO / "validation.npz") as stored:
            return np.asarray(stored["labels"][:n]).astype(np.int64)
    return run(demo(), {"image": images(role, n)})["logits"].argmax(1)


def split(model: onnx.ModelProto, n: int = 256) -> tuple[Feed, Feed]:
    """Representative and labelled validation images for a model with one input."""
    name = model.graph.input[0].name
    validation = {name: images("validation", n), "labels": labels("validation", n)}
    return {name: images("representative", n)}, validation


# --- float networks --------------------------------------------------------------------------------------------------


def demo() -> onnx.ModelProto:
    """The demo's float network: trained, depthwise, one residual sum, one concatenation, swish and ReLU."""
    return onnx.load(str(DEMO / "float.onnx"))


def body(model: onnx.ModelProto, end: str) -> Net:
    """A net that begins with the nodes of a model up to the tensor ``end``, to be built on."""
    net = Net(model.opset_import[0].version, inputs=list(model.graph.input))
    wanted = {end}
    for node in reversed(model.graph.node):
        if wanted & set(node.output):
            net.nodes.insert(0, node)
            wanted |= set(node.input)
    net.constants |= {name: value for name, value in constants(model).items() if name in wanted}
    return net


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def set_constant(model: onnx.ModelProto, name: str, value: Array) -> None:
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def edit(model: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> None:
    """Replace an initializer by a function of itself, in its own type."""
    old = constants(model)[name]
    set_constant(model, name, np.asarray(change(old.copy())).astype(old.dtype))


def times(channels: Sequence[int], factor: float | Array, axis: int = 0) -> Callable[[Array], Array]:
    """A change for ``edit``: some channels times a factor."""

    def change(x: Array) -> Array:
        along = np.moveaxis(x, axis, 0)
        along[list(channels)] = (along[list(channels)].T * np.asarray(factor, np.float32)).T
        return x

    return change


def append(model: onnx.ModelProto, name: str, rows: Array, axis: int = 0) -> None:
    """Add channels to a weight or a bias."""
    edit(model, name, lambda x: np.concatenate([x, rows], axis))


def append_depthwise(model: onnx.ModelProto, layer: str, weight: Array, bias: Array) -> None:
    """Add channels to a depthwise convolution."""
    append(model, f"{layer}.weight", weight)
    append(model, f"{layer}.bias", bias)
    (node,) = [node for node in model.graph.node if f"{layer}.weight" in node.input]
    (group,) = [attribute for attribute in node.attribute if attribute.name == "group"]
    group.i += len(weight)


def scale_channels(
    model: onnx.ModelProto, layer: str, consumer: str, channels: Sequence[int], factor: float, *, axis: int = 0
) -> None:
    """Scale a layer's channels up here and down in its consumer: the float function stays where a ReLU lies between.

    Args:
        layer: Name of the layer's parameters without ``.weight``.
        consumer: The same of the layer that reads it, along ``axis`` of its weights (0: depthwise).
    """
    edit(model, f"{layer}.weight", times(channels, factor))
    edit(model, f"{layer}.bias", times(channels, factor))
    edit(model, f"{consumer}.weight", times(channels, 1 / factor, axis))


#: A layer of the demo, the depthwise convolution that reads it, and the one behind that.
CHAINS = (
    ("stem.conv", "reduce.depthwise.conv", "reduce.pointwise.conv"),
    ("branches.coarse.pointwise.conv", "head.depthwise.conv", "head.pointwise.conv"),
)


def mobilenet(factor: float, chains: int = 1) -> onnx.ModelProto:
    """The demo with channels that are always 0 and whose depthwise weights batch norm folding blew up.

    Such a channel has no variance, so gamma / sqrt(var + epsilon) is huge. What it computes is a constant.

    Args:
        factor: Its depthwise weights against the largest of the other channels.
        chains: How many depthwise convolutions get one.
    """
    model = demo()
    weights = constants(model)
    for layer, depthwise, pointwise in CHAINS[:chains]:
        append(model, f"{layer}.weight", weights[f"{layer}.weight"][:1] * 0.3)
        append(model, f"{layer}.bias", np.array([-8.0]))
        largest = np.abs(weights[f"{depthwise}.weight"]).max()
        append_depthwise(model, depthwise, random(3, 1, 1, 3, 3).clip(-1, 1) * largest * factor, np.array([0.1]))
        append(model, f"{pointwise}.weight", weights[f"{pointwise}.weight"][:, :1] * 0.1, 1)
    return model


def fit(features: Array, targets: Array, strength: float = 0.1) -> tuple[Array, Array]:
    """Weights and bias of the ridge regression of targets on features (samples x features).

    ``strength`` is in units of the features' mean power. Rare features get no huge weights, as their power is small.
    """
    x = features.astype(np.float64)
    mean = x.mean(0)
    gram = (x - mean).T @ (x - mean)
    y = targets.astype(np.float64)
    gram += strength * np.trace(gram) / len(gram) * np.eye(len(gram))
    weight = np.linalg.solve(gram, (x - mean).T @ (y - y.mean(0)))
    return weight.astype(np.float32), (y.mean(0) - mean @ weight).astype(np.float32)


def with_head(net: Net, features: str, feed: Feed, classes: Array, strength: float = 0.3) -> onnx.ModelProto:
    """The net with a fitted Gemm on top of a (samples x features) tensor that tells the classes apart."""
    body = Net(net.opset, list(net.nodes), dict(net.constants), list(net.inputs))
    body.output(features)
    x = run(body.model(), feed)[features]
    wanted = np.eye(int(classes.max()) + 1)[classes]
    weight, bias = fit(x, 10 * wanted - 1, strength)
    net.const("head.weight", weight)
    net.const("head.bias", bias)
    net.output(net.add("Gemm", features, "head.weight", "head.bias", out="logits"), shape=["n", wanted.shape[1]])
    return net.model()


def accuracy(model: onnx.ModelProto, data: Feed) -> float:
    feed = {name: value for name, value in data.items() if name != "labels"}
    return float((next(iter(run(model, feed).values())).argmax(1) == data["labels"]).mean())


# --- quantizing ------------------------------------------------------------------------------------------------------


class Reader(CalibrationDataReader):
    def __init__(self, feed: Feed, batch: int = 64) -> None:
        n = len(next(iter(feed.values())))
        self._batches = iter([{k: v[i : i + batch] for k, v in feed.items()} for i in range(0, n, batch)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def quantize(model: onnx.ModelProto, feed: Feed, folder: Path, **options: Any) -> onnx.ModelProto:
    """What onnxruntime's static quantization makes of a model; int8 for activations and weights by default."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "before.onnx"))
    unlabelled = {name: value for name, value in feed.items() if name != "labels"}
    quantize_static(folder / "before.onnx", folder / "after.onnx", Reader(unlabelled), **options)
    return onnx.load(str(folder / "after.onnx"))


def ranges(quantized: onnx.ModelProto) -> dict[str, tuple[float, float]]:
    """Lowest and highest value that the quantizer of each activation can represent: a calibration cache."""
    stored = constants(quantized)
    found = {}
    for node in quantized.graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] in stored:
            continue
        scale, zero = (stored[name] for name in node.input[1:3])
        info = np.iinfo(zero.dtype)
        low, high = ((float(code) - float(zero)) * float(scale) for code in (info.min, info.max))
        found[node.input[0]] = low, high
    return found


def with_ranges(wanted: Mapping[str, tuple[float, float]], **options: Any) -> dict[str, Any]:
    """Options for ``quantize`` that take the ranges of some activations from elsewhere, as another toolchain might."""
    overrides = {name: [{"rmin": np.float32(low), "rmax": np.float32(high)}] for name, (low, high) in wanted.items()}
    return {"extra_options": {"TensorQuantOverrides": overrides}, **options}


def without_quantizers(quantized: onnx.ModelProto, *tensors: str) -> None:
    """Take the quantizers off some activations, as a toolchain that fuses operators never puts them there."""
    for tensor in tensors:
        (quantize_node,) = [n for n in quantized.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor]
        (node,) = [n for n in quantized.graph.node if quantize_node.output[0] in n.input]
        for reader in quantized.graph.node:
            reader.input[:] = [tensor if name == node.output[0] else name for name in reader.input]
        for gone in (quantize_node, node):
            quantized.graph.node.remove(gone)


def device_tensors(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
    """What a device leaves of a QDQ model: its outputs and all dequantized activations, by kernels that do not fuse."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    stored, outputs = set(constants(model)), [value.name for value in model.graph.output]
    read = [node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"]
    made = [node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"]
    names = [name for name, code in zip(read, made, strict=True) if code not in stored and name not in outputs]
    exposed.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(exposed.SerializeToString(), options)
    return dict(zip([*outputs, *names], session.run([*outputs, *names], feed), strict=True))


# --- diagnosing ------------------------------------------------------------------------------------------------------


@cache
def rules() -> RuleBase:
    return quantmedic.load_rulebase()


def diagnose(
    float_model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    representative: Any,
    validation: Any,
    folder: Path,
    *,
    previous: Path | None = None,
    keep: Path | None = None,
    **options: Any,
) -> Diagnosis:
    """The expert's word on a pair of models that lie in memory; ``keep`` saves the case, ``previous`` reads another.

    Where the order of causes hangs on how much each of them loses, ask for ``attribution=True``: it takes most of the
    time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "float.onnx", folder / "quantized.onnx"
    for path, model in zip(paths, (float_model, quantized), strict=True):
        onnx.save(model, str(path))
    given = {
        "representative": representative,
        "validation": validation,
        "rules": rules(),
        "threads": 1,
        "attribution": False,
        **options,
    }
    case = quantmedic.collect(*paths, **given)
    if keep is not None:
        quantmedic.save_case(case, keep)
    return quantmedic.judge(case, rules(), previous=quantmedic.load_case(previous) if previous else None)


def judged(
    model: onnx.ModelProto, folder: Path, *, attribution: bool = False, **options: Any
) -> tuple[float, Diagnosis]:
    """Points of accuracy that quantization with these options loses, and the diagnosis."""
    representative, validation = split(model)
    quantized = quantize(model, representative, folder, **options)
    lost = accuracy(model, validation) - accuracy(quantized, validation)
    return lost, diagnose(model, quantized, representative, validation, folder, attribution=attribution)


def serious(diagnosis: Diagnosis) -> list[str]:
    """Causes of high or medium severity, best first."""
    return [cause.cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]


def first(diagnosis: Diagnosis) -> str | None:
    """The best of them."""
    return next(iter(serious(diagnosis)), None)


def named_layers(diagnosis: Diagnosis, cause: str) -> list[str]:
    """Float names of the layers that a cause names, worst first."""
    (found,) = [c for c in diagnosis.causes if c.cause == cause]
    return [layer.float_name for layer in found.layers if layer.float_name]


def assert_nothing_lost(diagnosis: Diagnosis) -> None:
    """Noise that a repair takes away may be listed; these few labels may leave open whether it costs anything."""
    assert serious(diagnosis) == []
    assert diagnosis.verdict in ("healthy", "undecided")


def assert_healthy(diagnosis: Diagnosis) -> None:
    assert serious(diagnosis) == []
    assert diagnosis.verdict == "healthy"
