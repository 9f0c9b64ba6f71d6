"""What stored weights that are no rounding of the float ones have in common with them: order, factors, a shift."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantmedic.collectors.measure.weight_errors import common_shift, resemblance
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.quantizer import Quantizer

Array = NDArray[Any]
STEP = 6 / 255
SEEDS = range(2)


def weights_of(seed: int) -> tuple[Array, Array, np.random.Generator]:
    """Weights ``[outputs, inputs]``, their codes, and chance."""
    chance = np.random.default_rng(seed)
    weights = np.clip(chance.standard_normal((24, 150)), -2.9, 2.9).astype(np.float32)
    return weights, np.rint(weights / STEP), chance


def facts_of(weights: Array, codes: Array, scale: Array | None = None) -> dict[str, Any]:
    scale = np.asarray(STEP if scale is None else scale, np.float32)
    quantizer = Quantizer(scale, np.zeros(scale.shape, np.int64), 8, True, axis=0 if scale.ndim else None)
    kept = np.clip(np.rint(codes), -128, 127).astype(np.int8)
    stored = Constant("w", quantizer.dequantize(kept), quantizer, kept)
    assert stored.values is not None
    return resemblance(stored, weights, 0) | common_shift(weights, stored.values, quantizer)


def test_any_rounding_shift_or_cut_keeps_the_order_and_other_weights_have_none() -> None:
    for seed in SEEDS:
        weights, codes, chance = weights_of(seed)
        for step in (1, 8, 64):
            for changed in (np.floor(codes / step) * step, codes + step, np.where(np.abs(codes) < step, 0, codes)):
                assert facts_of(weights, changed)["disordered_share"] == 0
        assert 0.4 < facts_of(weights, chance.permuted(codes, axis=1))["disordered_share"] < 0.5
        dithered = codes + chance.uniform(-4, 4, codes.shape)
        assert facts_of(weights, dithered)["disordered_share"] > 0.02


def test_a_common_shift_and_factors_of_channels_are_told_from_other_errors() -> None:
    for seed in SEEDS:
        weights, codes, chance = weights_of(seed)
        cut, same = facts_of(weights, np.floor(weights / STEP)), facts_of(weights, codes)
        assert cut["rounding_mean_steps"] == pytest.approx(-0.5, abs=0.05)
        assert cut["shift_error_share"] == pytest.approx(0.75, abs=0.05)
        assert facts_of(weights, codes + 2)["shift_error_share"] > 0.95
        assert same["shift_error_share"] < 0.05 and same["gain_error_share"] < 0.1
        assert facts_of(weights, chance.permuted(codes, axis=1))["shift_error_share"] < 0.05
        gains = np.exp(chance.normal(0, 0.3, 24))
        assert facts_of(weights, codes, STEP * gains)["gain_error_share"] > 0.95
        assert facts_of(weights, np.rint(codes / 16) * 16)["gain_error_share"] < 0.1


def test_exact_weights_have_no_error_to_divide() -> None:
    exact = (np.arange(-10, 10, dtype=np.float32) * np.float32(0.25)).reshape(2, 10)
    found = facts_of(exact, exact / 0.25, np.array(0.25))
    assert found["gain_error_share"] is None
    assert found["shift_error_share"] is None
    assert found["disordered_share"] == 0
