"""The page as a whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.report_pages import GUIDELINES, violations
from builders.tiers import others_nightly

import quantmedic

pytestmark = pytest.mark.thorough


def report_of(folder: Path) -> Any:
    """What ``report.json`` says."""
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_the_theme_is_chosen_and_remembered(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo, color_scheme="light")
    ink = "getComputedStyle(document.body).color"
    light = page.evaluate(ink)
    page.click("#theme")
    assert page.evaluate(ink) != light
    page.reload()
    page.evaluate("running")
    assert page.evaluate(ink) != light
    page.click("#theme")
    assert page.evaluate(ink) == light


def test_keys_are_shown_and_lead_to_causes(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo)
    page.keyboard.press("?")
    assert "next layer" in page.locator("#keys").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    page.keyboard.press("1")
    assert page.evaluate("document.activeElement.closest('.cause').id") == "cause-D005"


@pytest.mark.nightly
def test_a_link_within_the_page_leaves_the_table_as_it_is(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo, "#filter=conv")
    rows = page.locator("[data-section=table] [aria-rowcount]")
    shown = rows.get_attribute("aria-rowcount")
    page.evaluate("select(3)")
    page.evaluate("location.hash = '#graph'")
    page.wait_for_function("document.getElementById('drawer').hidden")
    assert rows.get_attribute("aria-rowcount") == shown
    page.evaluate("select(4)")
    page.go_back()
    page.wait_for_function("document.getElementById('drawer').hidden")
    page.go_forward()
    page.wait_for_function("!document.getElementById('drawer').hidden")
    assert page.evaluate("selected") == 4 and rows.get_attribute("aria-rowcount") == shown


def test_a_link_that_leads_nowhere_says_so(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo, "#layer=nope&cause=X999")
    assert "layer nope, cause X999" in page.locator("[role=alert]").inner_text()


@pytest.mark.nightly
def test_no_page_of_the_manual_is_wider_than_a_phone(browser: Any, demo: Path) -> None:
    page = browser.new_page(viewport={"width": 320, "height": 844}, offline=True)
    wide = {}
    for path in sorted((demo / "manual").glob("general/*.html")):
        page.goto(path.as_uri())
        if (found := page.evaluate("document.documentElement.scrollWidth")) > 320:
            wide[path.stem] = found
    page.close()
    assert wide == {}


@pytest.mark.nightly
def test_the_page_does_not_scroll_sideways(subtests: pytest.Subtests, opened: Callable[..., Any], demo: Path) -> None:
    for width in [1280, 390]:
        with subtests.test(width=width):
            page = opened(demo, viewport={"width": width, "height": 800})
            for name in ("charts", "table", "graph"):
                page.evaluate(f"reveal('{name}')")
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.nightly
def test_a_report_without_its_case_is_a_page_to_read(
    opened: Callable[..., Any], demo_case: Any, tmp_path: Path
) -> None:
    quantmedic.write_report(quantmedic.judge(demo_case), tmp_path, formats=("html",))
    page = opened(tmp_path, "#layer=nothing&cause=D005")
    assert page.locator("#cause-D005").evaluate("node => Math.abs(node.getBoundingClientRect().top) < 200")
    assert page.locator("#errors svg").count() == 7 and page.locator("#layers tbody tr").count() == 27
    page.keyboard.press("j")
    page.click("#theme")
    assert not page.locator("#graph").count() and not page.locator("#drawer").is_visible()


def test_a_snippet_is_copied(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo, permissions=["clipboard-read", "clipboard-write"])
    block = page.locator("#prescription .copyable").first
    block.locator("button").click()
    page.wait_for_function("document.querySelector('#prescription .copy').textContent === 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == block.locator("code").inner_text()


def test_without_scripts_the_page_tells_verdict_causes_and_layers(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo, java_script_enabled=False)
    assert page.locator(".verdict").inner_text().lower() == "degraded"
    assert page.locator(".cause").count() == len(report_of(demo)["causes"])
    assert page.locator("#layers tbody tr").count() == len(report_of(demo)["layers"])
    assert page.locator("#not-judged tbody tr").count() == len(report_of(demo)["not_judged"])
    assert not page.locator("#theme").is_visible() and not page.locator("#graph").is_visible()


@pytest.mark.nightly
def test_print_shows_every_card_and_snippet(opened: Callable[..., Any], demo: Path, tmp_path: Path) -> None:
    page = opened(demo)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator("#layers table").first.is_visible() and not page.locator("#graph").is_visible()
    for snippet in page.locator(".cause .tab pre").all():
        assert snippet.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


#: Theme, width, and how many rows of each table and list are looked at with each commit; at night all are.
SEEN = [("dark", 390, 6), ("dark", 390, 10_000), ("light", 1280, 10_000)]


@pytest.mark.parametrize("theme, width, rows", others_nightly(SEEN))
def test_nobody_is_kept_out(opened: Callable[..., Any], demo: Path, theme: str, width: int, rows: int) -> None:
    page = opened(demo, color_scheme=theme, viewport={"width": width, "height": 800})
    for name in ("charts", "table", "graph"):
        page.evaluate(f"reveal('{name}')")
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    others = f":is(tr, li, dt, dd):nth-child(n+{rows + 1})"
    page.evaluate(f"for (const row of document.querySelectorAll('{others}')) row.remove()")
    assert violations(page, tags=GUIDELINES) == []


def test_a_script_that_got_in_does_not_run(browser: Any, demo: Path, tmp_path: Path) -> None:
    html = (demo / "index.html").read_text(encoding="utf-8")
    (tmp_path / "index.html").write_text(html.replace("</body>", "<script>document.title = 'owned'</script></body>"))
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto((tmp_path / "index.html").as_uri())
    assert page.title() != "owned" and any("Content Security Policy" in text for text in refused)
    page.close()


def test_the_first_screen_has_verdict_origin_and_first_step(
    subtests: pytest.Subtests, demo: Path, opened: Callable[..., Any]
) -> None:
    for size in [(1400, 900), (390, 844)]:
        with subtests.test(size=size):
            page = opened(demo, viewport={"width": size[0], "height": size[1]})
            for part in ("#verdict", ".strip svg", ".first .figure", ".first .gain"):
                box = page.locator(part).first.bounding_box()
                assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= size[1], part


@pytest.mark.nightly
def test_a_cause_shows_a_picture_before_its_evidence(demo: Path, opened: Callable[..., Any]) -> None:
    page = opened(demo, "#cause=D005")
    picture, table = page.locator("#cause-D005 > .chart"), page.locator("#cause-D005 .evidence-of")
    assert picture.bounding_box()["y"] < table.bounding_box()["y"]
    assert "scale_mismatch 2.83 > 1.1" in table.locator("summary").first.inner_text()
    assert not table.locator("table").first.is_visible()
    table.locator("summary").first.click()
    assert table.locator("table").first.is_visible()


@pytest.mark.nightly
def test_escape_leaves_the_search(demo: Path, opened: Callable[..., Any]) -> None:
    page = opened(demo, "#layers")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("conv")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.type") != "search"
