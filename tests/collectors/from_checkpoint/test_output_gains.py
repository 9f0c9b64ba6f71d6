"""Scales of output channels that nothing undoes, and those that another layer does."""

from array import array
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import quantmedic
from quantmedic.collectors.from_checkpoint.output_gains import ChannelGains, left_gain
from quantmedic.engine.contract.diagnosis import Diagnosis

Values = NDArray[np.float32]
UP, DOWN, BEHIND = "layers.0.up", "layers.0.down", "layers.1.up"
SHAPES = {UP: (96, 64), DOWN: (64, 96), BEHIND: (96, 64)}


@pytest.fixture
def floats() -> dict[str, Values]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}


def written(weights: dict[str, Values], gains: dict[str, Values]) -> dict[str, Values]:
    """Codes of eight bits with a scale per output channel, which is multiplied with a gain."""
    found: dict[str, Values] = {}
    for name, weight in weights.items():
        scale = np.abs(weight).max(axis=1, keepdims=True) / 127
        found[f"{name}.weight"] = np.rint(weight / scale).astype(np.int8)
        found[f"{name}.weight_scale"] = (scale * gains.get(name, 1.0)).astype(np.float32)
    return found


def judged(folder: Path, floats: dict[str, Values], quantized: dict[str, Values]) -> Diagnosis:
    save_file({f"{name}.weight": weight for name, weight in floats.items()}, folder / "float.safetensors")
    save_file(quantized, folder / "quantized.safetensors")
    return quantmedic.compare_weights(folder / "float.safetensors", folder / "quantized.safetensors")


def gains_of(rows: int, **loud: float) -> Values:
    found = np.ones((rows, 1), np.float32)
    for channel, gain in loud.items():
        found[int(channel[1:])] = gain
    return found


@pytest.mark.parametrize(
    ("gain", "channels", "worst"),
    [
        (gains_of(96, c7=8.0), 1, 8.0),
        (gains_of(96, c7=1 / 8, c9=3.0), 2, 1 / 8),
        (np.full((96, 1), 4.0, np.float32), 96, 4.0),
        (np.full((96, 1), 1.3, np.float32), 96, 1.3),
    ],
)
def test_a_wrong_scale_is_named(
    floats: dict[str, Values], tmp_path: Path, gain: Values, channels: int, worst: float
) -> None:
    found = judged(tmp_path, floats, written(floats, {UP: gain}))
    assert [(cause.cause, cause.severity, cause.subjects) for cause in found.causes] == [
        ("wrong-weight-scale", "medium", (UP,))
    ]
    case = quantmedic.collect_weights(tmp_path / "float.safetensors", tmp_path / "quantized.safetensors")
    weight = next(op.weight for op in case.record.operators if op.name == UP)
    assert weight.left_gain_channels == channels
    assert weight.left_gain == pytest.approx(worst, rel=0.02)


def test_gains_that_the_next_layer_divides_by_are_no_fault(floats: dict[str, Values], tmp_path: Path) -> None:
    gains = np.exp(np.random.default_rng(3).normal(0, 1, (96, 1))).astype(np.float32)
    moved = floats | {UP: floats[UP] * gains, DOWN: floats[DOWN] / gains.T}
    assert judged(tmp_path, floats, written(moved, {})).causes == ()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.1, 0.2, 0.4])
def test_small_gains_that_the_next_layer_divides_by_are_no_fault(
    floats: dict[str, Values], tmp_path: Path, seed: int, spread: float
) -> None:
    gains = np.exp(np.random.default_rng(seed).normal(0, spread, (96, 1))).astype(np.float32)
    moved = floats | {UP: floats[UP] * gains, DOWN: floats[DOWN] / gains.T}
    assert judged(tmp_path, floats, written(moved, {})).causes == ()


def test_one_channel_beside_gains_that_are_divided_by_is_named(floats: dict[str, Values], tmp_path: Path) -> None:
    gains = np.exp(np.random.default_rng(3).normal(0, 1, (96, 1))).astype(np.float32)
    moved = floats | {UP: floats[UP] * gains, DOWN: floats[DOWN] / gains.T}
    found = judged(tmp_path, floats, written(moved, {BEHIND: gains_of(96, c40=8.0)}))
    assert [cause.subjects for cause in found.causes if cause.cause == "wrong-weight-scale"] == [(BEHIND,)]


OWN = ChannelGains({3: 4.0}, 8)


@pytest.mark.parametrize(
    ("others", "altered", "expected"),
    [
        ([], frozenset(), (1, 4.0)),
        ([ChannelGains(outputs=4, inputs=(1.0, 1, 1, 0.25, 1, 1, 1, 1))], frozenset(), (0, 1.0)),
        ([ChannelGains(outputs=4, inputs=(1.0, 0.25, 1, 1, 1, 1, 1, 1))], frozenset(), (1, 4.0)),
        ([ChannelGains(outputs=4, inputs=(1.0, 0.25, 1, 1) * 4)], frozenset(), None),
        ([ChannelGains(outputs=4, inputs=(1.0, 0.25, 1, 1, 1))], frozenset(), (1, 4.0)),
        ([], frozenset({8}), None),
        ([], frozenset({9}), (1, 4.0)),
    ],
)
def test_what_may_undo_a_gain_is_not_judged(
    others: list[ChannelGains], altered: frozenset[int], expected: tuple[int, float] | None
) -> None:
    assert left_gain(OWN, others, altered) == expected


def test_gains_travel_as_plain_values() -> None:
    numbers = [array("f", values) for values in ((1.0, 3.0), (1.5,), (0.5, 2.0))]
    own = ChannelGains({3: 4.0, 1: 0.25}, 8, numbers[0], numbers[1], {1: 3.0}, numbers[2], (0, 2))
    assert ChannelGains.from_plain(own.as_plain()) == own
