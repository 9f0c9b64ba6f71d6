"""Gains of input channels: undone by what comes before, left, or left out of one layer behind a norm; and biases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from numpy.typing import NDArray

import quantmedic
from quantmedic.collectors.from_checkpoint.bias_gains import is_left_unscaled
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

Values = NDArray[Any]
FLOATS = made.language_model(layers=2)
ATTENTION = "model.layers.1.self_attn."
NORM, BEHIND = "model.layers.1.input_layernorm", tuple(f"{ATTENTION}{x}_proj" for x in "qkv")
MLP_NORM = "model.layers.1.post_attention_layernorm"
ROUTER = "model.layers.1.mlp.gate"
every_seed = pytest.mark.parametrize("seed", range(3))
every_spread = pytest.mark.parametrize("spread", [0.15, 0.4, 1.0])


def gains_of(seed: int, spread: float, size: int = made.HIDDEN) -> Values:
    return np.exp(np.random.default_rng(seed).normal(0, spread, size)).astype(np.float32)


def times(tensors: made.Tensors, factors: dict[str, Values]) -> made.Tensors:
    found = dict(tensors)
    for name, factor in factors.items():
        found[name] = ("BF16", made.bfloat16(made.from_bfloat16(found[name][1]) * factor))
    return found


def judged(folder: Path, before: made.Tensors, after: made.Tensors, kind: str = "gptq") -> Diagnosis:
    """The float model against another one that was quantized."""
    paths = made.write_folder(folder / "float", before), folder / "quantized"
    made.write_folder(paths[1], made.quantized_model(after, kind), made.configuration(kind))
    return quantmedic.compare_weights(*paths)


def found(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(cause.cause, subject) for cause in diagnosis.causes for subject in cause.subjects}


@every_seed
@every_spread
@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed"])
def test_gains_that_the_norm_undoes_are_told_and_no_fault(tmp_path: Path, seed: int, spread: float, kind: str) -> None:
    gains = gains_of(seed, spread)
    factors = {f"{NORM}.weight": 1 / gains} | {f"{name}.weight": gains for name in BEHIND}
    diagnosis = judged(tmp_path, FLOATS, times(FLOATS, factors), kind)
    assert diagnosis.verdict == "healthy", diagnosis.causes
    told = [line for line in diagnosis.warnings if "hold gains of input channels" in line]
    assert len(told) == 1 and told[0].startswith("3 layers hold gains")


@every_seed
@pytest.mark.parametrize("spread", [0.03, 0.05, 0.1])
def test_small_gains_that_the_norm_undoes_are_no_change(tmp_path: Path, seed: int, spread: float) -> None:
    gains = gains_of(seed, spread)
    factors = {f"{NORM}.weight": 1 / gains} | {f"{name}.weight": gains for name in BEHIND}
    diagnosis = judged(tmp_path, FLOATS, times(FLOATS, factors))
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    assert diagnosis.model.checkpoint.altered == 1


@every_seed
@every_spread
@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed"])
def test_gains_that_the_norm_does_not_undo_are_named(tmp_path: Path, seed: int, spread: float, kind: str) -> None:
    gains = gains_of(seed, spread)
    diagnosis = judged(tmp_path, FLOATS, times(FLOATS, {f"{name}.weight": gains for name in BEHIND}), kind)
    assert found(diagnosis) == {("input-gains-left", name) for name in BEHIND}


@every_seed
def test_a_single_gain_is_named_up_and_down(tmp_path: Path, seed: int) -> None:
    gains = np.ones(made.HIDDEN, np.float32)
    gains[seed * 7], gains[seed * 9 + 1] = 3.0, 0.3
    diagnosis = judged(tmp_path, FLOATS, times(FLOATS, {f"{BEHIND[0]}.weight": gains}))
    assert found(diagnosis) == {("input-gains-left", BEHIND[0])}


@every_seed
def test_a_norm_divided_by_other_gains_does_not_undo_them(tmp_path: Path, seed: int) -> None:
    """Those of the next block, say."""
    factors = {f"{NORM}.weight": 1 / gains_of(seed, 0.5)}
    factors |= {f"{name}.weight": gains_of(seed + 100, 0.5) for name in BEHIND}
    causes = {cause for cause, _ in found(judged(tmp_path, FLOATS, times(FLOATS, factors)))}
    assert causes == {"input-gains-left", "altered-float-tensors"}


@every_seed
@every_spread
def test_a_norm_divided_alone_is_named(tmp_path: Path, seed: int, spread: float) -> None:
    diagnosis = judged(tmp_path, FLOATS, times(FLOATS, {f"{NORM}.weight": 1 / gains_of(seed, spread)}))
    assert {cause for cause, _ in found(diagnosis)} == {"altered-float-tensors"}


@every_seed
@every_spread
def test_a_layer_that_was_left_out_is_named(tmp_path: Path, seed: int, spread: float) -> None:
    gains = gains_of(seed, spread)
    factors = {f"{NORM}.weight": 1 / gains} | {f"{name}.weight": gains for name in BEHIND[:2]}
    assert found(judged(tmp_path, FLOATS, times(FLOATS, factors))) == {("input-gains-left", BEHIND[2])}


@every_seed
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_router_in_float_has_to_follow_its_norm(tmp_path: Path, seed: int, forgotten: bool) -> None:
    random = np.random.default_rng(seed)
    floats = {name.replace("layers.1.mlp.", "layers.1.mlp.experts.0."): tensor for name, tensor in FLOATS.items()}
    floats[f"{ROUTER}.weight"] = ("BF16", made.bfloat16(random.normal(0, 0.02, (64, made.HIDDEN))))
    gains = gains_of(seed, 0.5)
    behind = [f"model.layers.1.mlp.experts.0.{x}_proj" for x in ("gate", "up")] + ([] if forgotten else [ROUTER])
    factors = {f"{MLP_NORM}.weight": 1 / gains} | {f"{name}.weight": gains for name in behind}
    assert found(judged(tmp_path, floats, times(floats, factors))) == (
        {("input-gains-left", ROUTER)} if forgotten else set()
    )


@every_seed
def test_gains_between_layers_are_no_fault(tmp_path: Path, seed: int) -> None:
    gains = gains_of(seed, 0.5, made.INNER)
    part = "model.layers.0.mlp."
    factors = {f"{part}up_proj.weight": gains[:, None], f"{part}down_proj.weight": 1 / gains}
    assert found(judged(tmp_path, FLOATS, times(FLOATS, factors))) == set()


@every_seed
def test_gains_that_a_vector_beside_the_layer_undoes_are_no_fault(tmp_path: Path, seed: int) -> None:
    gains = gains_of(seed, 0.5)
    before = made.write_folder(tmp_path / "float", FLOATS)
    tensors = made.quantized_model(times(FLOATS, {f"{BEHIND[0]}.weight": gains}), "gptq")
    tensors[f"{BEHIND[0]}.pre_quant_scale"] = ("F32", 1 / gains)
    after = made.write_folder(tmp_path / "quantized", tensors, made.configuration("gptq"))
    assert found(quantmedic.compare_weights(before, after)) == set()


@every_seed
@pytest.mark.parametrize("bits", [2, 3])
def test_channels_that_rounding_erases_are_no_gains(tmp_path: Path, seed: int, bits: int) -> None:
    """Quiet input channels beside loud ones in every group."""
    random = np.random.default_rng(seed)
    loud = np.where(random.random(made.HIDDEN) < 0.1, 8.0, 1.0)
    floats, tensors = dict(FLOATS), dict(FLOATS)
    for name in made.linear_names(FLOATS):
        x = made.from_bfloat16(FLOATS[f"{name}.weight"][1]) * np.resize(loud, FLOATS[f"{name}.weight"][1].shape[1])
        floats[f"{name}.weight"] = ("BF16", made.bfloat16(x))
        rounded = made.dequantize(*made.quantize(x.astype(np.float32), bits, made.GROUP, symmetric=True))
        tensors[f"{name}.weight"] = ("BF16", made.bfloat16(rounded))
    paths = made.write_folder(tmp_path / "float", floats), made.write_folder(tmp_path / "quantized", tensors)
    assert "input-gains-left" not in {cause.cause for cause in quantmedic.compare_weights(*paths).causes}


@every_seed
@pytest.mark.parametrize("scaled", [False, True])
def test_the_bias_of_a_layer_with_gains(tmp_path: Path, seed: int, scaled: bool) -> None:
    bias = np.random.default_rng(seed).normal(0, 0.5, made.HIDDEN)
    gains = gains_of(seed, 0.5)
    name = f"{ATTENTION}v_proj.bias"
    floats = FLOATS | {name: ("BF16", made.bfloat16(bias))}
    factors = {f"{ATTENTION}v_proj.weight": gains[:, None], f"{ATTENTION}o_proj.weight": 1 / gains}
    diagnosis = judged(tmp_path, floats, times(floats, factors | ({name: gains} if scaled else {})))
    assert found(diagnosis) == (set() if scaled else {("biases-left-unscaled", "model")})
    assert diagnosis.model.checkpoint.first_unscaled_bias == (None if scaled else name)


@every_seed
@pytest.mark.parametrize("scaled", [False, True])
def test_the_bias_of_a_norm_with_gains(tmp_path: Path, seed: int, scaled: bool) -> None:
    bias = np.random.default_rng(seed).normal(0, 0.5, made.HIDDEN)
    gains = gains_of(seed, 0.5)
    floats = FLOATS | {f"{NORM}.bias": ("BF16", made.bfloat16(bias))}
    factors = {f"{NORM}.weight": 1 / gains} | {f"{name}.weight": gains for name in BEHIND}
    diagnosis = judged(tmp_path, floats, times(floats, factors | ({f"{NORM}.bias": 1 / gains} if scaled else {})))
    assert found(diagnosis) == (set() if scaled else {("biases-left-unscaled", "model")})


def test_a_corrected_bias_is_no_unscaled_one() -> None:
    random = np.random.default_rng(0)
    bias, gains = random.normal(0, 1, 64), np.exp(random.normal(0, 0.5, 64))
    assert is_left_unscaled(bias, bias, gains)
    assert is_left_unscaled(bias, bias + 0.001 * random.normal(size=64), gains)
    assert not is_left_unscaled(bias, bias * gains + 0.001 * random.normal(size=64), gains)
    assert not is_left_unscaled(bias, bias * 3 * gains, gains)
    assert not is_left_unscaled(bias, bias, np.ones(64))
