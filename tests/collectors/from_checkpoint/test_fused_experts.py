"""Experts of GPT-OSS that one tensor holds in MXFP4: each is a layer, read as it stands, and an ill one is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders import small_floats as small

from quantmedic.engine.contract.diagnosis import Diagnosis

EXPERTS, HIDDEN, INNER = 4, 128, 128
BASE = "model.layers.0.mlp.experts"
ROUTER, CONFIG = "model.layers.0.mlp.router.weight", {"quantization_config": {"quant_method": "mxfp4"}}


def floats_of() -> dict[str, Any]:
    """Weights by inputs and outputs; those of down are square, so that shapes do not tell which is which."""
    random = np.random.default_rng(0)
    shapes = {"gate_up_proj": (EXPERTS, HIDDEN, 2 * INNER), "down_proj": (EXPERTS, INNER, HIDDEN)}
    return {name: random.normal(0, 0.03, shape).astype(np.float32) for name, shape in shapes.items()}


def judged(folder: Path, harm: Any = None) -> tuple[Diagnosis, dict[str, Any]]:
    random = np.random.default_rng(50)
    floats: made.Tensors = {ROUTER: ("BF16", made.bfloat16(random.normal(0, 0.02, (EXPERTS, HIDDEN))))}
    packed = dict(floats)
    stored = {}
    for name, values in floats_of().items():
        codes, exponents, back = small.mxfp4(np.ascontiguousarray(values.swapaxes(1, 2)))
        stored[name] = back.swapaxes(1, 2)
        if harm is not None:
            codes, exponents = harm(name, codes, exponents)
        bias = ("BF16", made.bfloat16(random.normal(0, 0.1, (EXPERTS, values.shape[2]))))
        floats |= {f"{BASE}.{name}": ("F32", values), f"{BASE}.{name}_bias": bias}
        packed |= {
            f"{BASE}.{name}_blocks": ("U8", codes.reshape(*exponents.shape, 16)),
            f"{BASE}.{name}_scales": ("U8", exponents),
            f"{BASE}.{name}_bias": bias,
        }
    return made.compare(folder, floats, packed, CONFIG), stored


def test_each_expert_is_a_layer_and_sound_ones_are_clean(tmp_path: Path) -> None:
    diagnosis, stored = judged(tmp_path)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    rows = {row.name: row for row in diagnosis.layers}
    assert rows.keys() == {
        ROUTER.removesuffix(".weight"), *(f"{BASE}.{name}.{k}" for name in stored for k in range(EXPERTS))
    }  # fmt: skip
    for name, back in stored.items():
        for k, whole in enumerate(floats_of()[name]):
            noise = np.square(back[k] - whole).sum()
            expected = 10 * np.log10(np.square(whole.astype(float)).sum() / noise)
            assert rows[f"{BASE}.{name}.{k}"].weight_sqnr_db == pytest.approx(expected, abs=1e-4)
            assert rows[f"{BASE}.{name}.{k}"].role == "expert"


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_an_expert_with_scales_off_by_two_is_named(tmp_path: Path, name: str) -> None:
    def harm(own: str, codes: Any, exponents: Any) -> tuple[Any, Any]:
        exponents = exponents.copy()
        if own == name:
            exponents[2] += 1
        return codes, exponents

    diagnosis, _ = judged(tmp_path, harm)
    assert made.named(diagnosis) == {("wrong-weight-scale", f"{BASE}.{name}.2")}


def test_experts_that_do_not_fit_stay_as_they_are(tmp_path: Path) -> None:
    """The float model has its experts one by one."""
    ones = np.ones((4, 4), np.float32)
    floats: made.Tensors = {"a.experts.up_proj": ("F32", np.ones((2, 64, 32), np.float32)), "b.weight": ("F32", ones)}
    packed: made.Tensors = {
        "a.experts.up_proj_blocks": ("U8", np.zeros((2, 32, 3, 16), np.uint8)),
        "a.experts.up_proj_scales": ("U8", np.zeros((2, 32, 3), np.uint8)),
        "b.weight": ("F32", ones),
    }
    assert "incomplete-checkpoint" in made.causes_of(made.compare(tmp_path, floats, packed))
