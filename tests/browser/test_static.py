"""The report of a case without data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quantmedic
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough


def test_the_page_works_without_data(opened: Callable[..., Any], report: Callable[[Any], Path]) -> None:
    page = opened(report(quantmedic.collect_static(*patient()[0])), "#layer=%2Fstem%2Fconv%2FConv")
    assert "only weights, graph and parameters were judged" in page.title()
    assert "only weights, graph and parameters were judged" in page.locator("h2#verdict").inner_text()
    assert page.locator("#drawer").is_visible()
    assert page.locator("#errors").count() == 0
    assert page.locator("#layers").inner_text().count("47.6") >= 1
