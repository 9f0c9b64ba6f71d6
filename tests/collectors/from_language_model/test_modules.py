"""Language models in memory: figures are those of the modules as they run, and neither is changed."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from builders import language_models as lm
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.from_language_model.module_weights import checkpoint_of_module
from quantmedic.engine.errors import QuantmedicError

pytestmark = pytest.mark.thorough


def texts(count: int = 5, length: int = 32) -> Any:
    return np.random.default_rng(1).integers(3, lm.VOCABULARY, (count, length))


def is_as_expected(diagnosis: Any, floats: Any, quantized: Any, ids: Any) -> None:
    wanted, language = lm.expected(floats, quantized, ids), diagnosis.model.language
    assert diagnosis.metrics.float_value == pytest.approx(wanted["float"], rel=1e-6)
    assert diagnosis.metrics.quantized_value == pytest.approx(wanted["quantized"], rel=1e-6)
    for name in ("kl_mean", "kl_tail", "delta_p", "same_top"):
        assert getattr(language, name) == pytest.approx(wanted[name], rel=1e-4, abs=1e-9), name


#: Each with another way to make predictions.
OF_EACH_COMMIT = ("Mixtral", "GPT-2")


@pytest.mark.parametrize("architecture", others_nightly(lm.ARCHITECTURES, *OF_EACH_COMMIT))
def test_figures_of_modules_and_checkpoints_are_those_of_whole_models(architecture: str, tmp_path: Path) -> None:
    floats = lm.random_model(architecture)
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 4)
    ids = texts()
    found = quantmedic.diagnose(floats, quantized, tokens=ids)
    is_as_expected(found, floats, quantized, ids)
    folders = [lm.saved(model, tmp_path / name) for model, name in ((floats, "float"), (quantized, "int4"))]
    of_folders = quantmedic.diagnose(*folders, tokens=ids)
    is_as_expected(of_folders, floats, quantized, ids)
    stored = of_folders.model.language
    assert (stored.texts, stored.tokens, len(stored.blocks)) == (5, 5 * 31, 4)
    language = found.model.language
    assert [block.name for block in language.blocks] == [block.name for block in stored.blocks]
    for own, other in zip(language.blocks, stored.blocks, strict=True):
        assert own.noise == pytest.approx(other.noise, rel=1e-3)
        assert own.own_noise == pytest.approx(other.own_noise, rel=1e-3)
        assert own.router_agreement == pytest.approx(other.router_agreement)
        for ours, theirs in zip(own.experts, other.experts, strict=True):
            assert ours.share == pytest.approx(theirs.share) and ours.noise == pytest.approx(theirs.noise, rel=1e-3)
    assert ("Mixtral" in architecture) == bool(language.blocks[0].experts)
    for name in ("head_gain", "embedding_gain", "kl_tried", "worst_block_gain"):
        own, other = getattr(language, name), getattr(stored, name)
        assert own == other or own == pytest.approx(other, rel=1e-3), name
    assert language.head_gain is not None and language.trial_texts == stored.trial_texts
    if architecture == "Llama":
        mixed = quantmedic.diagnose(folders[0], quantized, tokens=ids).model.language
        assert mixed.kl_mean == pytest.approx(language.kl_mean, rel=1e-5)


def test_torchao_runs_in_place(tmp_path: Path) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    groups = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32))
    floats, ids = lm.random_model("Llama"), texts()
    for config in (groups, torchao.Int8DynamicActivationInt8WeightConfig()):
        quantized = copy.deepcopy(floats)
        torchao.quantize_(quantized, config)
        found = quantmedic.diagnose(floats, quantized, tokens=ids, output=tmp_path / "report")
        is_as_expected(found, floats, quantized, ids)
        assert found.toolchain.name == "torchao" and len(found.model.language.blocks) == 4
        assert "both modules were run as they are" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_the_worst_block_is_named_and_tried() -> None:
    floats = lm.random_model("Llama")
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 2 if ".layers.2." in name else 6)
    before = {name: value.clone() for name, value in quantized.state_dict().items()}
    quantized.train()
    language = quantmedic.diagnose(floats, quantized, tokens=texts()).model.language
    assert language.worst_block == "model.layers.2" and language.worst_block_gain > 0.8
    assert quantized.training and all(
        torch.equal(value, before[name]) for name, value in quantized.state_dict().items()
    )


@pytest.mark.parametrize(
    "architecture, part",
    others_nightly([("Llama", "lm_head"), ("Llama", "embed_tokens"), ("Llama, tied", "embed_tokens")]),
)
def test_output_layer_and_embedding_are_tried(architecture: str, part: str, tmp_path: Path) -> None:
    floats = lm.random_model(architecture)
    with torch.no_grad():
        floats.lm_head.weight.mul_(8)
    is_tied = "tied" in architecture
    is_head = part == "lm_head"
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 8 if ".layers." in name else None)
    lm.rounded(quantized.lm_head if is_head else quantized.model.embed_tokens, lambda name: 2)
    ids = lm.spoken(floats, 12, 32)
    folders = [lm.saved(model, tmp_path / name) for model, name in ((floats, "float"), (quantized, "sick"))]
    for pair in ((floats, quantized), folders):
        found = quantmedic.diagnose(*pair, tokens=ids)
        language = found.model.language
        gain = language.head_gain if is_head else language.embedding_gain
        assert gain == pytest.approx(1.0, abs=0.05), "the float one takes nearly all of the divergence away"
        # Random weights that are tied predict too little to lose much.
        assert found.model.harmed is not is_tied
        if not is_tied:
            assert found.causes[0].cause == ("coarse-output-layer" if is_head else "coarse-embedding")
            assert (language.head_gain is None) is not is_head, "what is the same is not tried"


@pytest.mark.parametrize("architecture, part", [("Gemma2", "output layer"), ("GPT-2", "block")])
def test_parts_in_other_numbers_are_tried(architecture: str, part: str) -> None:
    floats = lm.random_model(architecture)
    floats.lm_head.weight = torch.nn.Parameter(8 * floats.lm_head.weight.detach())  # untied
    bits = {"output layer": "lm_head", "block": r".1."}[part]
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 2 if bits in name else None).to(torch.bfloat16)
    before = {name: value.clone() for name, value in quantized.state_dict().items()}
    language = quantmedic.diagnose(floats, quantized, tokens=texts()).model.language
    gain = language.head_gain if part == "output layer" else language.worst_block_gain
    assert gain > 0.9
    assert list(quantized.state_dict()) == list(before) and quantized.lm_head.weight.dtype == torch.bfloat16


def test_experts_in_other_numbers_are_compared() -> None:
    floats = lm.random_model("Mixtral")
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 4 if "experts" in name else None).to(torch.bfloat16)
    block = quantmedic.diagnose(floats, quantized, tokens=texts()).model.language.blocks[0]
    assert 0.5 < block.router_agreement <= 1 and all(0.001 < expert.noise < 0.2 for expert in block.experts)


def test_fake_quantizers_compute_and_do_not_learn() -> None:
    floats = lm.random_model("Llama")
    quantized = copy.deepcopy(floats)
    up = quantized.model.layers[1].mlp.up_proj
    up.weight_fake_quant = torch.ao.quantization.FakeQuantize(quant_min=-8, quant_max=7, dtype=torch.qint8)
    up.weight_fake_quant(up.weight)
    scale = up.weight_fake_quant.scale.clone()
    up.forward = lambda x: torch.nn.functional.linear(x, up.weight_fake_quant(up.weight))
    ids = texts()
    found = quantmedic.diagnose(floats, quantized, tokens=ids)
    up.weight_fake_quant.disable_observer()
    is_as_expected(found, floats, quantized, ids)
    assert torch.equal(up.weight_fake_quant.scale, scale)
    assert found.model.language.worst_block == "model.layers.1"
    held = checkpoint_of_module(quantized).tensors["model.layers.1.mlp.up_proj.weight"]
    assert len(np.unique(held.load())) <= 16


class Opaque(torch.nn.Module):
    """A module whose blocks are not found."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids).logits
        return logits


def test_without_blocks_the_predictions_alone_are_compared() -> None:
    floats = lm.random_model("Llama")
    quantized = Opaque(lm.rounded(copy.deepcopy(floats), lambda name: 4))
    ids = texts()
    found = quantmedic.diagnose(floats, quantized, tokens=ids)
    is_as_expected(found, floats, quantized.model, ids)
    assert not found.model.language.blocks and found.model.language.worst_block is None
    assert any("no list of blocks was found" in warning for warning in found.warnings)


def test_lists_and_tensors_are_texts() -> None:
    floats = lm.random_model("Llama")
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 4)
    ids = texts()
    wanted = quantmedic.diagnose(floats, quantized, tokens=ids).model.language.kl_mean
    for own in (ids.tolist(), torch.from_numpy(ids)):
        assert quantmedic.diagnose(floats, quantized, tokens=own).model.language.kl_mean == wanted


def test_what_cannot_be_run(subtests: pytest.Subtests) -> None:
    floats = lm.random_model("Llama")
    for change, said in (
        ({"tokens": ["one text"]}, "the texts are no token ids"),
        ({"tokens": [[1, 2, 99999]]}, "beyond the vocabulary"),
        ({"quantized_model": "int4"}, "the quantized model is no module"),
        ({"quantized_model": torch.nn.Linear(3, 3)}, "cannot be run on token ids"),
        ({"float_model": torch.nn.Linear(3, 3)}, "is no language model of transformers"),
        ({"cluster": "local"}, "modules in memory are compared by this process"),
        ({"device": "nonsense"}, "torch cannot use this device"),
    ):
        given: dict[str, Any] = {"float_model": floats, "quantized_model": floats, "tokens": texts(), **change}
        with subtests.test(said), pytest.raises(QuantmedicError, match=said):
            quantmedic.diagnose(**given)
