"""diagnose, check and collect on folders of checkpoints: the same figures as weights, and their own options."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from builders.commands import run_quantmedic
from click.testing import CliRunner

import quantmedic
from quantmedic.api.keywords import group_arguments
from quantmedic.api.options import CollectOptions
from quantmedic.cli.main import cli
from quantmedic.engine.errors import QuantmedicError

REGRESSION = '[[check.budget]]\nmetric = "kl"\nmax = 0.0001\n'
ACCEPT = '[check]\nfail_on = {severity = "never"}\n\n[[check.budget]]\nmetric = "kl"\nmax = 5.0\n'


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(cli, list(arguments))
    assert isinstance(done.exception, QuantmedicError | click.ClickException | SystemExit), done.output
    return f"{done.output} {done.exception}"


@pytest.fixture
def empty_folders(tmp_path: Path) -> tuple[str, str]:
    for name in ("float", "int4"):
        (tmp_path / name).mkdir()
    return str(tmp_path / "float"), str(tmp_path / "int4")


#: Options of other models, and what is said about each.
REFUSED = {
    "-r x.npz": "--representative: texts go with --tokens",
    "-v x.npz": "--validation: texts go with --tokens",
    "-p mean=1,2,3": "--preprocess: token ids need no preparation",
    "--samples 3": "--samples: --text-length bounds",
    "--prove": "--prove: the output layer, the embedding and the worst block are always tried",
    "--metric-option a=b": "--metric-option: perplexity",
    "--mode fast": "--mode: one block and one text",
    "--stage a=b.onnx": "--stage: outputs of devices",
    "--no-attribution": "--attribution: the noise that each block makes",
    "": "checkpoints are run on texts, or their weights are compared",
}
MEASURING = ("diagnose", "check", "collect")


def test_options_of_other_models_are_refused(empty_folders: tuple[str, str], tmp_path: Path) -> None:
    for given, said in REFUSED.items():
        tokens = ["--tokens", "t.jsonl"] if given else []
        words = [*empty_folders, *given.split(), *tokens, "-o", str(tmp_path / "report")]
        for command in MEASURING if not given else ("diagnose",):
            assert said in refusal(command, *words)
            assert not (tmp_path / "report").exists()


def test_texts_are_refused_for_other_models() -> None:
    for command in MEASURING:
        text = refusal(command, "float.onnx", "int8.onnx", "-v", "x.npz", "--tokens", "t.jsonl", "--text-length", "9")
        assert "--tokens and --text-length are for language models" in text
        assert "quantmedic" not in text.partition("help:")[0]


@pytest.mark.thorough
def test_a_device_that_torch_does_not_know_is_refused(empty_folders: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = tmp_path / "report"
    for command in MEASURING:
        said = refusal(command, *empty_folders, "--device", "abacus", "--tokens", "t.jsonl", "-o", str(report))
        assert "torch cannot use this device" in said and "--device abacus" in said and "it sees cpu" in said
        assert not report.exists()


def test_static_goes_without_texts(empty_folders: tuple[str, str]) -> None:
    assert "--tokens needs data, which --static goes without" in refusal(
        "check", *empty_folders, "--static", "--tokens", "t.jsonl"
    )


def test_fix_says_that_checkpoints_are_not_repaired(empty_folders: tuple[str, str], tmp_path: Path) -> None:
    for output in ("fixed", "fixed.onnx"):
        said = refusal("fix", *empty_folders, "-o", str(tmp_path / output))
        assert "checkpoints are diagnosed, but not repaired here" in said and "another kind" not in said
    with pytest.raises(QuantmedicError, match="not repaired here") as caught:
        quantmedic.fix(*empty_folders, tokens="t.jsonl")
    assert "prescription.py" in str(caught.value.help)


def test_fix_says_of_texts_that_prescriptions_of_language_models_are_not_run(
    empty_folders: tuple[str, str], tmp_path: Path
) -> None:
    output = ("-o", str(tmp_path / "fixed.onnx"), "--tokens", "t.jsonl")
    for pair in (empty_folders, ("float.onnx", "int8.onnx")):
        said = " ".join(refusal("fix", *pair, *output).split())
        assert "texts are for language models" in said and "printed and not run" in said


def test_no_option_is_taken_for_given_that_is_not() -> None:
    assert group_arguments(None, None, {}) == CollectOptions()


def test_a_folder_with_a_file_of_another_kind_is_named(empty_folders: tuple[str, str]) -> None:
    (Path(empty_folders[0]) / "model.onnx").write_bytes(b"")
    with pytest.raises(QuantmedicError, match=r"give the \.onnx file itself"):
        quantmedic.diagnose(*empty_folders, tokens="t.jsonl")


def test_python_names_its_parameters(empty_folders: tuple[str, str]) -> None:
    with pytest.raises(QuantmedicError) as caught:
        quantmedic.diagnose(*empty_folders, representative="x.npz", tokens="t.jsonl")
    assert "representative=…: texts go with tokens=…" in str(caught.value)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    pytest.importorskip("transformers")
    from builders import language_models as lm  # imports torch

    top = tmp_path_factory.mktemp("models")
    floats = lm.saved(lm.random_model("Llama"), top / "float")
    lm.saved(lm.rounded(lm.opened(floats), lambda name: 3), top / "int3")
    np.savez(top / "ids.npz", ids=np.random.default_rng(0).integers(3, lm.VOCABULARY, (6, 24)))
    return floats, top / "int3", top / "ids.npz"


@pytest.fixture(scope="module")
def of_weights(pair: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    report = tmp_path_factory.mktemp("weights") / "report"
    done = run_quantmedic("diagnose", *pair[:2], "--tokens", pair[2], "-o", report)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((report / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.nightly
def test_diagnose_says_what_weights_says(
    pair: tuple[Path, Path, Path], of_weights: dict[str, Any], tmp_path: Path
) -> None:
    done = run_quantmedic("diagnose", *pair[:2], "--tokens", pair[2], "-o", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8")) == of_weights


@pytest.mark.nightly
def test_check_applies_budgets(pair: tuple[Path, Path, Path], cases: tuple[Path, Path], tmp_path: Path) -> None:
    policy = tmp_path / "quantmedic.toml"
    policy.write_text(REGRESSION)
    done = run_quantmedic("check", *pair[:2], "--tokens", pair[2], "--config", policy, "-o", tmp_path / "report")
    assert done.returncode == 1, done.stdout + done.stderr
    for text, code in ((REGRESSION, 1), (ACCEPT, 0)):
        policy.write_text(text)
        assert run_quantmedic("check", tmp_path / "report", "--config", policy).returncode == code
        found = quantmedic.check(cases[0], policy).check
        assert found is not None and found.exit_code == code


@pytest.mark.nightly
def test_collect_writes_a_case(pair: tuple[Path, Path, Path], of_weights: dict[str, Any], tmp_path: Path) -> None:
    done = run_quantmedic("collect", *pair[:2], "--tokens", pair[2], "-o", tmp_path / "lm.case")
    assert done.returncode == 0, done.stderr
    assert "it holds no samples" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["lm.case"]
    found = quantmedic.judge(quantmedic.load_case(tmp_path / "lm.case"))
    assert found.verdict == of_weights["verdict"]
    assert found.model.language.kl_mean == of_weights["model"]["language"]["kl_mean"]


@pytest.mark.thorough
def test_settings_of_a_toolchain_are_read_beside(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    (tmp_path / "quantize.log").write_text("WARNING: nothing of interest\n")
    found = quantmedic.diagnose(*pair[:2], tokens=pair[2], toolchain_logs=[tmp_path / "quantize.log"])
    assert found.model.language.texts == 6


@pytest.fixture(scope="module")
def cases(pair: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The three-bit model, and one of five bits, on the same texts."""
    from builders import language_models as lm  # imports torch

    top = tmp_path_factory.mktemp("cases")
    lm.saved(lm.rounded(lm.opened(pair[0]), lambda name: 5), top / "int5")
    for quantized, name in ((pair[1], "int3.case"), (top / "int5", "int5.case")):
        quantmedic.save_case(quantmedic.collect(pair[0], quantized, tokens=pair[2]), top / name)
    return top / "int3.case", top / "int5.case"


@pytest.mark.thorough
def test_cases_of_language_models_are_compared_text_by_text(cases: tuple[Path, Path], tmp_path: Path) -> None:
    for first, second, gain in ((*cases, None), (cases[0], cases[0], 0.0)):
        done = run_quantmedic("compare", first, second, "-o", tmp_path / "compared")
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "compared" / "compare.json").read_text(encoding="utf-8"))
        metric = found["metric"]
        assert (metric["name"], metric["paired"], metric["samples"]) == ("perplexity", True, 6)
        assert found["same_data"] and gain in (None, metric["gain"])
        values = [found[side]["metric"]["quantized_value"] for side in ("before", "after")]
        assert metric["gain"] == pytest.approx(values[0] - values[1])
        assert "no data" not in done.stdout


@pytest.mark.thorough
def test_the_previous_case_of_the_same_texts_is_on_the_same_samples(cases: tuple[Path, Path], tmp_path: Path) -> None:
    done = run_quantmedic("diagnose", cases[1], "--previous", cases[0], "-o", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "not judged on the same samples" not in markdown and "perplexity rise" in markdown
