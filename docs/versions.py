"""Versions beside each other: a folder for each, a list that all pages read, and addresses that lead to the newest.

``latest/rules/W001/`` leads to that page of the newest version, ``0.1/rules/W001/`` stays what it was. A server only
has to give out files.
"""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

#: The folder whose pages lead to those of the newest version.
LATEST = "latest"
#: Read by the theme on every page, of every version: older pages list newer versions, too.
VERSION_LIST = "versions.json"
_VERSION = re.compile(r"\d+(\.\d+)+")
#: Without script the part of the address behind # is lost.
_LEADING_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="canonical" href="{target}">
<script>location.replace({quoted} + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={target}"></noscript></head>
<body><p><a href="{target}">{title}</a></p></body></html>
"""


def versions_in(output: Path) -> list[str]:
    """The versions that were built below a folder, the newest first."""
    names = [folder.name for folder in output.iterdir() if (folder / "index.html").is_file()]
    return sorted(filter(_VERSION.fullmatch, names), key=_by_number, reverse=True)


def write_versions(output: Path, version: str, pages: Iterable[str]) -> None:
    """List all versions; where ``version`` is the newest, the root and ``latest`` lead to it.

    Args:
        output: Folder of all versions.
        version: The one that was just built.
        pages: Addresses of its pages below its folder, such as ``rules/W001/``.
    """
    versions = versions_in(output)
    entries = [{"version": name, "title": name, "aliases": []} for name in versions]
    entries[0]["aliases"] = [LATEST]
    (output / VERSION_LIST).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    if version != versions[0]:
        return
    shutil.rmtree(output / LATEST, ignore_errors=True)
    for page in pages:
        _lead(output, f"{LATEST}/{page}", version, page)
    _lead(output, "", version, "")
    shutil.copy(output / version / "llms.txt", output / LATEST / "llms.txt")


def _lead(output: Path, address: str, version: str, page: str) -> None:
    """A page that leads to that of a version."""
    folder = output / address
    folder.mkdir(parents=True, exist_ok=True)
    up = "../" * len(PurePosixPath(address).parts)
    target = f"{up}{version}/{page}"
    text = _LEADING_PAGE.format(title=f"quantmedic {version}", target=target, quoted=json.dumps(target))
    (folder / "index.html").write_text(text, encoding="utf-8")


def _by_number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
