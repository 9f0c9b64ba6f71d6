"""The layer drawer: how it opens and closes, what it draws, and that it is the data's."""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from builders.report_pages import GUIDELINES, violations

import quantmedic
from quantmedic.engine.case.histogram import BINS, SHIFT
from quantmedic.engine.case.records import Case, WeightArrays
from quantmedic.reports.page.html import compress

pytestmark = pytest.mark.thorough

Opened = Callable[..., Any]
CLOSED = "document.getElementById('drawer').hidden"


def written(case: Case, folder: Path) -> Path:
    """The report of a case, in a folder."""
    quantmedic.write_report(quantmedic.judge(case), folder, formats=("html", "json"), case=case)
    return folder


@pytest.fixture(scope="module")
def rich(demo_case: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The patient with quantized values and weights, where the collectors did not bring them."""
    sets = {role: copy(statistics) for role, statistics in demo_case.statistics.items()}
    for statistics in sets.values():
        quantized = dict(getattr(statistics, "quantized_histograms", {}))
        for index, counts in statistics.histograms.items():
            scale = demo_case.record.tensors[index].quantizer.scale
            if scale and counts.any() and index not in quantized:
                values = (np.arange(-40, 41) * scale).astype(np.float32)
                quantized[index] = np.bincount(values.view(np.uint32) >> SHIFT, minlength=BINS)
        statistics.quantized_histograms = quantized
    weights = {
        place: WeightArrays(
            index=np.arange(16),
            low=np.linspace(-1, -0.1, 16),
            high=np.linspace(1, 0.1, 16),
            stored_low=np.linspace(-0.9, -0.1, 16),
            stored_high=np.linspace(0.9, 0.1, 16),
            sqnr_db=np.linspace(5, 40, 16),
            start=-1.0,
            stop=1.0,
            floats=np.arange(64),
            stored=np.arange(64)[::-1],
            heights=np.tile(np.minimum(np.arange(32) * 9, 255).astype(np.uint8), (16, 1)),
        )
        for place, operator in enumerate(demo_case.record.operators)
        if operator.is_compute
    }
    case = Case(demo_case.record, sets, demo_case.weights or weights)
    return written(case, tmp_path_factory.mktemp("rich"))


def names_of(page: Any) -> list[str]:
    return page.evaluate("Array.from({length: layers.count}, (_, i) => layers.label(i))")


def link(name: str) -> str:
    return f"#layer={quote(name, safe='')}"


def title(page: Any) -> str:
    return page.locator("#drawer-title").inner_text()


# Opening and closing


def test_a_link_opens_a_layer_and_back_closes_it(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    names = names_of(page)
    assert page.evaluate(CLOSED)
    page.evaluate("select(3)")
    assert title(page) == names[3]
    assert "#layer=" in page.url
    page.go_back()
    page.wait_for_function(CLOSED)
    page.go_forward()
    page.wait_for_function(f"!{CLOSED}")
    assert title(page) == names[3]
    other = opened(rich, link(names[5]))
    assert title(other) == names[5]
    assert other.evaluate("document.activeElement.id") == "drawer-title"


def test_escape_and_close_return_the_focus(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.click("#drawer-close")):
        page.focus("#theme")
        page.evaluate("select(2)")
        assert page.evaluate("document.activeElement.id") == "drawer-title"
        close()
        assert page.evaluate(CLOSED)
        assert page.evaluate("document.activeElement.id") == "theme"
        assert "layer=" not in page.url


@pytest.mark.nightly
def test_steps_follow_the_order_of_the_network(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    names = names_of(page)
    page.evaluate("select(0)")
    assert page.locator("#drawer-back").is_disabled()
    for expected in names[1:4]:
        page.click("#drawer-on")
        assert title(page) == expected
        # Who steps goes on stepping.
        assert page.evaluate("document.activeElement.id") == "drawer-on"
    page.click("#drawer-back")
    assert title(page) == names[2]
    flagged = page.evaluate("(drawerNextFlagged())")
    page.click("#drawer-flagged")
    assert title(page) == names[flagged]
    page.evaluate(f"select({len(names) - 1})")
    assert page.locator("#drawer-on").is_disabled()


@pytest.mark.nightly
def test_neighbours_lead_to_each_other(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    page.evaluate("select(0)")
    readers = page.locator(".dr-links").nth(1).locator("button")
    name = readers.first.inner_text()
    readers.first.click()
    assert title(page) == name
    assert names_of(page)[0] in page.locator(".dr-links").nth(0).inner_text()
    assert page.evaluate("document.activeElement.id") == "drawer-title"


# What it draws


@pytest.mark.source("insights-histograms")
def test_bars_are_the_data(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    page.evaluate("select(0)")
    spread = page.evaluate("readSpread(section('details').layers[0].spreads[1])")
    figure = page.locator("#drawer figure", has_text="output, validation")
    bars = figure.locator("rect")
    heights = bars.evaluate_all(
        "bars => bars.map(bar => [Number(bar.dataset.count), Number(bar.getAttribute('height'))])"
    )
    assert [count for count, _ in heights] == [count for count in spread["floats"] if count]
    # A logarithmic axis: equal steps of height for equal ratios of counts.
    counts, tall = (np.array(column) for column in zip(*heights, strict=True))
    slope, offset = np.polyfit(np.log10(counts), tall, 1)
    assert slope > 0
    assert np.abs(slope * np.log10(counts) + offset - tall).max() < 0.01
    # What is clipped is red, and said.
    width = (spread["stop"] - spread["start"]) / len(spread["floats"])
    middles = [spread["start"] + (i + 0.5) * width for i, count in enumerate(spread["floats"]) if count]
    half = page.evaluate("layers.value('output.quantizer.scale', 0)") / 2
    red = [not spread["low"] - half <= middle <= spread["high"] + half for middle in middles]
    assert bars.evaluate_all("bars => bars.map(bar => bar.classList.contains('dr-out'))") == red
    assert any(red)
    assert "% clipped" in figure.locator(".dr-note").inner_text()
    assert figure.locator("path.dr-step").count() == 1
    assert figure.locator(".dr-range").count() == 2


@pytest.mark.nightly
@pytest.mark.source("insights-attributes")
def test_attributes_of_the_operator_are_listed(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    place = page.evaluate("Object.keys(section('graph').attributes ?? {}).map(Number)[0]")
    page.evaluate(f"select({place})")
    rows = page.locator("#drawer table", has_text="attribute").first.locator("tbody tr")
    shown = {row.split()[0] for row in rows.all_inner_texts()}
    assert shown == set(page.evaluate(f"Object.keys(section('graph').attributes[{place}])"))
    assert shown


@pytest.mark.source("insights-channel-histograms")
def test_each_channel_of_the_weights_has_a_histogram(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    page.evaluate("select(0)")
    detail = "section('details').layers[0]"
    found = page.evaluate(f"readHistograms({detail}.weight_histograms, readChannels({detail}.weight_channels))")
    figure = page.locator("#drawer figure", has_text="a histogram for each channel of the weights")
    outlines = figure.locator("path.dr-bar")
    assert outlines.count() == len(found["rows"]) > 1
    shown = outlines.evaluate_all("paths => paths.map(path => Number(path.dataset.channel))")
    assert shown == [row["index"] for row in found["rows"]]
    assert all(max(row["heights"]) == 1 for row in found["rows"])
    # The outline is as wide as the bin is high.
    first = found["rows"][0]
    box = outlines.first.evaluate("path => path.getBBox().width")
    next_box = outlines.nth(1).evaluate("path => path.getBBox().x") - outlines.first.evaluate(
        "path => path.getBBox().x"
    )
    assert abs(box / next_box - 0.92) < 0.03, first
    page.click("text=channels by index")
    ordered = outlines.evaluate_all("paths => paths.map(path => Number(path.dataset.channel))")
    assert ordered == sorted(shown)


@pytest.mark.nightly
def test_figures_tell_what_is_under_the_pointer(opened: Opened, rich: Path) -> None:
    page = opened(rich, viewport={"width": 1280, "height": 1600})
    page.evaluate("select(0)")
    for text, said in (("output, validation", "float"), ("channels of the weights", "stored")):
        figure = page.locator("#drawer figure", has=page.locator(f"b:text-is('{text}')"))
        note = figure.locator(".dr-note").inner_text()
        figure.locator("svg").hover()
        assert said in figure.locator(".dr-note").inner_text()
        page.mouse.move(5, 5)
        assert figure.locator(".dr-note").inner_text() == note
        assert figure.locator("svg").get_attribute("aria-label").startswith(f"{text}: ")


@pytest.mark.nightly
@pytest.mark.source("insights-channels")
def test_channels_are_ordered_by_error_or_by_index(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    page.evaluate("select(0)")
    order = page.locator(".dr-legend button")
    strips = page.evaluate("readChannels(section('details').layers[0].channels[1])")
    tall = "figures => [...figures[0].querySelectorAll('rect')].map(bar => Number(bar.getAttribute('height')))"
    strip = page.locator("#drawer figure", has_text="channels, validation")
    worst_first = strip.evaluate_all(tall)
    assert len(worst_first) == len(strips["rows"])
    order.click()
    assert order.get_attribute("aria-pressed") == "true"
    indices = [row["index"] for row in strips["rows"]]
    assert strip.evaluate_all(tall) == [worst_first[place] for place in np.argsort(indices)]


def test_findings_lead_to_their_cause(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    report = json.loads((rich / "report.json").read_text(encoding="utf-8"))
    place = next(i for i, row in enumerate(report["layers"]) if row["findings"])
    page.evaluate(f"select({place})")
    items = page.locator(".dr-findings li")
    assert [items.nth(i).locator("a").inner_text().split()[0] for i in range(items.count())] == report["layers"][place][
        "findings"
    ]
    absorbed = {(e["rule"], e["subject"]): e["message"] for cause in report["causes"] for e in cause["absorbs"]}
    message = absorbed.get((report["layers"][place]["findings"][0], report["layers"][place]["name"]))
    if message:
        assert message in items.first.inner_text()
    target = items.first.locator("a").get_attribute("href")
    assert page.locator(target).count() == 1
    items.first.locator("a").click()
    page.wait_for_function(CLOSED)
    assert page.locator(target).is_visible()


@pytest.mark.nightly
@pytest.mark.source("insights-one-operator")
def test_all_facts_are_listed(opened: Opened, rich: Path) -> None:
    page = opened(rich)
    page.evaluate("select(0)")
    page.click("#drawer summary")
    known = page.evaluate("[...layers.columns.keys()].filter(key => layers.value(key, 0) !== null)")
    rows = page.locator("#drawer details tbody tr")
    rows.last.wait_for()  # the browser tells of the opened details in a task of its own
    assert rows.count() == len(known)
    assert rows.locator("code").all_inner_texts() == known


@pytest.mark.nightly
def test_a_page_without_details_says_where_they_are(opened: Opened, rich: Path, tmp_path: Path) -> None:
    text = (rich / "index.html").read_text(encoding="utf-8")
    start = text.index('id="data-details">') + len('id="data-details">')
    end = text.index("</script>", start)
    details = opened(rich).evaluate("section('details')")
    del details["layers"]["4"]["spreads"], details["layers"]["4"]["channels"]
    details["layers"]["4"].pop("weights", None)
    details["shown"] -= 1
    (tmp_path / "index.html").write_text(text[:start] + compress(json.dumps(details)) + text[end:], encoding="utf-8")
    page = opened(tmp_path)
    page.evaluate("select(4)")
    assert "quantmedic show CASE --layer" in page.locator("#drawer").inner_text()


# People


@pytest.mark.nightly
def test_nothing_keeps_people_out(subtests: pytest.Subtests, opened: Opened, rich: Path) -> None:
    for scheme in ["light", "dark"]:
        with subtests.test(scheme=scheme):
            page = opened(rich, color_scheme=scheme)
            page.evaluate("select(0)")
            page.click("#drawer summary")
            page.locator("#drawer details tbody tr").last.wait_for()
            assert violations(page, "#drawer", GUIDELINES) == []


@pytest.mark.nightly
def test_it_fits_the_window(subtests: pytest.Subtests, opened: Opened, rich: Path) -> None:
    for width in [320, 390, 1280]:
        with subtests.test(width=width):
            page = opened(rich, viewport={"width": width, "height": 720})
            page.evaluate("select(0)")
            box = page.locator("#drawer").bounding_box()
            assert box["x"] + box["width"] == pytest.approx(width, abs=1)
            assert box["width"] == pytest.approx(min(width, 704), abs=1)
            assert page.locator("#drawer").evaluate("node => node.scrollWidth <= node.clientWidth")
            page.locator("#drawer").evaluate("node => { node.scrollTop = 400; }")
            assert page.locator("#drawer-close").is_visible()
            assert page.locator("#drawer-close").bounding_box()["y"] >= 0
