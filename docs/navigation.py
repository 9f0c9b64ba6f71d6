"""The navigation: sections with their pages. Pages of single rules and functions are reached through their lists."""

import json
from collections.abc import Iterable

#: Sections in their order, each with what the paths of its pages begin with; one page stands without a section.
SECTIONS = (
    ("Home", ("index.md",)),
    ("Tutorial", ("tutorial.md",)),
    ("Symptoms", ("symptoms.md",)),
    ("Guides", ("guides/",)),
    ("Rules", ("rules/index.md", "causes.md", "remedies.md", "thresholds.md", "glossary.md")),
    ("Manual", ("manual/",)),
    ("Python API", ("api/index.md",)),
    ("About", ("how-it-works.md", "comparison.md", "gallery/index.md")),
)


def navigation_of(pages: Iterable[str]) -> str:
    """The navigation as a line of TOML."""
    known = sorted(pages, key=lambda path: (not path.endswith("index.md"), path))
    lines = []
    for title, starts in SECTIONS:
        members = [path for start in starts for path in known if path == start or _holds(start, path)]
        entry = members[0] if len(members) == 1 else members
        lines.append(f"  {{ {json.dumps(title)} = {json.dumps(entry)} }},")
    return "\n".join(["[project]", "nav = [", *lines, "]"])


def _holds(start: str, path: str) -> bool:
    return start.endswith("/") and path.startswith(start)
