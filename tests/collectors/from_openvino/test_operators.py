"""Operators of the IR compute in their translation what OpenVINO computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.openvino_models import openvino

from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.openvino_session import Session

pytestmark = pytest.mark.thorough

SHAPE = [2, 6, 8, 8]
PLAIN = ("relu", "sigmoid", "tanh", "exp", "abs", "negative", "floor", "ceiling", "erf", "sin", "cos", "sign")
MORE = ("hswish", "mish", "softplus", "softsign", "hsigmoid")
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda ops, x, name=name: getattr(ops, name)(x) for name in PLAIN + MORE},  # type: ignore[misc]
    "sqrt": lambda ops, x: ops.sqrt(ops.abs(x)),
    "log": lambda ops, x: ops.log(ops.add(ops.abs(x), number(ops, 1.0))),
    "clamp": lambda ops, x: ops.clamp(x, -0.5, 0.7),
    "clamp of whole numbers": lambda ops, x: ops.convert(ops.clamp(ops.convert(x, "i64"), -0.5, 1e30), "f32"),
    "elu": lambda ops, x: ops.elu(x, 0.3),
    "swish": lambda ops, x: ops.swish(x),
    "swish with beta": lambda ops, x: ops.swish(x, number(ops, 1.7)),
    "gelu": lambda ops, x: ops.gelu(x, "erf"),
    "gelu by tanh": lambda ops, x: ops.gelu(x, "tanh"),
    "hard sigmoid": lambda ops, x: ops.hard_sigmoid(x, number(ops, 0.2), number(ops, 0.4)),
    "prelu": lambda ops, x: ops.prelu(x, row(ops, 6)),
    "leaky relu": lambda ops, x: ops.prelu(x, ops.constant(np.array([0.1], np.float32))),
    "add": lambda ops, x: ops.add(x, row(ops, 8)),
    "subtract": lambda ops, x: ops.subtract(x, row(ops, 8)),
    "multiply": lambda ops, x: ops.multiply(x, row(ops, 8)),
    "divide": lambda ops, x: ops.divide(x, row(ops, 8)),
    "one divided by": lambda ops, x: ops.divide(number(ops, 1.0), ops.exp(x)),
    "power": lambda ops, x: ops.power(ops.abs(x), number(ops, 1.5)),
    "maximum": lambda ops, x: ops.maximum(x, row(ops, 8)),
    "minimum": lambda ops, x: ops.minimum(x, row(ops, 8)),
    "squared difference": lambda ops, x: ops.squared_difference(x, row(ops, 8)),
    "select": lambda ops, x: ops.select(ops.greater(x, number(ops, 0.0)), x, row(ops, 8)),
    "not equal": lambda ops, x: ops.convert(ops.not_equal(x, number(ops, 0.0)), "f32"),
    "softmax": lambda ops, x: ops.softmax(x, 1),
    "log softmax": lambda ops, x: ops.log_softmax(x, -1),
    "mean": lambda ops, x: ops.reduce_mean(x, axes(ops, 2, 3), True),
    "sum": lambda ops, x: ops.reduce_sum(x, axes(ops, 1), False),
    "max": lambda ops, x: ops.reduce_max(x, axes(ops, -1), False),
    "norm": lambda ops, x: ops.reduce_l2(x, axes(ops, 1), True),
    "normalize l2": lambda ops, x: ops.normalize_l2(x, axes(ops, 1), 1e-6, "add"),
    "layer normalization": lambda ops, x: ops.mvn(x, axes(ops, -1), True, 1e-5, "inside_sqrt"),
    "instance normalization": lambda ops, x: ops.mvn(x, axes(ops, 2, 3), True, 1e-5, "outside_sqrt"),
    "centring": lambda ops, x: ops.mvn(x, axes(ops, 2, 3), False, 1e-5, "inside_sqrt"),
    "batch normalization": lambda ops, x: ops.batch_norm_inference(
        x, row(ops, 6), row(ops, 6), row(ops, 6), ops.constant(np.linspace(0.5, 2, 6).astype(np.float32)), 1e-3
    ),
    "dense of 4-bit codes": lambda ops, x: ops.matmul(x, of_codes(ops, "i4"), False, True),
    "dense of unsigned 4-bit codes": lambda ops, x: ops.matmul(x, of_codes(ops, "u4"), False, True),
    "attention": lambda ops, x: ops.scaled_dot_product_attention(x, ops.sin(x), ops.abs(x)),
    "attention with a mask": lambda ops, x: ops.scaled_dot_product_attention(
        x, ops.sin(x), ops.abs(x), weights(ops, 1, 1, 8, 8)
    ),
    "attention with a scale": lambda ops, x: ops.scaled_dot_product_attention(
        x, ops.sin(x), ops.abs(x), number(ops, 0.0), number(ops, 0.3)
    ),
    "convolution": lambda ops, x: ops.convolution(x, weights(ops, 4, 6, 3, 3), [2, 2], [1, 0], [0, 1], [1, 2]),
    "convolution same": lambda ops, x: ops.convolution(
        x, weights(ops, 4, 6, 3, 3), [2, 2], [0, 0], [0, 0], [1, 1], "same_upper"
    ),
    "convolution with bias": lambda ops, x: ops.add(
        ops.convolution(x, weights(ops, 4, 6, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]), weights(ops, 1, 4, 1, 1)
    ),
    "groups": lambda ops, x: ops.group_convolution(x, weights(ops, 3, 4, 2, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]),
    "transposed": lambda ops, x: ops.convolution_backprop_data(
        x, weights(ops, 6, 4, 3, 3), [2, 2], pads_begin=[1, 1], pads_end=[1, 1], output_padding=[1, 1]
    ),
    "transposed groups": lambda ops, x: ops.group_convolution_backprop_data(
        x, weights(ops, 3, 2, 4, 2, 2), [2, 2], pads_begin=[0, 0], pads_end=[0, 0]
    ),
    "max pool": lambda ops, x: ops.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [3, 3]).output(0),
    "max pool ceil": lambda ops, x: ops.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [3, 3], "ceil").output(0),
    "average pool": lambda ops, x: ops.avg_pool(x, [2, 2], [1, 1], [1, 1], [3, 3], True),
    "average pool with padding": lambda ops, x: ops.avg_pool(x, [2, 2], [1, 1], [1, 1], [3, 3], False),
    "matrix product": lambda ops, x: ops.matmul(x, weights(ops, 8, 5), False, False),
    "matrix product transposed": lambda ops, x: ops.matmul(x, weights(ops, 5, 8), True, True),
    "matrix product with itself": lambda ops, x: ops.matmul(x, x, False, True),
    "dense with bias": lambda ops, x: ops.add(
        ops.matmul(ops.reshape(x, axes(ops, 2, 384), False), weights(ops, 5, 384), False, True), row(ops, 5)
    ),
    "reshape": lambda ops, x: ops.reshape(x, axes(ops, 0, -1, 4), True),
    "transpose": lambda ops, x: ops.transpose(x, axes(ops, 0, 2, 3, 1)),
    "squeeze": lambda ops, x: ops.squeeze(ops.unsqueeze(x, axes(ops, 1)), axes(ops, 1)),
    "concat": lambda ops, x: ops.concat([x, ops.relu(x)], 1),
    "split": lambda ops, x: ops.split(x, ops.constant(np.int64(1)), 3).output(2),
    "variadic split": lambda ops, x: ops.variadic_split(x, ops.constant(np.int64(1)), axes(ops, 1, 2, 3)).output(1),
    "slice": lambda ops, x: ops.slice(x, axes(ops, 1), axes(ops, 7), axes(ops, 2), axes(ops, 3)),
    "strided slice": lambda ops, x: ops.strided_slice(
        x, axes(ops, 0, 1, 7), axes(ops, 0, 5, 0), axes(ops, 1, 2, -1), [1, 0, 0], [1, 0, 1], shrink_axis_mask=[0, 0, 0]
    ),
    "one of a slice": lambda ops, x: ops.strided_slice(
        x, axes(ops, 0, -1), axes(ops, 0, 0), axes(ops, 1, 1), [1, 0], [1, 0], shrink_axis_mask=[0, 1]
    ),
    "pad": lambda ops, x: ops.pad(x, axes(ops, 0, 0, 1, 2), axes(ops, 0, 0, 2, 1), "constant", number(ops, 0.5)),
    "pad by reflection": lambda ops, x: ops.pad(x, axes(ops, 0, 0, 1, 2), axes(ops, 0, 0, 2, 1), "reflect"),
    "pad by what is computed": lambda ops, x: ops.pad(
        x, axes(ops, 0, 0, 1, 2), side(ops, x, 3, -7), "constant", number(ops, 0.5)
    ),
    "gather": lambda ops, x: ops.gather(x, axes(ops, 3, 0), ops.constant(np.int64(1))),
    "gather elements": lambda ops, x: ops.gather_elements(x, ops.convert(ops.greater(x, number(ops, 0.0)), "i64"), -1),
    "gather of doubles": lambda ops, x: ops.gather(
        ops.constant(np.array([0.1, 0.2])), ops.convert(ops.greater(x, number(ops, 0.0)), "i64"), axes(ops, 0)
    ),
    "a constant that was a double": lambda ops, x: ops.multiply(x, ops.convert(ops.constant(np.array([0.1])), "f32")),
    "shape of": lambda ops, x: ops.reshape(x, ops.shape_of(ops.transpose(x, axes(ops, 1, 0, 2, 3))), False),
    "broadcast": lambda ops, x: ops.broadcast(row(ops, 8), ops.shape_of(x)),
    "tile": lambda ops, x: ops.tile(x, axes(ops, 1, 2, 1, 1)),
    "depth to space": lambda ops, x: ops.depth_to_space(ops.concat([x, x], 1), "blocks_first", 2),
    "space to depth": lambda ops, x: ops.space_to_depth(x, "blocks_first", 2),
    "nearest": lambda ops, x: ops.interpolate(
        x, ops.constant(np.array([2, 2], np.float32)), "nearest", "scales", None, None, "asymmetric", "floor",
        axes=axes(ops, 2, 3),
    ),
    "linear": lambda ops, x: ops.interpolate(
        x, axes(ops, 13, 5), "linear_onnx", "sizes", None, None, "half_pixel", axes=axes(ops, 2, 3)
    ),
}  # fmt: skip


def number(ops: Any, value: float) -> Any:
    return ops.constant(np.float32(value))


def axes(ops: Any, *values: int) -> Any:
    return ops.constant(np.array(values, np.int64))


def side(ops: Any, x: Any, axis: int, more: int) -> Any:
    """``[0, 0, 0, n]``: the length of a side and more, computed from the shape."""
    length = ops.gather(ops.shape_of(x), axes(ops, axis), ops.constant(np.int64(0)))
    return ops.concat([axes(ops, 0, 0, 0), ops.add(length, axes(ops, more))], 0)


def row(ops: Any, length: int) -> Any:
    return weights(ops, length)


def weights(ops: Any, *shape: int) -> Any:
    """Other numbers for each shape: constants of equal bytes are one in the file, and OpenVINO 2026.4 takes one layout
    of such weights for both of their readers."""
    return ops.constant((np.random.default_rng([7, *shape]).normal(size=shape) * 0.5 + 0.1).astype(np.float32))


def of_codes(ops: Any, kind: str) -> Any:
    """Weights ``[2, 8]`` of all 16 codes."""
    from openvino import Type

    codes = np.arange(16).reshape(2, 8) - (8 if kind == "i4" else 0)
    return ops.multiply(ops.convert(ops.constant(codes, dtype=getattr(Type, kind)), "f32"), number(ops, 0.25))


def graph_with(folder: Path, shape: list[int], *makes: Callable[[Any, Any], Any]) -> OpenVINOGraph:
    """A model of one input, and an output of each operator."""
    package = openvino()
    from openvino import opset13 as ops

    x = ops.parameter(shape, np.float32, name="x")
    path = folder / "model.xml"
    results = [ops.result(make(ops, x)) for make in makes]
    package.save_model(package.Model(results, [x], "operators"), path, compress_to_fp16=False)
    return graph_of(read_ir(path))


@pytest.mark.parametrize("shape", [SHAPE, [-1, 6, 8, 8]], ids=["fixed", "open"])
def test_operators_compute_what_openvino_computes(shape, tmp_path):
    graph = graph_with(tmp_path, shape, *OPERATORS.values())
    assert not graph.untranslated
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    expected = Session(graph, [], 1).run([x])[0]
    found = run(make_session(graph.model, graph.path, 1), graph.outputs, {"x": x}, graph.path)
    departing = {
        name: (mine, theirs)
        for name, mine, theirs in zip(OPERATORS, found, expected, strict=True)
        if mine.shape != theirs.shape
        or mine.dtype != theirs.dtype
        or not np.allclose(mine, theirs, rtol=2e-4, atol=2e-5, equal_nan=True)
    }
    assert not departing


def test_one_divided_by_a_tensor_is_a_reciprocal(tmp_path):
    """So OpenVINO reads ONNX's own, of which the small divisors are judged."""
    graph = graph_with(tmp_path, SHAPE, OPERATORS["one divided by"])
    assert [op.op_type for op in graph.operators] == ["Exp", "Reciprocal"]
    several = graph_with(tmp_path, SHAPE, lambda ops, x: ops.divide(row(ops, 8), x))
    assert [op.op_type for op in several.operators] == ["Div"]


def test_what_has_no_counterpart_is_named(tmp_path):
    graph = graph_with(tmp_path, SHAPE, lambda ops, x: ops.relu(ops.cum_sum(x, ops.constant(np.int64(1)))))
    assert graph.untranslated == ("CumSum",) and not graph.can_run
    assert "CumSum" in graph.notices[-1]
    assert [op.op_type for op in graph.operators] == ["CumSum", "Relu"]
