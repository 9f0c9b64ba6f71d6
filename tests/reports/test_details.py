"""What the drawer is told of each layer: packed numbers, and as much as fits."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.records import CHANNEL_BINS
from quantmedic.engine.diagnosis.inspection import LayerDetail
from quantmedic.engine.formulas.spreads import CHANNELS, SPREAD_BINS, Channels, Spread
from quantmedic.reports.page.data import dump
from quantmedic.reports.page.details import GRANTS, _detail, _grant, _spread
from quantmedic.reports.page.packing import (
    BASE,
    DIGITS,
    pack_counts,
    pack_heights,
    pack_levels,
    pack_places,
    pack_reals,
)
from quantmedic.reports.text import inert_json


def codes(text: str, width: int) -> list[int]:
    places = [DIGITS.index(letter) for letter in text]
    return [
        sum(p * BASE ** (width - 1 - i) for i, p in enumerate(places[at : at + width]))
        for at in range(0, len(text), width)
    ]


def test_packed_text_needs_no_escape() -> None:
    assert len(set(DIGITS)) == BASE
    assert inert_json(dump(DIGITS)).strip() == f'"{DIGITS}"'
    assert not set(DIGITS) & set("/\\{}%&<>'\"")


@given(st.lists(st.integers(0, 2**60), min_size=1))
def test_counts_keep_their_size(counts: list[int]) -> None:
    text = pack_counts(counts)
    assert len(text) == 2 * len(counts)
    for count, code in zip(counts, codes(text, 2), strict=True):
        assert (code == 0) == (count == 0)
        if count:
            found = round(2 ** ((code - 1) / 100))
            assert abs(found - count) <= (0 if count <= 100 else 0.0036 * count + 0.5)


@given(st.lists(st.floats(-1e18, 1e18), min_size=1))
def test_reals_keep_three_digits(values: list[float]) -> None:
    steps, lowest, half = 2200, -64, 128 * 2200
    for value, code in zip(values, codes(pack_reals(values), 3), strict=True):
        place = (code - 1) % half
        size = (1 + place % steps / steps) * 2.0 ** (place // steps + lowest) if code else 0.0
        found = -size if code > half else size
        assert math.isclose(found, value, rel_tol=3e-4, abs_tol=2.0**-64)


def test_levels_and_places_keep_what_they_are() -> None:
    assert codes(pack_levels([None, math.inf, -math.inf, -100, 0, 20.04, 240, 1000]), 2) == [
        6802,
        6801,
        0,
        0,
        2000,
        2401,
        6800,
        6800,
    ]
    assert codes(pack_places([0, 1, 82, 83, 11_007]), 3) == [0, 1, 82, 83, 11_007]


def test_heights_keep_what_is_empty_and_what_is_fullest() -> None:
    assert codes(pack_heights([[0, 1, 128], [254, 255, 0]]), 1) == [0, 1, 42, 82, 82, 0]


def detail(channels: int) -> LayerDetail:
    spread = Spread(0.0, 1.0, (1,) * SPREAD_BINS, None, 0.0, 1.0, 0.0)
    ends = (0.0,) * channels
    strip = Channels(tuple(range(channels)), ends, ends, ends, total=channels)
    heights = ((9,) * CHANNEL_BINS,) * channels
    weights = replace(strip, quantized_low=ends, quantized_high=ends, heights=heights, start=-1.0, stop=1.0)
    return LayerDetail({"validation": spread}, {"validation": strip}, None, weights, ())


@pytest.mark.source("insights-channels")
def test_the_first_layers_get_most() -> None:
    details = {place: detail(CHANNELS) for place in (5, 3, 8, 1)}
    assert _grant(details, 10**9) == dict.fromkeys(details, GRANTS[-1])
    assert _grant(details, 0) == {}
    for budget in range(0, 20_000, 250):
        granted = _grant(details, budget)
        assert list(granted) == list(details)[: len(granted)]
        ranks = [GRANTS.index(granted[place]) for place in granted]
        assert ranks == sorted(ranks, reverse=True)


def test_what_is_granted_takes_about_what_was_reckoned(subtests: pytest.Subtests) -> None:
    for budget in [1_000, 3_000, 10_000]:
        with subtests.test(budget=budget):
            details = {place: detail(CHANNELS) for place in range(20)}
            facts: dict[str, Any] = {}
            texts = [dump(_detail(details[place], grant, facts)) for place, grant in _grant(details, budget).items()]
            assert 0 < sum(map(len, texts)) <= budget


@pytest.mark.source("insights-channel-histograms")
def test_histograms_of_weight_channels_take_what_room_there_is() -> None:
    own, facts = detail(CHANNELS), dict[str, int]()
    assert "weight_histograms" not in _detail(own, GRANTS[0], facts)
    for grant in GRANTS[2:]:
        start, stop, text = _detail(own, grant, facts)["weight_histograms"]
        assert (start, stop, len(text)) == (-1.0, 1.0, grant[2] * CHANNEL_BINS)
    poor = replace(own, weight_channels=replace(own.weight_channels, heights=None))
    assert "weight_histograms" not in _detail(poor, GRANTS[-1], facts)


@pytest.mark.source("insights-histograms")
def test_bins_are_joined_where_there_is_little_room() -> None:
    spread = Spread(0.0, 1.0, tuple(range(SPREAD_BINS)), tuple(range(SPREAD_BINS)), None, None, None)
    packed = _spread(spread, 32)
    assert packed is not None
    joined = np.arange(SPREAD_BINS).reshape(32, 2).sum(axis=1)
    assert packed[5] == packed[6] == pack_counts(joined)
