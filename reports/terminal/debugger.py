"""The debugger's table for the terminal: the worst layers, whom to suspect, and the metrics of the outputs."""

import json
import math
from collections.abc import Iterator, Sequence

from quantmedic.engine.formulas.debugger import DebuggerLayer, DebuggerRecord
from quantmedic.reports.sections.tables import denylist_rows
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
    if record.denylists:
        yield ""
        yield from _denylist_lines(record)
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
    yield from (f"  {visible(layer.tensor_name)}" for layer in record.suspected)
    if record.first_beside:
        yield "first layers, often worth leaving in float with them:"
        yield from (f"  {visible(layer.tensor_name)}" for layer in record.first_beside)
    yield "as a denylist:"
    yield f"  denylisted_nodes = {_list_text(record.denylisted_nodes)}"
    if record.denylisted_ops:
        yield f"  denylisted_ops = {_list_text(record.denylisted_ops)}  # all layers of these types are suspected"
    yield "next: quantmedic fallback FLOAT QUANT -v DATA finds the smallest set of layers to leave in float"
    yield "a target that computes with integers only is slowed down by float layers: quantmedic explain qat"


def _denylist_lines(record: DebuggerRecord) -> Iterator[str]:
    """One row per denylist, and which layers run in float."""
    yield f"denylists on one calibration, {count(record.denylists[0].samples, 'sample')}"
    yield from aligned_rows(denylist_rows(record), (0,))
    if record.framework == "litert":
        yield "note: evaluated on the ONNX translation of the LiteRT model; TensorFlow's converter was not run"


def _list_text(names: Sequence[str]) -> str:
    """Names whole, as a list of Python that can be copied."""
    return visible(json.dumps(names, ensure_ascii=False))


def _layer_row(layer: DebuggerLayer, own: Sequence[str]) -> tuple[str, ...]:
    metrics = layer.metrics
    figures = (layer.rmse_over_scale, layer.range, metrics["mean_error"], metrics["max_abs_error"])
    return (
        visible(layer.first_name, _WIDTH) + (";…" if ";" in layer.tensor_name else ""),
        name(layer.op_name),
        *(_figure_or_nan(value) for value in (*figures, *(metrics[key] for key in own))),
    )


def _figure_or_nan(value: float) -> str:
    return "nan" if math.isnan(value) else number(value)
