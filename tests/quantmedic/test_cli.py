"""The command line: help, options, and errors that name what was wrong and what to do next."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from builders.commands import run_quantmedic
from click.testing import CliRunner

from quantmedic.api.explain import _short_fact, explanation
from quantmedic.cli.main import cli
from quantmedic.cli.powershell import PowerShellComplete
from quantmedic.demo import patient
from quantmedic.engine.case.facts import fact_paths
from quantmedic.engine.errors import QuantmedicError

COMMANDS = sorted(cli.table)  # type: ignore[attr-defined]


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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str):
    done = CliRunner().invoke(cli, [command, "--help"])
    assert done.exit_code == 0
    needs_no_example = command in ("rules", "doctor")
    assert "Example" in done.output or needs_no_example


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


@pytest.mark.parametrize(
    ("word", "heading", "says"),
    [
        ("verdict", "### Verdict", "**undecided**"),
        ("undecided", "### Verdict", "labelled samples that decide"),
        ("Severity", "### Severity", "`grave_share`"),
        ("harm", "### Harm", "`latent_gain_db`"),
        ("withstood", "### Harm", "fails no gate"),
        ("latent", "### Harm", "what is to be had"),
        ("clipping", "## Words", "outside the range"),
        ("not judged", "## How to read a verdict", "how to supply it"),
        ("lost together only", "## What the task loses", "sample by sample"),
    ],
)
def test_words_of_the_manual_are_explained_by_the_section_that_does(word: str, heading: str, says: str):
    section = explanation(word)
    assert section.startswith(heading)
    assert says in section
    assert "This is a part of the page `" in section


@pytest.mark.parametrize(
    ("word", "says"), [("KL", "log p(v) - log q(v)"), ("kl divergence", "in nats"), ("perplexity", "PPL = exp(")]
)
def test_figures_of_language_models_are_explained_by_their_formula(word: str, says: str):
    page = explanation(word)
    assert says in page and "## References" in page


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nats", "A nat is the unit"),
        ("same top-1", "`same_top`"),
        ("same first token", "likeliest token"),
        ("rise", "sized by rise"),
        ("K/V cache", "compressed-tensors"),
        ("block", "Blocks"),
        ("router", "quantized-router (W026)"),
        ("top-1", "`top1`"),
        ("INSUFFICIENT_DATA", "too few samples to tell"),
        ("accept", "every gate passes"),
        ("ANOMALOUS", "better than quantization can make it"),
        ("gate", "exit code"),
        ("policy", "quantmedic.toml"),
        ("loss budget", "noise"),
        ("prescription.py", "prescription"),
        ("keys_gain", "# language.keys_gain\n"),
        ("kl_mean", "Unit: nats."),
        ("cache_scales_off", "# language.cache_scales_off\n"),
    ],
)
def test_words_that_reports_of_language_models_and_gates_show_are_explained(word: str, says: str):
    assert says in explanation(word)


def test_every_fact_of_language_models_is_explained_by_its_last_name():
    paths = [path for path in fact_paths("model") if path.startswith("language.") and path.count(".") == 1]
    assert len(paths) > 30
    for path in paths:
        assert f"# {path}\n" in (_short_fact(path.removeprefix("language.")) or ""), path


def test_facts_of_a_name_that_many_bear_are_not_told_all():
    assert _short_fact("mean") is None and _short_fact("xyzzy") is None


@pytest.mark.parametrize("word", ["nncf", "NNCF"])
def test_a_toolchain_is_explained_by_what_is_known_of_it(word: str):
    page = explanation(word)
    assert page.startswith("# NNCF\n") and "`--toolchain nncf`" in page
    assert "* calibrate again on proper data\n" in page and "* [OpenVINO models](general/openvino.md)\n" in page
    assert "## Options" in explanation("bias-correction"), "its own page goes before what others say of it"


def test_a_cause_of_several_rules_leads_to_all_of_them():
    page = explanation("non-finite-values")
    assert page.startswith("# non-finite-values (S003)")
    assert "[S004](S004.md) non-finite-input" in page
    first = explanation("float-export-differs").split("\n## ")[0]
    assert "[S029](S029.md) operator-of-its-own" in first and first.endswith("This page is that of S005.\n")
    others = explanation("S005").rpartition("## The same cause")[2]
    assert "[S029](S029.md) operator-of-its-own" in others and "[S030](S030.md) function-of-one-model" in others
    assert explanation("divisor-rounds-to-zero").startswith("# divisor-rounds-to-zero (S027)")
    assert "The same cause" not in explanation("W002")
    listed = explanation("index")
    assert "[S027](S027.md) divisor-rounds-to-zero (cause non-finite-values)" in listed
    assert "[W002](W002.md) bias-overflow," in listed


@pytest.mark.parametrize("word", ["requantize", "requantize-this-model", "Requantize this model"])
def test_a_remedy_is_explained_by_what_is_known_of_it(word: str):
    found = explanation(word)
    assert found.startswith("# Quantize this very model again")
    assert "torchao" in found and "[W016](W016.md) misread-codes" in found and "Not if: where" in found


@pytest.mark.parametrize("word", ["int2", "uint8", "2-bit"])
def test_widths_are_explained_by_what_rounding_leaves(word: str):
    assert "| 2 | 4 | 3.6 dB |" in explanation(word)


def test_the_beginning_of_several_remedies_is_none_of_them():
    with pytest.raises(QuantmedicError):
        explanation("keep")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_name_of_a_command_leads_to_its_page_or_its_help(command: str):
    done = CliRunner().invoke(cli, ["explain", command])
    assert done.exit_code == 0
    head = " ".join(done.output.split("\n\n")[:2]).lower()
    assert re.search(rf"\b{command}\b", head) or f"quantmedic {command}" in done.output


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("calibrations", "# Searching the calibration method"),
        ("diagnose", "# How to read the report"),
        ("fix", "# Proof"),
        ("fast mode", "# How long a run takes"),
        ("resume", "# How long a run takes"),
        ("large models", "# How much memory a run takes"),
        ("GPU", "# PyTorch modules"),
        ("checkpoint", "# Comparing weights"),
        ("rules", "# "),
    ],
)
def test_commands_are_other_names_of_pages(command: str, title: str):
    assert explanation(command).startswith(title)


def test_several_words_are_one_name():
    done = CliRunner().invoke(cli, ["explain", "out", "of", "memory"])
    assert done.exit_code == 0 and "How much memory a run takes" in done.output


def test_explain_alone_prints_the_index():
    assert CliRunner().invoke(cli, ["explain"]).output == CliRunner().invoke(cli, ["explain", "index"]).output


def test_folders_of_language_models_are_run_on_texts(tmp_path):
    for name in ("float", "int4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    done = CliRunner().invoke(cli, ["diagnose", str(tmp_path / "float"), str(tmp_path / "int4"), "-v", "x.npz"])
    assert isinstance(done.exception, QuantmedicError)
    assert "--validation: texts go with --tokens" in str(done.exception)
    done = CliRunner().invoke(cli, ["sensitivity", str(tmp_path / "float"), str(tmp_path / "int4"), "-v", "x.npz"])
    assert "quantmedic diagnose FLOAT QUANT --tokens" in str(done.exception)


def test_thresholds_are_explained():
    assert "Value: 0.5" in explanation("grave_share")


def test_an_unknown_word_leads_to_the_pages_that_have_it():
    with pytest.raises(QuantmedicError) as caught:
        explanation("Tango")
    assert "index" in (caught.value.help or "")
    with pytest.raises(QuantmedicError) as caught:
        explanation("xyzzy")
    assert "quantmedic explain index" in (caught.value.help or "")


@pytest.mark.thorough
def test_doctor_tells_versions_and_cpu():
    done = run("doctor")
    assert done.returncode == 0
    assert "onnxruntime" in done.stdout and "VNNI" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_script(shell: str):
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_QUANTMEDIC_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        (["quantmedic", "dia"], "dia", ["diagnose"]),
        (["quantmedic"], "", COMMANDS),
        (["quantmedic", "rules", "ne"], "ne", ["new"]),
        (["quantmedic", "completion", '"power'], '"power', []),  # the quote is still open: nothing begins so
        (["quantmedic", "completion", "power"], "power", ["powershell"]),
        (["quantmedic", "check", "--warn"], "--warn", ["--warn-only"]),
        (["quantmedic", "report", "a.case", "--format", "'json'", "--format", "j"], "j", ["json"]),
        (["quantmedic", "diagnose", "C:\\models\\fl"], "C:\\models\\fl", []),  # files are PowerShell's own
    ],
)
def test_powershell_is_answered(
    words: list[str], incomplete: str, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_INCOMPLETE", incomplete)
    lines = PowerShellComplete(cli, {}, "quantmedic", "_QUANTMEDIC_COMPLETE").complete().splitlines()
    values = [line.split("\t")[0] for line in lines]
    assert sorted(values) == sorted(offered)
    assert all(len(line.split("\t")) == 2 and line.split("\t")[1] for line in lines)


@pytest.mark.parametrize(
    ("shell", "asked", "answer"),
    [
        ("powershell", {"COMP_WORDS": "quantmedic\ntre", "COMP_INCOMPLETE": "tre"}, "trend\t"),
        ("bash", {"COMP_WORDS": "quantmedic tre", "COMP_CWORD": "1"}, "plain,trend"),
        ("zsh", {"COMP_WORDS": "quantmedic tre", "COMP_CWORD": "1"}, "plain\ntrend\n"),
        # Releases of click tell fish what they offer in two ways.
        ("fish", {"COMP_WORDS": "quantmedic tre", "COMP_CWORD": "tre"}, r"plain[,\n]trend[\t\n]"),
    ],
)
def test_the_command_answers_a_shell(shell: str, asked: dict[str, str], answer: str) -> None:
    done = run_quantmedic(env={**os.environ, "_QUANTMEDIC_COMPLETE": f"{shell}_complete", **asked})
    assert re.match(answer, done.stdout) and not done.stderr


@pytest.mark.thorough
def test_thresholds_are_listed_and_overridden(pair, good, tmp_path):
    assert "activation_zscore" in run("rules", "--thresholds").stdout
    done = run("diagnose", *pair, "-v", good, "-o", tmp_path / "r", "--threshold", "activation_zscoer=8")
    assert done.returncode == 2
    assert "did you mean 'activation_zscore'" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.thorough
def test_quiet_verbose_and_formats(pair, good, tmp_path):
    quiet = run("diagnose", *pair, "-v", good, "-o", tmp_path / "r", "-q", "--format", "json")
    assert quiet.returncode == 0, quiet.stderr
    assert (tmp_path / "r" / "report.json").is_file()
    assert not (tmp_path / "r" / "index.html").exists()
    verbose = run("report", tmp_path / "r" / "quantmedic.case", "-o", tmp_path / "v", "--verbose")
    assert len(verbose.stdout.splitlines()) > len(quiet.stdout.splitlines()) + 20


@pytest.mark.thorough
def test_the_prescription_speaks_for_the_toolchain_that_was_named(tmp_path):
    found = run("demo", "-o", tmp_path / "r", "--format", "json", "--verbose")
    assert "recognized by its producer onnx.quantize" in found.stdout
    text = (tmp_path / "r" / "prescription.py").read_text()
    compile(text, "prescription.py", "exec")
    assert "quantize_static(" in text and "reader" in text
    asked = run(
        "report", tmp_path / "r" / "quantmedic.case", "-o", tmp_path / "r", "--toolchain", "horizon", "--verbose"
    )
    assert "prescription for Horizon OpenExplorer: prescription.yaml" in asked.stdout
    assert yaml.safe_load((tmp_path / "r" / "prescription.yaml").read_text())["input_parameters"]["mean_value"]
    assert not (tmp_path / "r" / "prescription.py").exists()
    healthy = run("demo", "--healthy", "-o", tmp_path / "h", "--format", "json", "--verbose")
    assert "prescription for" not in healthy.stdout


@pytest.mark.thorough
def test_without_representative_data_rules_are_not_judged_and_say_how(pair, good, tmp_path):
    done = run("diagnose", *pair, "-v", good, "-o", tmp_path / "r", "--verbose")
    assert done.returncode == 0
    assert "D005 preprocessing" in done.stdout and "--representative" in done.stdout


@pytest.mark.thorough
class TestBadInput:
    """Exit code 2, the file named, a next step, no traceback, nothing half-written."""

    def check(self, done, *words: str) -> None:
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert "error" in done.stderr.lower()
        for word in words:
            assert word in done.stderr, done.stderr

    def test_no_data(self, pair):
        self.check(run("diagnose", *pair), "--representative")

    def test_missing_model(self, pair, good, tmp_path):
        self.check(run("diagnose", tmp_path / "no.onnx", pair[1], "-v", good), "no.onnx")

    def test_not_onnx(self, pair, good, tmp_path):
        (tmp_path / "text.onnx").write_text("hello, I am no model")
        self.check(run("diagnose", tmp_path / "text.onnx", pair[1], "-v", good), "text.onnx")

    def test_truncated(self, pair, good, tmp_path):
        (tmp_path / "cut.onnx").write_bytes(pair[0].read_bytes()[:5000])
        self.check(run("diagnose", tmp_path / "cut.onnx", pair[1], "-v", good), "cut.onnx")

    def test_swapped(self, pair, good):
        self.check(run("diagnose", pair[1], pair[0], "-v", good), "swapped", "help:")

    def test_wrong_shape(self, pair, tmp_path):
        np.savez(tmp_path / "bad.npz", image=np.zeros((4, 28, 28, 1), np.float32))
        self.check(run("diagnose", *pair, "-v", tmp_path / "bad.npz"), "bad.npz", "NHWC")

    def test_uint8_without_preprocessing(self, pair, tmp_path):
        np.savez(tmp_path / "bytes.npz", image=np.zeros((4, 1, 28, 28), np.uint8))
        self.check(run("diagnose", *pair, "-v", tmp_path / "bytes.npz"), "uint8", "--scale")

    def test_zero_samples(self, pair, tmp_path):
        np.savez(tmp_path / "empty.npz", image=np.zeros((0, 1, 28, 28), np.float32))
        self.check(run("diagnose", *pair, "-v", tmp_path / "empty.npz"), "empty.npz")

    def test_object_array(self, pair, tmp_path):
        np.savez(tmp_path / "object.npz", image=np.array([{"a": 1}], dtype=object))
        self.check(run("diagnose", *pair, "-v", tmp_path / "object.npz"), "object.npz")

    def test_labels_of_another_length(self, pair, good, tmp_path):
        np.save(tmp_path / "labels.npy", np.zeros(3, np.int64))
        self.check(run("diagnose", *pair, "-v", good, "--labels", tmp_path / "labels.npy"), "labels")

    def test_output_is_a_file(self, pair, good, tmp_path):
        (tmp_path / "taken").write_text("mine")
        self.check(run("diagnose", *pair, "-v", good, "-o", tmp_path / "taken"), "taken")
        assert (tmp_path / "taken").read_text() == "mine"

    def test_disk_full(self, pair, good):
        self.check(run("diagnose", *pair, "-v", good, "-o", "/dev/full/report"), "/dev/full")

    def test_bad_rule_file(self, pair, good, tmp_path):
        (tmp_path / "rules").mkdir()
        (tmp_path / "rules" / "X001.yaml").write_text("id: X001\nname: [unclosed\n")
        self.check(run("diagnose", *pair, "-v", good, "--rules", tmp_path / "rules"), "X001.yaml:")

    def test_unknown_select(self, pair, good):
        self.check(run("diagnose", *pair, "-v", good, "--select", "Z9"), "Z9")

    def test_unknown_toolchain_is_refused_before_anything_is_measured(self, pair, good, tmp_path):
        done = run("diagnose", *pair, "-v", good, "--toolchain", "horizn", "-o", tmp_path / "r")
        self.check(done, "--toolchain", "did you mean 'horizon'")
        assert not (tmp_path / "r").exists()

    def test_case_is_no_case(self, tmp_path):
        (tmp_path / "x.case").write_bytes(b"PK not really")
        self.check(run("report", tmp_path / "x.case"), "x.case")

    def test_bad_option_value(self, pair, good):
        self.check(run("diagnose", *pair, "-v", good, "--mean", "abc"), "mean")

    def test_crash_is_two_and_says_so(self, pair, good, tmp_path):
        module = tmp_path / "mymetric.py"
        module.write_text(
            "def broken(outputs, labels):\n    raise RuntimeError('boom')\nbroken.higher_is_better = True\n"
        )
        np.save(tmp_path / "labels.npy", np.zeros(8, np.int64))
        done = run(
            "diagnose",
            *pair,
            "-v",
            good,
            "--labels",
            tmp_path / "labels.npy",
            "--metric",
            "mymetric:broken",
            cwd=tmp_path,
        )
        self.check(done, "boom")


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
    done = run("diagnose", *pair, "-v", good, "--rules", tmp_path, "-o", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert "X001 wide-input-range" in done.stdout
    page = (tmp_path / "r" / "manual" / "X001.html").read_text()
    assert "<script>alert" not in page
