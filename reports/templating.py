"""Jinja environments: whatever a template prints is escaped for its format; a misspelt variable is an error."""

import re
from dataclasses import Field, fields
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, Protocol
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from quantmedic.reports.charts.frame import DARK_PALETTE, INLINE_PALETTE, PALETTE, Drawing
from quantmedic.reports.kept import KeptTemplates
from quantmedic.reports.text import NOT_MEASURED, capital, sentence, visible

TEMPLATES = jinja2.PackageLoader("quantmedic.reports", "templates")
PLAIN_CODE = re.compile(r"[\w./:\[\](){}=+,#%@\- ]+", re.ASCII)
PATH_PART = re.compile(r"[^/._:]+[/._:]*|[/._:]+")
#: What hosts of repositories link by themselves: people, issues and addresses.
REFERENCE = re.compile(r"@(?=\w)|#(?=\d)|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)
STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STYLE_BRACES, STYLE_SPACE = re.compile(r"\s*([{};])\s*"), re.compile(r"([:,])\s+")
MARKUP = re.compile(r"([\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_]))")


OTHER_VARIABLES = {
    "loader": "index.html: what decompresses its program and its data",
    "articles": "index.html: embedded manual pages as HTML, by their code",
    "body": "page.html: the page as HTML",
    "care": "check.md: exemptions that somebody should look at",
    "chart": "graphs: the geometry to draw",
    "drawing": "compare.html: the graph as SVG",
    "found": "check.md: findings to look at",
    "heading": "check.md: what these findings are",
    "licenses": "index.html: licences of the libraries inside the page",
    "linked": "graphs: drawn for a page that can open layers",
    "marker": "check.md: name of the model, as the hidden first line has it",
    "pictures": "index.html: a picture of each cause that has one, by its code",
    "palette": "graphs and pages: a colour for paper, ink, muted, grid, series, local and flag",
    "picture": "compare.md: the graph lies beside it",
    "record": "search.md and search.html: a SearchView; compare.md and compare.html: a CompareContext",
    "program": "index.html: the page's program",
    "report": "page.html: link to the report, empty where there is none",
    "script_hashes": "pages: what the Content Security Policy lets run",
    "sections": "index.html: JSON text by section; empty where the page can only be read",
    "shown": "check.md: rows of each list",
    "snippet": "check.md: what to copy first; empty where there is nothing, or too much of it",
    "standalone": "graphs: drawn for a file of its own, not for a page",
    "theme": "index.html: the script that sets the theme before the first paint",
    "tool_style": "index.html: styles of the page's tools",
    "versions": "check.md: versions and policy that gave these figures",
    "worker": "index.html: the program of the graph's worker, compressed",
}


class Safe(str):
    """Markdown that is written as it is."""


@cache
def html_environment() -> jinja2.Environment:
    """Environment of the HTML pages and the SVG graphs."""
    environment = jinja2.Environment(
        loader=TEMPLATES,
        bytecode_cache=KeptTemplates("html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["NOT_MEASURED"] = NOT_MEASURED
    environment.globals["dark"] = DARK_PALETTE
    environment.filters |= {"capital": capital, "sentence": sentence, "path": breakable_path, "style": compact_style}
    environment.filters["svg"] = lambda chart, linked=False: Markup(svg(chart, standalone=False, linked=linked))
    environment.filters["by_subject"] = lambda lines: [list(rows) for _, rows in groupby(lines, attrgetter("subject"))]
    return environment


def svg(chart: Drawing, *, standalone: bool = True, linked: bool = False) -> str:
    """Draw a chart: with its own colours for a file, or with those of the page that it is part of.

    Args:
        chart: What to draw.
        standalone: For a file.
        linked: For a page that can open layers.
    """
    palette = PALETTE if standalone else INLINE_PALETTE
    template = html_environment().get_template(chart.template)
    return template.render(chart=chart, standalone=standalone, linked=linked, palette=palette)


def breakable_path(name: str) -> Markup:
    """A name that may break after its separators."""
    return Markup("<wbr>").join(PATH_PART.findall(name))


@cache
def markdown_environment() -> jinja2.Environment:
    """Environment of the Markdown report: every value is escaped unless a filter made it safe."""
    environment = jinja2.Environment(
        loader=TEMPLATES,
        bytecode_cache=KeptTemplates("markdown"),
        autoescape=False,
        finalize=escape_markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "code": code_span,
        "fence": code_fence,
        "url": lambda path: Safe(quote(path)),
        "made": Safe,
        "capital": capital,
    }
    return environment


def compact_style(text: str) -> Markup:
    """A style sheet without comments and the spaces that only its developers need."""
    without = STYLE_COMMENT.sub("", str(text))
    return Markup(STYLE_SPACE.sub(r"\1", STYLE_BRACES.sub(r"\1", without)).replace(";}", "}"))


def escape_markdown(value: object) -> object:
    """Text that Markdown shows literally, on one line, also inside a table cell, and that nobody is notified of."""
    if not isinstance(value, str) or isinstance(value, Safe):
        return value
    return _escaped_markdown(value)


def _escaped_markdown(value: str) -> Safe:
    text = visible(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Safe(REFERENCE.sub(r"\g<0>&#8203;", MARKUP.sub(r"\\\1", text)))


def code_span(value: str) -> Safe:
    """A name as code where that needs no escaping, else as escaped text."""
    return Safe(f"`{value}`") if PLAIN_CODE.fullmatch(value) and value.strip() else _escaped_markdown(value)


def code_fence(value: str) -> Safe:
    """Text as a fenced block whose fence does not occur in it."""
    longest = max((len(run) for run in re.findall(r"`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = [fence, *(visible(line) for line in value.splitlines()), fence]
    return Safe("\n".join(lines))


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


def template_variables(context: _Dataclass) -> dict[str, object]:
    """The fields of a context by name, not copied."""
    return {f.name: getattr(context, f.name) for f in fields(context)}
