"""How large the page is, and how much of the processor it takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quantmedic

pytestmark = pytest.mark.thorough

#: Of processor time, which others leave as it is.
PROCESSOR_MS = 200

NEXT_FRAME = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"


@pytest.fixture(scope="module")
def ten_thousand(made: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 10 000 layers of two channels each; with more it gets no larger, for it leaves details out."""
    case, folder = made(10_000, 2), tmp_path_factory.mktemp("ten-thousand")
    quantmedic.write_report(quantmedic.judge(case), folder, formats=("html",), case=case)
    return folder


def size_of(folder: Path) -> int:
    return (folder / "index.html").stat().st_size


def test_the_page_stays_small(made: Callable[..., Any], report: Callable[[Any], Path]) -> None:
    assert size_of(report(made(53))) <= 500_000


@pytest.mark.nightly
def test_the_page_of_a_large_network_stays_small(
    made: Callable[..., Any], report: Callable[[Any], Path], ten_thousand: Path
) -> None:
    assert size_of(report(made(1000))) <= 3_000_000 and size_of(ten_thousand) <= 12_000_000


@pytest.mark.nightly
def test_ten_thousand_layers_take_little_of_the_processor(opened: Callable[..., Any], ten_thousand: Path) -> None:
    page = opened(ten_thousand)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    actions = {name: f"reveal('{name}')" for name in ("table", "graph", "charts")}
    for place in (4, 1):
        actions[f"sort {place}"] = f"document.querySelectorAll('.layers-scroll thead button')[{place}].click()"
    for text in ("c", "conv", "7"):
        actions[f"search {text}"] = (
            f"const box = document.querySelector('[data-section=table] input[type=search]'); box.value = '{text}';"
            " box.dispatchEvent(new Event('input', { bubbles: true }))"
        )
    took = {}
    for name, action in actions.items():
        before = processor_ms(session)
        page.evaluate(f"async () => {{ {action}; {NEXT_FRAME} }}")
        took[name] = processor_ms(session) - before
    assert {name: spent for name, spent in took.items() if spent >= PROCESSOR_MS} == {}


def processor_ms(session: Any) -> float:
    """What the thread of the page has taken so far."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(metrics["TaskDuration"])
