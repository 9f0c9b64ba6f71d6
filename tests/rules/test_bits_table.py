"""The table of bits of the manual is what rounding leaves of normally distributed weights."""

import re

import numpy as np

from quantmedic.api.rulebase import load_manuals, load_rulebase

ROW = re.compile(r"^\| (\d) \| (\d+) \| (\S+) dB \| (\S+) dB \| (\S+) dB \| (\S+) dB \|$", re.MULTILINE)


def left_db(values: np.ndarray, bits: int, *, zero_points: bool) -> float:
    """Signal over noise behind rounding, of groups in rows."""
    low = values.min(1, keepdims=True) if zero_points else -np.abs(values).max(1, keepdims=True)
    high = values.max(1, keepdims=True) if zero_points else -low
    step = (high - low) / (2**bits - 1 if zero_points else 2**bits - 2)
    shift = low if zero_points else 0.0
    rounded = np.rint((values - shift) / step) * step + shift
    return float(10 * np.log10((values**2).sum() / ((values - rounded) ** 2).sum()))


def test_the_table_of_bits_is_what_rounding_leaves() -> None:
    page = load_manuals(load_rulebase())["general/weights"]
    rows = ROW.findall(page)
    assert [row[0] for row in rows] == ["2", "3", "4", "8"]
    weights = np.random.default_rng(7).normal(size=1 << 19)
    for bits, count, *written in rows:
        assert int(count) == 2 ** int(bits)
        computed = [
            left_db(weights.reshape(-1, size), int(bits), zero_points=points)
            for points in (False, True)
            for size in (32, 128)
        ]
        assert np.allclose(computed, np.array(written, float), atol=0.15), bits
