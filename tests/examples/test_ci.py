"""The examples for CI systems: valid for each system's own schema, and run on a project such as they speak of."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.commands import run_quantmedic

from quantmedic.engine.gate.policy import Policy

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((CI / "gitlab-ci.yml").read_text(encoding="utf-8"))["quantized-model"]
LANGUAGE = yaml.safe_load((CI / "github-language-model.yml").read_text(encoding="utf-8"))
WORKFLOW = yaml.safe_load((CI / "github-workflow.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "manuals" / "general" / "ci.md").read_text(encoding="utf-8")

needs_bash = pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="needs bash")


def tool(*command: str | Path) -> str:
    """Runs a module of this environment; its output is part of the failure."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- Form ------------------------------------------------------------------------------------------------------------


def test_each_follows_the_schema_of_its_system() -> None:
    gitlab = ("--data-transform", "gitlab-ci")
    workflows = (CI / "github-workflow.yml", CI / "github-language-model.yml")
    tool("check_jsonschema", "--builtin-schema", "vendor.github-actions", ROOT / "action.yml")
    tool("check_jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    tool("check_jsonschema", "--builtin-schema", "vendor.gitlab-ci", *gitlab, CI / "gitlab-ci.yml")


def test_pre_commit_accepts_hooks_and_configuration() -> None:
    tool("pre_commit", "validate-manifest", ROOT / ".pre-commit-hooks.yaml")
    tool("pre_commit", "validate-config", CI / "pre-commit-config.yaml")


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


POLICIES = [(CI / name).read_text(encoding="utf-8") for name in ("quantmedic.toml", "language-model.toml")]


def test_policies_are_valid() -> None:
    for text in (*POLICIES, *fenced(PAGE, "toml")):
        Policy.model_validate(tomllib.loads(text))


def test_example_policy_has_every_key() -> None:
    given = tomllib.loads((CI / "quantmedic.toml").read_text(encoding="utf-8"))
    assert set(given) == set(Policy.model_fields)
    for name, table in given.items():
        kinds: Any = Policy.model_fields[name].annotation
        if hasattr(kinds, "model_fields"):
            assert set(table) == set(kinds.model_fields), name


def steps(node: Any) -> list[Mapping[str, Any]]:
    """All steps that use the action, however deep."""
    if isinstance(node, Mapping):
        own = [node] if "/quantmedic@" in str(node.get("uses")) else []
        return own + [step for value in node.values() for step in steps(value)]
    return [step for value in node for step in steps(value)] if isinstance(node, list) else []


def test_examples_use_inputs_outputs_and_hooks_that_exist() -> None:
    for example in (WORKFLOW, LANGUAGE, *(yaml.safe_load(text) for text in fenced(PAGE, "yaml"))):
        for step in steps(example):
            assert set(step["with"]) <= set(ACTION["inputs"])
            assert {name for name, each in ACTION["inputs"].items() if each.get("required")} <= set(step["with"])
        outputs = set(re.findall(r"steps\.quantmedic\.outputs\.([\w-]+)", str(example)))
        assert outputs <= set(ACTION["outputs"])
        if isinstance(example, dict) and "repos" in example:
            named = {hook["id"] for repo in example["repos"] for hook in repo["hooks"]}
            assert named <= {hook["id"] for hook in HOOKS}


def test_workflow_asks_for_no_more_rights_than_it_uses() -> None:
    assert WORKFLOW["permissions"] == {}
    (job,) = WORKFLOW["jobs"].values()
    writing = {name for name, level in job["permissions"].items() if level == "write"}
    assert writing == {"security-events", "pull-requests"}
    assert "pull_request_target" not in WORKFLOW[True]  # YAML reads the key `on` as true
    assert not [step["run"] for step in job["steps"] if "${{" in step.get("run", "")]


# --- The comment -----------------------------------------------------------------------------------------------------

#: Answers with the last comment, and tells its arguments.
GH = """#!/bin/sh
case "$*" in *--paginate*) echo "$LAST"; echo "$MARK" > "$TOLD.mark";; *) printf '%s\\n' "$@" > "$TOLD";; esac
"""


@needs_bash
@pytest.mark.parametrize("last, expected", [("", ["pr", "comment", "7", "--body-file"]), ("31\n32", ["api"])])
def test_comment_is_written_once_and_kept_up_to_date(tmp_path: Path, last: str, expected: list[str]) -> None:
    (job,) = WORKFLOW["jobs"].values()
    (script,) = (step["run"] for step in job["steps"] if "run" in step)
    (tmp_path / "gh").write_text(GH, encoding="utf-8")
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "check.md").write_text("<!-- quantmedic: $(touch pwned).onnx -->\n## ACCEPT\n", encoding="utf-8")
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "REPORT": str(tmp_path),
        "NUMBER": "7",
        "GH_REPO": "owner/name",
        "LAST": last,
        "TOLD": str(tmp_path / "told"),
    }
    subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], env=environment, check=True)
    told = (tmp_path / "told").read_text(encoding="utf-8").splitlines()
    assert told[: len(expected)] == expected
    assert any(text.endswith(f"{tmp_path}/check.md") for text in told)
    assert not last or "repos/owner/name/issues/comments/32" in told
    assert (tmp_path / "told.mark").read_text(encoding="utf-8") == "<!-- quantmedic: $(touch pwned).onnx -->\n"


# --- The lines that run quantmedic -----------------------------------------------------------------------------------


def run_lines(lines: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    script = "\n".join(lines)
    environment = os.environ | variables
    command = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly
@needs_bash
def test_gitlab_job_runs(project: Callable[..., Path], command: Callable[[Path], None]) -> None:
    folder = project()
    command(folder / ".quantmedic" / "bin")
    variables = {name: str(value) for name, value in GITLAB["variables"].items()}
    done = run_lines(GITLAB["script"], folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / GITLAB["artifacts"]["reports"]["junit"]).is_file()


@pytest.mark.nightly
@needs_bash
def test_jenkins_stage_runs(project: Callable[..., Path], command: Callable[[Path], None]) -> None:
    folder = project(healthy=False)
    command(folder / ".quantmedic" / "bin")
    text = (CI / "Jenkinsfile").read_text(encoding="utf-8")
    (script,) = re.findall(r"returnStatus: true, script: '''(.*?)'''", text, re.S)
    done = run_lines([script], folder)
    assert done.returncode == 1, done.stdout + done.stderr
    for name in re.findall(r"quantmedic-report/[\w.]+", text):
        assert (folder / name).is_file()


@pytest.mark.nightly
@needs_bash
def test_pre_commit_hooks_run(project: Callable[..., Path], command: Callable[[Path], None], tmp_path: Path) -> None:
    """On files that git knows, with the command of this environment in place of an installed one."""
    folder = project(healthy=False)
    command(tmp_path / "bin")
    (example,) = yaml.safe_load((CI / "pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    given = {hook["id"]: hook for hook in example["hooks"]}
    hooks = [
        hook | given[hook["id"]] | {"language": "system", "entry": f"{tmp_path}/bin/{hook['entry']}"} for hook in HOOKS
    ]
    configuration = {"repos": [{"repo": "local", "hooks": hooks}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    home = {"PRE_COMMIT_HOME": str(tmp_path / "home"), "GIT_CONFIG_GLOBAL": os.devnull}
    for stage in ("pre-commit", "pre-push"):
        pre_commit = [sys.executable, "-m", "pre_commit", "run", "--hook-stage", stage, "--all-files", "--verbose"]
        done = subprocess.run(
            pre_commit, cwd=folder, env=os.environ | home, capture_output=True, text=True, check=False
        )
        assert done.returncode == (1 if stage == "pre-push" else 0), done.stdout + done.stderr
        assert "Skipped" not in done.stdout


# --- The manual ------------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"\d+(\.\d+)?")


def quantmedic(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "GITHUB_ACTIONS"}
    return run_quantmedic(*arguments, cwd=folder, env=outside)


@pytest.mark.nightly
def test_manual_shows_what_the_command_prints(project: Callable[..., Path], tmp_path: Path) -> None:
    """Policy, baseline and check as the chapter tells; processors differ in the figures, so these are left out."""
    chapter = PAGE.partition("\n## The first check\n")[2].partition("\n## ")[0]
    (policy,), (sample,) = fenced(chapter, "toml"), fenced(chapter, "console")
    command, _, printed = sample.partition("\n")
    healthy, folder = project(name="healthy", samples=None), project(healthy=False, policy=policy, samples=None)
    for name, source in (("float", "models/float.onnx"), ("int8", "models/int8.onnx")):
        shutil.copy(folder / source, folder / f"{name}.onnx")
    for name, source in (("rep", "data/calibration.npz"), ("val", "data/validation.npz")):
        shutil.copy(folder / source, folder / f"{name}.npz")
    case = str(tmp_path / "healthy.case")
    models = ("models/float.onnx", "models/int8.onnx")
    data = ("-r", "data/calibration.npz", "-v", "data/validation.npz")
    assert quantmedic(healthy, "collect", *models, *data, "-o", case).returncode == 0
    assert quantmedic(folder, "check", case, "--write-baseline", "quantmedic-baseline.json").returncode == 0
    done = quantmedic(folder, *command.removeprefix("$ quantmedic ").split())
    assert done.returncode == 1, done.stderr
    shown, _, wrote = done.stdout.partition("wrote ")
    assert NUMBER.sub("0", shown).split() == NUMBER.sub("0", printed).split()
    assert wrote.startswith("report/index.html") and " check.sarif," in wrote
