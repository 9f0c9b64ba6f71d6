"""The Markdown report."""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise

import markdown_it
import pytest
from builders.gates import regression

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.block_markdown import code_fence, code_span, inline_markdown
from quantmedic.reports.context import build_context
from quantmedic.reports.write import render_markdown


def exempted(diagnosis: Diagnosis, cause: str) -> Diagnosis:
    """The diagnosis with a gate whose policy exempts one cause as a whole."""
    found = regression(diagnosis)
    assert found.check is not None
    free = {"exemption": 0, "gated": False}
    rows = tuple(row.model_copy(update=free) if row.cause == cause else row for row in found.check.findings)
    return found.model_copy(update={"check": found.check.model_copy(update={"findings": rows})})


def test_reports_are_what_the_golden_files_hold(
    diagnosis: Diagnosis, proven: Diagnosis, manuals: Mapping[str, str], golden: Callable[[str, str], None]
) -> None:
    golden("report.md", render_markdown(build_context(diagnosis, manuals)))
    golden("report-proven.md", render_markdown(build_context(proven, manuals)))
    text = render_markdown(build_context(regression(proven), {}))
    golden("report-gate.md", text[text.index("## Gate") : text.index("Evidence")])


def test_what_is_exempted_is_struck_through(proven: Diagnosis) -> None:
    text = render_markdown(build_context(exempted(proven, "too-few-samples"), {}))
    tokens = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inline = [token.children or [] for token in tokens if token.type == "inline"]
    struck = [after.content for line in inline for token, after in pairwise(line) if token.type == "s_open"]
    assert {"too-few-samples", "representative"} <= set(struck) and "channel-range-imbalance" not in struck
    assert "\nExempted: swish is fixed in the accelerator, VIS-214 (until 2026-11-30)." in text
    assert "\n1 of 3 layers is exempted: swish" in text


def test_every_table_row_has_the_columns_of_its_head(
    subtests: pytest.Subtests, manuals: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    for name in ["diagnosis", "proven", "healthy", "hostile", "hostile_proven"]:
        with subtests.test(name=name):
            found = request.getfixturevalue(name)
            gate = request.getfixturevalue("hostile_gate") if name.startswith("hostile") else regression
            text = render_markdown(build_context(gate(found), manuals))
            columns = 0
            for line in text.splitlines():
                cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
                assert not columns or not cells or cells == columns, line
                columns = cells


@pytest.mark.thorough
def test_no_value_becomes_markup(
    hostile_gate: Callable[[Diagnosis], Diagnosis], hostile_proven: Diagnosis, manuals: Mapping[str, str]
) -> None:
    text = render_markdown(build_context(hostile_gate(hostile_proven), manuals))
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    assert not [t for t in (*tokens, *inline) if t.type in ("html_block", "html_inline")]
    links = {t.attrs["href"] for t in inline if t.type == "link_open"}
    assert all(re.fullmatch(r"manual/[\w/-]+\.md|prescription\.py|index\.html", link) for link in links), links
    images = {t.attrs["src"] for t in inline if t.type == "image"}
    assert all(re.fullmatch(r"graphs/[\w-]+\.svg", image) for image in images) and len(images) >= 6


def test_escapes() -> None:
    assert inline_markdown("a|b <b> `c` *d* _e_ snake_case & [x](y)") == (
        "a\\|b &lt;b&gt; \\`c\\` \\*d\\* \\_e\\_ snake_case &amp; \\[x\\](y)"
    )
    assert inline_markdown("line\nbreak") == "line\\\\u000abreak"
    assert code_span("features.1.conv") == "`features.1.conv`"
    assert code_span("a`b") == "a\\`b"
    assert code_span("a|b") == "a\\|b"
    assert code_fence("```\nx\n```").startswith("````\n")
