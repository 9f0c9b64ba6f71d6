"""What the graph around a tensor makes of it, read from real models."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, Recipe, qdq, random, save_pair, static
from builders.tiers import others_nightly

import quantmedic
from quantmedic.engine.case.records import Case, TensorRecord
from quantmedic.engine.formulas.derive import derive

X = random(1, 6, 4, 8)
BASE = quantmedic.load_rulebase()
INFINITY = float("inf")


def collected(folder: Path, model: onnx.ModelProto, quantized: onnx.ModelProto | None = None) -> Case:
    quantized = quantized or qdq(model, {"x": X})
    return quantmedic.collect(*save_pair(folder, model, quantized), validation={"x": X}, threads=1)


def record(case: Case, name: str) -> TensorRecord:
    return next(tensor for tensor in case.record.tensors if tensor.float_name == name)


def net_of(build: Any) -> onnx.ModelProto:
    net = Net()
    net.const("weight", random(2, 8, 8, scale=0.4))
    h = net.add("MatMul", net.input("x", ["n", 4, 8]), "weight", out="h")
    net.const("last", random(3, 8, 8))
    net.output(net.add("MatMul", build(net, h), "last", out="y"))
    return net.model()


def swish(net: Net, h: str) -> str:
    return net.add("Mul", h, net.add("Sigmoid", h, out="gate"), out="product")


def turned_swish(net: Net, h: str) -> str:
    return net.add("Mul", net.add("Sigmoid", h, out="gate"), h, out="product")


def hard_swish(net: Net, h: str) -> str:
    moved = net.add("Add", h, net.const("three", 3.0), out="moved")
    gate = net.add("Clip", moved, net.const("zero", 0.0), net.const("six", 6.0), out="gate")
    return net.add("Mul", h, gate, out="product")


def gelu(net: Net, h: str) -> str:
    root = net.add("Div", h, net.const("root", 2**0.5), out="root_of")
    gate = net.add("Add", net.add("Erf", root, out="erf"), net.const("one", 1.0), out="gate")
    return net.add("Mul", net.add("Mul", h, net.const("half", 0.5), out="halved"), gate, out="product")


def square(net: Net, h: str) -> str:
    return net.add("Mul", h, h, out="product")


def scaled(net: Net, h: str) -> str:
    return net.add("Mul", h, net.add("Add", h, net.const("one", 1.0), out="gate"), out="product")


def strangers(net: Net, h: str) -> str:
    net.const("other.weight", random(4, 8, 8))
    other = net.add("MatMul", h, "other.weight", out="other")
    return net.add("Mul", h, net.add("Sigmoid", other, out="gate"), out="product")


@pytest.mark.parametrize("build", others_nightly([swish, turned_swish, hard_swish, gelu]))
def test_products_with_a_gate_are_seen(tmp_path, build):
    case = collected(tmp_path, net_of(build))
    product = record(case, "product")
    assert product.pattern == "swish"
    assert case.record.tensors[product.gate.source].float_name == "h"
    assert {"gate"} <= set(product.gate.names)
    gate = max(product.gate.factors, key=len)
    assert gate[-1].grid is not None
    assert [t.float_name for t in case.record.tensors if t.pattern == "swish"] == ["product"]


@pytest.mark.thorough
def test_other_products_are_none(tmp_path):
    for build in (square, scaled, strangers):
        product = record(collected(tmp_path, net_of(build)), "product")
        assert (product.pattern, product.gate) == ("none", None), build.__name__


def test_noise_inside_a_swish_is_that_of_the_quantized_model(tmp_path):
    """With everything else in float, the noise found in the product is the noise that was told."""
    net = Net()
    swish(net, net.input("x", ["n", 4, 8]))
    net.output("product")
    model = net.model()
    facts = derive(collected(tmp_path, model, qdq(model, {"x": X}, Recipe(skip=("product",)))), BASE)
    (product,) = (t for t in facts.tensors if t.float_name == "product")
    assert product.quantizer.scale is None
    assert product.inner_sqnr_db == pytest.approx(product.data.accumulated.sqnr_db, abs=1.0)
    assert product.inner_share == pytest.approx(1.0, abs=0.35)


@pytest.mark.parametrize("moved", [False, True], ids=["at once", "behind a reshape"])
def test_inputs_of_a_softmax_are_seen(tmp_path, moved):
    def build(net: Net, h: str) -> str:
        h = net.add("Mul", h, net.const("half", 0.5), out="scores")
        if moved:
            h = net.add("Reshape", h, net.const("shape", np.array([-1, 4, 8], np.int64)), out="moved")
        return net.add("Softmax", h, out="shares", axis=-1)

    case = collected(tmp_path, net_of(build))
    assert record(case, "scores").pattern == "softmax-input"
    assert record(case, "shares").pattern == "none"


def bounded(low: float | None, high: float | None, opset: int = 17) -> onnx.ModelProto:
    net = Net(opset)
    net.const("weight", random(2, 8, 8, scale=2.0))
    h = net.add("MatMul", net.input("x", ["n", 4, 8]), "weight", out="h")
    if opset < 11:
        ends = {name: float(value) for name, value in (("min", low), ("max", high)) if value is not None}
        h = net.add("Clip", h, out="clip", **ends)
    else:
        names = ["" if v is None else net.const(n, v) for n, v in (("low", low), ("high", high))]
        h = net.add("Clip", h, *names, out="clip")
    net.const("last", random(3, 8, 8))
    net.output(net.add("MatMul", h, "last", out="y"))
    return net.model()


@pytest.mark.nightly
def test_bounds_of_a_clip_are_read(tmp_path):
    """Older operator sets hold them as attributes; without an upper one nothing is clipped."""
    found = {}
    ends = {(0, 6): (6, False), (-1, 2): (2, False), (None, 6): (6, False), (0, None): (None, None)}
    for opset, (low, high) in (
        (17, (0, 6)),
        (17, (-1, 2)),
        (10, (0, 6)),
        (10, (None, 6)),
        (17, (0, None)),
        (10, (0, None)),
    ):
        clip = record(collected(tmp_path, bounded(low, high, opset)), "clip")
        found[opset, low, high] = (clip.clip_high, clip.clip_lost)
    assert found == {(opset, *bounds): ends[tuple(bounds)] for opset, *bounds in found}


@pytest.mark.parametrize("reach, lost", [(6.0, False), (6.1, False), (12.0, True)])
def test_a_quantizer_may_stand_for_the_clip(tmp_path, reach, lost):
    """The quantized model holds no Clip; the range of its quantizer ends at the bound, or does not."""
    model = bounded(0, 6)
    plain = bounded(0, 6)
    (clip,) = (node for node in plain.graph.node if node.op_type == "Clip")
    clip.op_type = "Relu"
    del clip.input[1:]
    options = {"TensorQuantOverrides": {"clip": [{"rmin": np.float32(0), "rmax": np.float32(reach)}]}}
    quantized = static(plain, {"x": X}, tmp_path, extra_options=options)
    assert record(collected(tmp_path, model, quantized), "clip").clip_lost is lost
