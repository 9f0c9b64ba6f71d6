"""The picture of the noise: what its bars open by mouse and by keys, and that no label is cut."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quantmedic.engine.case.budget_record import PieceRecord, SourceRecord
from quantmedic.reports.charts.waterfall import Piece, waterfall_chart
from quantmedic.reports.templating import svg

pytestmark = pytest.mark.thorough

LONG = ("W" * 300, "深" * 200, "/".join(["MobileBlockWWWMMM"] * 30), "x" * 300, "a b " * 90)


def piece(share: float, *sources: SourceRecord) -> PieceRecord:
    return PieceRecord(sources=sources, shares=(share,), alone=(share,), last=(share,))


@pytest.fixture(scope="module")
def noisy(demo_case: Any, report: Callable[[Any], Path]) -> Path:
    """The patient with a budget of an input, of weights, of one activation, of many, and of none that has a name."""
    record = demo_case.record
    made = [k for k, tensor in enumerate(record.tensors) if not tensor.is_input and tensor.producer_name]
    given = next(k for k, tensor in enumerate(record.tensors) if tensor.is_input)
    stored = next(k for k, operator in enumerate(record.operators) if operator.weight.name is not None)
    budget = record.loss_budget.model_copy(
        update={
            "pieces": (
                piece(0.4, SourceRecord(kind="input", tensors=(given,))),
                piece(0.3, SourceRecord(kind="weight", operators=(stored,))),
                piece(0.2, SourceRecord(kind="activation", tensors=(made[0],))),
                piece(0.1, *(SourceRecord(kind="activation", tensors=(k,)) for k in made[1:13])),
            ),
            "families": (),
        }
    )
    return report(replace(demo_case, record=record.model_copy(update={"loss_budget": budget})))


def bar(page: Any, words: str) -> Any:
    return page.locator("#loss-budget .broad .piece").filter(has_text=words)


@pytest.mark.nightly
def test_a_bar_opens_its_layer(subtests: pytest.Subtests, opened: Callable[..., Any], noisy: Path) -> None:
    for words in ["weights of ", "quantizing the output of "]:
        for way in ["mouse", "keys"]:
            with subtests.test(words=words, way=way):
                page = opened(noisy)
                found = bar(page, words)
                name = found.locator("text").first.text_content().split(" of ", 1)[1]
                activate(found, way)
                page.wait_for_function("!document.getElementById('drawer').hidden")
                assert name in page.locator("#drawer").inner_text().replace("\u200b", "")


@pytest.mark.nightly
def test_a_bar_of_many_opens_their_list(subtests: pytest.Subtests, opened: Callable[..., Any], noisy: Path) -> None:
    for way in ["mouse", "keys"]:
        with subtests.test(way=way):
            page = opened(noisy)
            places = page.locator(".places")
            assert places.count() == 1 and places.get_attribute("open") is None
            activate(bar(page, "outputs of 12 layers"), way)
            page.wait_for_function("document.querySelector('.places').open")
            links = places.locator("a")
            assert links.count() == 12 and places.evaluate("list => list.matches(':target')")
            assert page.evaluate("document.getElementById('drawer').hidden"), "no innocent layer is opened"
            links.nth(7).click()
            page.wait_for_function("!document.getElementById('drawer').hidden")


def test_the_bar_of_an_input_opens_the_data_and_the_others_nothing(opened: Callable[..., Any], noisy: Path) -> None:
    page = opened(noisy)
    bar(page, "quantizing the input").click()
    assert page.evaluate("location.hash") == "#data"
    for words in ("of the quantized model", "the rest"):
        assert bar(page, words).evaluate("bar => bar.tagName") == "g", "it is no link"


def test_all_bars_that_open_something_are_reached_by_the_tab_key(opened: Callable[..., Any], noisy: Path) -> None:
    page = opened(noisy)
    bars = page.locator("#loss-budget .broad a.piece")
    bars.first.focus()
    seen = []
    for _ in range(bars.count()):
        seen.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
        page.keyboard.press("Tab")
    assert seen == [one.get_attribute("aria-label") for one in bars.all()]


@pytest.mark.nightly
def test_no_label_is_cut_or_runs_into_the_bars(subtests: pytest.Subtests, browser: Any) -> None:
    for text in LONG:
        for slim in [False, True]:
            with subtests.test(text=text, slim=slim):
                pieces = [
                    Piece("line", f"weights of {text}", f"{text} is cut off", 0.6, "60 %", ""),
                    Piece("rest", text, "", 0.4, "40 %", ""),
                ]
                chart = waterfall_chart(
                    pieces, output=text, sqnr=-10.0, basis="64 samples of the validation set, 300 runs"
                )
                chart = chart.slim if slim else chart
                page = browser.new_page()
                page.set_content(svg(chart))
                boxes = page.evaluate(
                    "[...document.querySelectorAll('text')].map(t => [t.getAttribute('class'), t.getBBox()])"
                    ".map(([c, b]) => [c, b.x, b.x + b.width, b.y, b.y + b.height])"
                )
                page.close()
                assert all(
                    left >= 0 and right <= chart.width and low <= chart.height for _, left, right, _, low in boxes
                )
                labels = [box for box in boxes if box[0] in ("qc-what", "qc-name")]
                assert len(labels) >= 5 and (slim or all(right <= chart.left for _, _, right, _, _ in labels))
                rows = sorted((top, low) for _, _, _, top, low in labels)
                if slim:
                    rows = sorted([*rows, *((bar.y + 3, bar.y + chart.bar) for bar in chart.bars)])
                assert all(low <= top + 3 for (_, low), (top, _) in pairwise(rows)), "lines do not overlap"


@pytest.mark.nightly
def test_all_bars_are_in_sight(subtests: pytest.Subtests, opened: Callable[..., Any], noisy: Path) -> None:
    for width, shown in [(390, "slim"), (1400, "broad")]:
        with subtests.test(width=width, shown=shown):
            page = opened(noisy, viewport={"width": width, "height": 844})
            page.locator("#loss-budget").scroll_into_view_if_needed()
            assert (
                page.locator("#loss-budget .piece:visible").count()
                == page.locator(f"#loss-budget .{shown} .piece").count()
            )
            boxes = [shape.bounding_box() for shape in page.locator("#loss-budget :is(rect, text):visible").all()]
            assert len(boxes) >= 15
            assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
            page.locator(f"#loss-budget .{shown} .piece").filter(has_text="weights of ").click()
            page.wait_for_function("!document.getElementById('drawer').hidden")


@pytest.mark.nightly
def test_a_picture_in_a_file_follows_the_theme(subtests: pytest.Subtests, browser: Any, noisy: Path) -> None:
    for scheme in ["light", "dark"]:
        with subtests.test(scheme=scheme):
            context = browser.new_context(color_scheme=scheme)
            page = context.new_page()
            page.goto((noisy / "graphs" / "loss-budget.svg").as_uri())
            fills = page.evaluate(
                "['svg > rect', '.qc-what'].map(s => getComputedStyle(document.querySelector(s)).fill)"
            )
            context.close()
            light = [sum(map(int, fill.removeprefix("rgb(").removesuffix(")").split(","))) > 384 for fill in fills]
            assert light == ([True, False] if scheme == "light" else [False, True])


def activate(found: Any, way: str) -> None:
    if way == "mouse":
        found.click()
    else:
        found.focus()
        found.press("Enter")
