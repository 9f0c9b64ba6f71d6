"""Levels: the formula, and what it gives where logarithms end."""

import math

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.decibels import sqnr_db, sqnr_of_nmse, to_decibels

powers = st.floats(1e-30, 1e30)
few = examples(50)
nan, inf = math.nan, math.inf


@given(powers)
@few
def test_ten_times_the_power_is_ten_decibels_more(ratio: float) -> None:
    assert to_decibels(10 * ratio) == pytest.approx(to_decibels(ratio) + 10, abs=1e-9)
    assert to_decibels(1.0) == 0


@given(powers, powers)
@few
def test_one_formula_for_powers_ratios_and_columns(signal: float, noise: float) -> None:
    level = sqnr_db(signal, noise)
    assert level == pytest.approx(10 * math.log10(signal / noise), abs=1e-9)
    assert sqnr_of_nmse(noise / signal) == pytest.approx(level, abs=1e-9)
    assert sqnr_db(np.array([signal]), np.array([noise])).tolist() == [level]


def test_ends_of_the_scale() -> None:
    signal = np.array([1.0, 0.0, 0.0, inf, 1.0, inf, nan, 1.0, nan, 1e300, 1.0])
    noise = np.array([0.0, 0.0, 1.0, 1.0, inf, inf, 1.0, nan, 0.0, 1e-300, 1.0])
    level = [inf, inf, -inf, inf, -inf, nan, nan, nan, nan, inf, 0.0]
    assert sqnr_db(signal, noise).tolist() == pytest.approx(level, nan_ok=True)
    assert [sqnr_db(*pair) for pair in zip(signal, noise, strict=True)] == pytest.approx(level, nan_ok=True)


def test_a_ratio_that_is_unknown_has_no_level() -> None:
    assert [sqnr_of_nmse(nmse) for nmse in (None, nan, 0.0, inf, 0.01)] == [None, None, inf, -inf, 20.0]
    assert to_decibels(np.array([0.0, -1.0, inf, 1.0])).tolist() == [-inf, -inf, inf, 0.0]
    assert math.isnan(to_decibels(nan))
