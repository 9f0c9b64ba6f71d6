"""HTML: the report as one self-contained page, the pages of the manual beside it, comparisons and searches."""

import base64
import gzip
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.resources import files

from markupsafe import Markup

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.reports.blocks import Document
from quantmedic.reports.charts.cause import cause_pictures
from quantmedic.reports.charts.frame import INLINE_PALETTE
from quantmedic.reports.context import Page, ReportContext, page_title
from quantmedic.reports.manual import sibling, to_html
from quantmedic.reports.page.data import page_sections
from quantmedic.reports.templating import html_environment, template_variables

#: File name of the page, to which those of the manual lead back.
INDEX = "index.html"
#: Scripts of the page in the order in which they run, as one program with one scope.
SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "dom.js",
    "format.js",
    "data.js",
    "state.js",
    "charts.js",
    "table.js",
    "drawer.js",
    "sides.js",
    "tree.js",
    "graph.js",
    "keys.js",
    "main.js",
)
THEME = ("theme.js",)
#: Decompresses the program and the data.
LOADER = ("load.js",)
#: What the graph's worker runs.
WORKER = ("vendor/dagre.min.js", "layout.js")
STYLES = ("vendor/uPlot.min.css", "page.css", "charts.css", "table.css", "drawer.css", "graph.css")
LICENSES = ("vendor/LICENSES.txt",)
#: A comment that has lines of its own.
COMMENT_BLOCK = re.compile(r"^[ \t]*/\*\*.*?\*/$", re.MULTILINE | re.DOTALL)


def render_index(context: ReportContext, diagnosis: Diagnosis, inspection: Inspection | None = None) -> str:
    """``index.html``: opens from a file and loads nothing. Without its case it is a page to read, without tools.

    Args:
        context: What templates show.
        diagnosis: The diagnosis behind it.
        inspection: The case behind the diagnosis.
    """
    embedded = {page.code: page.anchor for page in context.pages}
    articles = {page.code: Markup(_article_of(page, embedded)) for page in context.pages}
    template = html_environment().get_template("report.html")
    theme, loader, program = program_of(THEME), program_of(LOADER), program_of(SCRIPTS)
    return template.render(
        **template_variables(context),
        articles=articles,
        pictures=cause_pictures(diagnosis, inspection) if inspection is not None else {},
        palette=INLINE_PALETTE,
        sections=_carried_sections(diagnosis, inspection) if inspection is not None and diagnosis.layers else {},
        theme=Markup(theme),
        loader=Markup(loader),
        program=compress(program),
        worker=compress(program_of(WORKER)),
        licenses=program_of(LICENSES),
        tool_style=Markup(program_of(STYLES)),
        script_hashes=[script_hash(theme), script_hash(loader), script_hash(program)],
    )


def _carried_sections(diagnosis: Diagnosis, inspection: Inspection) -> dict[str, Markup]:
    """The data by section."""
    texts = page_sections(diagnosis, inspection)
    return {name: Markup(compress(text)) for name, text in texts.items()}


@cache
def program_of(names: Iterable[str]) -> str:
    """Files of the page's program as one text."""
    folder = files("quantmedic.reports") / "browser"
    return "\n".join(_compact(folder.joinpath(name).read_text(encoding="utf-8")) for name in names) + "\n"


@lru_cache(maxsize=4)  # the program is the same in every report of a process
def compress(text: str) -> str:
    """Text as ``browser/load.js`` reads it: compressed by gzip, in base64."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _compact(text: str) -> str:
    """A file without the comments and the indentation that only its developers need."""
    lines = (line.strip() for line in COMMENT_BLOCK.sub("", text).splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def script_hash(text: str) -> str:
    """The source expression of a Content Security Policy that lets this script run and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render_manual_page(code: str, text: str) -> str:
    """One page of the manual as a document of its own.

    Args:
        code: Path inside the manual folder without suffix.
        text: The page in Markdown.
    """
    root = "../" * (code.count("/") + 1)
    template = html_environment().get_template("page.html")
    return template.render(
        title=page_title(code, text),
        body=Markup(to_html(text, link=sibling)),
        report=f"{root}{INDEX}",
        palette=INLINE_PALETTE,
        script_hashes=[],
    )


def document_page(document: Document, version: str = "") -> str:
    """A comparison or a search as a page that opens from a file, loads nothing and runs nothing.

    Args:
        document: What to show.
        version: Version of quantmedic that measured it, where that is known.
    """
    template = html_environment().get_template("document.html")
    return template.render(record=document, version=version, palette=INLINE_PALETTE, script_hashes=[])


def _article_of(page: Page, embedded: Mapping[str, str]) -> str:
    def link(target: str) -> str:
        path, _, fragment = target.partition("#")
        code = posixpath.normpath(posixpath.join(posixpath.dirname(page.code), path.removesuffix(".md")))
        if path.endswith(".md") and code in embedded:
            return f"#{embedded[code]}-{fragment}" if fragment else f"#{embedded[code]}"
        return f"manual/{sibling(posixpath.normpath(posixpath.join(posixpath.dirname(page.code), target)))}"

    return to_html(page.text, anchor=page.anchor, demote=2, link=link)
