"""Table and graph of a sensitivity record, made of the record alone."""

import csv
import io
import json
import math
import re
import xml.etree.ElementTree as etree
from collections.abc import Callable
from itertools import pairwise

import markdown_it
import pytest

from quantmedic.engine.contract.searches import MODES, Outcome, SensitivityRecord, SensitivityUnit
from quantmedic.reports.charts.layer_panels import sensitivity_chart
from quantmedic.reports.machines.spreadsheets import sensitivity_csv
from quantmedic.reports.search_formats import render_search, search_files, search_json, search_markdown
from quantmedic.reports.sections.search_view import search_document
from quantmedic.reports.templating import svg

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    '=HYPERLINK("http://evil.example","layer")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    " +1",
    "-2",
    "＝1",
    "</text><script>alert(1)</script>",
    "`code` | [x](javascript:alert(1)) <b> ![i](http://evil.example)",
    "line\nbreak\ttab\r\x1b[31mred\u202e",
    '"quoted", with comma',
    "::error::annotation",
    "a" * 5000,
)


def made(names: tuple[str, ...], *, metric: str | None = "top1") -> SensitivityRecord:
    """A record as independent layers would give it: every third layer is ten times as noisy."""
    noises = [1e-4 * (1 + k % 5) * (10 if k % 3 == 0 else 1) for k in range(len(names))]

    def outcome(noise: float) -> Outcome:
        found = Outcome(sqnr_db=-10 * math.log10(noise) if noise > 0 else math.inf, agreement=1 - min(noise, 1.0))
        if metric is None:
            return found
        drop = min(5 * noise, 0.9)
        values = {"metric": 0.95 - drop, "drop": drop, "drop_low": drop - 0.02, "drop_high": drop + 0.02}
        return found.model_copy(update=values)

    whole = outcome(sum(noises))
    record = SensitivityRecord(
        quantmedic_version="1",
        float_model="float.onnx",
        quantized_model="int8.onnx",
        float_sha256="f",
        quantized_sha256="q",
        data="val.npz",
        data_sha256="d",
        samples=64,
        seed=0,
        batch_size=16,
        metric=metric,
        metric_output=None,
        float_metric=None if metric is None else 0.95,
        modes=MODES,
        units=tuple(SensitivityUnit(name=name, op_type="Conv", quantized=("weight", "output")) for name in names),
        unsimulated=(),
        columns=None,
        deployed=outcome(1.1 * sum(noises)),
        simulated=whole,
    )
    for mode, unit in record.planned:
        noise = {"one": noises[unit], "all-but-one": sum(noises) - noises[unit], "cumulative": sum(noises[: unit + 1])}
        record = record.add_run(mode, unit, outcome(noise[mode]))
    return record


def layers(count: int) -> tuple[str, ...]:
    return tuple(f"/block.{k}/conv/Conv" for k in range(count))


@pytest.fixture(scope="module")
def record() -> SensitivityRecord:
    return made(("image (input)", *layers(11)))


@pytest.fixture(scope="module")
def hostile() -> SensitivityRecord:
    return made(HOSTILE)


def test_texts_and_graph_are_what_the_golden_files_hold(
    record: SensitivityRecord, golden: Callable[[str, str], None]
) -> None:
    golden("sensitivity.svg", svg(sensitivity_chart(record)))
    golden("sensitivity.md", search_markdown(record))
    golden("sensitivity.txt", render_search(record))


def test_a_metric_of_which_less_is_better_rises(record: SensitivityRecord) -> None:
    rising = record.model_copy(update={"higher_is_better": False})
    assert "rise in top-1 [95 %]" in render_search(rising)
    assert r"| rise in top-1 \[95 %\] |" in search_markdown(rising)


def test_the_same_record_gives_the_same_bytes_also_when_it_was_stored(record: SensitivityRecord) -> None:
    again = SensitivityRecord.model_validate_json(search_json(record))
    assert again == record
    assert search_files(again) == search_files(record)


@pytest.mark.thorough
def test_the_graph_is_readable_at_any_size(subtests: pytest.Subtests) -> None:
    for size in [1, 5, 40, 150]:
        with subtests.test(size=size):
            chart = sensitivity_chart(made(layers(size)))
            assert [len(panel.marks) for panel in chart.panels[:2]] == [size, size]
            places = [label.at for label in chart.names]
            assert all(b - a >= 10.9 for a, b in pairwise(places))
            assert all(chart.left <= place <= chart.right for place in places)
            assert len(chart.names) == size if size <= 40 else 20 < len(chart.names) <= 48
            red = {mark.x for panel in chart.panels for mark in panel.marks if mark.flagged}
            assert red and {label.x for label in chart.names if label.flagged} == red
            for panel in chart.panels:
                assert all(panel.top <= mark.y <= panel.bottom for mark in panel.marks)
            assert len(svg(sensitivity_chart(made(layers(size))))) < 200_000


def test_worse_is_up_and_bars_of_absent_layers_hang_from_the_line(record: SensitivityRecord) -> None:
    one, absent, cumulative = sensitivity_chart(record).panels
    assert min(one.marks, key=lambda mark: mark.y).x == one.marks[record.rank_runs("one")[0].unit].x
    assert one.base == one.bottom and absent.base == absent.levels[0].y
    assert all(mark.y >= absent.base for mark in absent.marks)
    heights = [mark.y for mark in cumulative.marks]
    assert heights == sorted(heights, reverse=True) and heights[-1] == cumulative.levels[0].y


def test_a_network_without_noise_and_layers_without_effect_are_drawn() -> None:
    silent = Outcome(sqnr_db=math.inf, agreement=1.0)
    record = made(layers(3)).model_copy(update={"simulated": silent, "deployed": silent, "runs": ()})
    for mode, unit in record.planned:
        record = record.add_run(mode, unit, silent)
    text = svg(sensitivity_chart(record))
    assert "nan" not in text and ">inf" not in text
    assert all(panel.levels == () for panel in sensitivity_chart(record).panels)
    assert "not measured" in render_search(record) and "∞" in render_search(record)


def test_an_interrupted_record_says_so(record: SensitivityRecord) -> None:
    for count in (0, 7):
        part = record.model_copy(update={"runs": record.runs[:count]})
        for text in (render_search(part), search_markdown(part)):
            assert f"interrupted after {count} of 36 runs" in text
        etree.fromstring(svg(sensitivity_chart(part)))


def test_a_simulation_that_is_not_the_model_is_told(record: SensitivityRecord) -> None:
    far = record.model_copy(update={"deployed": Outcome(sqnr_db=3.0), "unsimulated": tuple(layers(7))})
    text = render_search(far)
    assert "not as noisy as the quantized model" in text
    assert "/block.4/conv/Conv and 2 more" in text
    assert "warning" not in render_search(record)


def test_a_faithful_simulation_is_within_six_decibels(record: SensitivityRecord) -> None:
    for gap, faithful in [(0.0, True), (6.0, True), (6.1, False), (-7.0, False)]:
        deployed = Outcome(sqnr_db=record.simulated.sqnr_db + gap)
        warnings = search_document(record.model_copy(update={"deployed": deployed})).notices
        assert any("not as noisy" in warning for warning in warnings) != faithful, gap


def test_the_leading_layers_are_shown_or_all(record: SensitivityRecord) -> None:
    long = made(layers(60))
    short, verbose = render_search(long), render_search(long, verbose=True)
    assert short.count("50 more: --verbose") == 3 and "the largest steps" in short
    assert "more:" not in verbose and verbose.count("/block.59/conv/Conv") == 3
    assert all(len(line) <= 108 for line in verbose.splitlines())
    assert render_search(long, ascii_only=True).isascii()


def test_without_labels_no_column_speaks_of_a_metric() -> None:
    record = made(layers(4), metric=None)
    assert "drop" not in sensitivity_csv(record) + search_markdown(record) + render_search(record)


def test_csv_holds_every_run_with_every_digit(record: SensitivityRecord) -> None:
    rows = list(csv.DictReader(io.StringIO(sensitivity_csv(record))))
    assert [(row["mode"], int(row["place"])) for row in rows] == list(record.planned)
    assert [float(row["sqnr_db"]) for row in rows] == [run.sqnr_db for run in record.runs]
    assert [float(row["drop_high"]) for row in rows] == [run.drop_high for run in record.runs]


class TestHostileNames:
    def test_no_cell_is_a_formula(self, hostile: SensitivityRecord) -> None:
        rows = list(csv.reader(io.StringIO(sensitivity_csv(hostile))))
        assert len({len(row) for row in rows}) == 1 and len(rows) == 1 + 3 * len(HOSTILE)
        for row in rows[1:]:
            name = row[2]
            assert name.strip()[0] not in "=+-@＝|%" and name.isprintable()
        assert rows[1][2] == "'" + HOSTILE[0]

    def test_markdown_holds_no_markup(self, hostile: SensitivityRecord) -> None:
        text = search_markdown(hostile)
        tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
        inline = [child for token in tokens for child in token.children or ()]
        assert not [t for t in (*tokens, *inline) if t.type in ("html_block", "html_inline")]
        assert {t.attrs["src"] for t in inline if t.type == "image"} == {"sensitivity.svg"}
        assert {t.attrs["href"] for t in inline if t.type == "link_open"} <= {"sensitivity.csv"}
        assert sum(t.type == "tr_open" for t in tokens) == 3 * (1 + len(HOSTILE))
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
        assert len(columns) == 1

    def test_graph_holds_no_elements_of_theirs(self, hostile: SensitivityRecord) -> None:
        root = etree.fromstring(svg(sensitivity_chart(hostile)))
        drawn = {"svg", "style", "rect", "title", "desc", "text", "line", "path", "polyline", "g", "circle"}
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= drawn
        assert "\x1b" not in svg(sensitivity_chart(hostile)) and len(svg(sensitivity_chart(hostile))) < 60_000

    def test_terminal_and_json_stay_harmless(self, hostile: SensitivityRecord) -> None:
        text = render_search(hostile, verbose=True)
        assert "\x1b" not in text and "\u202e" not in text
        assert not re.search(r"^\s*::", text, re.M)
        stored = search_json(hostile)
        assert "<" not in stored and stored.isascii()
        assert [unit["name"] for unit in json.loads(stored)["units"]] == list(HOSTILE)
