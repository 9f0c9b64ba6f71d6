"""The GitHub action: its steps run as a runner runs them, with every verdict and with hostile inputs."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from quantmedic.demo import language_patient

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
LANGUAGE = yaml.safe_load((ROOT / "examples" / "ci" / "github-language-model.yml").read_text(encoding="utf-8"))
WORKFLOW = yaml.safe_load((ROOT / "examples" / "ci" / "github-workflow.yml").read_text(encoding="utf-8"))
#: What the runner sets for every step.
RUNNER_VARIABLES = ("GITHUB_", "RUNNER_", "INPUT_", "CI")
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="needs bash"),
]


@dataclass
class Runner:
    """As much of GitHub's runner as a composite action sees."""

    temp: Path
    workspace: Path
    action: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, str]) -> "Done":
        given = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()} | dict(inputs)
        context: dict[str, Any] = {f"inputs.{name}": value for name, value in given.items()}
        logs, code, summary = [], 0, ""
        for step in ACTION["runs"]["steps"]:
            done = self._step(step, context)
            logs.append(done.log)
            summary += done.summary
            context |= {f"steps.{step['id']}.outputs.{name}": value for name, value in done.outputs.items()}
            if (code := done.code) != 0:
                break
        outputs = {name: evaluate(each["value"], context) for name, each in ACTION["outputs"].items()}
        return Done(code, outputs, "".join(logs), summary)

    def _step(self, step: Mapping[str, Any], context: Mapping[str, Any]) -> "Done":
        files = {name: self.temp / f"{step['id']}-{name}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("", encoding="utf-8")
        script = self.temp / f"{step['id']}.sh"
        script.write_text(step["run"], encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(RUNNER_VARIABLES)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.workspace / evaluate(step.get("working-directory", ""), context),
            env=inherited
            | {name: str(file) for name, file in files.items()}
            | {"GITHUB_ACTIONS": "true", "CI": "true"}
            | {"GITHUB_WORKSPACE": str(self.workspace), "GITHUB_ACTION_PATH": str(self.action)}
            | {"RUNNER_TEMP": str(self.temp)}
            | self.environment
            | {name: evaluate(value, context) for name, value in step["env"].items()},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        summary = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        outputs = read_outputs(files["GITHUB_OUTPUT"].read_text(encoding="utf-8"))
        return Done(done.returncode, outputs, done.stdout, summary)


@dataclass(frozen=True)
class Done:
    code: int
    outputs: dict[str, str]
    log: str
    summary: str


def evaluate(text: str, context: Mapping[str, Any]) -> str:
    """``name`` and ``name || 'text'``, the two forms of expressions that the action uses."""

    def value(found: re.Match[str]) -> str:
        name, _, default = (part.strip() for part in found[1].partition("||"))
        assert re.fullmatch(r"(inputs\.[\w-]+|steps\.\w+\.outputs\.[\w-]+|github\.sha)", name), name
        return str(context.get(name) or default.strip("'"))

    return EXPRESSION.sub(value, text)


def read_outputs(text: str) -> dict[str, str]:
    """``name=value`` lines, and values between two lines with a delimiter."""
    outputs: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, mark, end = line.partition("<<")
        if mark and "=" not in name:
            outputs[name] = "\n".join(iter(lambda end=end: next(lines), end))
            continue
        name, equals, value = line.partition("=")
        assert equals, f"GitHub refuses the line {line!r}"
        outputs[name] = value
    return outputs


@pytest.fixture
def runner(tmp_path: Path, command: Callable[[Path], None]) -> Callable[[Path], Runner]:
    """A runner on which the action has installed quantmedic before."""

    def make(workspace: Path) -> Runner:
        temp = tmp_path / "runner's temp"
        for venv in (installed(temp), installed(temp, extra="-language")):
            command(venv / "bin")
            (venv / "installed").write_text(f"{venv / 'bin'}\n", encoding="utf-8")
        return Runner(temp, workspace)

    return make


def installed(temp: Path, action: Path = ROOT, extra: str = "") -> Path:
    """The environment of one version of the action, with the packages of an extra."""
    done = subprocess.run(["cksum"], input=str(action).encode(), capture_output=True, check=True)
    return temp / f"quantmedic-{done.stdout.split()[0].decode()}{extra}"


MODELS = {"float": "models/float.onnx", "quantized": "models/int8.onnx"}
DATA = {"representative": "data/calibration.npz", "validation": "data/validation.npz"}


# --- Form ------------------------------------------------------------------------------------------------------------


def test_no_expression_in_scripts() -> None:
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]


def test_every_input_is_used_and_every_output_comes_from_a_step() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert all(f"${{{{ inputs.{name} }}}}" in text for name in ACTION["inputs"])
    assert set(ACTION["outputs"]) == {"verdict", "exit-code", "report", "sarif"}


# --- Installation ----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for pip writes into the folder that it installs."""
    folder = tmp_path_factory.mktemp("actions") / "the owner's quantmedic"
    names = ("*.egg-info", "build", "__pycache__", ".*", "tests", "benchmarks")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*names))
    return folder


@pytest.mark.nightly
def test_installs_once_into_an_environment_of_its_own(tmp_path: Path, checkout: Path) -> None:
    temp, workspace = tmp_path / "runner's temp", tmp_path / "work"
    temp.mkdir()
    workspace.mkdir()
    # A folder of the workspace must not be imported in place of the standard library.
    (workspace / "venv.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    runner = Runner(temp, workspace, checkout, {"PIP_NO_DEPS": "1"})
    runner.run(MODELS)  # without dependencies the check itself cannot run
    venv = installed(temp, checkout)
    script = "import quantmedic; print(quantmedic.__file__)"
    done = subprocess.run([venv / "bin" / "python", "-I", "-c", script], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(venv)
    assert (venv / "bin" / "quantmedic").is_file()

    marker = venv / "bin" / "python"
    before = marker.lstat().st_mtime_ns
    runner.run(MODELS)
    assert marker.lstat().st_mtime_ns == before


def test_empty_model_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    for name in ("float", "quantized"):
        done = Runner(tmp_path, tmp_path).run(MODELS | {name: ""})
        assert done.code == 2
        assert done.outputs == {"verdict": "", "exit-code": "2", "report": "", "sarif": ""}
        assert f"::error title=quantmedic::the input '{name}' is empty" in done.log
        assert not list(tmp_path.glob("quantmedic-*"))


def test_old_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "python"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    path = {"PATH": f"{old.parent}{os.pathsep}{os.environ['PATH']}"}
    done = Runner(tmp_path, tmp_path, environment=path).run(MODELS)
    assert done.code == 2
    assert "::error title=quantmedic::Python 3.11 or newer is needed" in done.log


# --- Inputs ----------------------------------------------------------------------------------------------------------

HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned #",
    '"; touch pwned; "',
    "'; touch pwned; '",
    "a && touch pwned",
    "a | touch pwned",
    "a\ntouch pwned",
    "a\nverdict=ACCEPT",
    "a\n::error::owned",
    "* ? [a-z] ~ ${HOME} $HOME $0",
    "--help",
    "-",
    " spaces  inside ",
    "層 \u202e",
)
#: Tells its arguments, and ends with the verdict and the code of the file beside it.
RECORDER = """
import json, pathlib, sys
verdict, code = pathlib.Path(__file__).with_name("verdict").read_text().split()
folder = next(a.partition("=")[2] for a in sys.argv if a.startswith("--output="))
pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
pathlib.Path(folder, "report.json").write_text(json.dumps({"gate": verdict, "arguments": sys.argv[1:]}))
pathlib.Path(folder, "check.sarif").write_text("{}")
sys.exit(int(code))
"""


@pytest.fixture
def recorder(runner: Callable[[Path], Runner], tmp_path: Path) -> Runner:
    workspace = tmp_path / "work"
    workspace.mkdir()
    made = runner(workspace)
    (tmp_path / "recorder.py").write_text(RECORDER, encoding="utf-8")
    (tmp_path / "verdict").write_text("REGRESSION 1", encoding="utf-8")
    script = f'#!/bin/sh\nexec "{sys.executable}" -I "{tmp_path / "recorder.py"}" "$@"\n'
    for extra in ("", "-language"):
        (installed(made.temp, extra=extra) / "bin" / "quantmedic").write_text(script, encoding="utf-8")
    return made


@pytest.mark.nightly
def test_hostile_inputs_arrive_as_they_are_and_do_nothing(recorder: Runner, tmp_path: Path) -> None:
    names = ("float", "quantized", "representative", "validation", "tokens", "config", "baseline")
    for text in HOSTILE:
        folder = f"out {text}"
        done = recorder.run({**dict.fromkeys(names, text), "output": folder, "args": text})
        report = recorder.workspace / folder
        assert json.loads((report / "report.json").read_text())["arguments"] == [
            "check",
            f"--output={folder}",
            *(f"--{name}={text}" for name in names[2:]),
            *text.split("\n"),
            "--",
            text,
            text,
        ]
        assert done.code == 1
        assert done.outputs == {
            "verdict": "REGRESSION",
            "exit-code": "1",
            "report": str(report),
            "sarif": str(report / "check.sarif"),
        }
        assert not [path for path in tmp_path.rglob("pwned*") if path.name == "pwned"]
        assert "owned" not in done.log


def test_only_given_inputs_become_options(recorder: Runner) -> None:
    recorder.run(MODELS | {"args": "--strict\r\n\n--preprocess=validation.mean=0.286\n"})
    report = recorder.workspace / "quantmedic-report" / "report.json"
    expected = [
        "check",
        "--output=quantmedic-report",
        "--strict",
        "--preprocess=validation.mean=0.286",
        "--",
        *MODELS.values(),
    ]
    assert json.loads(report.read_text())["arguments"] == expected


def test_paths_start_from_the_working_directory(recorder: Runner) -> None:
    (recorder.workspace / "in here").mkdir()
    done = recorder.run(MODELS | {"working-directory": "in here"})
    assert done.outputs["report"] == str(recorder.workspace / "in here" / "quantmedic-report")


# --- Verdicts --------------------------------------------------------------------------------------------------------

#: Judges the task metric alone.
BUDGET = """
[check]
fail_on = {{severity = "never"}}
[[check.budget]]
metric = "top1"
max_drop = {points}
"""


def test_every_verdict_is_told_by_outputs_and_exit_code(recorder: Runner, tmp_path: Path) -> None:
    """A regression ends with 0 where the check only warns."""
    told = {}
    ends = ("ACCEPT 0", "REGRESSION 1", "REGRESSION 0", "INSUFFICIENT_DATA 3", "ANOMALOUS 4")
    for end in ends:
        (tmp_path / "verdict").write_text(end, encoding="utf-8")
        done = recorder.run(MODELS | DATA)
        told[end] = f"{done.outputs['verdict']} {done.code}"
        assert done.outputs["exit-code"] == str(done.code)
    assert told == {end: end for end in ends}


@pytest.mark.nightly
def test_a_regression_has_all_reports_and_annotates_its_policy(
    project: Callable[..., Path], runner: Callable[[Path], Runner]
) -> None:
    folder = project(healthy=False, policy=BUDGET.format(points=5.0))
    done = runner(folder).run(MODELS | DATA | {"args": "--verbose"})
    assert done.code == 1, done.log
    report = folder / "quantmedic-report"
    assert done.outputs == {
        "verdict": "REGRESSION",
        "exit-code": "1",
        "report": str(report),
        "sarif": str(report / "check.sarif"),
    }
    names = {"index.html", "report.md", "report.json", "check.md", "check.sarif", "check.xml", "quantmedic.case"}
    assert names <= {path.name for path in report.iterdir()}
    assert "REGRESSION" in done.log and "REGRESSION" in done.summary
    assert re.search(r"^::(error|warning) file=quantmedic\.toml,line=\d+", done.log, re.M)


@pytest.mark.nightly
def test_what_could_not_run_leaves_no_verdict_of_an_earlier_run(
    project: Callable[..., Path], runner: Callable[[Path], Runner]
) -> None:
    folder = project()
    report = folder / "quantmedic-report"
    report.mkdir()
    (report / "report.json").write_text('{"gate": "ACCEPT"}', encoding="utf-8")
    done = runner(folder).run({"float": "missing.onnx", "quantized": "models/int8.onnx"} | DATA)
    assert done.code == 2
    assert done.outputs == {"verdict": "", "exit-code": "2", "report": "", "sarif": ""}
    assert "missing.onnx" in done.log
    assert "\n::error title=quantmedic::the check could not run" in done.log


@pytest.mark.nightly
def test_hostile_paths_could_not_run(runner: Callable[[Path], Runner], tmp_path: Path) -> None:
    """The real command, too, takes them for names of files that are not there."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    for first in range(0, len(HOSTILE), 4):
        texts = [HOSTILE[(first + place) % len(HOSTILE)] for place in range(4)]
        given = dict(zip(("float", "quantized", "validation", "config"), texts, strict=True))
        done = runner(workspace).run(given)
        assert (done.code, done.outputs["verdict"]) == (2, ""), texts
        assert not [path for path in tmp_path.rglob("pwned*") if path.name == "pwned"], texts
        assert "\n::error::owned" not in done.log
        shutil.rmtree(tmp_path / "runner's temp")


@pytest.mark.nightly
def test_workflow_example_runs(project: Callable[..., Path], runner: Callable[[Path], Runner]) -> None:
    folder = project(policy=BUDGET.format(points=20.0))
    (job,) = WORKFLOW["jobs"].values()
    (step,) = (each for each in job["steps"] if each.get("id") == "quantmedic")
    done = runner(folder).run(step["with"])
    assert (done.code, done.outputs["verdict"]) == (0, "ACCEPT"), done.log


@pytest.mark.nightly
def test_language_model_example_runs(runner: Callable[[Path], Runner], tmp_path: Path) -> None:
    """The patient of the demo, under the names of the example: a block of 2 bits is beyond its limits."""
    pytest.importorskip("transformers")
    floats, quantized, texts = language_patient()
    folder = tmp_path / "a project's folder"
    shutil.copytree(floats, folder / "models" / "float")
    shutil.copytree(quantized, folder / "models" / "quantized")
    (folder / "data").mkdir()
    shutil.copy(texts, folder / "data" / "texts.jsonl")
    shutil.copy(ROOT / "examples" / "ci" / "language-model.toml", folder)
    (job,) = LANGUAGE["jobs"].values()
    (step,) = (each for each in job["steps"] if each.get("id") == "quantmedic")
    done = runner(folder).run(step["with"])
    assert (done.code, done.outputs["verdict"]) == (1, "REGRESSION"), done.log
    for metric in ("perplexity", "kl", "same_top"):
        assert re.search(rf"fail +accuracy {metric} ", done.log), done.log
    assert "small-llama (quantized)" in done.summary


def test_language_models_are_installed_for_where_texts_are_given(tmp_path: Path) -> None:
    """With a Python that tells what it is asked to install."""
    for tokens, extra, asked in (("", "", ""), ("texts.jsonl", "-language", "[language]")):
        temp = tmp_path / f"temp{extra}"
        (temp / "bin").mkdir(parents=True)
        told, venv = temp / "told", installed(temp, extra=extra)
        fake = f"""#!/bin/sh
case "$*" in
  *"-m venv"*) mkdir -p "{venv}/bin"; cp "$0" "{venv}/bin/python";;
  *"-m pip"*) printf '%s\\n' "$@" >> "{told}";;
esac
"""
        (temp / "bin" / "python").write_text(fake, encoding="utf-8")
        (temp / "bin" / "python").chmod(0o755)
        path = {"PATH": f"{temp / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        Runner(temp, temp, environment=path).run(MODELS | {"tokens": tokens})
        assert told.read_text(encoding="utf-8").splitlines()[-1] == f"{ROOT}{asked}"
        assert (venv / "installed").is_file()
