"""The page of a history, and its section of the report, in a real browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.gates import regression
from builders.report_pages import violations

import quantmedic
from quantmedic.engine.contract.check import Figure, HistoryRun, Trend
from quantmedic.reports.files import trend_files
from quantmedic.reports.write import write_report

pytestmark = pytest.mark.thorough

HOSTILE = ("</script>", "<script>alert(1)</script>", "{{7*7}}", "\"'><img src=x onerror=alert(1)>", "]]>", "x" * 10_000)
Opener = Callable[..., Any]


def made(names: tuple[str, ...] = ("drop top1", "sqnr_db", "findings")) -> Trend:
    """Eight runs, the last of them a regression."""
    runs = tuple(
        HistoryRun(
            number=number,
            time=f"2026-11-{number:02}T03:00:00Z",
            label=names[number % len(names)] if number % 3 else None,
            verdict="REGRESSION" if number == 8 else "INSUFFICIENT_DATA" if number == 4 else "ACCEPT",
            quantized_sha256=f"{number:064x}",
            figures=tuple(
                Figure(
                    name=name,
                    unit="points",
                    value=number / 4 + place,
                    low=number / 4 + place - 0.2,
                    high=number / 4 + place + 0.2,
                    limit=1.8 + place,
                    better="lower",
                )
                for place, name in enumerate(names)
            ),
        )
        for number in range(1, 9)
    )
    return Trend(model=names[0], runs=runs)


def page_of(trend: Trend, folder: Path) -> Path:
    """The page of a history, where ``opened`` looks for one."""
    (folder / "index.html").write_bytes(trend_files(trend, ["html"])["trend.html"])
    return folder


def test_the_page_is_accessible(subtests: pytest.Subtests, opened: Opener, tmp_path: Path) -> None:
    for scheme, width in [("light", 1280), ("dark", 390)]:
        with subtests.test(scheme=scheme, width=width):
            page = opened(page_of(made(), tmp_path), color_scheme=scheme, viewport={"width": width, "height": 844})
            assert violations(page) == []
            assert page.locator("h1").inner_text() == "drop top1"
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
                "no side scroll"
            )


def test_the_page_needs_no_script(opened: Opener, tmp_path: Path) -> None:
    page = opened(page_of(made(), tmp_path), java_script_enabled=False)
    assert page.locator("svg .qc-line").count() == 3 and page.locator("svg .qc-flag").count() == 3
    assert (
        page.locator("svg title")
        .filter(has_text="run 8 findings, 2026-11-08: 2.00 points (1.80 … 2.20), REGRESSION")
        .count()
        == 1
    )
    box = page.get_by_text("8 runs from 2026-11-01 to 2026-11-08, 6 accepted").bounding_box()
    assert box["y"] + box["height"] < 720


def test_hostile_names_stay_text(opened: Opener, tmp_path: Path) -> None:
    page = opened(page_of(made(HOSTILE), tmp_path))
    text = page.inner_text("body")
    assert "</script>" in text and "{{7*7}}" in text and "onerror=alert(1)" in text
    assert page.locator("img, script").count() == 0


def test_the_report_shows_the_history(opened: Opener, demo_case: Any, tmp_path: Path) -> None:
    checked = regression(quantmedic.judge(demo_case))
    write_report(checked, {}, tmp_path, ["html"], quantmedic.inspect(demo_case))
    for scheme in ("light", "dark"):
        page = opened(tmp_path, "#history", color_scheme=scheme)
        section = page.locator("#history")
        assert section.get_by_role("heading", name="History").is_visible()
        assert section.locator("svg .qc-line").count() == 2
        assert "6 runs from 2026-11-01 to 2026-11-06" in section.inner_text()
        colour = "e => getComputedStyle(e).stroke"
        limit, line = (section.locator(f"svg .{name}").first.evaluate(colour) for name in ("qc-limit", "qc-line"))
        assert limit != line
        assert violations(page, "#history") == [], scheme
