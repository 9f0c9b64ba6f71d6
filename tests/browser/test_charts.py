"""The error graphs: what they draw equals what report.json says, and they answer to mouse and keyboard."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.large_cases import build
from builders.report_pages import write_pages

import quantmedic
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough

SIX = [f"{metric}-{role}" for role in ("representative", "validation") for metric in ("mse", "cosine", "sqnr_db")]
READY = "document.querySelectorAll('.plot-card .uplot').length"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up case of 120 layers, some over the thresholds."""
    return write_pages(build(120), tmp_path_factory.mktemp("large"))


@pytest.fixture(scope="module")
def one_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded patient, measured on its representative set alone, with the operators' own error."""
    models, options = patient()
    del options["validation"], options["preprocessing"]["validation"]
    case = quantmedic.collect(*models, step_error=True, **options)
    return write_pages(case, tmp_path_factory.mktemp("one"))


@pytest.fixture
def graphs(opened: Callable[..., Any], large: Path) -> Callable[..., Any]:
    """Opens the report of the large case with its graphs in view."""

    def drawn(**options: Any) -> Any:
        return in_view(opened(large, **options))

    return drawn


def in_view(page: Any) -> Any:
    page.locator("#errors").scroll_into_view_if_needed()
    page.locator(".plot-card canvas").first.wait_for()
    return page


def place(page: Any, graph: str, share: float) -> tuple[float, float]:
    """A point in a graph, so far from its left end."""
    over = page.locator(f'[data-graph="{graph}"] .u-over')
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def marked(page: Any, graph: str, kind: str = "flagged") -> set[int]:
    text = page.locator(f'[data-graph="{graph}"]').get_attribute(f"data-{kind}")
    return {int(part) for part in (text or "").split()}


def over(errors: dict[str, Any], metric: str, limits: dict[str, float | None]) -> bool:
    """Over a threshold of report.json, where null stands for infinity."""

    def above(key: str, name: str, sign: int) -> bool:
        value, limit = errors[key], limits[name]
        return value is not None and limit is not None and sign * (value - limit) > 0

    if metric == "mse":
        return above("mse", "quantize_error_mse", 1) or above("nmse", "quantize_error_nmse", 1)
    return above(metric, f"quantize_error_{metric}", -1)


@pytest.mark.nightly
def test_circles_and_diamonds_are_those_of_report_json(graphs: Callable[..., Any], large: Path) -> None:
    page = graphs()
    report = json.loads((large / "report.json").read_text())
    limits = {threshold["name"]: threshold["value"] for threshold in report["thresholds"]}
    assert page.evaluate(READY) == 7
    found = 0
    for graph in SIX:
        metric, _, role = graph.rpartition("-")
        expected = {i for i, row in enumerate(report["layers"]) if over(row[role]["accumulated"], metric, limits)}
        assert marked(page, graph) == expected
        found += len(expected)
    assert found
    assert "--step-error" in page.locator('[data-graph="birth"]').inner_text()
    assert marked(page, "birth", "born") == {i for i, row in enumerate(report["layers"]) if row["born"]} != set()


@pytest.mark.nightly
def test_a_flagged_layer_is_red_on_the_canvas(graphs: Callable[..., Any]) -> None:
    page = graphs()
    reddish = """(name) => {
        const graph = errorGraphs.list.find((graph) => graph.name === name);
        const { canvas } = graph.plot.ctx;
        const all = graph.plot.ctx.getImageData(0, 0, canvas.width, canvas.height).data;
        const red = (x, y) => {
            const i = 4 * (y * canvas.width + x);
            return all[i] > 150 && all[i + 1] < 90 && all[i + 2] < 90;
        };
        return graph.flagged.map((rank) => {
            const x = Math.round(graph.plot.valToPos(rank, "x", true));
            const y = Math.round(graph.plot.valToPos(graph.heights.accumulated[rank], "y", true));
            return [-5, -4, -3, 3, 4, 5].some((d) => red(x + d, y) || red(x, y + d));
        });
    }"""
    assert all(page.evaluate(reddish, "sqnr_db-validation"))


@pytest.mark.nightly
def test_the_mouse_tells_layer_value_and_threshold_in_all_graphs(graphs: Callable[..., Any], large: Path) -> None:
    page = graphs()
    told: list[int | None] = []
    page.expose_function("told", lambda position: told.append(position))
    page.evaluate("on('hover', (position) => told(position))")
    page.mouse.move(*place(page, "sqnr_db-validation", 0.504))
    row = json.loads((large / "report.json").read_text())["layers"][60]
    tip = page.locator(".plot-tip")
    value = f"{row['validation']['accumulated']['sqnr_db']:.1f} dB"
    assert f"60 {row['name']}" in tip.inner_text() and f"accumulated {value}" in tip.inner_text()
    assert "threshold 20.0 dB" in tip.inner_text()
    assert told[-1] == 60
    lefts = page.evaluate("errorGraphs.list.map(({ plot }) => Math.round(plot.posToVal(plot.cursor.left, 'x')))")
    assert lefts == [60] * 7
    page.mouse.move(5, 5)
    assert tip.is_hidden() and told[-1] is None
    page.evaluate("hover(17)")
    assert page.evaluate("errorGraphs.list.map(({ plot }) => plot.cursor.idx)") == [17] * 7, "other views move it"
    assert tip.is_hidden()
    page.evaluate("hover(null)")
    assert page.evaluate("errorGraphs.list.every(({ plot }) => plot.cursor.left < 0)")


@pytest.mark.nightly
def test_a_drag_zooms_all_graphs_and_a_double_click_shows_all(graphs: Callable[..., Any]) -> None:
    page = graphs()
    ranges = "errorGraphs.list.map(({ plot }) => [plot.scales.x.min, plot.scales.x.max].map(Math.round))"
    reset = page.get_by_role("button", name="Reset zoom")
    assert reset.is_disabled()
    full = page.evaluate(ranges)
    x, y = place(page, "cosine-validation", 0.25)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(*place(page, "cosine-validation", 0.5), steps=4)
    page.mouse.up()
    zoomed = page.evaluate(ranges)
    assert len({tuple(range_) for range_ in zoomed}) == 1 and 27 <= zoomed[0][0] <= 32 and 57 <= zoomed[0][1] <= 62
    assert page.evaluate("selected") is None, "a drag is no click"
    page.mouse.dblclick(x, y)
    assert page.evaluate(ranges) == full
    page.wait_for_timeout(300)
    assert page.evaluate("selected") is None, "a double click is no click"
    page.evaluate("zoomGraphs([3, 9])")
    reset.click()
    assert page.evaluate(ranges) == full


@pytest.mark.source("insights-click")
def test_a_click_selects_the_layer_and_every_graph_marks_it(graphs: Callable[..., Any]) -> None:
    page = graphs()
    before = page.locator('[data-graph="mse-representative"] canvas').evaluate("(canvas) => canvas.toDataURL()")
    page.mouse.click(*place(page, "sqnr_db-validation", 0.504))
    assert page.evaluate("selected") == 60
    assert "layer=" in page.url
    after = page.locator('[data-graph="mse-representative"] canvas').evaluate("(canvas) => canvas.toDataURL()")
    assert before != after


@pytest.mark.nightly
def test_keys_go_from_layer_to_layer(graphs: Callable[..., Any]) -> None:
    page = graphs()
    plot = page.get_by_role("img", name="SQNR validation:")
    assert "of 120 layers below 20.0 dB" in plot.get_attribute("aria-label")
    plot.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("errorGraphs.cursor") == 1
    assert "accumulated" in page.locator("#announcer").inner_text()
    page.keyboard.press("+")
    low, high = page.evaluate("errorGraphs.range")
    assert high - low < 119
    page.keyboard.press("End")
    assert page.evaluate("errorGraphs.cursor") == 119 and page.evaluate("errorGraphs.range[1]") >= 119
    page.keyboard.press("Enter")
    assert page.evaluate("selected") == 119


@pytest.mark.nightly
def test_switches_keep_focus_and_change_what_is_drawn(graphs: Callable[..., Any]) -> None:
    page = graphs()
    flagged = marked(page, "mse-validation")
    relative = page.locator("#errors").get_by_role("button", name="NMSE", exact=True)
    relative.focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("img", name="NMSE validation:").count() == 1
    assert page.evaluate("document.activeElement.textContent") == "NMSE"
    assert relative.get_attribute("aria-pressed") == "true"
    assert marked(page, "mse-validation") == flagged
    page.locator("#errors").get_by_role("button", name="local only").click()
    assert page.evaluate("errorGraphs.list.slice(1).every(({ plot }) => plot.series.length === 2)")
    page.locator("#errors").get_by_role("button", name="accumulated").click()
    assert page.evaluate("errorGraphs.list.slice(1).every(({ plot }) => plot.series.length === 3)")


@pytest.mark.nightly
def test_a_set_that_was_not_measured_says_so(opened: Callable[..., Any], one_set: Path) -> None:
    page = in_view(opened(one_set))
    assert page.evaluate(READY) == 4
    for graph in SIX:
        text = page.locator(f'[data-graph="{graph}"]').inner_text()
        assert ("not measured on the validation set" in text) == graph.endswith("validation")
    birth = page.locator('[data-graph="birth"]')
    assert "measured on deployed inputs" in birth.inner_text()


@pytest.mark.nightly
def test_exact_broken_and_missing_values(opened: Callable[..., Any], tmp_path: Path) -> None:
    case = build(12)
    tensors = case.statistics["validation"]
    for i, value in ((4, 0.0), (6, math.nan)):
        for name in ("square", "sum", "max"):
            tensors.tensor(i).errors["accumulated"][name][:] = value
    tensors.tensor(8).errors["accumulated"]["count"][:] = 0
    page = in_view(opened(write_pages(case, tmp_path)))
    drawn = "errorGraphs.list.find(({ name }) => name === 'sqnr_db-validation')"
    keys = ("heights.accumulated", "values.accumulated", "ends")
    heights, values, ends = (page.evaluate(f"{drawn}.{key}") for key in keys)
    assert values[3] == math.inf and heights[3] == ends[1], "exact: at the foot"
    assert heights[5] is None and heights[7] is None, "no number: a gap"
    page.evaluate("pointAt(3, errorGraphs.list[6])")
    assert "accumulated ∞" in page.locator(".plot-tip").inner_text()
    page.evaluate("pointAt(7, errorGraphs.list[6])")
    assert "accumulated not measured" in page.locator(".plot-tip").inner_text()


@pytest.mark.nightly
def test_paper_gets_the_light_colours(graphs: Callable[..., Any]) -> None:
    light = graphs().evaluate("errorGraphs.list[3].plot.series[1].stroke()")
    page = graphs(color_scheme="dark")
    page.evaluate("on('theme', () => { window.printed = errorGraphs.list[3].plot.series[1].stroke(); })")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("printed") == light
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    dark = page.evaluate("errorGraphs.list[3].plot.series[1].stroke()")
    page.locator("#theme").click()
    assert page.evaluate("errorGraphs.list[3].plot.series[1].stroke()") == light != dark


@pytest.mark.nightly
def test_graphs_fit_narrow_screens(graphs: Callable[..., Any]) -> None:
    page = graphs(viewport={"width": 390, "height": 844})
    widths = page.evaluate("[...document.querySelectorAll('.plot-card')].map((g) => [g.clientWidth, g.scrollWidth])")
    assert all(inner <= 390 and scroll <= inner for inner, scroll in widths)
    lefts = page.evaluate("[...document.querySelectorAll('.plot-grid .plot-card')].map((g) => g.offsetLeft)")
    assert len(set(lefts)) == 1
