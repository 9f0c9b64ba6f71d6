"""The HTML report: one self-contained page, and the pages of the manual beside it."""

import posixpath
from collections.abc import Mapping

from markupsafe import Markup

from quantmedic.reports.charts import PALETTE
from quantmedic.reports.context import Page, ReportContext, page_title
from quantmedic.reports.manual import sibling, to_html
from quantmedic.reports.templating import html_environment, template_variables

INLINE_PALETTE = {key: f"var(--chart-{key})" for key in PALETTE}


def render_index(context: ReportContext) -> str:
    """``index.html``: opens from a file, loads nothing, runs nothing."""
    embedded = {page.code: page.anchor for page in context.pages}
    articles = {page.code: Markup(_embed(page, embedded)) for page in context.pages}
    template = html_environment().get_template("report.html")
    return template.render(**template_variables(context), articles=articles, palette=INLINE_PALETTE)


def render_manual_page(code: str, text: str, report: str | None) -> str:
    """One page of the manual as a document of its own.

    Args:
        code: Path inside the manual folder without suffix.
        text: The page in Markdown.
        report: File name of the report that the page belongs to, None where there is none.
    """
    root = "../" * (code.count("/") + 1)
    template = html_environment().get_template("page.html")
    return template.render(
        title=page_title(code, text),
        body=Markup(to_html(text, link=sibling)),
        report=f"{root}{report}" if report else "",
        palette=INLINE_PALETTE,
    )


def _embed(page: Page, embedded: Mapping[str, str]) -> str:
    def link(target: str) -> str:
        path, _, fragment = target.partition("#")
        code = posixpath.normpath(posixpath.join(posixpath.dirname(page.code), path.removesuffix(".md")))
        if path.endswith(".md") and code in embedded:
            return f"#{embedded[code]}-{fragment}" if fragment else f"#{embedded[code]}"
        return f"manual/{sibling(posixpath.normpath(posixpath.join(posixpath.dirname(page.code), target)))}"

    return to_html(page.text, anchor=page.anchor, demote=2, link=link)
