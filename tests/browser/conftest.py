"""Reports in a real browser: Debian's chromium, driven over its debugging port."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders.large_cases import build
from builders.report_pages import write_pages

import quantmedic

#: Options that a page can be given; all others belong to a context.
OF_A_PAGE = {"viewport", "color_scheme", "reduced_motion"}
CONTEXT: Any = {"viewport": {"width": 1280, "height": 720}, "offline": True}


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
    return build


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Writes the report of a case; returns its folder."""
    return lambda case: write_pages(case, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def thousand_narrow(made: Callable[..., Any], report: Callable[[Any], Path]) -> Path:
    """The report of 1 000 layers of four channels each, in residual blocks."""
    return report(made(1000, 4))


@pytest.fixture(scope="session")
def window(browser: Any) -> Any:
    """A window that stays: for a new one the browser loads pages of its own, which takes longer than a report does."""
    context = browser.new_context(**CONTEXT)
    context.new_page()
    return context


@pytest.fixture
def opened(browser: Any, window: Any) -> Iterator[Callable[..., Any]]:
    """Opens a report: ``opened(folder, "#layer=conv")``; fails if the page complains or asks for anything."""
    with _opener(browser, window) as opener:
        yield opener


@contextmanager
def _opener(browser: Any, window: Any) -> Iterator[Callable[..., Any]]:
    pages: list[Any] = []
    complaints: list[str] = []

    def opener(folder: Path, hash_: str = "", **options: Any) -> Any:
        page = _page(browser, window, options)
        pages.append(page)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        own = (folder / "index.html").as_uri()
        page.on("request", lambda r: None if r.url.startswith((own, "blob:", "data:")) else complaints.append(r.url))
        page.goto(own + hash_)
        page.evaluate("typeof running === 'undefined' ? null : running")  # not every page has a program
        return page

    yield opener
    for page in pages:
        if page.context is window:
            page.evaluate("localStorage.clear()")
            page.close()
        else:
            page.context.close()
    assert not complaints, complaints


def _page(browser: Any, window: Any, options: Mapping[str, Any]) -> Any:
    """A new page of the window, or of a context of its own where only a context has what is asked for."""
    if options.keys() - OF_A_PAGE:
        return browser.new_context(**(CONTEXT | options)).new_page()
    page = window.new_page()
    page.set_viewport_size(options.get("viewport", CONTEXT["viewport"]))
    page.emulate_media(**{name: value for name, value in options.items() if name != "viewport"})
    return page
