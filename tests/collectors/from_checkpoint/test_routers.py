"""Routers of mixtures of experts: named where they are quantized coarsely, and where no router is, nothing."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import quantmedic

Values = NDArray[np.float32]
ROUTER = "model.layers.0.mlp.gate"
EXPERTS = tuple(f"model.layers.0.mlp.experts.{k}.up_proj" for k in range(2))


def rounded(weight: Values, bits: int) -> Values:
    """In groups of 32, as real numbers."""
    x = weight.reshape(len(weight), -1, 32)
    scale = np.abs(x).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.rint(x / scale) * scale).reshape(weight.shape).astype(np.float32)


def causes(
    folder: Path, names: tuple[str, ...], shape: tuple[int, int], bits: int
) -> list[tuple[str, tuple[str, ...]]]:
    rng = np.random.default_rng(2)
    shapes = dict.fromkeys(names, (64, 128)) | {names[0]: shape}
    floats = {f"{name}.weight": rng.normal(0, 0.05, own).astype(np.float32) for name, own in shapes.items()}
    quantized = {name: rounded(value, bits if name == f"{names[0]}.weight" else 4) for name, value in floats.items()}
    for name, tensors in (("float", floats), ("quantized", quantized)):
        save_file(tensors, folder / f"{name}.safetensors")
    found = quantmedic.compare_weights(folder / "float.safetensors", folder / "quantized.safetensors")
    return [(cause.cause, cause.subjects) for cause in found.causes if cause.cause == "quantized-router"]


@pytest.mark.parametrize(
    ("names", "shape", "bits", "expected"),
    [
        ((ROUTER, *EXPERTS), (4, 128), 4, [("quantized-router", (ROUTER,))]),
        ((ROUTER, *EXPERTS), (4, 128), 8, []),
        ((ROUTER, "model.layers.0.mlp.up_proj"), (4, 128), 4, []),
        ((ROUTER, *EXPERTS), (256, 128), 4, []),
        (("model.layers.0.mlp.gate_proj", *EXPERTS), (64, 128), 4, []),
    ],
)
def test_a_router_of_four_bits_is_named(
    tmp_path: Path,
    names: tuple[str, ...],
    shape: tuple[int, int],
    bits: int,
    expected: list[tuple[str, tuple[str, ...]]],
) -> None:
    assert causes(tmp_path, names, shape, bits) == expected


def test_rounded_numbers_of_awq_are_healthy(tmp_path: Path) -> None:
    """A norm is divided by gains that the weights behind it are multiplied with, and these are rounded."""
    rng = np.random.default_rng(4)
    floats = {f"model.layers.0.self_attn.{name}_proj.weight": rng.normal(0, 0.05, (96, 128)) for name in "qkv"}
    norm = "model.layers.0.input_layernorm.weight"
    gains = np.exp(rng.normal(0, 0.6, 128))
    quantized = {name: rounded((weight * gains).astype(np.float32), 4) for name, weight in floats.items()}
    before = floats | {norm: np.ones(128)}
    after = quantized | {norm: 1 / gains}
    for name, tensors in (("float", before), ("quantized", after)):
        save_file({k: v.astype(np.float32) for k, v in tensors.items()}, tmp_path / f"{name}.safetensors")
    found = quantmedic.compare_weights(tmp_path / "float.safetensors", tmp_path / "quantized.safetensors")
    assert (found.verdict, found.causes) == ("healthy", ())
