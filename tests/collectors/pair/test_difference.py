"""What an operator does otherwise than its twin is read in the files, and named first."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, images, random, static
from builders.trial_bench import open_models
from onnx import helper, numpy_helper

import quantmedic
from quantmedic.collectors.pair.difference import difference_of

pytestmark = pytest.mark.thorough


def network() -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    x = net.add("Pad", x, net.const("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1])), out="padded", mode="reflect")
    x = net.conv(x, random(1, 8, 3, 3, 3, scale=0.3), random(2, 8, scale=0.1), out="first")
    x = net.add("LeakyRelu", x, out="leaky", alpha=0.3)
    x = net.add("Mul", x, net.const("factor", np.float32(0.5)), out="scaled")
    x = net.add("Sub", net.const("one", np.float32(1.0)), x, out="rest")
    x = net.add("Reshape", x, net.const("groups", np.array([-1, 2, 4, 64])), out="grouped")
    x = net.add("Transpose", x, out="turned", perm=[0, 2, 1, 3])
    x = net.add("Reshape", x, net.const("flat", np.array([-1, 512])), out="flattened")
    net.output(net.add("MatMul", x, net.const("last", random(3, 512, 5, scale=0.1)), out="scores"))
    return net.model()


def node(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(each for each in model.graph.node if each.op_type == op_type)


def lose_slope(model: onnx.ModelProto) -> None:
    del node(model, "LeakyRelu").attribute[:]


def exchange_operands(model: onnx.ModelProto) -> None:
    node(model, "Sub").input[:] = reversed(node(model, "Sub").input)


def pad_with_zeros(model: onnx.ModelProto) -> None:
    pad = node(model, "Pad")
    del pad.attribute[:]
    pad.attribute.append(helper.make_attribute("mode", "constant"))


def set_constant(name: str, value: object) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        (found,) = (each for each in model.graph.initializer if each.name == name)
        found.CopyFrom(numpy_helper.from_array(np.asarray(value, numpy_helper.to_array(found).dtype), name))

    return change


def altered(folder: Path, change: Callable[[onnx.ModelProto], None]) -> tuple[Path, Path]:
    """The float network, and one that was quantized after a change."""
    model, other = network(), network()
    change(other)
    paths = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, str(paths[0]))
    onnx.save(static(other, {"image": images(64)}, folder), str(paths[1]))
    return paths


def differences(paths: tuple[Path, Path]) -> list[str]:
    models = open_models(*paths)
    pairs = [(op, models.match.operators.get(op.index)) for op in models.quantized.operators]
    found = (difference_of(op, twin, models.quantized, models.float_graph) for op, twin in pairs if twin is not None)
    return [text for text in found if text is not None]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(lambda model: None, [], id="nothing"),
        pytest.param(lose_slope, ["alpha 0.3 → 0.01"], id="an attribute that fell back to its default"),
        pytest.param(exchange_operands, ["operands exchanged"], id="what is subtracted, and from what"),
        pytest.param(pad_with_zeros, ["mode reflect → constant"], id="another mode"),
        pytest.param(set_constant("groups", [-1, 4, 2, 64]), ["input 2 [-1, 2, 4, 64] → [-1, 4, 2, 64]"], id="order"),
        pytest.param(set_constant("flat", [0, 512]), [], id="the same shape written otherwise"),
    ],
)
def test_settings_that_are_not_the_float_ones_are_told(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], told: list[str]
) -> None:
    assert differences(altered(tmp_path, change)) == told


def test_a_constant_of_another_value_is_told_and_its_rounding_is_not(tmp_path: Path) -> None:
    (told,) = differences(altered(tmp_path, set_constant("factor", 0.25)))
    assert told.startswith("input 2 0.5 → 0.25")


def test_it_leads_and_a_setting_that_changes_nothing_is_no_cause(tmp_path: Path) -> None:
    data: dict[str, Any] = {"representative": {"image": images(64)}, "validation": {"image": images(96, 7)}}
    found = quantmedic.diagnose(*altered(tmp_path, lose_slope), **data)
    first = found.causes[0]
    assert (first.cause, first.severity) == ("operator-departs", "high") and "S059" in first.rules
    assert [layer.float_name for layer in first.layers] == ["leaky"] and "alpha 0.3 → 0.01" in first.message
    sound = quantmedic.diagnose(*altered(tmp_path, lambda model: None), **data)
    assert not [cause for cause in sound.causes if "S059" in cause.rules]
