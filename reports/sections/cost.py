"""What quantization gave for what it cost: both models' bytes, operations and time beside both accuracies."""

from collections.abc import Iterator, Sequence

from quantmedic.engine.case.facts import ModelFacts, OutputFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.blocks import (
    Beside,
    Block,
    Cell,
    Column,
    Heading,
    Paragraph,
    Section,
    Span,
    Table,
    layer_target,
    make_table,
)
from quantmedic.reports.sections.tables import operator_text
from quantmedic.reports.sections.verdict import worst_part
from quantmedic.reports.text import (
    NOT_MEASURED,
    bytes_text,
    count,
    decibels,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    si_amount,
    tenths,
    visible,
)

#: Layers listed by their time.
SLOWEST = 10
#: How to measure what takes time.
ASK = f"{NOT_MEASURED}: --profile"


#: Quantity, of the float model, of the quantized one, and quantized over float; empty where it has none.
CostRow = tuple[str, Cell, Cell, Cell]


def cost_section(diagnosis: Diagnosis) -> Section:
    """Both models' cost; what was not measured says how to measure it."""
    heads = [Column("of one model"), *(Column(head, "num") for head in ("float", "quantized", "ratio"))]
    blocks: list[Block] = [
        Paragraph(f"{_ratios_text(diagnosis)} {_latency_method(diagnosis.model)}".strip(), "lead"),
        Table("Cost of both models", heads, list(_cost_rows(diagnosis)), "cost"),
    ]
    if diagnosis.model.kernels:
        said = (
            "Median of the quantized model's operators, timed one by one in a run of its own. The quantizers of a "
            f"layer's output count to it. {_elsewhere(diagnosis)}"
        )
        kinds: list[Block] = [Heading("slowest kinds of operators"), _kernel_table(diagnosis)]
        layers: list[Block] = [Heading("slowest layers"), _slow_layers(diagnosis)]
        blocks += [Beside([kinds, layers]), Paragraph(said.strip(), "muted")]
    return Section("cost", "What it cost", "Cost", blocks)


def _kernel_table(diagnosis: Diagnosis) -> Table:
    """All operators of one kind as the runtime executes them, slowest first."""
    return make_table(
        "Slowest kinds of operators",
        diagnosis.model.kernels,
        [
            (Column("executed as", "name"), lambda kernel: kernel.op_type or "?"),
            (Column("how many", "num"), lambda kernel: kernel.count),
            (Column("time in ms", "num"), lambda kernel: kernel.time_ms),
            (Column("of the time", "num", tenths), lambda kernel: kernel.time_share),
        ],
        "cost",
    )


def _slow_layers(diagnosis: Diagnosis) -> Table:
    timed = sorted((row for row in diagnosis.layers if row.time_ms), key=lambda row: -(row.time_ms or 0.0))
    return make_table(
        "Slowest layers",
        timed[:SLOWEST],
        [
            (Column("layer"), lambda row: Span(row.float_name or row.name, "name", layer_target(row.name))),
            (Column("operator"), operator_text),
            (Column("multiply-adds", "num", si_amount), lambda row: row.operations),
            (Column("time in ms", "num"), lambda row: row.time_ms),
            (Column("of the time", "num", tenths), lambda row: row.time_share),
        ],
        "cost",
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


def _cost_rows(diagnosis: Diagnosis) -> Iterator[CostRow]:
    model, metrics = diagnosis.model, diagnosis.metrics
    before, after = (
        NOT_MEASURED if size is None else bytes_text(size) for size in (model.bytes_float, model.bytes_quantized)
    )
    yield ("bytes", before, after, model.size_ratio)
    operations = None if model.operations is None else si_amount(model.operations)
    yield ("multiply-adds of one sample", operations, operations, "")
    yield ("of these in integer kernels", "", tenths(model.integer_operations_share), "")
    yield (
        f"median latency, {count(model.latency_batch, 'sample')} a run" if model.latency_batch else "median latency",
        _latency_text(model.latency_float_ms, model.latency_float_low_ms, model.latency_float_high_ms),
        _latency_text(model.latency_quantized_ms, model.latency_quantized_low_ms, model.latency_quantized_high_ms),
        model.latency_ratio,
    )
    yield (
        metric_label(metrics.name) if metrics.name else "task metric",
        metric_value(metrics.float_value, metrics.name),
        metric_value(metrics.quantized_value, metrics.name),
        "",
    )
    yield ("SQNR of the output", "", decibels(model.output_sqnr_db), "")
    yield from _worst_row(diagnosis.outputs)
    if model.output_agreement is not None:
        yield ("same class as in float", "", percent(model.output_agreement), "")


def _worst_row(outputs: Sequence[OutputFacts]) -> Iterator[CostRow]:
    """The worst column or part of any output, where that is worse than the output as a whole."""
    if (worst := worst_part(outputs)) is None:
        return
    place = visible(worst.columns.worst or "", 60)
    place += f" of {name(worst.name)}" if len(outputs) > 1 else ""
    yield (f"SQNR of the worst of it, {place}", "", decibels(worst.worst_sqnr_db), "")


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
    return f"{tenths(max(share, 0.0))} of the time belongs to no layer, such as changes of the memory layout."


def _latency_text(median: float | None, low: float | None, high: float | None) -> str:
    return ASK if median is None else f"{number(median)} ms ({number(low)} … {number(high)})"
