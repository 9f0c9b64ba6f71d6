"""The graphs of a report: errors along the network, and tensors with outliers."""

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.blocks import Beside, Block, Details, Figure, Paragraph, Section, Tool
from quantmedic.reports.charts.birth import birth_chart
from quantmedic.reports.charts.errors import error_charts
from quantmedic.reports.charts.histogram import HISTOGRAMS_SHOWN, histogram_charts
from quantmedic.reports.sections.run_kind import judged_role, weights_only, without_data

#: Graphs of tensors that are not folded.
HISTOGRAMS_OPEN = 4


def errors_section(diagnosis: Diagnosis) -> Section | None:
    """Errors of all layers; None where no layers were run."""
    if diagnosis.model.language.texts is not None or without_data(diagnosis) or weights_only(diagnosis):
        return None
    lead = (
        "How far the deployed model departs from the float model at every layer (accumulated), and what rounding that "
        "tensor alone would cost (rounding). Worse is up. Layers over the dashed threshold are circled, their names "
        "are red."
    )
    graphs: list[Block] = [
        Figure(birth_chart(diagnosis, judged_role(diagnosis))),
        Beside([[Figure(chart)] for chart in error_charts(diagnosis)]),
    ]
    instead = "The graphs need JavaScript; the folder graphs beside this page holds them as pictures."
    return Section(
        "errors", "Errors along the network", "Errors", [Paragraph(lead, "lead"), Tool("charts", graphs, instead)]
    )


def outliers_section(diagnosis: Diagnosis) -> Section | None:
    """Values of the flagged tensors; None where there are none."""
    figures = [[Figure(chart)] for chart in histogram_charts(diagnosis.histograms)]
    if not figures:
        return None
    more = len(diagnosis.histograms) - HISTOGRAMS_SHOWN
    lead = (
        "Float values of the flagged tensors. What lies outside the dashed lines is clipped; what lies far from the "
        f"bulk sets the step for all other values.{f' report.json holds {more} more.' if more > 0 else ''}"
    )
    folded = figures[HISTOGRAMS_OPEN:]
    return Section(
        "outliers",
        "Tensors with outliers",
        "Outliers",
        [
            Paragraph(lead, "lead"),
            Beside(figures[:HISTOGRAMS_OPEN]),
            *([Details(f"{len(folded)} more", [Beside(folded)])] if folded else []),
        ],
    )
