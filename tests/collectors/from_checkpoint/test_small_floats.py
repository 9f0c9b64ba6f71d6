"""NVFP4, MXFP4, MXFP6 and MXFP8: read as what they stand for, healthy ones clean, and scales that do not fit named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builders import checkpoints as made
from builders import small_floats as small

import quantmedic
from quantmedic.collectors.from_checkpoint.packed_layer import PackedLayer, Settings
from quantmedic.collectors.from_checkpoint.packed_weights import packed_layers
from quantmedic.collectors.from_checkpoint.safetensors_file import open_checkpoint
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

Writer = Callable[..., made.Tensors]
WRITERS: dict[str, Writer] = {
    "nvfp4": small.of_compressed_tensors,
    "modelopt": small.of_modelopt,
    "mxfp4": small.mx_of_compressed_tensors,
    "mxfp6": small.mx6_of_compressed_tensors,
}
#: Those whose scales are powers of two, and what gives their numbers.
MX = {"mxfp4": small.mxfp4, "mxfp6": small.mxfp6}
PATIENT = "model.layers.1.mlp.down_proj"
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
every_seed = pytest.mark.parametrize("seed", range(3))
every_kind = pytest.mark.parametrize("kind", WRITERS)


def values_of(floats: made.Tensors, name: str) -> Any:
    return made.from_bfloat16(floats[f"{name}.weight"][1])


def common_scales(floats: made.Tensors) -> dict[str, float]:
    """One scale for the parts of fused layers, as the tools choose it."""
    found = {name: small.global_scale_of(values_of(floats, name)) for name in made.linear_names(floats)}
    for name in found:
        parent, _, last = name.rpartition(".")
        group = next((group for group in FUSED if last in group), (last,))
        found[name] = max(small.global_scale_of(values_of(floats, f"{parent}.{part}")) for part in group)
    return found


def quantized(floats: made.Tensors, kind: str, scales: dict[str, float] | None = None) -> made.Tensors:
    own = common_scales(floats) if scales is None else scales
    found = dict(floats)
    for name in made.linear_names(floats):
        del found[f"{name}.weight"]
        options = {} if kind in MX else {"scale": own[name]}
        found |= WRITERS[kind](name, values_of(floats, name), **options)
    return found


def judged(folder: Path, floats: made.Tensors, tensors: made.Tensors) -> Diagnosis:
    before = made.write_folder(folder / "float", floats)
    return quantmedic.compare_weights(before, made.write_folder(folder / "quantized", tensors))


def found(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(cause.cause, subject) for cause in diagnosis.causes for subject in cause.subjects}


def only_layer(path: Path, tensors: made.Tensors) -> PackedLayer:
    file = made.write_file(path / "layer.safetensors", tensors)
    layers, refused = packed_layers(open_checkpoint(file).tensors, Settings())
    assert not refused
    return layers["a"]


@every_seed
@every_kind
def test_healthy_checkpoints_are_clean(tmp_path: Path, seed: int, kind: str) -> None:
    floats = made.language_model(layers=2, seed=seed)
    diagnosis = judged(tmp_path, floats, quantized(floats, kind))
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    layer = next(row for row in diagnosis.layers if row.name == PATIENT)
    assert (layer.weight_bits, layer.groups.size if layer.groups else 0) == (
        6 if kind == "mxfp6" else 4,
        32 if kind in MX else 16,
    )
    assert (layer.weight_sqnr_db or 0.0) > 15


@every_seed
@every_kind
def test_numbers_are_those_of_the_formula(tmp_path: Path, seed: int, kind: str) -> None:
    values = np.random.default_rng(seed).normal(0, 0.03, (48, 96)).astype(np.float32)
    layer = only_layer(tmp_path, WRITERS[kind]("a", values))
    stored = MX[kind](values)[2] if kind in MX else small.nvfp4(values)[3]
    read = np.concatenate([layer.read(slice(k, k + 16), layer.declared).values() for k in (0, 16, 32)])
    # The scale of the tensor is stored in float32, as its inverse by compressed-tensors.
    np.testing.assert_allclose(read, stored, rtol=0 if kind in MX else 3e-7, atol=0)


@every_seed
@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp6"])
def test_numbers_are_those_of_compressed_tensors(tmp_path: Path, seed: int, kind: str) -> None:
    """To the bit, in the type that the library computes in."""
    pytest.importorskip("compressed_tensors")
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    values = np.random.default_rng(seed).normal(0, 0.03, (48, 96)).astype(np.float32)
    tensors = WRITERS[kind]("a", values)
    layer = only_layer(tmp_path, tensors)
    scheme: QuantizationScheme = preset_name_to_scheme(f"{kind.upper()}A16", ["Linear"])
    state = {name.removeprefix("a."): torch.from_numpy(array.view(np.uint8)) for name, (_, array) in tensors.items()}
    if kind == "nvfp4":
        state["weight_scale"] = state["weight_scale"].view(torch.float8_e4m3fn)
        state["weight_global_scale"] = state["weight_global_scale"].view(torch.float32)
    library = BaseCompressor.get_value_from_registry(f"{kind}-pack-quantized")
    wanted = library.decompress(state, scheme)["weight"]
    own = torch.from_numpy(layer.read(slice(0, 48), layer.declared).values()).to(wanted.dtype)
    assert torch.equal(own, wanted)


@every_seed
def test_float8_with_powers_of_two_is_read(tmp_path: Path, seed: int) -> None:
    """MXFP8, one exponent per 32: the numbers of the formula, and a healthy checkpoint is clean."""
    values = np.random.default_rng(seed).normal(0, 0.03, (48, 96)).astype(np.float32)
    tensors, stored = small.mxfp8_of_compressed_tensors("a", values)
    layer = only_layer(tmp_path, tensors)
    assert (layer.format, layer.groups) == ("mxfp8", 3)
    read = np.concatenate([layer.read(slice(k, k + 16), layer.declared).values() for k in (0, 16, 32)])
    np.testing.assert_array_equal(read, stored.astype(np.float32))
    floats = made.language_model(layers=2, seed=seed)
    packed = dict(floats)
    for name in made.linear_names(floats):
        packed |= small.mxfp8_of_compressed_tensors(name, values_of(floats, name))[0]
    diagnosis = judged(tmp_path, floats, packed)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())


@every_seed
@pytest.mark.parametrize("kind", ["nvfp4", "modelopt"])
@pytest.mark.parametrize("factor", [1 / 32, 2e4])
def test_a_scale_of_the_tensor_that_does_not_fit(tmp_path: Path, seed: int, kind: str, factor: float) -> None:
    """Too small, so that block scales are cut off at 448; too large, so that they are subnormal."""
    floats = made.language_model(layers=2, seed=seed)
    scales = common_scales(floats)
    scales[PATIENT] *= factor
    assert found(judged(tmp_path, floats, quantized(floats, kind, scales))) >= {("block-scales-out-of-range", PATIENT)}


@every_seed
@pytest.mark.parametrize(("kind", "part"), [("nvfp4", "weight_global_scale"), ("modelopt", "weight_scale_2")])
def test_a_missing_scale_of_the_tensor(tmp_path: Path, seed: int, kind: str, part: str) -> None:
    floats = made.language_model(layers=2, seed=seed)
    tensors = quantized(floats, kind)
    del tensors[f"{PATIENT}.{part}"]
    diagnosis = judged(tmp_path, floats, tensors)
    assert found(diagnosis) == {("block-scales-out-of-range", PATIENT)}


@every_seed
@pytest.mark.parametrize("kind", ["nvfp4", "modelopt"])
def test_parts_of_fused_layers_with_scales_of_their_own(tmp_path: Path, seed: int, kind: str) -> None:
    floats = made.language_model(layers=2, seed=seed)
    name = "model.layers.0.mlp.up_proj"
    scales = common_scales(floats)
    scales[name] *= 1.5
    diagnosis = judged(tmp_path, floats, quantized(floats, kind, scales))
    assert [cause.cause for cause in diagnosis.causes] == ["fused-scales-differ"]
    checkpoint = diagnosis.model.checkpoint
    assert checkpoint.first_fused == "model.layers.0.mlp.gate_proj/up_proj"
    assert (checkpoint.fused_layers, checkpoint.fused_differing) == (4, 1)
    assert checkpoint.fused_ratio == pytest.approx(1.5, rel=1e-3)


def test_one_weight_that_is_far_larger_makes_other_scales_subnormal(tmp_path: Path) -> None:
    floats = made.language_model(layers=2)
    values = values_of(floats, PATIENT).copy()
    values[3, 5] = 3e4 * np.abs(values).max()
    floats[f"{PATIENT}.weight"] = ("BF16", made.bfloat16(values))
    assert ("block-scales-out-of-range", PATIENT) in found(judged(tmp_path, floats, quantized(floats, "nvfp4")))


@every_seed
@pytest.mark.parametrize("asked", [False, True])
def test_float8_of_modelopt(tmp_path: Path, seed: int, asked: bool) -> None:
    """One scale per layer, configuration in a file of its own; a cache that it asks for has no scales."""
    floats = made.language_model(layers=2, seed=seed)
    tensors = dict(floats)
    for name in made.linear_names(floats):
        values = values_of(floats, name)
        scale = np.abs(values).max() / 448
        del tensors[f"{name}.weight"]
        tensors |= {
            f"{name}.weight": ("F8_E4M3", (values / scale).astype(ml_dtypes.float8_e4m3fn)),
            f"{name}.weight_scale": ("F32", np.array(scale, np.float32)),
            f"{name}.input_scale": ("F32", np.array(0.02, np.float32)),
        }
    before, after = made.write_folder(tmp_path / "float", floats), made.write_folder(tmp_path / "quantized", tensors)
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8" if asked else None, "exclude_modules": ["lm_head"]}
    (after / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    diagnosis = quantmedic.compare_weights(before, after)
    assert [cause.cause for cause in diagnosis.causes] == (["kv-scales-missing"] if asked else [])
    assert diagnosis.toolchain is not None and diagnosis.toolchain.name == "NVIDIA ModelOpt"
