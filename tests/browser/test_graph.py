"""The graph of the model in a real browser."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders.report_pages import GUIDELINES, violations

import quantmedic
from quantmedic.demo import patient
from quantmedic.reports.page.html import compress

pytestmark = pytest.mark.thorough

#: Boxes that are placed at once, and those that are shown at first, besides the way to the worst layer.
MOST, FIRST, TOGETHER = 300, 40, 40
DRAWN = ".model-view:not([aria-busy]) .box"

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def blocks(made: Callable[..., Any], report: Callable[[Any], Path]) -> Path:
    """The report of 53 layers in residual blocks."""
    return report(made(53, 8))


def seen(page: Any) -> Any:
    """Bring the graph into view and wait until it is drawn."""
    # What stands above is drawn first: it would move the graph while it is looked at.
    page.evaluate("reveal('charts'), reveal('table')")
    page.locator("[data-section=graph]").evaluate("node => node.scrollIntoView()")
    settled(page)
    return page


def button(page: Any, name: str) -> Any:
    """A button of the graph."""
    return page.locator("[data-section=graph]").get_by_role("button", name=name, exact=True)


def settled(page: Any) -> None:
    """Wait until the boxes are placed."""
    page.wait_for_selector(DRAWN, timeout=20_000)


def section(page: Any, name: str) -> Any:
    return page.evaluate(f"section('{name}')")


def named(page: Any, text: str) -> Any:
    """The box or title whose description starts with this name."""
    return page.locator(f'.model-picture [role=treeitem][aria-label^="{text},"]')


def placed(page: Any) -> int:
    """Boxes and groups that are drawn."""
    return page.locator(".model-picture [role=treeitem]").count()


def with_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """The layers' section with these columns and no other."""
    columns = [
        {"key": key, "label": key, "about": 0, "text": isinstance(column[0], str), "values": json.dumps(column)}
        for key, column in values.items()
    ]
    presets = [{"name": "default", "columns": list(values)}]
    return {"groups": [{"name": "layer", "short": "", "prefix": "", "columns": columns}], "presets": presets}


def altered(folder: Path, to: Path, sections: Mapping[str, Any], worker: str | None = None) -> Path:
    """A copy of a report whose data, or the text of whose worker, is another one."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    replaced = {f"data-{name}": compress(json.dumps(content)) for name, content in sections.items()}
    if worker is not None:
        replaced["layout-worker"] = compress(worker)
    for place, content in replaced.items():
        before, found, after = text.partition(f'id="{place}">')
        assert found
        text = before + found + content + after[after.index("</script>") :]
    to.mkdir()
    (to / "index.html").write_text(text, encoding="utf-8")
    return to


@pytest.mark.source("insights-graph")
def test_boxes_and_edges_are_those_of_the_model(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo))
    names = page.evaluate("[...Array(layers.count).keys()].map((position) => layers.label(position))")
    edges = section(page, "graph")["edges"]
    boxes = page.locator(".model-picture .box")
    shown = [boxes.nth(i).get_attribute("aria-label").split(", ")[0] for i in range(boxes.count())]
    assert sorted(shown) == sorted([section(page, "graph")["input"], *names])
    assert page.locator(".model-picture .edge").count() == len(set(zip(edges[::2], edges[1::2], strict=True)))


@pytest.mark.nightly
def test_boxes_bear_values_and_those_past_a_threshold_a_mark(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo))
    degraded = set(section(page, "layers")["degraded"])
    for position in range(page.evaluate("layers.count")):
        name = page.evaluate(f"layers.label({position})")
        value = page.evaluate(
            f"formatLevel(layers.error('accumulated', 'sqnr_db', section('meta').role, {position})) + ' dB'"
        )
        box = named(page, name)
        # The box of an output shows its worst column.
        assert value in box.text_content() or "classifier" in name
        assert ("●" in box.text_content()) == (position in degraded)
        assert ("flagged" in box.get_attribute("class").split()) == (position in degraded)


@pytest.mark.nightly
def test_few_boxes_are_seen_at_first_but_the_way_to_the_worst_is_open(opened: Opened, thousand_narrow: Path) -> None:
    page = seen(opened(thousand_narrow))
    worst = page.evaluate("""() => {
      const values = layers.columns.get(`output.${section("meta").role}.accumulated.sqnr_db`).values;
      return layers.label(section("layers").degraded.reduce((a, b) => (values[b] < values[a] ? b : a)));
    }""")
    box = named(page, worst)
    assert box.count() == 1
    levels = int(box.get_attribute("aria-level"))
    assert page.locator(".model-picture .box").count() <= FIRST + levels * TOGETHER
    inside = box.bounding_box()
    view = page.locator(".model-view").bounding_box()
    assert view["y"] <= inside["y"] < view["y"] + view["height"]
    assert worst in page.locator("[data-section=graph] > .lead").inner_text()


@pytest.mark.source("insights-graph")
def test_groups_unfold_and_fold_again(opened: Opened, blocks: Path) -> None:
    page = seen(opened(blocks, reduced_motion="reduce"))
    assert page.get_by_role("button", name="float beside it").count() == 0, "the case knows no float model"
    button(page, "fit").click()
    before = placed(page)
    group = page.locator('.model-picture .group[aria-expanded="false"]').first
    name = group.get_attribute("aria-label").split(",")[0]
    count = int(group.get_attribute("aria-label").split("group of ")[1].split()[0])
    group.click()
    title = named(page, name).and_(page.locator('[aria-expanded="true"]'))
    title.wait_for()
    settled(page)
    assert placed(page) == before + count
    title.click()
    named(page, name).and_(page.locator('[aria-expanded="false"]')).wait_for()
    settled(page)
    assert placed(page) == before


@pytest.mark.nightly
def test_a_group_shows_its_worst_value_and_how_many_are_past_a_threshold(opened: Opened, thousand_narrow: Path) -> None:
    page = seen(opened(thousand_narrow))
    name = re.compile(r"^block\.(\d+), group of (\d+) layers")
    checked = 0
    for group in page.locator(".model-picture .group").all():
        found = name.match(group.get_attribute("aria-label"))
        if not found:
            continue
        worst, flagged = page.evaluate(f"""() => {{
          const inside = [...Array(layers.count).keys()].filter((i) => layers.label(i).includes("/block.{found[1]}/"));
          const values = inside.map((i) => layers.error("accumulated", "sqnr_db", section("meta").role, i));
          return [formatLevel(Math.min(...values)), inside.filter((i) => layers.isDegraded(i)).length];
        }}""")
        assert f"{worst} dB" in group.text_content()
        assert (f"● {flagged}" if flagged else "") in group.text_content()
        assert group.locator(".share").count() == (1 if flagged else 0)
        checked += 1
    assert checked > 10


@pytest.mark.nightly
@pytest.mark.source("insights-click")
def test_a_click_selects_the_layer_everywhere_and_selecting_marks_it_here(opened: Opened, blocks: Path) -> None:
    page = seen(opened(blocks, reduced_motion="reduce"))
    box = page.locator(".model-picture .box:not(.group):not(.tone-none)").first
    name = box.get_attribute("aria-label").split(", ")[0]
    box.click()
    assert page.evaluate("layers.label(selected)") == name
    assert named(page, name).get_attribute("aria-selected") == "true"
    position = page.evaluate("layers.count") - 2
    name = page.evaluate(f"layers.label({position})")
    page.evaluate(f"select({position})")
    named(page, name).wait_for()
    settled(page)
    chosen = page.locator('.model-picture [aria-selected="true"]')
    assert chosen.count() == 1
    assert chosen.get_attribute("aria-label").startswith(name)


@pytest.mark.nightly
def test_a_layer_selected_elsewhere_is_unfolded_when_the_graph_is_seen(opened: Opened, thousand_narrow: Path) -> None:
    page = seen(opened(thousand_narrow, reduced_motion="reduce"))
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("document.querySelector('.model-view').getBoundingClientRect().top > innerHeight")
    name = "/features/block.30/conv2/Conv"
    page.evaluate(f"select(layers.find('{name}'))")
    page.locator(".model-view").evaluate("node => node.scrollIntoView()")
    named(page, name).wait_for()
    assert named(page, name).get_attribute("aria-selected") == "true"


@pytest.mark.nightly
def test_pointing_goes_both_ways(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo, reduced_motion="reduce"))
    name = page.evaluate("layers.label(3)")
    page.evaluate("hover(3)")
    assert page.locator(".model-picture .pointed").get_attribute("aria-label").startswith(name)
    page.evaluate("hover(null); on('hover', (position) => { globalThis.pointedAt = position; })")
    page.evaluate("select(5)")
    page.evaluate("select(null)")
    box = named(page, page.evaluate("layers.label(5)"))
    box.hover()
    assert page.evaluate("globalThis.pointedAt") == 5
    tip = page.locator(".model-tip")
    assert page.evaluate("layers.label(5)") in tip.inner_text()
    assert "local:" in tip.inner_text()


@pytest.mark.nightly
def test_an_edge_tells_who_writes_its_tensor(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo, reduced_motion="reduce"))
    button(page, "fit").click()
    for i, box in enumerate(page.locator(".model-picture .edge .reach").all()):
        middle = box.evaluate("""node => {
          const at = node.getPointAtLength(node.getTotalLength() / 2).matrixTransform(node.getScreenCTM());
          return [at.x, at.y];
        }""")
        page.mouse.move(*middle)
        if page.locator(".edge.on").count() == 1 and i:
            break
    text = page.locator(".model-tip").inner_text()
    assert "written by /" in text
    assert "→" in text


@pytest.mark.nightly
def test_never_more_boxes_than_can_be_placed(opened: Opened, thousand_narrow: Path, tmp_path: Path) -> None:
    quick = """onmessage = ({ data: { boxes, groups, edges } }) => postMessage({
      boxes: boxes.map((_, i) => [20, 60 * i]), groups: groups.map(() => [0, 0, 200, 60]),
      edges: edges.map(() => [[0, 0], [9, 9]]), width: 240, height: 60 * boxes.length });"""
    page = seen(opened(altered(thousand_narrow, tmp_path / "quick", {}, worker=quick), reduced_motion="reduce"))
    most, said = 0, ""
    for _ in range(60):
        group = page.locator('.model-picture .group[aria-expanded="false"]').first
        label = group.get_attribute("aria-label")
        group.focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            """label => !document.querySelector(".model-view[aria-busy]")
            && document.activeElement.getAttribute("aria-label") === label
            && document.activeElement.getAttribute("aria-expanded") === "true\"""",
            arg=label,
        )
        most = max(most, placed(page))
        said += page.locator(".model-bar [aria-label=Progress]").inner_text()
    assert MOST - TOGETHER < most <= MOST
    assert f"at most {MOST} boxes" in said


def test_the_keyboard_follows_edges_and_selects(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo, reduced_motion="reduce"))
    assert page.locator('.model-picture [tabindex="0"]').count() == 1
    page.locator('.model-picture [tabindex="0"]').focus()
    page.keyboard.press("Home")
    focus = "document.activeElement.getAttribute('aria-label').split(', ')[0]"
    assert page.evaluate(focus) == section(page, "graph")["input"]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focus) == page.evaluate("layers.label(0)")
    assert page.locator(".model-tip").is_visible()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("selected") == 0
    page.keyboard.press("Escape")
    assert page.locator('.model-picture [tabindex="0"]').count() == 1
    page.keyboard.press("End")
    assert page.evaluate(focus) == page.evaluate("layers.label(layers.count - 1)")


@pytest.mark.nightly
def test_the_picture_is_moved_and_sized(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo, reduced_motion="reduce"))
    where = "document.querySelector('.model-canvas').style.transform"
    view = page.locator(".model-view").bounding_box()
    first, scroll = page.evaluate(where), page.evaluate("scrollY")
    page.mouse.move(view["x"] + 60, view["y"] + 200)
    page.mouse.down()
    page.mouse.move(view["x"] + 120, view["y"] + 260, steps=4)
    page.mouse.up()
    dragged = page.evaluate(where)
    assert dragged != first
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function(f"before => {where} !== before", arg=dragged)
    assert page.evaluate("scrollY") == scroll
    page.mouse.wheel(0, 100)
    page.wait_for_function("before => scrollY > before", arg=scroll)
    button(page, "fit").click()
    box = page.locator(".model-canvas").bounding_box()
    view = page.locator(".model-view").bounding_box()
    assert box["height"] <= view["height"]
    assert box["width"] <= view["width"]


@pytest.mark.nightly
def test_colours_stand_for_what_is_chosen(opened: Opened, demo: Path) -> None:
    page = seen(opened(demo))
    name = page.evaluate("layers.label(0)")
    button(page, "bits").click()
    assert button(page, "bits").get_attribute("aria-pressed") == "true"
    assert f"{page.evaluate('layers.value(`output.quantizer.bits`, 0)')} bits" in named(page, name).text_content()
    assert "output, bits" in page.locator(".model-legend").inner_text()
    assert not button(page, "time").count()


@pytest.mark.nightly
def test_a_worker_that_hangs_is_cancelled(opened: Opened, blocks: Path, tmp_path: Path) -> None:
    page = opened(altered(blocks, tmp_path / "hangs", {}, worker="onmessage = () => { for (;;); };"))
    page.locator("[data-section=graph]").scroll_into_view_if_needed()
    cancel = button(page, "Cancel")
    cancel.wait_for(timeout=10_000)
    cancel.focus()
    page.keyboard.press("Enter")
    settled(page)
    assert not cancel.is_visible()
    assert "one column in topological order: cancelled" in page.locator(".model-bar").inner_text()
    assert page.evaluate("document.activeElement.getAttribute('role')") == "treeitem"
    assert in_one_column(page)


@pytest.mark.nightly
def test_without_a_worker_layers_stand_in_one_column(opened: Opened, blocks: Path, tmp_path: Path) -> None:
    page = seen(opened(altered(blocks, tmp_path / "fails", {}, worker="throw new Error('no');")))
    assert "one column in topological order" in page.locator(".model-bar").inner_text()
    assert in_one_column(page)


def in_one_column(page: Any) -> bool:
    places = page.eval_on_selector_all(
        ".model-picture .box", "all => all.map((box) => box.getAttribute('transform').match(/[\\d.]+/g).map(Number))"
    )
    return len({x for x, _ in places}) == 1 and [y for _, y in places] == sorted({y for _, y in places})


@pytest.mark.nightly
def test_nothing_keeps_people_out(opened: Opened, blocks: Path) -> None:
    """The colours of the errors are checked with the whole page."""
    for theme in ("light", "dark"):
        page = seen(opened(blocks, color_scheme=theme, reduced_motion="reduce"))
        button(page, "bits").click()
        assert violations(page, "#graph", GUIDELINES) == [], theme


@pytest.mark.nightly
def test_names_stay_text_and_groups_stay_few(opened: Opened, blocks: Path, tmp_path: Path) -> None:
    page = opened(blocks)
    data = section(page, "layers")
    hostile = ["</script><b>x", "/" * 50, "a/" * 3000, "<img src=x onerror=alert(1)>/{{7*7}}", "\\u202e.\\u0000", ""]
    names = [*hostile, *(f"conv{i}" for i in range(data["count"] - len(hostile)))]
    changed = data | with_columns({"name": names, "op_type": ["Conv", *hostile, *names][: len(names)]})
    page = seen(opened(altered(blocks, tmp_path / "hostile", {"layers": changed})))
    for _ in range(3):
        groups = page.locator('.model-picture .group[aria-expanded="false"]')
        if groups.count():
            groups.first.focus()
            page.keyboard.press("Enter")
            page.wait_for_timeout(100)
            settled(page)
    assert not page.locator("#graph img, #graph script").count()
    assert max(len(text) for text in page.locator(".model-picture text").all_text_contents()) < 60


@pytest.mark.nightly
def test_a_joint_is_coloured_by_the_worst_column_of_its_output(opened: Opened, report: Callable[[Any], Path]) -> None:
    """As a whole the output of the detector has 47 dB, and none of its scores is left."""
    models, options = patient(detection=True)
    page = seen(opened(report(quantmedic.collect(*models, **options, samples=32))))
    joint, before = (page.locator(f'.model-picture .box[aria-label^="{name},"]') for name in ("/Concat_2", "/Add"))
    assert re.search(r"\btone-6\b", joint.first.get_attribute("class"))
    assert "accumulated: 0.0 dB" in joint.first.get_attribute("aria-label")
    assert re.search(r"\btone-0\b", before.first.get_attribute("class"))
