"""The debugger's table for the terminal: the worst layers, whom to suspect, and the metrics of the outputs."""

import math
from collections.abc import Iterator, Sequence

from quantmedic.engine.formulas.debugger import FIRST_LAYERS, DebuggerLayer, DebuggerRecord
from quantmedic.reports.terminal.lines import aligned_rows, terminal_text
from quantmedic.reports.text import count, name, number, visible

#: Layers that the terminal shows; all are in the CSV file.
SHOWN = 10
_WIDTH = 60


def render_debugger(record: DebuggerRecord, *, verbose: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: the worst layers, or all, whom to suspect, and the metrics of the outputs."""
    return terminal_text(_debugger_lines(record, len(record.layers) if verbose else SHOWN), ascii_only=ascii_only)


def _debugger_lines(record: DebuggerRecord, shown: int) -> Iterator[str]:
    samples = count(record.samples, "sample")
    yield f"{count(len(record.layers), 'quantized operator')}, {samples} of {name(record.data)}"
    yield ""
    yield "√mse/scale: error in steps; 0.29 is ideal rounding. range: what all codes together span"
    heads = ("tensor", "operator", "√mse/scale", "range", "mean error", "max error", *record.metrics[5:])
    rows = [heads, *(_layer_row(layer, record.metrics[5:]) for layer in record.worst[:shown])]
    yield from aligned_rows(rows, to_the_left=(0, 1))
    if len(record.layers) > shown:
        yield f"{len(record.layers) - shown} more (--verbose, or --output FILE)"
    yield ""
    yield from _suspect_lines(record)
    for metric, value in record.outputs.items():
        yield f"outputs: {name(metric)} {_figure_or_nan(value)}"
    if record.unmeasured:
        yield f"not measured apart from their neighbours: {', '.join(map(name, record.unmeasured))}"
    yield from (f"note: {notice}" for notice in record.notices)


def _suspect_lines(record: DebuggerRecord) -> Iterator[str]:
    over = f"√mse/scale above {number(record.suspect_steps)}"
    if not record.suspected:
        yield f"suspected: none, no layer has {over}"
        return
    yield f"suspected, for {over}:"
    yield from (f"  {_short_name(layer.tensor_name)}" for layer in record.suspected)
    first = [layer.tensor_name for layer in record.layers[:FIRST_LAYERS] if layer not in record.suspected]
    if first:
        yield "first layers, often worth leaving in float with them:"
        yield from (f"  {_short_name(text)}" for text in first)
    if any(_short_name(text) != text for text in (*(layer.tensor_name for layer in record.suspected), *first)):
        yield "a denylist takes names whole, as --output FILE has them"
    yield "next: quantmedic fallback FLOAT QUANT -v DATA finds the smallest set of layers to leave in float"


def _layer_row(layer: DebuggerLayer, own: Sequence[str]) -> tuple[str, ...]:
    metrics = layer.metrics
    figures = (layer.rmse_over_scale, layer.range, metrics["mean_error"], metrics["max_abs_error"])
    return (
        _short_name(layer.tensor_name),
        name(layer.op_name),
        *(_figure_or_nan(value) for value in (*figures, *(metrics[key] for key in own))),
    )


def _figure_or_nan(value: float) -> str:
    return "nan" if math.isnan(value) else number(value)


def _short_name(text: str) -> str:
    """The name of a fused tensor lists all that was fused; the first part is enough to identify it."""
    first, fused, _ = text.partition(";")
    return visible(first, _WIDTH) + (";…" if fused else "")
