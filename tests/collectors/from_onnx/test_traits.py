"""What nodes and types say without running a model, and what integer kernels add when it runs."""

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, Recipe, conv_net, deep_net, images, qdq, random, run, save_pair, static
from onnx import TensorProto

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.traits import (
    half_tensors,
    required_opset,
    toolchain_marks,
)
from quantmedic.collectors.measure.models import Reading
from quantmedic.collectors.pair.patterns import squared_tensors
from quantmedic.engine.formulas.derive import derive

X = images(20)
BASE = quantmedic.load_rulebase()


def fired(paths, x) -> set[str]:
    diagnosis = quantmedic.diagnose(*paths, validation=x, threads=1, rules=BASE)
    return {rule for cause in diagnosis.causes for rule in cause.rules}


def graph_of(model: onnx.ModelProto, path):
    onnx.save(model, str(path))
    return parse(path, model)


def test_required_opset() -> None:
    needed = {
        10: Recipe(),
        13: Recipe(per_channel=True),
        21: Recipe(activation=np.uint16, opset=21),
        None: Recipe(activation=np.uint16, domain="com.microsoft"),
    }
    assert [required_opset(qdq(conv_net(), {"image": X}, recipe)) for recipe in needed.values()] == list(needed)
    assert required_opset(conv_net()) is None


@pytest.mark.thorough
def test_an_opset_that_runs_and_is_too_old(tmp_path) -> None:
    """Without the attribute that came with opset 13, onnxruntime takes scales per channel at opset 11."""
    net = Net(11)
    net.const("w", random(1, 8, 8))
    net.output(net.add("MatMul", net.input("x", ["n", 8]), "w", out="y"))
    x = random(2, 20, 8)
    model = qdq(net.model(), {"x": x}, Recipe(per_channel=True, opset=11))
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            del node.attribute[:]
    assert "R004" in fired(save_pair(tmp_path, net.model(), model), x)
    assert "R004" not in fired(save_pair(tmp_path, net.model(), qdq(net.model(), {"x": x})), x)


@pytest.mark.parametrize("recipe", [Recipe(per_channel=True, opset=12), Recipe(activation=np.uint16, opset=17)])
def test_a_refused_model_names_the_opset(recipe: Recipe, tmp_path) -> None:
    opset = recipe.opset or 0
    model = qdq(conv_net(opset), {"image": X}, recipe)
    paths = save_pair(tmp_path, conv_net(opset), model)
    case = quantmedic.collect(*paths, validation=X, threads=1)
    assert case.record.model.failure.refused
    assert any(f"need opset {13 if recipe.per_channel else 21}" in notice for notice in case.record.notices)


def half_net(scale: float) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A MatMul whose result is squared, in float32 and in float16."""
    nets = []
    for kind, number in ((TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)):
        net = Net()
        x = net.input("x", ["n", 8])
        if kind == TensorProto.FLOAT16:
            x = net.add("Cast", x, out="x_half", to=kind)
        net.const("w", (random(1, 8, 8) * scale).astype(number))
        x = net.add("MatMul", x, "w", out="product")
        net.const("two", number(2))
        x = net.add("Pow", x, "two", out="square")
        net.const("v", (random(2, 8, 3) * 1e-3).astype(number))
        x = net.add("MatMul", x, "v", out="small")
        net.output(net.add("Cast", x, out="y", to=TensorProto.FLOAT))
        nets.append(net.model())
    return nets[0], nets[1]


@pytest.mark.thorough
@pytest.mark.parametrize("scale, overflows", [(40.0, True), (1.0, False)])
def test_squares_leave_float16(scale: float, overflows: bool, tmp_path) -> None:
    paths = save_pair(tmp_path, *half_net(scale))
    x = random(5, 40, 8)
    tensors = {t.name: t for t in derive(quantmedic.collect(*paths, validation=x, threads=1), BASE).tensors}
    product = tensors["product"]
    assert product.is_half is True and product.is_squared is True
    assert (product.data.values.absmax > 256) == overflows
    assert ("R003" in fired(paths, x)) == overflows


def test_halves_and_squares_of_a_float_model(tmp_path) -> None:
    graph = graph_of(half_net(1.0)[0], tmp_path / "f.onnx")
    assert half_tensors(graph) == frozenset()
    assert squared_tensors(graph) == {"product"}
    net = Net()
    x = net.input("x", ["n", 4])
    net.output(net.add("Mul", x, x, out="y"))
    assert squared_tensors(graph_of(net.model(), tmp_path / "m.onnx")) == {"x"}


def test_integer_kernels_add_what_was_measured(tmp_path) -> None:
    """The difference between the graph as written and as executed, over that of quantization."""
    float_model, quantized = deep_net(), qdq(deep_net(), {"image": X})
    models = open_models(*save_pair(tmp_path, float_model, quantized))
    floats = run(float_model, {"image": X})["scores"]
    executed = run(quantized, {"image": X})["scores"]
    quiet = models.kernel_facts(Batch({"image": X}), Reading({}, {}, ([floats], [executed])), 1)
    assert 0 <= quiet["integer_kernel_noise"] < BASE.threshold("noise_ratio")
    assert not {"exact_kernel_noise", "kernels_avoided_by"} & quiet.keys()
    loud = models.kernel_facts(Batch({"image": X}), Reading({}, {}, ([floats], [executed * 0])), 1)
    assert loud["integer_kernel_noise"] > BASE.threshold("noise_ratio")
    assert loud["exact_kernel_noise"] < BASE.threshold("noise_ratio")
    assert loud["kernels_avoided_by"] == 'session.x64quantprecision = "1"'


def test_marks_of_the_tool_that_quantized(tmp_path) -> None:
    quantized = static(conv_net(), {"image": X}, tmp_path)
    marks = toolchain_marks(quantized)
    assert any(mark.startswith("quantizer ") and mark.endswith("_DequantizeLinear_Output") for mark in marks)
    assert "weights pass a QuantizeLinear" not in marks
    pairs = static(conv_net(), {"image": X}, tmp_path, extra_options={"AddQDQPairToWeight": True})
    assert "weights pass a QuantizeLinear" in toolchain_marks(pairs)
    assert toolchain_marks(conv_net()) == ()


def test_operators_of_a_vendor_are_marks() -> None:
    net = Net(17)
    net.output(net.add("HzQuantize", net.input("x", ["n", 4]), out="y"))
    assert toolchain_marks(net.model()) == ("operator HzQuantize",)
