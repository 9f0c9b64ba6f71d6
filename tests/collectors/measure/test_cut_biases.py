"""Biases whose codes were cut off, or wrapped around, at fewer bits than they are stored in."""

import numpy as np

from quantmedic.collectors.measure.bias_facts import at_one_end, cut_bits

WANTED = np.array([12.4, -300.2, 40_000.3, -70_123.4, 1.0e6])


def test_cut_off_and_wrapped_around():
    whole = np.rint(WANTED).astype(np.int64)
    for bits in (10, 16):
        half = 2 ** (bits - 1)
        assert cut_bits(WANTED, np.clip(whole, -half, half - 1)) == bits
        assert cut_bits(WANTED, (whole + half) % (2 * half) - half) == bits


def test_rounding_and_other_changes_are_no_overflow():
    whole = np.rint(WANTED).astype(np.int64)
    assert cut_bits(WANTED, whole) is None
    assert cut_bits(WANTED, whole + np.array([0, 40, 0, 333, 1717])) is None


def test_cut_off_at_one_value_of_all_channels():
    step = np.array([0.001, 0.002, 0.0005, 0.001, 0.002])
    whole = np.rint(WANTED).astype(np.int64)
    limit = np.rint(10.0 / step).astype(np.int64)
    cut = np.clip(whole, -limit, limit)
    assert at_one_end(WANTED, cut, step).tolist() == [False, False, True, True, True]
    assert not at_one_end(WANTED, whole, step).any()
    assert not at_one_end(WANTED, whole + np.array([0, 40, 0, 333, 1717]), step).any()
