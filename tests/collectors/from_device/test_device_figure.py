"""The figure: of 100 dumps of a trained network with one random layer altered, and of 100 rounded in another way."""

from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest
from builders import device_figure
from builders.device_dumps import BASE, departing
from builders.onnx_models import Array

import quantmedic
from quantmedic.api.opening import open_pair
from quantmedic.collectors.from_device.compare import compare_with_device
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.names import match_names
from quantmedic.engine.formulas.derive import derive

Judge = Callable[[dict[str, Array]], list[tuple[str, ...]]]
#: Convolutions with branches; depthwise convolutions and ReLU6; attention.
NETWORKS = ("demo", "mobile", "vit")
#: A few draws for every commit, all of the figure in the night.
thorough = pytest.param(range(4), marks=pytest.mark.thorough, id="few")
all_draws = pytest.param(range(100), marks=pytest.mark.nightly, id="all")
draws = pytest.mark.parametrize("seeds", [thorough, all_draws])


@pytest.fixture(scope="module", params=NETWORKS)
def own(request: pytest.FixtureRequest) -> device_figure.Patient:
    return device_figure.patient(request.param)


@pytest.fixture(scope="module")
def judge(own: device_figure.Patient, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """The layers that a dump is said to depart at; the pair is measured once."""
    quantized = tmp_path_factory.mktemp("deployed") / "quantized.onnx"
    onnx.save(own.deployed, quantized)
    pair = own.path, quantized
    case = quantmedic.collect(*pair, validation=own.feed, threads=1, rules=BASE, attribution=False)
    models, datasets = open_pair(*pair, {"validation": own.feed}, preprocessing={})

    def layers(dump: dict[str, Array]) -> list[tuple[str, ...]]:
        matched = match_names(open_dump(dump), models, {})
        record, _ = compare_with_device(models, case, matched, datasets["validation"], limit=None, threads=1)
        return departing(derive(replace(case, record=case.record.model_copy(update={"device": record})), BASE))

    return layers


@draws
def test_the_altered_layer_is_named_and_no_other(seeds: range, own: device_figure.Patient, judge: Judge) -> None:
    wrong = []
    for seed in seeds:
        layer, kind, dump = device_figure.altered(own, seed)
        found = judge(dump)
        if len(found) != 1 or layer not in found[0]:
            wrong.append((seed, layer, kind, found))
    assert not wrong


@draws
def test_another_way_to_round_names_none(seeds: range, own: device_figure.Patient, judge: Judge) -> None:
    found = {seed: judge(device_figure.rounded_otherwise(own, seed)[1]) for seed in seeds}
    assert not {seed: layers for seed, layers in found.items() if layers}
