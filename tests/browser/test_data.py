"""The section about the data sets: samples that can be seen, and what is wrong with the sets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.report_pages import violations

import quantmedic
from quantmedic.engine.case.facts import KernelFacts

pytestmark = pytest.mark.thorough


def test_samples_of_both_sets_are_pictures_with_words(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo, "#data")
    for role in ("representative", "validation"):
        pictures = page.locator(f"article.set[aria-label='{role} set'] img")
        assert 8 <= pictures.count() <= 10
        for picture in pictures.all():
            assert picture.evaluate("async (i) => { await i.decode(); return i.naturalWidth; }") == 28
            assert picture.get_attribute("alt").startswith(f"{role} sample")
    inputs = page.evaluate("[...document.querySelectorAll('.thumbs img')].map((i) => i.src.length)")
    assert sum(inputs) <= 60_000


def test_what_is_wrong_with_a_set_leads_to_its_card(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo)
    link = page.locator("article.set[aria-label='representative set'] .faults a").first
    assert "D005" in link.inner_text()
    link.click()
    assert page.evaluate("location.hash") == "#cause-D005"
    assert page.locator("#cause-D005").evaluate("(card) => card.getBoundingClientRect().top < innerHeight")


@pytest.fixture(scope="module")
def profiled(demo_case: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the demo's case with times of its operators."""
    operators = [op.model_copy(update={"time_ms": 0.1 + op.index}) for op in demo_case.record.operators]
    kernels = (KernelFacts(op_type="QLinearConv", count=20, time_ms=400.0, time_share=1.0),)
    model = demo_case.record.model.model_copy(
        update={"kernels": kernels, "latency_float_ms": 2.0, "latency_quantized_ms": 1.0, "latency_runs": 9}
    )
    record = demo_case.record.model_copy(update={"model": model, "operators": tuple(operators)})
    case = replace(demo_case, record=record)
    folder = tmp_path_factory.mktemp("profiled")
    quantmedic.write_report(quantmedic.judge(case), folder, formats=("html",), case=case)
    return folder


@pytest.mark.nightly
def test_a_slow_layer_leads_to_the_layer(opened: Callable[..., Any], profiled: Path) -> None:
    page = opened(profiled, "#cost")
    link = page.locator("#cost a[href^='#layer=']").first
    name = link.inner_text()
    link.click()
    assert page.evaluate("selected === null ? '' : layers.label(selected)") == name


@pytest.mark.nightly
def test_the_cost_is_readable_by_everyone(opened: Callable[..., Any], profiled: Path) -> None:
    page = opened(profiled, "#cost", color_scheme="dark", viewport={"width": 390, "height": 844})
    assert violations(page, "#cost") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
