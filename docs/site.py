"""The whole site: pages are gathered in a folder, Zensical renders them, reports and lists are put beside them.

Each version has a folder of its own, so that an address such as ``0.1/rules/W001/`` goes on leading to what it led to;
``latest/rules/W001/`` leads to the newest one.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from docs.manual import manual_pages
from docs.markdown import Page
from docs.navigation import navigation_of
from docs.reference import reference_pages
from docs.rule_lists import list_pages
from docs.tutorial import run_tutorial
from docs.versions import versions_in, write_versions
from docs.written import written_pages
from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.version import VERSION

HERE = Path(__file__).parent
SUMMARY = "quantmedic finds out why a quantized network lost accuracy, proves it, and says what to change."


def build_site(output: Path) -> Path:
    """Build the site of this version below ``output``; other versions there stay.

    Returns:
        The folder of this version, such as ``site/0.2``.
    """
    version = re.match(r"\d+\.\d+", VERSION)[0]  # type: ignore[index]
    built = (output / version).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pages = gather_pages(work / "reports")
        _write_sources(pages, work)
        _render(work, built, version)
        shutil.copytree(work / "reports", built / "gallery", dirs_exist_ok=True, ignore=shutil.ignore_patterns("try"))
    (built / "llms.txt").write_text(llms_text(pages), encoding="utf-8")
    write_versions(output, version, [address_of(path).removeprefix("./") for path in pages])
    if version == versions_in(output)[0]:
        (output / "llms.txt").write_text(llms_text(pages, f"{version}/"), encoding="utf-8")
    return built


def gather_pages(reports: Path) -> dict[str, Page]:
    """All pages by path; what the tutorial measures on its way goes to ``reports``."""
    rules = load_rulebase()
    manuals = load_manuals(rules)
    pages = written_pages(HERE / "pages", rules, manuals)
    pages["tutorial.md"] = run_tutorial(pages["tutorial.md"], reports)
    return pages | manual_pages(rules, manuals) | list_pages(rules) | reference_pages()


def llms_text(pages: Mapping[str, Page], prefix: str = "") -> str:
    """The list of all pages for language models, after llmstxt.org."""
    sections: dict[str, list[str]] = {}
    for path, page in pages.items():
        sections.setdefault(page.section, []).append(f"- [{page.title}]({prefix}{address_of(path)}): {page.summary}")
    parts = ["# quantmedic", f"> {SUMMARY}"]
    for section, lines in sections.items():
        parts += [f"## {section}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def address_of(path: str) -> str:
    """Where a page is found below the folder of its version, such as ``rules/W001/``."""
    if path.endswith("index.md"):
        return path.removesuffix("index.md") or "./"
    return path.removesuffix(".md") + "/"


def _write_sources(pages: Mapping[str, Page], work: Path) -> None:
    for path, page in pages.items():
        target = work / "pages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.text, encoding="utf-8")
    for name in ("style.css", "landmarks.js", "search.js", "report.png", "healed.png"):
        shutil.copy(HERE / name, work / "pages" / name)


def _render(work: Path, built: Path, version: str) -> None:
    settings = (HERE / "zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace("@VERSION@", version).replace("@SUMMARY@", SUMMARY)
    pages = [path.relative_to(work / "pages").as_posix() for path in sorted((work / "pages").rglob("*.md"))]
    (work / "zensical.toml").write_text(f"{navigation_of(pages)}\n{settings}", encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: zensical could not build the site\n{done.stdout}{done.stderr}")
    shutil.rmtree(built, ignore_errors=True)
    shutil.copytree(work / "site", built)
    (built / "404.html").unlink()  # its links start at the root of a server
