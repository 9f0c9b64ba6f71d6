"""Gains of input and output channels: undone by what comes before or behind, left, or left out; norms and biases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders.tiers import others_nightly
from numpy.typing import NDArray

import quantmedic
from quantmedic.collectors.from_checkpoint.layers.gain_changes import is_left_unscaled
from quantmedic.collectors.from_checkpoint.layers.output_gains import ChannelGains, left_gain
from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

Values = NDArray[Any]
FLOATS = made.language_model(layers=3)
ATTENTION, NORMS, BEHIND = (
    [f"model.layers.{layer}.self_attn." for layer in range(3)],
    [f"model.layers.{layer}.input_layernorm" for layer in range(3)],
    [[f"model.layers.{layer}.self_attn.{x}_proj" for x in "qkv"] for layer in range(3)],
)


def gains_of(seed: int, spread: float, size: int = made.HIDDEN) -> Values:
    return np.exp(np.random.default_rng(seed).normal(0, spread, size)).astype(np.float32)


def weights(names: list[str], factor: Values) -> dict[str, Values]:
    return {f"{name}.weight": factor for name in names}


def times(tensors: made.Tensors, factors: dict[str, Values]) -> made.Tensors:
    found = dict(tensors)
    for name, factor in factors.items():
        found[name] = ("BF16", made.bfloat16(made.from_bfloat16(found[name][1]) * factor))
    return found


def judged(folder: Path, factors: dict[str, Values], kind: str = "gptq", floats: made.Tensors = FLOATS) -> Diagnosis:
    """The float model against itself with such factors, quantized."""
    return made.compare(folder, floats, made.quantized_model(times(floats, factors), kind), made.configuration(kind))


@pytest.mark.parametrize("kind", others_nightly(["gptq", "compressed"]))
def test_gains_that_norms_or_layers_undo_are_told_and_no_fault(tmp_path: Path, kind: str) -> None:
    factors: dict[str, Values] = {}
    for layer, spread in enumerate((0.15, 0.4, 1.0)):
        gains = gains_of(layer, spread)
        factors |= weights([NORMS[layer]], 1 / gains) | weights(BEHIND[layer], gains)
    between, part = gains_of(7, 0.5, made.INNER), "model.layers.0.mlp."
    factors |= {f"{part}up_proj.weight": between[:, None], f"{part}down_proj.weight": 1 / between}
    beside, name = gains_of(8, 0.5), "model.layers.1.mlp.up_proj"
    factors[f"{name}.weight"] = beside
    more = {f"{name}.pre_quant_scale": ("F32", 1 / beside)}
    tensors = made.quantized_model(times(FLOATS, factors), kind) | more
    case = made.collect(tmp_path, FLOATS, tensors, made.configuration(kind))
    diagnosis = quantmedic.judge(case)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    told = [line for line in diagnosis.warnings if "hold gains of input channels" in line]
    assert len(told) == 1 and told[0].startswith("11 layers hold gains")
    assert diagnosis.model.checkpoint.altered == 3 and diagnosis.model.checkpoint.rescaled_layers == 11
    facts = made.facts_of(case)
    ratio = facts["model.layers.1.self_attn.q_proj"].input_gain_ratio
    exact = gains_of(1, 0.4).max() / gains_of(1, 0.4).min()
    assert ratio == pytest.approx(exact, rel=0.1 if kind == "compressed" else 0.05), "symmetric codes tell less"
    assert facts["model.layers.2.mlp.up_proj"].input_gain_ratio == 1.0


def test_layers_whose_gains_nothing_undoes_are_named(tmp_path: Path) -> None:
    """Three layers behind a norm that was not divided, a layer that was left out, and one with single gains."""
    single = np.ones(made.HIDDEN, np.float32)
    single[7], single[10] = 3.0, 0.3
    left_out, expected = gains_of(2, 0.4), {*BEHIND[0], BEHIND[1][2], BEHIND[2][0]}
    factors = weights(BEHIND[0], gains_of(1, 0.15)) | weights(BEHIND[2][:1], single)
    factors |= weights([NORMS[1]], 1 / left_out) | weights(BEHIND[1][:2], left_out)
    assert made.named(judged(tmp_path, factors, "awq")) == {("input-gains-left", name) for name in expected}


def test_a_norm_divided_alone_or_by_the_gains_of_others_is_named(tmp_path: Path) -> None:
    alone = weights([NORMS[1]], 1 / gains_of(0, 0.15))
    assert made.causes_of(judged(tmp_path, alone)) == ["altered-float-tensors"]
    others = weights([NORMS[1]], 1 / gains_of(0, 0.5)) | weights(BEHIND[1], gains_of(100, 0.5))
    assert {*made.causes_of(judged(tmp_path, others))} == {"input-gains-left", "altered-float-tensors"}


@pytest.mark.nightly
def test_a_router_in_float_has_to_follow_its_norm(tmp_path: Path) -> None:
    random, router = np.random.default_rng(0), "model.layers.1.mlp.gate"
    floats = {name.replace("layers.1.mlp.", "layers.1.mlp.experts.0."): tensor for name, tensor in FLOATS.items()}
    floats[f"{router}.weight"] = ("BF16", made.bfloat16(random.normal(0, 0.02, (64, made.HIDDEN))))
    gains, experts = gains_of(0, 0.5), [f"model.layers.1.mlp.experts.0.{x}_proj" for x in ("gate", "up")]
    factors = weights(["model.layers.1.post_attention_layernorm"], 1 / gains) | weights(experts, gains)
    followed = factors | weights([router], gains)
    assert made.named(judged(tmp_path, followed, floats=floats)) == set()
    assert made.named(judged(tmp_path, factors, floats=floats)) == {("input-gains-left", router)}


def test_channels_that_rounding_erases_are_no_gains(tmp_path: Path) -> None:
    """Quiet input channels beside loud ones in every group."""
    loud = np.where(np.random.default_rng(0).random(made.HIDDEN) < 0.1, 8.0, 1.0)
    for bits in (2, 3):
        floats, tensors = dict(FLOATS), dict(FLOATS)
        for name in made.linear_names(FLOATS):
            x = made.from_bfloat16(FLOATS[f"{name}.weight"][1])
            x = (x * np.resize(loud, x.shape[1])).astype(np.float32)
            back = made.dequantize(*made.quantize(x, bits, made.GROUP, symmetric=True))
            floats[f"{name}.weight"], tensors[f"{name}.weight"] = (("BF16", made.bfloat16(y)) for y in (x, back))
        assert "input-gains-left" not in made.causes_of(made.compare(tmp_path, floats, tensors)), bits


@pytest.mark.nightly
def test_biases_of_norms_and_layers_have_to_follow_gains(tmp_path: Path) -> None:
    bias, gains = np.random.default_rng(0).normal(0, 0.5, made.HIDDEN), gains_of(0, 0.5)
    of_layer = {f"{ATTENTION[1]}v_proj.weight": gains[:, None], f"{ATTENTION[1]}o_proj.weight": 1 / gains}
    of_norm = weights([NORMS[1]], 1 / gains) | weights(BEHIND[1], gains)
    for name, factors, scaled in (
        (f"{ATTENTION[1]}v_proj.bias", of_layer, gains),
        (f"{NORMS[1]}.bias", of_norm, 1 / gains),
    ):
        floats = FLOATS | {name: ("BF16", made.bfloat16(bias))}
        assert made.named(judged(tmp_path, factors | {name: scaled}, floats=floats)) == set(), name
        diagnosis = judged(tmp_path, factors, floats=floats)
        assert made.named(diagnosis) == {("biases-left-unscaled", "model")}, name
        assert diagnosis.model.checkpoint.first_unscaled_bias == name


def test_a_corrected_bias_is_no_unscaled_one() -> None:
    random = np.random.default_rng(0)
    bias, gains = random.normal(0, 1, 64), np.exp(random.normal(0, 0.5, 64))
    assert is_left_unscaled(bias, bias, gains)
    assert is_left_unscaled(bias, bias + 0.001 * random.normal(size=64), gains)
    assert not is_left_unscaled(bias, bias * gains + 0.001 * random.normal(size=64), gains)
    assert not is_left_unscaled(bias, bias * 3 * gains, gains)
    assert not is_left_unscaled(bias, bias, np.ones(64))


# gains of output channels

UP, DOWN, NEXT = "layers.0.up", "layers.0.down", "layers.1.up"
SHAPES = {UP: (96, 64), DOWN: (64, 96), NEXT: (96, 64)}
LAYERS = {name: np.random.default_rng(5).normal(0, 0.05, shape) for name, shape in SHAPES.items()}


def rows_compared(
    folder: Path, stored: dict[str, Values], gains: dict[str, Values]
) -> tuple[Diagnosis, dict[str, WeightFacts]]:
    """Codes of eight bits with a scale per output channel, which is multiplied with a gain."""
    found: made.Tensors = {}
    for name, weight in stored.items():
        scale = np.abs(weight).max(axis=1, keepdims=True) / 127
        found[f"{name}.weight"] = ("I8", np.rint(weight / scale).astype(np.int8))
        found |= made.as_float32({f"{name}.weight_scale": scale * gains.get(name, 1.0)})
    case = made.collect(folder, made.as_float32({f"{name}.weight": x for name, x in LAYERS.items()}), found)
    return quantmedic.judge(case), made.facts_of(case)


def rows_of(**loud: float) -> Values:
    found = np.ones((96, 1), np.float32)
    for channel, gain in loud.items():
        found[int(channel[1:])] = gain
    return found


def test_a_wrong_scale_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for gain, channels, worst in (
        (rows_of(c7=8.0), 1, 8.0),
        (rows_of(c7=1 / 8, c9=3.0), 2, 1 / 8),
        (np.full((96, 1), 4.0), 96, 4.0),
        (np.full((96, 1), 1.3), 96, 1.3),
    ):
        with subtests.test(channels=channels, worst=worst):
            found, facts = rows_compared(tmp_path, LAYERS, {UP: gain})
            assert [(cause.cause, cause.severity, cause.subjects) for cause in found.causes] == [
                ("wrong-weight-scale", "medium", (UP,))
            ]
            assert facts[UP].left_gain_channels == channels
            assert facts[UP].left_gain == pytest.approx(worst, rel=0.02)


def test_gains_that_the_next_layer_divides_by_are_no_fault(tmp_path: Path) -> None:
    for seed, spread in enumerate((0.1, 0.2, 0.4, 1.0)):
        gains = np.exp(np.random.default_rng(seed).normal(0, spread, (96, 1)))
        moved = LAYERS | {UP: LAYERS[UP] * gains, DOWN: LAYERS[DOWN] / gains.T}
        assert rows_compared(tmp_path, moved, {})[0].causes == (), spread
    found, _ = rows_compared(tmp_path, moved, {NEXT: rows_of(c40=8.0)})
    assert ("wrong-weight-scale", NEXT) in made.named(found) and ("wrong-weight-scale", UP) not in made.named(found)


def test_what_may_undo_a_gain_is_not_judged() -> None:
    own = ChannelGains({3: 4.0}, 8)
    for inputs, altered, expected in (
        (None, (), (1, 4.0)),
        ((1.0, 1, 1, 0.25, 1, 1, 1, 1), (), (0, 1.0)),
        ((1.0, 0.25, 1, 1, 1, 1, 1, 1), (), (1, 4.0)),
        ((1.0, 0.25, 1, 1) * 4, (), None),
        ((1.0, 0.25, 1, 1, 1), (), (1, 4.0)),
        (None, {8}, None),
        (None, {9}, (1, 4.0)),
    ):
        others = [] if inputs is None else [ChannelGains(outputs=4, inputs=inputs)]
        assert left_gain(own, others, frozenset(altered)) == expected, (inputs, altered)


# norms that compute 1 + w

NORM = "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(
    ("model", "offset", "expected"),
    [
        ("gemma2", 0.0, ["norm-offset-mistaken"]),
        ("gemma2", 1.0, []),
        ("llama", 1.0, ["norm-offset-mistaken"]),
        ("llama", 0.0, []),
        ("unheard-of", 1.0, []),
    ],
)
def test_gains_that_are_folded_in_the_way_of_another_architecture_are_named(
    tmp_path: Path, model: str, offset: float, expected: list[str]
) -> None:
    def causes(offset: float, spread: float, shift: float = 0.0) -> list[str]:
        """Of weights multiplied by gains that a norm was divided by, with so much added to it before."""
        random = np.random.default_rng(0)
        gains = np.exp(random.normal(0, spread, 128))
        norm = random.normal(0.4 if model.startswith("gemma") else 1.2, 0.3, 128)
        floats = {f"{name}.weight": random.normal(0, 0.05, (96, 128)) for name in BEHIND[0]}
        after = {name: made.rounded(weight * gains) for name, weight in floats.items()}
        after[NORM] = (norm + offset) / gains - offset + shift
        parts = made.as_float32({**floats, NORM: norm}), made.as_float32(after)
        return made.causes_of(made.compare(tmp_path, *parts, *[{"model_type": model}] * 2))

    assert causes(offset, 0.6) == expected
    assert "norm-offset-mistaken" not in causes(0.5, 0.1), "small gains are left alone"
    # As where a converter adds the 1 that the architecture adds once more.
    assert causes(0.0, 0.0, -1.0 if model == "llama" else 1.0) == ["norm-offset-mistaken"]
