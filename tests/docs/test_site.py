"""The documentation site, built once by its one command: links, addresses, requests, and what axe finds."""

import html
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from builders.report_pages import violations

import quantmedic
from quantmedic.api.rulebase import load_rulebase

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
VERSION = "0.2"
#: The page of an older version, which was there before.
OLDER = '<!doctype html><html lang="en"><head><title>0.0</title></head><body><p>0.0</p></body></html>'
#: Bytes that a first visit may move, uncompressed.
VISIT_BYTES = 450_000
#: One page of each kind.
KINDS = (
    "",
    "tutorial/",
    "symptoms/",
    "guides/scores-are-zero/",
    "rules/",
    "rules/W001/",
    "remedies/",
    "glossary/",
    "manual/costs/",
    "api/",
    "api/diagnose/",
    "gallery/",
)
#: Leaves the first entries of long lists and tables.
SHORTEN = "document.querySelectorAll('article :is(tr, h2, ul):nth-of-type(n + 9)').forEach((each) => each.remove())"
REPORTS = ("report", "healed", "detector", "healthy")


class Links(HTMLParser):
    """What a page links to, loads, and names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "srcset", "poster", "data") and value:
                self.loads.append(value)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all versions."""
    pytest.importorskip("zensical")
    folder = tmp_path_factory.mktemp("site")
    (folder / "0.0").mkdir()
    (folder / "0.0" / "index.html").write_text(OLDER, encoding="utf-8")
    command = [sys.executable, "-m", "docs", "--output", str(folder)]
    # As a user runs it: other tests leave the trials out.
    environment = {name: value for name, value in os.environ.items() if name != "QUANTMEDIC_NO_PROVE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"wrote {folder / VERSION}" in done.stdout
    return folder


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Links]:
    """All pages by their path, those inside of the reports too."""
    found = sorted(site.rglob("*.html"))
    return {path.relative_to(site).as_posix(): Links(path.read_text(encoding="utf-8")) for path in found}


def is_of_a_report(path: str) -> bool:
    return path.startswith(tuple(f"{VERSION}/gallery/{name}/" for name in REPORTS))


def target_of(page: str, link: str) -> tuple[str, str]:
    """Path and anchor that a link of a page leads to."""
    parts = urlsplit(urljoin(f"http://site/{page}", link))
    path = unquote(parts.path).lstrip("/")
    return (f"{path}index.html" if path.endswith("/") or not path else path), unquote(parts.fragment)


def test_no_link_is_dead_and_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Links]) -> None:
    dead = []
    for page, found in pages.items():
        for link in [*found.links, *found.loads]:
            if link in found.loads and (link.startswith("//") or urlsplit(link).scheme in ("http", "https")):
                dead.append(f"{page}: {link}")
            if urlsplit(link).scheme:
                continue
            path, anchor = target_of(page, link)
            scripted = is_of_a_report(path)  # a report opens #layer=… by its script
            if not (site / path).is_file() or (anchor and not scripted and anchor not in pages[path].ids | {"__top"}):
                dead.append(f"{page}: {link}")
    assert not dead
    asks = re.compile(r"(@import|url\()\s*['\"]?(https?:)?//")
    assert not [path for path in site.rglob("*.css") if asks.search(path.read_text())]


def test_every_rule_and_every_public_name_has_an_address(site: Path) -> None:
    rules = [site / VERSION / "rules" / rule.id / "index.html" for rule in load_rulebase().rules]
    names = [name for name in quantmedic.__all__ if not name.startswith("_")]
    functions = [site / VERSION / "api" / name / "index.html" for name in names]
    assert not [path for path in (*rules, *functions) if not path.is_file()]


def test_arguments_have_types_and_words(site: Path) -> None:
    text = (site / VERSION / "api" / "diagnose" / "index.html").read_text(encoding="utf-8")
    plain = re.sub(r"<[^>]+>", "", text)
    assert "output: str | Path | None = None" in plain and '<h2 id="arguments">' in text
    assert "output: Folder for the report" in plain


def test_guides_lead_to_rules(pages: dict[str, Links]) -> None:
    guides = {
        page: found for page, found in pages.items() if re.fullmatch(rf"{VERSION}/guides/[\w-]+/index.html", page)
    }
    assert len(guides) >= 8
    for page, found in guides.items():
        assert [link for link in found.links if re.fullmatch(r"\.\./\.\./rules/[A-Z]\d{3}/", link)], page


def test_the_tutorial_shows_what_its_commands_print(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / VERSION / "tutorial" / "index.html").read_text(encoding="utf-8"))
    for said in ("DEGRADED  int8.onnx", "HEALTHY  int8.onnx", "HEALED  top-1", "ACCEPT  2 gates passed"):
        assert said in text
    assert sys.executable not in text and "/tmp" not in text


def test_the_readme_shows_what_the_demo_prints(site: Path) -> None:
    """Processors differ in the figures, so these are left out."""
    (block,) = re.findall(r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    page = (site / VERSION / "tutorial" / "index.html").read_text(encoding="utf-8")
    printed = html.unescape(re.sub(r"<[^>]+>", "", page))
    figures = re.compile(r"[\d.]+")
    assert figures.sub("0", block) in figures.sub("0", printed)


def test_language_models_get_a_list_of_all_pages(site: Path, pages: dict[str, Links]) -> None:
    own = {page for page in pages if page.startswith(f"{VERSION}/") and not is_of_a_report(page)}
    for text, start in ((site / "llms.txt", ""), (site / VERSION / "llms.txt", f"{VERSION}/")):
        listed = re.findall(r"^- \[.+?\]\((.*?)\): \S", text.read_text(encoding="utf-8"), re.MULTILINE)
        assert {target_of(start, link)[0] for link in listed} == own


def test_the_root_and_latest_lead_to_the_version(site: Path, pages: dict[str, Links]) -> None:
    assert pages["index.html"].links == [f"{VERSION}/"]
    assert pages["latest/rules/W001/index.html"].links == [f"../../../{VERSION}/rules/W001/"]
    own = [page for page in pages if page.startswith(f"{VERSION}/") and not is_of_a_report(page)]
    assert {page.replace(VERSION, "latest", 1) for page in own} <= pages.keys()


def test_an_older_version_stays_and_is_listed(site: Path) -> None:
    assert (site / "0.0" / "index.html").read_text(encoding="utf-8") == OLDER
    listed = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    assert [each["version"] for each in listed] == [VERSION, "0.0"]


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where a server of this machine shows the site."""
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the log of the test holds what failed."""


@pytest.fixture(scope="session")
def window(browser: Any) -> Any:
    return browser.new_context(viewport={"width": 1280, "height": 900})


def test_pages_are_accessible_and_ask_no_other_server(address: str, window: Any) -> None:
    """Of long lists the first entries are checked, for the others are like them."""
    page = window.new_page()
    complaints: list[str] = []
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else complaints.append(r.url))
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for kind in KINDS if scheme == "light" else ("", "tutorial/", "rules/W001/"):
            page.goto(f"{address}{VERSION}/{kind}", wait_until="load")
            page.wait_for_function("!document.querySelector('nav.md-code__nav:not([role])')")
            page.evaluate(SHORTEN)
            complaints += [f"{scheme} {kind}: {said}" for said in violations(page)]
    page.close()
    assert not complaints


def test_the_search_finds_a_rule_and_is_asked_for_only_then(
    subtests: pytest.Subtests, address: str, window: Any
) -> None:
    for way in ["key", "click"]:
        with subtests.test(way=way):
            page = window.new_page()
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(f"{address}{VERSION}/", wait_until="load")
            page.wait_for_selector("nav.md-code__nav", state="attached")  # the script of the theme is at work
            assert not [url for url in asked if url.endswith("search.json")]
            if way == "key":
                page.keyboard.press("Control+k")
            else:
                page.click(".md-search__button")
            page.wait_for_function("document.activeElement.shadowRoot")
            page.keyboard.type("channel-range-imbalance")
            page.wait_for_selector("text=/\\d+ results?/")
            assert page.locator("a[href*='rules/W001/']").count()
            page.close()


def test_a_visit_moves_little(address: str, window: Any) -> None:
    page = window.browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    moved: list[int] = []
    page.on("response", lambda response: moved.append(len(response.body())))
    page.goto(f"{address}{VERSION}/", wait_until="networkidle")
    page.context.close()
    assert 0 < sum(moved) <= VISIT_BYTES


def test_versions_are_offered_and_latest_keeps_the_anchor(address: str, window: Any) -> None:
    page = window.new_page()
    page.goto(f"{address}latest/rules/W001/#references", wait_until="load")
    page.wait_for_url(f"{address}{VERSION}/rules/W001/#references")
    page.wait_for_selector(".md-version", state="attached")
    links = page.eval_on_selector_all(".md-version a", "links => links.map((each) => each.href)")
    assert links == [f"{address}{VERSION}/", f"{address}0.0/"]
    page.close()
