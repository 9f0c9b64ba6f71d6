"""A diagnosis as a card for notebooks: a piece of HTML that brings its own style, runs nothing and loads nothing."""

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.templating import html_environment, template_variables


def render_card(diagnosis: Diagnosis) -> str:
    """Verdict, drop, what to do first, and the causes."""
    context = build_context(diagnosis, {})
    return html_environment().get_template("card.html").render(**template_variables(context))
