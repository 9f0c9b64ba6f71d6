"""Stored scales of caches and activations against what normed inputs and weights make: held against drawn inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made

from quantmedic.collectors.from_checkpoint.declared.declared_facts import running_grids
from quantmedic.collectors.from_checkpoint.declared.scale_reaches import asked_inputs
from quantmedic.collectors.from_checkpoint.declared.stored_scales import StoredScales
from quantmedic.engine.contract.diagnosis import Diagnosis

WIDTH, HEADS, KEPT, SIZE = 32, 4, 2, 8
BLOCK = "model.layers.0"
CONFIG = {
    "model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEPT,
}  # fmt: skip
INT8 = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}
FLOAT8 = {**INT8, "type": "float"}


def floats_of(*, is_fused: bool = False, loud: float = 1.0) -> made.Tensors:
    """One block of random weights; ``loud`` multiplies one channel of the keys."""
    random = np.random.default_rng(0)

    def draw(rows: int, columns: int = WIDTH) -> made.Array:
        return random.normal(0, 0.3, (rows, columns)).astype(np.float32)

    q, k, v = draw(HEADS * SIZE), draw(KEPT * SIZE), draw(KEPT * SIZE)
    k[3] *= loud
    gate, up, down = draw(48), draw(48), draw(WIDTH, 48)
    parts = {"self_attn.o_proj": draw(WIDTH), "mlp.down_proj": down}
    if is_fused:
        parts |= {"self_attn.qkv_proj": np.concatenate([q, k, v]), "mlp.gate_up_proj": np.concatenate([gate, up])}
    else:
        parts |= {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v}
        parts |= {"mlp.gate_proj": gate, "mlp.up_proj": up}
    found = {f"{BLOCK}.{name}.weight": ("F32", values) for name, values in parts.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        found[f"{BLOCK}.{norm}.weight"] = ("F32", np.exp(random.normal(0, 0.5, WIDTH)).astype(np.float32))
    return found


def sizes_of(floats: made.Tensors, *, is_fused: bool = False) -> dict[str, tuple[float, float]]:
    """Deviation of the loudest channel and largest value, of many drawn inputs that a norm made."""
    values = {name: array for name, (_, array) in floats.items()}
    random = np.random.default_rng([0, 1])
    drawn = random.normal(0, 1, (20_000, WIDTH))
    drawn /= np.sqrt(np.square(drawn).mean(axis=1, keepdims=True))
    normed = {
        name: drawn * values[f"{BLOCK}.{norm}.weight"]
        for name, norm in (("attention", "input_layernorm"), ("mlp", "post_attention_layernorm"))
    }
    if is_fused:
        _, k, v = np.split(values[f"{BLOCK}.self_attn.qkv_proj.weight"], [HEADS * SIZE, (HEADS + KEPT) * SIZE])
    else:
        k, v = (values[f"{BLOCK}.self_attn.{part}_proj.weight"] for part in "kv")
    written = {"k_scale": normed["attention"] @ k.T, "v_scale": normed["attention"] @ v.T}
    return {name: (float(own.std(axis=0).max()), float(np.abs(own).max())) for name, own in written.items()}


def compared(
    folder: Path, floats: made.Tensors, scales: dict[str, float], quantization: dict[str, Any], **config: Any
) -> Diagnosis:
    """Both checkpoints: the quantized one in 8 bits, with these scales beside it."""
    own = {**CONFIG, **config}
    layers = [name.removesuffix(".weight") for name in floats if "proj" in name]
    tensors = {name: value for name, value in floats.items() if "proj" not in name}
    for layer in layers:
        weights = floats[f"{layer}.weight"][1]
        step = np.abs(weights).max(axis=1, keepdims=True) / 127
        tensors[f"{layer}.weight"] = ("I8", np.rint(weights / step).astype(np.int8))
        tensors[f"{layer}.weight_scale"] = ("F32", step.astype(np.float32))
    tensors |= {f"{BLOCK}.{name}": ("F32", np.array([scale], np.float32)) for name, scale in scales.items()}
    groups = {"group_0": {"targets": ["Linear"], "weights": {**INT8, "strategy": "channel"}}}
    groups["group_0"] |= quantization.pop("group", {})
    told = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups, **quantization}
    return made.compare(folder, floats, tensors, {**own, "quantization_config": told}, own)


@pytest.mark.thorough
@pytest.mark.parametrize("is_fused", [False, True])
def test_scales_of_the_cache_reach_as_far_as_drawn_inputs(
    tmp_path: Path, is_fused: bool, subtests: pytest.Subtests
) -> None:
    floats = floats_of(is_fused=is_fused)
    sizes = sizes_of(floats, is_fused=is_fused)
    for kind, factor, expected in (
        ("int8", 1, []),
        ("int8", 1 / 16, ["kv-scales-unfit"]),
        ("int8", 40, ["kv-scales-unfit"]),
        ("float8", 40, []),  # whose steps shrink with the values
    ):
        with subtests.test(kind, factor=factor):
            scheme, last = (INT8, 127) if kind == "int8" else (FLOAT8, 448)
            scales = {f"self_attn.{name}": factor * largest / last for name, (_, largest) in sizes.items()}
            found = compared(tmp_path, floats, scales, {"kv_cache_scheme": scheme})
            facts = found.model.checkpoint
            assert made.causes_of(found) == expected
            assert facts.running_grids == f"K/V cache ({kind})"
            wanted = factor * min(largest / deviation for deviation, largest in sizes.values())
            assert facts.cache_reach == pytest.approx(wanted, rel=0.05)
            if factor == 1:
                # no drawn value is beyond what norms and weights allow
                assert facts.cache_excess is not None and facts.cache_excess < 1
                assert facts.cache_steps is not None and facts.cache_steps > 5
                assert found.verdict == "healthy"


def test_loud_keys_leave_the_others_few_steps(tmp_path: Path) -> None:
    floats = floats_of(loud=96.0)
    scales = {f"self_attn.{name}": own / 127 for name, (_, own) in sizes_of(floats).items()}
    found = compared(tmp_path, floats, scales, {"kv_cache_scheme": INT8})
    assert [(cause.cause, cause.severity) for cause in found.causes] == [("coarse-kv-cache", "low")]


def test_scales_of_inputs(tmp_path: Path) -> None:
    floats = floats_of(is_fused=True)
    gains = floats[f"{BLOCK}.input_layernorm.weight"][1]
    for factor, expected in (1.0, []), (1 / 16, ["activation-scales-too-small"]):
        scales = {"self_attn.qkv_proj.input_scale": factor * 4 * float(np.sqrt(np.mean(gains**2))) / 127}
        scales["mlp.down_proj.input_scale"] = 10.0
        found = compared(tmp_path, floats, scales, {"group": {"input_activations": INT8}})
        assert found.model.checkpoint.input_reach == pytest.approx(4 * factor, rel=1e-3)
        assert made.causes_of(found) == expected
        assert found.model.checkpoint.running_grids == "inputs of layers (int8)"


def test_norms_that_are_not_known_tell_nothing(tmp_path: Path) -> None:
    scales = {f"self_attn.{name}": 1e-6 for name in ("k_scale", "v_scale")}
    found = compared(tmp_path, floats_of(), scales, {"kv_cache_scheme": INT8}, model_type="of-my-own")
    assert found.model.checkpoint.cache_reach is None and made.causes_of(found) == []


def test_keys_that_are_normed_have_the_size_of_that_norm(tmp_path: Path) -> None:
    floats = floats_of()
    gains = np.exp(np.random.default_rng(0).normal(0, 0.5, SIZE)).astype(np.float32)
    floats[f"{BLOCK}.self_attn.k_norm.weight"] = ("F32", gains)
    scales = {"self_attn.k_scale": 3 * float(gains.max()) / 127}
    found = compared(tmp_path, floats, scales, {"kv_cache_scheme": INT8}, model_type="qwen3")
    assert found.model.checkpoint.cache_reach == pytest.approx(3.0, rel=1e-5)
    assert found.model.checkpoint.cache_excess == pytest.approx(3.0 / SIZE**0.5, rel=1e-5)


def test_what_a_configuration_quantizes_while_running() -> None:
    def group(**settings: Any) -> dict[str, Any]:
        return {"config_groups": {"g": settings}}

    both = "inputs of layers (FP8) and K/V cache (FP8)"
    for settings, inputs, said in (
        ({}, None, None),
        ({"quant_method": "gptq", "bits": 4}, None, None),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "float8", both),
        ({"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "none"}, None, None),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "float8", "inputs of layers (float8)"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, None, "inputs of layers (float8)"),
        (group(input_activations=INT8), "int8", "inputs of layers (int8)"),
        (group(input_activations={**INT8, "dynamic": True}), None, "inputs of layers (int8)"),
        ({**group(weights=INT8), "kv_cache_scheme": None}, None, None),
        ({"config_groups": [1], "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, None, "K/V cache (float8)"),
    ):
        assert (asked_inputs(settings), running_grids(settings, StoredScales())) == (inputs, said), settings
