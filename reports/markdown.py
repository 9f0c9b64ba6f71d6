"""Markdown for tickets and pull requests: the report, comparisons, searches and sensitivity records."""

from quantmedic.engine.contract.calibrations import CalibrationsRecord
from quantmedic.engine.diagnosis.sensitivity import SensitivityRecord
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.context import ReportContext
from quantmedic.reports.sections.calibrations import calibrations_context
from quantmedic.reports.sections.comparison import document_context
from quantmedic.reports.sections.sensitivity import sensitivity_context
from quantmedic.reports.templating import markdown_environment, template_variables

#: Runs of each mode that the table of a sensitivity record shows; all are in the CSV file.
RUNS_SHOWN = 200


def render_markdown(context: ReportContext) -> str:
    """``report.md``: links the manual's Markdown pages and shows the graphs beside it."""
    return markdown_environment().get_template("report.md").render(**template_variables(context))


def comparison_markdown(record: ComparisonReport, *, picture: bool = False) -> str:
    """``compare.md``; with ``picture`` it shows the graph beside it."""
    template = markdown_environment().get_template("compare.md")
    return template.render(record=document_context(record), picture=picture)


def sensitivity_markdown(record: SensitivityRecord) -> str:
    """``sensitivity.md``: the tables, and the graph beside it."""
    template = markdown_environment().get_template("sensitivity.md")
    return template.render(record=sensitivity_context(record, RUNS_SHOWN))


def calibrations_markdown(record: CalibrationsRecord) -> str:
    """``calibrations.md``: the table of settings, and what to paste."""
    template = markdown_environment().get_template("calibrations.md")
    return template.render(**template_variables(calibrations_context(record)))
