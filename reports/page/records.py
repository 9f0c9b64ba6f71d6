"""Pages of a comparison and of a trend: each opens from a file, loads nothing and runs nothing."""

from markupsafe import Markup

from quantmedic.engine.contract.check import Trend
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.charts.comparison import compare_chart
from quantmedic.reports.charts.frame import INLINE_PALETTE
from quantmedic.reports.sections.comparison import document_context
from quantmedic.reports.sections.history import trend_box
from quantmedic.reports.templating import html_environment, svg


def comparison_page(record: ComparisonReport) -> str:
    """``compare.html``."""
    template = html_environment().get_template("compare.html")
    drawing = Markup(svg(compare_chart(record), standalone=False))
    return template.render(record=document_context(record), drawing=drawing, palette=INLINE_PALETTE, script_hashes=[])


def trend_page(trend: Trend) -> str:
    """``trend.html``."""
    template = html_environment().get_template("trend.html")
    return template.render(record=trend_box(trend), palette=INLINE_PALETTE, script_hashes=[])
