"""Noise that no quantizer makes is found where it begins, by feeding every operator with deployed values."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.litert_models import Twins, channels_last, quantized
from builders.onnx_models import Net, random, save_pair, static
from onnx import helper, numpy_helper

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.formulas.noise_sources import simulated_shares

pytestmark = pytest.mark.thorough

Change = Callable[[onnx.ModelProto], None]
DATA = random(5, 96, 3, 8, 8)


def slopes() -> onnx.ModelProto:
    """Three convolutions with a slope below zero behind each."""
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    for k, (inside, outside) in enumerate(((3, 8), (8, 8), (8, 8))):
        x = net.conv(x, random(k, outside, inside, 3, 3, scale=0.3), out=f"conv{k}", pads=[1, 1, 1, 1])
        x = net.add("LeakyRelu", x, out=f"slope{k}", alpha=0.1)
    x = net.add("GlobalAveragePool", x, out="pooled")
    x = net.add("Flatten", x, out="flat")
    net.output(net.add("MatMul", x, net.const("w", random(9, 8, 5)), out="logits"))
    return net.model()


def diagnosed(folder: Path, change: Change, **options: object) -> Diagnosis:
    """The network quantized, and the deployed file changed."""
    deployed = static(slopes(), {"image": DATA}, folder, **options)
    change(deployed)
    paths = save_pair(folder, slopes(), deployed)
    return quantmedic.diagnose(*paths, representative=DATA[:48], validation=DATA[48:])


def lose_the_slope(model: onnx.ModelProto) -> None:
    """The second slope gets onnx's default of 0.01 times 60."""
    node = [n for n in model.graph.node if n.op_type == "LeakyRelu"][1]
    node.attribute[0].f = 0.6


def test_a_changed_attribute_is_found_at_its_operator(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lose_the_slope)
    budget, cause = diagnosis.loss_budget, diagnosis.causes[0]
    assert budget is not None and budget.unsimulated > 0.9
    assert all(line.share < 0.1 for line in budget.lines if line.source != "kernel"), "no quantizer is blamed"
    first = budget.lines[0]
    assert (first.source, first.places) == ("kernel", ("slope1",))
    assert first.share > 0.9 and first.causes == ("operator-departs",)
    assert cause.cause == "operator-departs" and cause.rules == ("S059", "R005") and cause.severity == "high"
    assert cause.subjects == (first.layers[0],)
    assert sum(line.share for line in budget.lines) + budget.rest + budget.unplaced[0] == pytest.approx(1.0)
    assert budget.unplaced[0] < 0.1


def test_an_attribute_that_all_operators_lost_is_one_cause(tmp_path: Path) -> None:
    """No single one of them makes most of the noise."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "LeakyRelu":
                del node.attribute[:]

    cause = diagnosed(tmp_path, change).causes[0]
    assert cause.cause == "operator-departs" and len(cause.subjects) >= 2
    assert [remedy.id for remedy in cause.remedies] == ["compare-files"]


def test_two_departures_are_told_apart(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        lose_the_slope(model)
        [n for n in model.graph.node if n.op_type == "LeakyRelu"][2].attribute[0].f = 0.3

    budget = diagnosed(tmp_path, change).loss_budget
    assert budget is not None
    assert {line.places for line in budget.lines if line.source == "kernel"} == {("slope1",), ("slope2",)}


def test_an_output_that_is_read_on_another_grid_departs_there(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        last = next(n for n in model.graph.node if "logits" in n.output)
        assert last.op_type == "DequantizeLinear"
        model.graph.initializer.append(helper.make_tensor("other", onnx.TensorProto.FLOAT, [], [0.5]))
        last.input[1] = "other"

    budget = diagnosed(tmp_path, change).loss_budget
    assert budget is not None
    assert (budget.lines[0].source, budget.lines[0].places) == ("kernel", ("logits",))


def test_of_two_quantizers_in_a_row_the_last_one_counts(tmp_path: Path) -> None:
    """Codes are decoded and rounded once more to steps eight times as large, before anything reads them."""

    def change(model: onnx.ModelProto) -> None:
        k, first = next(
            (k, n) for k, n in enumerate(model.graph.node) if n.op_type == "DequantizeLinear" and "slope1" in n.input[0]
        )
        scale = next(t for t in model.graph.initializer if t.name == first.input[1])
        coarse = float(numpy_helper.to_array(scale)) * 8
        model.graph.initializer.append(helper.make_tensor("coarse", onnx.TensorProto.FLOAT, [], [coarse]))
        grid, last = ["coarse", first.input[2]], first.output[0]
        first.output[0] = "once"
        model.graph.node.insert(k + 1, helper.make_node("QuantizeLinear", ["once", *grid], ["twice"]))
        model.graph.node.insert(k + 2, helper.make_node("DequantizeLinear", ["twice", *grid], [last]))

    diagnosis = diagnosed(tmp_path, change)
    budget = diagnosis.loss_budget
    assert budget is not None and budget.unsimulated < 0.1
    assert (budget.lines[0].source, budget.lines[0].places) == ("activation", ("slope1",))


def test_an_activation_that_a_litert_converter_dropped_is_found(tmp_path: Path) -> None:
    """A ReLU was lost on the way; the grid has room for what is below zero."""

    def content(act: str) -> bytes:
        twins = Twins()
        x = twins.input("image", 3, 8, 8)
        x = twins.conv(x, random(0, 8, 3, 3, 3), out="first", act="relu")
        x = twins.conv(x, random(1, 8, 8, 3, 3, scale=0.4), out="second", act=act)
        x = twins.conv(x, random(2, 8, 8, 3, 3, scale=0.2), out="third", act="relu")
        twins.output(twins.mean(x, out="mean"))
        return twins.litert()

    data = channels_last(DATA)
    paths = tmp_path / "float.tflite", tmp_path / "int8.tflite"
    paths[0].write_bytes(content("relu"))
    paths[1].write_bytes(quantized(content(""), "int8", {"image": data[:48]}))
    diagnosis = quantmedic.diagnose(*paths, representative=data[:48], validation=data[48:])
    assert diagnosis.loss_budget is not None
    first = diagnosis.loss_budget.lines[0]
    assert (first.source, first.places) == ("kernel", ("second",)) and first.share > 0.9
    assert diagnosis.causes[0].cause == "relu-lost"


@pytest.mark.nightly
def test_what_quantizers_make_is_no_departure(tmp_path: Path) -> None:
    """A sound file; and one with weights damaged, whose stored form the simulated operator has too."""

    def damage(model: onnx.ModelProto) -> None:
        codes = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 4)
        codes.raw_data = bytes(reversed(codes.raw_data))

    for change in (lambda model: None, damage):
        budget = diagnosed(tmp_path, change).loss_budget
        assert budget is not None
        assert not [line for line in budget.lines if line.source == "kernel"]


def test_the_share_that_no_quantizer_makes_is_never_below_nought() -> None:
    found = 1.0 - simulated_shares(np.array([0.5, 2.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 0.0]))
    np.testing.assert_array_equal(found, [0.5, 0.0, 0.0, 0.0])
