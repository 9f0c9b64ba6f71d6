"""Looking into a model without changing it: what is exposed, what is dropped, and what the runtime really executes."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    Net,
    Recipe,
    conv_net,
    deep_net,
    images,
    qdq,
    random,
    residual_net,
    run,
    static,
)
from onnx import helper
from onnxruntime.quantization import QuantType

from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, open_models
from quantmedic.collectors.from_onnx.onnx_session import (
    ObservedModel,
    added_outputs,
    make_session,
)
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.unsigned import with_unsigned_pairs
from quantmedic.collectors.measure.outputs import output_difference, same_outputs
from quantmedic.collectors.pair.graph import Graph, Tap

X = images(6)
FEED = {"image": X}


def graph_of(model: onnx.ModelProto) -> Graph:
    return parse(Path("model.onnx"), model)


def taps_of(graph: Graph) -> list[Tap]:
    return [tap for taps in graph.quantizers.values() for tap in taps]


def expose(model: onnx.ModelProto, tensors: list[str]) -> onnx.ModelProto:
    """Copy of a model with tensors exposed."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    exposed.graph.output.extend(added_outputs(model, tensors))
    return exposed


def kernels(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """Operator types of the optimized graph."""
    make_session(model, Path("model.onnx"), 1, optimized=folder / "optimized.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> OnnxModels:
    folder = tmp_path_factory.mktemp("deep")
    float_model = deep_net()
    onnx.save(float_model, folder / "float.onnx")
    onnx.save(qdq(float_model, {"image": images(32)}), folder / "quantized.onnx")
    return open_models(folder / "float.onnx", folder / "quantized.onnx")


# --- exposing ----------------------------------------------------------------------------------------------------


def test_outputs_are_compared_bit_by_bit():
    for a, b, same, difference in (
        ([1.0, 2.0], [1.0, 2.0], True, 0),
        ([1.0, 2.0], [1.0, 2.5], False, 0.25),
        ([1.0, np.nan], [1.0, np.nan], True, 0),
        ([np.nan, 4.0], [np.nan, 3.0], False, 0.25),
        ([0.0, 0.0], [0.0, 0.0], True, 0),
    ):
        one, other = [np.float32(a)], [np.float32(b)]
        assert same_outputs(one, other) is same, (a, b)
        assert output_difference(one, other) == pytest.approx(difference), (a, b)
    assert all(output_difference([np.float32([zero])], [np.float32([1.0])]) > 0 for zero in (0.0, np.nan))
    # The difference is relative to the same output.
    one = [np.float32([1000.0]), np.float32([1.0]), np.int64([3])]
    other = [np.float32([1000.0]), np.float32([1.5]), np.int64([4])]
    assert output_difference(one, other) == pytest.approx(0.5)
    assert not same_outputs(one[2:], other[2:])


# --- observing ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_simulation_is_admitted_where_most_taps_are_at_fault(deep):
    graph, batch = deep.quantized, {"image": images(128)}
    plain = run(graph.model, batch)["scores"]
    taps = [tap for tap in (Tap(f"conv{i}", None) for i in range(6)) if changes(graph, tap, batch, plain)]
    if not taps:
        pytest.skip("on this machine no single tap changes the outputs")
    observed = ObservedModel(graph, taps, batch, 1)
    assert observed.observed.simulated
    assert observed.taps == list(range(len(taps)))
    simulated = observed.session.run(["scores"], batch)[0]
    assert observed.observed.difference == pytest.approx(np.abs(simulated - plain).max() / np.abs(plain).max())


def changes(graph: Graph, tap: Tap, batch: dict[str, np.ndarray], plain: np.ndarray) -> bool:
    return not np.array_equal(run(graph.model, batch, [tap.tensor, "scores"])["scores"], plain)


@pytest.mark.parametrize("activation", [np.uint8, np.int8])
def test_integer_kernels_stay_whatever_the_type_of_the_codes(activation, tmp_path):
    """On x86 onnxruntime makes int8 activations unsigned first, but not where their codes are an output."""
    graph = graph_of(qdq(residual_net(), FEED, Recipe(activation=activation)))
    taps = taps_of(graph)
    observed = ObservedModel(graph, taps, FEED, 1)
    names = [tap.tensor for tap in observed.read]
    before, after = kernels(graph.model, tmp_path), kernels(expose(observed.model, names), tmp_path)
    assert before["QLinearConv"] > 0
    assert (after["QLinearConv"], after["Conv"]) == (before["QLinearConv"], before["Conv"])
    assert observed.observed.difference == 0


def test_codes_with_two_readers_stay_signed():
    """onnxruntime leaves them signed as well; to change them would be to observe another model."""
    graph = graph_of(qdq(residual_net(), FEED, Recipe(activation=np.int8)))
    rewritten, changed = with_unsigned_pairs(graph.model)
    readers = Counter(name for node in graph.model.graph.node for name in node.input)
    shared = {node.input[0] for node in graph.model.graph.node if readers[node.output[0]] > 1}
    assert changed
    assert not changed & shared
    np.testing.assert_array_equal(run(rewritten, FEED)["scores"], run(graph.model, FEED)["scores"])


# --- what runs -----------------------------------------------------------------------------------------------------


# --- one operator at a time ----------------------------------------------------------------------------------------


# --- what the user is told ---------------------------------------------------------------------------------------


def test_outputs_that_are_no_tensors_do_not_crash():
    net = Net()
    y = net.quantize(net.add("Relu", net.input("x", ["n", 4]), out="relu"), 0.1, np.uint8(0))
    net.add("SplitToSequence", y, out="parts", axis=1)
    net.outputs.append(helper.make_tensor_sequence_value_info("parts", onnx.TensorProto.FLOAT, None))
    graph = graph_of(net.model())
    ObservedModel(graph, taps_of(graph), {"x": random(1, 3, 4)}, 1)


def test_convolutions_of_four_bit_activations_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime 1.32 writes them as QLinearConv, which takes none, and refuses its own graph."""
    monkeypatch.delenv("QUANTMEDIC_EXACT_KERNELS")
    model = static(conv_net(opset=21), FEED, tmp_path, activation_type=QuantType.QUInt4)
    outputs = make_session(model, Path("four.onnx"), 1).run(None, FEED)
    assert same_outputs(outputs, make_session(model, Path("four.onnx"), 1, plain=True).run(None, FEED))
