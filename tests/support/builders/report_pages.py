"""Reports for tests in the browser."""

import base64
import gzip
import re
from pathlib import Path
from typing import Any

import pytest

import quantmedic

#: Rules of the guidelines that a report keeps; None stands for all that axe-core runs by itself.
GUIDELINES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


def unpacked(html: str) -> str:
    """A page with its compressed data as text."""

    def text_of(found: re.Match[str]) -> str:
        return f">{gzip.decompress(base64.b64decode(found[1])).decode()}<"

    return re.sub(r">(H4sI[A-Za-z0-9+/]+=*)<", text_of, html)


def write_pages(case: Any, folder: Path) -> Path:
    """The report of a case, in a folder."""
    quantmedic.write_report(quantmedic.judge(case), folder, formats=("html", "json"), case=case)
    return folder


def violations(page: Any, context: str | None = None, tags: tuple[str, ...] | None = None) -> list[str]:
    """Each violation with its first places, in the page or in a part of it.

    Only violations are asked for: to describe every element that passes takes longer than to check it.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if tags is not None:
        options["runOnly"] = {"type": "tag", "values": tags}
    found = axe.Axe().run(page, context=context, options=options).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {[(node['target'], node['html'][:200]) for node in one['nodes'][:3]]}"
        for one in found
    ]
