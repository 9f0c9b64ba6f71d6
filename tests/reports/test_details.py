"""What the drawer is told of each layer: as much as fits."""

from dataclasses import replace

import numpy as np
import pytest

from quantmedic.engine.case.records import CHANNEL_BINS
from quantmedic.engine.diagnosis.inspection import LayerDetail
from quantmedic.engine.formulas.spreads import CHANNELS, SPREAD_BINS, Channels, Spread
from quantmedic.reports.page.details import GRANTS, _detail, _grant, _spread
from quantmedic.reports.page.short_json import dump


def detail(channels: int) -> LayerDetail:
    spread = Spread(0.0, 1.0, (1,) * SPREAD_BINS, None, 0.0, 1.0, 0.0)
    ends = (0.0,) * channels
    strip = Channels(tuple(range(channels)), ends, ends, ends, total=channels)
    heights = ((9,) * CHANNEL_BINS,) * channels
    weights = replace(strip, quantized_low=ends, quantized_high=ends, heights=heights, start=-1.0, stop=1.0)
    return LayerDetail({"validation": spread}, {"validation": strip}, None, weights)


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
            texts = [dump(_detail(details[place], grant)) for place, grant in _grant(details, budget).items()]
            assert 0 < sum(map(len, texts)) <= budget


@pytest.mark.source("insights-channel-histograms")
def test_histograms_of_weight_channels_take_what_room_there_is() -> None:
    own = detail(CHANNELS)
    assert "weight_histograms" not in _detail(own, GRANTS[0])
    for grant in GRANTS[2:]:
        start, stop, text = _detail(own, grant)["weight_histograms"]
        assert (start, stop, len(text)) == (-1.0, 1.0, grant[2] * CHANNEL_BINS)
    poor = replace(own, weight_channels=replace(own.weight_channels, heights=None))
    assert "weight_histograms" not in _detail(poor, GRANTS[-1])


@pytest.mark.source("insights-histograms")
def test_bins_are_joined_where_there_is_little_room() -> None:
    spread = Spread(0.0, 1.0, tuple(range(SPREAD_BINS)), tuple(range(SPREAD_BINS)), None, None, None)
    written = _spread(spread, 32)
    assert written is not None
    joined = np.arange(SPREAD_BINS).reshape(32, 2).sum(axis=1)
    assert written[5] == written[6] == joined.tolist()
