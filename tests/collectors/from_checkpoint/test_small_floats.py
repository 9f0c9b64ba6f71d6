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
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer, Settings
from quantmedic.collectors.from_checkpoint.packed.packed_weights import packed_layers
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
FLOATS = made.language_model(layers=2)
every_kind = pytest.mark.parametrize("kind", WRITERS)


def values_of(floats: made.Tensors, name: str) -> Any:
    return made.from_bfloat16(floats[f"{name}.weight"][1])


def common_scales(floats: made.Tensors = FLOATS) -> dict[str, float]:
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


def judged(folder: Path, kind: str, scales: dict[str, float] | None = None) -> Diagnosis:
    return made.compare(folder, FLOATS, quantized(FLOATS, kind, scales))


def only_layer(path: Path, tensors: made.Tensors) -> PackedLayer:
    file = made.write_file(path / "layer.safetensors", tensors)
    layers, refused = packed_layers(open_checkpoint(file).tensors, Settings())
    assert not refused
    return layers["a"]


@every_kind
def test_healthy_checkpoints_are_clean_and_read_as_the_formula(tmp_path: Path, kind: str) -> None:
    diagnosis = judged(tmp_path, kind)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    row = next(row for row in diagnosis.layers if row.name == PATIENT)
    assert row.groups is not None and row.groups.size == (32 if kind in MX else 16)
    assert row.weight_bits == (6 if kind == "mxfp6" else 4)
    assert (row.weight_sqnr_db or 0.0) > 15
    values = np.random.default_rng(0).normal(0, 0.03, (48, 96)).astype(np.float32)
    stored = MX[kind](values)[2] if kind in MX else small.nvfp4(values)[3]
    # The scale of the tensor is stored in float32, as its inverse by compressed-tensors.
    read = in_parts(only_layer(tmp_path, WRITERS[kind]("a", values)))
    np.testing.assert_allclose(read, stored, rtol=0 if kind in MX else 3e-7, atol=0)


def in_parts(layer: PackedLayer) -> Any:
    return np.concatenate([layer.read(slice(k, k + 16), layer.declared).values() for k in (0, 16, 32)])


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp6"])
def test_numbers_are_those_of_compressed_tensors(tmp_path: Path, kind: str) -> None:
    """To the bit, in the type that the library computes in."""
    pytest.importorskip("compressed_tensors")
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    values = np.random.default_rng(0).normal(0, 0.03, (48, 96)).astype(np.float32)
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


def test_float8_with_powers_of_two_is_read(tmp_path: Path) -> None:
    """MXFP8, one exponent per 32: the numbers of the formula, and a healthy checkpoint is clean."""
    values = np.random.default_rng(0).normal(0, 0.03, (48, 96)).astype(np.float32)
    tensors, stored = small.mxfp8_of_compressed_tensors("a", values)
    layer = only_layer(tmp_path, tensors)
    assert (layer.format, layer.groups) == ("mxfp8", 3)
    np.testing.assert_array_equal(in_parts(layer), stored.astype(np.float32))
    packed = dict(FLOATS)
    for name in made.linear_names(FLOATS):
        packed |= small.mxfp8_of_compressed_tensors(name, values_of(FLOATS, name))[0]
    diagnosis = made.compare(tmp_path, FLOATS, packed)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())


@pytest.mark.parametrize(
    ("kind", "part"), others_nightly([("nvfp4", "weight_global_scale"), ("modelopt", "weight_scale_2")])
)
def test_scales_of_tensors_that_do_not_fit(tmp_path: Path, kind: str, part: str) -> None:
    """Too small, so that block scales are cut off at 448; too large, so that they are subnormal; and missing."""
    for factor in (1 / 32, 2e4):
        scales = common_scales()
        scales[PATIENT] *= factor
        assert ("block-scales-out-of-range", PATIENT) in made.named(judged(tmp_path, kind, scales)), factor
    tensors = quantized(FLOATS, kind)
    del tensors[f"{PATIENT}.{part}"]
    assert made.named(made.compare(tmp_path, FLOATS, tensors)) == {("block-scales-out-of-range", PATIENT)}


def test_parts_of_fused_layers_with_scales_of_their_own(tmp_path: Path) -> None:
    scales = common_scales()
    scales["model.layers.0.mlp.up_proj"] *= 1.5
    diagnosis = judged(tmp_path, "nvfp4", scales)
    assert made.causes_of(diagnosis) == ["fused-scales-differ"]
    checkpoint = diagnosis.model.checkpoint
    assert checkpoint.first_fused == "model.layers.0.mlp.gate_proj/up_proj"
    assert (checkpoint.fused_layers, checkpoint.fused_differing) == (4, 1)
    assert checkpoint.fused_ratio == pytest.approx(1.5, rel=1e-3)


def test_float8_of_modelopt(tmp_path: Path) -> None:
    """One scale per layer, configuration in a file of its own; a cache that it asks for has no scales."""
    tensors = dict(FLOATS)
    for name in made.linear_names(FLOATS):
        values = values_of(FLOATS, name)
        scale = np.abs(values).max() / 448
        tensors[f"{name}.weight"] = ("F8_E4M3", (values / scale).astype(ml_dtypes.float8_e4m3fn))
        tensors |= made.as_float32({f"{name}.weight_scale": scale, f"{name}.input_scale": np.array(0.02)})
    before, after = made.write_folder(tmp_path / "float", FLOATS), made.write_folder(tmp_path / "quantized", tensors)
    for asked, expected in (None, []), ("FP8", ["kv-scales-missing"]):
        said = {"quant_algo": "FP8", "kv_cache_quant_algo": asked, "exclude_modules": ["lm_head"]}
        declared = {"producer": {"name": "modelopt"}, "quantization": said}
        (after / "hf_quant_config.json").write_text(json.dumps(declared))
        diagnosis = quantmedic.diagnose(before, after, weights_only=True)
        assert made.causes_of(diagnosis) == expected
        assert diagnosis.toolchain is not None and diagnosis.toolchain.name == "NVIDIA ModelOpt"
