"""Manual pages: safe HTML, working links, and a glossary of every fact."""

import re

import pytest

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.reports.manual import glossary_page, sibling, to_html
from quantmedic.reports.page.html import render_manual_page

HOSTILE_PAGES = (
    "<script>alert(1)</script>",
    "text <img src=x onerror=alert(1)> text",
    '<div onclick="alert(1)">\n\nmore\n\n</div>',
    "[x](javascript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](&amp;#106;avascript:alert(1))",
    "[x](java\\script:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    "![x](https://example.org/pixel.png)",
    '![x](x" onerror="alert(1))',
    "# heading {: onclick=alert(1) }",
    "```html onload=alert(1)\n<script>alert(1)</script>\n```",
    "``` { .x onclick=alert(1) }\ncode\n```",
    '*[ABC]: "><script>alert(1)</script>\n\nABC',
    "a[^1]\n\n[^1]: <script>alert(1)</script>",
    "| a |\n|---|\n| <script>alert(1)</script> |",
)


def test_nothing_in_a_page_can_run_or_load(subtests: pytest.Subtests) -> None:
    for page in HOSTILE_PAGES:
        with subtests.test(page=page):
            html = to_html(page, anchor="a", demote=2)
            tags = re.findall(r"<[a-zA-Z][^>]*>", html)
            assert not [tag for tag in tags if re.match(r"<(script|img|iframe|div onclick)", tag)]
            assert not [tag for tag in tags if re.search(r"\son\w+\s*=", tag)]
            assert not re.search(r'href="[^"]*(script|data):', html.replace("&#106;", "j"), re.IGNORECASE)


def test_raw_html_is_shown() -> None:
    assert "&lt;b&gt;bold&lt;/b&gt;" in to_html("a <b>bold</b> claim")


def test_pages_keep_their_markdown() -> None:
    html = to_html("# A\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n1. x\n\n```python\ny < 1\n```\n\n[^1]\n\n[^1]: note")
    for part in ('<h1 id="a">', "<table>", '<th scope="col">a</th>', "<ol>", "y &lt; 1", "footnote"):
        assert part in html


def test_embedded_pages_share_a_document() -> None:
    html = to_html("# Top\n\n[down](#what-to-do)\n\n## What to do\n", anchor="manual-W001", demote=2)
    assert '<h3 id="manual-W001-top">' in html
    assert '<h4 id="manual-W001-what-to-do">' in html
    assert 'href="#manual-W001-what-to-do"' in html


def test_links_between_pages_follow_the_format() -> None:
    assert sibling("W002.md") == "W002.html"
    assert sibling("general/preprocessing.md#resize") == "general/preprocessing.html#resize"
    assert sibling("https://example.org/x") == "https://example.org/x"
    assert 'href="W002.html"' in to_html("[x](W002.md)", link=sibling)
    assert 'href="https://example.org/a.md"' in to_html("[x](https://example.org/a.md)", link=sibling)


def test_a_page_finds_its_report_from_any_depth() -> None:
    assert 'href="../index.html"' in render_manual_page("W001", "# x")
    assert 'href="../../index.html"' in render_manual_page("general/x", "# x")


@pytest.mark.source("insights-definitions")
def test_the_glossary_holds_every_fact() -> None:
    rules = load_rulebase()
    page = glossary_page(rules)
    for scope in SCOPES:
        for path in fact_paths(scope):
            if path.startswith("model."):
                continue
            general = re.sub(r"(^|\.)(representative|validation)\.", r"\1data.", path)
            assert f"| `{general}` |" in page, path
            assert rules.hint(path) != rules.hints[""], f"say in rules/hints.yaml where {path} comes from"
    assert page.count("\n## ") == len(SCOPES)
    assert "<table>" in to_html(page)
