"""Facts of real pairs of torch modules against the same numbers computed with plain torch."""

import copy
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from builders.torch_models import (  # noqa: E402
    CONVOLUTIONAL,
    TOOLCHAINS,
    InPlace,
    Keywords,
    Many,
    Recurrent,
    Shared,
    Transformer,
    TwoInputs,
    batches,
    images,
    int8_dynamic,
    made,
    pair,
    rounded,
    rows,
    sqnr_db,
    steps,
    without_fast_path,
)
from torch import nn  # noqa: E402
from torch.nn.utils.fusion import fuse_conv_bn_eval  # noqa: E402

import quantmedic  # noqa: E402
from quantmedic.api.opening import open_pair  # noqa: E402
from quantmedic.api.options import CollectOptions  # noqa: E402
from quantmedic.collectors.measure.measurement import Measurement  # noqa: E402
from quantmedic.collectors.measure.options import Options  # noqa: E402
from quantmedic.collectors.measure.simulation import Simulation  # noqa: E402
from quantmedic.engine.case.facts import CaseFacts, LayerFacts, TensorFacts  # noqa: E402
from quantmedic.engine.case.records import Case  # noqa: E402
from quantmedic.engine.errors import ModelError  # noqa: E402
from quantmedic.engine.formulas.change import Change, everything  # noqa: E402
from quantmedic.engine.formulas.derive import derive  # noqa: E402
from quantmedic.engine.formulas.simulate import Grid  # noqa: E402
from quantmedic.engine.rules.remedy_kinds import change_of  # noqa: E402
from quantmedic.trials.edit import edit  # noqa: E402

pytestmark = pytest.mark.thorough

LAYERS = {
    "conv": ["conv1", "bn1", "relu", "conv2", "add", "silu", "cat", "mean", "fc"],
    "dense": ["0", "1", "2"],
}
WEIGHTED = {"conv": ["conv1", "conv2", "fc"], "dense": ["0", "2"]}
BITS = {name: 4 if "int4" in name else 8 for name in TOOLCHAINS}
every_toolchain = pytest.mark.parametrize("toolchain", TOOLCHAINS)


def kind_of(toolchain: str) -> str:
    return "conv" if toolchain in CONVOLUTIONAL else "dense"


@dataclass(frozen=True)
class Measured:
    net: Any
    quantized: Any
    x: Any
    case: Case
    facts: CaseFacts

    def tensor(self, float_name: str) -> TensorFacts:
        (found,) = (t for t in self.facts.tensors if t.float_name == float_name)
        return found

    def layer(self, name: str) -> LayerFacts:
        (found,) = (layer for layer in self.facts.layers if layer.name == name)
        return found

    def index(self, float_name: str) -> int:
        return next(i for i, t in enumerate(self.case.record.tensors) if t.float_name == float_name)


@functools.cache
def rules() -> Any:
    return quantmedic.load_rulebase()


def measure(net: Any, quantized: Any, x: Any, data: Any = None, **options: Any) -> Measured:
    case = quantmedic.collect(net, quantized, validation=batches(x) if data is None else data, threads=1, **options)
    return Measured(net, quantized, x, case, derive(case, rules()))


@functools.cache
def measured(toolchain: str) -> Measured:
    return measure(*pair(toolchain))


def floats_of(net: Any, x: Any) -> dict[str, Any]:
    """What the layers of the convolutional net make of ``x``, by hand."""
    with torch.no_grad():
        conv1 = net.conv1(x)
        bn1 = net.bn1(conv1)
        relu = torch.relu(bn1)
        conv2 = net.conv2(relu)
        add = conv2 + relu
        silu = nn.functional.silu(add)
        cat = torch.cat([relu, silu], 1)
        mean = cat.mean((2, 3))
        found = {"conv1": conv1, "bn1": bn1, "relu": relu, "conv2": conv2, "add": add, "silu": silu}
        return found | {"cat": cat, "mean": mean, "fc": net.fc(mean), "image": x}


# --- layers and weights ----------------------------------------------------------------------------------------------


@every_toolchain
def test_layers_weights_and_outputs_are_those_of_the_toolchain(toolchain):
    """Names are those of the float module, figures those of plain torch."""
    found = measured(toolchain)
    layers = LAYERS[kind_of(toolchain)]
    # Only the eager mode keeps the normalization.
    assert [layer.name for layer in found.facts.layers] == [n for n in layers if n != "bn1" or toolchain == "eager"]
    assert found.case.record.unmatched == ()
    model = found.facts.model
    assert model.framework == "torch"
    for name in WEIGHTED[kind_of(toolchain)]:
        quantizer = found.layer(name).weight.quantizer
        assert quantizer.bits == BITS[toolchain]
        assert quantizer.granularity == ("per_block" if "int4" in toolchain else "per_channel")
        if toolchain != "pt2e":  # the exported program keeps its weights under names of its own
            assert_rounding_errors(found, toolchain, name)
    with torch.no_grad():
        # Kernels that round while they run do so on their own batch of one sample.
        y = torch.cat([found.quantized(part) for part in found.x.split(1 if "dynamic" in toolchain else 24)])
        expected = sqnr_db(found.net(found.x), y)
    assert found.layer(layers[-1]).output.data.accumulated.sqnr_db == pytest.approx(expected, abs=1e-3)
    if toolchain in CONVOLUTIONAL:
        assert_attributes(found)
        assert_statistics_per_channel(found)
    if toolchain in ("fx", "fx reference", "eager", "pt2e"):
        assert_quantizers(found, toolchain)


def assert_attributes(found: Measured) -> None:
    """Those of the float call: integer kernels keep them to themselves."""
    attributes = {op.name: op.attributes for op in found.case.record.operators}
    sides = {"strides": "1, 1", "pads": "1, 1, 1, 1", "dilations": "1, 1"}
    assert attributes["conv1"] == {"group": "1", "kernel_shape": "3, 3", **sides}
    assert attributes["cat"] == {"axis": "1"}
    assert attributes["mean"]["axes"] == "2, 3"


def assert_statistics_per_channel(found: Measured) -> None:
    statistics = found.case.statistics["validation"]
    known = [tensor.float_name for tensor in found.facts.tensors]
    seen = {name: x for name, x in floats_of(found.net, found.x).items() if name in known}
    assert len(seen) >= 6
    for name, x in seen.items():
        record, tensor = found.case.record.tensors[found.index(name)], statistics.tensor(found.index(name))
        assert record.axis == 1, name
        channels = x.double().transpose(0, 1).flatten(1)
        assert tensor.count.tolist() == [channels.shape[1]] * len(channels)
        assert np.allclose(tensor.mean, channels.mean(1), atol=1e-6)
        assert np.allclose(tensor.m2, ((channels - channels.mean(1, keepdim=True)) ** 2).sum(1), rtol=1e-5, atol=1e-6)
        assert np.allclose(tensor.min, channels.amin(1), atol=1e-5)
        assert np.allclose(tensor.max, channels.amax(1), atol=1e-5)


def stored_weights(toolchain: str, quantized: Any, name: str) -> Any:
    """What the deployed layer multiplies with, by the toolchain's own functions."""
    part = quantized.get_submodule(name)
    if toolchain == "fx":
        return part.weight().dequantize()
    if toolchain == "fx reference":
        return (part[0] if isinstance(part, nn.Sequential) else part).get_weight()
    if toolchain == "fx qat" and name == "conv1":
        spread = torch.sqrt(part.bn.running_var + part.bn.eps)
        factor = (part.bn.weight / spread).reshape(-1, 1, 1, 1)
        return part.weight_fake_quant(part.weight * factor)
    if toolchain in ("fx qat", "eager"):
        return part.weight_fake_quant(part.weight)
    return part.weight.dequantize()


def assert_rounding_errors(found: Measured, toolchain: str, name: str) -> None:
    with torch.no_grad():
        folded = name == "conv1" and toolchain != "eager"
        source = fuse_conv_bn_eval(found.net.conv1, found.net.bn1) if folded else found.net.get_submodule(name)
        stored = stored_weights(toolchain, found.quantized, name)
        expected = sqnr_db(source.weight, stored)
    weight = found.layer(name).weight
    assert weight.rounding.sqnr_db == pytest.approx(expected, abs=2e-3)
    assert weight.stored_max == pytest.approx(float(stored.max()), rel=1e-4)
    arrays = found.case.weights[next(i for i, op in enumerate(found.case.record.operators) if op.name == name)]
    assert len(arrays.index) == len(source.weight)
    assert arrays.stored_low.min() == pytest.approx(float(stored.min()), rel=1e-4)
    assert arrays.floats.sum() == source.weight.numel()


# --- errors of activations -------------------------------------------------------------------------------------------


def quantizers_of(toolchain: str, quantized: Any) -> dict[str, tuple[float, int, int, int]]:
    """Scale, zero point, lowest and highest code of activations as the toolchain tells them."""
    if toolchain == "fx":
        parts = {"conv2": quantized.conv2, "relu": quantized.conv1, "fc": quantized.fc}
        return {name: (float(part.scale), int(part.zero_point), 0, 255) for name, part in parts.items()}
    if toolchain == "eager":
        names = ("conv1", "bn1", "conv2", "fc")
        parts = {name: quantized.get_submodule(name).activation_post_process for name in names}
        found = {}
        for name, part in parts.items():
            own = part.activation_post_process
            found[name] = (float(part.scale), int(part.zero_point), own.quant_min, own.quant_max)
        return found
    found = {}
    for node in quantized.graph.nodes:
        if "quantize_per_tensor" not in str(node.target) or "dequantize" in str(node.target):
            continue
        source = node.args[0].name
        if toolchain == "pt2e":
            found[source] = (node.args[1], node.args[2], node.args[3], node.args[4])
        else:
            scale, zero = (getattr(quantized, str(node.args[k])) for k in (1, 2))
            found[source] = (float(scale), int(zero), 0, 255)
    return found


def assert_quantizers(found: Measured, toolchain: str) -> None:
    floats = floats_of(found.net, found.x)
    checked = 0
    for name, (scale, zero, low, high) in quantizers_of(toolchain, found.quantized).items():
        name = {"conv1": "relu"}.get(name, name) if toolchain == "fx reference" else name
        if name not in floats:
            continue
        tensor = found.tensor(name)
        assert tensor.quantizer.scale == pytest.approx(scale, rel=1e-6), name
        assert tensor.quantizer.zero_point == zero, name
        assert tensor.quantizer.bits == {255: 8, 127: 7}[high - low], name
        rounded_ = torch.fake_quantize_per_tensor_affine(floats[name], scale, zero, low, high)
        assert tensor.data.rounding.sqnr_db == pytest.approx(sqnr_db(floats[name], rounded_), abs=0.01), name
        checked += 1
    assert checked >= 3


def test_errors_of_every_tensor_of_a_module_with_hooks():
    """The eager mode keeps every float layer, so that its tensors can be had by hand as well."""
    found = measured("eager")
    seen: dict[str, Any] = {}
    copied = copy.deepcopy(found.quantized)
    for name in ("conv1", "bn1", "relu", "conv2", "fc"):
        copied.get_submodule(name).register_forward_hook(lambda part, given, y, name=name: seen.update({name: y}))
    with torch.no_grad():
        copied(found.x)
    floats = floats_of(found.net, found.x)
    for name, y in seen.items():
        tensor = found.tensor(name)
        assert tensor.data.accumulated.sqnr_db == pytest.approx(sqnr_db(floats[name], y), abs=1e-3), name
        d = (y - floats[name]).double()
        assert tensor.data.accumulated.mse == pytest.approx(float((d * d).mean()), rel=1e-4)
        assert tensor.data.accumulated.max == pytest.approx(float(d.abs().max()), rel=1e-4)


# --- other networks --------------------------------------------------------------------------------------------------

LEFT, RIGHT = rows(24, 16, 1), rows(24, 12, 2)
NETWORKS: dict[str, Any] = {
    "transformer": (lambda: made(Transformer), steps(), ["encoder.linear1", "encoder.linear2", "head"]),
    "lstm": (lambda: made(Recurrent), steps(), ["fc"]),
    "two inputs": (lambda: made(TwoInputs), (LEFT, RIGHT), ["a", "b", "fc"]),
    "keywords": (lambda: made(Keywords), {"left": LEFT, "right": RIGHT}, ["a", "b", "fc"]),
    "a layer called twice": (lambda: made(Shared), rows(), ["layer", "layer_1", "fc"]),
    "a tuple": (lambda: made(Many), rows(), ["body", "first", "second"]),
    "a dict": (lambda: made(Many, "dict"), rows(), ["body", "first", "second"]),
}


@pytest.mark.nightly
def test_networks_with_fake_quantizers_of_ones_own(subtests):
    for name, (make, x, weighted) in NETWORKS.items():
        with subtests.test(name):
            net = make()
            quantized = rounded(net, x)
            data = {"left": x[0], "right": x[1]} if isinstance(x, tuple) else x if isinstance(x, dict) else None
            with torch.no_grad(), without_fast_path():
                found = measure(net, quantized, x, data)
                outputs = [run(net, x), run(quantized, x)]
            assert found.case.record.unmatched == ()
            layers = [layer for layer in found.facts.layers if layer.weight.quantizer.bits is not None]
            assert [layer.name for layer in layers] == weighted
            for layer in layers:
                assert layer.weight.quantizer.granularity == "per_channel" and layer.output.quantizer.bits == 8
                part = quantized.get_submodule(layer.name.removesuffix("_1"))
                assert layer.output.quantizer.scale == pytest.approx(part.grid()[0], rel=1e-6)
                assert layer.output.quantizer.zero_point == part.grid()[1]
            names = [output.name for output in found.case.record.outputs]
            for name, a, b in zip(names, *outputs, strict=True):
                assert found.tensor(name).data.accumulated.sqnr_db == pytest.approx(sqnr_db(a, b), abs=1e-3)


def run(net: Any, x: Any) -> list[Any]:
    y = net(*x) if isinstance(x, tuple) else net(**x) if isinstance(x, dict) else net(x)
    return list(y.values()) if isinstance(y, dict) else list(y) if isinstance(y, tuple) else [y]


@pytest.mark.parametrize("toolchain", ["fx", "eager"])
def test_memory_that_is_written_to_twice(toolchain):
    net, x = made(InPlace), images()
    with torch.no_grad():
        quantized = TOOLCHAINS[toolchain](net, x)
        found = measure(net, quantized, x)
        assert found.layer("fc").output.data.accumulated.sqnr_db == pytest.approx(
            sqnr_db(net(x), quantized(x)), abs=1e-3
        )
        conv1 = net.conv1(x)
        total = net.conv2(torch.relu(conv1)) + torch.relu(conv1)
    assert [layer.name for layer in found.facts.layers] == ["conv1", "relu", "conv2", "add", "relu_1", "mean", "fc"]
    names = [tensor.float_name for tensor in found.case.record.tensors]
    statistics = found.case.statistics["validation"]
    for name, x in (("conv1", conv1), ("add", total), ("relu_1", torch.relu(total))):
        if name in names:  # integer kernels compute the activation along
            tensor = statistics.tensor(names.index(name))
            assert tensor.min.min() == pytest.approx(float(x.min()), abs=1e-5), name
            assert tensor.max.max() == pytest.approx(float(x.max()), abs=1e-5), name
    assert "relu_1" in names


def test_a_whole_transformer_by_torchao():
    net, x = made(Transformer), steps()
    quantized = int8_dynamic(net, x)
    found = measure(net, quantized, x, batch_size=1)
    with torch.no_grad(), without_fast_path():
        y = torch.cat([quantized(part) for part in x.split(1)])
        expected = sqnr_db(net(x), y)
    assert found.layer("head").output.data.accumulated.sqnr_db == pytest.approx(expected, abs=0.02)
    weighted = [layer.name for layer in found.facts.layers if layer.weight.quantizer.bits == 8]
    assert {"encoder.linear1", "encoder.linear2", "head"} <= set(weighted)


# --- simulated and edited --------------------------------------------------------------------------------------------


def db(power: Any, noise: Any) -> float:
    return float(10 * np.log10(np.sum(power) / np.sum(noise))) if np.sum(noise) > 0 else float("inf")


@dataclass(frozen=True)
class Ward:
    """A pair of modules ready for trials."""

    models: Any
    simulation: Simulation

    @classmethod
    def of(cls, found: Measured) -> "Ward":
        models, sets = open_pair(found.net, found.quantized, CollectOptions(validation=batches(found.x)))
        options = Options(samples=len(found.x), batch_size=8)
        return cls(models, Simulation(Measurement(models, sets, options), "validation", found.case))

    def edited(self, case: Case, change: Change) -> float:
        run = edit(self.models, case, change).runner(1)
        outputs = [run(batch) for batch in self.simulation.batches]
        return db(self.simulation.record.power, self.simulation._noise.compare(outputs).noise)


#: Toolchains whose modules can be edited: integer kernels cannot, and grids made at run time are no quantizers.
FAKE = [name for name in TOOLCHAINS if name not in ("fx",) and "dynamic" not in name]


@every_toolchain
def test_simulated_modules_are_the_deployed_and_the_edited_ones(toolchain, subtests):
    found = measured(toolchain)
    ward = Ward.of(found)
    power = ward.simulation.record.power
    deployed, simulated = (
        db(power, own.noise) for own in (ward.simulation.record.deployed, ward.simulation.record.simulated)
    )
    output = found.layer(LAYERS[kind_of(toolchain)][-1]).output.data.accumulated.sqnr_db
    assert deployed == pytest.approx(output, abs=0.01)
    if "dynamic" in toolchain:  # what is left are the weights
        assert simulated >= deployed - 0.5
    else:
        assert simulated == pytest.approx(deployed, abs=0.5)
    if toolchain not in FAKE:
        return
    for kind in ("float", "float-weights", "float-tensors", "sixteen-bit", "requantized"):
        change = change_of(kind, found.case, found.facts, everything(found.facts))
        if not change:  # nothing of the kind is quantized
            assert kind != "float" and toolchain not in CONVOLUTIONAL
            continue
        with subtests.test(kind):
            try:
                edited = ward.edited(found.case, change)
            except ModelError as error:
                # Of quantized weights alone there is no tensor to leave in float.
                assert error.help and not any(tensor.quantizer.scale for tensor in found.facts.tensors)
                continue
            simulated = db(power, ward.simulation.run(change).noise)
            assert min(edited, 60) == pytest.approx(min(simulated, 60), abs=0.5)
            assert edited > deployed - 0.5
            if kind == "float":  # without any quantizer it is the float module
                assert edited > 100


def test_integer_kernels_cannot_be_edited():
    found = measured("fx")
    change = change_of("float", found.case, found.facts, everything(found.facts))
    with pytest.raises(ModelError, match="integer kernels") as caught:
        Ward.of(found).edited(found.case, change)
    assert "convert_to_reference_fx" in str(caught.value)


@functools.cache
def eager_ward() -> Ward:
    return Ward.of(measured("eager"))


class Rounding(nn.Module):
    """torch's own fake quantizer to seven bits."""

    def __init__(self, scale: float, zero: int) -> None:
        super().__init__()
        self.scale, self.zero = scale, zero

    def forward(self, x: Any) -> Any:
        return torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, 0, 127)


@examples(25)
@given(
    name=st.sampled_from(["conv1", "bn1", "conv2", "fc"]),
    log_scale=st.floats(-9, 1),
    zero=st.integers(0, 127),
)
def test_an_edited_quantizer_equals_one_that_was_set_so(name, log_scale, zero):
    """The module re-made with that scale and zero point, by torch's own fake quantizer."""
    found, ward, scale = measured("eager"), eager_ward(), 2.0**log_scale
    grid = Grid(step=scale, low=-zero * scale, high=(127 - zero) * scale)
    run_edited = edit(ward.models, found.case, Change({found.index(name): grid})).runner(1)
    other = copy.deepcopy(found.quantized)
    other.get_submodule(name).activation_post_process = Rounding(scale, zero)
    for batch in ward.simulation.batches[:1]:
        with ward.models.as_deployed():
            (mine,) = run_edited(batch)
        with torch.no_grad():
            theirs = other(torch.tensor(batch.inputs["image"])).numpy()
        # A value between two codes may fall to either side.
        step = max(float(other.fc.activation_post_process.scale), scale)
        assert np.abs(mine - theirs).max() <= 2 * step + 1e-6
        assert np.mean(np.abs(mine - theirs) > 1e-5) < 0.1


def test_edited_runs_leave_the_module_as_it_was():
    found = measured("eager")
    before = {name: value.clone() for name, value in found.quantized.state_dict().items()}
    ward = Ward.of(found)
    for kind in ("float", "sixteen-bit", "requantized"):
        ward.edited(found.case, change_of(kind, found.case, found.facts, everything(found.facts)))
    assert all(torch.equal(value, before[name]) for name, value in found.quantized.state_dict().items())
    with torch.no_grad():
        expected = sqnr_db(found.net(found.x), found.quantized(found.x))
    assert db(ward.simulation.record.power, ward.simulation.record.deployed.noise) == pytest.approx(expected, abs=1e-3)
