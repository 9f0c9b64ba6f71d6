"""What quantization gave for what it cost: both models' bytes, operations and time beside both accuracies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from quantmedic.engine.case.facts import ModelFacts, OutputFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.text import (
    NOT_MEASURED,
    count,
    decibels,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    visible,
)

#: Layers listed by their time.
SLOWEST = 10
#: How to measure what takes time.
ASK = f"{NOT_MEASURED}: --profile"


@dataclass(frozen=True)
class CostLine:
    """One quantity of both models."""

    label: Annotated[str, "what it is"]
    float_value: Annotated[str, "of the float model; empty where it has none"]
    quantized: Annotated[str, "of the quantized model; empty where it has none"]
    ratio: Annotated[str, "quantized over float; empty where that means nothing"]


@dataclass(frozen=True)
class KernelLine:
    """All operators of one kind as the runtime executes them."""

    op_type: Annotated[str, "kind of operator"]
    count: Annotated[str, "how many there are"]
    time: Annotated[str, "milliseconds of one run"]
    share: Annotated[str, "share of the time of all operators"]


@dataclass(frozen=True)
class SlowLayer:
    """One layer that takes time."""

    name: Annotated[str, "name of the layer"]
    link: Annotated[str, "the same whole and percent-encoded, as the page's address has it"]
    op_type: Annotated[str, "operator type"]
    executed_as: Annotated[str, "integer or float kernel"]
    operations: Annotated[str, "multiply-adds of one sample"]
    time: Annotated[str, "milliseconds of one run"]
    share: Annotated[str, "share of the time of all operators"]


@dataclass(frozen=True)
class CostBox:
    """What quantization gave for what it cost."""

    summary: Annotated[str, "bytes, time and metric in one sentence; empty where none is known"]
    lines: Annotated[tuple[CostLine, ...], "one line per quantity"]
    how: Annotated[str, "how latency was measured, or how to measure it"]
    kernels: Annotated[tuple[KernelLine, ...], "kinds of operators, slowest first; empty where not measured"]
    layers: Annotated[tuple[SlowLayer, ...], "the slowest layers; empty where not measured"]
    elsewhere: Annotated[str, "time of operators that belong to no layer, as a sentence; may be empty"]


def cost_box(diagnosis: Diagnosis) -> CostBox:
    """Both models' cost; what was not measured says how to measure it."""
    model = diagnosis.model
    timed = sorted((row for row in diagnosis.layers if row.time_ms), key=lambda row: -(row.time_ms or 0.0))
    return CostBox(
        summary=_ratios_text(diagnosis),
        lines=tuple(_cost_lines(diagnosis)),
        how=_latency_method(model),
        kernels=tuple(
            KernelLine(visible(k.op_type or "?"), number(k.count), _milliseconds(k.time_ms), _share_text(k.time_share))
            for k in model.kernels
        ),
        layers=tuple(
            SlowLayer(
                name=name(row.float_name or row.name),
                link=quote(visible(row.name), safe=""),
                op_type=visible(row.op_type),
                executed_as=row.executed_as or NOT_MEASURED,
                operations=_amount(row.operations),
                time=_milliseconds(row.time_ms),
                share=_share_text(row.time_share),
            )
            for row in timed[:SLOWEST]
        ),
        elsewhere=_elsewhere(diagnosis),
    )


def _ratios_text(diagnosis: Diagnosis) -> str:
    """What is left of bytes and time, and the metric from float to quantized: a ratio of accuracies says little."""
    model, metrics = diagnosis.model, diagnosis.metrics
    known = (("bytes", model.size_ratio), ("time", model.latency_ratio))
    parts = [f"{percent(ratio, 0)} of the {what}" for what, ratio in known if ratio is not None]
    if metrics.float_value is not None and metrics.quantized_value is not None:
        values = (metric_value(value, metrics.name) for value in (metrics.float_value, metrics.quantized_value))
        parts.append(f"{metric_label(metrics.name)} {' → '.join(values)}")
    return f"The quantized model beside the float one: {', '.join(parts)}." if parts else ""


def _cost_lines(diagnosis: Diagnosis) -> Iterator[CostLine]:
    model, metrics = diagnosis.model, diagnosis.metrics
    yield CostLine(
        "bytes",
        _megabytes_text(model.bytes_float),
        _megabytes_text(model.bytes_quantized),
        _ratio_text(model.size_ratio),
    )
    operations = _amount(model.operations)
    yield CostLine("multiply-adds of one sample", operations, operations, "")
    yield CostLine("of these in integer kernels", "", _share_text(model.integer_operations_share), "")
    yield CostLine(
        f"median latency, {count(model.latency_batch, 'sample')} a run" if model.latency_batch else "median latency",
        _latency_text(model.latency_float_ms, model.latency_float_low_ms, model.latency_float_high_ms),
        _latency_text(model.latency_quantized_ms, model.latency_quantized_low_ms, model.latency_quantized_high_ms),
        _ratio_text(model.latency_ratio),
    )
    yield CostLine(
        metric_label(metrics.name) if metrics.name else "task metric",
        metric_value(metrics.float_value, metrics.name),
        metric_value(metrics.quantized_value, metrics.name),
        "",
    )
    yield CostLine("SQNR of the output", "", decibels(model.output_sqnr_db), "")
    yield from _worst_line(diagnosis.outputs)
    if model.output_agreement is not None:
        yield CostLine("same class as in float", "", percent(model.output_agreement), "")


def _worst_line(outputs: Sequence[OutputFacts]) -> Iterator[CostLine]:
    """The worst column or operand of any output, where that is worse than the output as a whole."""
    levels = [level for output in outputs if (level := output.worst_sqnr_db) is not None]
    worst = next((output for output in outputs if levels and output.worst_sqnr_db == min(levels)), None)
    if worst is None or worst.columns.worst is None:
        return
    place = visible(worst.columns.worst, 60)
    place += f" of {name(worst.name)}" if len(outputs) > 1 else ""
    yield CostLine(f"SQNR of the worst of it, {place}", "", decibels(min(levels)), "")


def _latency_method(model: ModelFacts) -> str:
    if model.latency_runs is None:
        return f"Latency and time of single operators: {ASK}."
    text = (
        f"Both models as deployed, {count(model.latency_runs, 'run')} each in turn after a warm-up, with "
        f"{count(model.latency_threads or 0, 'thread')} on the machine that measured; quartiles in brackets."
    )
    return text if model.kernels else f"{text} Single operators are timed in ONNX models only."


def _elsewhere(diagnosis: Diagnosis) -> str:
    total = sum(kernel.time_ms or 0.0 for kernel in diagnosis.model.kernels)
    if not total:
        return ""
    share = 1.0 - sum(row.time_ms or 0.0 for row in diagnosis.layers) / total
    return f"{_share_text(max(share, 0.0))} of the time belongs to no layer, such as changes of the memory layout."


def _megabytes_text(size: int | None) -> str:
    if size is None:
        return NOT_MEASURED
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def _amount(operations: int | None) -> str:
    """A count with a prefix of the SI."""
    if operations is None:
        return NOT_MEASURED
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if operations >= limit:
            return f"{number(operations / limit)} {prefix}"
    return str(operations)


def _latency_text(median: float | None, low: float | None, high: float | None) -> str:
    return ASK if median is None else f"{number(median)} ms ({number(low)} … {number(high)})"


def _milliseconds(time: float | None) -> str:
    return number(time)


def _share_text(share: float | None) -> str:
    return percent(share, 1)


def _ratio_text(ratio: float | None) -> str:
    return number(ratio) if ratio is not None else NOT_MEASURED
