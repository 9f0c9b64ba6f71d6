"""The picture of a cause: what is drawn is what was measured."""

from pathlib import Path

import numpy as np
import pytest

import quantmedic
from quantmedic.engine.formulas.spreads import Channels, Spread
from quantmedic.reports.charts.cause import (
    CHANNELS_SHOWN,
    _channels_picture,
    _range_picture,
    _sets_picture,
    cause_pictures,
)


@pytest.mark.thorough
def test_data_that_differ_are_shown_over_each_other(patient_case: Path) -> None:
    opened = quantmedic.inspect(quantmedic.load_case(patient_case))
    picture = cause_pictures(quantmedic.judge(opened), opened)["D005"]
    assert picture.outline.startswith("M") and picture.bars
    assert [limit.text for limit in picture.limits] == ["0", "1"]
    # The representative set fills the range and no more; the validation set reaches below it.
    left = picture.limits[0].at
    assert abs(min(bar.x for bar in picture.bars) - left) < 1 and float(picture.outline[1:].split()[0]) < left


def test_what_is_cut_off_is_red() -> None:
    counts = tuple([10] * 64)
    picture = _range_picture("A001", "x", Spread(-2.0, 2.0, counts, None, -1.0, 1.0, None))
    red = [bar for bar in picture.bars if bar.flagged]
    assert len(picture.bars) == 64 and len(red) == 32
    assert all(bar.x + bar.width <= picture.limits[0].at + 0.2 or bar.x >= picture.limits[1].at - 0.2 for bar in red)


def test_a_bin_that_a_limit_divides_is_red_beyond_it() -> None:
    counts = tuple([10] * 64)
    picture = _range_picture("A001", "x", Spread(-2.0, 2.0, counts, None, -1.01, 1.01, None))
    reach = [limit.at for limit in picture.limits]
    assert len(picture.bars) == 66
    assert all(bar.flagged == (bar.x >= reach[1] - 0.1 or bar.x + bar.width <= reach[0] + 0.9) for bar in picture.bars)


def test_a_range_that_is_too_wide_shows_as_that() -> None:
    """Values from 0 to 1 in a range of 0 to 40: the limit does not stand where the values end."""
    counts = tuple([10] * 64)
    both = (Spread(0.0, 1.0, counts, None, 0.0, 40.0, None), Spread(-0.1, 1.0, counts, None, 0.0, 40.0, None))
    picture = _sets_picture("D018", "image", both, (0.0, 40.0))
    width = picture.right - picture.left
    assert [limit.text for limit in picture.limits] == ["0", "40"]
    assert picture.limits[1].at == pytest.approx(picture.right, abs=0.1)
    assert max(bar.x + bar.width for bar in picture.bars) < picture.left + 0.05 * width
    assert "the range of the quantizer, 0 to 40" in picture.words and "calibrated" not in picture.words


def test_the_step_around_a_stored_value_is_not_cut_off() -> None:
    """Bins reach half a step below 0 where quantized values were counted; the float values end at the limit."""
    counts = (0, 900, *[10] * 62)
    one = Spread(-0.02, 1.0, counts, None, 0.0, 1.0, 0.0, lowest=0.0, highest=1.0)
    picture = _sets_picture("D018", "image", (one, one), (0.0, 1.0))
    assert not any(bar.flagged for bar in picture.bars) and "Red" not in picture.words
    cut = _sets_picture("D018", "image", (one, one), (0.5, 1.0))
    assert any(bar.flagged for bar in cut.bars) and "Red" in cut.words


def test_channels_below_half_a_step_are_red(subtests: pytest.Subtests) -> None:
    for size in [2, 10, 5000]:
        with subtests.test(size=size):
            sizes = np.logspace(-4, 0, size)
            low, high = tuple((-sizes).tolist()), tuple((sizes / 2).tolist())
            channels = Channels(tuple(range(size)), low, high, (None,) * size, total=size)
            picture = _channels_picture("W001", "weights of a", channels, 2e-2)
            assert picture is not None and len(picture.bars) == min(size, CHANNELS_SHOWN)
            share = sum(bar.flagged for bar in picture.bars) / len(picture.bars)
            assert abs(share - np.mean(sizes < 1e-2)) <= 1 / len(picture.bars)
            assert "10000 times" in picture.words.replace(",", "").replace("\u202f", "").replace(" 000", "000")


def test_one_channel_or_none_is_no_picture() -> None:
    assert _channels_picture("W001", "a", Channels((0,), (0.0,), (1.0,), (None,), total=1), None) is None
    assert _channels_picture("W001", "a", Channels((), (), (), ()), None) is None
