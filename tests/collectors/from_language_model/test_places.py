"""Where texts and experts lose: figures by place, by text and by expert are those of whole models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

pytest.importorskip("transformers")

import torch
from builders import language_models as lm

from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.from_language_model.positions import Means, starts_of_bins
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.case.facts import LanguageFacts

pytestmark = pytest.mark.thorough


@given(some.lists(some.integers(2, 90), min_size=1, max_size=5), some.integers(0, 2**32 - 1))
def test_means_by_place_are_those_of_all_values_at_once(lengths: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    starts = starts_of_bins(lengths)
    means, texts = Means(starts), [random.normal(size=length) for length in lengths]
    for text in texts:
        text[random.random(len(text)) < 0.1] = np.nan
        means.add(text)
    assert starts[:2] == (0, 1) and list(starts) == sorted(set(starts)) and starts[-1] < max(lengths)
    for own, low, high in zip(means.by_bin, starts, (*starts[1:], max(lengths)), strict=True):
        values = np.concatenate([text[low:high] for text in texts])
        values = values[~np.isnan(values)]
        assert own is None if not len(values) else own == pytest.approx(values.mean())
    every = np.concatenate(texts)
    assert means.overall is None or means.overall == pytest.approx(np.nanmean(every))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A mixture of experts, in float and at 4 bits, run whole and block by block."""
    folder = tmp_path_factory.mktemp("models")
    floats = lm.saved(lm.random_model("Mixtral"), folder / "float")
    quantized = lm.saved(lm.rounded(lm.opened(floats), lambda name: 4), folder / "int4")
    ids = np.random.default_rng(1).integers(3, lm.VOCABULARY, (6, 40))
    np.savez(folder / "ids.npz", ids=ids)
    language, _ = run_language_models((floats, quantized), TextRun(folder / "ids.npz"))
    return {"language": language, "ids": torch.from_numpy(ids), "pair": (lm.opened(floats), lm.opened(quantized))}


def test_noise_and_divergence_by_place(models: dict[str, Any]) -> None:
    language: LanguageFacts = models["language"]
    with torch.inference_mode():
        both = [model(models["ids"], output_hidden_states=True) for model in models["pair"]]
    p, q = (each.logits[:, :-1].double().log_softmax(-1) for each in both)
    divergence = (p.exp() * (p - q)).sum(-1)
    ends = (*language.positions[1:], models["ids"].shape[1])
    for place, (low, high) in enumerate(zip(language.positions, ends, strict=True)):
        assert language.kl_by_position[place] == pytest.approx(float(divergence[:, low:high].mean()), rel=1e-4)
        for block in range(3):
            x, y = (each.hidden_states[block + 1].double() for each in both)
            noise = ((y - x) ** 2).sum(-1) / (x**2).sum(-1)
            own = language.blocks[block].noise_by_position[place]
            assert own == pytest.approx(float(noise[:, low:high].mean()), rel=1e-4)
    largest = both[0].hidden_states[2][0].abs()
    token, channel = np.unravel_index(int(both[0].hidden_states[2].abs().argmax()) % largest.numel(), largest.shape)
    assert (language.blocks[1].largest_position, language.blocks[1].largest_channel) == (token, channel)
    means = divergence.mean(1).numpy()
    np.testing.assert_allclose(language.kl_by_text, means, rtol=1e-4)
    worst = language.worst_texts[0]
    assert worst.place == int(means.argmax()) + 1 and worst.tokens == 39
    first = models["ids"][worst.place - 1].tolist()
    assert " ".join(map(str, first)).startswith(worst.beginning or "none")
    assert [text.kl for text in language.worst_texts] == sorted(language.kl_by_text, reverse=True)


def test_choices_of_routers(models: dict[str, Any]) -> None:
    language: LanguageFacts = models["language"]
    seen: list[list[Any]] = [[], []]
    inputs: list[Any] = []
    for number, model in enumerate(models["pair"]):
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda _, args, out, number=number: seen[number].append(out))
            if number == 0:
                layer.mlp.experts.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with torch.inference_mode():
            model(models["ids"])
    for block, (mine, other) in enumerate(zip(*seen, strict=True)):
        facts = language.blocks[block]
        sets = [[set(row) for row in out[2].tolist()] for out in (mine, other)]
        same = np.mean([a == b for a, b in zip(*sets, strict=True)])
        assert facts.router_agreement == pytest.approx(same)
        moved = []
        for row in range(len(mine[2])):
            shares = [dict(zip(out[2][row].tolist(), out[1][row].tolist(), strict=True)) for out in (mine, other)]
            moved.append(sum(max(share - shares[1].get(expert, 0.0), 0.0) for expert, share in shares[0].items()))
        assert facts.router_moved == pytest.approx(np.mean(moved), abs=1e-5)
        counts = np.bincount(mine[2].ravel().numpy(), minlength=4)
        assert [expert.share for expert in facts.experts] == pytest.approx(counts / counts.sum())
        _check_experts(models["pair"], block, inputs[block][: 4 * 40], mine[2][: 4 * 40], facts.experts)
    assert language.router_agreement == min(block.router_agreement or 1.0 for block in language.blocks)


def _check_experts(pair: Any, block: int, hidden: Any, chosen: Any, found: Any) -> None:
    """Each expert by its formula, on the tokens of the first four texts that are given to it."""
    for expert in range(4):
        values = hidden[(chosen == expert).any(1)]
        outputs = []
        for model in pair:
            own = model.model.layers[block].mlp.experts
            gate, up = (values @ own.gate_up_proj[expert].T).chunk(2, -1)
            outputs.append(((torch.nn.functional.silu(gate) * up) @ own.down_proj[expert].T).detach().double())
        wanted = ((outputs[1] - outputs[0]) ** 2).sum() / (outputs[0] ** 2).sum()
        assert found[expert].noise == pytest.approx(float(wanted), rel=1e-4)


def test_words_of_texts_are_shown_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    floats = lm.saved(lm.random_model("Llama"), tmp_path / "float")
    quantized = lm.saved(lm.rounded(lm.opened(floats), lambda name: 4), tmp_path / "int4")
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 5, "b": 6, "?": 7}, unk_token="?"))
    reader.save(str(floats / "tokenizer.json"))
    np.savez(tmp_path / "ids.npz", ids=np.array([[5, 6, 5, 6], [6, 6, 6, 5]]))
    language, _ = run_language_models((floats, quantized), TextRun(tmp_path / "ids.npz"))
    assert {text.beginning for text in language.worst_texts} == {"a b a b", "b b b a"}
    (floats / "tokenizer.json").write_text("{}")
    language, _ = run_language_models((floats, quantized), TextRun(tmp_path / "ids.npz"))
    assert {text.beginning for text in language.worst_texts} == {"5 6 5 6", "6 6 6 5"}, "ids where it cannot be read"
