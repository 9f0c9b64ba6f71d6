"""The graph of the float model beside that of the quantized one, in a real browser."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.report_pages import GUIDELINES, violations

pytestmark = pytest.mark.thorough

Opened = Callable[..., Any]
READY = """() => {
  const views = [...document.querySelectorAll(".model-view")];
  return views.length === 2 && views.every((view) => view.matches(":not([aria-busy])") && view.querySelector(".box"));
}"""


@pytest.fixture(scope="module")
def lonely(demo_case: Any, report: Callable[[Any], Path]) -> Path:
    """The report of a case whose last layer has no twin, and of whose float model the first operator has none."""
    record = demo_case.record
    last = len(record.operators) - 1
    own = [
        op.model_copy(update={"twin": None}) if place == 0 or op.twin == last else op
        for place, op in enumerate(record.float_operators)
    ]
    return report(replace(demo_case, record=record.model_copy(update={"float_operators": tuple(own)})))


def both(page: Any) -> Any:
    """Bring both graphs into view, drawn."""
    page.evaluate("reveal('charts'), reveal('table')")
    page.locator("[data-section=graph]").evaluate("node => node.scrollIntoView()")
    page.wait_for_selector(".model-view:not([aria-busy]) .box")
    toggle(page)
    page.wait_for_function(READY)
    # Where one stands above the other, both are brought into view.
    page.locator(".model-panes").evaluate("node => node.scrollIntoView()")
    return page


def toggle(page: Any) -> None:
    page.get_by_role("button", name="float beside it").focus()
    page.keyboard.press("Enter")


def boxes(page: Any, model: str) -> Any:
    return page.get_by_role("tree", name=f"Graph of the {model} model").locator(".box")


def chosen(page: Any, model: str) -> list[str]:
    """Names of what is selected in the graph of a model."""
    found = page.get_by_role("tree", name=f"Graph of the {model} model").locator("[aria-selected=true]")
    return [label.split(", ")[0] for label in found.evaluate_all("all => all.map((box) => box.ariaLabel)")]


@pytest.mark.nightly
def test_the_float_graph_is_that_of_the_float_model(opened: Opened, demo: Path, demo_case: Any) -> None:
    page = both(opened(demo))
    labels = boxes(page, "float").evaluate_all("all => all.map((box) => box.ariaLabel.split(', ')[0])")
    names = [op.name for op in demo_case.record.float_operators]
    assert len(names) > len(demo_case.record.operators)
    assert sorted(labels) == sorted(["image", *names])
    edges = {(source, place) for place, op in enumerate(demo_case.record.float_operators) for source in op.reads}
    drawn = page.get_by_role("tree", name="Graph of the float model").locator(".edge").count()
    assert drawn == len(edges)


@pytest.mark.nightly
def test_both_begin_at_the_same_layer_and_are_in_sight(subtests: pytest.Subtests, opened: Opened, demo: Path) -> None:
    """Without anybody scrolling: what was pressed brings it into the window."""
    for size in [(1400, 900), (390, 844)]:
        with subtests.test(size=size):
            page = opened(demo, viewport={"width": size[0], "height": size[1]})
            page.evaluate("reveal('charts'), reveal('table')")
            page.locator("[data-section=graph]").evaluate("node => node.scrollIntoView()")
            page.wait_for_selector(".model-view:not([aria-busy]) .box")
            toggle(page)
            page.wait_for_function(READY)
            page.wait_for_timeout(400)  # pictures glide
            views = [page.locator(".model-view").nth(place).bounding_box() for place in (0, 1)]
            aside = views[0]["y"] == views[1]["y"]
            assert aside == (size[0] > 1000) == (views[0]["x"] != views[1]["x"])
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            shown = [min(view["y"] + view["height"], size[1]) - view["y"] for view in views]
            assert all(part >= 0.9 * view["height"] for part, view in zip(shown, views, strict=True))
            for model, view in zip(("quantized", "float"), views, strict=True):
                box = boxes(page, model).filter(has_text="classifier").first.bounding_box()  # the worst layer
                middle = box["y"] + box["height"] / 2
                assert view["y"] <= middle <= view["y"] + view["height"], model


def test_selecting_in_one_selects_in_the_other(opened: Opened, demo: Path) -> None:
    page = both(opened(demo, viewport={"width": 1400, "height": 900}, reduced_motion="reduce"))
    page.evaluate("select(0)")
    assert chosen(page, "quantized") == ["/stem/conv/Conv"]
    assert chosen(page, "float") == ["/stem/conv/Conv", "/stem/act/Relu"], "an activation that was folded belongs to it"
    boxes(page, "float").and_(page.locator('[aria-label^="/residual/Add,"]')).dispatch_event("click")
    assert page.evaluate("layers.label(selected)") == "/residual/Add" and "layer=" in page.url
    assert chosen(page, "quantized") == chosen(page, "float") == ["/residual/Add"]
    for model in ("quantized", "float"):
        tree = page.get_by_role("tree", name=f"Graph of the {model} model")
        box, view = tree.locator("[aria-selected=true]").bounding_box(), tree.bounding_box()
        assert view["y"] <= box["y"] and box["y"] + box["height"] <= view["y"] + view["height"]
    page.evaluate("select(null)")
    assert chosen(page, "quantized") == chosen(page, "float") == []
    page.evaluate("hover(4)")
    pointed = page.locator(".model-picture .pointed").evaluate_all("all => all.map((box) => box.ariaLabel)")
    assert [label.split(", ")[0] for label in pointed] == ["/reduce/pointwise/conv/Conv"] * 2


@pytest.mark.nightly
def test_what_one_model_alone_has_is_seen(opened: Opened, lonely: Path, demo_case: Any) -> None:
    page = both(opened(lonely))
    first, last = demo_case.record.float_operators[0].name, demo_case.record.operators[-1].float_name
    for model, expected in (("float", {first, last}), ("quantized", {last})):
        alone = page.get_by_role("tree", name=f"Graph of the {model} model").locator(".alone")
        labels = alone.evaluate_all("all => all.map((box) => box.ariaLabel)")
        assert {label.split(", ")[0] for label in labels} >= expected
        assert all(f"only in the {model} model" in label for label in labels)
        assert "only here" in alone.first.text_content()
    box = boxes(page, "float").and_(page.locator(f'[aria-label^="{first},"]'))
    box.dispatch_event("click")
    assert page.evaluate("selected") is None
    assert "only in the float model" in page.locator("#announcer").inner_text()


@pytest.mark.nightly
def test_the_keyboard_works_in_it(opened: Opened, demo: Path) -> None:
    page = both(opened(demo, reduced_motion="reduce"))
    assert page.locator('.model-picture [tabindex="0"]').count() == 2
    page.get_by_role("tree", name="Graph of the float model").locator('[tabindex="0"]').focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("selected") == 0
    assert chosen(page, "quantized") == ["/stem/conv/Conv"]
    page.keyboard.press("Escape")
    toggle(page)
    assert page.locator(".model-view").count() == 1, "it goes away again"
    page.evaluate("select(3)")
    toggle(page)
    page.wait_for_function(READY)
    assert len(chosen(page, "float")) >= 1 and page.locator(".model-view").count() == 2


@pytest.mark.nightly
def test_nothing_keeps_people_out(opened: Opened, lonely: Path) -> None:
    page = both(opened(lonely, color_scheme="dark", reduced_motion="reduce"))
    assert violations(page, "#graph", GUIDELINES) == []
