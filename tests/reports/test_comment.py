"""The comment on a pull request."""

import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import markdown_it
import pytest
from builders.gates import accepted, regression
from markdown_it.token import Token

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.block_markdown import inline_markdown
from quantmedic.reports.machines.comment import LENGTH_LIMIT, render_comment
from quantmedic.reports.write import write_report

READER = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
#: The only markup that is not Markdown, apart from the hidden first line.
HTML = re.compile(r"<details><summary>\d+ causes?</summary>\n?|</details>\n?|</?sub>")


def read(text: str) -> tuple[list[Token], list[Token]]:
    """Blocks of a comment, and what stands in its lines."""
    tokens = READER.parse(text)
    return tokens, [child for token in tokens for child in token.children or ()]


def test_comments_are_what_the_golden_files_hold(
    proven: Diagnosis, healthy: Diagnosis, golden: Callable[[str, str], None]
) -> None:
    golden("check.md", render_comment(regression(proven)))
    golden("check-accepted.md", render_comment(accepted(healthy)))


def test_hostile_names_are_inert(hostile_gate: Callable[[Diagnosis], Diagnosis], hostile_proven: Diagnosis) -> None:
    text = render_comment(hostile_gate(hostile_proven))
    assert all(line.isprintable() for line in text.split("\n"))
    blocks, inline = read(text)
    assert not [token for token in inline if token.type in ("link_open", "image")]
    first, *rest = [token.content for token in (*blocks, *inline) if token.type in ("html_block", "html_inline")]
    assert re.fullmatch(r"<!-- quantmedic: [\w /.:()+,=\[\]{}~%-]+ -->\n", first, re.ASCII)
    assert first.count("<") == first.count(">") == 1
    assert all(HTML.fullmatch(markup) for markup in rest), rest
    columns = 0
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not columns or not cells or cells == columns, line
        columns = cells


def test_names_notify_nobody_and_link_nowhere(subtests: pytest.Subtests) -> None:
    for name in ["@org/team", "see #12", "org/net#12", "https://evil.example", "www.evil.example"]:
        with subtests.test(name=name):
            assert not re.search(r"@\w|#\d|://|www\.\w", html.unescape(inline_markdown(name)))


@pytest.mark.thorough
def test_however_much_is_wrong_it_fits(proven: Diagnosis) -> None:
    found = regression(proven)
    assert found.check is not None
    wide = "&" * 700
    finding = found.check.findings[0].model_copy(update={"subject": wide, "fact": None, "message": wide, "name": wide})
    gate = found.check.gates[0].model_copy(update={"name": wide, "message": wide})
    use = found.check.exemptions[0].model_copy(update={"reason": wide, "rule": wide, "layers": (wide,)})
    check = found.check.model_copy(
        update={"findings": (finding,) * 3000, "gates": (gate,) * 500, "exemptions": (use,) * 500, "policy": wide}
    )
    lead = found.causes[0].model_copy(update={"cause": wide, "message": wide})
    huge = found.model_copy(update={"check": check, "causes": (lead,) * 200})
    text = render_comment(huge)
    assert len(text) <= LENGTH_LIMIT
    assert "REGRESSION" in text and "2999 more" not in text and "per_channel=True" in text


def test_at_most_twenty_findings_are_listed(diagnosis: Diagnosis) -> None:
    found = regression(diagnosis)
    assert found.check is not None
    many = found.check.model_copy(update={"findings": found.check.findings[:1] * 33})
    text = render_comment(found.model_copy(update={"check": many}))
    assert text.count("| W001 channel-range-imbalance |") == 20 and "and 13 more in the report" in text


def test_without_a_baseline_those_that_count_are_listed(diagnosis: Diagnosis) -> None:
    found = regression(diagnosis)
    assert found.check is not None
    text = render_comment(found.model_copy(update={"check": found.check.model_copy(update={"baseline": None})}))
    assert "### Findings that count" in text and "aseline" not in text.replace("quantmedic-baseline", "")
    assert text.count("| W001 channel-range-imbalance |") == 2


@pytest.mark.thorough
def test_it_is_written_beside_the_report(proven: Diagnosis, manuals: Mapping[str, str], tmp_path: Path) -> None:
    write_report(regression(proven), manuals, tmp_path, ("html",))
    assert not (tmp_path / "check.md").exists()
    write_report(regression(proven), manuals, tmp_path, ("markdown",))
    assert (tmp_path / "check.md").read_text(encoding="utf-8") == render_comment(regression(proven))
    write_report(proven, manuals, tmp_path, ("markdown",))
    assert not (tmp_path / "check.md").exists(), "a verdict of an earlier report would be taken for this one's"
