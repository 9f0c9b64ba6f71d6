"""The layer table: sorting, filters, columns, links, keys, CSV, and how fast it is."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.reports.sections.selection import select_layers

pytestmark = pytest.mark.thorough

SQNR = "output.validation.accumulated.sqnr_db"
MSE = "output.validation.accumulated.mse"
ROWS = ".layers-scroll tbody tr[data-position]"


@pytest.fixture
def table(opened: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a report at its table."""

    def open_table(folder: Path, hash_: str = "", **options: Any) -> Any:
        page = opened(folder, hash_, **options)
        page.evaluate("reveal('table')")
        page.evaluate("document.getElementById('layers').scrollIntoView()")
        page.wait_for_selector(".layers-scroll tbody tr[data-position]")
        return page

    return open_table


@pytest.fixture(scope="session")
def hundreds(made: Callable[..., Any], report: Callable[[Any], Path]) -> Path:
    """The report of many more layers than fit on a screen."""
    return report(made(200, 4))


def positions(page: Any) -> list[int]:
    return [int(text) for text in page.eval_on_selector_all(ROWS, "rows => rows.map(row => row.dataset.position)")]


def facts_of(folder: Path) -> Any:
    return quantmedic.inspect(quantmedic.load_case(folder / "quantmedic.case"))


def head(page: Any, key: str) -> Any:
    return page.locator(f'.layers-scroll thead button[data-key="{key}"]')


def count(page: Any) -> str:
    return str(page.locator(".layers-count").inner_text())


@pytest.mark.nightly
def test_values_are_those_of_the_case(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    opened = select_layers(facts_of(demo), table="all")
    keys = page.evaluate("[...layers.columns.keys()]")
    assert keys == [column.key for column in opened.columns]
    for column in opened.columns:
        expression = f"layers.columns.get({json.dumps(column.key)}).values.map((v) => Number.isNaN(v) ? 'NaN' : v)"
        found = page.evaluate(expression)
        for value, read in zip(column.values, found, strict=True):
            if isinstance(value, float) and math.isfinite(value):
                assert read == pytest.approx(value, rel=1e-4, abs=6e-4 if column.unit == "dB" else 0)
            elif isinstance(value, tuple):
                assert tuple(read) == value
            elif not isinstance(value, float):
                assert read == value
    assert page.evaluate(f"layers.value('{SQNR}', 0)") == page.evaluate(
        "layers.error('accumulated', 'sqnr_db', 'validation', 0)"
    )


def test_a_click_on_a_heading_sorts_and_the_third_restores(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    before = positions(page)
    assert before == sorted(before)
    for order, direction in (("", "ascending"), (":desc", "descending")):
        head(page, SQNR).click()
        expected = select_layers(facts_of(demo), sort=SQNR + order).rows
        assert positions(page) == list(expected[: len(positions(page))])
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == direction
        assert f"sort={SQNR}" in page.url.replace("%3A", ":") and page.url.endswith("desc") == bool(order)
        assert page.evaluate("document.activeElement.dataset.key") == SQNR
    head(page, SQNR).click()
    assert positions(page) == before and page.locator("th[aria-sort]").count() == 0 and "sort" not in page.url


@pytest.mark.nightly
def test_what_was_not_measured_comes_last(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo, "#columns=name,weight.std")
    for _ in range(2):
        head(page, "weight.std").click()
        values = page.eval_on_selector_all(f"{ROWS} td", "cells => cells.map(cell => cell.textContent)")
        known = [value for value in values if value != "–"]
        assert "–" in values and values[: len(known)] == known


def test_filters_work_together(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    facts = facts_of(demo).facts.layers
    page.get_by_label("Filter layers").fill("residual conv")
    assert "of 27 layers" in count(page)
    assert all("residual" in facts[p].name and "conv" in facts[p].name.lower() for p in positions(page))
    page.get_by_label("Operator", exact=True).select_option("Sigmoid")
    assert count(page) == "0 of 27 layers"
    page.get_by_label("Filter layers").fill("")
    assert {facts[p].op_type for p in positions(page)} == {"Sigmoid"}
    assert page.locator("#announcer").inner_text() == count(page)
    page.get_by_label("Operator", exact=True).select_option("")
    page.get_by_label("Column to compare").select_option(SQNR)
    page.get_by_label("Comparison").select_option("<")
    page.get_by_label("Value to compare with").fill("5")
    expected = [i for i, f in enumerate(facts) if f.output.validation.accumulated.sqnr_db < 5]
    assert count(page) == f"{len(expected)} of 27 layers" and 0 < len(expected) < 27
    page.get_by_label("Value to compare with").fill("")
    assert count(page) == "27 of 27 layers"


@pytest.mark.nightly
def test_flagged_layers_by_button_and_key(table: Callable[..., Any], thousand_narrow: Path) -> None:
    page = table(thousand_narrow)
    page.keyboard.press("f")
    report = json.loads((thousand_narrow / "report.json").read_text())
    flagged = [row for row in report["layers"] if row["degraded"] or row["findings"]]
    assert count(page) == f"{len(flagged)} of 1000 layers" and 0 < len(flagged) < 1000
    assert page.get_by_role("button", name="flagged only").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="flagged only").click()
    assert count(page) == "1000 of 1000 layers"


@pytest.mark.nightly
def test_ready_tables_and_single_columns(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    page.get_by_role("button", name="activations").click()
    assert page.locator("th[aria-sort='descending'] button").get_attribute("data-key") == MSE
    page.get_by_role("button", name="weights").click()
    keys = page.eval_on_selector_all(".layers-scroll thead button", "all => all.map(button => button.dataset.key)")
    assert {"weight.min", "weight.max", "weight.mean", "weight.std", "weight.variance"} <= set(keys)
    page.get_by_role("button", name="columns …").click()
    find = page.get_by_label("Find a column")
    assert find.evaluate("node => node === document.activeElement")
    find.fill("kurtosis")
    boxes = page.locator(".layers-columns input[type=checkbox]:visible")
    assert boxes.count() == 1
    boxes.check()
    assert head(page, "weight.kurtosis").is_visible() and "weight.kurtosis" in page.url
    boxes.uncheck()
    assert head(page, "weight.kurtosis").count() == 0
    page.keyboard.press("Escape")
    assert not page.locator(".layers-columns").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "columns …"


def test_a_link_restores_everything_and_back_works(table: Callable[..., Any], demo: Path) -> None:
    hash_ = f"#sort={SQNR}:desc&filter=conv&columns=errors&type=Conv&where={SQNR}<4&flagged=1"
    page = table(demo, hash_.replace("<", "%3C"))
    assert page.get_by_label("Filter layers").input_value() == "conv"
    assert page.get_by_label("Operator", exact=True).input_value() == "Conv"
    assert page.get_by_label("Value to compare with").input_value() == "4"
    assert page.get_by_role("button", name="errors").get_attribute("aria-pressed") == "true"
    facts = facts_of(demo).facts.layers
    shown = [facts[p].output.validation.accumulated.sqnr_db for p in positions(page)]
    assert shown == sorted(shown, reverse=True) and max(shown) < 4
    url = page.url
    page.evaluate("location.hash = ''")
    page.wait_for_function("document.querySelector('.layers-count').textContent === '27 of 27 layers'")
    page.go_back()
    page.wait_for_function("document.querySelector('.layers-count').textContent !== '27 of 27 layers'")
    assert page.url == url


@pytest.mark.nightly
def test_a_link_that_makes_no_sense_does_no_harm(
    subtests: pytest.Subtests, table: Callable[..., Any], demo: Path
) -> None:
    for hash_ in ["#sort=nothing&columns=none,%00&where=x<&type=No", "#columns=&sort=:desc", "#where=name<3"]:
        with subtests.test(hash_=hash_):
            page = table(demo, "#layer=nothing")
            page.evaluate(f"location.hash = {json.dumps(hash_)}")
            page.wait_for_timeout(50)
            assert "of 27 layers" in count(page) and page.locator(".notice:has-text('cannot be shown')").count() == 0


def test_arrows_move_and_enter_opens(table: Callable[..., Any], hundreds: Path) -> None:
    page = table(hundreds)
    grid = page.locator(".layers-scroll table")
    page.evaluate("window.heard = []; on('hover', (position) => heard.push(position))")
    grid.focus()
    for _ in range(40):
        page.keyboard.press("ArrowDown")
    active = page.locator(".layers-active")
    assert active.get_attribute("data-position") == "40"
    assert grid.get_attribute("aria-activedescendant") == active.get_attribute("id")
    box, area = active.bounding_box(), page.locator(".layers-scroll").bounding_box()
    assert area["y"] < box["y"] and box["y"] + box["height"] <= area["y"] + area["height"] + 1
    assert page.evaluate("heard.at(-1)") == 40
    page.keyboard.press("Enter")
    assert page.evaluate("selected") == 40 and active.get_attribute("aria-selected") == "true"
    page.evaluate("select(null)")
    grid.focus()
    page.keyboard.press("End")
    assert page.locator(".layers-active").get_attribute("data-position") == "199"
    assert page.locator(".layers-active").get_attribute("aria-rowindex") == "201"
    page.keyboard.press("Home")
    assert page.locator(".layers-active").get_attribute("data-position") == "0"


@pytest.mark.nightly
def test_who_closes_a_layer_is_back_at_its_row(
    subtests: pytest.Subtests, table: Callable[..., Any], demo: Path
) -> None:
    for close in ["Escape", "button"]:
        with subtests.test(close=close):
            page = table(demo)
            page.locator(".layers-scroll table").focus()
            for key in ("ArrowDown", "ArrowDown", "Enter"):
                page.keyboard.press(key)
            chosen = page.evaluate("selected")
            assert page.evaluate("document.activeElement.closest('#drawer') !== null")
            if close == "Escape":
                page.keyboard.press("Escape")
            else:
                page.locator("#drawer-close").focus()
                page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.matches('.layers-scroll table')")
            assert page.locator(".layers-active").get_attribute("data-position") == str(chosen)
            page.keyboard.press("ArrowDown")
            assert page.locator(".layers-active").get_attribute("data-position") == str(chosen + 1)


def test_every_control_is_reached_by_the_tab_key(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    page.evaluate("reveal('charts'), reveal('graph')")
    page.wait_for_selector(".model-view:not([aria-busy]) .box")
    # What a widget holds is moved to by arrows: one of it takes the focus.
    unreachable = page.evaluate("""() =>
      [...document.querySelectorAll("button, a[href], summary, input, select, [onclick]")]
      .filter((node) => node.checkVisibility() && !node.disabled && node.tabIndex < 0)
      .filter((node) => !node.closest("[role=grid], [role=tree], [role=radiogroup], [role=tablist], [role=toolbar]"))
      .map((node) => node.outerHTML.slice(0, 120))""")
    assert unreachable == []


@pytest.mark.nightly
def test_what_is_selected_elsewhere_is_shown_here(table: Callable[..., Any], thousand_narrow: Path) -> None:
    page = table(thousand_narrow)
    page.evaluate("select(777)")
    row = page.locator("tr[aria-selected=true]")
    assert row.get_attribute("data-position") == "777"
    box, area = row.bounding_box(), page.locator(".layers-scroll").bounding_box()
    assert area["y"] < box["y"] < area["y"] + area["height"]
    page.evaluate("hover(778)")
    assert page.locator(".layers-hover").get_attribute("data-position") == "778"


@pytest.mark.nightly
def test_pointing_at_a_row_tells_the_others_and_a_click_selects(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    page.evaluate("window.heard = []; on('hover', (position) => heard.push(position))")
    page.locator(f"{ROWS} >> nth=3").locator("td").nth(1).hover()
    assert page.evaluate("heard.at(-1)") == 3
    page.locator(f"{ROWS} >> nth=3").locator("td").nth(1).click()
    assert page.evaluate("selected") == 3 and "layer=" in page.url


def test_few_rows_are_in_the_document_wherever_one_scrolls(table: Callable[..., Any], hundreds: Path) -> None:
    page = table(hundreds, "#columns=all")
    assert page.locator(".layers-scroll table").get_attribute("aria-rowcount") == "201"
    for top in (0, 1_000, 3_000, 10**6):
        page.evaluate(f"document.querySelector('.layers-scroll').scrollTop = {top}")
        page.wait_for_timeout(60)
        rows = positions(page)
        assert 15 < len(rows) <= 200 and rows == list(range(rows[0], rows[0] + len(rows)))
        assert page.locator(".layers-scroll tbody :is(td, th)").count() < 2000
    assert rows[-1] == 199
    page.evaluate("document.querySelector('.layers-scroll').scrollLeft = 1e6")
    page.wait_for_timeout(60)
    last = page.evaluate("[...layers.columns.keys()].length")
    assert page.locator(f"{ROWS} >> nth=0").locator(":scope > *").last.evaluate("cell => cell.ariaColIndex") == str(
        last
    )


def saved(page: Any, button: str) -> list[list[str]]:
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.nightly
def test_csv_holds_the_filtered_rows(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo, f"#columns=name,{SQNR},weight.std,findings&sort={SQNR}&filter=conv")
    expected = select_layers(facts_of(demo), columns=["name", SQNR, "weight.std"], sort=SQNR, text="conv")
    keys, *lines = saved(page, "save as CSV")
    assert keys == ["name", SQNR, "weight.std", "findings"]
    names, levels, deviations = (column.values for column in expected.columns)
    assert [line[0] for line in lines] == [names[place] for place in expected.rows]
    assert [float(line[1]) for line in lines] == pytest.approx([levels[p] for p in expected.rows], abs=6e-4)
    assert [line[2] == "" for line in lines] == [deviations[place] is None for place in expected.rows]
    keys, *lines = saved(page, "CSV, all columns")
    assert len(keys) == page.evaluate("layers.columns.size") and len(lines) == len(expected.rows)


@pytest.mark.nightly
def test_names_stay_text_in_the_table_and_in_csv(
    table: Callable[..., Any], demo_case: Case, report: Callable[[Any], Path]
) -> None:
    evil = ("=cmd|'/c calc'!A1", "<img src=x onerror=alert(1)>", "+1", "-1", "@x", 'a"b,c')
    record = demo_case.record
    operators = tuple(
        operator.model_copy(update={"name": name, "float_name": name})
        for operator, name in zip(record.operators, evil, strict=False)
    )
    record = record.model_copy(update={"operators": operators + record.operators[len(evil) :]})
    page = table(report(replace(demo_case, record=record)))
    names = page.eval_on_selector_all(f"{ROWS} th", "cells => cells.map(cell => cell.title)")
    assert names[: len(evil)] == list(evil)
    _, *lines = saved(page, "save as CSV")
    assert [line[1] for line in lines[: len(evil)]] == [f"'{name}" if name[0] in "=+-@" else name for name in evil]


@pytest.mark.nightly
def test_colour_comes_with_a_mark_and_only_beyond_the_threshold(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo)
    limit = page.evaluate("section('errors').limits.sqnr_db")
    beyond = page.eval_on_selector_all(".layers-scroll .beyond", "cells => cells.map(cell => cell.textContent)")
    assert beyond and all(text.startswith("● ") and float(text[2:]) < limit for text in beyond)


@pytest.mark.nightly
def test_a_narrow_page_keeps_the_name_in_view(table: Callable[..., Any], demo: Path) -> None:
    page = table(demo, viewport={"width": 390, "height": 844})
    assert page.evaluate("document.getElementById('layers').scrollWidth") <= 390
    page.evaluate("document.querySelector('.layers-scroll').scrollLeft = 400")
    area = page.locator(".layers-scroll").bounding_box()
    name = page.locator(f"{ROWS} >> nth=0").locator("th").bounding_box()
    assert abs(name["x"] - area["x"]) < 3 and name["width"] < area["width"] / 2 + 5
