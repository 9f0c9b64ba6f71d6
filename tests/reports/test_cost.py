"""What quantization gave for what it cost: figures as the diagnosis has them, and words where it has none."""

from collections.abc import Mapping

import pytest

from quantmedic.engine.case.facts import KernelFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.markdown import render_markdown
from quantmedic.reports.page.html import render_index
from quantmedic.reports.sections.cost import ASK, SLOWEST, cost_box
from quantmedic.reports.text import NOT_MEASURED


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
    box = cost_box(profiled)
    lines = {line.label: (line.float_value, line.quantized, line.ratio) for line in box.lines}
    assert lines["bytes"] == ("14 MB", "3.65 MB", "0.261")
    assert lines["multiply-adds of one sample"] == ("301 M", "301 M", "")
    assert lines["of these in integer kernels"] == ("", "98.0 %", "")
    assert lines["median latency, 1 sample a run"] == ("30 ms (29 … 31.5)", "15 ms (14.8 … 15.4)", "0.5")
    assert lines["top-1"] == ("71.88 %", "64.12 %", "")
    assert box.summary == (
        "The quantized model beside the float one: 26 % of the bytes, 50 % of the time, top-1 71.88 % → 64.12 %."
    )
    assert "66 runs each" in box.how and "1 thread on" in box.how


@pytest.mark.source("insights-profiling")
def test_the_slowest_come_first_and_the_rest_is_told(profiled: Diagnosis) -> None:
    box = cost_box(profiled)
    assert len(box.layers) == SLOWEST
    assert box.layers[0].name == profiled.layers[-1].name and box.layers[0].time == "0.53"
    assert [line.op_type for line in box.kernels] == ["QLinearConv", "Reorder<b>|"]
    assert box.elsewhere.startswith("4.6 % of the time belongs to no layer")


def test_what_was_not_measured_says_how_to_measure_it(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    box = cost_box(diagnosis)
    lines = {line.label: line for line in box.lines}
    assert lines["median latency"].float_value == lines["median latency"].quantized == ASK
    assert lines["multiply-adds of one sample"].quantized == NOT_MEASURED
    assert "--profile" in box.how and not box.kernels and not box.layers
    context = build_context(diagnosis, manuals)
    for text in (render_markdown(context), render_index(context, diagnosis)):
        assert "What it cost" in text and ASK in text


def test_a_framework_that_times_no_operators_says_so(profiled: Diagnosis) -> None:
    model = profiled.model.model_copy(update={"kernels": (), "framework": "torch"})
    box = cost_box(profiled.model_copy(update={"model": model}))
    assert "in ONNX models only" in box.how and box.kernels == () and box.elsewhere == ""


def test_every_format_tells_the_same(profiled: Diagnosis, manuals: Mapping[str, str]) -> None:
    context = build_context(profiled, manuals)
    page, text = render_index(context, profiled), render_markdown(context)
    for figure in ("0.261", "15 ms (14.8 … 15.4)", "98.0 %", "26 % of the bytes", "93.3 %"):
        assert figure in page and figure in text
    assert "Reorder&lt;b&gt;|" in page and "Reorder<b>" not in text
