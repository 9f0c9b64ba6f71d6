"""Quantizers that an IR holds as a FakeQuantize that writes codes, and operators that make values of them again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import Net, random, save_pair
from builders.openvino_models import fake_quantize, openvino
from onnx import TensorProto, helper

import quantmedic
from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.openvino_models import open_models
from quantmedic.collectors.from_openvino.openvino_session import Session

pytestmark = pytest.mark.thorough

#: Steps of codes ``[N, 3]``, one for all and one for each column.
STEPS = np.float32(0.5), np.array([[0.25, 0.5, 1.0]], np.float32)
X = (np.random.default_rng(0).normal(size=(64, 3)) * 4).astype(np.float32)
Make = Callable[[Any, Any], Any]


def graph_with(folder: Path, *makes: Make) -> OpenVINOGraph:
    """A model of one input ``[N, 3]``, and an output of what each ``make(opset, input)`` makes of it."""
    package = openvino()
    from openvino import opset13 as ops

    x = ops.parameter([-1, 3], np.float32, name="x")
    model = package.Model([ops.result(make(ops, x)) for make in makes], [x], "codes")
    package.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return graph_of(read_ir(folder / "model.xml"))


def coded(ops: Any, x: Any, kind: str, zero: int, step: Any, *, levels: int | None = None) -> tuple[Any, Any]:
    """Codes of a type, and their values: QuantizeLinear and DequantizeLinear as OpenVINO reads them."""
    bits, low = int(kind[1:]), -(1 << (int(kind[1:]) - 1)) if kind.startswith("i") else 0
    high = low + (levels or 1 << bits) - 1
    ends = (low - zero) * step, (high - zero) * step
    codes = ops.convert(fake_quantize(x, *ends, high - low + 1, (low, high)), kind)
    values = ops.convert(codes, "f32")
    if zero:
        values = ops.subtract(values, ops.constant(np.float32(zero)))
    return codes, ops.multiply(values, ops.constant(step))


def test_codes_and_what_makes_values_of_them_are_one_quantizer(tmp_path, subtests):
    for kind, zero in (("u4", 7), ("i4", 0), ("i4", -3), ("u8", 128), ("i8", 5)):
        for step in STEPS:
            with subtests.test(f"{kind}, zero {zero}, steps {step}"):
                assert_one_quantizer(tmp_path, kind, zero, step)


def assert_one_quantizer(folder: Path, kind: str, zero: int, step: Any) -> None:
    graph = graph_with(folder, lambda ops, x: ops.relu(coded(ops, x, kind, zero, step)[1]))
    ((tap,),) = graph.quantizers.values()
    assert tap.quantizer is not None and tap.quantizer.bits == int(kind[1:])
    assert tap.quantizer.axis == (None if np.ndim(step) == 0 else 1)
    np.testing.assert_allclose(tap.quantizer.scale, np.ravel(step) if np.ndim(step) else step, rtol=1e-5)
    assert [op.op_type for op in graph.operators] == ["Relu"] and not graph.untranslated
    expected = Session(graph, [], 1).run([X])[0][0]
    (found,) = run(make_session(graph.model, graph.path, 1), graph.outputs, {"x": X}, graph.path)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def two_readers(ops: Any, x: Any) -> Any:
    codes, values = coded(ops, x, "u8", 0, STEPS[0])
    return ops.add(values, ops.convert(codes, "f32"))


def test_what_is_no_chain_of_codes_stays_as_it_is(tmp_path):
    makes = [
        two_readers,
        # The conversion cuts off what the type does not hold, or rounds what is no whole number.
        lambda ops, x: ops.convert(ops.convert(fake_quantize(x, 0, 8, 16, (0, 30)), "u4"), "f32"),
        lambda ops, x: ops.convert(ops.convert(fake_quantize(x, 0, 8, 16, (0.5, 15.5)), "u8"), "f32"),
        # What is subtracted is computed.
        lambda ops, x: ops.subtract(fake_quantize(x, 0, 8, 256), x),
    ]
    graph = graph_with(tmp_path, *makes)
    assert len(graph.outputs) == len(makes)
    assert not {graph.root(output) for output in graph.outputs} & graph.quantizers.keys()


@pytest.mark.nightly
def test_codes_of_four_bits_are_named_in_what_was_converted_from_onnx(tmp_path):
    """The output was an operator that departs, and its few codes were nowhere."""
    paths = [path.with_suffix(".xml") for path in save_pair(tmp_path, dense(False), dense(True))]
    for path in paths:
        model = openvino().convert_model(path.with_suffix(".onnx"))
        openvino().save_model(model, path, compress_to_fp16=False)
    models = open_models(*paths)
    (tap,) = models.quantized.quantizers[models.quantized.root(models.quantized.outputs[0])]
    assert tap.quantizer is not None and tap.quantizer.bits == 4
    data = random(3, 64, 16)
    found = quantmedic.diagnose(*paths, representative=data, validation=data, prove=False, threads=1)
    assert found.causes[0].cause in ("too-few-activation-bits", "coarse-output")


def dense(quantized: bool) -> Any:
    """A dense layer, whose outputs are codes of 4 bits where it is quantized."""
    net, zero = Net(opset=21), np.int8(0)
    x, w = net.input("x", ["n", 16]), random(1, 16, 10)
    if quantized:
        x = net.quantize(x, 5 / 127, zero, out="rounded")
        step = np.abs(w).max() / 127
        w = net.stored("w", np.rint(w / step).astype(np.int8), step, zero)
        y = net.add("MatMul", x, w, out="product")
        y = net.quantize(y, 4, helper.make_tensor("zero", TensorProto.UINT4, [], [8]), out="logits")
    else:
        y = net.add("MatMul", x, net.const("w", w), out="logits")
    net.output(y)
    return net.model()
