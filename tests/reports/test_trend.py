"""Recorded checks as plots, Markdown, JSON, graphs, a page, and as a section of the report."""

import json
import math
import re
import xml.etree.ElementTree as etree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import markdown_it
import pytest
from builders.gates import accepted, regression
from builders.hostile import HOSTILE_NAMES

from quantmedic.engine.contract.check import Figure, HistoryRun, Trend
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.gate.history import Series, series_of
from quantmedic.reports.charts.trend import figure_value, series_to_draw, trend_charts
from quantmedic.reports.files import TREND_TEXTS, trend_files
from quantmedic.reports.machines.records import trend_json
from quantmedic.reports.markdown import trend_markdown
from quantmedic.reports.page.records import trend_page
from quantmedic.reports.sections.history import history_box
from quantmedic.reports.terminal.trend import render_trend
from quantmedic.reports.write import write_report

SVG = "{http://www.w3.org/2000/svg}"


def nightly(runs: int = 12) -> Trend:
    """A model that drifts towards its limit and falls beyond it in the last two runs."""
    return Trend(model="mobilenet_v2_int8.onnx", runs=tuple(_night(night, runs) for night in range(runs)))


def _night(night: int, runs: int) -> HistoryRun:
    fell = runs > 2 and night >= runs - 2
    drop = round(0.4 + 0.03 * night + 0.1 * (night * 7 % 5 - 2) + (1.4 if fell else 0), 4)
    figures = [
        Figure(
            name="drop top1",
            unit="points",
            value=drop,
            low=drop - 0.25,
            high=drop + 0.3,
            limit=1.0 if night > 3 else 0.8,
            better="lower",
        ),
        Figure(name="findings", value=2.0 if fell else 0.0, better="lower"),
        Figure(name="sqnr_db", unit="dB", value=math.inf if night == 2 else 33 - 3 * drop, better="higher"),
        Figure(name="causes high", value=1.0 if fell else 0.0, better="lower"),
        Figure(name="size ratio", unit="ratio", value=0.26, better="lower"),
    ]
    if night % 3:
        figures.append(Figure(name="latency ratio", unit="ratio", value=0.5 + 0.02 * (night % 4), better="lower"))
    return HistoryRun(
        number=night + 1,
        time=f"2026-11-{night % 28 + 1:02}T03:00:00Z",
        label=f"{0xABC123 + 7919 * night:07x}" if night % 4 else None,
        verdict="REGRESSION" if fell else "INSUFFICIENT_DATA" if night == 5 else "ACCEPT",
        quantized_sha256=f"{night + 1:064x}",
        figures=tuple(figures),
    )


def hostile() -> Trend:
    runs = tuple(
        HistoryRun(
            number=place,
            time=name[:100],
            label=name,
            verdict=name,
            quantized_sha256=name,
            figures=tuple(
                Figure(name=other, unit=other, value=place, limit=2.0, better="lower") for other in HOSTILE_NAMES
            ),
        )
        for place, name in enumerate(HOSTILE_NAMES, 1)
    )
    return Trend(model=HOSTILE_NAMES[1], runs=runs)


def only(trend: Trend, name: str) -> Series:
    return next(series for series in series_of(trend) if series.name == name)


def constant(value: float, runs: int = 3, **fields: Any) -> Trend:
    figure = Figure.model_validate({"name": "f", "value": value} | fields)
    return Trend(
        model="m",
        runs=tuple(
            HistoryRun(number=n, time=f"2026-11-0{n}T00:00:00Z", verdict="ACCEPT", figures=(figure,))
            for n in range(1, runs + 1)
        ),
    )


# --- The terminal -----------------------------------------------------------------------------------------------------


def test_the_terminal_shows_what_the_golden_file_shows(golden: Callable[[str, str], None]) -> None:
    golden("trend.txt", render_trend(nightly()))
    golden("trend-ascii.txt", render_trend(nightly(), width=80, ascii_only=True))
    golden("trend.md", trend_markdown(nightly(), pictures=True))


def test_nothing_is_wider_than_the_terminal(subtests: pytest.Subtests) -> None:
    for width in [60, 100, 160]:
        for runs in [1, 2, 12, 50, 90, 300]:
            with subtests.test(width=width, runs=runs):
                for ascii_only in (False, True):
                    lines = render_trend(nightly(runs), width=width, ascii_only=ascii_only).splitlines()
                    table = (
                        ("figure", "findings", "size", "latency", "causes") if width < 100 else ()
                    )  # its columns keep their width
                    assert not [line for line in lines if len(line) > width and not line.startswith(table)]


def test_ascii_is_ascii_and_colour_is_only_colour() -> None:
    assert render_trend(nightly(), ascii_only=True).isascii()
    plain, coloured = render_trend(nightly()), render_trend(nightly(), color=True)
    bare = "".join(f"{line.rstrip()}\n" for line in re.sub(r"\x1b\[\d+m", "", coloured).splitlines())
    assert bare == plain and coloured != plain
    assert "\x1b[31mnow 2.13" in coloured, "beyond the limit is red"


def plotted(text: str, name: str) -> list[str]:
    """Rows of the plot of one figure, without their axis."""
    part = text[re.search(rf"^{re.escape(name)}   ", text, re.MULTILINE).start() :].partition("\n\n")[0]
    return [line[11:] for line in part.splitlines() if re.match(r" {10}[│|]|.{10}[┤|]", line)]


def test_each_run_has_its_point_at_its_height() -> None:
    trend = constant(1.0, 4)
    values = (1.0, 3.0, 2.0, 3.0)
    runs = tuple(
        run.model_copy(update={"figures": (Figure(name="f", value=value),)})
        for run, value in zip(trend.runs, values, strict=True)
    )
    rows = plotted(render_trend(trend.model_copy(update={"runs": runs}), ascii_only=True).replace("f\n", "f   \n"), "f")
    points = sorted((column, row) for row, text in enumerate(rows) for column, char in enumerate(text) if char == "*")
    assert [column for column, _ in points] == [4, 12, 20, 28], "the same room for each run"
    heights = [row for _, row in points]
    assert heights[1] == heights[3] < heights[2] < heights[0]


def test_a_gap_is_not_bridged() -> None:
    (chart,) = trend_charts(nightly(), [only(nightly(), "latency ratio")])
    assert len(chart.points) == 8 and len(chart.lines) == 4, "every third run lacks it"
    (chart,) = trend_charts(nightly(), [only(nightly(), "sqnr_db")])
    assert [point.infinite for point in chart.points].count(True) == 1 and len(chart.lines) == 2


def test_the_limit_is_that_of_each_run() -> None:
    (chart,) = trend_charts(nightly(), [only(nightly(), "drop top1")])
    first, second = chart.limits
    assert first.y > second.y and first.end == second.start == pytest.approx(66 + 4 * 520 / 12, abs=0.05)
    assert chart.limit_text == "limit 1.00"
    assert [point.flagged for point in chart.points] == [False] * 10 + [True] * 2
    assert [mark.text for mark in chart.marks] == ["?", "×", "×"]


def test_what_may_be_noise_is_neither_good_nor_bad() -> None:
    lines = {line.name: line for line in history_box(nightly(11)).lines}
    assert lines["drop top1"].shift.endswith("since run 10, within the noise") and lines["drop top1"].look == ""
    assert lines["sqnr_db"].look == "" and lines["sqnr_db"].shift == "+0.8 since run 10", "it has no interval"
    lines = {
        line.name: line for line in history_box(nightly(11).model_copy(update={"runs": nightly(11).runs[:10]})).lines
    }
    assert (lines["drop top1"].look, lines["drop top1"].beyond) == ("bad", True)
    assert lines["drop top1"].shift.endswith("since run 9, beyond the noise")
    assert (lines["findings"].shift, lines["findings"].look) == ("+2 since run 9", "bad"), "a count is no estimate"


def test_a_figure_that_the_last_run_lacks_is_not_measured() -> None:
    (line,) = (line for line in history_box(nightly(13)).lines if line.name == "latency ratio")
    assert (line.last, line.shift, line.limit) == ("not measured", "", "")


def test_a_flat_line_is_drawn_too(subtests: pytest.Subtests) -> None:
    for value in [0.0, -3.0, 1e-12, 1e12, math.inf, -math.inf]:
        with subtests.test(value=value):
            assert render_trend(constant(value))
            for render in TREND_TEXTS.values():
                assert render(constant(value))
            for content in trend_files(constant(value), ["markdown"]).values():
                assert b"nan" not in content and b'inf"' not in content


def test_one_run_and_none() -> None:
    box = history_box(nightly(1))
    assert box.charts == () and box.summary.startswith("1 run on 2026-11-01, 1 accepted")
    assert "drop top1" in render_trend(nightly(1))
    empty = Trend(model="m", runs=())
    assert history_box(empty) is None and history_box(None) is None
    assert render_trend(empty) == "m: no run\n"
    with pytest.raises(QuantmedicError, match="no run"):
        trend_page(empty)


def test_graphs_are_of_figures_that_matter() -> None:
    found = series_of(nightly())
    assert [series.name for series in series_to_draw(found, 4)] == ["drop top1", "findings", "sqnr_db", "causes high"]
    assert [series.name for series in series_to_draw(found, 5)][-1] == "latency ratio", "not the one that never changes"
    assert len(series_to_draw(found, 24)) == 6


def test_values_have_the_digits_of_their_unit() -> None:
    assert figure_value(7.756, "points") == "7.76" and figure_value(-0.001, "%", "+") == "+0.00"
    assert figure_value(31.24, "dB") == "31.2" and figure_value(0.5, "dB", "+") == "+0.5"
    assert figure_value(2.0, None) == "2" and figure_value(2.0, None, "+") == "+2" and figure_value(-2.0, None) == "-2"
    assert figure_value(math.inf, "dB") == "∞" and figure_value(0.2634, "ratio") == "0.263"


# --- Files ------------------------------------------------------------------------------------------------------------


def test_json_is_the_record(golden: Callable[[str, str], None]) -> None:
    text = trend_json(nightly())
    assert text.isascii()
    found = json.loads(text)
    assert [run["number"] for run in found["runs"]] == list(range(1, 13))
    assert found["runs"][0]["figures"][0]["limit"] == 0.8
    assert found["runs"][2]["figures"][2]["value"] is None, "JSON has no infinity"


def test_graphs_are_well_formed_and_told() -> None:
    files = {name: content for name, content in trend_files(nightly(), ["markdown"]).items() if name.endswith(".svg")}
    assert sorted(files) == [f"trend-{place}.svg" for place in range(1, 7)]
    for content in files.values():
        root = etree.fromstring(content)
        assert root.tag == f"{SVG}svg" and root.get("role") == "img"
        assert root.findtext(f"{SVG}title") == root.get("aria-label") and root.findtext(f"{SVG}desc")
        width, height = (float(root.get(key)) for key in ("width", "height"))
        for dot in root.iter(f"{SVG}circle"):
            assert 0 <= float(dot.get("cx")) <= width and 0 <= float(dot.get("cy")) <= height
    assert "run 12, 2026" not in etree.fromstring(files["trend-1.svg"]).findtext(f"{SVG}desc").split(";")[0]


def test_every_number_of_the_page_is_in_the_text_for_others() -> None:
    page, text = trend_page(nightly()), trend_markdown(nightly())
    for line in history_box(nightly()).lines:
        for value in (line.first, line.last, line.lowest, line.highest, line.shift):
            assert value in page and value in text


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(QuantmedicError, match="unknown format"):
        trend_files(nightly(), ["pdf"])


# --- Hostile names ----------------------------------------------------------------------------------------------------


def test_hostile_names_are_harmless_in_text() -> None:
    for ascii_only in (False, True):
        text = render_trend(hostile(), ascii_only=ascii_only)
        assert all(line.isprintable() for line in text.splitlines())
        assert not re.search(r"^\s*(::|##\[)", text, re.MULTILINE)
        assert max(map(len, text.splitlines())) < 400


def test_hostile_names_are_harmless_in_markup() -> None:
    page = trend_page(hostile())
    assert "<script" not in page and "<img" not in page and "{{7*7}}" in page
    for name, content in trend_files(hostile(), ["markdown"]).items():
        if name.endswith(".svg"):
            assert not list(etree.fromstring(content).iter(f"{SVG}script"))
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(trend_markdown(hostile()))
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    assert trend_json(hostile()).isascii() and json.loads(trend_json(hostile()))["model"] == HOSTILE_NAMES[1]


# --- The report -------------------------------------------------------------------------------------------------------


def test_the_report_has_a_section_where_runs_were_recorded(
    diagnosis: Diagnosis, manuals: Mapping[str, str], tmp_path: Path
) -> None:
    write_report(regression(diagnosis), manuals, tmp_path, ["html", "markdown", "json"])
    page, text = ((tmp_path / file).read_text(encoding="utf-8") for file in ("index.html", "report.md"))
    assert '<section id="history"' in page and '<a href="#history">History</a>' in page
    assert "## History\n\n6 runs from 2026-11-01 to 2026-11-06, 4 accepted" in text
    assert "+1.00 since run 5, beyond the noise" in text and "![drop top1 over 6 runs](graphs/trend-1.svg)" in text
    assert {path.name for path in (tmp_path / "graphs").glob("trend-*")} == {"trend-1.svg", "trend-2.svg"}
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert len(found["check"]["trend"]["runs"]) == 6
    write_report(accepted(diagnosis), manuals, tmp_path, ["html", "markdown"])
    page, text = ((tmp_path / file).read_text(encoding="utf-8") for file in ("index.html", "report.md"))
    assert 'id="history"' not in page and "## History" not in text
    assert not list((tmp_path / "graphs").glob("trend-*")), "graphs of an earlier report are gone"
