"""Codes come back from every format as they were packed, by packers written after the specifications."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    PackedLayer,
    Settings,
    unpack_padded_words,
    unpack_words,
)
from quantmedic.collectors.from_checkpoint.packed.packed_weights import packed_layers
from quantmedic.collectors.from_checkpoint.safetensors_file import Values, open_checkpoint

GPTQ_V2 = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}


@st.composite
def quantized(draw: Any, bits: Any, multiple: int = 32) -> tuple[Any, ...]:
    """Codes ``[outputs, inputs]``, scales and zero points of random shapes, of one number of bits."""
    width = draw(bits)
    size = draw(st.sampled_from([8, 16, 32]))
    outputs, groups = multiple * draw(st.integers(1, 3)), draw(st.integers(1, 4)) * 32 // size
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = random.integers(0, 2**width, (outputs, groups * size)).astype(np.uint8)
    scale = random.uniform(0.5, 2.0, (outputs, groups)).astype(np.float16).astype(np.float64)
    zero = random.integers(1, 2**width, (outputs, groups))
    return width, codes, scale, zero


def opened(folder: Path, tensors: made.Tensors, config: dict[str, Any] | None = None) -> PackedLayer:
    path = made.write_file(folder / "layer.safetensors", tensors)
    layers, refused = packed_layers(open_checkpoint(path).tensors, Settings.of(config or {}))
    assert not refused
    (layer,) = layers.values()
    return layer


def values(layer: PackedLayer, height: int | None = None) -> Values:
    """All rows, read a few at a time, inputs in their own order."""
    step = height or layer.shape[0]
    found = []
    for start in range(0, layer.shape[0], step):
        block = layer.read(slice(start, min(start + step, layer.shape[0])), layer.declared)
        rows = block.values()
        if block.order is not None:
            rows = rows[:, np.argsort(block.order)]
        found.append(rows)
    return np.concatenate(found)


@given(st.integers(1, 8), st.integers(1, 200), st.integers(0, 2**32))
def test_words_give_back_their_codes(bits: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (3, count)).astype(np.uint8)
    assert np.array_equal(unpack_words(made.pack(codes, bits), bits, count), codes)
    assert np.array_equal(unpack_padded_words(made.pack_padded(codes, bits), bits, count), codes)


@examples(40)
@given(
    parts=quantized(st.sampled_from([2, 3, 4, 8])), v1=st.booleans(), act_order=st.booleans(), seed=st.integers(0, 99)
)
def test_gptq(tmp_path_factory: Any, parts: Any, v1: bool, act_order: bool, seed: int) -> None:
    bits, codes, scale, zero = parts
    size = codes.shape[1] // scale.shape[1]
    g_idx = np.arange(codes.shape[1]) // size
    if act_order:
        g_idx = np.random.default_rng(seed).permutation(g_idx)
    expected = (codes - zero[:, g_idx].astype(float)) * scale[:, g_idx]
    tensors = made.gptq("layer", codes, scale, zero, bits, stored_zero=-1 if v1 else 0, g_idx=g_idx)
    layer = opened(tmp_path_factory.mktemp("gptq"), tensors, None if v1 else GPTQ_V2)
    assert (layer.format, layer.bits, layer.shape) == ("gptq", bits, codes.shape)
    for height in (None, layer.unit):
        np.testing.assert_allclose(values(layer, height), expected, rtol=1e-6)


@examples(25)
@given(parts=quantized(st.just(4), multiple=8))
def test_awq(tmp_path_factory: Any, parts: Any) -> None:
    _, codes, scale, zero = parts
    layer = opened(tmp_path_factory.mktemp("awq"), made.awq("layer", codes, scale, zero))
    assert (layer.format, layer.bits, layer.shape) == ("awq", 4, codes.shape)
    for height in (None, layer.unit):
        np.testing.assert_allclose(values(layer, height), made.dequantize(codes, scale, zero), rtol=1e-6)


@examples(40)
@given(parts=quantized(st.integers(1, 8)), asymmetric=st.booleans(), pad=st.booleans())
def test_compressed_tensors(tmp_path_factory: Any, parts: Any, asymmetric: bool, pad: bool) -> None:
    bits, codes, scale, zero = parts
    config = {"config_groups": {"group_0": {"weights": {"num_bits": bits}}}}
    stored = made.compressed("layer", codes, scale, zero if asymmetric else None, bits, pad=pad)
    layer = opened(tmp_path_factory.mktemp("compressed"), stored, config)
    assert (layer.format, layer.bits, layer.shape) == ("pack-quantized", bits, codes.shape)
    kept = made.from_bfloat16(made.bfloat16(scale)).astype(float)
    expected = made.dequantize(codes, kept, zero if asymmetric else np.full_like(zero, 2 ** (bits - 1)))
    for height in (None, layer.unit):
        np.testing.assert_allclose(values(layer, height), expected, rtol=1e-6)


def int8(seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.integers(-128, 128, (24, 64)).astype(np.int8), random.uniform(0.5, 2.0, (24, 1)).astype(np.float32)


def test_int8_with_scales(tmp_path: Path) -> None:
    codes, scale = int8()
    for stored in (scale, scale.ravel(), scale[0, 0]):
        layer = opened(tmp_path, {"a.weight": ("I8", codes), "a.weight_scale": ("F32", np.asarray(stored))})
        assert (layer.format, layer.bits, layer.groups) == ("int8", 8, 1)
        np.testing.assert_allclose(values(layer, 7), codes * np.reshape(stored, (-1, 1)), rtol=1e-6)


def test_int8_of_bitsandbytes(tmp_path: Path) -> None:
    codes, scale = int8()
    tensors = {"a.weight": ("I8", codes), "a.SCB": ("F32", scale.ravel()), "a.weight_format": ("U8", np.array(0, "u1"))}
    layer = opened(tmp_path, tensors)
    assert layer.format == "bitsandbytes"
    np.testing.assert_allclose(values(layer), codes * scale / 127, rtol=1e-6)


def test_torchao_int4_in_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    codes, scale = random.integers(-8, 8, (24, 64)).astype(np.int8), random.uniform(0.5, 2.0, (24, 2))
    zero = random.integers(-8, 8, (24, 2)).astype(np.int8)
    tensors = {
        "a._weight_qdata": ("I8", codes),
        "a._weight_scale": ("BF16", made.bfloat16(scale)),
        "a._weight_zero_point": ("I8", zero),
    }
    layer = opened(tmp_path, tensors)
    assert (layer.format, layer.bits, layer.group_size) == ("torchao int8", 4, 32)
    kept = made.from_bfloat16(made.bfloat16(scale))
    np.testing.assert_allclose(values(layer, 5), made.dequantize(codes, kept, zero.astype(int)), rtol=1e-6)


def test_float8(tmp_path: Path) -> None:
    """Values of the OCP specification of E4M3: 448 is the largest, 2^-9 the smallest above 0."""
    codes = np.array([[0x00, 0x01, 0x38, 0x7E], [0x80, 0x81, 0xB8, 0xFE]], np.uint8)
    expected = np.array([[0, 2.0**-9, 1, 448], [0, -(2.0**-9), -1, -448]])
    layer = opened(
        tmp_path, {"a.weight": ("F8_E4M3", codes), "a.weight_scale": ("F32", np.array([[2.0], [0.5]], "f4"))}
    )
    assert (layer.format, layer.even) == ("fp8", False)
    assert np.array_equal(values(layer), expected * [[2.0], [0.5]])


def test_float8_in_blocks(tmp_path: Path) -> None:
    codes = np.full((200, 300), 0x38, np.uint8)
    scale = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    layer = opened(tmp_path, {"a.weight": ("F8_E4M3", codes), "a.weight_scale_inv": ("F32", scale)})
    expected = np.repeat(np.repeat(scale, 128, axis=0)[:200], 128, axis=1)[:, :300]
    assert np.array_equal(values(layer, 60), expected)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    parts = np.zeros((32, 64), np.uint8), np.ones((32, 2)), np.ones((32, 2), int)
    alone: made.Tensors = {"a.weight": ("I8", np.zeros((4, 4), np.int8))}
    whole = made.gptq("a", *parts, 4)
    for tensors, why in (
        (alone, "without a scale"),
        ({name: tensor for name, tensor in whole.items() if name != "a.scales"}, "no scales"),
        (whole | {"a.g_idx": ("I32", np.full(64, 9, np.int32))}, "names a group beyond"),
        (whole | {"a.g_idx": ("I32", np.zeros(63, np.int32))}, "63 entries for 64 inputs"),
        (whole | {"a.qzeros": ("I32", np.zeros((1, 4), np.int32))}, "qzeros has shape"),
    ):
        checkpoint = open_checkpoint(made.write_file(tmp_path / "x.safetensors", tensors))
        assert why in packed_layers(checkpoint.tensors, Settings())[1]["a"]


@pytest.mark.thorough
def test_what_torchao_writes(tmp_path: Path) -> None:
    torch, torchao = pytest.importorskip("torch"), pytest.importorskip("torchao.quantization")
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    from safetensors.torch import save_file
    from torchao.quantization.granularity import PerGroup

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(128, 64))
    torchao.quantize_(module, torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    expected = module[0].weight.dequantize().numpy()
    tensors, metadata = support.flatten_tensor_state_dict(module.state_dict())
    save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
    layers, _ = packed_layers(open_checkpoint(tmp_path / "x.safetensors").tensors, Settings())
    assert (layers["0"].bits, layers["0"].group_size) == (4, 32)
    np.testing.assert_allclose(values(layers["0"]), expected, rtol=1e-5, atol=1e-7)
