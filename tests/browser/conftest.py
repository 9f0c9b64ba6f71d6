"""Reports in a real browser: Debian's chromium, driven over its debugging port."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import layers
import pytest
from builders.report_pages import write_pages

import quantmedic

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser itself; tests that need it are skipped where it is missing."""
    if CHROMIUM is None:
        pytest.skip("needs chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def demo_case(patient_case: Path) -> Any:
    """The embedded patient, measured."""
    return quantmedic.load_case(patient_case)


@pytest.fixture(scope="session")
def demo(demo_case: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the embedded patient."""
    return write_pages(demo_case, tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def made() -> Callable[..., Any]:
    """Makes up a case: ``made(1000)`` layers."""
    return layers.build


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Writes the report of a case; returns its folder."""
    return lambda case: write_pages(case, tmp_path_factory.mktemp("report"))


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a report: ``opened(folder, "#layer=conv")``; fails if the page complains or asks for anything."""
    with _opener(browser) as opener:
        yield opener


@contextmanager
def _opener(browser: Any) -> Iterator[Callable[..., Any]]:
    contexts: list[Any] = []
    complaints: list[str] = []

    def opener(folder: Path, hash_: str = "", **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 720}, "offline": True} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        own = (folder / "index.html").as_uri()
        page.on("request", lambda r: None if r.url.startswith((own, "blob:", "data:")) else complaints.append(r.url))
        page.goto(own + hash_)
        return page

    yield opener
    for context in contexts:
        context.close()
    assert not complaints, complaints
