"""What ARCHITECTURE.md, CONTRIBUTING.md and AGENTS.md list is what the repository holds.

``python tests/test_documents.py`` writes the tables of ARCHITECTURE.md again, and the arguments of ``collect`` for
type checkers, which are made of the options that `quantmedic/api/options.py` declares.
"""

import ast
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantmedic.api.options import TAKEN

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md")
#: What a newcomer reads first fits on two screens; the manual has the rest.
README_LINES = 120
#: Folders that install, from left to right as a run passes through them.
FOLDERS = ("quantmedic", "collectors", "engine", "rules", "manuals", "trials", "reports")
#: Names in code spans that are paths of the repository: they have a folder or a known ending.
PATH = re.compile(r"[\w.*-]+(?:/[\w.*{}-]+)+/?|[\w-]+\.(?:py|md|yaml|toml|txt|json)")
#: Files that a run writes or a reader makes, and patterns in which a reader puts a name.
NOT_OURS = {"report.json", "my_rule.yaml", "0.1/rules/W001", "latest/rules/W001", "versions.json"}


def rooms() -> list[str]:
    """One row of the table per package: its folder, and what its first docstring line says."""
    rows = ["| folder | what it holds |", "|---|---|"]
    for top in FOLDERS:
        for path in sorted((ROOT / top).rglob("__init__.py")):
            folder = path.parent.relative_to(ROOT)
            if any((ROOT / part).is_symlink() for part in [folder, *folder.parents]):
                continue
            said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
            rows.append(f"| `{folder.as_posix()}` | {said[0] if said else ''} |")
    return rows


def directions() -> list[str]:
    """One line per folder and room: the neighbours that it may import, as tests/test_architecture.py checks it."""
    checked = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))
    tables = {"": checked["MAY_IMPORT"], **{f"{folder}/": rooms for folder, rooms in checked["ROOMS"].items()}}
    rows = []
    for folder, table in tables.items():
        for room, allowed in table.items():
            others = ", ".join(f"`{other}`" for other in table if other in allowed and other != room)
            rows.append(f"* `{folder}{room}` imports {others or 'none of the others'}")
    steps = (", ".join(f"`{part}`" for part in step) for step in checked["REPORT_STEPS"])
    return [*rows, f"* In `reports`, each step imports only those before it: {'; '.join(steps)}"]


def with_tables(text: str) -> str:
    """ARCHITECTURE.md with its generated tables as they should be."""
    for mark, rows in {"rooms": rooms(), "directions": directions()}.items():
        start, end = (f"<!-- {words} -->" for words in (f"{mark}: python tests/test_documents.py", f"end of {mark}"))
        assert start in text and end in text, f"the comments around the {mark} are missing"
        before, after = text.partition(start)[0], text.partition(end)[2]
        text = "\n".join([before + start, "", *rows, "", end + after])
    return text


OPTIONS, ARGUMENTS = (ROOT / "quantmedic" / "api" / f"{name}.py" for name in ("options", "arguments"))
HEAD = '''"""The keyword arguments of ``collect``, ``diagnose``, ``fix`` and ``search``, for type checkers.

Written by ``python tests/test_documents.py`` from the options in `quantmedic.api.options`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from quantmedic.api.options import (
    DataSource,
    MeasuringMode,
    MetricSource,
    OutputSource,
    Prove,
    Stages,
    TensorSource,
    TokenSource,
)
from quantmedic.engine.case.facts import Role

if TYPE_CHECKING:
    from quantmedic.collectors.data.preprocessing import Preprocessing


class CollectArguments(TypedDict, total=False):
    """Those that ``collect`` explains one by one."""

'''
MIDDLE = '''

class SearchArguments(TypedDict, total=False):
    """Those that ``search`` explains one by one."""

'''
#: Options that are parameters of their own, or belong to another function, and one that Python takes in two forms.
NOT_ARGUMENTS = {"representative", "validation", "folders", "select", "ignore", "thresholds"}
TWO_FORMS = {"preprocessing": '"Preprocessing | Mapping[Role, Preprocessing] | None"'}


def arguments_module() -> str:
    """The text of quantmedic/api/arguments.py: each declared option with its type."""
    groups = [each for each in ast.parse(OPTIONS.read_text(encoding="utf-8")).body if isinstance(each, ast.ClassDef)]
    kinds = {group.name: dict(kinds_of_options(group)) for group in groups}
    searched = kinds.pop("SearchOptions")
    measured = {name: kind for own in kinds.values() for name, kind in own.items()}
    taken = set().union(*TAKEN.values())
    of_search = measured | {"toolchain": "str | None"} | searched
    return (
        HEAD
        + "".join(f"    {name}: {kind}\n" for name, kind in measured.items() if name not in NOT_ARGUMENTS)
        + MIDDLE
        + "".join(f"    {name}: {kind}\n" for name, kind in of_search.items() if name in taken)
    )


def kinds_of_options(group: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Name and type of each option that a group declares."""
    for each in group.body:
        match each:
            case ast.AnnAssign(ast.Name(name), kind, ast.Call(ast.Attribute(_, "field"))):
                yield name, TWO_FORMS.get(name) or with_none(ast.unparse(kind).replace("'", '"'))


def with_none(kind: str) -> str:
    """None is the default of every argument that may be left out as a mapping."""
    return f"{kind} | None" if kind.startswith("Mapping") and not kind.endswith("None") else kind


def test_the_arguments_are_the_declared_options() -> None:
    text = ARGUMENTS.read_text(encoding="utf-8")
    assert text == arguments_module(), "write them again: python tests/test_documents.py"


def test_architecture_lists_rooms_and_directions() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert text == with_tables(text), "write the tables again: python tests/test_documents.py"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git tells which files belong to the repository")
def test_every_path_that_is_named_exists() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {parent.as_posix() for file in known for parent in Path(file).parents}
    spans = re.findall(r"`([^`\n]+)`", "\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS))
    named = {span.rstrip("/") for span in spans if PATH.fullmatch(span)} - NOT_OURS
    missing = {
        name
        for name in named
        if name not in known and name not in folders and not any(Path(file).match(name) for file in known)
    }
    assert not missing


def test_every_link_leads_to_a_file() -> None:
    for document in ("README.md", *DOCUMENTS):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text(encoding="utf-8"))
        assert links and not [link for link in links if not (ROOT / link).is_file()], document


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES
    assert (ROOT / "docs" / "report.png").stat().st_size <= 70_000


if __name__ == "__main__":
    document = ROOT / "ARCHITECTURE.md"
    document.write_text(with_tables(document.read_text(encoding="utf-8")), encoding="utf-8")
    ARGUMENTS.write_text(arguments_module(), encoding="utf-8")
