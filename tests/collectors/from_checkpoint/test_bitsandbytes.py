"""NF4 and FP4 of bitsandbytes, with and without nested statistics: as they stand, healthy, ill, and damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders.nf4 import nf4

from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer, Settings
from quantmedic.collectors.from_checkpoint.packed.packed_weights import packed_layers
from quantmedic.collectors.from_checkpoint.safetensors_file import open_checkpoint

PATIENT = "model.layers.1.mlp.down_proj"
CONFIG = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
FLOATS = made.language_model(2)
every_kind = pytest.mark.parametrize(("kind", "nested"), [("nf4", True), ("fp4", False)])


def opened(path: Path, tensors: made.Tensors) -> tuple[dict[str, PackedLayer], dict[str, str]]:
    return packed_layers(open_checkpoint(made.write_file(path / "layer.safetensors", tensors)).tensors, Settings())


def quantized(kind: str, nested: bool) -> made.Tensors:
    found = dict(FLOATS)
    for name in made.linear_names(FLOATS):
        found |= nf4(name, made.from_bfloat16(found.pop(f"{name}.weight")[1]), kind, nested=nested)[0]
    return found


@every_kind
def test_numbers_are_those_of_the_formula(tmp_path: Path, kind: str, nested: bool) -> None:
    values = np.random.default_rng(0).normal(0, 0.03, (48, 192)).astype(np.float32)
    tensors, stored = nf4("a", values, kind, nested=nested)
    layer = opened(tmp_path, tensors)[0]["a"]
    read = np.concatenate([layer.read(slice(k, k + 16), layer.declared).values() for k in (0, 16, 32)])
    np.testing.assert_allclose(read, stored, rtol=2e-7, atol=1e-9)
    assert (layer.shape, layer.groups, layer.bits) == ((48, 192), 3, 4)


@pytest.mark.thorough
@every_kind
def test_numbers_are_those_of_bitsandbytes(tmp_path: Path, kind: str, nested: bool) -> None:
    """To the bit."""
    functional = pytest.importorskip("bitsandbytes.functional")
    import torch

    values = torch.from_numpy(np.random.default_rng(0).normal(0, 0.03, (256, 128)).astype(np.float32))
    codes, state = functional.quantize_4bit(values, quant_type=kind, compress_statistics=nested)
    parts = {f"a.weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    types = {torch.float32: "F32", torch.uint8: "U8"}
    tensors = {name: (types[part.dtype], part.numpy()) for name, part in {"a.weight": codes, **parts}.items()}
    layer = opened(tmp_path, tensors)[0]["a"]
    own = layer.read(slice(0, 256), layer.declared).values()
    assert np.array_equal(own, functional.dequantize_4bit(codes, state).numpy())


@pytest.mark.thorough
@every_kind
def test_healthy_checkpoints_are_clean_and_a_block_without_magnitude_is_named(
    tmp_path: Path, kind: str, nested: bool
) -> None:
    tensors = quantized(kind, nested)
    diagnosis = made.compare(tmp_path, FLOATS, tensors, CONFIG)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    assert diagnosis.model.format == f"bitsandbytes {kind} 4-bit in groups of 64"
    assert diagnosis.toolchain is not None and diagnosis.toolchain.name == "bitsandbytes"
    assert all((row.weight_sqnr_db or 0.0) > 14 for row in diagnosis.layers if row.weight_bits)
    words: Any = tensors[f"{PATIENT}.weight"][1].copy()
    words[:32] = 0x77 if kind == "nf4" else 0x00
    tensors[f"{PATIENT}.weight"] = ("U8", words)
    ill = made.compare(tmp_path, FLOATS, tensors, CONFIG)
    assert [(cause.cause, cause.subjects) for cause in ill.causes] == [("dead-weight-groups", (PATIENT,))]


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    state, said = "weight.quant_state.bitsandbytes__nf4", {}
    tensors, _ = nf4("a", np.ones((8, 64), np.float32), nested=True)
    parts: list[tuple[str, str, Any, str]] = [
        ("weight.absmax", "F32", np.ones(5, np.float32), "absmax has shape"),
        (state, "U8", np.frombuffer(b"{", np.uint8), "no JSON object"),
        (state, "U8", np.frombuffer(b'{"shape": [-1, 2]}', np.uint8), "its shape"),
        ("weight", "U8", np.zeros((5, 1), np.uint8), "codes have type"),
    ]
    for part, kind, array, expected in parts:
        layers, refused = opened(tmp_path, {**tensors, f"a.{part}": (kind, array)})
        assert not layers
        said[expected] = refused["a"]
    assert not {expected: text for expected, text in said.items() if expected not in text}
