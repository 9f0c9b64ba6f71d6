"""The search for layers to leave in float on real networks, and its check on the edited model."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import attention_net, conv_net, images, own, qdq, random, save_pair, session
from builders.trial_bench import Reader
from numpy.typing import NDArray
from onnxruntime.quantization import quantize_static

from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.measure.collect_pair import collect
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.metrics.metric import Metric, load_metric
from quantmedic.demo import patient
from quantmedic.engine.contract.searches import FallbackRecord, Goal
from quantmedic.engine.errors import DataError
from quantmedic.trials.float_search import FallbackTrial
from quantmedic.trials.from_onnx.onnx_remedies import edit
from quantmedic.trials.layer_search import Searched

pytestmark = pytest.mark.thorough

Array = NDArray[Any]
ZOO = Path(__file__).parents[2] / "benchmarks" / "zoo" / "networks"


def pictures() -> tuple[Array, Array]:
    _, options = patient(healthy=True)
    with np.load(options["validation"]) as arrays:
        return arrays["image"].astype(np.float32) / 255, arrays["labels"].astype(np.int64)


@pytest.fixture(scope="module")
def csp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    source, target = ZOO / "csp.onnx", tmp_path_factory.mktemp("csp") / "int8.onnx"
    name = onnx.load(source).graph.input[0].name
    quantize_static(own(source, target.parent), target, Reader(name, pictures()[0][:32]), per_channel=True)
    return source, target


def trial(
    paths: tuple[Path, Path], data: Any, goal: Goal, *, labels: Array | None = None, metric: Metric | None = None,
    **options: Any,
) -> FallbackTrial:  # fmt: skip
    models = open_models(*paths)
    dataset = open_dataset(data, models.input_specs, role="validation", labels=labels)
    case = collect(Measurement(models, {"validation": dataset}, Options(samples=8)))
    settings = {"samples": 64, **options}
    seed = settings.pop("seed", 0)
    return FallbackTrial(Searched(models, dataset, case, metric, 1, seed), goal, **settings)


def outputs(path: Path | onnx.ModelProto, data: Array) -> Array:
    opened = session(path)
    return np.asarray(opened.run(None, {opened.get_inputs()[0].name: data})[0], np.float64)


def sqnr_db(floats: Array, found: Array) -> float:
    return float(10 * np.log10((floats**2).sum() / ((found - floats) ** 2).sum()))


@pytest.fixture(scope="module")
def record(csp: tuple[Path, Path]) -> FallbackRecord:
    return trial(csp, pictures()[0], Goal(kind="sqnr", limit=30.0)).search()


@pytest.mark.nightly
def test_set_meets_the_goal_on_samples_that_the_search_did_not_see(
    record: FallbackRecord, csp: tuple[Path, Path]
) -> None:
    assert record.found and record.verdict in ("met", "unsure")
    assert 1 <= len(record.layers) <= 6
    assert record.evaluations <= max(len(record.units) / 5, 2 * len(record.layers) + np.log2(len(record.units)))
    assert record.one_at_a_time > 3 * record.evaluations
    check = record.check
    assert check is not None and check.after is not None and not check.shared and check.failed is None
    assert check.samples >= 100 and record.samples == 64
    assert check.after.sqnr_db > check.before.sqnr_db + 2
    assert check.after.sqnr_low < check.after.sqnr_db < check.after.sqnr_high
    cost = record.cost
    assert cost is not None and cost.operations is not None and cost.operations_all is not None
    assert 0 < cost.operations < cost.operations_all
    assert cost.readers >= 1 and cost.bytes > 0
    order = {node.name: place for place, node in enumerate(onnx.load(csp[0]).graph.node)}
    places = [order[layer.nodes[0]] for layer in record.layers if layer.nodes]
    assert places == sorted(places), "layers come in the order of execution"
    assert trial(csp, pictures()[0], Goal(kind="sqnr", limit=30.0)).search() == record, "with the same seed"


def test_names_serve_the_quantizer(record: FallbackRecord, csp: tuple[Path, Path], tmp_path: Path) -> None:
    """Quantized again without the nodes that are printed, the network reaches the goal."""
    names = {node.name for node in onnx.load(csp[0]).graph.node}
    assert set(record.nodes_to_exclude) <= names
    data = pictures()[0]
    target = tmp_path / "fallback.onnx"
    name = onnx.load(csp[0]).graph.input[0].name
    excluded = list(record.nodes_to_exclude)
    quantize_static(own(csp[0], tmp_path), target, Reader(name, data[:32]), per_channel=True, nodes_to_exclude=excluded)
    floats = outputs(csp[0], data)
    assert sqnr_db(floats, outputs(target, data)) > record.goal.limit - 0.5
    assert sqnr_db(floats, outputs(csp[1], data)) < record.goal.limit - 2


def test_operators_that_only_move_values_belong_to_the_layer_before(csp: tuple[Path, Path], tmp_path: Path) -> None:
    model = conv_net()
    paths = save_pair(tmp_path, model, qdq(model, {"image": images()}))
    found = trial(paths, images(24), Goal(kind="sqnr", limit=100.0))
    types = [{found._case.record.operators[k].op_type for k in group.operators} for group in found.groups]
    assert {"GlobalAveragePool", "Flatten"} in types
    joined = [i for group in found.groups for i in group.tensors]
    assert len(joined) == len(set(joined)), "every quantizer belongs to one layer"


def test_constants_beside_activations_can_be_carried_out(tmp_path: Path) -> None:
    """The gains of normalizations and the terms of additions are no weights of a kernel."""
    source, data = ZOO / "vit.onnx", 2 * pictures()[0][:96] - 1
    name = onnx.load(source).graph.input[0].name
    quantize_static(own(source, tmp_path), tmp_path / "int8.onnx", Reader(name, data[:16]), per_channel=True)
    found = trial((source, tmp_path / "int8.onnx"), data, Goal(kind="sqnr", limit=80.0), samples=32)
    every = found.change(frozenset(range(len(found.groups))))
    edited = edit(found._models, found._case, every)
    assert edited.unedited == ()
    assert sqnr_db(outputs(source, data), outputs(edited.model, data)) > 80


def test_goal_that_int8_meets_needs_nothing(csp: tuple[Path, Path]) -> None:
    data, labels = pictures()
    found = trial(csp, data, Goal(kind="drop", limit=0.5), labels=labels, metric=load_metric("top1")).search()
    assert found.goal.metric == "top1" and found.verdict == "met" and found.layers == () and found.evaluations == 1
    assert found.check is not None and found.check.after is None


def test_few_samples_are_searched_and_checked_alike_and_that_is_said(csp: tuple[Path, Path]) -> None:
    found = trial(csp, pictures()[0][:40], Goal(kind="sqnr", limit=28.0)).search()
    assert found.check is not None and found.check.shared
    assert found.check.samples == 40 and found.samples == 40


@pytest.mark.nightly
def test_drop_without_labels_is_the_agreement_with_the_float_class(csp: tuple[Path, Path]) -> None:
    found = trial(csp, pictures()[0], Goal(kind="drop", limit=0.0)).search()
    assert found.goal.metric == "agreement" and found.found
    assert found.check is not None and found.check.before.metric is not None
    assert found.check.before.drop == pytest.approx(1 - found.check.before.metric)


def test_drop_needs_classes_or_labels(tmp_path: Path) -> None:
    model, feed = attention_net(), {"x": random(3, 24, 6, 8)}
    paths = save_pair(tmp_path, model, qdq(model, feed))
    with pytest.raises(DataError, match="does not hold class scores"):
        trial(paths, feed, Goal(kind="drop", limit=0.0))


def test_models_of_a_fixed_batch(tmp_path: Path) -> None:
    model = conv_net(batch=4)
    data = random(5, 80, 3, 8, 8)
    paths = save_pair(tmp_path, model, qdq(model, {"image": data[:4]}))
    found = trial(paths, data, Goal(kind="sqnr", limit=60.0), samples=32).search()
    assert found.samples == 32 and found.found
    assert found.check is not None and found.check.samples >= 32
