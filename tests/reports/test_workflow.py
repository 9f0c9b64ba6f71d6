"""The order of the search in the report: which step has which checks, and where the model stands."""

from collections.abc import Mapping

import pytest

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.page.html import render_index
from quantmedic.reports.sections.workflow import STEPS, workflow_steps
from quantmedic.reports.write import render_markdown


def here(diagnosis: Diagnosis) -> str:
    """Title of the step that the search stands at."""
    (step,) = [step for step in workflow_steps(diagnosis) if step.state == "here"]
    return step.title


def with_rule(diagnosis: Diagnosis, code: str) -> Diagnosis:
    """The same with a serious cause of this rule alone."""
    cause = next(cause for cause in diagnosis.causes if cause.is_serious)
    return diagnosis.model_copy(update={"causes": (cause.model_copy(update={"rules": (code,), "absorbs": ()}),)})


@pytest.mark.source("horizon-workflow")
def test_the_search_stands_where_a_cause_was_found(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for code, title in [
        ("S020", "Pipeline"),
        ("D005", "Data and configuration"),
        ("A004", "Calibration"),
        ("W001", "Single operators"),
        ("M012", "Single operators"),
    ]:
        with subtests.test(code=code, title=title):
            found = with_rule(diagnosis, code)
            assert here(found) == title
            steps = {step.title: step for step in workflow_steps(found)}
            assert steps[title].found == (code,)
            order = [step.state for step in workflow_steps(found)]
            place = order.index("here")
            assert order == ["passed"] * place + ["here"] + ["later"] * (len(STEPS) - place - 1)


@pytest.mark.source("horizon-qat", "horizon-debug-tool")
def test_without_a_cause_the_size_of_the_loss_says_where(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for size, title in [
        ("large", "Data and configuration"),
        ("moderate", "Calibration"),
        ("small", "Single operators"),
        (None, "Training with quantizers"),
    ]:
        with subtests.test(size=size, title=title):
            assert here(diagnosis.model_copy(update={"causes": (), "drop_class": size})) == title


def test_a_loss_larger_than_the_step_costs_is_explained(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    """The ladder says that losses of this size are searched for further above."""
    for proven in [True, False]:
        with subtests.test(proven=proven):
            found = with_rule(diagnosis, "W001").model_copy(update={"drop_class": "large"})
            cause = found.causes[0].model_copy(update={"proven": proven})
            found = found.model_copy(update={"causes": (cause,)})
            notes = {step.title: step.note for step in workflow_steps(found)}
            assert ("was measured" in notes.pop("Single operators")) == proven
            assert set(notes.values()) == {""}
            assert "larger than such a step costs" in render_markdown(build_context(found, {}))
            small = found.model_copy(update={"drop_class": "small"})
            assert {step.note for step in workflow_steps(small)} == {""}
            data = with_rule(diagnosis, "D005").model_copy(update={"drop_class": "large"})
            assert {step.note for step in workflow_steps(data)} == {""}


def test_page_and_markdown_show_it(diagnosis: Diagnosis, healthy: Diagnosis, manuals: Mapping[str, str]) -> None:
    found = with_rule(diagnosis, "D005")
    context = build_context(found, manuals)
    page, text = render_index(context, found), render_markdown(context)
    assert page.count('aria-current="step"') == 1 and "What was checked and what comes next" in page
    assert "2. **Data and configuration** (you are here)" in text and "found D005" in text
    assert "Training with quantizers" in page and "Training with quantizers" in text
    sound = build_context(healthy, manuals)
    assert "What was checked and what comes next" not in render_index(sound, healthy)


def test_hostile_codes_stay_text(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    found = with_rule(diagnosis, "D<script>")
    page = render_index(build_context(found, manuals), found)
    assert "D&lt;script&gt;" in page.split('id="workflow"')[1].split("</section>")[0]
