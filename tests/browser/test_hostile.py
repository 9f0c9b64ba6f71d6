"""Names that attack the page stay text, and their layers can still be opened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.thorough

NAMES = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "{{7*7}}",
    "\"'><svg onload=document.title='owned'>",
    "nul\x00name",
    "bidi\u202ename",
    "line\n::error::owned",
    "]]>",
    "a&amp;b=c&layer=d+e%20f",
    '=HYPERLINK("x")',
    "__proto__",
    "Infinity",
    "x" * 10_000,
)


@pytest.fixture(scope="module")
def hostile(made: Callable[..., Any], report: Callable[[Any], Path]) -> Path:
    """The report of a case whose layers have such names."""
    case = made(24)
    names = {op.name: NAMES[place % len(NAMES)] for place, op in enumerate(case.record.operators)}
    operators = [
        op.model_copy(update=dict.fromkeys(("name", "float_name", "quantized_name"), names[op.name]))
        for op in case.record.operators
    ]
    tensors = [t.model_copy(update={"producer_name": names.get(t.producer_name)}) for t in case.record.tensors]
    case.record = case.record.model_copy(update={"operators": tuple(operators), "tensors": tuple(tensors)})
    return report(case)


@pytest.fixture(scope="module")
def labels(browser: Any, hostile: Path) -> list[str]:
    """The names by which the page calls the layers."""
    page = browser.new_page()
    page.goto((hostile / "index.html").as_uri())
    page.evaluate("running")
    found: list[str] = page.evaluate("[...Array(layers.count).keys()].map((position) => layers.label(position))")
    page.close()
    return found


def test_nothing_of_a_name_runs(opened: Callable[..., Any], hostile: Path) -> None:
    page = opened(hostile)
    for name in ("charts", "table", "graph"):
        page.evaluate(f"reveal('{name}')")
    for position in range(len(NAMES)):
        page.evaluate(f"select({position})")
    assert "owned" not in page.title()
    assert page.locator("img:not([src^='data:'])").count() == 0 and page.locator("[onload], [onerror]").count() == 0


@pytest.mark.nightly
def test_a_link_opens_a_layer_of_any_name(
    subtests: pytest.Subtests, opened: Callable[..., Any], hostile: Path, labels: list[str]
) -> None:
    for position in range(len(NAMES)):
        with subtests.test(position=position):
            page = opened(hostile, f"#layer={quote(labels[position], safe='')}")
            assert page.evaluate("selected") == position
            assert page.locator("#drawer").is_visible()


@pytest.mark.nightly
def test_layers_of_one_name_are_told_apart(opened: Callable[..., Any], hostile: Path) -> None:
    page = opened(hostile)
    page.evaluate(f"select({len(NAMES)})")
    address = page.evaluate("location.hash")
    assert page.evaluate("layers.label(0) === layers.label(selected)")
    assert opened(hostile, address).evaluate("selected") == len(NAMES)
