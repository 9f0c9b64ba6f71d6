"""Edits of weights and biases: what does not fit, what the runtime rounds again, dynamic and packed weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import MICROSOFT, Net, Recipe, conv_net, dynamic, images, qdq, random, static, token_net
from builders.trial_bench import Array, Bench, agree, bench, edited_outputs, float_outputs
from onnx import numpy_helper
from onnxruntime.quantization import QuantType

from quantmedic.collectors.from_onnx.onnx_session import executed_types
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.trials.from_onnx.onnx_remedies import left_integer

pytestmark = pytest.mark.thorough

FORMS: tuple[WeightForm, ...] = ("float", "per-channel", "best-range", "eight-bit")


def test_bias_that_would_not_fit_gets_a_wider_step_for_its_weights(tmp_path: Path) -> None:
    net = Net()
    weight = random(1, 4, 3, 1, 1)
    weight[2] *= 1e-9
    x = net.conv(net.input("image", ["n", 3, 8, 8]), weight, np.float32([1, 2, 900, 3]), out="conv1")
    net.output(net.conv(x, random(3, 2, 4, 1, 1), out="scores"))
    model = static(net.model(), {"image": images()}, tmp_path, activation_type=QuantType.QUInt8)
    found = bench(tmp_path, net.model(), model)
    change = Change(weights={found.layer("conv1"): "per-channel"})
    edited = found.edit(change)
    assert edited.unedited == ()
    assert left_integer(found.models, found.case, edited.model, change) == ()
    conv = next(n for n in edited.model.graph.node if n.op_type == "Conv")
    tensors = {t.name: numpy_helper.to_array(t) for t in edited.model.graph.initializer}
    writers = {n.output[0]: n for n in edited.model.graph.node}
    codes, scale = (tensors[name].astype(np.float64) for name in writers[conv.input[2]].input[:2])
    assert np.allclose(codes * scale, [1, 2, 900, 3], rtol=1e-3)
    assert found.edited_db(change) > found.simulated_db(Change()) - 1


def test_bias_that_was_cut_off_is_repaired_by_its_own_remedy_alone(tmp_path: Path) -> None:
    net = Net()
    weight = random(1, 4, 3, 1, 1)
    weight[2] *= 1e-9
    x = net.conv(net.input("image", ["n", 3, 8, 8]), weight, np.float32([1, 2, 9, 3]), out="conv1")
    net.output(net.conv(x, random(3, 2, 4, 1, 1), out="scores"))
    options = {"per_channel": True, "extra_options": {"QDQDisableWeightAdjustForInt32Bias": True}}
    model = static(net.model(), {"image": images()}, tmp_path, activation_type=QuantType.QUInt8, **options)
    found = bench(tmp_path, net.model(), model)
    for kind in ("recalibrate", "best-range", "per-channel-weights", "float-bias"):
        change = found.change(kind)
        assert found.edited_db(change) == pytest.approx(found.simulated_db(change), abs=1.0), kind
        assert (found.edited_db(change) > 20) == (kind == "float-bias")
        assert left_integer(found.models, found.case, found.edit(change).model, change) == ()


def test_each_constant_is_put_back_at_its_own_place(tmp_path: Path) -> None:
    """The gain is stored as what the offset is: its own values go back there, not those that are nearest."""
    gain, offset = random(1, 8, scale=2.0), random(2, 8)
    net, stored = Net(), Net()
    names = [net.const("gain", gain), net.const("offset", offset)]
    x = net.input("image", ["n", 3, 8, 8])
    net.output(net.add("LayerNormalization", x, *names, out="y", axis=-1, epsilon=1e-5))
    codes = np.rint(offset / 0.03).astype(np.int8)
    held = [stored.stored(name, codes, 0.03, np.int8(0)) for name in ("gain", "offset")]
    x = stored.quantize(stored.input("image", ["n", 3, 8, 8]), 0.04, np.uint8(128))
    stored.output(stored.add("LayerNormalization", x, *held, out="y", axis=-1, epsilon=1e-5))
    found = bench(tmp_path, net.model(), stored.model())
    change = Change(biases=frozenset({found.layer("y")}))
    assert found.simulated_db(Change()) < 10 and found.simulated_db(change) > 25
    assert found.edited_db(change, plain=True) == pytest.approx(found.simulated_db(change), abs=0.1)


def test_float_weights_between_codes_stay_float(tmp_path: Path) -> None:
    """onnxruntime rounds float weights and bias of such a layer to codes by itself, if nothing keeps it from that."""
    for bias in (True, False):
        net = Net()
        x = net.input("image", ["n", 3, 8, 8])
        for i, channels in enumerate((3, 6)):
            own = random(9, 6) if bias else None
            x = net.conv(x, random(i, 6, channels, 3, 3, scale=0.3), own, out=f"conv{i}", pads=[1, 1, 1, 1])
        net.output(x)
        model = static(net.model(), {"image": images()}, tmp_path, weight_type=QuantType.QInt8)
        found = bench(tmp_path, net.model(), model)
        layers = dict.fromkeys(range(len(found.facts.layers)), "float")
        change = Change(weights=layers, biases=frozenset(layers))
        assert found.edited_db(change) == pytest.approx(found.simulated_db(change), abs=0.1)


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_weights_of_dynamic_products(tmp_path: Path, kind: QuantType) -> None:
    data = {"ids": np.random.default_rng(0).integers(0, 20, (32, 6))}
    found = bench(tmp_path, token_net(), dynamic(token_net(), tmp_path, weight_type=kind), data)
    assert found.models.quantized.format == "dynamic"
    layers = [k for k, op in enumerate(found.case.record.operators) if op.op_type == "MatMul"]
    exact = float_outputs(found)

    def noise(outputs: Array) -> float:
        return float(((outputs - exact) ** 2).sum())

    now = noise(np.concatenate([x[0] for x in found.outputs(found.models.quantized.model)]))
    noises = {form: noise(edited_outputs(found, Change(weights=dict.fromkeys(layers, form)))) for form in FORMS}
    assert noises["float"] < 0.8 * now
    assert noises["float"] < noises["per-channel"] < 1.05 * now
    assert noises["best-range"] < 1.2 * now


def test_packed_weights_can_be_unpacked(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((32, 6)).astype(np.float32)
    bias = rng.standard_normal(6).astype(np.float32)
    net = Net(21)
    net.const("w", weight)
    net.const("b", bias)
    net.output(net.add("Add", net.add("MatMul", net.input("x", ["n", 32]), "w", out="m"), "b", out="y"))
    blocks = weight.T.reshape(6, 2, 16)
    scale = np.abs(blocks).max(axis=2) / 7
    codes = (np.clip(np.rint(blocks / scale[..., None]), -8, 7) + 8).astype(np.uint8)
    packed = Net(21)
    packed.const("w_packed", codes[..., ::2] | (codes[..., 1::2] << 4))
    packed.const("w_scale", scale.astype(np.float32).ravel())
    packed.const("b", bias)
    inputs = [packed.input("x", ["n", 32]), "w_packed", "w_scale"]
    x = packed.add("MatMulNBits", *inputs, out="m", domain=MICROSOFT, K=32, N=6, bits=4, block_size=16)
    packed.output(packed.add("Add", x, "b", out="y"))
    found = bench(tmp_path, net.model(), packed.model(), {"x": rng.standard_normal((32, 32)).astype(np.float32)})
    layer = found.layer("m")
    assert np.allclose(edited_outputs(found, Change(weights={layer: "float"})), float_outputs(found), atol=1e-4)
    eight = edited_outputs(found, Change(weights={layer: "eight-bit"})) - float_outputs(found)
    before = np.concatenate([x[0] for x in found.outputs(found.models.quantized.model)]) - float_outputs(found)
    assert (eight**2).sum() < 0.05 * (before**2).sum()


def is_rounded(found: Bench, model: onnx.ModelProto, output: str) -> bool:
    """Whether the installed onnxruntime makes a product one that rounds its input to 8 bits: versions differ."""
    return executed_types(replace(found.models.quantized, model=model), 1)[output] == "MatMulNBits"


def test_float_input_beside_coded_weights_is_said_to_be_rounded_where_the_runtime_does(tmp_path: Path) -> None:
    found = bench(tmp_path, conv_net(), static(conv_net(), {"image": images()}, tmp_path))
    inputs = Change({found.tensor("flat"): None, found.tensor("pool"): None})
    edited = found.edit(inputs)
    rounded = is_rounded(found, edited.model, "scores")
    assert [words.split(":")[0] for words in edited.unedited] == ["the float input of scores"] * rounded
    layer = {found.layer("scores"): "float"}
    assert found.edit(inputs.join(Change(weights=layer))).unedited == ()


def test_16_bit_input_beside_coded_weights_is_said_to_be_rounded_where_the_runtime_does(tmp_path: Path) -> None:
    recipe = Recipe(weights="float", per_channel=True)
    found = bench(tmp_path, conv_net(), qdq(conv_net(), {"image": images()}, recipe))
    change = found.change("sixteen-bit")
    edited = found.edit(change)
    rounded = is_rounded(found, edited.model, "scores_raw")
    assert [words.split(":")[0] for words in edited.unedited] == ["the 16-bit input of scores"] * rounded
    as_written, as_executed = (found.edited_db(change, plain=plain) for plain in (True, False))
    assert agree(as_written, found.simulated_db(change))
    assert (as_executed < as_written - 1) == rounded
