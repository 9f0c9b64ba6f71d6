"""Caches of latent vectors (DeepSeek): what runtimes keep is what is quantized, and not keys and values."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers
from builders import activation_schemes as acts
from builders import checkpoints as made
from builders import language_models as lm

from quantmedic.collectors.from_checkpoint.declared.stored_scales import kv_facts
from quantmedic.collectors.from_checkpoint.safetensors_file import open_checkpoint
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.case.facts import LanguageFacts

pytestmark = pytest.mark.thorough

LATENT = 32
#: What turns queries and keys, in the files of both architectures.
ROTATIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb")
#: Scales of float8 that no value of these networks exceeds, and that leave few codes.
SCALE = 0.02


def deepseek(version: int = 3) -> Any:
    sizes = {
        **lm.SIZES,
        "num_key_value_heads": 4,
        "kv_lora_rank": LATENT,
        "q_lora_rank": None,
        "moe_intermediate_size": 32,
    }
    heads = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    kind = transformers.DeepseekV3Config if version == 3 else transformers.DeepseekV2Config
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**sizes, **heads, **experts)).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim > 1:
                value.mul_(3.0)
        for name, value in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # stored, though it is no parameter
                value.normal_(std=0.3)
    return model


def run(folder: Path, asked: acts.Asked, model: Any = None) -> LanguageFacts:
    floats = lm.saved(model or deepseek(), folder / "float")
    quantized = acts.write_quantized(floats, folder / "quantized", asked)
    np.savez(folder / "ids.npz", ids=drawn())
    return run_language_models((floats, quantized), TextRun(folder / "ids.npz"))[0]


def drawn() -> Any:
    return np.random.default_rng(1).integers(3, lm.VOCABULARY, (3, 24))


def with_latents(model: Any, rounder: acts.Rounder) -> Any:
    """The whole model with latent vectors rounded behind their norm, and the rotated keys behind the rotation."""
    file, forward = sys.modules[type(model).__module__], model.forward
    for name, module in model.named_modules():
        if name.endswith("kv_a_layernorm"):
            module.register_forward_hook(lambda _, args, output: rounded(output, rounder))

    def run(*args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in ROTATIONS:
                if hasattr(file, name):
                    patch.setattr(file, name, rotation_of(getattr(file, name), rounder))
            return forward(*args, **kwargs)

    model.forward = run
    return model


def rotation_of(own: Any, rounder: acts.Rounder) -> Any:
    def rotate(*args: Any, **kwargs: Any) -> Any:
        queries, keys = own(*args, **kwargs)
        return queries, rounded(keys, rounder)

    return rotate


def rounded(values: torch.Tensor, rounder: acts.Rounder) -> torch.Tensor:
    return torch.from_numpy(rounder(values.numpy().astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("version", [2, 3])
def test_latent_vectors_are_quantized_with_the_scale_of_keys(version: int, tmp_path: Path) -> None:
    asked = acts.Asked(cache=acts.FLOAT8_TENSOR, cache_scales=(SCALE, 0.5))
    language = run(tmp_path, asked, deepseek(version))
    assert language.not_simulated is None
    assert language.cache == "float8 per tensor, stored scales, of latent vectors and rotated keys"
    floats, weights_alone = (opened(tmp_path / "float") for opened in (lm.opened, acts.with_int8_weights))
    sick = with_latents(acts.with_int8_weights(tmp_path / "float"), acts.float8_with(SCALE))
    assert language.kl_mean == pytest.approx(lm.expected(floats, sick, drawn())["kl_mean"], rel=1e-3)
    assert language.kl_float_cache == pytest.approx(lm.expected(floats, weights_alone, drawn())["kl_mean"], rel=1e-3)
    assert language.cache_block.key_scale == language.cache_block.value_scale == pytest.approx(SCALE)


def test_one_scale_is_told_of_latent_vectors(tmp_path: Path) -> None:
    """That of values has no use there, and none is to be written."""
    language = run(tmp_path, acts.Asked(cache=acts.FLOAT8_TENSOR, cache_scales=(SCALE / 256, 100.0)))
    assert (language.cache_gain or 0) > 0.5 and (language.cache_block.key_clipped or 0) > 0.5
    assert language.cache_scales and all(name.endswith("self_attn.k_scale") for name in language.cache_scales)


def test_latent_caches_that_no_runtime_keeps_are_not_simulated(tmp_path: Path) -> None:
    says = "latent cache, of which float8 with one stored scale is known"
    for scheme in (acts.INT8_TENSOR, {**acts.FLOAT8_TENSOR, "dynamic": True}):
        language = run(tmp_path / scheme["type"], acts.Asked(cache=scheme, cache_scales=(SCALE, SCALE)))
        assert language.cache is None and says in (language.not_simulated or "")


def test_a_latent_cache_lacks_no_scale_of_values(tmp_path: Path) -> None:
    for maker, missing in (("kv_a_proj_with_mqa", None), ("k_proj", "a.self_attn")):
        name = f"a.self_attn.{maker}.weight"
        stored = made.as_float32({name: np.ones((4, 4)), "a.self_attn.k_scale": np.array([0.5])})
        tensors = open_checkpoint(made.write_file(tmp_path / "model.safetensors", stored)).tensors
        found = kv_facts({"kv_cache_scheme": acts.FLOAT8_TENSOR}, [name], tensors)
        assert (found["kv_missing"], found["first_kv_missing"]) == (int(missing is not None), missing)
