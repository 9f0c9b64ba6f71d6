"""How large the page is, and how soon it shows something."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough


def test_the_page_stays_small(made: Callable[..., Any], report: Callable[[Any], Path], thousand: Path) -> None:
    # General measures, folded below the causes, are 35 kB of it.
    for folder, limit in ((report(made(53)), 590_000), (thousand, 3_000_000)):
        assert (folder / "index.html").stat().st_size <= limit


def test_causes_are_seen_at_once(opened: Callable[..., Any], thousand: Path) -> None:
    page = opened(thousand)
    page.wait_for_function("performance.getEntriesByType('paint').length")
    seen = page.evaluate("performance.getEntriesByType('paint')[0].startTime")
    assert page.locator(".cause").first.is_visible()
    # A second on a quiet machine; others may keep this one busy.
    assert seen < 3000
