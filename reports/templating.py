"""The Jinja environment: whatever a template prints is escaped; a misspelt variable is an error."""

import re
from dataclasses import Field, fields
from functools import cache
from typing import ClassVar, Protocol

import jinja2
from markupsafe import Markup, escape

from quantmedic.reports.blocks import EMBEDDED, Cell, Column, Inline, Span, anchor, capitalized, cell_text
from quantmedic.reports.charts.frame import DARK_PALETTE, INLINE_PALETTE, PALETTE, Drawing
from quantmedic.reports.kept import KeptTemplates
from quantmedic.reports.text import NOT_MEASURED, capital, sentence, visible

TEMPLATES = jinja2.PackageLoader("quantmedic.reports", "templates")
#: Elements of the page by the look of a text.
TAGS = {"code": "code", "strong": "strong", "note": "small", "hint": "small"}
NOTHING = Markup(
    '<span class="nm" title="not measured"><span aria-hidden="true">–</span><span class="vh">not measured</span></span>'
)
PATH_PART = re.compile(r"[^/._:]+[/._:]*|[/._:]+")
STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STYLE_BRACES, STYLE_SPACE = re.compile(r"\s*([{};])\s*"), re.compile(r"([:,])\s+")


OTHER_VARIABLES = {
    "loader": "index.html: what decompresses its program and its data",
    "articles": "index.html: embedded manual pages as HTML, by their code",
    "body": "page.html: the page as HTML",
    "chart": "graphs: the geometry to draw",
    "licenses": "index.html: licences of the libraries inside the page",
    "linked": "graphs: drawn for a page that can open layers",
    "pictures": "index.html: a picture of each cause that has one, by its code",
    "palette": "graphs and pages: a colour for paper, ink, muted, grid, series, local and flag",
    "record": "document.html: a Document",
    "program": "index.html: the page's program",
    "report": "page.html: link to the report, empty where there is none",
    "script_hashes": "pages: what the Content Security Policy lets run",
    "sections": "index.html: JSON text by section; empty where the page can only be read",
    "standalone": "graphs: drawn for a file of its own, not for a page",
    "theme": "index.html: the script that sets the theme before the first paint",
    "tool_style": "index.html: styles of the page's tools",
    "version": "document.html: version of quantmedic that measured it; may be empty",
    "worker": "index.html: the program of the graph's worker, compressed",
}


@cache
def html_environment() -> jinja2.Environment:
    """Environment of the HTML pages and the SVG graphs."""
    environment = jinja2.Environment(
        loader=TEMPLATES,
        bytecode_cache=KeptTemplates(),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["NOT_MEASURED"] = NOT_MEASURED
    environment.globals["dark"] = DARK_PALETTE
    environment.filters |= {"capital": capital, "sentence": sentence, "path": breakable_path, "style": compact_style}
    environment.filters |= {"inline": inline_html, "cell": cell_html, "capitalized": capitalized}
    environment.filters["svg"] = lambda chart, linked=False: Markup(svg(chart, standalone=False, linked=linked))
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


def inline_html(text: Inline, linked: bool = False) -> Markup:
    """Text with its marks and links; ``linked``: layers can be opened."""
    if isinstance(text, str):
        return escape(visible(text))
    if not isinstance(text, Span):
        return Markup().join(inline_html(piece, linked) for piece in text)
    if not text.text:
        return Markup()
    shown = breakable_path(visible(text.text)) if text.look == "name" else escape(visible(text.text))
    if text.look == "flag":
        shown = Markup("● ") + shown
    if text.target and (linked or not text.target.startswith("#layer=")):
        target = f"{text.target}.html" if text.target.startswith("manual/") else text.target
        if target.startswith(EMBEDDED):
            target = f"#{anchor(target.removeprefix(EMBEDDED))}"
        mono = Markup(' class="mono"') if text.look == "name" else ""
        return Markup('<a{} href="{}">{}</a>').format(mono, target, shown)
    if text.look in TAGS:
        return Markup("<{0}>{1}</{0}>").format(TAGS[text.look], shown)
    look = "mono" if text.look == "name" else text.look
    return Markup('<span class="{}">{}</span>').format(look, shown) if look else shown


def cell_html(cell: Cell, column: Column, linked: bool = False) -> Markup:
    """What stands in a cell of a table."""
    shown = cell_text(cell, column)
    if shown is None:
        return NOTHING
    is_name = column.look == "name" and isinstance(shown, str)
    return breakable_path(visible(str(shown))) if is_name else inline_html(shown, linked)


def compact_style(text: str) -> Markup:
    """A style sheet without comments and the spaces that only its developers need."""
    without = STYLE_COMMENT.sub("", str(text))
    return Markup(STYLE_SPACE.sub(r"\1", STYLE_BRACES.sub(r"\1", without)).replace(";}", "}"))


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


def template_variables(context: _Dataclass) -> dict[str, object]:
    """The fields of a context by name, not copied."""
    return {f.name: getattr(context, f.name) for f in fields(context)}
