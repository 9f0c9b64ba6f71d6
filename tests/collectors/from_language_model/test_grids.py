"""Grids of activations and of caches: numbers equal those of compressed-tensors, and of their formulas."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from builders import activation_schemes as acts

from quantmedic.collectors.from_language_model.running_grids import Grid
from quantmedic.collectors.from_language_model.schemes import UnknownSchemeError, input_schemes
from quantmedic.collectors.from_language_model.source_noise import Tally

pytestmark = pytest.mark.thorough
NVFP4 = Grid(4, True, "group", False, size=16, scales="e4m3")


def e2m1(values: Any) -> Any:
    """The nearest of the numbers of E2M1, by looking at all; those in the middle go to the even code."""
    codes = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    far = np.abs(np.abs(values)[..., None] - codes)
    odd = np.arange(8) % 2
    return np.sign(values) * codes[np.lexsort((np.broadcast_to(odd, far.shape), far), axis=-1)[..., 0]]


def test_grids_are_their_formulas() -> None:
    """In float64, but for divisions, which float32 decides as in compressed-tensors."""
    random = np.random.default_rng(0)
    values = (random.normal(size=(1, 31, 64)) * np.exp(2 * random.normal(size=64))).astype(np.float32)
    values[0, 3] = 0
    found = torch.from_numpy(values)
    tokens = acts.int8_tokens(values)
    np.testing.assert_array_equal(Grid(8, False, "token", True).round(found).numpy(), tokens.astype(np.float32))
    stored = Grid(8, True, "tensor", False, scale=torch.tensor([0.03]))
    np.testing.assert_allclose(stored.round(found).numpy(), acts.float8_with(0.03)(values), rtol=1e-6)
    step = np.float32(448 * 6 / np.abs(values).max())
    groups = values.reshape(1, 31, 4, 16)
    scales = (step * (np.abs(groups).max(-1, keepdims=True) / np.float32(6))).astype(ml_dtypes.float8_e4m3fn)
    scales = np.where(scales.astype(np.float32) == 0, np.float32(0.125), scales.astype(np.float32)) / step
    wanted = e2m1(np.clip(groups / scales, -6, 6)) * scales
    four = Grid(4, True, "group", False, size=16, scale=torch.tensor([step]), scales="e4m3")
    np.testing.assert_allclose(four.round(found).numpy(), wanted.reshape(values.shape), rtol=1e-6)


def test_presets_of_compressed_tensors_are_given_bit_for_bit(subtests: pytest.Subtests) -> None:
    """Values from subnormal to large, groups of zeros, and the borders between powers of two."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils.helpers import compute_dynamic_scales_and_zp, generate_gparam

    for preset in ("NVFP4", "MXFP4", "MXFP8", "MXFP6A8", "MXFP4XFP8", "FP8_BLOCK", "W8A8", "FP8_DYNAMIC"):
        try:
            scheme = preset_name_to_scheme(preset, ["Linear"])
        except KeyError:  # of another release
            continue
        args = scheme.input_activations
        grid = input_schemes({"config_groups": {"a": scheme.model_dump()}}).grid_of("model.layers.0.mlp.up_proj")
        torch.manual_seed(0)
        for power in range(-12, 12, 3):
            values = torch.randn(1, 37, 256) * torch.exp(3 * torch.randn(256)) * 10.0**power
            values[0, 3], values[0, 5, :40] = 0, 0
            values[0, 6] = 1.75 * 2.0 ** torch.randint(-20, 20, (256,))
            values[0, 7] = 2.0 ** torch.randint(-20, 20, (256,))
            own, step = grid, None
            if grid is not None and grid.needs_scale:
                step = generate_gparam(values.min(), values.max()) * (8 if power % 2 else 1)
                own = grid.with_scale(step)
            wanted = fake_quantize(values.clone(), *compute_dynamic_scales_and_zp(values, args, None, step), args, step)
            with subtests.test(preset, power=power):
                assert own is not None and torch.equal(own.round(values), wanted)


def test_groups_with_powers_of_two_are_their_formulas() -> None:
    """In float64: the exponent of the largest value is rounded up from 1.75 on, or up in any case."""
    random = np.random.default_rng(0)
    values = (random.normal(size=(1, 31, 64)) * np.exp(2 * random.normal(size=64))).astype(np.float32)
    values[0, 3] = 0
    groups = values.reshape(1, 31, 2, 32).astype(np.float64)
    largest = np.abs(groups).max(-1, keepdims=True)
    for bits, last in ((4, 6.0), (8, 448.0)):
        with np.errstate(divide="ignore", invalid="ignore"):
            whole, first = np.floor(np.log2(largest)), np.floor(np.log2(last))
            exponents = {
                "power": whole + (largest / 2.0**whole >= 1.75) - first,
                "power-up": np.ceil(np.log2(largest / last)),
            }
        for scales, exponent in exponents.items():
            steps = 2.0 ** np.maximum(exponent, -127)
            codes = np.clip(groups / steps, -last, last)
            own = e2m1(codes) if bits == 4 else codes.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(float)
            grid = Grid(bits, True, "group", True, size=32, scales=scales)
            found = grid.round(torch.from_numpy(values)).numpy()
            np.testing.assert_allclose(found, (own * steps).reshape(values.shape), rtol=1e-6, atol=1e-38)
            assert grid.find_clipped(torch.from_numpy(values)) is None


def test_scales_in_front_of_those_of_groups() -> None:
    """One that covers the values of a token changes little; one that covers a sixteenth cuts, and is told."""
    values = torch.randn(1, 32, 64, generator=torch.Generator().manual_seed(0))
    values[0, 5] *= 100
    grid = Grid(4, True, "group", False, size=16, scales="e4m3")
    fitting = grid.with_scale(448 * 6 / values.abs().max().reshape(1))
    small = grid.with_scale(16 * 448 * 6 / values.abs().max().reshape(1))
    clipped = [own.find_clipped(values) for own in (fitting, small)]
    assert clipped[0] is not None and not clipped[0].any()
    assert clipped[1] is not None and set(clipped[1].nonzero()[:, 1].tolist()) == {5}
    largest = float(values.abs().max())
    assert fitting.stored == pytest.approx(fitting.scale_of(largest)) and small.stored == pytest.approx(
        small.scale_of(largest) / 16
    )
    for own in (small.per_token(), small.per_text()):
        assert own.find_clipped(values) is None and own.per_token() == own
        noise = ((own.round(values) - values) ** 2).sum(-1) / (values**2).sum(-1)
        assert noise.max() < 0.02
    assert torch.equal(fitting.round(values[:, 5:6]), small.per_token().round(values[:, 5:6])), "that sets both"


def test_values_beyond_the_last_code_are_counted() -> None:
    values = torch.tensor([[[0.1, 1.27, 1.274, 1.276, -1.284, -1.286, 9.0, -9.0]]])
    found = Grid(8, False, "tensor", False, scale=torch.tensor([0.01])).find_clipped(values)
    assert found is not None and found.tolist() == [[[False, False, False, True, False, True, True, True]]]
    assert Grid(8, False, "token", True).find_clipped(values) is None, "a scale of the values covers them"


@pytest.mark.parametrize("grid", [Grid(8, False, "token", True), NVFP4])
def test_loud_channels_are_seen_beside_the_length_of_a_token(grid: Grid) -> None:
    """They take the steps of the others, all of them or those of their group, and hide it in the length."""
    values = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    loud = values.clone()
    loud[..., ::16] *= 2000
    found = [Tally(), Tally()]
    for tally, own in zip(found, (values, loud), strict=True):
        used = grid.with_scale(448 * 6 / own.abs().max().reshape(1)) if grid.needs_scale else grid
        for text in own.split(32, 1):
            tally.add(text, used, used.round(text))
    assert found[1].mean_noise < 0.02 and found[0].channel_noise < 0.02 and found[1].channel_noise > 0.9
    rounded = (grid.with_scale(448 * 6 / loud.abs().max().reshape(1)) if grid.needs_scale else grid).round(loud)
    wanted = (((rounded - loud) ** 2).double().sum((0, 1)) / (loud**2).double().sum((0, 1))).mean()
    assert found[1].channel_noise == pytest.approx(float(wanted), rel=1e-5)


def test_torchao_says_whether_weights_alone_are_quantized() -> None:
    def grid_of(kind: object) -> object:
        return input_schemes({"quant_method": "torchao", "quant_type": kind}).grid_of("model.layers.0.mlp.up_proj")

    assert grid_of("int4_weight_only") is None
    assert grid_of({"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}) is None
    for kind in ({"default": {"_type": "Int8DynamicActivationInt8WeightConfig", "_data": {}}}, None):
        with pytest.raises(UnknownSchemeError, match="torchao"):
            grid_of(kind)
