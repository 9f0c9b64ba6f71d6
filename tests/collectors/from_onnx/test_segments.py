"""A model in segments gives what it gives in one piece, however its nodes are ordered and whatever is kept."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx import segments
from quantmedic.collectors.from_onnx.onnx_session import make_session
from quantmedic.collectors.from_onnx.segments import Segments

#: The chain of operators is this long; every one adds a constant that is an input.
LENGTH = 30
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def chain(order: list[int], skips: list[int]) -> onnx.ModelProto:
    """x(k+1) = tanh(x(k) + a(k)), in branches of an If, and also + x(k - s) where ``skips`` says so."""
    nodes = []
    for k in range(LENGTH):
        sources = [f"x{k}", f"x{max(k - skips[k], 0)}"]
        branches = []
        for name, kind in (("then", "Tanh"), ("else", "Identity")):
            made = f"{name}{k}"
            parts = [
                helper.make_node("Add", sources, [f"{made}:sum"]),
                helper.make_node("Add", [f"{made}:sum", f"a{k}"], [f"{made}:more"]),
                helper.make_node(kind, [f"{made}:more"], [made]),
            ]
            branches.append(helper.make_graph(parts, made, [], [helper.make_empty_tensor_value_info(made)]))
        nodes.append(helper.make_node("If", ["on"], [f"x{k + 1}"], then_branch=branches[0], else_branch=branches[1]))
    graph = helper.make_graph(
        [nodes[k] for k in order],
        "chain",
        [
            helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 4]),
            *(helper.make_tensor_value_info(f"a{k}", TensorProto.FLOAT, [4]) for k in range(LENGTH)),
        ],
        [helper.make_tensor_value_info(f"x{LENGTH}", TensorProto.FLOAT, ["n", 4])],
        initializer=[numpy_helper.from_array(np.array(True), "on")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outputs_of(parts: Segments, batch: Batch, added: list[float], x: np.ndarray) -> np.ndarray:
    feed = {f"a{k}": np.full(4, value, np.float32) for k, value in enumerate(added)}
    own = [sorted(name for name in names if name in feed) for names in parts.inputs()]
    state = parts.state_of([tuple(added[int(name[1:])] for name in names) for names in own])
    return parts.run(batch, state, lambda k: {name: feed[name] for name in own[k]}, {"x0": x})[0]


@pytest.mark.thorough
@examples(12)
@given(
    order=st.permutations(range(LENGTH)),
    skips=st.lists(st.integers(0, 4), min_size=LENGTH, max_size=LENGTH),
    places=st.lists(st.integers(0, LENGTH - 1), max_size=4),
    kept=st.sampled_from([0, 100, 1 << 20]),
)
def test_segments_give_what_the_whole_model_gives(
    order: list[int], skips: list[int], places: list[int], kept: int
) -> None:
    model = chain(order, skips)
    names = [f"x{LENGTH}", f"x{LENGTH // 2}"]
    whole = make_session(model, Path("chain"), 1, exposed=names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "KEPT_BYTES", kept)
        patch.setattr(segments, "LEAST_NODES", 4)
        patch.setattr(segments, "MAX_CROSSING", 6)
        patch.setattr(segments, "OFTEN", 1)
        parts = Segments(model, names, Path("chain"), 1)
        plain = [0.0] * LENGTH
        parts.hold_constant([tuple(0.0 for name in own if name[0] == "a") for own in parts.inputs()])
        assert len(parts.inputs()) > 1
        batches = [(Batch({"x0": x}), x) for x in (X, 2 * X)]
        for place in (None, *places, None, *places):
            added = [0.5 if k == place else value for k, value in enumerate(plain)]
            for batch, x in batches:
                feed = {f"a{k}": np.full(4, value, np.float32) for k, value in enumerate(added)}
                expected = whole.run(names, {"x0": x, **feed})
                found = outputs_of(parts, batch, added, x)
                np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)


def test_a_tensor_of_which_no_axis_is_known_may_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a Reshape to a computed shape; it was taken for a scalar, whose Shape is empty."""
    monkeypatch.setattr(segments, "LEAST_NODES", 4)
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y0"])]
    nodes += [helper.make_node("Tanh", [f"y{k}"], [f"y{k + 1}"]) for k in range(12)]
    nodes += [
        helper.make_node("Shape", ["y12"], ["sides"]),
        helper.make_node("Gather", ["sides", "second"], ["side"], axis=0),
        helper.make_node("Cast", ["side"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["y12", "number"], ["z"]),
    ]
    shapes = (("x", TensorProto.FLOAT, ["n", 4]), ("shape", TensorProto.INT64, ["axes"]))
    inputs = [helper.make_tensor_value_info(*own) for own in shapes]
    graph = helper.make_graph(nodes, "reshaped", inputs, [helper.make_empty_tensor_value_info("z")])
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "second"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {"x": X, "shape": np.array([1, 6, 2], np.int64)}
    parts = Segments(model, ["z"], Path("reshaped"), 1)
    assert len(parts.inputs()) > 1
    (found,) = parts.run(Batch(feed), parts.state_of([()] * len(parts.inputs())), lambda k: {}, feed)
    expected = X.reshape(1, 6, 2).astype(float)
    for _ in range(12):
        expected = np.tanh(expected)
    np.testing.assert_allclose(found, 6 * expected, rtol=1e-5)


def test_a_run_that_was_made_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another batch has the place of the first one; of one segment as of several."""
    for nodes in (4, 2 * LENGTH):
        monkeypatch.setattr(segments, "LEAST_NODES", nodes)
        parts = Segments(chain(list(range(LENGTH)), [0] * LENGTH), [f"x{LENGTH}"], Path("chain"), 1)
        batch, added = Batch({"x0": X}), [0.25] * LENGTH
        before = outputs_of(parts, batch, added, X)
        np.testing.assert_array_equal(outputs_of(parts, batch, added, np.full_like(X, np.nan)), before)
        assert np.isnan(outputs_of(parts, Batch({"x0": X}), added, np.full_like(X, np.nan))).all()


def test_what_came_under_other_settings_goes_first_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the first segment leave behind what nothing starts from; an input of NaN shows what is computed."""
    monkeypatch.setattr(segments, "LEAST_NODES", 4)
    model = chain(list(range(LENGTH)), [0] * LENGTH)
    crossings = len(Segments(model, [f"x{LENGTH}"], Path("chain"), 1).inputs()) - 1
    monkeypatch.setattr(segments, "KEPT_BYTES", 2 * X.nbytes * crossings)
    parts = Segments(model, [f"x{LENGTH}"], Path("chain"), 1)
    batch, plain = Batch({"x0": X}), [0.0] * LENGTH
    parts.expect([tuple(0.0 for name in own if name[0] == "a") for own in parts.inputs()])
    outputs_of(parts, batch, plain, X)
    for change in (0.1, 0.2, 0.3):
        outputs_of(parts, batch, [change, *plain[1:]], X)
    late = [*plain[:-1], 0.5]
    assert np.isfinite(outputs_of(parts, batch, late, np.full_like(X, np.nan))).all()
