"""The figure: of 100 dumps of a trained network with one random layer altered, and of 100 rounded in another way."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import device_figure
from builders.device_dumps import BASE, departing
from builders.field_patients import DEMO
from builders.onnx_models import Array

import quantmedic
from quantmedic.api.opening import open_pair
from quantmedic.collectors.from_device.compare import compare_with_device
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.names import match_names
from quantmedic.engine.formulas.derive import derive

Judge = Callable[[dict[str, Array]], list[tuple[str, ...]]]
PAIR = DEMO / "float.onnx", DEMO / "int8_healthy.onnx"
#: Seeds in parts of ten, which run side by side.
tens = pytest.mark.parametrize("first", range(0, 100, 10))


@pytest.fixture(scope="module")
def judge() -> Judge:
    """The layers that a dump is said to depart at; the pair is measured once."""
    data = device_figure.inputs()
    case = quantmedic.collect(*PAIR, validation=data, threads=1, rules=BASE, attribution=False)
    models, datasets = open_pair(*PAIR, {"validation": data}, preprocessing={})

    def layers(dump: dict[str, Array]) -> list[tuple[str, ...]]:
        matched = match_names(open_dump(dump), models, {})
        record, _ = compare_with_device(models, case, matched, datasets["validation"], limit=None, threads=1)
        return departing(derive(replace(case, record=case.record.model_copy(update={"device": record})), BASE))

    return layers


@pytest.mark.thorough
@tens
def test_the_altered_layer_is_named_and_no_other(first: int, judge: Judge) -> None:
    for seed in range(first, first + 10):
        layer, kind, dump = device_figure.altered(seed)
        found = judge(dump)
        assert len(found) == 1 and layer in found[0], (seed, layer, kind, found)


@pytest.mark.thorough
@tens
def test_another_way_to_round_names_none(first: int, judge: Judge) -> None:
    for seed in range(first, first + 10):
        mode, dump = device_figure.rounded_otherwise(seed)
        assert judge(dump) == [], (seed, mode)
