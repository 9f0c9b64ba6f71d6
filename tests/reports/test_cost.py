"""What quantization gave for what it cost: figures as the diagnosis has them, and words where it has none."""

from collections.abc import Mapping

import pytest
from builders.tables import column, shown, tables_of

from quantmedic.engine.case.facts import KernelFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.block_markdown import blocks_markdown
from quantmedic.reports.context import build_context
from quantmedic.reports.page.html import render_index
from quantmedic.reports.sections.cost import ASK, SLOWEST, cost_section
from quantmedic.reports.write import render_markdown


@pytest.fixture
def profiled(diagnosis: Diagnosis) -> Diagnosis:
    """The network of 53 layers as if it had been timed: each layer takes a little longer than the one before."""
    layers = [row.model_copy(update={"time_ms": (i + 1) / 100, "time_share": (i + 1) / 1500, "operations": 10**i % 97})
              for i, row in enumerate(diagnosis.layers)]  # fmt: skip
    kernels = (
        KernelFacts(op_type="QLinearConv", count=52, time_ms=14.0, time_share=14 / 15),
        KernelFacts(op_type="Reorder<b>|", count=3, time_ms=1.0, time_share=1 / 15),
    )
    timed = {
        "operations": 300_774_272,
        "integer_operations_share": 0.98,
        "size_ratio": 3_650_000 / 14_000_000,
        "latency_float_ms": 30.0,
        "latency_float_low_ms": 29.0,
        "latency_float_high_ms": 31.5,
        "latency_quantized_ms": 15.0,
        "latency_quantized_low_ms": 14.8,
        "latency_quantized_high_ms": 15.4,
        "latency_ratio": 0.5,
        "latency_runs": 66,
        "latency_threads": 1,
        "latency_batch": 1,
        "kernels": kernels,
    }
    return diagnosis.model_copy(update={"layers": tuple(layers), "model": diagnosis.model.model_copy(update=timed)})


@pytest.mark.source("insights-profiling", "insights-memory")
def test_both_models_stand_side_by_side(profiled: Diagnosis) -> None:
    lines = {label: values for label, *values in shown(tables_of(cost_section(profiled).blocks)[0])}
    assert lines["bytes"] == ["14 MB", "3.65 MB", "0.261"]
    assert lines["multiply-adds of one sample"] == ["301 M", "301 M", ""]
    assert lines["of these in integer kernels"] == ["", "98.0 %", ""]
    assert lines["median latency, 1 sample a run"] == ["30 ms (29 … 31.5)", "15 ms (14.8 … 15.4)", "0.5"]
    assert lines["top-1"] == ["71.88 %", "64.12 %", ""]
    text = blocks_markdown(cost_section(profiled).blocks)
    assert (
        "The quantized model beside the float one: 26 % of the bytes, 50 % of the time, top-1 71.88 % → 64.12 %."
    ) in text
    assert "66 runs each" in text and "1 thread on" in text


@pytest.mark.source("insights-profiling")
def test_the_slowest_come_first_and_the_rest_is_told(profiled: Diagnosis) -> None:
    blocks = cost_section(profiled).blocks
    _, kernels, layers = tables_of(blocks)
    assert len(layers.rows) == SLOWEST
    assert column(layers, "layer")[0] == profiled.layers[-1].name and column(layers, "time in ms")[0] == "0.53"
    assert column(kernels, "executed as") == ["QLinearConv", "Reorder<b>|"]
    assert "4.6 % of the time belongs to no layer" in blocks_markdown(blocks)


def test_what_was_not_measured_says_how_to_measure_it(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    blocks = cost_section(diagnosis).blocks
    (table,) = tables_of(blocks)
    lines = {label: values for label, *values in shown(table)}
    assert lines["median latency"][:2] == [ASK, ASK]
    assert lines["multiply-adds of one sample"][1] == "-"
    assert "--profile" in blocks_markdown(blocks[:1])
    context = build_context(diagnosis, manuals)
    for text in (render_markdown(context), render_index(context, diagnosis)):
        assert "What it cost" in text and ASK in text


def test_a_framework_that_times_no_operators_says_so(profiled: Diagnosis) -> None:
    model = profiled.model.model_copy(update={"kernels": (), "framework": "torch"})
    blocks = cost_section(profiled.model_copy(update={"model": model})).blocks
    assert "in ONNX models only" in blocks_markdown(blocks)
    assert len(tables_of(blocks)) == 1 and "belongs to no layer" not in blocks_markdown(blocks)


def test_every_format_tells_the_same(profiled: Diagnosis, manuals: Mapping[str, str]) -> None:
    context = build_context(profiled, manuals)
    page, text = render_index(context, profiled), render_markdown(context)
    for figure in ("0.261", "15 ms (14.8 … 15.4)", "98.0 %", "26 % of the bytes", "93.3 %"):
        assert figure in page and figure in text
    assert "Reorder&lt;b&gt;|" in page and "Reorder<b>" not in text
