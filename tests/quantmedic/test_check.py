"""The gate as users run it: every verdict, every exit code, every output, baselines, and what it refuses."""

import json
import os
import platform
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.commands import run_quantmedic
from builders.tiers import others_nightly

import quantmedic
from quantmedic.demo import patient
from quantmedic.reports.write import FORMATS

pytestmark = pytest.mark.thorough

Check = Callable[..., "subprocess.CompletedProcess[str]"]
POLICY = """\
[check]
coverage = {min = 0.9}

[[check.budget]]
metric = "top1"
max_drop = 2.0
"""
#: Files of a report that are read as text.
TEXTS = {".html", ".md", ".json", ".sarif", ".xml", ".svg", ".py"}
#: Pictures, and a format that ``check`` does not write.
UNREADABLE = ("png", "model-explorer")
#: Environment of tests: none of a continuous integration that they may run in.
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}


def quantmedic_command(*arguments: Any, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run_quantmedic(*arguments, cwd=cwd, env={**PLAIN, **environment})


@pytest.fixture
def run(tmp_path: Path) -> Check:
    return lambda *arguments, **environment: quantmedic_command(*arguments, cwd=tmp_path, **environment)


@pytest.fixture(scope="module")
def cases(patient_case: Path, healthy_case: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored cases of the demo: the patient, its healthy twin, and one that is better than it can be."""
    folder = tmp_path_factory.mktemp("cases")
    shutil.copy(patient_case, folder / "patient.case")
    shutil.copy(healthy_case, folder / "healthy.case")
    case = quantmedic.load_case(folder / "patient.case")
    samples = case.statistics["validation"].samples
    samples["metric_float"], samples["metric_quantized"] = samples["metric_quantized"], samples["metric_float"].copy()
    quantmedic.save_case(case, folder / "better.case")
    return folder


def policy(folder: Path, text: str) -> Path:
    (folder / "quantmedic.toml").write_text(text, encoding="utf-8")
    return folder / "quantmedic.toml"


def budget(points: float) -> str:
    return f'[[check.budget]]\nmetric = "top1"\nmax_drop = {points}\n'


#: A case, a policy, and the verdict with its exit code.
VERDICTS = (
    ("healthy", POLICY, 0, "ACCEPT"),
    ("healthy", "", 0, "ACCEPT"),
    ("patient", "", 1, "REGRESSION"),
    ("patient", POLICY, 1, "REGRESSION"),
    ("healthy", budget(0.2), 3, "INSUFFICIENT_DATA"),
    ("better", "", 4, "ANOMALOUS"),
)
READERS: dict[str, Callable[[str, str, int], bool]] = {
    "json": lambda text, word, code: json.loads(text)["gate"] == word,
    "sarif": lambda text, word, code: json.loads(text)["version"] == "2.1.0",
    "junit": lambda text, word, code: bool(list(ElementTree.fromstring(text).iter("failure"))) == (code != 0),
    "markdown": lambda text, word, code: word in text,
}


class TestVerdicts:
    def test_each_has_its_exit_code(self, run: Check, cases: Path, tmp_path: Path) -> None:
        for case, text, code, word in VERDICTS:
            policy(tmp_path, text)
            done = run("check", cases / f"{case}.case")
            assert done.returncode == code, done.stdout + done.stderr
            assert done.stdout.strip().splitlines()[-1].startswith(word)
            assert "samples" in done.stdout or code != 3, "an insufficient set says how many samples decide"
            if code:
                assert run("check", cases / f"{case}.case", "--warn-only").returncode == 0

    @pytest.mark.parametrize("case, text, code, word", others_nightly(VERDICTS, ("patient", "", 1, "REGRESSION")))
    def test_each_is_told_in_every_format(
        self, run: Check, cases: Path, tmp_path: Path, case: str, text: str, code: int, word: str
    ) -> None:
        policy(tmp_path, text)
        for form, read in READERS.items():
            done = run("check", cases / f"{case}.case", "--format", form)
            assert done.returncode == code and read(done.stdout, word, code), (case, form)

    def test_what_could_not_run_is_no_verdict_in_any_format(self, run: Check, cases: Path, tmp_path: Path) -> None:
        for words in (["--warn-only"], *(["--format", form] for form in READERS)):
            done = run("check", tmp_path / "none.case", *words)
            assert done.returncode == 2 and not done.stdout and done.stderr.startswith("error: "), words
        policy(tmp_path, "[check]\nfail_on = 7\n")
        done = run("check", cases / "healthy.case")
        assert done.returncode == 2 and done.stderr.startswith("error")

    def test_quiet_prints_the_verdict_alone(self, run: Check, cases: Path) -> None:
        done = run("check", cases / "patient.case", "-q")
        assert done.returncode == 1 and len(done.stdout.splitlines()) == 1


class TestModels:
    def test_both_models_and_data_at_once_with_every_output(self, run: Check, tmp_path: Path) -> None:
        (float_model, quantized), _ = patient()
        done = run("check", float_model, quantized, *demo_arguments(), "-o", "out")
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.count("WARNING D005") == 1
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert {
            "index.html",
            "report.md",
            "report.json",
            "check.md",
            "check.sarif",
            "check.xml",
            "quantmedic.case",
        } <= names
        report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
        assert (report["gate"], report["check"]["exit_code"]) == ("REGRESSION", 1)
        again = run("check", "out/quantmedic.case")
        assert again.stdout == done.stdout[: done.stdout.index("wrote ")]

    def test_static_needs_no_data(self, run: Check) -> None:
        (float_model, quantized), _ = patient()
        done = run("check", float_model, quantized, "--static")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "static" in done.stdout


@pytest.mark.nightly
def test_no_report_tells_of_the_machine(run: Check, tmp_path: Path) -> None:
    """Both models and data by absolute paths, under names of user, host and variable that stand nowhere else."""
    (float_model, quantized), _ = patient()
    canaries = {"USER": "canary-user", "LOGNAME": "canary-user", "HOSTNAME": "canary-host", "SECRET": "canary-value"}
    forms = [word for form in FORMATS if form not in UNREADABLE for word in ("--format", form)]
    folder = tmp_path / "canary-folder"
    done = run("check", float_model, quantized, *demo_arguments(), "--samples", "32", "-o", folder, *forms, **canaries)
    assert done.returncode in (1, 3), done.stdout + done.stderr
    forbidden = [
        "canary",
        str(tmp_path),
        str(float_model.parent),
        str(Path(__file__).parents[2]),
        f"{Path.home()}/",
        platform.node(),
    ]
    told = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.suffix in TEXTS}
    told["case.json"] = zipfile.ZipFile(folder / "quantmedic.case").read("case.json").decode()
    assert {"index.html", "report.md", "report.json", "check.sarif", "check.xml", "metrics.json"} <= told.keys()
    assert [(name, word) for name, text in told.items() for word in forbidden if word in text] == []


def demo_arguments() -> list[str]:
    """The demo's data, and the options that read it."""
    _, options = patient()
    found = ["-r", str(options["representative"]), "-v", str(options["validation"])]
    for role, prepared in options["preprocessing"].items():
        for name in ("mean", "std"):
            found += ["-p", f"{role}.{name}={','.join(map(str, getattr(prepared, name)))}"]
        found += ["-p", f"{role}.scale={prepared.scale}"]
    return found


class TestPolicies:
    def test_the_nearest_policy_above_is_used(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, budget(0.2))
        inner = tmp_path / "a" / "b"
        inner.mkdir(parents=True)
        done = quantmedic_command("check", cases / "healthy.case", cwd=inner)
        assert done.returncode == 3 and "../../quantmedic.toml" in done.stdout
        (tmp_path / "a" / "pyproject.toml").write_text("[tool.quantmedic.check]\n", encoding="utf-8")
        assert quantmedic_command("check", cases / "healthy.case", cwd=inner).returncode == 0

    def test_config_wins(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, budget(0.2))
        other = tmp_path / "other.toml"
        other.write_text(budget(5.0), encoding="utf-8")
        assert run("check", cases / "healthy.case", "--config", other).returncode == 0

    def test_thresholds_and_choice_of_rules_hold(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, '[rules]\nignore = ["D005"]\n')
        done = run("check", cases / "patient.case", "--format", "json")
        report = json.loads(done.stdout)
        assert [note["rule"] for note in report["ignored"]] == ["D005"]
        assert "D005" not in {finding["rule"] for finding in report["check"]["findings"]}

    def test_a_threshold_of_the_policy_is_named_as_its_source(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, "[thresholds]\nanomalous_gain = 0.9\n")
        report = json.loads(run("check", cases / "better.case", "--format", "json").stdout)
        assert report["gate"] != "ANOMALOUS"
        (threshold,) = (t for t in report["thresholds"] if t["name"] == "anomalous_gain")
        assert (threshold["value"], threshold["source"]) == (0.9, "quantmedic.toml")

    EXEMPTION = '[[ignore]]\nrule = "D005"\nreason = "fixed camera, VIS-214"\nexpires = 2026-11-30\n'

    @pytest.mark.nightly
    def test_exemptions_expire(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, self.EXEMPTION)
        for today, code, said in (("2026-11-01", 0, ""), ("2026-11-21", 0, "9 days"), ("2026-12-01", 1, "expired")):
            done = run("check", cases / "patient.case", "--today", today)
            assert done.returncode == code and said in done.stdout, done.stdout

    def test_an_exemption_that_covers_nothing_warns_and_is_strictly_refused(
        self, run: Check, cases: Path, tmp_path: Path
    ) -> None:
        policy(tmp_path, self.EXEMPTION)
        done = run("check", cases / "healthy.case", "--today", "2026-11-01")
        assert done.returncode == 0 and "D005" in done.stdout
        assert run("check", cases / "healthy.case", "--today", "2026-11-01", "--strict").returncode == 1


@pytest.mark.thorough
def test_limits_of_the_command_line_hold_beside_the_policy(run: Check, cases: Path, tmp_path: Path) -> None:
    policy(tmp_path, '[check]\nfail_on = {severity = "never"}\n' + budget(90))
    for limits, code, said in (
        (("--max-drop", 85, "--min-agreement", 0.05), 0, "limit of the drop 85.00"),
        (("--max-drop", 20), 1, "limit of the drop 20.00"),
        (("--min-sqnr", 60), 1, "required 60"),
        (("--max-kl", 0.1), 3, "--tokens"),
    ):
        done = run("check", cases / "patient.case", *limits)
        assert done.returncode == code and said in done.stdout and "limit of the drop 90.00" in done.stdout, done.stdout
    for limits, said in (
        (("--max-drop", 300), "percentage points of a share"),
        (("--max-drop", "nan"), "max_drop: Input should be a finite number"),
        (("--min-agreement", 98), "not in the range"),
    ):
        done = run("check", cases / "patient.case", *limits)
        assert done.returncode == 2 and said in done.stderr, done.stderr


class TestBaseline:
    def test_its_life(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, '[check]\nbaseline = "known.json"\n')
        missing = run("check", cases / "patient.case")
        assert missing.returncode == 1 and "check CASE --write-baseline FILE" in " ".join(missing.stdout.split())
        asked = run("check", cases / "patient.case", "--baseline", "known.json")
        assert asked.returncode == 2 and "no such baseline" in asked.stderr
        written = run("check", cases / "patient.case", "--write-baseline", "known.json")
        assert written.returncode == 0 and "known.json" in written.stdout
        bytes_before = (tmp_path / "known.json").read_bytes()
        assert run("check", cases / "patient.case").returncode == 0
        healed = run("check", cases / "healthy.case")
        assert healed.returncode == 0 and "--prune-baseline" in healed.stdout
        assert (tmp_path / "known.json").read_bytes() == bytes_before
        pruned = run("check", cases / "healthy.case", "--prune-baseline")
        assert pruned.returncode == 0 and "findings are gone, 0 left" in pruned.stdout
        assert run("check", cases / "patient.case").returncode == 1

    def test_a_case_is_a_baseline(self, run: Check, cases: Path) -> None:
        assert run("check", cases / "patient.case", "--baseline", cases / "patient.case").returncode == 0
        assert run("check", cases / "patient.case", "--baseline", cases / "healthy.case").returncode == 1

    def test_what_is_none_is_refused(self, run: Check, cases: Path, tmp_path: Path) -> None:
        for text, word in (
            ("{", "not valid JSON"),
            ("[]", "not a valid baseline"),
            ('{"findings": [{"rule": 1}]}', "findings.0"),
            ('{"schema_version": "9.0", "findings": []}', "schema 9.0"),
            ('{"findings": [{"rule": "W001", "layer": "a", "value": NaN}]}', "not a valid baseline"),
        ):
            (tmp_path / "bad.json").write_text(text, encoding="utf-8")
            done = run("check", cases / "patient.case", "--baseline", "bad.json")
            assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr

    def test_prune_adds_nothing(self, run: Check, cases: Path, tmp_path: Path) -> None:
        run("check", cases / "healthy.case", "--write-baseline", "known.json")
        before = (tmp_path / "known.json").read_bytes()
        done = run("check", cases / "patient.case", "--prune-baseline", "--baseline", "known.json")
        assert done.returncode == 0 and (tmp_path / "known.json").read_bytes() == before


#: Arguments that do not fit, and what the error names.
UNFIT = {
    "a b c": "one case",
    "CASE --static": "--static",
    "CASE -v x.npz": "--validation",
    "CASE --format json --format sarif": "--output",
    "CASE --format html": "--output",
    "CASE --today tomorrow": "2026-11-30",
    "CASE --resume": "--output",
    "FLOAT QUANT": "no data",
    "FLOAT QUANT --static -v x.npz": "--validation",
    "CASE --config none.toml": "none.toml",
}


def test_what_does_not_fit_is_refused(run: Check, cases: Path) -> None:
    (float_model, quantized), _ = patient()
    names = {"CASE": cases / "patient.case", "FLOAT": float_model, "QUANT": quantized}
    for line, word in UNFIT.items():
        done = run("check", *(names.get(word, word) for word in line.split()))
        assert done.returncode == 2, done.stdout + done.stderr
        assert word in done.stderr and "Traceback" not in done.stderr


class TestGitHub:
    def test_annotations_and_summary(self, run: Check, cases: Path, tmp_path: Path) -> None:
        policy(tmp_path, "[check]\n")
        summary = tmp_path / "summary.md"
        summary.write_text("before\n", encoding="utf-8")
        done = run("check", cases / "patient.case", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
        assert done.returncode == 1
        commands = [line for line in done.stdout.splitlines() if line.startswith("::")]
        assert commands and all("file=quantmedic.toml" in line for line in commands)
        assert any("D005" in line and line.startswith("::error") for line in commands)
        text = summary.read_text(encoding="utf-8")
        assert text.startswith("before\n") and "REGRESSION" in text

    def test_a_summary_that_cannot_be_written_costs_no_report(self, run: Check, cases: Path, tmp_path: Path) -> None:
        where = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "none" / "summary.md")}
        done = run("check", cases / "patient.case", "-o", "out", **where)
        assert done.returncode == 2 and "GITHUB_STEP_SUMMARY" in done.stderr
        assert (tmp_path / "out" / "check.sarif").exists()

    def test_elsewhere_there_are_none(self, run: Check, cases: Path) -> None:
        done = run("check", cases / "patient.case")
        assert not [line for line in done.stdout.splitlines() if line.startswith("::")]


def test_the_function_takes_cases_and_files(cases: Path) -> None:
    case = quantmedic.load_case(cases / "patient.case")
    by_path, by_case = quantmedic.check(cases / "patient.case"), quantmedic.check(case)
    assert by_path.check == by_case.check and by_path.gate == "REGRESSION"
    plain = quantmedic.judge(case)
    assert plain.gate is None and plain.check is None, "without a check there is no gate"
