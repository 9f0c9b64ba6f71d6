"""The gate in the page: told without scripts, on phones, in both themes and on paper."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.gates import regression
from builders.report_pages import GUIDELINES, violations

import quantmedic

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def gated(made: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 60 layers with a gate that failed on a new and a worse finding; a third one is exempted."""
    case = made(60)
    found = regression(quantmedic.judge(case))
    assert found.check is not None
    changes = ({"gated": True}, {"gated": True, "status": "worse", "before": 22.0}, {"exemption": 0})
    rows = zip(found.check.findings[:3], changes, strict=True)
    findings = tuple(finding.model_copy(update=change) for finding, change in rows)
    free = found.model_copy(update={"check": found.check.model_copy(update={"findings": findings})})
    folder = tmp_path_factory.mktemp("gated")
    quantmedic.write_report(free, folder, formats=("html",), case=case)
    return folder


def test_the_verdict_leads_to_its_gates(opened: Callable[..., Any], gated: Path) -> None:
    page = opened(gated)
    page.click("a.gate-word")
    assert page.locator("#gate").evaluate("node => Math.abs(node.getBoundingClientRect().top) < 200")
    assert page.locator(".gates tbody tr").count() == 5


def test_without_scripts_the_gate_is_told(opened: Callable[..., Any], gated: Path) -> None:
    page = opened(gated, java_script_enabled=False)
    assert "REGRESSION" in page.locator("#gate-title").inner_text()
    assert page.locator(".gates .status-fail").count() == 2
    assert page.locator(".cause h3 s").count() == 1


@pytest.mark.nightly
def test_the_gate_keeps_nobody_out(subtests: pytest.Subtests, opened: Callable[..., Any], gated: Path) -> None:
    for theme, width in [("light", 1280), ("dark", 390)]:
        with subtests.test(theme=theme, width=width):
            page = opened(gated, color_scheme=theme, viewport={"width": width, "height": 800})
            page.evaluate("for (const details of document.querySelectorAll('#gate details')) details.open = true")
            assert violations(page, "#gate", GUIDELINES) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.nightly
def test_a_printed_gate_holds_every_finding(opened: Callable[..., Any], gated: Path, tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    page = opened(gated, color_scheme="dark")
    (tmp_path / "report.pdf").write_bytes(page.pdf())
    sheets = pypdf.PdfReader(tmp_path / "report.pdf").pages
    text = "".join("".join(sheet.extract_text().split()) for sheet in sheets[:3])
    for part in ("6.91…8.60", "worse,baseline22", "VIS-214(until2026-11-30)", "W003features.9.conv", "expired314days"):
        assert part.lower() in text.lower(), part
