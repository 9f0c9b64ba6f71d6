"""Sensitivity runs on real models: what they are made of, and what must hold of any of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, dynamic, images, random, residual_net, save_pair, static, token_net
from builders.tiers import others_nightly
from numpy.typing import NDArray

from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.measure.collect_pair import collect
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.options import Options
from quantmedic.demo import patient
from quantmedic.engine.contract.searches import MODES
from quantmedic.trials.layer_search import Experiment, Searched
from quantmedic.trials.places import Unit, left_in_float

Array = NDArray[Any]


def experiment(paths: tuple[Path, Path], data: Any, samples: int = 64, seed: int = 0, **options: Any) -> Experiment:
    models = open_models(*paths)
    dataset = open_dataset(data, models.input_specs, role="validation", **options)
    case = collect(Measurement(models, {"validation": dataset}, Options(samples=8)))
    searched = Searched(models, dataset, case, None, 1, seed)
    return Experiment(searched, modes=MODES, samples=samples, batch_size=8)


def pair(folder: Path, model: onnx.ModelProto, feed: dict[str, Array], **options: Any) -> tuple[Path, Path]:
    return save_pair(folder, model, static(model, feed, folder, **options))


ZOO = Path(__file__).parents[2] / "benchmarks" / "zoo" / "networks"
NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual_net,
    "tokens": token_net,
    **{name: partial(onnx.load, ZOO / f"{name}.onnx") for name in ("vit", "gru")},
}


def feed_for(model: onnx.ModelProto, n: int = 12) -> dict[str, Array]:
    feed = {}
    for value in model.graph.input:
        shape = [n, *(d.dim_value or 6 for d in value.type.tensor_type.shape.dim[1:])]
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        numbers = np.arange(np.prod(shape)).reshape(shape)
        feed[value.name] = random(3, *shape) if is_float else (5 * numbers + numbers // 3) % 7
    return feed


def check_runs(net: Experiment) -> None:
    """What must hold of the runs of any network."""
    names = [unit.name for unit in net.units]
    inputs = [name for name in names if name.endswith("(input)")]
    assert names[: len(inputs)] == inputs
    assert len(set(names)) == len(names)
    tensors = [i for unit in net.units for i in unit.tensors]
    assert len(set(tensors)) == len(tensors)
    assert bool(inputs) == any(unit.quantized == ("values",) for unit in net.units)
    operators = [unit.operator for unit in net.units if unit.operator is not None]
    assert operators == sorted(set(operators)) and operators, "layers come in order of execution"
    record = net.start
    assert abs(record.simulation_gap_db) < 1 and record.unsimulated == ()
    assert net.outcome(()).sqnr_db > 90, "without any layer there is no noise"
    for mode, unit in record.planned:
        record = record.add_run(mode, unit, net.run(mode, unit))
    assert record.missing == ()
    for mode in MODES:
        assert record.leading(mode, 3)
    outcomes = {(run.mode, run.unit): run.sqnr_db for run in record.runs}
    assert outcomes["cumulative", 0] == outcomes["one", 0], "the first layer alone is the first of them all"
    assert outcomes["cumulative", len(net.units) - 1] == record.simulated.sqnr_db, "and all are the whole network"
    shares = [run.share or 0.0 for run in record.runs if run.mode == "one"]
    assert max(shares) > 1 / len(net.units) / 2
    empty = Unit("nothing", "Identity", None, (), ())
    assert not left_in_float([empty], ())
    net.units = [*net.units, empty]
    assert net.run("all-but-one", len(net.units) - 1) == record.simulated, "without quantizers nothing changes"


@pytest.mark.thorough
@pytest.mark.parametrize("name", others_nightly(NETS))
def test_runs_of_a_network(name: str, tmp_path: Path) -> None:
    model = NETS[name]()
    feed = feed_for(model)
    check_runs(experiment(pair(tmp_path, model, feed), feed))


def test_a_fused_activation_belongs_to_the_layer_before_it(tmp_path: Path) -> None:
    model = conv_net()
    feed = {"image": images()}
    names = [unit.name for unit in experiment(pair(tmp_path, model, feed), feed).units]
    assert "conv1" in names and "relu1" not in names


def test_dynamic_quantizers_belong_to_the_layers_that_read_them(tmp_path: Path) -> None:
    model = token_net()
    feed = feed_for(model)
    found = experiment(save_pair(tmp_path, model, dynamic(model, tmp_path)), feed)
    assert ("weight", "input") in {unit.quantized for unit in found.units}
    assert not found.start.unsimulated


@pytest.mark.nightly
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


@pytest.mark.thorough
def test_samples_are_taken_as_the_model_and_the_set_allow(tmp_path: Path) -> None:
    model = conv_net()
    paths = pair(tmp_path, model, {"image": images()})
    one = experiment(paths, {"image": images()}, samples=1)
    assert one.start.samples == 1
    assert one.run("one", 0).sqnr_db > one.start.simulated.sqnr_db
    endless = experiment(paths, lambda: iter([images(30)]), samples=16).start
    begin = experiment(paths, images(30)[:16], samples=16).start
    assert endless.data_sha256 == begin.data_sha256, "a set of unknown length is read from its start"
    fixed = pair(tmp_path, conv_net(batch=4), {"image": images(4)})
    assert experiment(fixed, {"image": images(40)}, samples=10).start.samples == 8, "four at once"
