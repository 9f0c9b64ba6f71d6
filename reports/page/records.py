"""Comparisons and searches as pages: each opens from a file, loads nothing and runs nothing."""

from quantmedic.reports.blocks import Document
from quantmedic.reports.charts.frame import INLINE_PALETTE
from quantmedic.reports.templating import html_environment


def document_page(document: Document, version: str = "") -> str:
    """The page of a document.

    Args:
        document: What to show.
        version: Version of quantmedic that measured it, where that is known.
    """
    template = html_environment().get_template("document.html")
    return template.render(record=document, version=version, palette=INLINE_PALETTE, script_hashes=[])
