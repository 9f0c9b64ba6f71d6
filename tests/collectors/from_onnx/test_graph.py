"""Reading ONNX graphs: every way in which exporters write quantizers ends in the same operators, roots and grids."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    MICROSOFT,
    Net,
    Recipe,
    conv_net,
    images,
    qdq,
    random,
    real_of,
    renamed,
    run,
    shuffled,
)
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.graph import Graph, Operator, Tap

OPERATORS = ["Conv", "Relu", "Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]


def graph_of(model: onnx.ModelProto) -> Graph:
    return parse(Path("model.onnx"), model)


def tap_of(graph: Graph, root: str) -> Tap:
    (tap,) = graph.quantizers[root]
    assert tap.quantizer is not None
    return tap


def operator(graph: Graph, kind: str) -> Operator:
    return next(op for op in graph.operators if op.op_type == kind)


def dense(opset: int = 17) -> tuple[Net, str]:
    """A model in the making with one input of 4 numbers."""
    net = Net(opset)
    return net, net.input("x", ["n", 4])


# --- QDQ -----------------------------------------------------------------------------------------------------------

RECIPES = {
    "uint8": Recipe(),
    "int8": Recipe(activation=np.int8),
    "per channel": Recipe(per_channel=True),
    "uint8 weights": Recipe(weight=np.uint8, weights="float"),
    "float weights": Recipe(weights="float"),
    "float weights per channel": Recipe(weights="float", per_channel=True),
    "int16": Recipe(activation=np.int16, opset=21),
    "uint16": Recipe(activation=np.uint16, opset=21),
    "int16 microsoft": Recipe(activation=np.int16, domain=MICROSOFT),
    "microsoft": Recipe(domain=MICROSOFT),
    "no zero point": Recipe(zero_point=False),
    "float output": Recipe(outputs=False),
    "gaps": Recipe(skip=("relu1", "pool")),
}


@pytest.mark.thorough
def test_quantizers_are_folded_into_tensors_and_weights_known_as_the_runtime_sees_them(subtests):
    x = images(4)
    for name, recipe in RECIPES.items():
        with subtests.test(name):
            model = qdq(conv_net(), {"image": x}, recipe)
            graph = graph_of(model)
            assert [op.op_type for op in graph.operators] == OPERATORS
            assert (graph.format, graph.inputs) == ("QDQ", ["image"])
            assert graph.output_roots == (["scores_raw"] if recipe.outputs else ["scores"])
            expected = {"image", "relu1", "relu2", "pool", "flat", "scores_raw"} - set(recipe.skip)
            expected -= {"scores_raw"} if not recipe.outputs else set()
            assert set(graph.quantizers) == expected
            codes = run(model, {"image": x}, [tap_of(graph, root).tensor for root in expected])
            ends = np.iinfo(recipe.activation)
            for tap in (tap_of(graph, root) for root in expected):
                own = tap.quantizer
                assert (own.bits, own.signed, own.qmin, own.qmax) == (ends.bits, ends.min < 0, ends.min, ends.max)
                real = real_of(codes[tap.tensor], own.scale, own.zero_point)
                np.testing.assert_allclose(own.dequantize(codes[tap.tensor]), real, rtol=1e-6)
            for op in graph.operators:
                if op.op_type in ("Conv", "Gemm"):
                    weight = graph.constants[op.inputs[1]]
                    channels = len(weight.values) if op.op_type == "Conv" else 5
                    assert weight.quantizer.bits == 8
                    assert weight.quantizer.scale.size == channels**recipe.per_channel
                    (node,) = (n for n in model.graph.node if n.name == op.name)
                    deployed = run(model, {"image": images(1)}, [node.input[1]])[node.input[1]]
                    np.testing.assert_allclose(weight.values, deployed, rtol=1e-6, atol=1e-9)


def test_type_of_the_codes_without_a_zero_point():
    """uint8 by default, else what ``output_dtype`` says."""
    net, x = dense(21)
    net.const("scale", np.float32(0.1))
    net.add("QuantizeLinear", x, "scale", out="codes", output_dtype=TensorProto.INT8)
    net.output(net.add("Relu", net.add("DequantizeLinear", "codes", "scale", out="dq"), out="y"))
    quantizer = tap_of(graph_of(net.model()), "x").quantizer
    assert (quantizer.bits, quantizer.signed, int(quantizer.zero_point)) == (8, True, 0)


def test_weight_codes_without_a_zero_point_keep_their_own_type():
    net, x = dense()
    weight = net.stored("w", np.int8([[-128, 127], [1, 0], [5, 6], [7, 8]]), 0.5)
    net.output(net.add("MatMul", x, weight, out="y"))
    constant = graph_of(net.model()).constants["w"]
    assert (constant.quantizer.bits, constant.quantizer.signed) == (8, True)
    assert constant.values[0].tolist() == [-64.0, 63.5]


BLOCKS = [{}, {"axis": 1}, {"axis": -1}, {"axis": 0, "block_size": 4}, {"axis": -2, "block_size": 4}]


def test_weights_of_four_bits_and_in_blocks(subtests):
    for kind in (ml_dtypes.int4, ml_dtypes.uint4, np.int8):
        for options in BLOCKS:
            with subtests.test(f"{kind.__name__}, {options}"):
                net, x = Net(21), "x"
                net.input(x, ["n", 8])
                values = np.random.default_rng(0).integers(0, 8, (8, 6))
                codes = (values if kind is ml_dtypes.uint4 else values - 4).astype(kind)
                shape = {0: (), 1: (6,), 4: (2, 6)}[options.get("block_size", len(options))]
                scale = np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)
                zero = np.full(shape, 3).astype(kind)
                net.output(net.add("MatMul", x, net.stored("w", codes, scale, zero, **options), out="y"))
                model = net.model()
                constant = graph_of(model).constants["w"]
                assert constant.quantizer.bits == (8 if kind is np.int8 else 4)
                assert constant.quantizer.signed == (kind is not ml_dtypes.uint4)
                deployed = run(model, {x: random(1, 1, 8)}, ["w"])["w"]
                np.testing.assert_allclose(constant.values, deployed, rtol=1e-6)


def test_packed_weights_are_read_as_the_runtime_reads_them(subtests):
    rng = np.random.default_rng(5)
    inputs, outputs, block = 40, 6, 16  # the last block is not full
    blocks = -(-inputs // block)
    for bits, zeros in ((4, "packed"), (4, "float"), (4, None), (8, "packed"), (8, None)):
        with subtests.test(bits=bits, zeros=zeros):
            net = Net()
            net.const("w", rng.integers(0, 256, (outputs, blocks, block * bits // 8)).astype(np.uint8))
            net.const("steps", rng.uniform(0.01, 0.1, outputs * blocks).astype(np.float32))
            names = [net.input("x", [inputs, inputs]), "w", "steps"]
            if zeros == "packed":
                net.const("z", rng.integers(0, 256, outputs * -(-blocks * bits // 8)).astype(np.uint8))
            elif zeros == "float":
                net.const("z", rng.uniform(0, 15, outputs * blocks).astype(np.float32))
            names += ["z"] * (zeros is not None)
            settings = {"K": inputs, "N": outputs, "bits": bits, "block_size": block}
            net.output(net.add("MatMulNBits", *names, out="y", domain=MICROSOFT, **settings))
            weight = graph_of(net.model()).constants["w"]
            assert weight.quantizer.bits == bits and weight.codes.shape == (inputs, outputs)
            expected = run(net.model(), {"x": np.eye(inputs, dtype=np.float32)})["y"]
            assert np.allclose(weight.values, expected, atol=1e-4)


def test_two_quantizers_of_one_tensor_are_kept_apart():
    net, x = dense()
    fine = net.quantize(x, 0.01, np.uint8(128), out="fine")
    coarse = net.quantize(x, 0.1, np.int8(0), out="coarse")
    net.output(net.add("Add", fine, coarse, out="y"))
    taps = graph_of(net.model()).quantizers["x"]
    assert [(float(t.quantizer.scale), t.quantizer.signed) for t in taps] == [
        (pytest.approx(0.01), False),
        (pytest.approx(0.1), True),
    ]


def test_parameters_from_nodes_over_constants():
    net, x = dense()
    scale = numpy_helper.from_array(np.float32(0.1))
    net.nodes.append(helper.make_node("Constant", [], ["scale"], value=scale))
    net.add("Identity", net.const("stored", np.uint8(100)), out="zero")
    net.add("Cast", net.const("wide", np.int32(100)), out="same", to=TensorProto.UINT8)
    net.add("QuantizeLinear", x, "scale", "zero", out="codes")
    y = net.add("Relu", net.add("DequantizeLinear", "codes", "scale", "zero", out="dq"), out="y")
    net.add("QuantizeLinear", y, "scale", "same", out="more")
    net.output(net.add("DequantizeLinear", "more", "scale", "same", out="z"))
    graph = graph_of(net.model())
    for quantizer in (tap_of(graph, root).quantizer for root in ("x", "y")):
        assert (float(quantizer.scale), int(quantizer.zero_point)) == (pytest.approx(0.1), 100)


def test_scale_computed_at_run_time_is_no_fixed_grid():
    net, x = dense()
    net.add("ReduceMax", x, out="top", keepdims=0)
    net.const("zero", np.uint8(0))
    net.add("QuantizeLinear", x, "top", "zero", out="codes")
    net.output(net.add("Relu", net.add("DequantizeLinear", "codes", "top", "zero", out="dq"), out="y"))
    graph = graph_of(net.model())
    assert "x" not in graph.quantizers
    assert operator(graph, "Relu").inputs == ["x"]


# --- codes that pass through operators -------------------------------------------------------------------------------

MOVES: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [2, 2]},
    "Transpose": {"perm": [0, 2, 3, 1]},
    "Flatten": {},
    "Reshape": {"second": np.array([0, -1])},
    "Slice": {"second": np.array([0]), "third": np.array([1])},
    "Squeeze": {"second": np.array([1])},
}
#: Operators whose codes no kernel of onnxruntime takes.
OTHERS: dict[str, dict[str, Any]] = {
    "Pad": {"second": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "mode": "edge"},
    "Resize": {"second": np.float32([]), "third": np.float32([1, 1, 2, 2]), "mode": "nearest"},
    "DepthToSpace": {"blocksize": 1},
    "ReduceMax": {"axes": [2, 3]},
}


def through(kind: str, second: Any = None, third: Any = None, **attributes: Any) -> onnx.ModelProto:
    """Q, an operator on the codes, DQ."""
    net = Net(13)
    x = net.input("x", ["n", 1, 4, 4])
    codes = net.quantize(x, 0.1, np.uint8(128), dequantize=False)
    more = [net.const(f"argument{i}", value) for i, value in enumerate((second, third)) if value is not None]
    moved = net.add(kind, codes, *more, out="moved", **attributes)
    net.add("DequantizeLinear", moved, "x_codes_scale", "x_codes_zero", out="y_dq")
    net.output(net.add("Relu", "y_dq", out="y"))
    return net.model()


def test_codes_keep_their_quantizer_where_an_operator_moves_them(subtests):
    for kind, options in MOVES.items():
        with subtests.test(kind):
            model = through(kind, **options)
            graph = graph_of(model)
            tap = tap_of(graph, "moved")
            x = random(1, 2, 1, 4, 4)
            seen = run(model, {"x": x}, [tap.tensor, "y_dq"])
            np.testing.assert_allclose(tap.quantizer.dequantize(seen[tap.tensor]), seen["y_dq"], rtol=1e-6)
            assert operator(graph, "Relu").inputs == ["moved"]
    for kind, options in OTHERS.items():
        with subtests.test(kind):
            assert tap_of(graph_of(through(kind, **options)), "moved").quantizer.bits == 8


def test_rows_gathered_from_a_table_of_codes_keep_its_quantizer():
    net = Net()
    ids = net.input("ids", ["n", 6], TensorProto.INT64)
    net.const("table", np.int8(np.arange(40).reshape(5, 8) - 20))
    net.const("scale", np.float32(0.1))
    net.const("zero", np.int8(3))
    net.add("Gather", "table", ids, out="rows")
    net.output(net.add("Relu", net.add("DequantizeLinear", "rows", "scale", "zero", out="dq"), out="y"))
    assert int(tap_of(graph_of(net.model()), "rows").quantizer.zero_point) == 3


def test_model_output_that_gives_codes():
    net, x = dense()
    net.output(net.quantize(net.add("Relu", x, out="y"), 0.1, np.uint8(0), dequantize=False), TensorProto.UINT8)
    assert graph_of(net.model()).output_roots == ["y"]


# --- structure -------------------------------------------------------------------------------------------------------


def test_identity_and_dropout_are_other_names_of_their_input():
    net, x = dense()
    y = net.add("Relu", net.add("Identity", net.add("Dropout", x, out="dropped"), out="same"), out="relu")
    net.output(net.add("Identity", y, out="y"))
    graph = graph_of(net.model())
    assert [(op.op_type, op.inputs, op.outputs) for op in graph.operators] == [("Relu", ["x"], ["relu"])]
    assert graph.output_roots == ["relu"]


def test_initializers_among_the_inputs_are_constants():
    net, x = dense()
    net.const("w", random(1, 4, 4))
    net.inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    net.output(net.add("MatMul", x, "w", out="y"))
    assert graph_of(net.model()).inputs == ["x"]


def test_transposed_weights_keep_values_and_quantizer():
    net, x = dense()
    weight = net.stored("w", np.int8(np.arange(12).reshape(3, 4)), 0.5, np.int8(0))
    net.output(net.add("MatMul", x, net.add("Transpose", weight, out="wt", perm=[1, 0]), out="y"))
    graph = graph_of(net.model())
    constant = graph.constants[operator(graph, "MatMul").inputs[1]]
    assert [op.op_type for op in graph.operators] == ["MatMul"], "what is computed from constants alone is none"
    np.testing.assert_array_equal(constant.values, np.arange(12).reshape(3, 4).T * 0.5)
    assert constant.quantizer.bits == 8


def branching(condition: str) -> onnx.ModelProto:
    """MatMul, an If whose branches read its result from outside, MatMul; the condition is constant or computed."""
    net, x = dense()
    for name in ("w1", "w2"):
        net.const(name, random(int(name[1]), 4, 4))
    h = net.add("MatMul", x, "w1", out="h")
    if condition == "computed":
        net.const("zero", np.float32(0))
        net.add("Greater", net.add("ReduceSum", h, out="sum", keepdims=0), "zero", out="condition")
    else:
        net.const("condition", np.array(True))
    branches = [
        helper.make_graph([helper.make_node(kind, ["h"], [f"{kind}_y"])], kind, [], [value(f"{kind}_y")])
        for kind in ("Relu", "Tanh")
    ]
    net.add("If", "condition", out="chosen", then_branch=branches[0], else_branch=branches[1])
    net.output(net.add("MatMul", "chosen", "w2", out="y"))
    return net.model()


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def test_subgraphs_are_told_and_what_follows_is_kept():
    for condition in ("computed", "constant"):
        graph = graph_of(branching(condition))
        assert [op.op_type for op in graph.operators if op.op_type in ("MatMul", "If")] == ["MatMul", "If", "MatMul"]
        assert any("If" in notice for notice in graph.notices)


def test_local_functions_are_unfolded(tmp_path):
    net, x = dense()
    net.const("w", random(1, 4, 4))
    net.const("b", random(2, 4))
    net.output(net.add("Relu", net.add("Dense", x, "w", "b", out="h", domain="local"), out="y"))
    body = [helper.make_node("MatMul", ["X", "W"], ["t"]), helper.make_node("Add", ["t", "B"], ["Y"])]
    imports = [helper.make_opsetid("", 17)]
    net.functions = [helper.make_function("local", "Dense", ["X", "W", "B"], ["Y"], body, imports)]
    graph = graph_of(load_model(net.save(tmp_path / "functions.onnx")))
    assert [op.op_type for op in graph.operators] == ["MatMul", "Add", "Relu"]


def chain_of(nodes: int) -> onnx.ModelProto:
    net, x = dense()
    for k in range(nodes):
        x = net.add("Relu", x, out=f"y{k}")
    net.output(x)
    return net.model()


def reordered(model: onnx.ModelProto, order: Sequence[int]) -> onnx.ModelProto:
    nodes = [model.graph.node[place] for place in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def test_nodes_out_of_order_are_read_round_by_round():
    """A node waits for the first round in which what it reads is known; within a round the file decides."""
    for seed in range(5):
        model, _ = renamed(shuffled(qdq(conv_net(), {"image": images(4)}), seed=seed))
        known = {"", *(value.name for value in model.graph.input), *(t.name for t in model.graph.initializer)}
        waiting, expected = list(model.graph.node), []
        while waiting:
            for node in list(waiting):
                if all(name in known for name in node.input):
                    waiting.remove(node)
                    expected.append(node.output[0])
                    known.update(node.output)
        outputs = [op.outputs[0] for op in graph_of(model).operators]
        assert outputs == sorted(outputs, key=expected.index), seed


def steps_to_read(model: onnx.ModelProto) -> int:
    """Lines of Python that the module of ``parse`` executes to read a model."""
    count = 0

    def step(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        nonlocal count
        if frame.f_code.co_filename != parse.__code__.co_filename:
            return None
        count += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        graph_of(model)
    finally:
        sys.settrace(before)
    return count


def test_the_order_of_the_nodes_costs_nothing():
    small, large = (steps_to_read(reordered(chain_of(n), range(n)[::-1])) for n in (100, 200))
    assert large < 2.2 * small
    assert large < 2 * steps_to_read(chain_of(200))


# --- other formats -----------------------------------------------------------------------------------------------
