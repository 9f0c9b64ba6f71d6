"""Time of both models and of single operators: real sessions, honest figures, attributed to the right layer."""

import time
from pathlib import Path

import numpy as np
import pytest
from builders.onnx_models import Net, conv_net, images, qdq, random, save_pair

import quantmedic
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.profile import _operator_times, _owners, node_times
from quantmedic.collectors.measure import latency
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.derive import derive

X = images(24)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol is the same, the time that it may take is not."""
    monkeypatch.setattr(latency, "WARM_UP", 0.01)
    monkeypatch.setattr(latency, "ROUNDS", (5, 40))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), conv_net(), qdq(conv_net(), {"image": X}))


@pytest.fixture(scope="module")
def case(pair: tuple[Path, Path]) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "WARM_UP", 0.01)
        patch.setattr(latency, "ROUNDS", (5, 40))
        return quantmedic.collect(*pair, representative={"image": X}, threads=1, profile=True)


def test_both_run_equally_often_and_take_turns_and_times_are_those_of_the_calls() -> None:
    calls: list[str] = []
    facts = latency.latency_facts(
        lambda: (calls.append("a"), time.sleep(0.002)),
        lambda: (calls.append("b"), time.sleep(0.006)),
        threads=1,
        batch=1,
    )
    runs = facts["latency_runs"]
    assert "".join(calls)[-2 * runs :] == ("abba" * runs)[: 2 * runs]
    assert facts["latency_float_ms"] >= 2 and facts["latency_quantized_ms"] >= 6
    assert facts["latency_ratio"] == pytest.approx(facts["latency_quantized_ms"] / facts["latency_float_ms"])
    for name in ("float", "quantized"):
        low, median, high = (facts[f"latency_{name}_{part}ms"] for part in ("low_", "", "high_"))
        assert low <= median <= high


def test_slow_models_are_not_measured_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "ROUNDS", (2, 1000))
    times = latency.in_turn(lambda: time.sleep(0.02), lambda: time.sleep(0.02), 0.05)
    assert 2 <= len(times[0]) <= 4


@pytest.mark.thorough
def test_a_case_holds_latency_only_where_it_was_asked_for(pair: tuple[Path, Path], case: Case) -> None:
    asked = case.record.model
    assert asked.latency_batch == 1 and asked.latency_threads == 1 and 5 <= asked.latency_runs <= 40
    assert 0 < asked.latency_float_low_ms <= asked.latency_float_ms <= asked.latency_float_high_ms
    assert asked.latency_ratio == pytest.approx(asked.latency_quantized_ms / asked.latency_float_ms)
    plain = quantmedic.collect(*pair, representative={"image": X}, threads=1)
    assert plain.record.model.latency_ratio is None and plain.record.model.kernels == ()
    assert all(op.time_ms is None for op in plain.record.operators)
    again = quantmedic.collect(*pair, representative={"image": X}, threads=1)
    assert plain.record == again.record


def test_kernels_and_layers_share_one_total(case: Case) -> None:
    facts = derive(case, quantmedic.load_rulebase())
    kernels = facts.model.kernels
    assert sum(kernel.time_share for kernel in kernels) == pytest.approx(1)
    assert [kernel.time_ms for kernel in kernels] == sorted((kernel.time_ms for kernel in kernels), reverse=True)
    timed = {layer.name: layer for layer in facts.layers if layer.time_ms is not None}
    assert {"conv1", "conv2", "scores"} <= set(timed)
    assert 0 < sum(layer.time_share for layer in timed.values()) <= 1 + 1e-9


def test_operations_are_counted_without_timing(case: Case) -> None:
    """conv1: 8·8·4 outputs of 3·3·3 products, conv2: 8·8·6 of 4·3·3, the scores: 5 of 6."""
    counts = {op.name: op.operations for op in case.record.operators}
    assert (counts["conv1"], counts["conv2"], counts["scores"]) == (256 * 27, 384 * 36, 30)
    assert case.record.model.operations == 256 * 27 + 384 * 36 + 30
    assert 0 <= case.record.model.integer_operations_share <= 1


def test_a_network_of_unknown_shape_has_no_operations(tmp_path: Path) -> None:
    net = Net()
    x = net.input("image", ["n", 3, "h", "w"])
    x = net.conv(x, random(1, 4, 3, 3, 3), random(2, 4), out="conv")
    net.output(net.add("Relu", x, out="relu"), shape=["n", 4, None, None])
    model = net.model()
    pair = save_pair(tmp_path, model, qdq(model, {"image": X}))
    record = quantmedic.collect(*pair, representative={"image": X}, threads=1).record
    assert record.model.operations is None and record.model.integer_operations_share is None


def test_times_of_nodes_are_medians_of_runs_without_the_first() -> None:
    def event(name: str, kind: str, start: int, duration: int, number: int) -> dict[str, object]:
        arguments = {"op_name": kind, "node_index": str(number)}
        return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": duration, "args": arguments}

    events: list[dict[str, object]] = [{"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 5}]
    for run, duration in enumerate([900, 800, 700, 10, 30, 20]):
        events.append(event("a", "Conv", 1000 * run, duration, 1))
        events.append(event("Transpose", "Transpose", 1000 * run + 950, 2, 2))
        events.append(event("Transpose", "Transpose", 1000 * run + 955, 4, 3))
        events.append({"cat": "Session", "name": "model_run", "ts": 1000 * run, "dur": 990})
    assert node_times(events) == {
        ("a", "Conv", "1"): 0.020,
        ("Transpose", "Transpose", "2"): 0.002,
        ("Transpose", "Transpose", "3"): 0.004,
    }


def test_quantizers_count_to_the_layer_that_writes_or_reads(pair: tuple[Path, Path]) -> None:
    graph = open_models(*pair).quantized
    owners = _owners(graph)
    names = {op.index: op.name for op in graph.operators}
    for node in graph.model.graph.node:
        assert node.output[0] in owners, f"{node.op_type} {node.output[0]} belongs to no layer"
    weights = [
        node for node in graph.model.graph.node if node.op_type == "DequantizeLinear" and "weight" in node.input[0]
    ]
    assert {names[owners[node.output[0]]] for node in weights} <= {"conv1", "conv2", "scores"}
    nodes = {(f"quantmedic:{node.output[0]}_token_7", node.op_type, "0"): 1.0 for node in graph.model.graph.node}
    assert sum(_operator_times(nodes, graph).values()) == len(graph.model.graph.node)


@pytest.mark.thorough
def test_a_batch_of_fixed_size_is_timed_whole(tmp_path: Path) -> None:
    pair = save_pair(tmp_path, conv_net(batch=4), qdq(conv_net(batch=4), {"image": X[:4]}))
    record = quantmedic.collect(*pair, representative={"image": X}, threads=1, profile=True).record
    assert record.model.latency_batch == 4


@pytest.mark.thorough
def test_torch_modules_are_timed_as_a_whole() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    module.eval()
    coarse = torch.nn.Sequential(*module)
    case = quantmedic.collect(module, coarse, representative=[torch.from_numpy(X)], profile=True)
    model = case.record.model
    assert model.latency_float_ms > 0 and model.latency_batch == 1 and model.kernels == ()
    assert model.latency_threads == torch.get_num_threads()
    assert np.isfinite(model.latency_ratio)
    assert model.operations == 36 * 4 * 27 + 144 * 5
