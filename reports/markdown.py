"""Markdown for tickets and pull requests: the report of a diagnosis."""

from quantmedic.reports.context import ReportContext
from quantmedic.reports.templating import markdown_environment, template_variables


def render_markdown(context: ReportContext) -> str:
    """``report.md``: links the manual's Markdown pages and shows the graphs beside it."""
    return markdown_environment().get_template("report.md").render(**template_variables(context))
