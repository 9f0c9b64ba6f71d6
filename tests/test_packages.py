"""The files that say which packages are installed agree: pyproject.toml, constraints.txt, and what CI adds to them."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
#: Of users, and of those who change the code.
FOR_USERS = PYPROJECT["project"]["dependencies"] + [line for name in EXTRAS if name != "test" for line in EXTRAS[name]]
FOR_TESTS = [line for line in EXTRAS["test"] if not line.startswith("quantmedic[")]
HASHED = {"tools": ".ci/tools.txt", "audit": ".ci/audit.txt"}


def name_of(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


def pinned(path: str) -> dict[str, str]:
    """Release of each package of a requirements file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return {canonicalize_name(name): release for name, release in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.M)}


def test_a_dependency_states_the_oldest_release_and_no_other_limit() -> None:
    """``.ci/lowest`` installs these releases; what is written otherwise would escape it."""
    assert not [line for line in FOR_USERS if not re.fullmatch(r"[\w-]+>=\d+(\.\d+)*", line)]


def test_constraints_hold_a_release_that_is_allowed() -> None:
    """All but the toolkit of Sony, which the tests' environment leaves out: see tests/mct."""
    held = pinned("constraints.txt")
    lines = [line for line in (*FOR_USERS, *FOR_TESTS) if line not in EXTRAS["mct"] or name_of(line) in held]
    assert not [line for line in lines if not Requirement(line).specifier.contains(held.get(name_of(line), "0"))]


def test_tools_are_held_by_hash() -> None:
    for group, path in HASHED.items():
        entries = re.split(r"^(?=[\w.-]+==)", (ROOT / path).read_text(encoding="utf-8"), flags=re.M)[1:]
        assert entries, path
        assert not [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)]
        assert {name_of(line) for line in PYPROJECT["dependency-groups"][group]} <= set(pinned(path))


def test_tools_are_those_that_the_constraints_give() -> None:
    """Otherwise the README's second command would replace those that were checked."""
    everything = pinned("constraints.txt")
    assert pinned(".ci/tools.txt").items() <= everything.items()
    assert {name_of(line) for line in PYPROJECT["dependency-groups"]["tools"]} <= {name_of(line) for line in FOR_TESTS}


def test_the_toolkit_of_sony_runs_with_the_same_torch() -> None:
    wanted = pinned("tests/mct/requirements.txt")
    assert {name: wanted[name] for name in ("torch", "torchao")}.items() <= pinned("constraints.txt").items()
