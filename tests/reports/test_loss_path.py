"""The path to the loss: how deep it goes, what heals it, and that it is said whatever rules have a name for."""

import json
import re
from pathlib import Path

import pytest
from builders.budgets import line, with_budget

import quantmedic
from quantmedic.engine.contract.budget_report import BudgetFamily, BudgetLine, LossPath
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.page.html import render_index
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.write import render_markdown

#: Where the demo loses, as every report says it.
DEMO = re.compile(
    r"activations \d+ % → quantizing the input image 9\d % "
    r"\(9\d % of the loss of top-1; values below its range are cut off\) → new ranges from the judged data 9\d %. "
    r"Made anew on the judged data with these settings, (9\d|100) % of the noise goes.*"
)


def place_of(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    assert found is not None
    return found.start()


def path_of(diagnosis: Diagnosis, *lines: BudgetLine, **fields: object) -> LossPath:
    """The path to a loss of these lines."""
    path = with_budget(diagnosis, lines, **fields).loss_path
    assert path is not None
    return path


def levels(path: LossPath) -> list[tuple[str, float]]:
    return [(step.level, pytest.approx(step.share)) for step in path.steps]


def all_weights(**fields: object) -> BudgetFamily:
    return BudgetFamily.model_validate({"source": "weight", "places": 9, "share": 1.0, "last": 0.9, **fields})


CHANGED = {"healed_by": "per-channel-weights", "healed": 0.55}


def test_it_ends_where_no_part_makes_most(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    """More than half is ``dominant_share``: of parts that add up only one can have it."""
    healed, plain = line("a", 0.6, **CHANGED), line("a", 0.6, healed_by="per-channel-weights", healed=0.5)
    quiet, kernel = line("b", 0.3), line("c", 0.6, source="kernel", last=None)
    everywhere = {"families": (all_weights(**CHANGED),)}
    cases = {
        "a change of the place": ((healed, quiet), {}, [("kind", 1.0), ("place", 0.6), ("change", 0.55)]),
        "a place that others make up for": ((line("a", 1.0, last=1.01),), {}, [("kind", 1.0), ("place", 1.0)]),
        "the place, which no change heals": ((plain, quiet), {}, [("kind", 1.0), ("place", 0.6)]),
        "a change everywhere": ((quiet,), everywhere, [("kind", 0.9), ("change", 0.55)]),
        "an operator without a quantizer": ((quiet, kernel), {"unsimulated": 0.7}, [("kind", 0.7), ("place", 0.6)]),
        "all quantizers": ((quiet,), {"by_source": {"weight": 0.5, "activation": 0.5}}, [("all", 1.0)]),
    }  # fmt: skip
    for what, (lines, fields, expected) in cases.items():
        with subtests.test(what):
            assert [(level, pytest.approx(share)) for level, share in expected] == levels(
                path_of(diagnosis, *lines, **fields)
            )


def test_sources_that_hide_each_other_are_no_place(diagnosis: Diagnosis) -> None:
    """Each makes half, and none takes anything away by itself."""
    hidden = [line(place, 0.5, alone=1.0, last=0.02) for place in "ab"]
    path = path_of(diagnosis, *hidden, families=(all_weights(last=1.0, healed_by="eight-bit-weights", healed=0.99),))
    assert [step.words for step in path.steps][-1].endswith("everywhere")
    assert path.largest is not None and path.largest.share == pytest.approx(0.02)


@pytest.mark.thorough
def test_a_named_cause_stands_beside_the_path(patient_case: Path) -> None:
    found = quantmedic.judge(quantmedic.load_case(patient_case))
    context = build_context(found, {})
    assert found.causes[0].is_serious and DEMO.fullmatch(context.path)
    assert json.loads(render_json(found))["loss_path"]["steps"][1]["places"] == ["image"]
    for text in (render_index(context, found), render_markdown(context), " ".join(render_console(found).split())):
        assert context.path in text


@pytest.mark.thorough
def test_where_no_rule_fires_the_path_is_the_answer(patient_case: Path) -> None:
    base = quantmedic.load_rulebase()
    found = quantmedic.judge(quantmedic.load_case(patient_case), base.choose(ignore=[rule.id for rule in base.rules]))
    console = " ".join(render_console(found).split())
    assert not found.causes and found.verdict == "degraded"
    assert place_of(DEMO, console) < console.index("do this first: New ranges from the judged data: image")
    assert "of the noise, not tried on the model" in console and "quantmedic explain preprocessing" in console
    context = build_context(found, {})
    for text in (render_index(context, found), render_markdown(context)):
        assert place_of(DEMO, text) < text.index("New ranges from the judged data: image")


@pytest.mark.thorough
def test_of_a_healthy_model_only_the_section_says_it(healthy_case: Path) -> None:
    found = quantmedic.judge(quantmedic.load_case(healthy_case))
    context = build_context(found, {})
    assert found.loss_path is not None and not context.path
    assert found.loss_path.steps[0].words in render_markdown(context).partition("## Where the noise comes from")[2]
    assert "where the noise comes from" not in render_console(found)
