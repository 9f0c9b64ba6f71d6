"""The page of a comparison: it opens from a file, loads nothing and runs nothing."""

from markupsafe import Markup

from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.charts.comparison import compare_chart
from quantmedic.reports.charts.frame import INLINE_PALETTE
from quantmedic.reports.sections.comparison import document_context
from quantmedic.reports.templating import html_environment, svg


def comparison_page(record: ComparisonReport) -> str:
    """``compare.html``."""
    template = html_environment().get_template("compare.html")
    drawing = Markup(svg(compare_chart(record), standalone=False))
    return template.render(record=document_context(record), drawing=drawing, palette=INLINE_PALETTE, script_hashes=[])
