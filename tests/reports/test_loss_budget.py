"""The loss budget in every format: the same shares, what no rule names, what limits it, and names that attack."""

import json

import pytest
from builders.budgets import line, loss, task_loss, with_budget
from builders.hostile import HOSTILE_NAMES

from quantmedic.engine.contract.budget_report import LossPart, TaskShare
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.reports.block_markdown import blocks_markdown
from quantmedic.reports.blocks import Figure
from quantmedic.reports.context import build_context
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.page.html import render_index
from quantmedic.reports.sections.budget_box import NO_NAME, BudgetBox, budget_box, budget_rows
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.terminal.summary import TITLE
from quantmedic.reports.write import render_markdown
from quantmedic.trials.measure_budget import HEALING


def box_of(diagnosis: Diagnosis) -> BudgetBox:
    box = budget_box(diagnosis, ())
    assert box is not None
    return box


def said_of(diagnosis: Diagnosis) -> str:
    """The section as Markdown."""
    return blocks_markdown(box_of(diagnosis).section.blocks)


def short_budget(diagnosis: Diagnosis) -> list[str]:
    """What the console prints of it when nothing more is asked for."""
    lines = render_console(diagnosis).splitlines()
    first = next(place for place, text in enumerate(lines) if text.startswith(TITLE))
    rest = lines[first + 1 : first + 6]
    end = next(place for place, text in enumerate(rest) if not text.startswith("  ") or text.startswith("  warning"))
    return [lines[first], *rest[:end]]


HEALED = line("features.3.conv.0.0", 0.6, healed_by="per-channel-weights", healed=0.55, alone=0.5, last=0.6)
SMALL = line("classifier.1", 0.25)


def test_the_rows_sum_up(diagnosis: Diagnosis) -> None:
    rows = budget_rows(with_budget(diagnosis, (HEALED, SMALL), unsimulated=0.05))
    assert [row.share for row in rows] == ["60 %", "25 %", "10 %", "5 %"]
    assert rows[0].healed == "per-channel weight scales alone remove 55 %"
    assert [row.nameless for row in rows] == [NO_NAME, NO_NAME, "", ""]


def test_a_line_links_the_card_of_the_cause_that_names_it(diagnosis: Diagnosis) -> None:
    cause = diagnosis.causes[0]
    named = line("features.3.conv.0.0", 0.9, causes=(cause.cause, "explained-by-another"))
    row = budget_rows(with_budget(diagnosis, (named,)))[0]
    assert [(one.text, one.target) for one in row.causes] == [
        (f"{cause.rules[0]} {cause.cause}", f"#cause-{cause.rules[0]}"), ("explained-by-another", ""),
    ]  # fmt: skip
    assert row.nameless == ""
    assert f'href="#cause-{cause.rules[0]}"' in budget_of_page(with_budget(diagnosis, (named,)))


def test_the_console_takes_three_lines_at_most(diagnosis: Diagnosis) -> None:
    many = tuple(line(f"features.{place}.conv.with.a.long.name", 0.09) for place in range(10))
    text = short_budget(with_budget(diagnosis, many))
    said = " ".join(" ".join(text).split())
    assert len(text) <= 3 and "no single place makes most of it (largest: weights of features.0" in said
    verbose = render_console(with_budget(diagnosis, many), verbosity="verbose")
    assert all(f"weights of {one.places[0]}" in " ".join(verbose.split()) for one in many)


def test_what_to_do_and_why_stand_above_where_the_noise_comes_from(diagnosis: Diagnosis) -> None:
    lines = render_console(with_budget(diagnosis, (HEALED, SMALL))).splitlines()
    places = [next(i for i, text in enumerate(lines) if text.lstrip().startswith(start)) for start in
              ("do this first", "because of", TITLE)]  # fmt: skip
    assert places == sorted(places)


@pytest.mark.thorough
def test_all_layers_of_a_line_can_be_read(diagnosis: Diagnosis) -> None:
    names = tuple(f"block{place}/conv" for place in range(40))
    found = with_budget(diagnosis, (line("block0/conv", 0.4, places=names, layers=names),))
    assert all(name in " ".join(render_console(found, verbosity="verbose").split()) for name in names)
    page = budget_of_page(found)
    assert "All 40 layers" in page and all(name.replace("/", "/<wbr>") in page for name in names)
    assert budget_rows(found)[0].href == "#noise-1" and 'id="noise-1"' in page


def test_what_limits_it_is_said(diagnosis: Diagnosis) -> None:
    short = with_budget(diagnosis, (SMALL,), unsimulated=0.4, complete=False)
    assert f"budget of {short.loss_budget.runs} runs" in said_of(short)
    assert "budget of" not in said_of(with_budget(diagnosis, (HEALED,)))


def test_every_format_says_the_same_shares(diagnosis: Diagnosis) -> None:
    found = with_budget(diagnosis, (HEALED, SMALL))
    shares = [f"{round(100 * one['share'])} %" for one in json.loads(render_json(found))["loss_budget"]["lines"]]
    page = budget_of_page(found)
    for text in (render_console(found, verbosity="verbose"), render_markdown(build_context(found, {})), page):
        assert all(share in text for share in shares)


def test_names_stay_text(diagnosis: Diagnosis) -> None:
    found = with_budget(diagnosis, tuple(line(name, 0.9 / len(HOSTILE_NAMES)) for name in HOSTILE_NAMES))
    page = budget_of_page(found)
    assert "<script" not in page and "<img" not in page
    assert "<script" not in render_markdown(build_context(found, {}))
    console = render_console(found, verbosity="verbose")
    assert "\x1b" not in console and not any(text.lstrip().startswith("::") for text in console.splitlines())


def with_task(diagnosis: Diagnosis, *, whole: LossPart) -> Diagnosis:
    """Weights that lose most, others of which that is not judged, and what they lose together."""
    first = {"share": loss(0.1), "alone": loss(0.12), "last": loss(0.08)}
    second = {"share": loss(0.01, 0.2, judged=False)}
    lines = (HEALED.model_copy(update={"task": TaskShare.model_validate(first)}),
             SMALL.model_copy(update={"task": TaskShare.model_validate(second)}))  # fmt: skip
    return with_budget(diagnosis, lines, task=task_loss(whole, interaction=loss(0.03), unassigned=loss(-0.01)))


def test_what_the_task_loses_stands_beside_the_noise(diagnosis: Diagnosis) -> None:
    found = with_task(diagnosis, whole=loss(0.13))
    rows = budget_rows(found)
    assert "; quantizing costs 13.00 points of top-1 there (11.00 … 15.00), 7.76 on all." in said_of(found)
    assert [row.lost for row in rows] == [
        "10.00 points (8.00 … 12.00)", "not judged (-19.00 … 21.00)", "0.00 points (-2.00 … 2.00)",
        "-1.00 points (-3.00 … 1.00)", "3.00 points (1.00 … 5.00)",
    ]  # fmt: skip
    assert rows[0].views == "alone 12.00, last 8.00"
    short = " ".join(" ".join(short_budget(found)).split())
    assert "weights of features.3.conv.0.0 60 % (77 % of the loss of top-1)" in short
    assert len(short_budget(found)) <= 3
    assert "- Not judged: parts" in said_of(found)


def test_the_picture_of_the_loss_ends_at_nothing(diagnosis: Diagnosis) -> None:
    blocks = box_of(with_task(diagnosis, whole=loss(0.13))).section.blocks
    _, chart = (block.chart for block in blocks if isinstance(block, Figure))
    assert [bar.text for bar in chart.bars] == [
        "13.00 points", "10.00 points", "1.00 points", "3.00 points", "-1.00 points",
    ]  # fmt: skip
    assert chart.bars[-1].end == pytest.approx(chart.zero)
    assert 'id="task-loss"' in budget_of_page(with_task(diagnosis, whole=loss(0.13)))


def test_a_loss_that_is_not_told_from_none_is_not_divided(diagnosis: Diagnosis) -> None:
    found = with_task(diagnosis, whole=loss(0.01, 0.05, judged=False))
    said = said_of(found)
    assert "48 samples are too few to distinguish a loss from none (-4.00 … 6.00)." in said
    assert "graphs/task-loss.svg" not in said and "lost top-1" not in said
    assert not any(row.lost for row in budget_rows(found))
    assert "loss of top-1" not in " ".join(short_budget(found))


def test_every_change_that_is_tried_has_a_title() -> None:
    assert all(REMEDY_KINDS[kind].title for kinds in HEALING.values() for kind in kinds)


def budget_of_page(diagnosis: Diagnosis) -> str:
    """The section of the page."""
    page = render_index(build_context(diagnosis, {}), diagnosis)
    return page.partition('<section id="budget"')[2].partition("</section>")[0]
