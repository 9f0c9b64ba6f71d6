"""Markdown for tickets and pull requests: the report, and comparisons."""

from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.context import ReportContext
from quantmedic.reports.sections.comparison import document_context
from quantmedic.reports.templating import markdown_environment, template_variables


def render_markdown(context: ReportContext) -> str:
    """``report.md``: links the manual's Markdown pages and shows the graphs beside it."""
    return markdown_environment().get_template("report.md").render(**template_variables(context))


def comparison_markdown(record: ComparisonReport, *, picture: bool = False) -> str:
    """``compare.md``; with ``picture`` it shows the graph beside it."""
    template = markdown_environment().get_template("compare.md")
    return template.render(record=document_context(record), picture=picture)
