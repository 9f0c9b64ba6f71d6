"""Names and numbers as people read them."""

import math

import pytest

from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.reports import text
from quantmedic.reports.sections.proof import signed_gain


def test_numbers_have_three_significant_digits_and_counts_stay_exact(subtests: pytest.Subtests) -> None:
    for value, shown in [
        (None, "not measured"),
        (0, "0"),
        (0.0, "0"),
        (-0.0, "0"),
        (123456, "123456"),
        (148.3, "148"),
        (0.054321, "0.0543"),
        (1234.5, "1230"),
        (123456.0, "123000"),
        (2.147e9, "2.15e9"),
        (1.234e-7, "1.23e-7"),
        (999.6, "1000"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "not a number"),
    ]:
        with subtests.test(value=value, shown=shown):
            assert text.number(value) == shown


def test_levels_shares_and_metrics() -> None:
    assert text.decibels(12.44) == "12.4 dB"
    assert text.decibels(12.44, "+") == "+12.4 dB"
    assert text.decibels(-0.04) == "0.0 dB"
    assert text.decibels(None) == "not measured"
    assert text.decibels(math.inf) == "∞ dB"
    assert text.level(math.inf) == "∞"
    assert text.metric_value(0.7188, "top1") == "71.88 %"
    assert text.metric_change(0.0776, "top1") == "7.76 points"
    assert text.metric_value(3.14159, "mae") == "3.142"
    assert text.metric_change(None, "top1") == "not measured"
    assert text.percent(math.nan) == "not a number"


def test_what_is_better_small_rises() -> None:
    assert [text.loss_word(better) for better in (True, False, None)] == ["drop", "rise", "drop"]


def test_phrases_become_sentences() -> None:
    assert text.capital("int8 weights") == "Int8 weights"
    assert text.sentence("version 2.6") == "Version 2.6."
    assert text.sentence("Done.") == "Done."
    assert text.count(1, "layer") == "1 layer" and text.count(2, "layer") == "2 layers"
    assert text.count(2, "remedy", "remedies") == "2 remedies"


def test_measures_carry_the_units_that_help() -> None:
    assert text.measure(3.2, "bits") == "3.2 bits"
    assert text.measure(0.11, "ratio") == "0.11"
    assert text.measure(True) == "yes"
    assert text.measure((0.1, 0.2), "value") == "0.1, 0.2"
    assert text.measure(()) == "none"
    assert text.measure(None, "dB") == "not measured"
    assert text.measure("per_tensor") == "per_tensor"
    said = "these samples leave 38% of the ranges open, as many random validation samples 9%, and no draw as much"
    assert text.measure(f"{said}; {said}") == f"{said}; {said}"


def test_unprintable_characters_become_escapes_and_long_names_are_shortened() -> None:
    assert text.visible("a\x00b\u202ec\n") == "a\\u0000b\\u202ec\\u000a"
    assert text.visible("\U000e0001") == "\\U000e0001"
    assert text.visible("層 ☃") == "層 ☃"
    assert text.visible("x" * 500, 11) == "xxxxx…xxxxx"
    assert len(text.name("y" * 10_000)) == text.NAME_LIMIT
    assert text.name(None) == "not measured"


def test_every_fact_has_a_description() -> None:
    for scope in SCOPES:
        for path in fact_paths(scope):
            assert text.fact_info(path).description, f"{path} needs a description in engine/case/*_facts.py"
    assert text.fact_info("no.such.fact").description == ""


def test_links_to_files_beside_a_page_become_text_where_the_page_stands_alone() -> None:
    page = (
        'See [W003](W003.md#why), [the "start"](../README.md "title"), [top](#top) and ![a chart](graphs/mse.svg).\n'
        "Stay: [paper](https://arxiv.org/abs/1), [mail](mailto:a@example.org), `[x](y)` and \\[f\\](z).\n"
        "```python\nrow[0](x)\n```\n[after](x.md) [f](javascript:alert(1))\n"
    )
    assert text.without_links(page) == (
        'See W003, the "start", top and .\n'
        "Stay: [paper](https://arxiv.org/abs/1), [mail](mailto:a@example.org), `[x](y)` and \\[f\\](z).\n"
        "```python\nrow[0](x)\n```\nafter f\n"
    )


def test_links_between_pages_become_the_words_that_explain_takes() -> None:
    page = (
        "Where they [stretch a\nrange](../A001.md), see [W003](W003.md#why) and [top](#top), not\n\n"
        "![a chart](graphs/mse.svg) or [paper](https://arxiv.org/abs/1).\n```python\nrow[0](x.md)\n```\n"
        "[more](general/gptq.md), [Noise](D012.md) (below 0.1), ([S018](S016.md)), [All commands](commands.md)\n"
        "[`quantmedic explain running`](running.md)\n"
    )
    assert text.with_page_names(page) == (
        "Where they stretch a\nrange (A001), see W003 and top, not\n\n"
        " or [paper](https://arxiv.org/abs/1).\n```python\nrow[0](x.md)\n```\n"
        "more (gptq), Noise (D012; below 0.1), (S018), All commands (commands)\n"
        "`quantmedic explain running`\n"
    )


def test_a_gain_has_one_sign(subtests: pytest.Subtests) -> None:
    for gain, metric, shown in [
        (-0.0, "rmse", "±0"),
        (0.0, "top1", "±0 points"),
        (-0.00001, "top1", "±0 points"),
        (0.793, "top1", "+79.30 points"),
        (-0.5, "rmse", "-0.5"),
    ]:
        with subtests.test(gain=gain, metric=metric):
            assert signed_gain(gain, metric) == shown
