"""Constants stored as codes: their values and grids through what moves them."""

import numpy as np

from quantmedic.collectors.from_openvino.openvino_constants import Held


def held(shape: tuple[int, ...], scale: np.ndarray, zero: np.ndarray | None = None) -> Held:
    codes = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    found: Held | None = Held("w", codes, 8, True, is_real=True)
    if zero is not None and found is not None:
        found = found.with_zero(zero)
    found = found and found.with_scale(scale)
    assert found is not None
    return found


def test_values_are_steps_times_codes():
    scale, zero = np.array([0.5, 2.0]).reshape(2, 1), np.array([3.0, -1.0]).reshape(2, 1)
    weights = held((2, 3), scale, zero)
    np.testing.assert_array_equal(weights.values, (weights.data.astype(np.float32) - zero) * scale)
    assert weights.quantizer is not None and weights.quantizer.axis == 0
    np.testing.assert_array_equal(weights.quantizer.zero_point, [3, -1])
    np.testing.assert_array_equal(weights.quantizer.dequantize(weights.data), weights.values)


def test_one_step_is_per_tensor_and_equal_steps_of_channels_are_not():
    one, equal = held((2, 3), np.array(0.5)).quantizer, held((2, 3), np.full((2, 1), 0.5)).quantizer
    assert one is not None and one.axis is None and one.scale.shape == ()
    assert equal is not None and equal.axis == 0


def test_groups_of_channels_become_one_axis():
    weights = held((4, 2, 3), np.arange(1.0, 9.0).reshape(4, 2, 1))
    flat = weights.reshape((8, 3))
    assert flat.quantizer is not None and flat.quantizer.axis == 0 and flat.quantizer.block_size is None
    np.testing.assert_array_equal(flat.quantizer.dequantize(flat.data), flat.values)


def test_groups_along_a_row_are_blocks():
    weights = held((4, 2, 3), np.arange(1.0, 9.0).reshape(4, 2, 1)).reshape((4, 6))
    quantizer = weights.quantizer
    assert quantizer is not None and (quantizer.axis, quantizer.block_size) == (1, 3)
    np.testing.assert_array_equal(quantizer.dequantize(weights.data), weights.values)


def test_what_is_no_grid_is_none():
    weights = Held("w", np.zeros((2, 2), np.int8), 8, True, is_real=True)
    assert weights.with_zero(np.array(0.5)) is None, "zeros between codes"
    assert all(weights.with_scale(np.ones(shape)) is None for shape in ((3, 3), (2, 2, 2)))
