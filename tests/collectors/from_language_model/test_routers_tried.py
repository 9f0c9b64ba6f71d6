"""Routers of experts in float: what that takes away is what a whole model with these routers has left."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers
from builders import language_models as lm

import quantmedic

pytestmark = pytest.mark.thorough


def random_model() -> Any:
    """Of Qwen 3."""
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16}
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**lm.SIZES, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim > 1:
                value.mul_(3)
    return model


def sick(model: Any, *blocks: int) -> Any:
    """At 8 bits in groups of 32, the routers of these blocks at 2; the others stay in float."""

    def bits(name: str) -> int | None:
        if ".gate." in name:
            return 2 if any(f".layers.{block}." in name for block in blocks) else None
        return 8 if ".layers." in name else None

    return lm.rounded(copy.deepcopy(model), bits, 32)


def texts(count: int = 12, length: int = 32) -> Any:
    return np.random.default_rng(1).integers(3, lm.VOCABULARY, (count, length))


def wanted_gain(floats: Any, quantized: Any, ids: Any) -> float:
    """By whole models, all logits at once."""
    mended = copy.deepcopy(quantized)
    for ours, theirs in zip(floats.model.layers, mended.model.layers, strict=True):
        theirs.mlp.gate.load_state_dict(ours.mlp.gate.state_dict())
    left, before = (lm.expected(floats, model, ids)["kl_mean"] for model in (mended, quantized))
    return 1 - left / before


@pytest.mark.nightly
def test_the_gain_is_that_of_whole_models(tmp_path: Path) -> None:
    """Checkpoints of Mixtral call routers otherwise than the network does."""
    floats = lm.random_model("Mixtral")
    quantized = sick(floats, *range(4))
    folders = [lm.saved(model, tmp_path / name) for model, name in ((floats, "float"), (quantized, "sick"))]
    ids = texts()
    language = quantmedic.diagnose(*folders, tokens=ids).model.language
    tried = ids[np.array(language.trial_texts) - 1]
    wanted = wanted_gain(lm.opened(folders[0]), lm.opened(folders[1]), tried)
    assert len(tried) == 4 and language.router_gain == pytest.approx(wanted, abs=1e-3)
    assert language.router_gain > 0.8


def test_routers_that_make_the_loss_are_the_cause(tmp_path: Path) -> None:
    floats = random_model()
    with torch.no_grad():
        floats.lm_head.weight.mul_(8)  # so that it is sure of what it says
    folders = [lm.saved(model, tmp_path / name) for model, name in ((floats, "float"), (sick(floats, *range(4)), "q"))]
    found = quantmedic.diagnose(*folders, tokens=lm.spoken(floats, 12, 32), output=tmp_path / "report")
    first = found.causes[0]
    assert (first.name, first.severity, found.verdict) == ("quantized-router-felt", "high", "degraded")
    assert [layer.quantized_name for layer in first.layers] == [f"model.layers.{k}.mlp.gate" for k in range(4)]
    assert not [cause for cause in found.causes[1:] if cause.is_serious], "no one else is blamed"
    told = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert f"With the float routers, {found.model.language.router_gain:.0%}".replace("%", " %") in told


@pytest.mark.nightly
def test_routers_in_float_are_not_tried(tmp_path: Path) -> None:
    floats = random_model()
    folders = [lm.saved(model, tmp_path / str(k)) for k, model in enumerate((floats, sick(floats)))]
    language = quantmedic.diagnose(*folders, tokens=texts(4)).model.language
    assert language.kl_mean > 0 and language.router_gain is None
