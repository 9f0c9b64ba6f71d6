"""What settings and reports of a toolchain say beside the data: formulas on plain facts."""

import pytest

from quantmedic.engine.case.facts import LayerFacts, ModelFacts, ReportedFacts, SettingsFacts
from quantmedic.engine.formulas.first_input import Lattice
from quantmedic.engine.formulas.reported import input_facts, reported_facts, settings_facts, toolchain_fields

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
TOLD = SettingsFacts(input_mean=MEAN, input_scale=tuple(1 / d for d in DEVIATION))


def layers_with_settings(layers: tuple[LayerFacts, ...], settings: SettingsFacts) -> tuple[LayerFacts, ...]:
    found = toolchain_fields(layers, settings)
    return tuple(layer.model_copy(update=found[place]) for place, layer in enumerate(layers))


def read(mean: tuple[float, ...], factor: tuple[float, ...], span: int = 255) -> list[Lattice]:
    """Grids of 8-bit images after (pixel - mean) · factor."""
    return [(f, -m * f, span) for m, f in zip(mean, factor, strict=True)]


PIXELS = read((0.0,) * 3, (1.0,) * 3)
UNIT = read((0.0,) * 3, (1 / 255,) * 3)
NORMALIZED = read(MEAN, tuple(1 / d for d in DEVIATION))


def test_how_images_come_in() -> None:
    centred = read((128.0,) * 3, (1.0,) * 3)
    for view, name in [(PIXELS, "pixels"), (UNIT, "unit"), (NORMALIZED, "other"), (centred, "other")]:
        assert input_facts(view, SettingsFacts()) == {"input_reading": name}


def test_data_against_what_the_toolchain_is_told() -> None:
    same = input_facts(NORMALIZED, TOLD)
    assert same["settings_scale_mismatch"] == pytest.approx(1)
    assert same["settings_mean_difference"] == pytest.approx(0, abs=1e-9)
    swapped = input_facts(NORMALIZED, TOLD.model_copy(update={"input_mean": MEAN[::-1]}))
    assert swapped["settings_mean_difference"] == pytest.approx(123.675 - 103.53)
    deviation = input_facts(NORMALIZED, TOLD.model_copy(update={"input_scale": DEVIATION}))
    assert deviation["settings_scale_mismatch"] == pytest.approx(58.395**2)
    assert input_facts(PIXELS, TOLD)["settings_scale_mismatch"] == pytest.approx(58.395)


def test_one_number_stands_for_all_channels_and_a_missing_one_for_nothing() -> None:
    found = input_facts(UNIT, SettingsFacts(input_scale=(1 / 255,)))
    assert found["settings_scale_mismatch"] == pytest.approx(1)
    assert found["settings_mean_difference"] == 0
    mean = input_facts(read(MEAN, (1.0,) * 3), SettingsFacts(input_mean=MEAN))
    assert (mean["settings_scale_mismatch"], mean["settings_mean_difference"]) == (1, 0)


def test_what_cannot_be_told_is_not() -> None:
    dark = input_facts(read((0.0,) * 3, (1.0,) * 3, span=100), TOLD)
    assert "settings_mean_difference" not in dark and dark["settings_scale_mismatch"] > 50
    assert input_facts([], TOLD) == {}
    assert input_facts(read((0.0,), (1.0,)), TOLD) == {"input_reading": "pixels"}
    assert input_facts(PIXELS, SettingsFacts(input_scale=(0.0,))) == {"input_reading": "pixels"}


@pytest.mark.source("horizon-channel-sequence")
def test_order_and_largest_factor() -> None:
    swaps = [(None, "rgb", None), ("rgb", "rgb", False), ("bgr", "rgb", True), ("nv12", "rgb", False)]
    for runtime, train, expected in swaps:
        told = settings_facts(SettingsFacts(input_order_runtime=runtime, input_order_train=train))
        assert told.swaps_channels is expected
    assert settings_facts(SettingsFacts(input_scale=DEVIATION)).input_factor == 58.395
    assert settings_facts(SettingsFacts()).input_factor is None


#: 10·log10(c² / (1 - c²)) of the cosines; nothing lost is 90.
LEVELS = (6.30, 16.93, 13.85, 90.0, 90.0)


@pytest.mark.source("horizon-inner-on-cpu")
def test_places_devices_and_similarities() -> None:
    devices, cosines = ("CPU", "BPU", "CPU", None, "BPU", "CPU"), (None, 0.9, 0.99, 0.98, 1.0, 1.0)
    rows = zip("abcdef", devices, cosines, strict=True)
    layers = tuple(LayerFacts(name=n, reported=ReportedFacts(device=d, cosine=c)) for n, d, c in rows)
    told = layers_with_settings(layers, SettingsFacts(wide_layers=("c",), host_layers=("b", "f")))
    assert [layer.layers_behind for layer in told] == [5, 4, 3, 2, 1, 0]
    assert [layer.inner_host for layer in told] == [False, False, True, None, False, False]
    assert [layer.wide_asked for layer in told] == [False, False, True, False, False, False]
    assert [layer.host_asked for layer in told] == [False, True, False, False, False, True]
    assert [layer.reported_level_db for layer in told] == [None, *(pytest.approx(v, abs=0.01) for v in LEVELS)]
    assert [layer.reported_before_db for layer in told] == [None, 90, *(layer.reported_level_db for layer in told[1:5])]
    found = reported_facts(told, ModelFacts())
    assert (found["reported_cosine_min"], found["reported_cosine_median"]) == (0.9, 0.99)
    assert found["inner_host_layers"] == 1
    none = reported_facts(layers_with_settings((LayerFacts(),), SettingsFacts()), ModelFacts())
    assert {none["reported_cosine_min"], none["reported_cosine_median"], none["inner_host_layers"]} == {None}
    assert layers_with_settings((LayerFacts(),), SettingsFacts())[0].wide_asked is None
