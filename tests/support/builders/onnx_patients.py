"""Networks for ONNX that quantize badly in one way each, and what is prescribed for them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from builders import onnx_models
from quantmedic import judge
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.candidates import Choice
from quantmedic.engine.diagnosis.prescription import code_of, write_prescription
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.remedies import Snippet
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import find_toolchain

Array = NDArray[Any]


def inputs(seed: int) -> Array:
    return onnx_models.random(seed, 128, 3, 8, 8)


def unchanged(x: Array) -> Array:
    return x


def with_giant(x: Array) -> Array:
    """One value of one sample is a thousand times too large."""
    return np.where(np.arange(x.size).reshape(x.shape) == 0, np.float32(1000), x)


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with nodes in place of its initializers, as converters of other frameworks write it."""
    nodes = [onnx.helper.make_node("Constant", [], [each.name], value=each) for each in model.graph.initializer]
    del model.graph.initializer[:]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    return model


def network(wide: str = "", widest: float = 2000.0, opset: int = 17) -> onnx.ModelProto:
    """Two convolutions and a product; ``wide`` names the layer of which one output channel has wide weights.

    In "columns" the output channels of the product go from narrow to wide, and a factor makes up for it.
    """
    net = onnx_models.Net(opset)
    weights = {
        "conv": onnx_models.random(1, 16, 3, 3, 3, scale=0.3),
        "conv2": onnx_models.random(3, 16, 16, 3, 3, scale=0.1),
        "fc": onnx_models.random(5, 16, 10),
    }
    weights["conv2"][15] = 0
    if wide == "columns":
        weights["fc"] *= np.logspace(-2, 0, 10, dtype=np.float32)
    elif wide == "fc":  # of a channel that is always zero
        weights["fc"][15, 0] = widest
    elif wide:
        weights[wide][0] *= widest
    net.const("low", np.float32(0))
    net.const("high", np.float32(6))
    x = net.input("image", ["n", 3, 8, 8])
    for name, kept in (("conv", "clip"), ("conv2", "relu")):
        bias = onnx_models.random(2, 16, scale=0.1)
        bias[15] = -1
        x = net.conv(x, weights[name], bias, out=name, name=f"/{name}", pads=[1, 1, 1, 1])
        x = net.add("Clip", x, "low", "high", out="clip", name="/clip") if kept == "clip" else x
        x = net.add("Relu", x, out="relu", name="/relu") if kept == "relu" else x
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool", name="/pool"), out="flat", name="/flat")
    net.const("fc.weight", weights["fc"])
    x = net.add("MatMul", x, "fc.weight", out="scores", name="/fc")
    if wide == "columns":
        net.const("gains", np.logspace(2, 0, 10, dtype=np.float32))
        x = net.add("Mul", x, "gains", out="even", name="/even")
    net.output(net.add("Softmax", x, out="share", name="/softmax"), shape=["n", 10])
    return net.model()


def padded() -> onnx.ModelProto:
    """A maximum pooling of what a ReLU gives, whose Pad puts the lowest float around it."""
    net = onnx_models.Net(17)
    x = net.input("image", ["n", 3, 8, 8])
    x = net.conv(x, onnx_models.random(1, 8, 3, 3, 3, scale=0.3), out="conv", name="/conv", pads=[1, 1, 1, 1])
    net.const("pads", np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64))
    net.const("fill", np.float32(np.finfo(np.float32).min))
    x = net.add("Pad", net.add("Relu", x, out="relu", name="/relu"), "pads", "fill", out="padded", name="/pad")
    x = net.add("MaxPool", x, out="pooled", name="/maximum", kernel_shape=[3, 3], strides=[2, 2])
    x = net.conv(x, onnx_models.random(3, 8, 8, 1, 1), out="conv2", name="/conv2")
    net.output(net.add("GlobalAveragePool", x, out="pool", name="/pool"), shape=["n", 8, 1, 1])
    return net.model()


def joined(op: str) -> onnx.ModelProto:
    """A convolution beside a constant of 500, joined by an Add or a Concat; what follows reads the convolution only."""
    net = onnx_models.Net(17)
    x = net.input("image", ["n", 3, 8, 8])
    x = net.conv(x, onnx_models.random(1, 4, 3, 3, 3, scale=0.3), out="conv", name="/conv", pads=[1, 1, 1, 1])
    if op == "Add":
        net.const("offset", np.array([500, 0, 0, 0], np.float32).reshape(1, 4, 1, 1))
        x = net.add("Add", x, "offset", out="joint", name="/joint")
        weight = onnx_models.random(3, 8, 4, 1, 1)
    else:
        net.const("factor", np.float32(500))
        wide = net.add("Mul", x, "factor", out="wide", name="/wide")
        x = net.add("Concat", x, wide, out="joint", name="/joint", axis=1)
        weight = onnx_models.random(3, 8, 8, 1, 1)
        weight[:, 4:] = 0
    weight[:, 0] = 0
    x = net.conv(x, weight, out="conv2", name="/conv2")
    net.output(net.add("GlobalAveragePool", x, out="pool", name="/pool"), shape=["n", 8, 1, 1])
    return net.model()


def unfolded() -> onnx.ModelProto:
    """A batch normalization that makes up for the very different channels of the convolution before it."""
    net = onnx_models.Net(17)
    gains = np.logspace(-3, 1, 8).astype(np.float32)
    weight = onnx_models.random(1, 8, 3, 3, 3) * gains.reshape(-1, 1, 1, 1)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), weight, out="conv", name="/conv")
    for name, values in (("scale", 1 / gains), ("shift", 0 * gains), ("mean", 0 * gains), ("variance", 1 + 0 * gains)):
        net.const(name, values.astype(np.float32))
    x = net.add("BatchNormalization", x, "scale", "shift", "mean", "variance", out="normal", name="/normal")
    x = net.add("GlobalAveragePool", net.add("Relu", x, out="relu", name="/relu"), out="pool", name="/pool")
    net.output(x, shape=["n", 8, 1, 1])
    return net.model()


def dead_channel() -> onnx.ModelProto:
    """Hardly any weights, but a bias, in one channel."""
    places = np.arange(16)
    model = edit_weights(
        network(), lambda name, x: np.where(places.reshape(-1, 1, 1, 1) == 3, x * 1e-12, x), "conv.weight"
    )
    return edit_weights(model, lambda name, x: np.where(places == 3, 5, x), "conv.bias")


def heavy_tail() -> onnx.ModelProto:
    """One weight of the convolution is thirty times as large as the others."""
    return edit_weights(
        network(), lambda name, x: np.where(np.arange(x.size).reshape(x.shape) == 5, 9.0, x), "conv.weight"
    )


def edit_weights(model: onnx.ModelProto, change: Callable[[str, Array], Array], *names: str) -> onnx.ModelProto:
    """The model with initializers changed whose names begin so."""
    for tensor in model.graph.initializer:
        if tensor.name.startswith(names):
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(tensor.name, array), array.dtype), tensor.name))
    return model


def prescribe(
    case: Case, base: RuleBase, remedy: str, snippet: Snippet, layers: Sequence[str], cause: str = "any-cause"
) -> str:
    """What is printed where a rule advises this snippet of a remedy for layers; conditions left out."""
    return prescribe_for(derive(case, base), judge(case), base, remedy, snippet, layers, cause)


def prescribe_for(
    facts: CaseFacts,
    diagnosis: Diagnosis,
    base: RuleBase,
    remedy: str,
    snippet: Snippet,
    layers: Sequence[str],
    cause: str = "any-cause",
) -> str:
    """The same of a case whose facts and diagnosis are at hand."""
    own = snippet.model_copy(update={"whole": False})
    asked = base.remedies[remedy].model_copy(update={"in_force": None, "withheld": (), "snippets": (own,)})
    rule = {"id": "X001", "name": "any-rule", "cause": cause, "severity": "low", "confidence": 0.5, "message": ""}
    rule |= {"scope": "layer", "when": {"fact": "name", "known": True}, "remedies": [remedy]}
    found = Rule.model_validate(rule)
    tensors = {tensor.float_name: tensor for tensor in facts.tensors}
    findings = [Finding(found, each, None if each in tensors else each, "", (), tensors.get(each)) for each in layers]
    (advice,), _ = advise(findings, base.model_copy(update={"remedies": {remedy: asked}}), facts)
    report = CauseReport(
        cause=cause,
        rules=("X001",),
        severity="high",
        confidence=0.5,
        subjects=(),
        layers=(),
        message="",
        evidence=(),
        remedies=(advice,),
        manual="manual/X001",
    )
    toolchain = find_toolchain(snippet.toolchain, base.toolchains)
    choice = Choice("any", ((report, advice),), advice.title, None)
    code = code_of(write_prescription(diagnosis, [choice], toolchain))
    assert code is not None
    return code
