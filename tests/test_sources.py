"""Every capability of the documents that quantmedic answers has a test that runs it, or is told to be missing.

The rows stand in ``tests/sources/<document>.yaml``; a test shows one with ``@pytest.mark.source("<id>")``.
``python tests/test_sources.py`` writes the page ``manuals/general/sources.md`` again.
"""

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = tuple(sorted((ROOT / "tests" / "sources").glob("*.yaml")))
PAGE = ROOT / "manuals" / "general" / "sources.md"
#: A row's id starts with the name of its document.
ROW_ID = re.compile(r"[a-z]+(?:-[a-z0-9]+)+")
HEAD = """\
# What the documents on accuracy offer, and where it is here

{count} capabilities that toolchains' guides on lost accuracy offer, and where quantmedic offers them: {here} are here.
Paths are the tests that run them, in the repository. What is missing says so, and what to do instead.
"""


def documents() -> dict[str, dict]:
    """Title and rows of each document by its name."""
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in DOCUMENTS}


def rows_shown() -> dict[str, list[str]]:
    """Ids of the tests that show a row, by its id, as their marks say."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.source" not in text:
            continue
        for test, row in _marks(ast.parse(text).body):
            found.setdefault(row, []).append(f"{path.relative_to(ROOT).as_posix()}::{test}")
    return found


def _marks(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each test with the rows that its marks name, one after the other; those of a class with its name before."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _marks(node.body, f"{prefix}{node.name}::")
        if isinstance(node, ast.FunctionDef):
            calls = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
            named = [mark for mark in calls if ast.unparse(mark.func) == "pytest.mark.source"]
            yield from ((prefix + node.name, ast.literal_eval(row)) for mark in named for row in mark.args)


def rendered() -> str:
    """The page of the manual."""
    listed, tests = documents(), rows_shown()
    rows = [row for document in listed.values() for row in document["rows"]]
    lines = [HEAD.format(count=len(rows), here=sum("where" in row for row in rows))]
    for document in listed.values():
        lines += [f"## {document['title']}", ""]
        for row in document["rows"]:
            said = row["where"] if "where" in row else f"**not here**; {row['missing']}"
            lines += _entry(row["title"], said, tests.get(row["id"], []))
        lines.append("")
    lines += ["## References", "", *(f"* {document['reference']}" for document in listed.values())]
    return "\n".join(lines) + "\n"


def _entry(title: str, where: str, tests: list[str]) -> list[str]:
    said = textwrap.wrap(f"{title}: {where}.", 118, break_long_words=False, break_on_hyphens=False)
    return [f"* {said[0]}", *(f"  {line}" for line in said[1:]), *(f"  `{test}`" for test in tests)]


@pytest.mark.thorough
def test_the_page_lists_what_rows_and_marks_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == rendered(), "write it again: python tests/test_sources.py"


def test_rows_are_named_once_and_say_where_they_are() -> None:
    rows = [(name, row) for name, document in documents().items() for row in document["rows"]]
    assert all(set(row) in ({"id", "title", "where"}, {"id", "title", "missing"}) for _, row in rows)
    assert all(all(row.values()) for _, row in rows)
    assert all(ROW_ID.fullmatch(row["id"]) and row["id"].startswith(f"{name}-") for name, row in rows)
    assert not [row for row, times in Counter(row["id"] for _, row in rows).items() if times > 1]


@pytest.mark.thorough
def test_every_row_has_a_test_and_every_mark_a_row() -> None:
    rows = {row["id"] for document in documents().values() for row in document["rows"] if "where" in row}
    assert rows == set(rows_shown()), "of rows that are here; what is missing has no test"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
