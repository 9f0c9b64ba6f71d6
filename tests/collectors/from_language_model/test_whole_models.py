"""Figures of checkpoints that are run block by block are those of the whole models."""

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
from quantmedic.engine.errors import QuantmedicError

pytestmark = pytest.mark.thorough


def texts(count: int = 5, length: int = 32) -> Any:
    return np.random.default_rng(1).integers(3, lm.VOCABULARY, (count, length))


def saved(folder: Path, *models: Any) -> list[Path]:
    return [lm.saved(model, folder / str(place)) for place, model in enumerate(models)]


#: Each with another way to make predictions.
OF_EACH_COMMIT = ("Mixtral", "GPT-2")


@pytest.mark.parametrize("architecture", others_nightly(lm.ARCHITECTURES, *OF_EACH_COMMIT))
def test_figures_are_those_of_whole_models(architecture: str, tmp_path: Path) -> None:
    floats = lm.random_model(architecture)
    quantized = lm.rounded(copy.deepcopy(floats), lambda name: 4)
    ids = texts()
    found = quantmedic.diagnose(*saved(tmp_path, floats, quantized), tokens=ids)
    wanted, language = lm.expected(floats, quantized, ids), found.model.language
    assert found.metrics.float_value == pytest.approx(wanted["float"], rel=1e-6)
    assert found.metrics.quantized_value == pytest.approx(wanted["quantized"], rel=1e-6)
    for name in ("kl_mean", "kl_tail", "delta_p", "same_top"):
        assert getattr(language, name) == pytest.approx(wanted[name], rel=1e-4, abs=1e-9), name
    assert (language.texts, language.tokens, len(language.blocks)) == (5, 5 * 31, 4)
    assert ("Mixtral" in architecture) == bool(language.blocks[0].experts) and language.head_gain is not None


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
    found = quantmedic.diagnose(*saved(tmp_path, floats, quantized), tokens=lm.spoken(floats, 12, 32))
    language = found.model.language
    gain = language.head_gain if is_head else language.embedding_gain
    assert gain == pytest.approx(1.0, abs=0.05), "the float one takes nearly all of the divergence away"
    # Random weights that are tied predict too little to lose much.
    assert found.model.harmed is not is_tied
    if not is_tied:
        assert found.causes[0].cause == ("coarse-output-layer" if is_head else "coarse-embedding")
        assert (language.head_gain is None) is not is_head, "what is the same is not tried"


def test_lists_and_tensors_are_texts(tmp_path: Path) -> None:
    floats = lm.random_model("Llama")
    folders = saved(tmp_path, floats, lm.rounded(copy.deepcopy(floats), lambda name: 4))
    ids = texts()
    wanted = quantmedic.diagnose(*folders, tokens=ids).model.language.kl_mean
    for own in (ids.tolist(), torch.from_numpy(ids)):
        assert quantmedic.diagnose(*folders, tokens=own).model.language.kl_mean == wanted
    for wrong, said in ((["one text"], "the texts are no token ids"), ([[1, 2, 99999]], "beyond the vocabulary")):
        with pytest.raises(QuantmedicError, match=said):
            quantmedic.diagnose(*folders, tokens=wrong)


def test_modules_are_saved_first() -> None:
    model = lm.random_model("Llama")
    with pytest.raises(QuantmedicError, match="is for language models") as caught:
        quantmedic.diagnose(model, model, tokens=texts())
    assert "LlamaForCausalLM in memory" in str(caught.value) and "as save_pretrained writes" in str(caught.value)
