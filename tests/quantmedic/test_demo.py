"""The embedded patient, as a newcomer meets it: through the installed command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.cli.main import exit_code
from quantmedic.demo import patient
from quantmedic.reports.terminal.console import render_console

pytestmark = pytest.mark.thorough


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_quantmedic(*arguments, cwd=cwd)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, run("demo", "-o", str(folder))


@pytest.fixture(scope="session")
def healthy_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("healthy")
    return folder, run("demo", "--healthy", "-o", str(folder))


def test_names_the_injected_mistake_first(demo_folder):
    folder, done = demo_folder
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["verdict"] == "degraded"
    assert report["drop_class"] == "large"
    assert report["evidence_strength"]["statement"] == "proven"
    first = report["causes"][0]
    assert first["cause"] == "preprocessing-mismatch"
    assert {e["fact"] for e in first["evidence"]} >= {"relation.kind", "relation.scale_mismatch"}
    assert first["absorbs"], "the clipped layers follow from the ranges that the wrong data gave"
    relation = report["datasets"][0]["relation"]
    assert (relation["method"], relation["kind"]) == ("lattice", "partly-normalized"), "measured, not assumed"
    assert relation["slope"] == pytest.approx(0.3530, rel=1e-3)
    assert relation["offset"] == pytest.approx(0.2860, rel=1e-3)
    metrics = report["metrics"]
    assert metrics["name"] == "top1" and metrics["float_value"] >= 0.87 and metrics["samples"] >= 256


def test_healthy_twin_is_clean(healthy_folder):
    folder, done = healthy_folder
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["verdict"] == "healthy"
    assert report["causes"] == []
    # All but the rules about what only the user can give: outputs of other programs, logs, a number.
    asked = {"S005", "S006", "S011", "S012", "S034", "R002", "M003", "M004"}
    assert {note["rule"] for note in report["not_judged"]} <= asked


def test_writes_all_files_and_one_warning_per_serious_cause(demo_folder):
    folder, done = demo_folder
    report = json.loads((folder / "report.json").read_text())
    for name in ("index.html", "report.md", "report.json", "quantmedic.case"):
        assert (folder / name).stat().st_size > 1000
    assert len(list((folder / "graphs").glob("*.svg"))) >= 6
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING ")]
    serious = [cause for cause in report["causes"] if cause["severity"] in ("high", "medium")]
    assert serious and len(serious) < len(report["causes"])
    for line, cause in zip(warnings, serious, strict=True):
        rule = cause["rules"][0]
        assert line.endswith(f"; quantmedic explain {rule}")
        assert (folder / "manual" / f"{rule}.html").is_file()


@pytest.mark.nightly
def test_causes_are_said_once_where_both_streams_lead_to_one_place(demo_folder, tmp_path):
    folder, _ = demo_folder
    command = [sys.executable, "-m", "quantmedic", "diagnose", folder / "quantmedic.case", "-o", tmp_path / "again"]
    log = tmp_path / "log"
    with log.open("w") as file:
        assert subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode == 0
    said = log.read_text(encoding="utf-8")
    assert "D005" in said and "WARNING D005" not in said
    apart = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "WARNING D005" in apart.stderr and "WARNING D005" not in apart.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["demo_folder", "detection_folder"])
def test_the_prescription_runs_with_the_printed_command_and_heals(name, request, tmp_path):
    folder, done = request.getfixturevalue(name)
    said = done.stdout[done.stdout.index(f"\nin {folder / 'try'}, where deployed.onnx is the model diagnosed") :]
    lines = said.replace(" \\\n", " ").splitlines()
    first, second, fix = (line.strip() for line in lines if line.startswith("  ") and not line.startswith("  #"))
    made = folder / "try" / "int8.onnx"
    assert not made.exists()
    assert f"{sys.executable} ../run.py float.onnx" in first, "bare python may be another one, without onnxruntime"
    subprocess.run(first, shell=True, check=True, capture_output=True, cwd=folder / "try")
    assert made.is_file()
    again = run(*second.split()[1:], "-o", str(tmp_path / "again"), cwd=folder / "try")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "again" / "report.json").read_text())["verdict"] == "healthy"
    assert run(*fix.split()[1:], cwd=folder / "try").returncode == 0 and (folder / "try" / "fixed.onnx").is_file()


def test_case_is_judged_again_without_models(demo_folder, tmp_path):
    folder, done = demo_folder
    again = run("diagnose", str(folder / "quantmedic.case"), "-o", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    first, second = (json.loads((path / "report.json").read_text()) for path in (folder, tmp_path / "again"))
    assert first == second
    first, second = (text.stdout.replace(str(path), "") for text, path in ((done, folder), (again, tmp_path / "again")))
    assert first.split("\nwrote ")[0] == second.split("\nwrote ")[0]


@pytest.mark.nightly
def test_without_representative_data_the_range_of_the_input_is_told_before_its_clipping():
    """Nothing tells what it was calibrated on, but the range of the input is not that of the validation images."""
    (float_model, quantized), options = patient()
    diagnosis = quantmedic.diagnose(float_model, quantized, **options | {"representative": None})
    first = diagnosis.causes[0]
    assert (first.cause, first.rules) == ("stale-calibration", ("D018", "D013"))
    assert "range 0.353 times, offset 0.286" in first.message
    # A range from 0 on cuts off the negative values, which make 94 % of the noise.
    assert ("A002", "image") in [(explained.rule, explained.subject) for explained in first.absorbs]
    assert "D005" in [note.rule for note in diagnosis.not_judged]


def test_embedded_files_stay_small():
    demo = Path(quantmedic.__file__).parent / "demo"
    files = [path for path in demo.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    language = [path for path in files if "language" in path.relative_to(demo).parts]
    assert sum(path.stat().st_size for path in language) < 2_000_000
    assert sum(path.stat().st_size for path in files if path not in language) < 2_000_000


@pytest.mark.skipif(shutil.which("quantmedic") is None, reason="the command is not on PATH")
def test_installed_command_answers():
    done = subprocess.run(["quantmedic", "--version"], capture_output=True, text=True, check=True)
    assert quantmedic.__version__ in done.stdout


@pytest.mark.nightly
def test_fast_mode_finds_the_same_cause_and_says_on_how_many_samples(tmp_path):
    models, options = patient()
    diagnosis = quantmedic.diagnose(*models, **options, mode="fast", output=tmp_path)
    assert diagnosis.causes[0].cause == "preprocessing-mismatch"
    assert diagnosis.metrics.samples == 512
    seen = {row.validation.samples for row in diagnosis.layers}
    assert min(seen) >= 32 and max(seen) <= 512 and len(seen) > 1
    assert "each layer on a part of its samples" in (tmp_path / "report.md").read_text()
    assert "range | samples | findings" in (tmp_path / "report.md").read_text()
    assert f"layers on {min(seen)} or more of them" in render_console(diagnosis, verbosity="normal", color=False)


@pytest.fixture(scope="session")
def detection_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("detection")
    return folder, run("demo", "--detection", "-o", str(folder))


def test_the_detectors_scores_are_gone_and_the_joint_is_named(detection_folder):
    folder, done = detection_folder
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert (report["verdict"], report["drop_class"]) == ("degraded", "large")
    first = report["causes"][0]
    assert (first["cause"], first["severity"]) == ("unbalanced-concatenation", "high")
    assert first["remedies"][0]["id"] == "balance-concatenation"
    assert "dead-output-columns" in {explained["name"] for explained in first["absorbs"]}
    columns = report["outputs"][0]["columns"]
    assert columns["dead_places"] == "4…6"
    assert report["outputs"][0]["tensor"]["data"]["accumulated"]["sqnr_db"] > 30
    assert [row["op_type"] for row in report["layers"] if row["degraded"]] == ["Concat"]
    assert report["metrics"]["float_value"] > 0.95 and report["metrics"]["quantized_value"] == 0


def test_the_detectors_page_tells_it(detection_folder):
    folder, done = detection_folder
    page, text = (folder / "index.html").read_text(), (folder / "report.md").read_text()
    assert "1 degraded" in page and "0 degraded" not in page
    assert "columns 4…6" in text
    assert "erased-concatenation-operand" in done.stdout and "nodes_to_exclude" in done.stdout


@pytest.mark.nightly
def test_the_healthy_detector_is_healthy(tmp_path):
    done = run("demo", "--detection", "--healthy", "-o", str(tmp_path))
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0 and (report["verdict"], report["causes"]) == ("healthy", [])
    assert report["outputs"][0]["columns"]["dead"] == 0


def test_the_language_model_has_one_block_of_few_bits(tmp_path, capsys):
    pytest.importorskip("transformers")
    assert exit_code(["demo", "--language-model", "-o", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["drop_class"]) == ("degraded", "large")
    assert report["metrics"]["name"] == "perplexity" and report["metrics"]["float_value"] < 8, "it was trained"
    assert report["metrics"]["drop_low"] > 0 and report["model"]["language"]["worst_block"] == "model.layers.2"
    first = report["causes"][0]
    assert first["severity"] in ("high", "medium")
    assert first["layers"] and all("model.layers.2." in str(layer) for layer in first["layers"]), first
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "torchao" in markdown and markdown.startswith("# DEGRADED: small-llama (quantized)\n")
    assert "<title>small-llama (quantized) · degraded" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "do this first: Keep named layers in float: 7 layers of model.layers.2" in said
    assert "between Q4_K_M (0.031) and Q3_K_M (0.1)" in said
    code = (tmp_path / "prescription.py").read_text()
    assert "TorchAoConfig(" in code and '"model.layers.2.mlp.up_proj"' in code
    assert exit_code(["check", str(tmp_path)]) == 1
    assert "perplexity rises for certain, and no policy allows it" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_healthy_language_model_is_healthy(tmp_path):
    pytest.importorskip("transformers")
    done = run("demo", "--language-model", "--healthy", "-o", str(tmp_path))
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0 and report["verdict"] == "healthy", report["causes"]


def test_the_language_model_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr("quantmedic.demo.find_spec", lambda name: None if name == "transformers" else object())
    assert exit_code(["demo", "--language-model"]) == 2
    said = capsys.readouterr().err.strip()
    assert "needs transformers" in said and "pip install 'quantmedic[language]'" in said and "\n" not in said


def test_the_language_model_refuses_what_is_not_of_it():
    for words in (["--detection"], ["--prove"], ["--samples", "3"]):
        done = run("demo", "--language-model", *words)
        assert done.returncode == 2 and f"{words[0]} cannot be used with --language-model" in done.stderr
