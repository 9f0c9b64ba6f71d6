"""The page as a whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_the_page_opens_without_complaint(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo)
    assert "degraded" in page.title()
    assert page.evaluate("document.documentElement.classList.contains('scripted')")
    assert page.locator("#theme").is_visible()
