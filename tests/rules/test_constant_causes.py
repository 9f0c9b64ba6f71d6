"""Small networks whose constants besides weights and biases were changed on the way: is the change named, and nothing
else?

Dense layers are a MatMul and an Add, the normalization between them a Mul and an Add, as most exporters write them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import litert_models
from builders.onnx_models import Net, random, save_pair, static
from builders.tiers import others_nightly
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat

import quantmedic
from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

Array = NDArray[Any]
WIDTH = 24
DATA = random(3, 256, 16)
STEP = 0.5


@dataclass(frozen=True)
class Constants:
    """Two dense layers with a gain and an offset between them."""

    first: Array = field(default_factory=lambda: random(1, 16, WIDTH, scale=0.25))
    bias: Array = field(default_factory=lambda: random(2, WIDTH, scale=1.0))
    gain: Array = field(default_factory=lambda: np.abs(1 + random(4, WIDTH, scale=0.4)))
    offset: Array = field(default_factory=lambda: random(5, WIDTH, scale=0.4))
    last: Array = field(default_factory=lambda: random(6, WIDTH, 8, scale=0.3))


def network(own: Constants) -> onnx.ModelProto:
    net = Net()
    for name in ("first", "bias", "gain", "offset", "last"):
        net.const(name, getattr(own, name))
    x = net.add("MatMul", net.input("x", ["n", 16]), "first", out="product")
    x = net.add("Relu", net.add("Add", x, "bias", out="dense"), out="relu")
    x = net.add("Add", net.add("Mul", x, "gain", out="scaled"), "offset", out="shifted")
    net.output(net.add("MatMul", x, "last", out="scores"))
    return net.model()


@dataclass(frozen=True)
class Patient:
    """One pair of models as diagnosed."""

    layers: dict[str | None, LayerFacts]
    diagnosis: Diagnosis

    @property
    def found(self) -> dict[str, tuple[str, ...]]:
        """The places of each rule that fired."""
        return {rule: cause.subjects for cause in self.diagnosis.causes for rule in cause.rules}

    def causes_of(self, layer: str) -> tuple[str, ...]:
        """What the loss budget calls the noise of a layer's constants."""
        budget = self.diagnosis.loss_budget
        assert budget is not None
        lines = [line for line in budget.lines if line.source == "bias" and line.layers == (layer,)]
        return lines[0].causes if lines else ()


Diagnose = Callable[..., Patient]


@pytest.fixture
def diagnose(tmp_path: Path) -> Diagnose:
    """Quantize ``source`` with onnxruntime, change the file, and hold it against the network of usual constants."""

    def diagnosed(
        source: Constants, change: Callable[[onnx.ModelProto], None] = lambda quantized: None, **options: Any
    ) -> Patient:
        quantized = static(network(source), {"x": DATA}, tmp_path, per_channel=True, **options)
        change(quantized)
        case = quantmedic.collect(*save_pair(tmp_path, network(Constants()), quantized), validation=DATA, threads=1)
        facts = derive(case, quantmedic.load_rulebase())
        return Patient({layer.name: layer for layer in facts.layers}, quantmedic.judge(case))

    return diagnosed


def scale_of(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (found,) = (t for t in model.graph.initializer if t.name == f"{name}_scale")
    return found


def widen_steps(name: str, factor: float) -> Callable[[onnx.ModelProto], None]:
    """The codes stay, and stand for values so many times as large."""

    def change(model: onnx.ModelProto) -> None:
        tensor = scale_of(model, name)
        tensor.CopyFrom(numpy_helper.from_array(np.float32(numpy_helper.to_array(tensor) * factor), tensor.name))

    return change


def test_constants_that_were_rounded_are_healthy(diagnose: Diagnose) -> None:
    for options in ({}, {"quant_format": QuantFormat.QOperator}):
        patient = diagnose(Constants(), **options)
        assert patient.diagnosis.causes == ()
        for layer in ("dense", "scaled", "shifted"):
            assert 0 < patient.layers[layer].constant.misplaced_steps <= 0.5 + 1e-3
        assert patient.layers["product"].constant.bits is None, "weights are no other constants"


#: A layer and what its constant is in place of the usual: a bias added twice, a gain plus one, codes of other channels.
OTHERS: dict[str, dict[str, Array]] = {
    "dense": {"bias": 2 * Constants().bias},
    "scaled": {"gain": 1 + Constants().gain},
    "shifted": {"offset": Constants().offset[::-1].copy()},
}


def test_another_constant_is_named_at_its_place(diagnose: Diagnose, subtests: pytest.Subtests) -> None:
    for layer, other in OTHERS.items():
        with subtests.test(layer):
            patient = diagnose(Constants(**other))
            assert patient.found == {"W019": (layer,)}
            assert patient.causes_of(layer) == ("foreign-weights",)
            assert patient.layers[layer].constant.name == next(iter(other))
            assert patient.layers[layer].constant.misplaced_steps > 10
            assert patient.diagnosis.causes[0].predicted_gain_db > 10
    patient = diagnose(Constants(**OTHERS["scaled"]), quant_format=QuantFormat.QOperator)
    assert patient.found == {"W019": ("scaled",)}


def test_codes_that_are_read_with_another_scale(diagnose: Diagnose) -> None:
    patient = diagnose(Constants(), widen_steps("gain", 2.0))
    assert patient.found == {"W019": ("scaled",)}


def test_a_range_that_cuts_a_constant_off_has_another_cause(diagnose: Diagnose) -> None:
    """A third of the range: the largest are stored as its end, far off, and the others are rounded."""
    narrow = Constants(bias=np.clip(Constants().bias, -0.6, 0.6))
    constant = (patient := diagnose(narrow)).layers["dense"].constant
    assert patient.layers["dense"].bias_source.share > 0.9
    assert constant.max_error_steps > 100 and constant.misplaced_steps < 1.5
    assert "W019" not in patient.found


def test_few_levels_are_no_other_constant(diagnose: Diagnose) -> None:
    """A step of a half makes most of the noise, and every value is the nearest that there is."""
    coarse = Constants(offset=np.float32(STEP * np.rint(Constants().offset / STEP)))

    def declare(model: onnx.ModelProto) -> None:
        tensor, zero = scale_of(model, "offset"), _initializer(model, "offset_zero_point")
        codes = np.rint(coarse.offset / STEP) + int(numpy_helper.to_array(zero))
        stored = _initializer(model, "offset_quantized")
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(STEP, np.float32), tensor.name))
        stored.CopyFrom(numpy_helper.from_array(codes.astype(numpy_helper.to_array(stored).dtype), stored.name))

    patient = diagnose(coarse, declare)
    assert patient.layers["shifted"].bias_source.share > 0.5
    assert patient.layers["shifted"].constant.max_error_steps <= 0.5 + 1e-3
    assert "W019" not in patient.found


def test_gains_that_were_moved_into_the_next_weights_are_no_strangers(diagnose: Diagnose) -> None:
    """SmoothQuant: gain and offset are divided by what the weights behind them are multiplied with."""
    usual, by = Constants(), np.geomspace(0.3, 3, WIDTH).astype(np.float32)
    smoothed = Constants(gain=usual.gain / by, offset=usual.offset / by, last=usual.last * by[:, None])
    patient = diagnose(smoothed)
    layer = patient.layers["scaled"]
    assert layer.constant.misplaced_steps > 10
    assert layer.bias_source.share > 0.2 and layer.bias_source.last < 0
    assert "W019" not in patient.found


def test_a_constant_that_a_correction_changed_is_no_stranger(tmp_path: Path) -> None:
    """Weights that were rounded down shift what they make, and the addend behind them takes that back."""
    data = DATA + 1
    quantized = static(network(Constants()), {"x": data}, tmp_path, per_channel=True)
    stored, scale = (_initializer(quantized, f"first_{end}") for end in ("quantized", "scale"))
    codes = np.floor(Constants().first / numpy_helper.to_array(scale)).astype(np.int8)
    stored.CopyFrom(numpy_helper.from_array(codes, stored.name))
    paths = save_pair(tmp_path, network(Constants()), quantized)
    quantmedic.correct_biases(*map(str, paths), {"x": data}, str(tmp_path / "corrected.onnx"))
    case = quantmedic.collect(paths[0], tmp_path / "corrected.onnx", validation=data, threads=1)
    layers = {layer.name: layer for layer in derive(case, quantmedic.load_rulebase()).layers}
    assert layers["dense"].constant.misplaced_steps > 1.5
    assert "W019" not in {rule for cause in quantmedic.judge(case).causes for rule in cause.rules}


def lite_network(gain: Array) -> bytes:
    twins = litert_models.Twins()
    x = twins.input("image", 3, 8, 8)
    x = twins.conv(x, random(1, 8, 3, 3, 3, scale=0.3), random(2, 8, scale=0.3), out="conv", act="relu")
    for made, shape in ((twins.net, (8, 1, 1)), (twins.lite, (8,))):
        made.const("gain", gain.reshape(shape))
    x = twins.mean(twins.mul(x, "gain", out="scaled"), out="means")
    twins.output(twins.dense(x, random(6, 6, 8), random(7, 6), out="scores"))
    return twins.litert()


@pytest.mark.parametrize("more", others_nightly([0.0, 1.0]), ids=["rounded", "plus-one"])
def test_constants_of_litert_models(tmp_path: Path, more: float) -> None:
    pytest.importorskip("ai_edge_quantizer")
    gain, x = np.float32([0.4, 1.3, 0.9, 1.7, 0.6, 1.1, 0.2, 1.5]), random(9, 64, 8, 8, 3)
    made = litert_models.quantized(lite_network(gain + np.float32(more)), "int8", {"image": x})
    paths = tmp_path / "float.tflite", tmp_path / "int8.tflite"
    for path, content in zip(paths, (lite_network(gain), made), strict=True):
        path.write_bytes(content)
    case = quantmedic.collect(*paths, validation=x, threads=1)
    found = {layer.name: layer.constant for layer in derive(case, quantmedic.load_rulebase()).layers}["scaled"]
    rules = {rule for cause in quantmedic.judge(case).causes for rule in cause.rules}
    assert (found.misplaced_steps > 10, "W019" in rules) == ((True, True) if more else (False, False))
    assert more or found.misplaced_steps <= 0.5 + 1e-3


def _initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    return found
