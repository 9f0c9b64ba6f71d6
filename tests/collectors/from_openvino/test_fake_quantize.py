"""Grids read from FakeQuantize round as OpenVINO's formula does; no package of it is needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.from_openvino.fake_quantize import FakeGrid, Ranges, fake_grid_of


def fake_quantize(x: np.ndarray, ranges: Ranges, levels: int) -> np.ndarray:
    """OpenVINO's formula, in float64."""
    low, high, low_out, high_out = ranges
    codes = np.rint((x - low) / (high - low) * (levels - 1))
    inside = codes / (levels - 1) * (high_out - low_out) + low_out
    return np.where(x <= low, low_out, np.where(x > high, high_out, inside))


def rounded(grid: FakeGrid, x: np.ndarray, ranges: Ranges) -> np.ndarray:
    """The same by the quantizers; a level that is left out is beyond the ends."""
    codes = grid.encoder.encode(np.clip(x, ranges.input_low, ranges.input_high).astype(np.float32))
    return grid.decoder.dequantize(codes)


def ranges_of(low: object, high: object, output: tuple[object, object] | None = None) -> Ranges:
    low_out, high_out = output or (low, high)
    return Ranges(*(np.asarray(end, np.float64) for end in (low, high, low_out, high_out)))


def values_off_ties(steps: np.ndarray, zero: int, levels: int, seed: int) -> np.ndarray:
    """Values within and beyond the range, none of them between two codes, where both forms may round apart."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-zero - 9, levels - zero + 9, (64, steps.size))
    return (codes + rng.uniform(-0.4, 0.4, codes.shape)) * steps


@given(
    st.sampled_from([256, 255, 16, 15, 65536]), st.floats(1e-3, 10), st.data(), st.integers(0, 2**16), st.integers(1, 4)
)
def test_a_grid_rounds_as_the_operation(levels, step, data, seed, channels):
    """Unsigned, signed and asymmetric, per tensor and per channel."""
    bits = (levels - 1).bit_length()
    middle = levels // 2 if levels % 2 == 0 else (levels - 1) // 2
    zero = data.draw(st.sampled_from([0, middle, levels // 5]))
    steps = step * (1 + np.arange(channels)).astype(np.float64)
    ranges = ranges_of((-zero * steps).reshape(1, -1), ((levels - 1 - zero) * steps).reshape(1, -1))
    grid = fake_grid_of(levels, ranges, 2)
    assert grid is not None and grid.off < 1e-6
    assert grid.encoder.bits == bits and grid.encoder.signed == (zero == middle)
    assert grid.encoder.axis == (1 if channels > 1 else None)
    np.testing.assert_allclose(np.ravel(grid.encoder.scale), steps, rtol=1e-6)
    assert (grid.encoder.zero_point == (0 if zero == middle else zero)).all()
    x = values_off_ties(steps, zero, levels, seed)
    np.testing.assert_allclose(rounded(grid, x, ranges), fake_quantize(x, ranges, levels), rtol=1e-5, atol=step * 1e-3)


def test_codes_that_are_read_as_values_have_another_zero():
    """What a model returns where nothing dequantizes its output: it was an operator without a counterpart."""
    x = np.linspace(-8, 6, 57) + 0.003
    for levels, low in ((256, -128.0), (255, -127.0)):
        for zero in (150, 128, 127):
            ranges = ranges_of(-0.04 * zero, 0.04 * (levels - 1 - zero), (low, 127.0))
            grid = fake_grid_of(levels, ranges, 2)
            assert grid is not None and grid.encoder.signed == grid.decoder.signed
            np.testing.assert_allclose(rounded(grid, x, ranges), fake_quantize(x, ranges, levels), atol=1e-3)
            assert float(grid.decoder.scale) == pytest.approx(1.0)


def test_what_codes_do_not_express_has_no_grid():
    cases = {
        "no codes have so many levels": (100, ranges_of(0, 1)),
        "0 is none of its codes": (256, ranges_of(1, 2)),
        "no width": (256, ranges_of(1, 1)),
        "no number": (256, ranges_of(0, np.nan)),
        "along two axes": (256, ranges_of(np.zeros((2, 2)), np.ones((2, 2)))),
        "more axes than the tensor": (256, ranges_of(np.zeros((1, 2, 1)), np.ones((1, 2, 1)))),
        "ends of different lengths": (256, ranges_of(np.zeros(2), np.ones(3))),
    }
    assert not [name for name, (levels, ranges) in cases.items() if fake_grid_of(levels, ranges, 2) is not None]


def test_a_zero_off_the_grid_is_measured():
    grid = fake_grid_of(256, ranges_of(-0.5, 254.5), 4)
    assert grid is not None and grid.off == pytest.approx(0.5)


def test_the_axis_counts_from_the_front_of_the_tensor():
    grid = fake_grid_of(256, ranges_of(np.zeros((3, 1, 1)), np.ones((3, 1, 1)) * [[[1]], [[2]], [[3]]]), 4)
    assert grid is not None and grid.encoder.axis == 1 and grid.encoder.scale.shape == (3,)
