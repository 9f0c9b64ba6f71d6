"""Two cases side by side as text, Markdown, JSON, a graph and a page."""

import json
import math
import re
import xml.etree.ElementTree as etree
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import markdown_it
import pytest
from builders.comparisons import compared, facts, judged, layer, pair, table
from builders.hostile import HOSTILE_NAMES
from builders.html_pages import Page

import quantmedic
from quantmedic.engine.errors import OutputError, QuantmedicError
from quantmedic.engine.versus.cause_changes import FactChange
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.blocks import Column, Table
from quantmedic.reports.charts.comparison import compare_chart
from quantmedic.reports.comparison_formats import (
    comparison_files,
    comparison_markdown,
    comparison_page,
    render_comparison,
)
from quantmedic.reports.machines.records import record_json
from quantmedic.reports.templating import svg
from quantmedic.reports.terminal.block_lines import render_table

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (*HOSTILE_NAMES[:-1], "=1+1", HOSTILE_NAMES[-1])


@pytest.fixture(scope="module")
def record() -> ComparisonReport:
    return compared(*pair())


@pytest.fixture(scope="module")
def hostile() -> ComparisonReport:
    return compared(*pair(HOSTILE))


@pytest.fixture(scope="module")
def unchanged() -> ComparisonReport:
    one, _ = pair()
    return compared(one, one)


@pytest.fixture(scope="module")
def apart() -> ComparisonReport:
    """Nothing in common."""
    return compared(
        judged(facts([layer("a")])), judged(facts([layer("b", op_type="Gemm")]), {"validation": table(first=999)})
    )


@pytest.fixture(scope="module")
def every(
    record: ComparisonReport, hostile: ComparisonReport, unchanged: ComparisonReport, apart: ComparisonReport
) -> dict[str, ComparisonReport]:
    """All of them."""
    return {"record": record, "hostile": hostile, "unchanged": unchanged, "apart": apart}


def test_no_cell_of_the_table_is_cut_off() -> None:
    row = ("perplexity of float", "0.02029 (-0.0004228 … 0.04139)", "better by 0.09078, paired on 400 texts " * 2, "")
    lines = list(render_table(Table("sides", [Column(head) for head in ("", "before", "after", "change")], [row])))
    assert max(map(len, lines)) <= 100
    starts = [0, lines[0].index("before"), lines[0].index("after"), lines[0].index("change")]
    columns = list(pairwise([*starts, None]))
    told = [" ".join(text for line in lines[1:] if (text := line[start:end].strip())) for start, end in columns]
    assert told == [text.strip() for text in row]


def test_texts_are_what_the_golden_files_hold(record: ComparisonReport, golden: Callable[[str, str], None]) -> None:
    golden("compare.txt", render_comparison(record))
    golden("compare.md", comparison_markdown(record, picture=True))
    golden("compare.json", record_json(record))


def test_the_answer_comes_first_and_fits_one_line(record: ComparisonReport) -> None:
    quiet = render_comparison(record, verbosity="quiet")
    assert quiet.startswith("BETTER  top-1 75.00 → 85.00 %, +10.00 points (")
    assert "output 15.0 → 21.0 dB; 1 cause new, 1 better and worse, 1 healed" in " ".join(quiet.split())
    assert render_comparison(record).startswith(quiet)


def test_a_case_against_itself_lists_nothing(unchanged: ComparisonReport) -> None:
    text = render_comparison(unchanged)
    assert text.startswith("UNCHANGED  top-1 75.00 % in both; output 15.0 dB in both; causes as before\n")
    assert "none changed by 0.5 dB or more" in text and "No setting that is measured was changed" in text
    for word in ("notice", "healed", "new", "worse", "W001", "block"):
        assert word not in text
    verbose = render_comparison(unchanged, verbosity="verbose")
    assert "W001" in verbose and "weight-spread" in verbose


def test_what_cannot_be_told_is_said(apart: ComparisonReport) -> None:
    text = render_comparison(apart)
    assert text.startswith("UNDECIDED  output 30.0 → 30.0 dB on other samples")
    for notice in ("no sample is in both validation sets", "not judged on the same samples", "no layer of one case"):
        assert notice in " ".join(text.split())
    assert "no layer was measured in both cases" in comparison_page(apart).lower()


def test_colours_only_where_asked(record: ComparisonReport) -> None:
    assert "\x1b" not in render_comparison(record)
    assert render_comparison(record, color=True).startswith("\x1b[1;32mBETTER\x1b[0m  top-1")
    assert render_comparison(record, ascii_only=True).isascii()


def test_every_text_fits_and_holds_no_markup_of_others(
    subtests: pytest.Subtests, every: dict[str, ComparisonReport]
) -> None:
    for name, record in every.items():
        with subtests.test(name):
            for verbosity in ("quiet", "normal", "verbose"):
                text = render_comparison(record, verbosity=verbosity)
                assert max(map(len, text.splitlines())) <= 100
                assert not re.search(r"^\s*::|##\[", text, re.MULTILINE)
                assert not [char for char in text if not char.isprintable() and char != "\n"]
            text = comparison_markdown(record, picture=True)
            tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
            inline = [child for token in tokens for child in token.children or ()]
            assert not [t for t in (*tokens, *inline) if t.type in ("html_block", "html_inline", "link_open")]
            assert {t.attrs["src"] for t in inline if t.type == "image"} <= {"compare.svg"}
            columns = 0
            for line in text.splitlines():
                cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
                assert not columns or not cells or cells == columns, line
                columns = cells


def test_every_page_and_its_graph_are_sound(subtests: pytest.Subtests, every: dict[str, ComparisonReport]) -> None:
    for name, record in every.items():
        with subtests.test(name):
            page = Page(comparison_page(record))
            page.assert_sound()
            assert "script" not in page.tags and len(page.html) < 150_000
            assert page.values("content")[0] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
            root = etree.fromstring(svg(compare_chart(record)))
            title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
            assert title is not None and desc is not None and desc.text and root.get("aria-label") == title.text
            drawn = {tag.tag for tag in root.iter()}
            assert not drawn & {f"{SVG}script", f"{SVG}image", f"{SVG}a", f"{SVG}foreignObject"}


@pytest.mark.thorough
def test_every_number_of_the_answer_equals_json(subtests: pytest.Subtests, every: dict[str, ComparisonReport]) -> None:
    for name, record in every.items():
        with subtests.test(name):
            found = json.loads(record_json(record))
            page = "".join(Page(comparison_page(record)).text)
            for text in (render_comparison(record), comparison_markdown(record, picture=True), page):
                assert found["word"].upper().replace("-", " ") in text.upper()
                for output in found["outputs"]:
                    assert f"{output['after']:.1f} dB" in text
                if found["metric"] is not None:
                    assert f"{100 * found['after']['metric']['quantized_value']:.2f} %" in text
                if found["metric"] is not None and found["metric"]["gain"]:
                    for key in ("gain", "low", "high"):
                        assert f"{100 * found['metric'][key]:.2f}" in text


def test_names_stay_text(hostile: ComparisonReport) -> None:
    html = comparison_page(hostile)
    assert "<script" not in html.lower() and "</script" not in html.lower()
    assert "{{7*7}}" in html and "49" not in re.findall(r"<h1>.*?</h1>", html)[0]
    text = record_json(hostile)
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text)["layers"][0]["name"] == "</script>"


def test_costs_stand_in_units_that_people_read(record: ComparisonReport) -> None:
    costs = (
        FactChange(fact="latency_quantized_ms", unit="ms", before=4.0, after=3.0),
        FactChange(fact="operations", unit=None, before=12_400_000, after=12_400_000),
        FactChange(fact="integer_operations_share", unit="share", before=1.0, after=0.5),
        FactChange(fact="bytes_float", unit="bytes", before=None, after=2_500_000),
    )
    lines = render_comparison(record.model_copy(update={"costs": costs})).splitlines()
    for expected in (
        ["latency", "4 ms", "3 ms", "× 0.75"],
        ["multiply-adds", "12.4 million", "12.4 million"],
        ["of them integer", "100.0 %", "50.0 %"],
        ["float model", "-", "2.5 MB"],
    ):
        assert expected in [re.split(r" {2,}", line.strip()) for line in lines]


# The graph


def test_an_arrow_up_is_a_layer_that_got_worse(record: ComparisonReport) -> None:
    chart = compare_chart(record)
    looks = {stem.tip.split()[1].rstrip(":"): stem for stem in chart.stems}
    assert looks["block3/conv"].look == "worse" and looks["block3/conv"].end < looks["block3/conv"].start
    assert looks["block11/conv"].look == "better" and looks["block11/conv"].end > looks["block11/conv"].start
    assert looks["new/name"].look == "same"
    assert "worse: 3 block3/conv: 31.0 → 19.0 dB (-12.0)" in chart.description
    assert chart.summary.endswith("2 layers worse, 2 better, of 12")


@pytest.mark.thorough
def test_the_graph_is_readable_at_any_size() -> None:
    for size in (1, 40, 1000):
        before = judged(facts([layer(f"layer{place}", 30.0) for place in range(size)]))
        after = judged(facts([layer(f"layer{place}", 30.0 - place % 7) for place in range(size)]))
        record = compared(before, after)
        chart = compare_chart(record)
        assert all(chart.top <= y <= chart.bottom for stem in chart.stems for y in (stem.start, stem.end))
        assert all(b.at - a.at >= 10.9 for a, b in pairwise(chart.names))
        assert all(chart.left <= name.at <= chart.right for name in chart.names)
        assert len(chart.names) <= 40
        assert len(comparison_page(record)) < 60_000 + 120 * size


def test_layers_without_error_are_drawn_at_the_foot() -> None:
    exact = judged(facts([layer("a", math.inf), layer("b", 30.0), layer("c", 10.0)]))
    noisy = judged(facts([layer("a", 20.0), layer("b", math.inf), layer("c", 10.0)]))
    chart = compare_chart(compared(exact, noisy))
    text = svg(compare_chart(compared(exact, noisy)))
    assert [stem.look for stem in chart.stems] == ["worse", "better", "same"]
    assert chart.stems[0].start == chart.stems[1].end == chart.bottom
    assert "nan" not in text and "inf" not in text


# Files


def test_files_are_whole_or_not_there(record: ComparisonReport, tmp_path: Path) -> None:
    written = quantmedic.write_comparison(record, tmp_path / "new" / "folder")
    names = {file.path.name for file in written}
    assert names == {"compare.html", "compare.md", "compare.svg", "compare.json"}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == names
    assert all(file.size == file.path.stat().st_size for file in written)
    assert comparison_files(record, ["json"])["compare.json"].decode() == record_json(record)
    with pytest.raises(QuantmedicError, match="unknown format 'pdf'"):
        comparison_files(record, ["pdf"])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        quantmedic.write_comparison(record, tmp_path / "file")
