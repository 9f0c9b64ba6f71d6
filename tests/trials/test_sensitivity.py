"""Sensitivity runs on real models: what they are made of, and what must hold of any of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    attention_net,
    branch_net,
    conv_net,
    dynamic,
    images,
    random,
    residual_net,
    save_pair,
    static,
    token_net,
)
from numpy.typing import NDArray

from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.from_onnx.models import open_models
from quantmedic.collectors.measure.collect import collect
from quantmedic.collectors.measure.options import Options
from quantmedic.demo import patient
from quantmedic.engine.diagnosis.sensitivity import MODES
from quantmedic.trials.sensitivity import Experiment, Unit, left_in_float

Array = NDArray[Any]


def experiment(paths: tuple[Path, Path], data: Any, samples: int = 64, seed: int = 0, **options: Any) -> Experiment:
    models = open_models(*paths)
    dataset = open_dataset(data, models.input_specs, role="validation", **options)
    case = collect(models, {"validation": dataset}, options=Options(samples=8), version="test")
    return Experiment(
        models, dataset, case, modes=MODES, samples=samples, batch_size=8, threads=1, seed=seed, metric=None
    )


def pair(folder: Path, model: onnx.ModelProto, feed: dict[str, Array], **options: Any) -> tuple[Path, Path]:
    return save_pair(folder, model, static(model, feed, folder, **options))


ZOO = Path(__file__).parents[2] / "benchmarks" / "zoo" / "networks"
NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "convolutions": conv_net,
    "residual": residual_net,
    "branches": branch_net,
    "tokens": token_net,
    "attention": attention_net,
    **{name: partial(onnx.load, ZOO / f"{name}.onnx") for name in ("mobile", "csp", "vit", "gru")},
}


def feed_for(model: onnx.ModelProto, n: int = 12) -> dict[str, Array]:
    feed = {}
    for value in model.graph.input:
        shape = [n, *(d.dim_value or 6 for d in value.type.tensor_type.shape.dim[1:])]
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        numbers = np.arange(np.prod(shape)).reshape(shape)
        feed[value.name] = random(3, *shape) if is_float else (5 * numbers + numbers // 3) % 7
    return feed


@pytest.fixture(params=list(NETS), scope="module")
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    model = NETS[request.param]()
    feed = feed_for(model)
    return experiment(pair(tmp_path_factory.mktemp(request.param), model, feed), feed)


@pytest.mark.thorough
def test_units_are_layers_in_order_of_execution_and_the_network_input(net: Experiment) -> None:
    names = [unit.name for unit in net.units]
    inputs = [name for name in names if name.endswith("(input)")]
    assert names[: len(inputs)] == inputs
    assert len(set(names)) == len(names)
    tensors = [i for unit in net.units for i in unit.tensors]
    assert len(set(tensors)) == len(tensors)
    assert bool(inputs) == any(unit.quantized == ("values",) for unit in net.units)
    operators = [unit.operator for unit in net.units if unit.operator is not None]
    assert operators == sorted(set(operators)) and operators


@pytest.mark.thorough
def test_all_layers_from_the_input_on_are_the_whole_network(net: Experiment) -> None:
    assert net.run("cumulative", len(net.units) - 1) == net.start.simulated


def test_the_first_layer_alone_is_the_first_of_them_all(net: Experiment) -> None:
    assert net.run("cumulative", 0) == net.run("one", 0)


def test_without_any_layer_there_is_no_noise(net: Experiment) -> None:
    assert net.outcome(()).sqnr_db > 90


def test_the_simulated_network_is_the_deployed_one(net: Experiment) -> None:
    assert abs(net.start.simulation_gap_db) < 1
    assert net.start.unsimulated == ()


@pytest.mark.thorough
def test_some_layer_matters_in_every_mode(net: Experiment) -> None:
    record = net.start
    for mode, unit in record.planned:
        record = record.add_run(mode, unit, net.run(mode, unit))
    assert record.missing == ()
    for mode in MODES:
        assert record.leading(mode, 3)
    alone = [run for run in record.runs if run.mode == "one"]
    assert max(run.share or 0.0 for run in alone) > 1 / len(net.units) / 2


def test_a_unit_without_quantizers_changes_nothing(net: Experiment) -> None:
    empty = Unit("nothing", "Identity", None, (), ())
    assert not left_in_float([empty])
    before = list(net.units)
    net.units = [*before, empty]
    try:
        assert net.run("all-but-one", len(before)) == net.start.simulated
    finally:
        net.units = before


def test_a_fused_activation_belongs_to_the_layer_before_it(tmp_path: Path) -> None:
    model = conv_net()
    feed = {"image": images()}
    names = [unit.name for unit in experiment(pair(tmp_path, model, feed), feed).units]
    assert "conv1" in names and "relu1" not in names


def test_dynamic_quantizers_are_named_as_left_out(tmp_path: Path) -> None:
    model = token_net()
    feed = feed_for(model)
    found = experiment(save_pair(tmp_path, model, dynamic(model, tmp_path)), feed)
    assert {unit.quantized for unit in found.units} <= {("weight",), ("weight", "bias")}
    assert found.start.unsimulated


@pytest.mark.thorough
def test_so_many_samples_are_taken_from_all_over_the_set() -> None:
    (paths, options), rows = patient(), 100
    with np.load(options["validation"]) as stored:
        data = {"image": stored["image"][:rows].copy()}
    prepare = options["preprocessing"]["validation"]
    assert isinstance(prepare, Preprocessing)
    found = [experiment(paths, data, 64, seed, preprocessing=prepare).start for seed in (0, 0, 1)]
    assert [record.samples for record in found] == [64, 64, 64]
    assert found[0] == found[1]
    assert found[0].data_sha256 != found[2].data_sha256


def test_one_sample_will_do(tmp_path: Path) -> None:
    model = conv_net()
    feed = {"image": images()}
    found = experiment(pair(tmp_path, model, feed), feed, samples=1)
    assert found.start.samples == 1
    assert found.run("one", 0).sqnr_db > found.start.simulated.sqnr_db


def test_a_model_that_takes_a_fixed_number_at_once(tmp_path: Path) -> None:
    model = conv_net(batch=4)
    feed = {"image": images(4)}
    found = experiment(pair(tmp_path, model, feed), {"image": images(40)}, samples=10)
    assert found.start.samples == 8


def test_a_set_of_unknown_length_is_read_from_its_start(tmp_path: Path) -> None:
    model = conv_net()
    feed = {"image": images()}
    paths = pair(tmp_path, model, feed)
    given = experiment(paths, lambda: iter([images(30)]), samples=16)
    assert given.start.data_sha256 == experiment(paths, images(30)[:16], samples=16).start.data_sha256
