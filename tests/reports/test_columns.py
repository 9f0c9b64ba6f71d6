"""Columns of the layer table, and how the page carries them."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, WeightFacts, fact_paths
from quantmedic.reports.page import layer_table
from quantmedic.reports.sections.columns import NOT_SHOWN, Column, layer_columns, least_wanted, presets
from quantmedic.reports.text import level, number


@pytest.fixture(scope="module")
def facts(case: Callable[..., CaseFacts]) -> CaseFacts:
    return case(tuple(f"conv{index}" for index in range(12)))


def columns_of(facts: CaseFacts, codes: tuple[str, ...] = ()) -> dict[str, Column]:
    return {c.key: c for c in layer_columns(facts.layers, [codes for _ in facts.layers])}


def test_every_measured_fact_of_a_layer_is_a_column_but_names_and_repetitions(facts: CaseFacts) -> None:
    columns = columns_of(facts)
    for path in fact_paths("layer"):
        if path.startswith(("model.", "output.data.")) or path in NOT_SHOWN:
            assert path not in columns
            continue
        values: list[Any] = list(facts.layers)
        for field in path.split("."):
            values = [getattr(view, field) for view in values]
        measured = any(value is not None and value != () for value in values)
        assert (path in columns) == measured
        if measured:
            assert columns[path].values == tuple(values)


@pytest.mark.source("insights-weight-table")
def test_variances_are_squares_and_say_so(facts: CaseFacts) -> None:
    columns = columns_of(facts)
    std = columns["output.validation.values.std"]
    variance = columns["output.validation.values.variance"]
    assert variance.values == tuple(value * value for value in std.values)
    assert (variance.unit, variance.label, variance.group) == ("value²", "variance", std.group)


def test_titles_are_short_and_tell_columns_apart(facts: CaseFacts) -> None:
    columns = columns_of(facts)
    titles = [column.title for column in columns.values()]
    assert len(titles) == len(set(titles))
    assert columns["output.validation.accumulated.sqnr_db"].title == "accumulated error, validation: SQNR"
    assert max(len(column.label) for column in columns.values()) <= 36


def test_the_default_rests_on_the_set_that_is_judged(subtests: pytest.Subtests, case: Callable[..., CaseFacts]) -> None:
    for roles, judged in [(("representative",), "representative"), (None, "validation")]:
        with subtests.test(roles=roles, judged=judged):
            names = ("a", "b", "c")
            facts = case(names, roles=roles) if roles else case(names)
            ready = presets(columns_of(facts).values(), judged)
            assert next(iter(ready)) == "default"
            assert f"output.{judged}.accumulated.sqnr_db" in ready["default"].columns
            assert f"output.{judged}.values.min" in ready["default"].columns
            assert ready["activations"].sort == f"-output.{judged}.accumulated.mse"


def test_ready_tables_have_only_columns_that_exist(facts: CaseFacts) -> None:
    columns = columns_of(facts)
    for preset in presets(columns.values(), "validation").values():
        assert preset.columns and set(preset.columns) <= set(columns)
        assert preset.sort is None or preset.sort.removeprefix("-") in columns


def test_weights_alone_have_a_table_of_their_own() -> None:
    layers = [
        LayerFacts(name=f"w{i}", index=i, weight=WeightFacts(min=-1.0, max=1.0 * i, std=0.5, format="gptq"))
        for i in range(3)
    ]
    ready = presets(layer_columns(layers, [()] * 3), "representative")
    assert "weight.format" in ready["default"].columns
    assert list(ready) == ["default", "weights", "all"]
    assert {"weight.min", "weight.variance"} <= set(ready["weights"].columns)


def test_what_the_page_needs_is_never_left_out(facts: CaseFacts) -> None:
    columns = list(columns_of(facts).values())
    dispensable = least_wanted(columns, "validation")
    assert dispensable and len(dispensable) < len(columns)
    needed = {
        "name",
        "findings",
        "output.representative.accumulated.mse",
        "output.quantizer.scale",
        "weight.rounding.mse",
    }
    assert not needed & set(dispensable)


def read(column: Column) -> list[Any]:
    """The values as ``data.js`` reads them."""
    found: list[Any] = json.loads(layer_table._values_text(column))
    return [float(value) if column.numeric and isinstance(value, str) else value for value in found]


reals = st.floats(-1e12, 1e12).filter(lambda x: x == 0 or abs(x) > 1e-40)
others = st.sampled_from([None, math.inf, -math.inf, math.nan])


def column(values: list[Any], unit: str | None = None) -> Column:
    return Column("k", "k", "g", "", unit, "", tuple(values))


@given(st.lists(st.one_of(reals, others), min_size=1, max_size=30))
def test_numbers_show_as_they_are(values: list[Any]) -> None:
    found = read(column([*values, 1.5]))
    for value, written in zip(values, found, strict=False):
        assert _shown(number, written) == _shown(number, value)


@given(st.lists(st.one_of(st.floats(-900, 900), others), min_size=1, max_size=30))
def test_levels_show_as_they_are(values: list[Any]) -> None:
    found = read(column([*values, 1.5], "dB"))
    for value, written in zip(values, found, strict=False):
        assert _shown(level, written) == _shown(level, value)


def _shown(write: Callable[[Any], str], value: Any) -> str:
    """As people read it, 0 without its sign."""
    if isinstance(value, str):
        value = float(value)
    text = write(None if value is None else float(value))
    return "0" if text == "-0" else text


def test_digits_at_the_middle_keep_their_side() -> None:
    values = [0.6854987, 1.23499999, 62.45, 3.125e-05, 0.4995, 6.525e-05]
    assert [number(value) for value in read(column(values))] == [number(value) for value in values]


def test_counts_flags_texts_and_codes_survive() -> None:
    for values in ([10**9, None, 7], [True, False, None], ["a", "b", "a", None], [(), ("W001", "A003"), ()]):
        found = read(column(values))
        assert [tuple(v) if isinstance(v, list) else v for v in found] == values


def test_a_large_case_leaves_out_what_is_least_wanted_and_says_so(
    facts: CaseFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = list(columns_of(facts).values())
    monkeypatch.setattr(layer_table, "MOST_BYTES", 6_000)
    data = layer_table.table_data(columns, "validation", len(facts.layers))
    kept = {f"{g['prefix']}.{c['key']}".lstrip(".") for g in data["groups"] for c in g["columns"]}
    assert data["left_out"] and len(kept) + len(data["left_out"]) == len(columns)
    assert {"name", "output.validation.accumulated.sqnr_db", "findings"} <= kept
    # What names another column as its equal has that column at hand.
    assert {c["same"] for g in data["groups"] for c in g["columns"] if "same" in c} <= kept
