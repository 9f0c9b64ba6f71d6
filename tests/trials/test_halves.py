"""Layers whose outputs cancel: they stay in float together, or it helps nothing."""

from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from builders.onnx_models import Net, images, random, save_pair, static

import quantmedic
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Targets, group_float
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.load import load_rules

pytestmark = pytest.mark.thorough

BASE = load_rules([Path(str(files("quantmedic.rules")))])


def halves(cancels: bool = True) -> onnx.ModelProto:
    """A layer in two halves whose outputs are subtracted: of one large pattern, or each of its own."""
    net = Net()
    small, large, own = random(1, 4, 3, 3, 3), random(2, 4, 3, 3, 3, scale=200.0), random(3, 4, 3, 3, 3, scale=200.0)
    x = net.input("x", ("n", 3, 8, 8))
    first = net.conv(x, small + large, out="half")
    second = net.conv(x, large if cancels else own, out="other")
    left = net.add("Sub", first, second, out="difference")
    net.output(net.conv(net.add("Relu", left, out="act"), random(4, 5, 4, 3, 3), out="y"))
    return net.model()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, CaseFacts]:
    folder, model, data = tmp_path_factory.mktemp("halves"), halves(), images(24)
    case = quantmedic.collect(*save_pair(folder, model, static(model, {"x": data}, folder)), validation=data)
    return case, derive(case, BASE)


def test_each_half_brings_the_other_and_what_takes_it_off(measured: tuple[Case, CaseFacts]) -> None:
    case, facts = measured
    found = {layer.name: set(layer.halves) for layer in facts.layers if layer.halves}
    assert found["half"] == {"difference", "other"}
    assert found["other"] == {"difference", "half"}
    assert "y" not in found and "act" not in found
    place = next(k for k, layer in enumerate(facts.layers) if layer.name == "half")
    assert {"difference", "other"} <= set(facts.layers[place].group), "all of these stay in float with it"
    change = group_float(case, facts, Targets((), (place,)))
    assert {case.record.operators[k].name for k in change.weights} == {"half", "other"}, "one in float is both"


def test_layers_that_do_not_cancel_stay_apart(tmp_path: Path) -> None:
    model, data = halves(cancels=False), images(24)
    case = quantmedic.collect(*save_pair(tmp_path, model, static(model, {"x": data}, tmp_path)), validation=data)
    assert not any(layer.halves for layer in derive(case, BASE).layers)
