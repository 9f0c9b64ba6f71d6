"""The command line: help, options, and errors that name what was wrong and what to do next."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from builders.commands import run_quantmedic
from click.shell_completion import BashComplete
from click.testing import CliRunner

from quantmedic.api.explain import _short_fact, explanation
from quantmedic.api.rulebase import load_rulebase
from quantmedic.cli.main import COMMANDS as TABLE
from quantmedic.cli.main import cli, exit_code
from quantmedic.cli.successors import COMMANDS as REMOVED
from quantmedic.cli.successors import MEANT, OPTIONS
from quantmedic.demo import patient
from quantmedic.engine.case.facts import fact_paths
from quantmedic.engine.errors import QuantmedicError

COMMANDS = sorted(TABLE)


def run(*arguments: str, cwd: Path | None = None):
    return run_quantmedic(*arguments, cwd=cwd)


@pytest.fixture(scope="session")
def pair() -> tuple[Path, Path]:
    return patient()[0]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "good.npz", image=rng.normal(0, 1, (8, 1, 28, 28)).astype(np.float32))
    return tmp_path / "good.npz"


def test_every_command_has_help_with_an_example():
    for command in COMMANDS:
        done = CliRunner().invoke(cli, [command, "--help"])
        assert done.exit_code == 0
        assert "Example" in done.output, command


@pytest.mark.source("insights-definitions")
@pytest.mark.thorough
def test_explain_rule_fact_topic_and_typo():
    for code in ("D005", "activation-outliers", "data.rounding.sqnr_db", "gptq"):
        done = run("explain", code)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("# ")
        assert ".md)" not in done.stdout, "a link that leads nowhere"
    done = run("explain", "actvation-outliers")
    assert done.returncode == 2
    assert "did you mean activation-outliers" in done.stderr
    assert "did you mean D005" in run("explain", "D05").stderr, "a code without its zeros"


@pytest.mark.thorough
def test_a_missing_model_is_said_before_missing_data(tmp_path: Path) -> None:
    done = run("diagnose", tmp_path / "no.onnx", tmp_path / "neither.onnx")
    assert done.returncode == 2
    assert "no such model file" in done.stderr and "no.onnx" in done.stderr


#: Words that reports show, how what explains them begins, and what it says.
EXPLAINED = (
    ("verdict", "### Verdict", "**undecided**"),
    ("undecided", "### Verdict", "samples that decide"),
    ("Severity", "### Severity", "`grave_share`"),
    ("harm", "### Harm", "`assumed_harm_gain_db`"),
    ("no accuracy cost yet", "### Harm", "fails no gate"),
    ("assumed", "### Harm", "what is to be had"),
    ("clipping", "## Words", "outside the range"),
    ("not judged", "## How to read a verdict", "how to supply it"),
    ("lost only in combination", "## What the task loses", "sample by sample"),
    ("KL", "# ", "log p(v) - log q(v)"),
    ("kl divergence", "# ", "in nats"),
    ("perplexity", "# ", "PPL = exp("),
    ("nats", "", "A nat is the unit"),
    ("same top-1", "", "`same_top`"),
    ("same first token", "", "likeliest token"),
    ("rise", "", "sized by rise"),
    ("K/V cache", "", "compressed-tensors"),
    ("block", "", "Blocks"),
    ("router", "", "quantized-router (W026,"),
    ("top-1", "", "`top1`"),
    ("INSUFFICIENT_DATA", "", "too few samples to tell"),
    ("accept", "", "every gate passes"),
    ("ANOMALOUS", "", "better than quantization can make it"),
    ("gate", "", "exit code"),
    ("policy", "", "quantmedic.toml"),
    ("loss budget", "", "noise"),
    ("prescription.py", "", "prescription"),
    ("keys_gain", "# language.keys_gain\n", ""),
    ("kl_mean", "", "Unit: nats."),
    ("cache_scales_off", "# language.cache_scales_off\n", ""),
    ("grave_share", "", "Value: 0.5"),
    ("int2", "", "| 2 | 4 | 3.6 dB |"),
    ("uint8", "", "| 2 | 4 | 3.6 dB |"),
    ("2-bit", "", "| 2 | 4 | 3.6 dB |"),
    ("calibrations", "# Searching the calibration method", ""),
    ("diagnose", "# How to read the report", ""),
    ("fix", "# Proof", ""),
    ("fast mode", "# How long a run takes", ""),
    ("resume", "# How long a run takes", ""),
    ("large models", "# How much memory a run takes", ""),
    ("GPU", "# PyTorch modules", ""),
    ("checkpoint", "# Comparing weights", ""),
    ("rules", "# ", ""),
    ("Requantize this model", "# Quantize this very model again", "[W016](W016.md) misread-codes"),
    ("requantize", "# Quantize this very model again", "Caution: where"),
    ("nncf", "# NNCF\n", "`--toolchain nncf`"),
    ("NNCF", "# NNCF\n", "* calibrate again on proper data\n"),
    ("bias-correction", "# ", "## Options"),  # its own page goes before what others say of it
)


@pytest.mark.thorough
def test_words_are_explained_by_what_tells_most_of_them():
    found = {word: explanation(word) for word, *_ in EXPLAINED}
    assert not [word for word, begins, says in EXPLAINED if says not in found[word]]
    assert not [word for word, begins, says in EXPLAINED if not found[word].startswith(begins)]
    assert "This is a part of the page `" in found["verdict"] and "## References" in found["KL"]


def test_every_fact_of_language_models_is_explained_by_its_last_name():
    paths = [path for path in fact_paths("model") if path.startswith("language.") and path.count(".") == 1]
    base = load_rulebase()
    assert len(paths) > 30
    for path in paths:
        assert f"# {path}\n" in (_short_fact(path.removeprefix("language."), base) or ""), path


def test_facts_of_a_name_that_many_bear_are_not_told_all():
    assert not [name for name in ("mean", "xyzzy") if _short_fact(name, load_rulebase())]


def test_a_cause_of_several_rules_leads_to_all_of_them():
    page = explanation("non-finite-values")
    assert page.startswith("# non-finite-values (S003, S004, S028)")
    assert "[S027](S027.md) divisor-rounds-to-zero. This page" in page and "(S004.md)" not in page
    first = explanation("float-export-differs").split("\n## ")[0]
    assert "[S030](S030.md) function-of-one-model" in first and "This page is that of S005.\n" in first
    others = explanation("S005").rpartition("## The same cause")[2]
    assert "[S030](S030.md) function-of-one-model" in others
    assert explanation("divisor-rounds-to-zero").startswith("# divisor-rounds-to-zero (S027)")
    assert "The same cause" not in explanation("W002")
    listed = explanation("index")
    assert "[S027](S027.md) divisor-rounds-to-zero (cause non-finite-values)" in listed
    assert "[W002](W002.md) bias-overflow," in listed


def test_the_beginning_of_several_remedies_is_none_of_them():
    assert "The remedy `" not in explanation("keep")


def test_words_of_toolchains_and_parts_of_names_lead_somewhere():
    for word, expected in (
        ("concatenation", "unbalanced-concatenation"),
        ("Unbalanced concatenation", "# unbalanced-concatenation"),
        ("op_name_dict", "(Intel Neural Compressor)"),
        ("run_on_cpu", "Horizon"),
    ):
        assert expected in explanation(word)


@pytest.mark.thorough
def test_the_name_of_a_command_leads_to_its_page_or_its_help():
    for command in COMMANDS:
        done = CliRunner().invoke(cli, ["explain", command])
        assert done.exit_code == 0
        head = " ".join(done.output.split("\n\n")[:2]).lower()
        assert re.search(rf"\b{command}\b", head) or f"quantmedic {command}" in done.output, command


def test_several_words_are_one_name():
    done = CliRunner().invoke(cli, ["explain", "out", "of", "memory"])
    assert done.exit_code == 0 and "How much memory a run takes" in done.output


def test_explain_alone_prints_the_index():
    assert CliRunner().invoke(cli, ["explain"]).output == CliRunner().invoke(cli, ["explain", "index"]).output


def test_folders_of_language_models_are_diagnosed_and_nothing_else(tmp_path):
    for name in ("float", "int4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    done = CliRunner().invoke(
        cli, ["search", "sensitivity", str(tmp_path / "float"), str(tmp_path / "int4"), "-v", "x.npz"]
    )
    assert "quantmedic diagnose FLOAT QUANT --tokens" in str(done.exception)


def test_an_unknown_word_leads_to_the_pages_that_have_it():
    with pytest.raises(QuantmedicError) as caught:
        explanation("Tango")
    assert "index" in (caught.value.help or "")
    with pytest.raises(QuantmedicError) as caught:
        explanation("xyzzy")
    assert "quantmedic explain index" in (caught.value.help or "")


@pytest.mark.thorough
def test_doctor_tells_versions_and_cpu():
    done = run("show", "--environment")
    assert done.returncode == 0
    assert "onnxruntime" in done.stdout and "VNNI" in done.stdout


#: What is typed, and what the shell may complete it to.
COMPLETIONS = (
    (["quantmedic", "dia"], ["diagnose"]),
    (["quantmedic", ""], COMMANDS),
    (["quantmedic", "explain", "--list", "f"], ["facts"]),
    (["quantmedic", "--completion", "zs"], ["zsh"]),
    (["quantmedic", "check", "--warn"], ["--warn-only"]),
    (["quantmedic", "diagnose", "a.case", "--format", "json", "--format", "j"], ["json"]),
)


def test_words_are_completed() -> None:
    for (_, *words, begun), offered in COMPLETIONS:
        found = BashComplete(cli, {}, "quantmedic", "_QUANTMEDIC_COMPLETE").get_completions(words, begun)
        assert sorted(item.value for item in found) == sorted(offered)


def test_what_was_removed_names_its_successor(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, successor in REMOVED.items():
        assert exit_code([typed, "x"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"there is no quantmedic {typed}" in said and " ".join(successor.split()) in said, said
    for typed, successor in OPTIONS.items():
        assert exit_code(["import", typed, "x"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"quantmedic import has no {typed}" in said and " ".join(successor.split()) in said, said
    assert exit_code(["check", "a", "--cluster", "x"]) == 2
    assert "quantmedic diagnose takes it" in capsys.readouterr().err
    assert exit_code(["sensitivty", "a", "b"]) == 2
    assert "quantmedic search sensitivity" in capsys.readouterr().err
    assert exit_code(["tango"]) == 2 and "No such command" in capsys.readouterr().err


def test_what_is_misspelt_or_called_so_by_other_tools_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, meant in (
        ("diagnos a b", "diagnose"),
        ("diagnose a b --validatoin x", "--validation"),
        *((f"diagnose a b {foreign} x", name) for name, others in MEANT.items() for foreign in others),
    ):
        assert exit_code(typed.split()) == 2
        assert f"Did you mean '{meant}'?" in capsys.readouterr().err, typed
    assert exit_code(["explain", "a", "--calib", "x"]) == 2 and "--representative" not in capsys.readouterr().err


@pytest.mark.thorough
def test_the_command_answers_every_shell() -> None:
    for shell, asked, answer in (
        ("bash", {"COMP_WORDS": "quantmedic sea", "COMP_CWORD": "1"}, "plain,search"),
        ("zsh", {"COMP_WORDS": "quantmedic sea", "COMP_CWORD": "1"}, "plain\nsearch\n"),
        # Releases of click tell fish what they offer in two ways.
        ("fish", {"COMP_WORDS": "quantmedic sea", "COMP_CWORD": "sea"}, r"plain[,\n]search[\t\n]"),
    ):
        assert "_QUANTMEDIC_COMPLETE" in run("--completion", shell).stdout
        done = run_quantmedic(env={**os.environ, "_QUANTMEDIC_COMPLETE": f"{shell}_complete", **asked})
        assert re.match(answer, done.stdout) and not done.stderr, shell


@pytest.mark.nightly
def test_quiet_verbose_and_formats(pair, good, tmp_path):
    quiet = run("diagnose", *pair, "-v", good, "-o", tmp_path / "r", "-q", "--format", "json")
    assert quiet.returncode == 0, quiet.stderr
    assert (tmp_path / "r" / "report.json").is_file()
    assert not (tmp_path / "r" / "index.html").exists()
    verbose = run("diagnose", tmp_path / "r" / "quantmedic.case", "-o", tmp_path / "v", "--verbose")
    assert "D005 preprocessing" in verbose.stdout and "--representative" in verbose.stdout, "not judged, and says how"
    assert len(verbose.stdout.splitlines()) > len(quiet.stdout.splitlines()) + 20


@pytest.mark.nightly
def test_the_prescription_speaks_for_the_toolchain_that_was_named(tmp_path):
    run("demo", "-o", tmp_path / "r")
    found = run("diagnose", tmp_path / "r", "-o", tmp_path / "r", "--format", "json", "--verbose")
    assert "recognized by its producer onnx.quantize" in found.stdout
    text = (tmp_path / "r" / "prescription.py").read_text()
    compile(text, "prescription.py", "exec")
    assert "quantize_static(" in text and "reader" in text
    asked = run(
        "diagnose", tmp_path / "r" / "quantmedic.case", "-o", tmp_path / "r", "--toolchain", "horizon", "--verbose"
    )
    assert "Prescription for Horizon OpenExplorer\n" in asked.stdout and "in prescription.yaml\n" in asked.stdout
    assert yaml.safe_load((tmp_path / "r" / "prescription.yaml").read_text())["input_parameters"]["mean_value"]
    assert not (tmp_path / "r" / "prescription.py").exists()
    run("demo", "--healthy", "-o", tmp_path / "h")
    healthy = run("diagnose", tmp_path / "h", "-o", tmp_path / "h", "--format", "json", "--verbose")
    assert "Prescription for" not in healthy.stdout


#: Options behind both models, and what the error must name.
BAD_OPTIONS = {
    "": ["--representative"],
    "-v shape.npz": ["shape.npz", "NHWC"],
    "-v bytes.npz": ["uint8", "scale=255"],
    "-v empty.npz": ["empty.npz"],
    "-v object.npz": ["object.npz"],
    "-v good.npz --labels three.npy": ["labels"],
    "-v good.npz -o taken": ["taken"],
    "-v good.npz -o /dev/full/report": ["/dev/full"],
    "-v good.npz --rules rules": ["X001.yaml:"],
    "-v good.npz --select Z9": ["Z9"],
    "-v good.npz --toolchain horizn": ["--toolchain", "did you mean 'horizon'"],
    "-v good.npz --threshold activation_zscoer=8": ["did you mean 'activation_zscore'"],
    "-v good.npz -p mean=abc": ["mean"],
    "-v good.npz --labels eight.npy --metric mymetric:broken": ["boom"],
}
BAD_MODELS = {
    "no.onnx QUANT": ["no.onnx"],
    "text.onnx QUANT": ["text.onnx"],
    "cut.onnx QUANT": ["cut.onnx"],
    "QUANT FLOAT": ["swapped", "help:"],
}


@pytest.mark.thorough
def test_bad_input_is_named_and_nothing_is_half_written(pair, good, tmp_path):
    """Exit code 2, the file named, a next step, no traceback."""
    arrays = {
        "shape": np.zeros((4, 28, 28, 1), np.float32),
        "bytes": np.zeros((4, 1, 28, 28), np.uint8),
        "empty": np.zeros((0, 1, 28, 28), np.float32),
        "object": np.array([{"a": 1}], dtype=object),
    }
    for name, array in arrays.items():
        np.savez(tmp_path / f"{name}.npz", image=array)
    np.save(tmp_path / "three.npy", np.zeros(3, np.int64))
    np.save(tmp_path / "eight.npy", np.zeros(8, np.int64))
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "X001.yaml").write_text("id: X001\nname: [unclosed\n")
    (tmp_path / "mymetric.py").write_text(
        "def broken(outputs, labels):\n    raise RuntimeError('boom')\nbroken.higher_is_better = True\n"
    )
    (tmp_path / "text.onnx").write_text("hello, I am no model")
    (tmp_path / "cut.onnx").write_bytes(pair[0].read_bytes()[:5000])
    (tmp_path / "x.case").write_bytes(b"PK not really")
    lines = {f"diagnose FLOAT QUANT {options}": words for options, words in BAD_OPTIONS.items()}
    lines |= {f"diagnose {models} -v good.npz": words for models, words in BAD_MODELS.items()}
    models = {"FLOAT": str(pair[0]), "QUANT": str(pair[1])}
    for line, words in (lines | {"diagnose x.case": ["x.case"]}).items():
        done = run(*(models.get(word, word) for word in line.split()), cwd=tmp_path)
        assert done.returncode == 2, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr and "error" in done.stderr.lower()
        assert not [word for word in words if word not in done.stderr], done.stderr
    assert (tmp_path / "taken").read_text() == "mine" and not (tmp_path / "report").exists()


@pytest.mark.thorough
def test_nan_in_the_data_is_a_finding(pair, tmp_path):
    images = np.random.default_rng(0).normal(0, 1, (8, 1, 28, 28)).astype(np.float32)
    images[3, 0, 5, 5] = np.nan
    np.savez(tmp_path / "nan.npz", image=images)
    done = run("diagnose", *pair, "-v", tmp_path / "nan.npz", "-o", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert "non-finite" in done.stdout


@pytest.mark.thorough
def test_own_rule_folder(pair, good, tmp_path):
    (tmp_path / "X001.yaml").write_text(
        "id: X001\nname: wide-input-range\ncause: wide-input-range\nscope: tensor\nseverity: medium\n"
        "confidence: 0.7\nwhen:\n  all:\n    - {fact: producer, is: Input}\n"
        "    - {fact: data.values.absmax, gt: 1}\n"
        'message: "the input reaches {data.values.absmax:.0f}"\nremedies: [recalibrate-on-proper-data]\n'
    )
    (tmp_path / "X001.md").write_text("# wide-input-range (X001)\n\n<script>alert(1)</script>\n")
    done = run("diagnose", *pair, "-v", good, "--rules", tmp_path, "-o", tmp_path / "r", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "X001 wide-input-range" in done.stdout
    page = (tmp_path / "r" / "manual" / "X001.html").read_text()
    assert "<script>alert" not in page
