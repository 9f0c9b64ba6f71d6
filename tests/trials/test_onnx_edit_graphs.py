"""Edits of small models of many producers: folded activations, old opsets, packed and dynamic weights, broken grids."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    MICROSOFT,
    Net,
    Recipe,
    attention_net,
    branch_net,
    conv_net,
    images,
    pyramid_net,
    qdq,
    random,
    residual_net,
    static,
    without_relu,
)
from builders.properties import examples
from builders.trial_bench import Bench, bench, edited_outputs, everything_float, float_outputs
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

from quantmedic.collectors.from_onnx.simulated import MIN_OPSET
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.engine.formulas.simulate import Grid
from quantmedic.trials.from_onnx.onnx_remedies import edit, left_integer

pytestmark = pytest.mark.thorough

FORMS: tuple[WeightForm, ...] = ("float", "per-channel", "best-range", "eight-bit")


def clipped_net(opset: int = 17) -> onnx.ModelProto:
    """Conv, Clip from 0 to 0.5, Conv."""
    net = Net(opset)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3, scale=0.3), random(2, 4), out="conv1")
    if opset < 11:
        x = net.add("Clip", x, out="clip", min=0.0, max=0.5)
    else:
        x = net.add("Clip", x, net.const("low", 0.0), net.const("high", 0.5), out="clip")
    net.output(net.conv(x, random(3, 2, 4, 1, 1), out="scores"))
    return net.model()


def test_relu_left_to_a_quantizer_comes_back_with_its_removal(tmp_path: Path) -> None:
    model = static(conv_net(), {"image": images()}, tmp_path, activation_type=QuantType.QUInt8)
    assert "Relu" not in {node.op_type for node in model.graph.node}
    found = bench(tmp_path, conv_net(), model)
    relu = found.tensor("relu1")
    edited = found.edit(Change({relu: None}))
    assert [node.op_type for node in edited.model.graph.node].count("Relu") == 1
    assert found.edited_db(Change({relu: None})) == pytest.approx(found.simulated_db(Change({relu: None})), abs=1.0)
    assert np.allclose(edited_outputs(found, everything_float(found)), float_outputs(found), atol=1e-5)
    kept = bench(tmp_path, conv_net(), qdq(conv_net(), {"image": images()}))
    edited = kept.edit(Change({kept.tensor("relu1"): None}))
    assert [node.op_type for node in edited.model.graph.node].count("Relu") == 2, "not doubled where it was kept"


@pytest.mark.parametrize("opset", [10, 17])
def test_clip_left_to_a_quantizer_comes_back_where_the_grid_reaches_beyond(tmp_path: Path, opset: int) -> None:
    model = qdq(clipped_net(opset), {"image": images()})
    kept = [node for node in model.graph.node if node.op_type != "Clip"]
    source = next(node for node in model.graph.node if node.op_type == "Clip").input[0]
    for node in kept:
        node.input[:] = [source if name == "clip" else name for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    found = bench(tmp_path, clipped_net(opset), model)
    place = found.tensor("clip")
    inside, beyond = Grid(0.0, 0.5, 0.5 / 255), Grid(-1.0, 1.0, 2.0 / 255)
    for grid, clips in ((inside, 0), (beyond, 1), (None, 1)):
        change = Change({place: grid})
        assert [n.op_type for n in found.edit(change).model.graph.node].count("Clip") == clips
    assert np.allclose(edited_outputs(found, everything_float(found)), float_outputs(found), atol=1e-5)


def test_what_only_moves_values_keeps_the_grid_of_its_input(tmp_path: Path) -> None:
    model = static(pyramid_net(), {"image": images()}, tmp_path, activation_type=QuantType.QUInt8)
    found = bench(tmp_path, pyramid_net(), model)
    edited = found.edit(Change({found.tensor("relu"): Grid(0.0, 2.0, 2.0 / 255)})).model
    scales = {t.name: numpy_helper.to_array(t) for t in edited.graph.initializer}
    steps = {n.input[0]: float(scales[n.input[1]]) for n in edited.graph.node if n.op_type == "QuantizeLinear"}
    for name in ("pool3", "pool5", "pool7"):
        assert steps[name] == pytest.approx(2.0 / 255)
    own = found.edit(Change({found.tensor("relu"): None})).model
    names = {n.input[0] for n in own.graph.node if n.op_type == "QuantizeLinear"}
    assert {"pool3", "pool5", "pool7"} <= names


def test_shared_scale_is_copied_before_it_is_changed(tmp_path: Path) -> None:
    """onnxruntime lets Flatten share the scale of what it reads."""
    model = static(conv_net(), {"image": images()}, tmp_path)
    found = bench(tmp_path, conv_net(), model)
    edited = found.edit(Change({found.tensor("flat"): Grid(0.0, 1.0, 1 / 255)})).model
    scales = {t.name: numpy_helper.to_array(t) for t in edited.graph.initializer}
    steps = {n.input[0]: float(scales[n.input[1]]) for n in edited.graph.node if n.op_type == "QuantizeLinear"}
    assert steps["flat"] == pytest.approx(1 / 255)
    assert steps["pool"] != pytest.approx(1 / 255)


def test_codes_that_are_read_themselves_or_handed_out_stay(tmp_path: Path) -> None:
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3, scale=0.3), out="conv1")
    net.output(net.conv(x, random(3, 2, 4, 1, 1), out="scores"))
    model = qdq(net.model(), {"image": images()})
    handed_out = onnx.ModelProto.FromString(model.SerializeToString())
    handed_out.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("scores_codes", TensorProto.UINT8, None))
    found = bench(tmp_path, net.model(), handed_out)
    with pytest.raises(ModelError, match="cannot be carried out"):
        edit(found.models, found.case, Change({found.tensor("scores"): None}))
    edited = edit(found.models, found.case, Change({found.tensor("scores"): None, found.tensor("conv1"): None}))
    assert "hands out its codes" in edited.unedited[0]
    node = next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == "scores_codes")
    node.CopyFrom(onnx.helper.make_node("Cast", ["scores_codes"], ["scores"], to=TensorProto.FLOAT, name="cast"))
    found = bench(tmp_path, net.model(), model)
    with pytest.raises(ModelError, match="cannot be carried out") as raised:
        edit(found.models, found.case, Change({found.tensor("scores"): Grid(0.0, 1.0, 1 / 255)}))
    assert "Cast cast reads its codes" in str(raised.value)


def test_sixteen_bit_codes_are_written_for_the_opset(tmp_path: Path) -> None:
    for opset, domain in [(13, MICROSOFT), (21, "")]:
        found = bench(tmp_path, conv_net(opset), qdq(conv_net(opset), {"image": images()}))
        change = found.change("sixteen-bit")
        domains = {n.domain for n in found.edit(change).model.graph.node if n.op_type == "QuantizeLinear"}
        assert domains == {domain}
        assert found.edited_db(change) == pytest.approx(found.simulated_db(change), abs=1.0)


PRODUCERS: dict[str, Callable[[Path], tuple[onnx.ModelProto, onnx.ModelProto]]] = {
    "onnxruntime": lambda folder: (conv_net(), static(conv_net(), {"image": images()}, folder)),
    "float weights behind quantizers": lambda folder: (
        conv_net(),
        qdq(conv_net(), {"image": images()}, Recipe(weights="float", per_channel=True)),
    ),
    "no zero points": lambda folder: (
        conv_net(),
        qdq(conv_net(), {"image": np.abs(images())}, Recipe(zero_point=False, skip=("image", "scores"))),
    ),
    "microsoft": lambda folder: (conv_net(), qdq(conv_net(), {"image": images()}, Recipe(domain=MICROSOFT))),
    "opset 11": lambda folder: (conv_net(11), qdq(conv_net(11), {"image": images()})),
    "folded relu": lambda folder: (conv_net(), without_relu(qdq(conv_net(), {"image": images()}))),
    "sums": lambda folder: (
        residual_net(),
        static(residual_net(), {"image": images()}, folder, quant_format=QuantFormat.QOperator, per_channel=True),
    ),
    "branches": lambda folder: (
        branch_net(),
        static(branch_net(), {"image": images()}, folder, quant_format=QuantFormat.QOperator),
    ),
}


@pytest.mark.nightly
def test_models_of_all_producers_can_be_edited(benches: dict[str, Bench]) -> None:
    for name in PRODUCERS:
        found = benches[name]
        for kind in ("recalibrate", "sixteen-bit", "float-tensors", "per-channel-weights", "best-weight-range"):
            change = found.change(kind)
            edited = found.edit(change)
            assert all("onnxruntime rounds it" in words for words in edited.unedited), name
            assert not edited.unedited or kind in ("float-tensors", "sixteen-bit")
            if found.models.quantized.opset >= MIN_OPSET:
                # As it is written where the runtime, as the edit says, rounds an input that the change made precise.
                real = found.edited_db(change, plain=kind == "float-tensors" or bool(edited.unedited))
                assert real == pytest.approx(found.simulated_db(change), abs=1.0), (name, kind)
            if kind != "sixteen-bit":
                assert left_integer(found.models, found.case, edited.model, change) == (), (name, kind)
        assert np.allclose(edited_outputs(found, everything_float(found)), float_outputs(found), atol=1e-4), name


@examples(25)
@given(data=st.data())
def test_random_changes_give_models_that_run(benches: dict[str, Bench], data: st.DataObject) -> None:
    found = data.draw(st.sampled_from(list(benches.values())))
    # onnxruntime's integer pooling refuses steps that differ by more than 256 times from input to output.
    ends = st.floats(1.0, 100.0)
    grid = st.none() | st.builds(
        lambda low, high, bits: Grid.over(-low, high, bits, symmetric=False), ends, ends, st.sampled_from([8, 16])
    )
    tensors = [i for i, t in enumerate(found.case.record.tensors) if t.quantizer.low is not None]
    layers = [k for k, layer in enumerate(found.facts.layers) if layer.weight.quantizer.bits is not None]
    change = Change(
        data.draw(st.dictionaries(st.sampled_from(tensors), grid, min_size=1)),
        data.draw(st.dictionaries(st.sampled_from(layers), st.sampled_from(FORMS))),
        data.draw(st.frozensets(st.sampled_from(layers))),
    )
    before = found.models.quantized.model.SerializeToString()
    model = found.edit(change).model
    assert all(np.isfinite(x).all() for arrays in found.outputs(model) for x in arrays)
    assert found.models.quantized.model.SerializeToString() == before


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    found = {}
    for name, make in PRODUCERS.items():
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        found[name] = bench(folder, *make(folder))
    folder = tmp_path_factory.mktemp("attention")
    data = {"x": random(3, 32, 6, 8)}
    found["attention"] = bench(folder, attention_net(), static(attention_net(), data, folder), data)
    return found
