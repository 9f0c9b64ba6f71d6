"""Biases whose codes were cut off, or wrapped around, at fewer bits than they are stored in."""

import numpy as np
import pytest

from quantmedic.collectors.measure.bias_facts import cut_bits

WANTED = np.array([12.4, -300.2, 40_000.3, -70_123.4, 1.0e6])


@pytest.mark.parametrize("bits", [10, 16])
def test_cut_off_and_wrapped_around(bits: int):
    half = 2 ** (bits - 1)
    whole = np.rint(WANTED).astype(np.int64)
    assert cut_bits(WANTED, np.clip(whole, -half, half - 1)) == bits
    assert cut_bits(WANTED, (whole + half) % (2 * half) - half) == bits


def test_rounding_and_other_changes_are_no_overflow():
    whole = np.rint(WANTED).astype(np.int64)
    assert cut_bits(WANTED, whole) is None
    assert cut_bits(WANTED, whole + np.array([0, 40, 0, 333, 1717])) is None
