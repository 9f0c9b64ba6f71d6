"""The figure: of 50 dumps of a trained network with one random layer altered, and of 50 rounded in another way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from builders import device_figure
from builders.device_dumps import BASE, departing
from builders.onnx_models import Array

import quantmedic
from quantmedic.api.opening import open_pair
from quantmedic.api.options import CollectOptions
from quantmedic.collectors.from_device.device_departures import compare_with_device
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.matched_tensors import match_names
from quantmedic.engine.formulas.derive import derive

#: Convolutions with branches; depthwise convolutions and ReLU6; attention.
NETWORKS = ("demo", "mobile", "vit")
#: A few draws for every commit, all of the figure in the night.
FEW = pytest.param("demo", range(4), marks=pytest.mark.thorough, id="few")
ALL = (pytest.param(network, range(50), marks=pytest.mark.nightly, id=network) for network in NETWORKS)


def judge_of(own: device_figure.Patient, folder: Path) -> Callable[[dict[str, Array]], list[tuple[str, ...]]]:
    """Says at which layers a dump departs; the pair is measured once."""
    onnx.save(own.deployed, folder / "quantized.onnx")
    pair = own.path, folder / "quantized.onnx"
    case = quantmedic.collect(*pair, validation=own.feed, threads=1, rules=BASE, attribution=False)
    models, datasets = open_pair(*pair, CollectOptions(validation=own.feed))

    def layers(dump: dict[str, Array]) -> list[tuple[str, ...]]:
        matched = match_names(open_dump(dump), models, {})
        record, _ = compare_with_device(matched, models, case, datasets["validation"], limit=None, threads=1)
        return departing(derive(replace(case, record=case.record.model_copy(update={"device": record})), BASE))

    return layers


@pytest.mark.parametrize("network, seeds", [FEW, *ALL])
def test_the_altered_layer_is_named_and_another_way_to_round_names_none(
    network: str, seeds: range, tmp_path: Path
) -> None:
    own = device_figure.patient(network)
    judge, wrong = judge_of(own, tmp_path), []
    for seed in seeds:
        layer, kind, dump = device_figure.altered(own, seed)
        found = judge(dump)
        if len(found) != 1 or layer not in found[0]:
            wrong.append((seed, layer, kind, found))
        mode, dump = device_figure.rounded_otherwise(own, seed)
        if found := judge(dump):
            wrong.append((seed, "rounding", mode, found))
    assert not wrong
