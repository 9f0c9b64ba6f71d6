"""The page of a comparison in a real browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.comparisons import compared, pair
from builders.report_pages import violations

from quantmedic.reports.comparison_formats import comparison_files

pytestmark = pytest.mark.thorough

HOSTILE = ("</script>", "<script>alert(1)</script>", "{{7*7}}", "\"'><img src=x onerror=alert(1)>", "]]>", "x" * 10_000)
Opener = Callable[..., Any]


def page_of(record: Any, folder: Path) -> Path:
    """The page of a comparison, where ``opened`` looks for one."""
    (folder / "index.html").write_bytes(comparison_files(record, ["html"])["compare.html"])
    return folder


@pytest.fixture
def record() -> Any:
    return compared(*pair())


@pytest.mark.nightly
def test_the_page_is_accessible(subtests: pytest.Subtests, opened: Opener, record: Any, tmp_path: Path) -> None:
    for scheme, width in [("light", 1280), ("dark", 390)]:
        with subtests.test(scheme=scheme, width=width):
            page = opened(
                page_of(record, tmp_path),
                color_scheme=scheme,
                viewport={"width": width, "height": 844},
            )
            assert violations(page) == []
            assert page.locator("h1").inner_text().split() == ["int8.onnx", "→", "int8_new.onnx"]
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
                "no side scroll"
            )


def test_the_answer_is_on_the_first_screen(opened: Opener, record: Any, tmp_path: Path) -> None:
    page = opened(page_of(record, tmp_path), java_script_enabled=False)
    for text in ("better", "+10.00 points"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 720


def test_the_graph_shows_each_change(opened: Opener, record: Any, tmp_path: Path) -> None:
    page = opened(page_of(record, tmp_path))
    assert page.locator("svg .cc-worse .cc-stem").count() == 2
    assert page.locator("svg .cc-better .cc-stem").count() == 2
    tips = page.locator("svg g.cc-worse title").all_text_contents()
    assert "3 block3/conv: 31.0 → 19.0 dB (-12.0)" in tips
    fill = "e => getComputedStyle(e).fill"
    worse, better = (page.locator(f"svg text.cc-{look}").first.evaluate(fill) for look in ("worse", "better"))
    assert worse != better


def test_sections_are_reached_by_keyboard(opened: Opener, record: Any, tmp_path: Path) -> None:
    page = opened(page_of(record, tmp_path))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the causes"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#causes"
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('aria-label')"))
    assert {"Causes, broke: new, table", "Settings that changed, table"} <= reached, "tables that scroll take the focus"


def test_hostile_names_stay_text(opened: Opener, tmp_path: Path) -> None:
    page = opened(page_of(compared(*pair(HOSTILE)), tmp_path))
    text = page.inner_text("body")
    assert "</script>" in text and "{{7*7}}" in text and "onerror=alert(1)" in text
    assert page.locator("img, script").count() == 0
