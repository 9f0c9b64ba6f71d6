"""Language models that are run block by block: figures equal those of whole models, faults are named, bad input is."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from builders import checkpoints as made
from builders import gguf_files
from builders import language_models as lm
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.from_language_model.language_facts import perplexity_facts
from quantmedic.collectors.from_language_model.scores import ScoreSums, TokenScores, score_tokens
from quantmedic.collectors.from_language_model.skeleton import without_import_noise
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import DataError, ModelError, QuantmedicError
from quantmedic.reports.context import build_context
from quantmedic.reports.write import render_markdown

pytestmark = pytest.mark.thorough


def write_ids(path: Path, ids: Any) -> Path:
    np.savez(path, ids=ids)
    return path


def test_packed_weights_are_run_as_they_are_dequantized(tmp_path: Path) -> None:
    tensors = made.language_model(layers=2)
    floats = made.write_folder(tmp_path / "float", tensors, lm.packed_config(""))
    kept: dict[str, Any] = {}
    quantized = made.quantized_model(tensors, "awq", damage=lambda name, *parts: kept.setdefault(name, parts))
    packed = made.write_folder(tmp_path / "awq", quantized, lm.packed_config("awq"))
    reference = lm.opened(floats).float()
    with torch.no_grad():
        for name, (codes, scale, zero) in kept.items():
            reference.get_submodule(name).weight.copy_(torch.from_numpy(made.dequantize(codes, scale, zero)))
    ids = np.random.default_rng(1).integers(3, made.VOCABULARY, (3, 32))
    language, metric = run_language_models((floats, packed), TextRun(write_ids(tmp_path / "ids.npz", ids)))
    wanted = lm.expected(lm.opened(floats).float(), reference, ids)
    assert language.kl_mean == pytest.approx(wanted["kl_mean"], rel=1e-4)
    assert metric.quantized_value == pytest.approx(wanted["quantized"], rel=1e-6)


@pytest.mark.parametrize("rows, tokens", [(7, 3), (4096, 1024)])
def test_slices_of_the_vocabulary_change_nothing(rows: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest logit may come first, last, or in the middle."""
    import quantmedic.collectors.from_language_model.scores as scores

    monkeypatch.setattr(scores, "ROWS", rows)
    monkeypatch.setattr(scores, "TOKENS", tokens)
    monkeypatch.setattr(scores, "_TILE", 5 * rows)
    random = np.random.default_rng(0)
    hidden = [random.normal(size=(20, 8)).astype(np.float32) for _ in range(2)]
    weights = [torch.from_numpy(9 * random.normal(size=(50, 8)).astype(np.float32)) for _ in range(2)]
    targets = random.integers(0, 50, 20)
    found = score_tokens(
        (hidden[0], hidden[1]),
        (np.arange(20), np.arange(20)),
        targets,
        (lambda rows: (weights[0][rows], None), lambda rows: (weights[1][rows], None)),
        50,
        lambda logits: logits,
    )
    p, q = (
        torch.log_softmax((torch.from_numpy(h) @ w.T).double(), -1).numpy()
        for h, w in zip(hidden, weights, strict=True)
    )
    np.testing.assert_allclose(found.divergence, (np.exp(p) * (p - q)).sum(1), rtol=1e-6)
    # Logits are numbers of float32 up to some 100, whose last digits depend on the order of sums.
    np.testing.assert_allclose(found.float_surprise, -p[np.arange(20), targets], rtol=1e-6, atol=2e-5)
    np.testing.assert_array_equal(found.same_top, p.argmax(1) == q.argmax(1))


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with texts of its own, rounded to 8 bits, and with one block at 2 bits."""
    folder = tmp_path_factory.mktemp("patients")
    model = lm.random_model("Llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(8)  # so that it is sure of what it says
    floats = lm.saved(model, folder / "float")

    def but_one(name: str) -> int | None:
        return None if "embed" in name or "lm_head" in name else 2 if "layers.2." in name else 8

    return {
        "float": floats,
        "healthy": lm.saved(lm.rounded(lm.opened(floats), lambda name: 8), folder / "healthy"),
        "coarse": lm.saved(lm.rounded(lm.opened(floats), lambda name: 3), folder / "coarse"),
        "sick": lm.saved(lm.rounded(lm.opened(floats), but_one, 16), folder / "sick"),
        "texts": write_ids(folder / "ids.npz", lm.spoken(model, 24, 48)),
    }


@pytest.fixture(scope="module")
def healthy(patients: dict[str, Path]) -> Diagnosis:
    return quantmedic.diagnose(patients["float"], patients["healthy"], tokens=patients["texts"])


def test_a_block_that_makes_the_noise_is_named(patients: dict[str, Path]) -> None:
    found = quantmedic.diagnose(patients["float"], patients["sick"], tokens=patients["texts"])
    cause = next(cause for cause in found.causes if cause.cause == "noise-of-one-block")
    assert "model.layers.2" in cause.message and cause.severity == "high"
    language = found.model.language
    repaired = lm.opened(patients["sick"])
    repaired.model.layers[2].load_state_dict(lm.opened(patients["float"]).model.layers[2].state_dict())
    ids = np.load(patients["texts"])["ids"][np.array(language.trial_texts) - 1]
    wanted = lm.expected(lm.opened(patients["float"]), repaired, ids)
    before = lm.expected(lm.opened(patients["float"]), lm.opened(patients["sick"]), ids)
    assert len(ids) == 6 and language.kl_tried == pytest.approx(before["kl_mean"], rel=1e-4)
    assert language.kl_mended == pytest.approx(wanted["kl_mean"], rel=1e-4), "what is called measured was carried out"
    assert found.verdict == "degraded" and found.model.harmed and (found.metrics.drop_low or 0) > 0
    markdown = render_markdown(build_context(found, {}))
    assert "## Blocks of the network" in markdown and "24 texts, 1128 tokens predicted" in markdown
    assert "Only weights were compared" not in markdown


def test_noise_of_all_blocks_is_named(patients: dict[str, Path]) -> None:
    found = quantmedic.diagnose(patients["float"], patients["coarse"], tokens=patients["texts"])
    names = set(made.causes_of(found))
    assert found.verdict == "degraded" and "coarse-weights-everywhere" in names and "noise-of-one-block" not in names


def test_the_interval_of_the_perplexity_is_that_of_what_is_lost() -> None:
    """Texts that both models find hard make no growth uncertain that all texts share."""
    random = np.random.default_rng(0)
    texts = [np.zeros(length, np.int64) for length in random.integers(10, 60, 16)]
    counts = [len(ids) - 1 for ids in texts]
    hard = np.repeat(random.uniform(1, 6, 16), counts)
    lost = hard + 2 + random.normal(0, 0.5, len(hard))
    nothing = np.zeros(len(hard))
    sums = ScoreSums([len(ids) for ids in texts])
    sums.add(TokenScores(hard, lost, nothing, nothing > 0, nothing), [len(ids) for ids in texts])
    metric = perplexity_facts(sums.scores())
    assert metric.drop is not None and metric.float_value is not None and metric.drop_low is not None
    exact = metric.float_value * np.expm1(2)
    assert metric.drop_low < metric.drop < (metric.drop_high or 0.0) and metric.drop_low > 0.9 * exact
    assert metric.drop == pytest.approx(exact, rel=0.05)


def test_weights_that_are_wrong_come_before_the_noise_that_they_make(patients: dict[str, Path], tmp_path: Path) -> None:
    model = lm.opened(patients["healthy"])
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.7)
    scaled = lm.saved(model, tmp_path / "scaled")
    found = quantmedic.diagnose(patients["float"], scaled, tokens=patients["texts"])
    assert found.verdict == "degraded" and found.causes[0].cause == "wrong-weight-scale"
    assert not {"noise-of-one-block", "coarse-weights-everywhere"} & set(made.causes_of(found))


def test_another_configuration_is_named(patients: dict[str, Path], tmp_path: Path) -> None:
    folder = lm.saved(lm.opened(patients["healthy"]), tmp_path / "other")
    lm.edit_config(folder, rms_norm_eps=0.1)
    found = quantmedic.diagnose(patients["float"], folder, tokens=patients["texts"])
    assert found.causes[0].cause == "configurations-differ" and "rms_norm_eps: 0.1 (1e-06)" in found.causes[0].message


def test_the_same_folder_twice_is_said(patients: dict[str, Path]) -> None:
    found = quantmedic.diagnose(patients["float"], patients["float"], tokens=patients["texts"])
    assert found.verdict == "not-comparable" and found.causes[0].cause == "same-model"


def test_a_gain_of_nothing_asks_no_question(healthy: Diagnosis) -> None:
    """Rounding can lower the perplexity by a little, with the whole interval below zero."""
    found = healthy
    drop = 0.001 * found.metrics.float_value
    sure = {"drop": -drop, "drop_low": -2 * drop, "drop_high": -drop / 2, "relative_drop": -0.001}
    better = found.model_copy(
        update={
            "metrics": found.metrics.model_copy(update=sure),
            "evidence_strength": found.evidence_strength.model_copy(update={"low": -2 * drop, "high": -drop / 2}),
        }
    )
    text = render_markdown(build_context(better, {}))
    assert "Nothing is lost: the whole 95 % interval of the rise lies below zero." in text
    assert "swapped" not in text and "(-0.1 %)" in text


def test_swapped_folders_are_said(patients: dict[str, Path]) -> None:
    found = quantmedic.diagnose(patients["sick"], patients["float"], tokens=patients["texts"])
    assert "Are they swapped?" in render_markdown(build_context(found, {}))


def test_a_healthy_model_is_healthy(healthy: Diagnosis) -> None:
    found = healthy
    assert found.verdict == "healthy", [(c.cause, c.message) for c in found.causes]
    assert not [cause for cause in found.causes if cause.is_serious]
    assert found.model.harmed is False
    assert not [note for note in (*found.not_judged, *found.passed) if note.rule[0] in "DR"], "no matter of texts"
    assert not [note for note in found.not_judged if "--" in (note.hint or "")], "the command has no more to give"
    markdown = render_markdown(build_context(found, {}))
    assert "Gemm" not in markdown, "weights without a known grid stand in the table of weights, too"
    assert "| `lm_head` | lm_head |" in markdown and "not measured |" not in markdown


def test_texts_that_the_float_model_cannot_predict(patients: dict[str, Path], tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(3, lm.VOCABULARY, (8, 40))
    texts = write_ids(tmp_path / "strange.npz", ids)
    found = quantmedic.diagnose(patients["float"], patients["healthy"], tokens=texts)
    assert "texts-do-not-fit" in made.causes_of(found)


@pytest.mark.nightly
def test_the_command_says_what_was_predicted(patients: dict[str, Path], tmp_path: Path) -> None:
    words = ["diagnose", patients["float"], patients["sick"], "--tokens", patients["texts"], "--text-length", 32]
    done = run_quantmedic(*words, "-o", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    # torchao, which transformers imports, tells which of its kernels do not fit the machine.
    assert "torchao" not in done.stderr and "register_constant" not in done.stderr, done.stderr
    assert " rise " in done.stdout and "The rise is proven" in done.stdout and "drop" not in done.stdout
    markdown = (tmp_path / "report/report.md").read_text(encoding="utf-8")
    assert ", rise " in markdown and "The rise is large" in markdown
    page = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert not [
        place for place in ("data", "outputs", "workflow") if f'href="#{place}"' in page or f'id="{place}"' in page
    ]
    assert "<strong>Rise " in page
    assert "perplexity" in done.stdout and "24 texts, 744 tokens predicted" in done.stdout
    assert "W030 noise-of-one-block" in done.stdout
    assert "Blocks of the network" in (tmp_path / "report/index.html").read_text(encoding="utf-8")
    stored = json.loads((tmp_path / "report/report.json").read_text(encoding="utf-8"))
    assert stored["model"]["language"]["worst_block"] == "model.layers.2"


@pytest.mark.nightly
def test_a_missing_package_is_said(patients: dict[str, Path], tmp_path: Path) -> None:
    words = ["diagnose", *map(str, (patients["float"], patients["sick"])), "--tokens", str(patients["texts"])]
    code = f"import sys; sys.modules['torch'] = None; from quantmedic.cli.main import main; main({words})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "the package torch is not installed" in done.stderr, done.stderr
    assert "pip install 'quantmedic[language]'" in done.stderr


def test_all_else_that_is_logged_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torchao")
    caplog.set_level(logging.WARNING, logger="torchao")  # torchao's own modules raise it
    with without_import_noise():
        logger.warning("Failed to load /a/_C.so: no such symbol")
        logger.warning("a scale is infinite")
        logger.error("Failed to load the weights")
        logging.getLogger("torch").warning("Failed to load x")
    logger.warning("Failed to load later")
    said = ["a scale is infinite", "Failed to load the weights", "Failed to load x", "Failed to load later"]
    assert caplog.messages == said


def test_forms_of_texts(patients: dict[str, Path], tmp_path: Path) -> None:
    for text, counts in (('[5, 6, 7]\n{"input_ids": [8, 9]}\n\n', (2, 3)), ("[5]\n[5, 6]\n", (1, 1))):
        (tmp_path / "ids.jsonl").write_text(text)
        language, _ = run_language_models((patients["float"], patients["healthy"]), TextRun(tmp_path / "ids.jsonl"))
        assert (language.texts, language.tokens) == counts
    np.save(tmp_path / "one.npy", np.arange(5, 25))
    language, metric = run_language_models(
        (patients["float"], patients["healthy"]), TextRun(tmp_path / "one.npy", length=8)
    )
    assert (language.texts, language.tokens) == (3, 17) and metric.drop_low is not None, "one text is read in parts"
    language, metric = run_language_models(
        (patients["float"], patients["healthy"]), TextRun(tmp_path / "one.npy", length=20)
    )
    assert (language.texts, language.kl_low, metric.drop_low) == (1, None, None), "one part has no interval"


def test_words_are_read_by_the_tokenizer_of_the_float_model(patients: dict[str, Path], tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = lm.saved(lm.opened(patients["float"]), tmp_path / "float")
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 5, "b": 6, "?": 7}, unk_token="?"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader.save(str(folder / "tokenizer.json"))
    (tmp_path / "texts.txt").write_text("a b a b\n\nb a c\n")
    language, _ = run_language_models((folder, patients["healthy"]), TextRun(tmp_path / "texts.txt"))
    assert (language.texts, language.tokens) == (2, 5)


def test_texts_that_cannot_be_used_are_said(
    patients: dict[str, Path], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, content, says in (
        ("none.jsonl", "", "holds no text"),
        ("beyond.jsonl", "[5, 299, 300]", "beyond the vocabulary"),
        ("negative.jsonl", "[5, -1]", "below 0"),
        ("odd.jsonl", '{"label": 3}', "neither token ids nor a text"),
        ("words.txt", "some words", "no tokenizer.json"),
        ("real.npz", np.ones((2, 9)), "no token ids"),
    ):
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            write_ids(tmp_path / name, content)
        with subtests.test(name), pytest.raises(DataError, match=says):
            run_language_models((patients["float"], patients["healthy"]), TextRun(tmp_path / name))


@pytest.mark.nightly
def test_configs_of_other_models_are_said(patients: dict[str, Path], tmp_path: Path, subtests: pytest.Subtests) -> None:
    folder = lm.saved(lm.opened(patients["float"]), tmp_path / "float")
    whole = (folder / "config.json").read_text()
    for changes, says in (
        ({"hidden_size": 128}, "another shape than config.json says"),
        ({"num_hidden_layers": 3}, "fewer blocks than the weights have"),
        ({"num_hidden_layers": 5}, "lacks weights that its config.json asks for"),
        ({"model_type": "t5", "architectures": ["T5Model"]}, "cannot be built from its config.json"),
    ):
        (folder / "config.json").write_text(whole)
        lm.edit_config(folder, **changes)
        with subtests.test(**changes), pytest.raises(ModelError, match=says):
            run_language_models((folder, patients["healthy"]), TextRun(patients["texts"]))


def test_code_of_a_checkpoint_is_never_run(patients: dict[str, Path], tmp_path: Path) -> None:
    folder = lm.saved(lm.opened(patients["float"]), tmp_path / "float")
    lm.edit_config(
        folder, model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    )
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="cannot be built"):
        run_language_models((folder, patients["healthy"]), TextRun(patients["texts"]))
    assert not (tmp_path / "ran").exists()


def test_a_float_model_that_gives_no_numbers_is_said(patients: dict[str, Path], tmp_path: Path) -> None:
    model = lm.opened(patients["float"])
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    folder = lm.saved(model, tmp_path / "float")
    with pytest.raises(QuantmedicError, match="no number"):
        run_language_models((folder, patients["healthy"]), TextRun(patients["texts"]))


def test_a_quantized_model_that_gives_no_numbers_is_harmed(patients: dict[str, Path], tmp_path: Path) -> None:
    model = lm.opened(patients["healthy"])
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("inf")
    folder = lm.saved(model, tmp_path / "quantized")
    found = quantmedic.diagnose(patients["float"], folder, tokens=patients["texts"])
    assert found.verdict == "degraded"
    text = render_markdown(build_context(found, {}))
    assert "the quantized model predicts NaN" in text and "with labels" not in text


def test_models_of_llama_cpp_are_run(tmp_path: Path) -> None:
    """Rows of q and k stand in another order in the file: in the wrong one, predictions would be others altogether."""
    tensors = made.language_model(layers=2)
    floats = made.write_folder(tmp_path / "float", tensors, lm.packed_config(""))
    file = gguf_files.written(tmp_path / "model.gguf", gguf_files.converted(tensors, lambda name: "Q8_0"))
    ids = np.random.default_rng(1).integers(3, made.VOCABULARY, (4, 48))
    language, _ = run_language_models((floats, file), TextRun(write_ids(tmp_path / "ids.npz", ids)))
    assert 0 < (language.kl_mean or 0) < 1e-4


def test_float_weights_of_llama_cpp_lack_a_config(tmp_path: Path) -> None:
    tensors = made.language_model(layers=1)
    files = [
        gguf_files.written(tmp_path / f"{kind}.gguf", gguf_files.converted(tensors, lambda name, kind=kind: kind))
        for kind in ("F16", "Q8_0")
    ]
    with pytest.raises(ModelError, match=r"no config\.json"):
        run_language_models(files, TextRun(write_ids(tmp_path / "ids.npz", np.full((1, 4), 5))))
