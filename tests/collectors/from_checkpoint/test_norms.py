"""Gains folded into norms: in the way of the architecture, in that of another one, and not at all."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import quantmedic

Values = NDArray[np.float32]
NORM = "model.layers.0.input_layernorm.weight"
LAYERS = tuple(f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")


def rounded(weight: Values) -> Values:
    x = weight.reshape(len(weight), -1, 32)
    scale = np.abs(x).max(axis=2, keepdims=True) / 7
    return (np.rint(x / scale) * scale).reshape(weight.shape)


def causes(folder: Path, seed: int, model: str, offset: float, spread: float = 0.6) -> list[str]:
    """What is said of weights multiplied by gains that a norm was divided by, with so much added to it before."""
    rng = np.random.default_rng(seed)
    gains = np.exp(rng.normal(0, spread, 128))
    norm = rng.normal(0.4 if model.startswith("gemma") else 1.2, 0.3, 128)
    floats = {name: rng.normal(0, 0.05, (96, 128)) for name in LAYERS}
    before = floats | {NORM: norm}
    after = {name: rounded(weight * gains) for name, weight in floats.items()} | {
        NORM: (norm + offset) / gains - offset
    }
    for name, tensors in (("float", before), ("quantized", after)):
        (folder / name).mkdir()
        save_file({k: v.astype(np.float32) for k, v in tensors.items()}, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text(json.dumps({"model_type": model}))
    found = quantmedic.compare_weights(folder / "float", folder / "quantized")
    return [cause.cause for cause in found.causes]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
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
def test_the_way_of_another_architecture_is_named(
    tmp_path: Path, seed: int, model: str, offset: float, expected: list[str]
) -> None:
    assert causes(tmp_path, seed, model, offset) == expected


@pytest.mark.parametrize("model", ["gemma2", "llama"])
def test_small_gains_are_left_alone(tmp_path: Path, model: str) -> None:
    assert "norm-offset-mistaken" not in causes(tmp_path, 1, model, 0.5, spread=0.1)


@pytest.mark.parametrize(("model", "shift"), [("gemma2", 1.0), ("llama", -1.0), ("unheard-of", 1.0)])
def test_an_offset_that_was_stored_is_named(tmp_path: Path, model: str, shift: float) -> None:
    """As where a converter adds the 1 that the architecture adds once more."""
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(0, 0.05, (96, 128)) for name in LAYERS} | {NORM: rng.normal(0.4, 0.3, 128)}
    after = {name: rounded(tensors[name]) for name in LAYERS} | {NORM: tensors[NORM] + shift}
    for name, own in (("float", tensors), ("quantized", after)):
        (tmp_path / name).mkdir()
        save_file({k: v.astype(np.float32) for k, v in own.items()}, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": model}))
    found = quantmedic.compare_weights(tmp_path / "float", tmp_path / "quantized")
    assert [cause.cause for cause in found.causes] == ["norm-offset-mistaken"]
