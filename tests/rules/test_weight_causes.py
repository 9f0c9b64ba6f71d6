"""Networks with one fault in their weights, quantized by onnxruntime and diagnosed: is the fault named?

Every fault keeps the function of the float network. Activations have 16 bits unless the fault concerns them, so that
the weights alone are to blame.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net, codes_of, random, save_pair, static
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import QuantType

import quantmedic
from quantmedic.engine.case import Case
from quantmedic.engine.derive import derive
from quantmedic.engine.diagnosis import Diagnosis
from quantmedic.engine.facts import CaseFacts, LayerFacts

Array = NDArray[Any]
DATA = np.abs(random(3, 64, 8, 8, 8))
WIDE = {"activation_type": QuantType.QUInt16}
PER_CHANNEL = WIDE | {"per_channel": True}


@dataclass
class Weights:
    """Three convolutions with ReLU between them, 8 to 16 to 16 to 6 channels."""

    a: Array = field(default_factory=lambda: random(1, 16, 8, 3, 3, scale=0.15))
    b: Array = field(default_factory=lambda: random(2, 16, 16, 3, 3, scale=0.12))
    c: Array = field(default_factory=lambda: random(4, 6, 16, 1, 1, scale=0.3))
    bias: Array = field(default_factory=lambda: random(5, 16, scale=0.2))

    def scaled_between_a_and_b(self, gains: Array) -> "Weights":
        """The same function, with the channels between the first two layers ``gains`` times as large."""
        gains = gains.astype(np.float32)
        first = gains[:, None, None, None]
        return Weights(self.a * first, self.b / gains[None, :, None, None], self.c, self.bias * gains)


def network(weights: Weights, normalization: dict[str, Array] | None = None) -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 8, 8, 8])
    x = net.conv(x, weights.a, weights.bias, out="a", pads=[1, 1, 1, 1])
    if normalization is not None:
        names = [net.const(f"a.{name}", value) for name, value in normalization.items()]
        x = net.add("BatchNormalization", x, *names, out="a.normed", epsilon=1e-9)
    x = net.add("Relu", x, out="a.relu")
    x = net.conv(x, weights.b, random(6, 16, scale=0.1), out="b", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="b.relu")
    net.output(net.conv(x, weights.c, out="c"))
    return net.model()


@dataclass(frozen=True)
class Patient:
    """What a fault did, as measured and as diagnosed."""

    case: Case
    facts: CaseFacts
    diagnosis: Diagnosis

    def layer(self, name: str) -> LayerFacts:
        (found,) = (layer for layer in self.facts.layers if layer.name == name)
        return found

    @property
    def causes(self) -> list[str]:
        return [cause.cause for cause in self.diagnosis.causes]

    def rules(self, cause: str) -> tuple[str, ...]:
        return next(found.rules for found in self.diagnosis.causes if found.cause == cause)


@pytest.fixture(scope="module")
def rules():
    return quantmedic.load_rulebase()


@pytest.fixture
def diagnose(tmp_path, rules):
    """Quantize with onnxruntime, change the file, and diagnose it on the calibration data."""

    def run(
        model: onnx.ModelProto,
        change: Callable[[onnx.ModelProto], None] = lambda quantized: None,
        source: onnx.ModelProto | None = None,
        **options: Any,
    ) -> Patient:
        quantized = static(source or model, {"image": DATA}, tmp_path, **(WIDE | options))
        change(quantized)
        case = quantmedic.collect(*save_pair(Path(tmp_path), model, quantized), validation=DATA, threads=1)
        return Patient(case, derive(case, rules), quantmedic.judge(case, rules))

    return run


def initializer(model: onnx.ModelProto, name: str) -> Array:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    return numpy_helper.to_array(found)


def replace(model: onnx.ModelProto, name: str, value: Array) -> None:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    found.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def restore(model: onnx.ModelProto, layer: str, weight: Array, scale: Array) -> None:
    """Store a layer's weights anew on a symmetric int8 grid."""
    replace(model, f"{layer}.weight_scale", np.asarray(scale, np.float32))
    replace(model, f"{layer}.weight_quantized", codes_of(weight, scale, np.int8(0)))
